// A list, and beside it what is chosen of it: what the views of rollouts, groups, pairs and rows have in common.

import { el } from "./dom.js";
import { choose } from "./store.js";
import { VirtualList } from "./virtual_list.js";

export class ListView {
  /** `label`, `one`: what the items are and one is called. `known`: an item's value in the address, under `name`.
      `wide`: one is shown in columns, and the list is not searched for words; others have a method `filter`. */
  constructor({ label, one, name, known, draw, wide = false }) {
    this.name = name;
    this.list = new VirtualList({ label, height: 52, draw, chosen: (item) => choose({ [name]: known(item) }), known });
    this.search = wide ? null : el("input", { type: "search", id: "search", placeholder: "Search  /", "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
    this.search?.addEventListener("input", () => { choose({ q: this.search.value }, { silent: true }); this.filter(); });
    this.choices = el("div", { class: "filters" });
    this.count = el("p", { class: "count muted", role: "status" });
    this.detail = el("article", { class: wide ? "detail wide" : "detail", tabindex: -1, "aria-label": one });
    const side = el("div", { class: "side" }, el("div", { class: "controls" }, this.search, this.choices, this.count), this.list.node);
    this.node = el("div", { class: wide ? "split groups" : "split" }, side, this.detail);
    this.open = null;
  }

  /** The way back to the list, where there is no room for both. */
  back(words) {
    return el("button", { type: "button", class: "quiet back", on: { click: () => choose({ [this.name]: "" }) } }, words);
  }

  /** What keys do here; returns whether this one did something. */
  key(name) {
    if (this.list.key(name)) return true;
    if (name === "Enter") (this.search ? this.detail : this.detail.querySelector(".columns"))?.focus();
    else if (name === "Escape") { choose({ [this.name]: "" }); this.list.node.focus(); }
    else if (this.search && name === "/") { this.search.focus(); this.search.select(); }
    else if (this.search && "ynu".includes(name)) this.detail.querySelector(`[data-label="${{ y: "good", n: "bad", u: "unsure" }[name]}"]`)?.click();
    else return false;
    return true;
  }
}
