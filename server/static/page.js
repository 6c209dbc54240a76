/** The page: two views, their settings, and the errors of the server. */

import { get, hooks, post, Refused } from "./api.js";
import { Comparison } from "./compare.js";
import { Conversation } from "./conversation.js";
import { announce, counted, el, find, toggleBusy } from "./dom.js";
import { Drawing } from "./graph.js";
import { GRAPH } from "./run.js";
import { Settings } from "./settings.js";

const settings = new Settings(find("#settings"));
const conversation = new Conversation(settings);
const comparison = new Comparison(find("#columns"), busy);
const wide = matchMedia("(min-width: 75rem)");

/**
 * A project's page, which shows the answer and folds the rest away.
 * @typedef {{title?: string, examples?: string[], settings?: string[], documents?: string}} Page
 */

/** Questions for the sample collection: common knowledge, one passage, two passages. */
const EXAMPLES = [
  "How many legs does a spider have?",
  "In what year was Skerrane Light first lit?",
  "Where was the designer of Skerrane Light born?",
];

/** @type {any} the server's description of the graph */
let graph = null;
/** @type {Page | null} null: hopgate's own page */
let page = null;

async function start() {
  find("#notice").hidden = true;
  try {
    const assistants = await post("assistants/search", { graph_id: GRAPH, limit: 100 });
    const own = assistants.find((each) => each.metadata?.created_by === "system") ?? assistants[0];
    if (!own) throw new Refused(404, `no assistant for the graph ${GRAPH}`);
    const [schemas, described] = await Promise.all([
      get(`assistants/${own.assistant_id}/schemas`),
      get(`assistants/${own.assistant_id}/graph?xray=true`),
    ]);
    const presets = assistants.filter((each) => Object.keys(each.context ?? {}).length);
    fill(schemas.context_schema, described, presets);
  } catch (error) {
    showError(error);
  }
}

function fill(schema, described, presets) {
  graph = described;
  page = schema.page ?? null;
  const { properties } = schema;
  if (page) {
    const offered = (page.settings ?? []).filter((name) => name in properties);
    settings.build(Object.fromEntries(offered.map((name) => [name, properties[name]])), [], offered);
    dress(page, offered);
  } else {
    settings.build(properties, presets);
    showExamples(properties.index.default === "sample" ? EXAMPLES : []);
  }
  conversation.drawOn(new Drawing(graph), page);
  document.body.classList.remove("loading");
  visit();
  if (!find("#ask").hidden) find("#question").focus();
}

/** Give the page a project's title and examples, and take away what it does not offer. */
function dress({ title, examples }, offered) {
  document.body.classList.add("project");
  if (title) document.title = find(".title").textContent = find("#intro h1").textContent = title;
  showExamples(examples ?? []);
  find("nav").hidden = !offered.includes("alpha");
  find("#settings").hidden = !offered.length;
}

function showExamples(examples) {
  const ask = ({ target }) => conversation.ask(target.textContent);
  const button = (text) => el("button", { type: "button", dir: "auto", onclick: ask }, text);
  find("#examples ul").replaceChildren(...examples.map((text) => el("li", {}, button(text))));
}

/** Say why the page could not be filled, and offer to try again. */
function showError(error) {
  const text =
    error instanceof Refused
      ? `The server refused a request (${error.status}): ${error.message}`
      : `${error.message}. Check that the server runs and that you are online, then try again.`;
  const again = el("button", { type: "button", onclick: start }, "Try again");
  find("#notice").replaceChildren(el("span", {}, text), again);
  find("#notice").hidden = false;
}

hooks.onConnection = (reached) => {
  find("#server").className = reached ? "up" : "down";
  find("#server .message").textContent = reached ? "connected" : "no answer";
};

hooks.askToken = (why) => {
  const dialog = find("#sign-in");
  const input = find("#token");
  find(".message", dialog).textContent = why || "Enter the token that its operator gave you.";
  dialog.returnValue = "";
  input.value = "";
  dialog.showModal();
  find("form", dialog).onsubmit = (event) => {
    event.preventDefault();
    dialog.close(input.value.trim());
    input.value = "";
  };
  find(".quiet", dialog).onclick = () => dialog.close("");
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue || null);
  });
};

/** Show the view that the address asks for. */
function show() {
  const comparing = location.hash === "#compare" && !find("nav").hidden;
  for (const link of /** @type {any} */ (document.querySelectorAll("nav a"))) {
    if ((link.hash === "#compare") === comparing) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.classList.toggle("comparing", comparing);
  find("#ask").hidden = comparing;
  find("#compare").hidden = !comparing;
  conversation.place();
  settings.disable(comparing ? ["alpha"] : []);
}

/** Show the view; open the settings if there is room beside it. */
function visit() {
  show();
  find("#settings").open = wide.matches && find("#compare").hidden && !page;
}

settings.onChange = (values) => {
  const names = Object.keys(values);
  find("#settings .chosen").textContent = names.length ? counted(names.length, "change") : "defaults";
  find("#examples").hidden = "index" in values;
  const forced = values.strategy ? `strategy is ${values.strategy}: every α takes the same path.` : "";
  find("#compare-note").hidden = !forced;
  find("#compare-note").textContent = forced;
};

find("#ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = find("#question").value.trim();
  if (conversation.now || !question) return;
  find("#question").value = "";
  conversation.ask(question);
});

find("#compare-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = find("#compare-question").value.trim();
  if (comparison.now || !question) return;
  comparison.start(question, settings.values(), graph, page);
});

/** @param {boolean} isBusy whether a comparison runs */
function busy(isBusy) {
  toggleBusy(isBusy, find("#cancel-compare"), find("#compare-form [type=submit]"));
  announce(isBusy ? "Comparing" : "The comparison has ended");
}

find("#cancel-compare").addEventListener("click", () => comparison.cancel());

for (const field of document.querySelectorAll("textarea")) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    field.form.requestSubmit();
  });
}

addEventListener("hashchange", visit);
wide.addEventListener("change", visit);
start();
