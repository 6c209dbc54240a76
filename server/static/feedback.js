/** A user's opinion of an answer: a thumb up or down, and the right answer. */

import { post } from "./api.js";
import { announce, el, newId, svg } from "./dom.js";

const THUMB =
  "M2 10h4v11H2zM8 21h9a3 3 0 0 0 2.9-2.3l1.6-6.6A2.5 2.5 0 0 0 19.1 9H14l.9-4.4A2 2 0 0 0 13 2.2L8 9.6z";
const MAX_ANSWER_CHARS = 4000;

/** Two thumbs and a field, in `element`; a thumb that is pressed again is taken back. */
export class Feedback {
  /** @param {string} thread @param {string} message the id of the answer's message */
  constructor(thread, message) {
    this.about = { thread_id: thread, message_id: message };
    /** @type {{thumbs: "up" | "down" | null, answer: string | null}} as the server has it */
    this.said = { thumbs: null, answer: null };
    this.thumbs = { up: this.thumb("up", "Good answer"), down: this.thumb("down", "Bad answer") };
    this.note = el("span", { class: "hint" });
    this.form = this.correction();
    this.problem = el("p", { class: "unsaved", role: "alert", hidden: true });
    this.element = el(
      "div",
      { class: "feedback", role: "group", "aria-label": "Feedback" },
      el("div", { class: "thumbs" }, this.thumbs.up, this.thumbs.down, this.note),
      this.form,
      this.problem,
    );
  }

  thumb(kind, label) {
    const icon = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: THUMB }));
    const button = el(
      "button",
      { type: "button", class: `thumb ${kind}`, "aria-pressed": "false", title: label },
      icon,
      el("span", { class: "visually-hidden" }, label),
    );
    button.addEventListener("click", () => {
      const thumbs = this.said.thumbs === kind ? null : kind;
      this.send({ thumbs, answer: thumbs === "down" ? this.said.answer : null });
    });
    return button;
  }

  correction() {
    const id = newId();
    this.field = el("input", { id, name: "answer", maxlength: MAX_ANSWER_CHARS, dir: "auto", autocomplete: "off" });
    const form = el(
      "form",
      { hidden: true },
      el("label", { for: id }, "What is the right answer? (optional)"),
      el("div", {}, this.field, el("button", { type: "submit" }, "Send")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send({ thumbs: "down", answer: this.field.value.trim() || null });
    });
    return form;
  }

  async send(said) {
    this.problem.hidden = true;
    try {
      await post("hopgate/feedback", { ...this.about, ...said });
    } catch (error) {
      this.problem.textContent = `Your feedback was not saved: ${error.message}`;
      this.problem.hidden = false;
      return;
    }
    this.said = said;
    for (const [kind, button] of Object.entries(this.thumbs)) {
      button.setAttribute("aria-pressed", String(said.thumbs === kind));
    }
    this.form.hidden = said.thumbs !== "down";
    this.note.textContent = said.thumbs ? (said.answer ? "Saved, with the right answer" : "Saved") : "Taken back";
    announce(`Feedback: ${this.note.textContent}`);
  }
}
