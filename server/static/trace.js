/** The trace of a run: each decision as it is made, the answer, its sources and its cost. */

import { counted, duration, el, find, newId, said } from "./dom.js";
import { Unreachable } from "./api.js";

const STRATEGY_OF = { A: "none", B: "single", C: "multi" };

/** The trace of one run, in `element`. */
export class Trace {
  /**
   * @param {import("./run.js").Record} record
   * @param {string} question as the user typed it
   * @param {import("./page.js").Page | null} page
   */
  constructor(record, question, page) {
    this.record = record;
    this.question = question;
    this.documents = page?.documents;
    this.steps = el("ol", { class: "steps" });
    this.drawing = el("div", { class: "drawing-slot" });
    this.answer = el("div", { class: "answer", dir: "auto" });
    this.after = el("div", { class: "after" });
    this.progress = el("p", { class: "progress" }, "Working …");
    const summary = el("summary", {}, "How it was answered");
    this.how = el("details", { class: "how", open: !page }, summary, this.steps, this.drawing);
    this.element = el("div", { class: "trace" }, this.progress, this.answer, this.after, this.how);
    this.hop = null;
  }

  /** @param {import("./run.js").RunEvent} event which the record has taken */
  take(event) {
    if (event.kind === "start") this.showProgress(event.node);
    if (event.kind === "token") this.answer.append(event.text);
    if (event.kind === "custom") this.show(event.data);
    if (event.kind === "end" && event.node === "condense") this.showRewrite();
  }

  showProgress(node) {
    const name = node.split(":").pop();
    this.progress.textContent = `${name[0].toUpperCase()}${name.slice(1).replace("_", " ")} …`;
  }

  showRewrite() {
    const { standalone } = this.record;
    if (standalone.trim() === this.question.trim()) return;
    this.add("Condense", "rewritten as", said("quoted", standalone));
  }

  show(event) {
    if (event.event === "gate") this.add("Gate", ...gateDetails(event));
    if (event.event === "route") this.add("Route", ...routeDetails(event));
    if (event.event === "plan") this.add("Plan", counted(event.sub_questions.length, "sub-question"), subQuestions(event));
    if (event.event === "hop") this.addHop(event);
    if (event.event === "thought") this.addThought(event);
    if (event.event === "stop") this.add("Stop", event.stop_reason.replaceAll("_", " "));
    if (event.event === "escalate") this.addEscalation(event);
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
      : el("p", { class: "hint" }, "No passages found.");
    const query = said("quoted query", event.query);
    this.hop = this.add(`Hop ${event.number}`, counted(event.passages.length, "passage"), query, found);
  }

  addThought(event) {
    const text = event.thought || "(the model wrote nothing)";
    this.hop?.append(said("thought", text));
  }

  addEscalation(event) {
    this.answer.replaceChildren();
    this.add("Escalate", `${event.from} → ${event.to}`, said("hint", event.reason));
  }

  /** Return a button with a passage's title and place, and the panel that it opens. */
  source(passage, number) {
    const { id, title, quote } = passage;
    const panel = el("div", { class: "passage", id: newId(), hidden: true });
    const label = el("span", { dir: "auto" }, title || "untitled");
    const mark = number ? el("span", { class: "number" }, String(number)) : null;
    const where = place(passage);
    const button = el(
      "button",
      { type: "button", class: "source", "aria-expanded": "false", "aria-controls": panel.id },
      mark,
      label,
      where ? el("span", { class: "place", dir: "auto" }, where) : null,
    );
    button.addEventListener("click", () => {
      panel.hidden = !panel.hidden;
      button.setAttribute("aria-expanded", String(!panel.hidden));
      if (!panel.hidden) panel.replaceChildren(...this.passageText(this.record.passages.get(id), quote));
    });
    return [button, panel];
  }

  /** @returns {Node[]} a passage with its quote marked, and its place, a link if its address is known */
  passageText(passage, quote) {
    if (!passage) return [el("p", { class: "hint" }, "Found, but left out of the evidence.")];
    const where = place(passage);
    const href = addressOf(passage, this.documents);
    const link = href ? el("a", { href, target: "_blank", rel: "noopener noreferrer" }, where) : where;
    return [said("text", ...marked(passage.text, quote)), ...(where ? [said("hint", link)] : [])];
  }

  /** @returns {(Node | string)[]} the answer; the number of a source becomes a button that opens it */
  withMarks(answer, buttons) {
    return answer.split(/(?<=\[(?:\d+, *)*)(\d+)(?=(?:, *\d+)*\])/).map((part, at) => {
      const source = at % 2 ? buttons.get(Number(part)) : null;
      if (!source) return part;
      const open = () => {
        if (source.getAttribute("aria-expanded") === "false") source.click();
        source.focus();
      };
      return el("button", { type: "button", class: "mark", "aria-label": `Source ${part}`, onclick: open }, part);
    });
  }

  /**
   * Show the end of the run.
   * @param {any} error null if the stream ended normally
   * @param {() => void} again asks the question again
   */
  finish(error, again) {
    this.progress.remove();
    const { answer, citations, warnings, usage, model } = this.record;
    const buttons = new Map();
    const cited = citations.map((citation, at) => {
      const [button, panel] = this.source(citation, citation.number ?? at + 1);
      buttons.set(citation.number, button);
      return el("li", {}, button, panel);
    });
    if (!error && !this.record.error) this.answer.replaceChildren(...this.withMarks(answer, buttons));
    if (cited.length) this.after.append(el("ul", { class: "citations", "aria-label": "Sources" }, ...cited));
    for (const warning of warnings) this.after.append(said("warning", warning));
    const problem = describeProblem(error, this.record);
    const calm = error?.name === "AbortError";
    if (problem) this.after.append(problemBox(...problem, calm, again));
    if (usage) this.how.append(...costs(usage, model));
  }
}

/** @returns {[string, ...(Node | null)[]]} */
function gateDetails({ answer, retrieve, mode, reply, reason, p_yes, uncertainty, threshold }) {
  const verdict = { yes: "yes, retrieve", no: "no, answer directly", skipped: "not asked" }[answer] ??
    `neither yes nor no: ${retrieve ? "retrieve" : "answer directly"}`;
  const measured = p_yes ?? uncertainty;
  const name = p_yes === null ? "uncertainty" : "P(Yes)";
  const byProbability = reply && p_yes !== null && threshold !== null;
  const above = byProbability ? el("p", { class: "hint" }, "The probability decides, not the reply:") : null;
  const quoted = reply ? said("quoted", reply) : null;
  const why = said("hint", `${mode}: ${reason}`);
  return [verdict, ...(measured === null ? [] : [scale(name, measured, threshold)]), above, quoted, why];
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
function routeDetails(event) {
  const { label, strategy, reason, profile } = event;
  const why = profile ? `${reason} (profile ${profile})` : reason;
  return [`${label}, ${strategy}`, probabilities(event), said("hint", why)];
}

/**
 * Draw the router's probabilities as bars; null if the strategy was set instead.
 * @param {any} event the route event
 */
export function probabilities({ label, probs }) {
  const bars = Object.entries(STRATEGY_OF).filter(([each]) => each in probs).map(([each, strategy]) => {
    const fill = el("span", { class: `fill ${strategy}` });
    fill.style.width = percent(probs[each]);
    return el(
      "li",
      { class: each === label ? "chosen" : null },
      el("span", {}, `${each} ${strategy}`),
      el("span", { class: "bar" }, fill),
      el("span", { class: "figure" }, `${(probs[each] * 100).toFixed(1)}%`),
    );
  });
  const attributes = { class: "probabilities", "aria-label": "The router's probabilities" };
  return bars.length ? el("ul", attributes, ...bars) : null;
}

const subQuestions = ({ sub_questions: questions }) =>
  el("ol", { class: "sub-questions" }, ...questions.map((each) => el("li", { dir: "auto" }, each)));

/** @returns {string} file, page and heading of a passage or a citation, as far as they are known */
function place({ source, page, section }) {
  return [source, page && `page ${page}`, section].filter(Boolean).join(" · ");
}

/** @returns {string | null} where a passage can be read: its web address, or its file below `documents` */
function addressOf({ source, page }, documents) {
  if (!source || (!documents && !/^https?:\/\//.test(source))) return null;
  const isAddress = /^https?:\/\//.test(source);
  const url = isAddress ? source : documents + source.split("/").map(encodeURIComponent).join("/");
  return page ? `${url}#page=${page}` : url;
}

/** @returns {(Node | string)[]} the text with the quote marked, whatever the white space in it */
function marked(text, quote) {
  const words = (quote ?? "").split(/\s+/).filter(Boolean).map(escaped);
  const at = words.length ? new RegExp(words.join("\\s+")).exec(text) : null;
  if (!at) return quote ? [el("mark", {}, quote), "\n", text] : [text];
  return [text.slice(0, at.index), el("mark", {}, at[0]), text.slice(at.index + at[0].length)];
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** @returns {[string, string] | null} a title, and the error or what to do */
function describeProblem(error, record) {
  if (error?.name === "AbortError") return ["Cancelled", "The run was stopped."];
  if (error instanceof Unreachable) {
    return ["The server does not answer", `${error.message}. Check that it runs and that you are online, then ask again.`];
  }
  if (error?.status === 404) {
    return ["The server no longer has this conversation", "Ask again to start a new one."];
  }
  if (error) return [`The server refused the question (${error.status ?? error.name})`, error.message];
  if (record.error) return [headings[record.error.error] ?? "The run failed", shortened(record.error.message)];
  return record.answered ? null : ["The run ended without an answer", "Ask again, or read the server's log."];
}

const headings = {
  ValidationError: "A setting was refused",
  ValueError: "The request was refused",
};

/** Shorten pydantic's message to one line for each setting. */
function shortened(message) {
  const found = [...message.matchAll(/^(\w[\w.]*)\n {2}(.*?) \[type=.*?input_value=(.*?), input_type/gm)];
  return found.map(([, name, reason, value]) => `${name} is ${value}: ${reason}`).join("\n") || message;
}

function problemBox(title, text, calm, again) {
  return el(
    "div",
    { class: calm ? "problem calm" : "problem", role: "alert" },
    el("b", {}, title),
    el("p", { dir: "auto" }, text),
    el("button", { type: "button", onclick: again }, "Ask again"),
  );
}

/** @returns {Node[]} */
function costs(usage, model) {
  const times = Object.entries(usage.ms);
  const total = times.reduce((sum, [, ms]) => sum + ms, 0);
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
  for (const [node, ms] of times) {
    const part = el("span", { class: `of-${node}` });
    part.style.flexGrow = String(Math.max(ms, total / 500));
    bar.append(part);
    legend.append(el("li", { class: `of-${node}` }, `${node} ${duration(ms)}`));
  }
  return [line, bar, legend];
}

const percent = (share) => `${Math.min(Math.max(share, 0), 1) * 100}%`;

const figure = (share) => share.toFixed(3);
