/** One run: start it, read its stream, record its result. */

import { post, stream } from "./api.js";

export const GRAPH = "hopgate"; // its name in langgraph.json
const ANSWER_NODE = "generate";

/**
 * An event of a run. `node` is a name in the drawn graph, such as `multihop:retrieve`; `custom` is
 * one of hopgate's own events.
 * @typedef {{kind: "run", id: string}
 *   | {kind: "start", node: string}
 *   | {kind: "end", node: string, result: any}
 *   | {kind: "fail", node: string}
 *   | {kind: "custom", data: any}
 *   | {kind: "token", text: string}
 *   | {kind: "error", error: string, message: string}} RunEvent
 */

/**
 * Ask a question.
 * @param {string} question
 * @param {object} context settings that differ from the defaults
 * @param {{thread?: string | null, signal: AbortSignal}} options without a thread nothing is saved
 * @param {(event: RunEvent) => void} take called with each event
 * @returns {Promise<any>} the error that ended the stream, or null
 */
export async function ask(question, context, { thread, signal }, take) {
  const body = {
    assistant_id: GRAPH,
    input: { question },
    context,
    // tasks: the start and the end of each node, with its update of the state.
    stream_mode: ["custom", "messages-tuple", "tasks"],
    stream_subgraphs: true,
    on_disconnect: "cancel",
  };
  const path = thread ? `threads/${thread}/runs/stream` : "runs/stream";
  try {
    for await (const part of stream(path, body, signal)) {
      const runEvent = read(part);
      if (runEvent) take(runEvent);
    }
    return null;
  } catch (error) {
    return error;
  }
}

/** @param {string} thread @param {string} run */
export const cancel = (thread, run) =>
  post(`threads/${thread}/runs/${run}/cancel?action=interrupt`, {});

/** @param {AbortSignal} signal @returns {Promise<string>} the id of a new conversation */
export const newThread = async (signal) => (await post("threads", {}, signal)).thread_id;

/**
 * @param {import("./api.js").Part} part
 * @returns {RunEvent | null}
 */
function read({ event, data }) {
  const [mode, ...namespace] = event.split("|");
  switch (mode) {
    case "metadata":
      return { kind: "run", id: data.run_id };
    case "tasks":
      return readTask(data, namespace);
    case "custom":
      return { kind: "custom", data };
    case "messages":
      return readToken(...data);
    case "error":
      return { kind: "error", error: String(data.error), message: String(data.message) };
  }
  return null;
}

/** @returns {RunEvent} */
function readTask(task, namespace) {
  const node = [...namespace.map((each) => each.split(":", 1)[0]), task.name].join(":");
  if (!("result" in task)) return { kind: "start", node };
  return task.error ? { kind: "fail", node } : { kind: "end", node, result: task.result };
}

/** @returns {RunEvent | null} a piece of the answer; retrievers may call models too */
function readToken(message, metadata) {
  if (message.type !== "AIMessageChunk" || metadata.langgraph_node !== ANSWER_NODE) return null;
  const blocks = typeof message.content === "string" ? [message.content] : message.content;
  const text = blocks.map((each) => (typeof each === "string" ? each : (each.text ?? ""))).join("");
  return text ? { kind: "token", text } : null;
}

/** The result of a run so far. */
export class Record {
  constructor() {
    this.run = "";
    /** the id of the answer's message */
    this.message = "";
    this.standalone = "";
    this.answer = "";
    this.answered = false;
    this.model = "";
    /** @type {{id: string, title: string, quote: string}[]} */
    this.citations = [];
    /** @type {string[]} */
    this.warnings = [];
    /** @type {any} */
    this.usage = null;
    /** @type {Map<string, any>} every passage in the evidence, by id */
    this.passages = new Map();
    /** @type {{error: string, message: string} | null} */
    this.error = null;
  }

  /** @param {RunEvent} event */
  take(event) {
    if (event.kind === "run") this.run = event.id;
    if (event.kind === "error") this.error = event;
    if (event.kind === "end") this.update(event.result);
    if (event.kind === "custom" && event.data.event === "answer") this.answered = true;
    if (event.kind === "custom" && event.data.event === "escalate") this.answered = false;
    if (event.kind === "custom" && event.data.event === "failed") this.usage = event.data.usage;
  }

  /** @param {any} result a node's update of the state; its keys are the state's */
  update(result) {
    this.standalone = result.standalone ?? this.standalone;
    this.answer = result.answer ?? this.answer;
    this.citations = result.citations ?? this.citations;
    this.usage = result.usage?.value ?? result.usage ?? this.usage; // `start` resets it
    this.model = result.decision?.model ?? this.model;
    this.warnings = result.decision?.warnings ?? this.warnings;
    const messages = Array.isArray(result.messages) ? result.messages : [];
    this.message = messages.find((each) => each.type === "ai")?.id ?? this.message;
    // A reset is an object, not a list.
    const evidence = Array.isArray(result.evidence) ? result.evidence : [];
    for (const passage of evidence) this.passages.set(passage.id, passage);
  }
}
