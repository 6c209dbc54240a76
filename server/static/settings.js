/** The settings of a request, built from the server's schema: names, defaults, ranges, descriptions. */

import { el, find, newId } from "./dom.js";

const FIRST = ["alpha", "gate", "strategy", "multihop", "model", "index"];
const NAMES = { alpha: "α, the dial", multihop: "Loop", index: "Index" };
const HINT = "Point at a setting to read what it does.";

/** The form; its values are those that differ from the defaults. */
export class Settings {
  /** @param {HTMLDetailsElement} panel */
  constructor(panel) {
    this.panel = panel;
    this.form = find("form", panel);
    /** @type {Record<string, any>} */
    this.fields = {};
    this.preset = null;
    /** Called after each change with the values that differ from the defaults. */
    this.onChange = (_values) => {};
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.changed(event.target));
    for (const kind of ["focusin", "pointerover"]) {
      this.form.addEventListener(kind, (event) => this.explain(event.target));
    }
  }

  /**
   * @param {Record<string, any>} properties of the context's JSON schema
   * @param {{name: string, context: object}[]} presets assistants with saved settings
   * @param {string[]} first names of the settings that are shown first
   */
  build(properties, presets, first = FIRST) {
    const names = Object.keys(properties);
    const rest = names.filter((name) => !first.includes(name));
    for (const name of names) this.fields[name] = makeField(name, properties[name]);
    const blocks = (some) => some.filter((name) => this.fields[name]).map((name) => this.fields[name].block);
    const more = el("details", { class: "more" }, el("summary", {}, "More settings"), el("div", {}, ...blocks(rest)));
    this.help = el("p", { class: "hint help" }, HINT);
    this.form.replaceChildren(
      ...(presets.length ? [this.offer(presets)] : []),
      ...blocks(first),
      ...(rest.length ? [more] : []),
      el("button", { type: "button", class: "quiet", onclick: () => this.set({}) }, "Back to defaults"),
      this.help,
    );
    this.changed();
  }

  /** @returns {Record<string, any>} the values that differ from the defaults */
  values() {
    const changed = Object.values(this.fields).filter((field) => field.read() !== field.default);
    return Object.fromEntries(changed.map((field) => [field.name, field.read()]));
  }

  /** @param {Record<string, any>} values all others go back to their defaults */
  set(values) {
    for (const field of Object.values(this.fields)) field.write(values[field.name] ?? field.default);
    this.changed();
  }

  /** Mark the settings that an error names or quotes. @param {string} message */
  refuse(message) {
    const named = Object.values(this.fields).filter((field) => isAbout(message, field));
    for (const field of named) field.input.setAttribute("aria-invalid", "true");
    const more = find(".more", this.form);
    if (more && named.some((field) => more.contains(field.input))) more.open = true;
  }

  /** @param {string[]} names settings that another control decides */
  disable(names) {
    for (const field of Object.values(this.fields)) {
      field.input.disabled = names.includes(field.name);
    }
  }

  changed(target = null) {
    const values = this.values();
    if (this.preset && target !== this.preset) this.preset.value = "";
    for (const field of Object.values(this.fields)) {
      field.input.removeAttribute("aria-invalid");
      field.block.classList.toggle("changed", field.name in values);
    }
    this.onChange(values);
  }

  explain(target) {
    const block = target.closest?.(".field");
    if (block && this.help) this.help.textContent = find(".description", block).textContent;
  }

  offer(presets) {
    const options = presets.map((preset, at) => el("option", { value: at }, preset.name));
    this.preset = el("select", { id: newId() }, el("option", { value: "" }, "none"), ...options);
    this.preset.addEventListener("change", () => {
      const chosen = this.preset.value;
      this.set(presets[chosen]?.context ?? {});
      this.preset.value = chosen;
    });
    return block("Preset", this.preset, "Settings saved on the server as assistants.");
  }
}

/** Whether a message begins a line or clause with a setting's name, or quotes the typed text. */
function isAbout(message, { name, input, read, default: initial }) {
  const typed = input.type === "text" && read() !== initial ? read() : null;
  return new RegExp(`(^|[\\n;:] *)${name}\\b`).test(message) || (typed && message.includes(input.value.trim()));
}

/** Make the control of a setting, with functions that read and write it. */
function makeField(name, schema) {
  const kind = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const nullable = kind !== schema;
  const { input, read, write } = control(kind, schema.default, nullable && name !== "alpha");
  const title = NAMES[name] ?? titleOf(name);
  input.name = name;
  const around = block(title, input, schema.description ?? "");
  const field = { name, input, read, write, default: schema.default, block: around };
  if (name === "alpha") Object.assign(field, makeDial(field));
  field.write(schema.default);
  return field;
}

function control(kind, initial, nullable) {
  const id = newId();
  if (kind.enum) {
    const input = el("select", { id }, ...kind.enum.map((each) => el("option", {}, each)));
    return { input, read: () => input.value, write: (value) => (input.value = value) };
  }
  if (kind.type === "boolean") {
    const input = el("input", { id, type: "checkbox" });
    return { input, read: () => input.checked, write: (value) => (input.checked = value) };
  }
  if (kind.type === "number" || kind.type === "integer") return numeric(kind, id, initial, nullable);
  if (kind.type === "object") return filter(kind, id, initial);
  if (kind.type === "array") return json(id, initial, '["END"]');
  const placeholder = initial || "none";
  const input = el("input", { id, type: "text", maxlength: kind.maxLength, placeholder, spellcheck: "false" });
  const read = () => input.value.trim() || (nullable ? null : initial);
  return { input, read, write: (value) => (input.value = value ?? "") };
}

/** A text in JSON; any other text is sent as it is, so that the server names the form it wants. */
function json(id, initial, placeholder) {
  const input = el("input", { id, type: "text", placeholder, spellcheck: "false" });
  const read = () => {
    const text = input.value.trim();
    if (!text) return initial;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  };
  const write = (value) => (input.value = value === initial ? "" : JSON.stringify(value));
  return { input, read, write };
}

/** A filter as rows of a field and its value or range; rows of one field are alternatives. */
function filter(kind, id, initial) {
  const names = newId();
  const options = Object.keys(kind.properties).map((name) => el("option", { value: name }));
  const rows = el("div", { class: "rows" });
  const add = el("button", { type: "button", class: "quiet" }, "Add a condition");
  const input = el("fieldset", { id }, rows, el("datalist", { id: names }, ...options), add);
  const changed = () => input.dispatchEvent(new Event("input", { bubbles: true }));
  const append = (name, value) => {
    const row = condition(names, name, value);
    find("button", row).addEventListener("click", () => {
      row.remove();
      add.focus();
      changed();
    });
    rows.append(row);
    return row;
  };
  add.addEventListener("click", () => find("input", append("", "")).focus());
  const read = () => {
    const found = {};
    for (const { name, value, blank } of [...rows.children].map((row) => row.read())) {
      if (!blank) found[name] = Object.hasOwn(found, name) ? [found[name], value].flat() : value;
    }
    return Object.keys(found).length ? found : initial;
  };
  const write = (value) => {
    rows.replaceChildren();
    for (const [name, given] of Object.entries(value)) for (const each of [given].flat()) append(name, each);
  };
  return { input, read, write };
}

/** A row of a filter; what is missing in it is for the server to refuse. */
function condition(names, name, given) {
  const between = typeof given === "object";
  const box = (label, value, more = {}) =>
    el("input", { type: "text", "aria-label": label, placeholder: label.toLowerCase(), value, spellcheck: "false", ...more });
  const field = box("Field", name, { list: names });
  const how = el("select", { "aria-label": "Compare" }, el("option", {}, "is"), el("option", { selected: between }, "from … to"));
  const value = box("Value", between ? "" : given);
  const ends = [box("From", given.from), box("To", given.to)];
  const show = () => {
    value.hidden = how.selectedIndex === 1;
    for (const end of ends) end.hidden = !value.hidden;
  };
  how.addEventListener("input", show);
  show();
  const remove = el("button", { type: "button", class: "quiet", "aria-label": "Remove the condition" }, "×");
  const row = el("div", { class: "row" }, field, how, value, ...ends, remove);
  row.read = () => {
    const [text, from, to] = [value, ...ends].map((each) => (each.hidden ? "" : each.value.trim()));
    const range = { ...(from && { from: end(from) }), ...(to && { to: end(to) }) };
    return { name: field.value.trim(), value: value.hidden ? range : text, blank: !(field.value.trim() || text || from || to) };
  };
  return row;
}

/** The end of a range: a number where it is one. */
const end = (text) => (Number.isNaN(Number(text)) ? text : Number(text));

function numeric(kind, id, initial, nullable) {
  const slides = kind.minimum === 0 && kind.maximum === 1 && !nullable;
  const input = el("input", {
    id,
    type: slides ? "range" : "number",
    min: kind.minimum ?? kind.exclusiveMinimum,
    max: kind.maximum,
    step: slides ? 0.01 : (kind.multipleOf ?? (kind.type === "integer" ? 1 : "any")),
    placeholder: initial ?? "none",
  });
  const read = () => (input.value === "" ? initial : Number(input.value));
  return { input, read, write: (value) => (input.value = value ?? "") };
}

function block(title, input, description) {
  const hint = newId();
  input.setAttribute("aria-describedby", hint);
  if (input.type === "fieldset") input.prepend(el("legend", {}, title));
  return el(
    "div",
    { class: input.type === "checkbox" ? "field check" : "field" },
    input.type !== "fieldset" && el("label", { for: input.id }, title),
    input,
    el("span", { class: "visually-hidden description", id: hint }, description),
  );
}

/** Show the value of α and label its range; until it is moved, it is the profile's own. */
function makeDial({ block, input }) {
  const output = el("output", { for: input.id });
  let moved = false;
  const show = () => (output.textContent = moved ? Number(input.value).toFixed(2) : "the profile’s own");
  input.addEventListener("input", () => {
    moved = true;
    show();
  });
  find("label", block).append(output);
  block.classList.add("dial");
  block.append(el("span", { class: "range" }, el("span", {}, "cheapest"), el("span", {}, "most reliable")));
  const write = (value) => {
    moved = value !== null;
    input.value = value ?? 0.5;
    show();
  };
  return { write, read: () => (moved ? Number(input.value) : null) };
}

const titleOf = (name) => {
  const text = name.replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
};
