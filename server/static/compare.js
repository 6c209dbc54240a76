/** One question at five settings of the dial, side by side. */

import { Drawing } from "./graph.js";
import { duration, el, find } from "./dom.js";
import { ask, Record } from "./run.js";
import { probabilities, Trace } from "./trace.js";

export const ALPHAS = [0, 0.25, 0.5, 0.75, 1];
const NAMES = { 0.25: "¼", 0.5: "½", 0.75: "¾" };
const AT_ONCE = 2;

/**
 * Ask the question at every α, two at a time.
 * @param {string} question
 * @param {object} context the other settings
 * @param {any} graph the server's drawing
 * @param {HTMLElement} place
 * @param {AbortSignal} signal
 */
export async function compare(question, context, graph, place, signal) {
  const columns = ALPHAS.map((alpha) => new Column(alpha, graph));
  place.replaceChildren(...columns.map((column) => column.element));
  const waiting = [...columns];
  const work = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      await next.run(question, context, signal);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

class Column {
  constructor(alpha, graph) {
    this.alpha = alpha;
    this.drawing = new Drawing(graph);
    this.path = el("p", { class: "way" }, "waiting");
    this.route = el("div", {});
    this.answer = el("div", { class: "answer", dir: "auto" });
    this.figures = el("dl", {});
    this.why = el("div", { class: "why" });
    const title = el("h2", {}, el("span", {}, "α = "), NAMES[alpha] ?? String(alpha));
    const parts = [title, this.drawing.element, this.path, this.route, this.answer, this.figures, this.why];
    this.element = el("article", { class: "column panel", "aria-label": `α = ${alpha}` }, ...parts);
  }

  async run(question, context, signal) {
    const record = new Record();
    const trace = new Trace(record, question);
    let failure = null;
    this.path.textContent = "working";
    try {
      for await (const happening of ask(question, { ...context, alpha: this.alpha }, { signal })) {
        for (const each of [record, this.drawing, trace]) each.take(happening);
        this.path.textContent = way(this.drawing.path);
        if (happening.kind === "token") this.answer.append(happening.text);
        if (happening.kind === "told") this.tell(happening.event);
      }
    } catch (error) {
      failure = error;
    }
    this.finish(record, trace, failure, () => this.run(question, context, new AbortController().signal));
  }

  tell(event) {
    if (event.event === "route") this.route.replaceChildren(probabilities(event) ?? "");
    if (event.event === "answer") this.answer.replaceChildren(event.text);
    if (event.event === "escalate") this.answer.replaceChildren();
  }

  finish(record, trace, failure, again) {
    this.drawing.stop();
    if (record.answered && !failure) this.drawing.finish();
    this.figures.replaceChildren(...figures(record.usage));
    trace.finish(failure, again);
    trace.answer.remove(); // it stands above
    const trouble = find(".trouble", trace.element);
    this.why.replaceChildren(
      ...(trouble ? [trouble] : []),
      el("details", {}, el("summary", {}, "Why, and from where"), trace.element),
    );
  }
}

/** @param {string[]} path */
function way(path) {
  const names = path.map((node) => node.split(":").pop());
  return names.join(" → ").replace(/^condense → /, "");
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
