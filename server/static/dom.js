/** Build the document: strings become text, never markup. */

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} attributes `onclick` and the like take a listener; true sets an
 *   attribute without a value; false, null and undefined set none
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make a paragraph of a text that may be in any script. @returns {any} */
export const said = (kind, ...children) => el("p", { class: kind, dir: "auto" }, ...children);

/**
 * Make an SVG element, as `el` does.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

let ids = 0;

/** An id that no other element has. */
export const newId = () => `n${++ids}`;

/**
 * @param {string} selector
 * @param {ParentNode} within
 * @returns {any}
 */
export const find = (selector, within = document) => within.querySelector(selector);

/** @param {string} text for a screen reader to read out */
export const announce = (text) => {
  find("#status").textContent = text;
};

/** Show either a button that cancels or one that submits; the focus moves along. */
export function toggleBusy(isBusy, cancel, submit, idleFocus = submit) {
  const hasFocus = [cancel, submit].includes(document.activeElement);
  cancel.hidden = !isBusy;
  submit.hidden = isBusy;
  if (hasFocus) (isBusy ? cancel : idleFocus).focus();
}

/** @param {number} count @param {string} one */
export const counted = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1) return "0 ms";
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}
