/** The LangGraph server's API: JSON, and streams of server-sent events. */

// The page is at …/hopgate/, whatever prefix the server is mounted at.
const BASE = new URL("..", location.href);

/** The server answered with an error. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** No answer, or the connection broke. */
export class Unreachable extends Error {}

/** Called when the server answers or does not, and when it needs a token. */
export const hooks = {
  /** @param {boolean} _reached */
  onConnection: (_reached) => {},
  /** @param {string} _why empty the first time @returns {Promise<string | null>} a token, or null to give up */
  askToken: async (_why) => null,
};

let token = ""; // in memory only
/** @type {Promise<boolean> | null} the open request for a token */
let pendingToken = null;

/**
 * @param {string} path relative to the server's root
 * @param {{body?: object, signal?: AbortSignal}} options a body makes it a POST
 * @returns {Promise<Response>}
 */
async function request(path, { body, signal } = {}) {
  /** @type {Record<string, string>} */
  const headers = body ? { "Content-Type": "application/json" } : {};
  const used = token;
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = { method: body ? "POST" : "GET", headers, signal };
  const response = await reach(() =>
    fetch(new URL(path, BASE), { ...options, body: body && JSON.stringify(body) }),
  );
  if (response.ok) return response;
  const detail = await detailOf(response);
  if (response.status !== 401) throw new Refused(response.status, detail);
  const isKnown = token !== used || (await signIn(used && `That token was refused: ${detail}`));
  if (!isKnown) throw new Refused(401, detail);
  return request(path, { body, signal });
}

/** Ask for a token, once for all requests that wait for it. @param {string} why */
function signIn(why) {
  pendingToken ??= hooks.askToken(why).then((given) => {
    token = given ?? token;
    pendingToken = null;
    return given !== null;
  });
  return pendingToken;
}

/**
 * Use the network; any failure there is raised as Unreachable.
 * @template T
 * @param {() => Promise<T>} act
 */
async function reach(act) {
  try {
    const done = await act();
    hooks.onConnection(true);
    return done;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    hooks.onConnection(false);
    throw new Unreachable(`No answer from ${BASE}`);
  }
}

/** @param {Response} response */
async function detailOf(response) {
  const text = await response.text();
  try {
    const { detail } = JSON.parse(text);
    if (typeof detail === "string") return detail;
  } catch {} // not JSON: perhaps a proxy's error page
  return text.slice(0, 300) || response.statusText || `status ${response.status}`;
}

/** @param {string} path @returns {Promise<any>} */
export const get = async (path) => (await request(path)).json();

/** @param {string} path @param {object} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export const post = async (path, body, signal) => {
  const text = await (await request(path, { body, signal })).text();
  return text ? JSON.parse(text) : null;
};

/**
 * @typedef {{event: string, data: any}} Part
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Part>}
 */
export async function* stream(path, body, signal) {
  const response = await request(path, { body, signal });
  const reader = /** @type {ReadableStream} */ (response.body)
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let left = "";
  while (true) {
    const { done, value } = await reach(() => reader.read());
    if (done) return;
    const blocks = (left + value).replaceAll("\r\n", "\n").split("\n\n");
    left = blocks.pop() ?? "";
    for (const block of blocks) {
      const part = parse(block);
      if (part) yield part;
    }
  }
}

/**
 * Read one block of an event stream; null for a comment (a heartbeat).
 * @param {string} block
 * @returns {Part | null}
 */
function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event, data: JSON.parse(data.join("\n")) } : null;
}
