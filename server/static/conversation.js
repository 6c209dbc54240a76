/** The first view: questions and answers on one thread, each with its trace. */

import { announce, el, find, said, toggleBusy } from "./dom.js";
import { Feedback } from "./feedback.js";
import { ask, cancel, newThread, Record } from "./run.js";
import { Trace } from "./trace.js";

/** The announcement of each event to a screen reader. */
const ANNOUNCEMENTS = {
  gate: ({ answer }) => `Gate: ${answer}`,
  route: ({ label, strategy }) => `Route: ${label}, ${strategy}`,
  hop: ({ number }) => `Hop ${number}`,
  stop: ({ stop_reason }) => `Stopped: ${stop_reason.replaceAll("_", " ")}`,
  escalate: () => "The answer is in doubt; retrieving more",
  answer: ({ text }) => `Answer: ${text}`,
};

/** Asks questions on one thread, shows the runs, and starts a new thread. */
export class Conversation {
  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    this.settings = settings;
    /** @type {import("./graph.js").Drawing | null} */
    this.drawing = null;
    /** @type {import("./page.js").Page | null} */
    this.page = null;
    /** @type {string | null} */
    this.thread = null;
    /** @type {{abort: AbortController, record: Record} | null} the current run */
    this.now = null;
    this.beside = matchMedia("(min-width: 48rem)");
    this.beside.addEventListener("change", () => this.place());
    find("#cancel").addEventListener("click", () => this.stop());
    find("#new-conversation").addEventListener("click", () => this.restart());
  }

  /**
   * @param {import("./graph.js").Drawing} drawing that shows the current path
   * @param {import("./page.js").Page | null} page
   */
  drawOn(drawing, page) {
    this.drawing?.element.remove();
    Object.assign(this, { drawing, page });
    this.place();
  }

  /** Put the drawing beside the conversation; on a phone or a project's page, into the newest turn. */
  place() {
    const turn = this.beside.matches && !this.page ? null : find("#turns > li:last-child .drawing-slot");
    find("#drawing").hidden = Boolean(turn) || find("#ask").hidden;
    if (this.drawing) (turn ?? find("#drawing")).append(this.drawing.element);
  }

  /** @param {string} question */
  async ask(question) {
    if (this.now || !this.drawing) return;
    const run = { abort: new AbortController(), record: new Record() };
    this.now = run;
    const context = this.settings.values();
    const trace = new Trace(run.record, question, this.page);
    const turn = this.addTurn(question, context, trace);
    this.busy(true);
    const failure = await this.follow(run, question, context, trace, turn);
    keepInView(turn, () => {
      trace.finish(failure, () => this.ask(question));
      this.offerFeedback(run.record, failure, trace);
    });
    turn.classList.add("finished");
    if (this.now === run) this.finish(run.record, failure);
  }

  /** Show the events of a run until it ends; return its error, or null. */
  async follow({ abort: { signal }, record }, question, context, trace, turn) {
    const { drawing } = this;
    drawing.reset();
    try {
      this.thread ??= await newThread(signal);
    } catch (error) {
      return error;
    }
    const failure = await ask(question, context, { thread: this.thread, signal }, (event) => {
      keepInView(turn, () => [record, drawing, trace].forEach((each) => each.take(event)));
      if (event.kind === "custom") announce(ANNOUNCEMENTS[event.data.event]?.(event.data) ?? "");
    });
    if (failure?.status === 404) this.thread = null; // the server keeps threads in memory and was restarted
    return failure;
  }

  offerFeedback({ answered, message, error }, failure, trace) {
    if (!answered || failure || error || !this.thread || !message) return;
    trace.answer.after(new Feedback(this.thread, message).element);
  }

  finish(record, failure) {
    this.now = null;
    this.drawing.stop(record.answered && !failure);
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
      changed ? said("hint", changed) : null,
      trace.element,
    );
    const turn = el("li", { class: "turn" }, card);
    find("#turns").append(turn);
    this.place();
    turn.scrollIntoView({ block: "start" });
    return turn;
  }

  /** Stop listening, and cancel the run on the server. */
  stop() {
    if (!this.now) return;
    const { abort, record } = this.now;
    abort.abort();
    if (this.thread && record.run) cancel(this.thread, record.run).catch(() => {}); // it has ended
  }

  restart() {
    this.stop();
    this.now = null;
    this.thread = null;
    find("#turns").replaceChildren();
    find("#intro").hidden = false;
    this.drawing.stop();
    this.drawing.reset();
    this.place();
    this.busy(false);
    find("#new-conversation").hidden = true;
    find("#question").focus();
  }

  busy(isBusy) {
    find("#new-conversation").hidden = false;
    toggleBusy(isBusy, find("#cancel"), find("#ask-form [type=submit]"), find("#question"));
  }
}

/** Add to a turn; if its end is in view, keep it in view. */
function keepInView(turn, add) {
  const [card] = turn.children;
  const isAtEnd = card.getBoundingClientRect().bottom <= find("#ask-form").getBoundingClientRect().top;
  add();
  if (isAtEnd) card.scrollIntoView({ block: "nearest" });
}
