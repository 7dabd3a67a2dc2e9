// A list of any length: only the rows that can be seen are in the page.

import { el } from "./dom.js";

const BEYOND = 8;
const MOVES = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };

export class VirtualList {
  /** `draw(item)` gives the content of a row; `chosen(item)` hears of each choice; `known(item)` is what an item is known
      by, also when it is made anew. */
  constructor({ label, height, draw, chosen, known }) {
    this.height = height;
    this.draw = draw;
    this.chosen = chosen;
    this.known = known;
    this.items = [];
    this.at = -1;
    this.was = null; // what was chosen last, where nothing is
    this.window = el("div", { class: "window" });
    this.node = el("div", {
      class: "list", role: "listbox", tabindex: 0, "aria-label": label,
      on: { scroll: () => this.#later(), click: (event) => this.#clicked(event) },
    }, this.window);
    this.observer = new ResizeObserver(() => this.#later());
    this.observer.observe(this.node);
    this.waiting = false;
  }

  /** Show other items; `at` is the one that is chosen, -1 for none. Where it stands in the window is kept. */
  show(items, at) {
    this.items = items;
    this.at = at;
    if (at >= 0) this.was = this.known(items[at]);
    this.window.style.height = `${items.length * this.height}px`;
    this.#paint();
  }

  /** Choose a row by its place, and bring it into sight. */
  go(place) {
    if (!this.items.length) return;
    this.at = Math.max(0, Math.min(this.items.length - 1, place));
    this.reveal();
    this.#paint();
    this.chosen(this.items[this.at]);
  }

  /** Onwards from what is chosen, or was last: who has left a row to look at the list goes on from there. */
  move(by) {
    const from = this.at < 0 && this.was !== null ? this.items.findIndex((item) => this.known(item) === this.was) : this.at;
    this.go(from < 0 ? 0 : from + by);
  }

  /** Move by a key; returns whether it was one for lists. */
  key(name) {
    if (name in MOVES) this.move(MOVES[name]);
    else if (name === "g" || name === "Home") this.go(0);
    else if (name === "G" || name === "End") this.go(this.items.length - 1);
    else return false;
    return true;
  }

  reveal() {
    if (this.at < 0) return;
    const top = this.at * this.height;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    const bottom = top + this.height - this.node.clientHeight;
    if (bottom > this.node.scrollTop) this.node.scrollTop = bottom;
  }

  #later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.#paint(); });
  }

  #paint() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.height) - BEYOND);
    const seen = Math.ceil((this.node.clientHeight || 800) / this.height) + 2 * BEYOND;
    const rows = this.items.slice(first, first + seen).map((item, place) => this.#row(item, first + place));
    this.window.replaceChildren(...(this.items.length ? rows : [el("p", { class: "empty" }, "Nothing matches.")]));
    const active = this.at >= first && this.at < first + seen ? `row-${this.at}` : null;
    if (active) this.node.setAttribute("aria-activedescendant", active);
    else this.node.removeAttribute("aria-activedescendant");
  }

  #row(item, place) {
    const row = el("div", {
      class: "row", role: "option", id: `row-${place}`, "data-place": place, "aria-selected": String(place === this.at),
      "aria-setsize": this.items.length, "aria-posinset": place + 1,
    }, this.draw(item));
    row.style.transform = `translateY(${place * this.height}px)`;
    row.style.height = `${this.height}px`;
    return row;
  }

  #clicked(event) {
    const row = event.target.closest("[data-place]");
    if (row) this.go(Number(row.dataset.place));
  }
}
