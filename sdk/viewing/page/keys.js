// What each key does, and the page that says so.

import { el } from "./dom.js";

const KEYS = [
  ["Anywhere", [["1 2 3 4 5", "overview, rollouts, groups, compare, rows"], ["t", "light or dark"], ["?", "this help"]]],
  ["In a list", [["j  k  ↓ ↑", "next, previous"], ["PgDn PgUp", "ten on, ten back"], ["g  G", "first, last"], ["Enter", "read what is chosen"], ["Esc", "back to the list"]]],
  ["Rollouts", [["/", "search; Enter searches whole conversations"], ["y  n  u", "label good, bad, unsure"], ["e", "comment; Ctrl+Enter saves"], ["p", "token probabilities"], ["b", "its group, side by side"]]],
  ["Rows of a file", [["/", "search"], ["y  n  u", "label good, bad, unsure"], ["e", "edit; Ctrl+Enter saves"]]],
];

export function helpNodes(close) {
  const part = ([title, keys]) => [el("h3", {}, title), el("dl", { class: "keys" }, keys.map(([key, does]) => [
    el("dt", {}, key.split(/\s+/).map((one) => el("kbd", {}, one))), el("dd", {}, does)]))];
  return [el("h2", {}, "Keys"), KEYS.map(part), el("button", { type: "button", on: { click: close } }, "Close")];
}

const TYPED = new Set(["INPUT", "TEXTAREA", "SELECT"]);

/** The key of an event that is meant for the page; null where somebody types, or the browser's own keys are meant. */
export function meant(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return null;
  if (document.querySelector("dialog[open]")) return null;
  if (TYPED.has(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return null;
  }
  const acts = event.target.closest?.("button, a, summary");
  if (acts && event.key === "Enter") return null;
  const reads = event.target.closest?.(".detail, .overview");
  if (reads && ["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"].includes(event.key)) return null;
  return event.key;
}
