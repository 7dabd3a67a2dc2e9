// Several rollouts side by side.

import { el, figure, plain } from "./dom.js";
import { conversation } from "./conversation.js";
import { changesPanel, faultPanel, mark, verdictPanel } from "./panels.js";
import { load } from "./rollout_view.js";
import { armOf, armTitle, choose, keyOf } from "./store.js";

/** A column for each of `rows`, filled as they are loaded. `heads`: what stands over each, its stage where not given. */
export function columns(rows, heads = []) {
  const shownRows = rows.slice(0, 32);
  const left = rows.length - shownRows.length;
  const all = shownRows.map((row, place) => column(row, heads[place] ?? armTitle(armOf(row))));
  if (left > 0) all.push(el("p", { class: "empty" }, `${figure(left)} more are in the list of rollouts`));
  return el("div", { class: "columns", tabindex: 0, role: "group", "aria-label": "Side by side" }, all);
}

function column(row, head) {
  const content = el("div", {}, el("p", { class: "muted" }, "…"));
  const open = el("button", { type: "button", class: "quiet", on: { click: () => choose({ v: "rollouts", at: keyOf(row) }, { fresh: true }) } }, "open");
  fill(content, row);
  return el("section", { class: "column" },
    el("header", {}, mark(row), el("b", { class: "figure" }, figure(row.score)), el("span", { class: "title" }, plain(head)), open), content);
}

async function fill(content, row) {
  try {
    const rollout = await load(row);
    content.replaceChildren(...[conversation(rollout, row), verdictPanel(rollout, row), faultPanel(row), changesPanel(rollout, row)].filter(Boolean));
  } catch (error) {
    content.replaceChildren(el("p", { class: "bad" }, plain(error.message)));
  }
}
