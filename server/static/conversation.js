/** The first view: questions and answers on one thread, each with its trace. */

import { el, find, say } from "./dom.js";
import { ask, cancel, newThread, Record } from "./run.js";
import { Trace } from "./trace.js";

/** What is said aloud of an event. */
const ALOUD = {
  gate: ({ answer }) => `Gate: ${answer}`,
  route: ({ label, strategy }) => `Route: ${label}, ${strategy}`,
  hop: ({ number }) => `Hop ${number}`,
  stop: ({ stop_reason }) => `Stopped: ${stop_reason.replaceAll("_", " ")}`,
  escalate: () => "The answer is in doubt, going deeper",
  answer: ({ text }) => `Answer: ${text}`,
};

/** Asks, shows, cancels, starts anew. */
export class Conversation {
  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    this.settings = settings;
    /** @type {import("./graph.js").Drawing | null} */
    this.drawing = null;
    /** @type {string | null} */
    this.thread = null;
    /** @type {{abort: AbortController, record: Record} | null} the run that is going on */
    this.now = null;
    this.beside = matchMedia("(min-width: 48rem)");
    this.beside.addEventListener("change", () => this.place());
    find("#cancel").addEventListener("click", () => this.stop());
    find("#anew").addEventListener("click", () => this.anew());
  }

  /** @param {import("./graph.js").Drawing} drawing on which the paths light up */
  drawOn(drawing) {
    this.drawing?.element.remove();
    this.drawing = drawing;
    this.place();
  }

  /** Put the drawing beside the conversation, or, on a phone, into the newest turn. */
  place() {
    const turn = this.beside.matches ? null : find("#turns > li:last-child .place");
    find("#drawing").hidden = Boolean(turn) || find("#ask").hidden;
    if (this.drawing) (turn ?? find("#drawing")).append(this.drawing.element);
  }

  /** @param {string} question */
  async put(question) {
    if (this.now || !this.drawing) return;
    const run = { abort: new AbortController(), record: new Record() };
    this.now = run;
    const context = this.settings.values();
    const trace = new Trace(run.record, question);
    const turn = this.addTurn(question, context, trace);
    this.busy(true);
    const failure = await this.follow(run, question, context, trace, turn);
    growing(turn, () => trace.finish(failure, () => this.put(question)));
    turn.classList.add("over");
    if (this.now === run) this.finish(run.record, failure);
  }

  /** Show what happens until nothing does; return what went wrong, if anything did. */
  async follow({ abort: { signal }, record }, question, context, trace, turn) {
    const { drawing } = this;
    drawing.reset();
    try {
      this.thread ??= await newThread(signal);
      for await (const happening of ask(question, context, { thread: this.thread, signal })) {
        growing(turn, () => [record, drawing, trace].forEach((each) => each.take(happening)));
        if (happening.kind === "told") say(ALOUD[happening.event.event]?.(happening.event) ?? "");
      }
    } catch (error) {
      if (error.status === 404) this.thread = null; // a server in memory was started anew
      return error;
    }
    return null;
  }

  finish(record, failure) {
    this.now = null;
    this.drawing.stop();
    if (record.answered && !failure) this.drawing.finish();
    if (record.error) this.settings.refuse(record.error.message);
    this.busy(false);
  }

  addTurn(question, context, trace) {
    find("#intro").hidden = true;
    const changed = Object.entries(context).map(([name, value]) => `${name} ${value}`).join(" · ");
    const card = el(
      "div",
      { class: "panel card" },
      el("h2", { dir: "auto" }, question),
      changed ? el("p", { class: "hint", dir: "auto" }, changed) : null,
      el("div", { class: "place" }),
      trace.element,
    );
    const turn = el("li", { class: "turn" }, card);
    find("#turns").append(turn);
    this.place();
    turn.scrollIntoView({ block: "start" });
    return turn;
  }

  /** Listen no more, and have the server cancel what it does. */
  stop() {
    if (!this.now) return;
    const { abort, record } = this.now;
    abort.abort();
    if (this.thread && record.run) cancel(this.thread, record.run).catch(() => {}); // ended already
  }

  anew() {
    this.stop();
    this.now = null;
    this.thread = null;
    find("#turns").replaceChildren();
    find("#intro").hidden = false;
    this.drawing.stop();
    this.drawing.reset();
    this.place();
    this.busy(false);
    find("#anew").hidden = true;
    find("#question").focus();
  }

  busy(working) {
    const [cancelling, submit] = [find("#cancel"), find("#asking [type=submit]")];
    const focused = [cancelling, submit].includes(document.activeElement);
    cancelling.hidden = !working;
    submit.hidden = working;
    find("#anew").hidden = false;
    if (focused) (working ? cancelling : find("#question")).focus();
  }
}

/** Let a turn grow; a reader who sees its end goes on seeing it. */
function growing(turn, grow) {
  const [card] = turn.children;
  const followed = card.getBoundingClientRect().bottom <= find("#asking").getBoundingClientRect().top;
  grow();
  if (followed) card.scrollIntoView({ block: "nearest" });
}
