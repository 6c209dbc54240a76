/** A run in words: each decision as it is made, the answer, its sources, what it cost. */

import { counted, duration, el, find, newId } from "./dom.js";
import { Unreachable } from "./api.js";

const PATHS = { A: "none", B: "single", C: "multi" };

/** Shows one run; `element` holds it. */
export class Trace {
  /**
   * @param {import("./run.js").Record} record
   * @param {string} question as asked
   */
  constructor(record, question) {
    this.record = record;
    this.question = question;
    this.steps = el("ol", { class: "steps" });
    this.answer = el("div", { class: "answer", dir: "auto" });
    this.after = el("div", { class: "after" });
    this.working = el("p", { class: "working" }, "Working …");
    this.element = el("div", { class: "trace" }, this.steps, this.working, this.answer, this.after);
    this.hop = null;
  }

  /** @param {import("./run.js").Happening} happening after the record has taken it */
  take(happening) {
    if (happening.kind === "start") this.work(happening.node);
    if (happening.kind === "token") this.answer.append(happening.text);
    if (happening.kind === "told") this.tell(happening.event);
    if (happening.kind === "end" && happening.node === "condense") this.readAs();
  }

  work(node) {
    const name = node.split(":").pop();
    this.working.textContent = `${name[0].toUpperCase()}${name.slice(1).replace("_", " ")} …`;
  }

  readAs() {
    const { standalone } = this.record;
    if (standalone.trim() === this.question.trim()) return;
    this.add("Condense", "read as", el("p", { class: "quoted", dir: "auto" }, standalone));
  }

  tell(event) {
    if (event.event === "gate") this.add("Gate", ...gateWords(event));
    if (event.event === "route") this.add("Route", ...routeWords(event));
    if (event.event === "plan") this.add("Plan", counted(event.sub_questions.length, "sub-question"), planned(event));
    if (event.event === "hop") this.addHop(event);
    if (event.event === "thought") this.think(event);
    if (event.event === "stop") this.add("Stop", event.stop_reason.replaceAll("_", " "));
    if (event.event === "escalate") this.escalate(event);
    if (event.event === "answer") this.answer.replaceChildren(event.text);
  }

  add(name, verdict, ...more) {
    const head = el("p", { class: "head" }, el("b", {}, name), el("span", { class: "verdict" }, verdict));
    const step = el("li", { class: `step ${name.split(" ")[0].toLowerCase()}` }, head, ...more);
    this.steps.append(step);
    return step;
  }

  addHop(event) {
    const passages = event.passages.map((passage) => el("li", {}, ...this.source(passage)));
    const found = passages.length
      ? el("ul", { class: "passages", "aria-label": "Passages found" }, ...passages)
      : el("p", { class: "hint" }, "Nothing was found.");
    const query = el("p", { class: "quoted query", dir: "auto" }, event.query);
    this.hop = this.add(`Hop ${event.number}`, counted(event.passages.length, "passage"), query, found);
  }

  think(event) {
    const words = event.thought || "(the model wrote nothing)";
    this.hop?.append(el("p", { class: "thought", dir: "auto" }, words));
  }

  escalate(event) {
    this.answer.replaceChildren();
    this.add("Escalate", `${event.from} → ${event.to}`, el("p", { class: "hint", dir: "auto" }, event.reason));
  }

  /** A button with a passage's title, and the passage that it opens. */
  source({ id, title, quote }, number) {
    const panel = el("div", { class: "passage", id: newId(), hidden: true });
    const label = el("span", { dir: "auto" }, title || "untitled");
    const mark = number ? el("span", { class: "number" }, String(number)) : null;
    const button = el(
      "button",
      { type: "button", class: "source", "aria-expanded": "false", "aria-controls": panel.id },
      mark,
      label,
    );
    button.addEventListener("click", () => {
      panel.hidden = !panel.hidden;
      button.setAttribute("aria-expanded", String(!panel.hidden));
      if (!panel.hidden) panel.replaceChildren(...passageWords(this.record.passages.get(id), quote));
    });
    return [button, panel];
  }

  /**
   * The run is over.
   * @param {any} error what went wrong, if anything did
   * @param {() => void} again asks the same once more
   */
  finish(error, again) {
    this.working.remove();
    const { answer, citations, warnings, usage, model } = this.record;
    if (!error && !this.record.error) this.answer.replaceChildren(answer);
    const cited = citations.map((citation, at) => el("li", {}, ...this.source(citation, at + 1)));
    if (cited.length) this.after.append(el("ul", { class: "citations", "aria-label": "Sources" }, ...cited));
    for (const warning of warnings) this.after.append(el("p", { class: "warning", dir: "auto" }, warning));
    const trouble = troubleWords(error, this.record);
    const calm = error?.name === "AbortError";
    if (trouble) this.after.append(troubleBox(...trouble, calm, again));
    if (usage) this.after.append(...costWords(usage, model));
  }
}

/** @returns {[string, ...(Node | null)[]]} */
function gateWords({ answer, retrieve, mode, reply, reason, p_yes, uncertainty, threshold }) {
  const verdict = { yes: "yes, look it up", no: "no, answer directly", skipped: "not asked" }[answer] ??
    `neither yes nor no: ${retrieve ? "look it up" : "answer directly"}`;
  const measured = p_yes ?? uncertainty;
  const name = p_yes === null ? "uncertainty" : "P(Yes)";
  const said = reply ? el("p", { class: "quoted", dir: "auto" }, reply) : null;
  const why = el("p", { class: "hint", dir: "auto" }, `${mode}: ${reason}`);
  return [verdict, ...(measured === null ? [] : [scale(name, measured, threshold)]), said, why];
}

function scale(name, measured, threshold) {
  const limit = threshold === null ? "" : `, threshold ${figure(threshold)}`;
  const bar = el("span", { class: "bar" }, el("span", { class: "fill" }));
  find(".fill", bar).style.width = percent(measured);
  if (threshold !== null) {
    const tick = el("span", { class: "tick" });
    tick.style.left = percent(threshold);
    bar.append(tick);
  }
  return el("p", { class: "scale" }, el("span", {}, `${name} ${figure(measured)}${limit}`), bar);
}

/** @returns {[string, ...(Node | null)[]]} */
function routeWords(event) {
  const { label, strategy, reason, profile } = event;
  const why = profile ? `${reason} (profile ${profile})` : reason;
  return [`${label}, ${strategy}`, probabilities(event), el("p", { class: "hint", dir: "auto" }, why)];
}

/**
 * The router's three bars; null where a person decided instead.
 * @param {any} event of the route
 */
export function probabilities({ label, probs }) {
  const bars = Object.entries(PATHS).filter(([each]) => each in probs).map(([each, path]) => {
    const fill = el("span", { class: `fill ${path}` });
    fill.style.width = percent(probs[each]);
    return el(
      "li",
      { class: each === label ? "chosen" : null },
      el("span", {}, `${each} ${path}`),
      el("span", { class: "bar" }, fill),
      el("span", { class: "figure" }, `${(probs[each] * 100).toFixed(1)}%`),
    );
  });
  const attributes = { class: "probabilities", "aria-label": "The router's probabilities" };
  return bars.length ? el("ul", attributes, ...bars) : null;
}

const planned = ({ sub_questions: asked }) =>
  el("ol", { class: "sub-questions" }, ...asked.map((each) => el("li", { dir: "auto" }, each)));

/** @returns {Node[]} */
function passageWords(passage, quote) {
  if (!passage) return [el("p", { class: "hint" }, "Found, but not among what was read.")];
  const where = [passage.source, passage.page && `page ${passage.page}`, passage.section];
  const place = where.filter(Boolean).join(" · ");
  return [
    el("p", { class: "text", dir: "auto" }, ...marked(passage.text, quote)),
    ...(place ? [el("p", { class: "hint", dir: "auto" }, place)] : []),
  ];
}

/** @returns {(Node | string)[]} the text with the quote marked, wherever its spaces are */
function marked(text, quote) {
  const words = (quote ?? "").split(/\s+/).filter(Boolean).map(escaped);
  const at = words.length ? new RegExp(words.join("\\s+")).exec(text) : null;
  if (!at) return quote ? [el("mark", {}, quote), "\n", text] : [text];
  return [text.slice(0, at.index), el("mark", {}, at[0]), text.slice(at.index + at[0].length)];
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** @returns {[string, string] | null} what happened, and what to do */
function troubleWords(error, record) {
  if (error?.name === "AbortError") return ["Cancelled", "Nothing more is asked of the model."];
  if (error instanceof Unreachable) {
    return ["The server does not answer", `${error.message}. Start it, or look at the network, and ask again.`];
  }
  if (error?.status === 404) {
    return ["The server no longer has this conversation", "Asking again begins a new one."];
  }
  if (error) return [`The server refused the question (${error.status ?? error.name})`, error.message];
  if (record.error) return [headings[record.error.error] ?? "The run failed", plainly(record.error.message)];
  return record.answered ? null : ["The run ended without an answer", "Ask again, or look into the server's log."];
}

const headings = {
  ModelError: "The model did not answer",
  ValidationError: "A setting was refused",
  ValueError: "The request was refused",
};

/** Say pydantic's message in a line for each setting. */
export function plainly(message) {
  const found = [...message.matchAll(/^(\w[\w.]*)\n {2}(.*?) \[type=.*?input_value=(.*?), input_type/gm)];
  return found.map(([, name, what, value]) => `${name} is ${value}: ${what}`).join("\n") || message;
}

function troubleBox(title, words, calm, again) {
  return el(
    "div",
    { class: calm ? "trouble calm" : "trouble", role: "alert" },
    el("b", {}, title),
    el("p", { dir: "auto" }, words),
    el("button", { type: "button", onclick: again }, "Ask again"),
  );
}

/** @returns {Node[]} */
function costWords(usage, model) {
  const spent = Object.entries(usage.ms);
  const total = spent.reduce((sum, [, ms]) => sum + ms, 0);
  const figures = [
    counted(usage.retrieval_steps, "retrieval"),
    counted(usage.llm_calls, "model call"),
    `${usage.prompt_tokens.toLocaleString("en")} + ${usage.completion_tokens.toLocaleString("en")} tokens`,
    duration(total),
    model,
  ];
  const line = el("p", { class: "cost" }, ...figures.filter(Boolean).map((each) => el("span", {}, each)));
  const bar = el("span", { class: "times", "aria-hidden": "true" });
  const legend = el("ul", { class: "legend", "aria-label": "Time in each node" });
  for (const [node, ms] of spent) {
    const part = el("span", { class: `of-${node}` });
    part.style.flexGrow = String(Math.max(ms, total / 500));
    bar.append(part);
    legend.append(el("li", { class: `of-${node}` }, `${node} ${duration(ms)}`));
  }
  return [line, bar, legend];
}

const percent = (share) => `${Math.min(Math.max(share, 0), 1) * 100}%`;

const figure = (share) => share.toFixed(3);
