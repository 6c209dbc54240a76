/** One run: asked for, read from the stream, recorded. */

import { post, stream } from "./api.js";

export const GRAPH = "hopgate"; // its name in langgraph.json
const ANSWERING = "generate"; // the node that writes the answer

/**
 * What happens in a run. `node` is a name of the drawn graph, such as `multihop:retrieve`.
 * @typedef {{kind: "begun", run: string}
 *   | {kind: "start", node: string}
 *   | {kind: "end", node: string, result: any}
 *   | {kind: "fail", node: string}
 *   | {kind: "told", event: any}
 *   | {kind: "token", text: string}
 *   | {kind: "error", error: string, message: string}} Happening
 */

/**
 * Ask a question.
 * @param {string} question
 * @param {object} context what differs from the defaults
 * @param {{thread?: string | null, signal: AbortSignal}} options without a thread nothing is kept
 * @returns {AsyncGenerator<Happening>}
 */
export async function* ask(question, context, { thread, signal }) {
  const body = {
    assistant_id: GRAPH,
    input: { question },
    context,
    // tasks: each node's start and end, with what it wrote.
    stream_mode: ["custom", "messages-tuple", "tasks"],
    stream_subgraphs: true,
    on_disconnect: "cancel",
  };
  const path = thread ? `threads/${thread}/runs/stream` : "runs/stream";
  for await (const part of stream(path, body, signal)) {
    const happening = read(part);
    if (happening) yield happening;
  }
}

/** @param {string} thread @param {string} run */
export const cancel = (thread, run) =>
  post(`threads/${thread}/runs/${run}/cancel?action=interrupt`, {});

/** @param {AbortSignal} signal @returns {Promise<string>} the id of a new conversation */
export const newThread = async (signal) => (await post("threads", {}, signal)).thread_id;

/**
 * @param {import("./api.js").Part} part
 * @returns {Happening | null}
 */
function read({ event, data }) {
  const [mode, namespace] = event.split("|");
  switch (mode) {
    case "metadata":
      return { kind: "begun", run: data.run_id };
    case "tasks":
      return readTask(data, namespace);
    case "custom":
      return { kind: "told", event: data };
    case "messages":
      return readToken(...data);
    case "error":
      return { kind: "error", error: String(data.error), message: String(data.message) };
  }
  return null;
}

/** @returns {Happening} */
function readTask(task, namespace) {
  const node = namespace ? `${namespace.split(":")[0]}:${task.name}` : task.name;
  if (!("result" in task)) return { kind: "start", node };
  return task.error ? { kind: "fail", node } : { kind: "end", node, result: task.result };
}

/** @returns {Happening | null} a piece of the answer; a retriever may ask models of its own */
function readToken(message, metadata) {
  if (message.type !== "AIMessageChunk" || metadata.langgraph_node !== ANSWERING) return null;
  const blocks = typeof message.content === "string" ? [message.content] : message.content;
  const text = blocks.map((each) => (typeof each === "string" ? each : (each.text ?? ""))).join("");
  return text ? { kind: "token", text } : null;
}

/** What a run has given so far. */
export class Record {
  constructor() {
    this.run = "";
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
    /** @type {Map<string, any>} every passage that was read, by id */
    this.passages = new Map();
    /** @type {{error: string, message: string} | null} */
    this.error = null;
  }

  /** @param {Happening} happening */
  take(happening) {
    if (happening.kind === "begun") this.run = happening.run;
    if (happening.kind === "error") this.error = happening;
    if (happening.kind === "end") this.takeResult(happening.result);
    if (happening.kind === "told" && happening.event.event === "answer") this.answered = true;
    if (happening.kind === "told" && happening.event.event === "escalate") this.answered = false;
  }

  /** @param {any} result a node's update of the state */
  takeResult(result) {
    this.standalone = result.standalone ?? this.standalone;
    this.answer = result.answer ?? this.answer;
    this.citations = result.citations ?? this.citations;
    this.usage = result.usage ?? this.usage;
    this.model = result.decision?.model ?? this.model;
    this.warnings = result.decision?.warnings ?? this.warnings;
    // A reset is an object, not a list.
    const evidence = Array.isArray(result.evidence) ? result.evidence : [];
    for (const passage of evidence) this.passages.set(passage.id, passage);
  }
}
