/** One question at five values of α, side by side. */

import { Drawing } from "./graph.js";
import { duration, el, said } from "./dom.js";
import { ask, Record } from "./run.js";
import { probabilities, Trace } from "./trace.js";

const ALPHAS = [0, 0.25, 0.5, 0.75, 1];
const NAMES = { 0.25: "¼", 0.5: "½", 0.75: "¾" };
const AT_ONCE = 2;

/** Asks the question at every α, two at a time; a column that failed can be asked again. */
export class Comparison {
  /**
   * @param {HTMLElement} place
   * @param {(busy: boolean) => void} onBusy called when the comparison starts and ends
   */
  constructor(place, onBusy) {
    this.place = place;
    this.onBusy = onBusy;
    /** @type {Column[]} */
    this.waiting = [];
    /** @type {AbortController | null} of the comparison that runs */
    this.now = null;
  }

  /**
   * @param {string} question
   * @param {object} context the other settings
   * @param {any} graph the nodes and edges to draw
   * @param {import("./page.js").Page | null} page
   */
  start(question, context, graph, page) {
    const again = (column) => this.queue(column);
    const columns = ALPHAS.map((alpha) => new Column(question, { ...context, alpha }, graph, page, again));
    this.place.replaceChildren(...columns.map((column) => column.element));
    this.queue(...columns);
  }

  cancel() {
    this.now?.abort();
  }

  /** Queue columns, and start the workers unless they run already. */
  async queue(...columns) {
    this.waiting.push(...columns);
    for (const column of columns) column.reset();
    if (this.now) return;
    this.now = new AbortController();
    this.onBusy(true);
    await Promise.all(Array.from({ length: AT_ONCE }, () => this.work(this.now.signal)));
    this.now = null;
    this.onBusy(false);
  }

  async work(signal) {
    for (let next = this.waiting.shift(); next; next = this.waiting.shift()) await next.run(signal);
  }
}

class Column {
  constructor(question, context, graph, page, again) {
    this.page = page;
    this.question = question;
    this.context = context;
    this.again = () => again(this);
    const { alpha } = context;
    this.drawing = new Drawing(graph);
    this.path = el("p", { class: "path" });
    this.route = el("div", {});
    this.answer = el("div", { class: "answer", dir: "auto" });
    this.figures = el("dl", {});
    this.why = el("div", { class: "why" });
    const title = el("h2", {}, el("span", {}, "α = "), NAMES[alpha] ?? String(alpha));
    const parts = [title, this.drawing.element, this.path, this.route, this.answer, this.figures, this.why];
    const about = { class: "column panel", "aria-label": `α = ${alpha}`, tabindex: -1 };
    this.element = el("article", about, ...parts);
  }

  /** Clear the last try. */
  reset() {
    if (this.why.contains(document.activeElement)) this.element.focus();
    this.drawing.reset();
    this.path.textContent = "waiting";
    for (const each of [this.route, this.answer, this.figures, this.why]) each.replaceChildren();
  }

  async run(signal) {
    const { question, context } = this;
    const record = new Record();
    const trace = new Trace(record, question, this.page);
    trace.how.open = false;
    this.path.textContent = "working";
    const failure = await ask(question, context, { signal }, (event) => {
      for (const each of [record, this.drawing, trace]) each.take(event);
      this.path.textContent = this.visited();
      if (event.kind === "token") this.answer.append(event.text);
      if (event.kind === "custom") this.show(event.data);
    });
    this.finish(record, trace, failure);
  }

  /** The path so far, a subgraph's nodes without its name. */
  visited() {
    return this.drawing.path.map((node) => node.split(":").pop()).join(" → ");
  }

  show(event) {
    if (event.event === "route") this.route.replaceChildren(probabilities(event) ?? "", whyNotTheLikeliest(event));
    if (event.event === "answer") this.answer.replaceChildren(event.text);
    if (event.event === "escalate") this.answer.replaceChildren();
  }

  finish(record, trace, failure) {
    this.drawing.stop(record.answered && !failure);
    this.figures.replaceChildren(...figures(record.usage));
    trace.finish(failure, this.again);
    trace.answer.remove(); // shown above
    this.why.replaceChildren(trace.element);
  }
}

/** @returns {Node | string} why the router's likeliest label was not followed; empty if it was */
function whyNotTheLikeliest({ label, probs, reason }) {
  const likeliest = Math.max(...Object.values(probs));
  return label in probs && probs[label] < likeliest ? said("hint", reason) : "";
}

/** @returns {Node[]} */
function figures(usage) {
  if (!usage) return [];
  const ms = Object.values(usage.ms).reduce((sum, each) => sum + each, 0);
  const rows = [
    ["Retrievals", String(usage.retrieval_steps)],
    ["Model calls", String(usage.llm_calls)],
    ["Tokens", (usage.prompt_tokens + usage.completion_tokens).toLocaleString("en")],
    ["Time", duration(ms)],
  ];
  return rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}
