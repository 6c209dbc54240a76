/** The page: two views, the settings beside them, and what to do when nobody answers. */

import { get, hooks, post, Refused } from "./api.js";
import { Comparison } from "./compare.js";
import { Conversation } from "./conversation.js";
import { counted, el, find, say } from "./dom.js";
import { Drawing } from "./graph.js";
import { GRAPH } from "./run.js";
import { Settings } from "./settings.js";

const settings = new Settings(find("#settings"));
const conversation = new Conversation(settings);
const comparison = new Comparison(find("#columns"), busy);
const wide = matchMedia("(min-width: 75rem)");

/** @type {any} the graph as the server draws it */
let graph = null;

async function start() {
  find("#notice").hidden = true;
  try {
    const assistants = await post("assistants/search", { graph_id: GRAPH, limit: 100 });
    const own = assistants.find((each) => each.metadata?.created_by === "system") ?? assistants[0];
    if (!own) throw new Refused(404, `it shows no assistant of the graph ${GRAPH}`);
    const [schemas, drawn] = await Promise.all([
      get(`assistants/${own.assistant_id}/schemas`),
      get(`assistants/${own.assistant_id}/graph?xray=true`),
    ]);
    const presets = assistants.filter((each) => Object.keys(each.context ?? {}).length);
    fill(schemas.context_schema.properties, drawn, presets);
  } catch (error) {
    complain(error);
  }
}

function fill(properties, drawn, presets) {
  graph = drawn;
  conversation.drawOn(new Drawing(graph));
  settings.build(properties, presets);
  for (const button of /** @type {any} */ (document.querySelectorAll("main button"))) button.disabled = false;
  show();
  if (!find("#ask").hidden) find("#question").focus();
}

/** Say that the page could not be filled, and offer to try again. */
function complain(error) {
  const what =
    error instanceof Refused
      ? `The server refused what the page asked for (${error.status}): ${error.message}`
      : `${error.message}. Start the server, or look at the network, and try again.`;
  const again = el("button", { type: "button", onclick: start }, "Try again");
  find("#notice").replaceChildren(el("span", {}, what), again);
  find("#notice").hidden = false;
}

hooks.onReach = (reached) => {
  find("#server").className = reached ? "up" : "down";
  find("#server .words").textContent = reached ? "connected" : "no answer";
};

hooks.askToken = (why) => {
  const dialog = find("#sign-in");
  const input = find("#token");
  find(".words", dialog).textContent = why || "Give the token that its operator gave you.";
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

/** Show the view that the address names. */
function show() {
  const comparing = location.hash === "#compare";
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

/** Show it with the settings open where there is room beside it. */
function visit() {
  show();
  find("#settings").open = wide.matches && find("#compare").hidden;
}

settings.onChange = (values) => {
  const names = Object.keys(values);
  find("#settings .chosen").textContent = names.length ? counted(names.length, "change") : "defaults";
  find("#examples").hidden = find("#examples-label").hidden = "index" in values;
  const forced = values.strategy ? `strategy is ${values.strategy}: every α takes that path.` : "";
  find("#compare-note").hidden = !forced;
  find("#compare-note").textContent = forced;
};

find("#asking").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = find("#question").value.trim();
  if (conversation.now || !question || !graph) return;
  find("#question").value = "";
  conversation.put(question);
});

for (const example of document.querySelectorAll("#examples button")) {
  example.addEventListener("click", () => conversation.put(example.textContent));
}

find("#comparing").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = find("#compared").value.trim();
  if (comparison.now || !question || !graph) return;
  comparison.start(question, settings.values(), graph);
});

/** @param {boolean} working whether the comparison is */
function busy(working) {
  const [cancelling, submit] = [find("#cancel-compare"), find("#comparing [type=submit]")];
  const focused = [cancelling, submit].includes(document.activeElement);
  cancelling.hidden = !working;
  submit.hidden = working;
  if (focused) (working ? cancelling : submit).focus();
  say(working ? "Comparing" : "The comparison has ended");
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
visit();
start();
