// Groups: rollouts of one task that are compared with each other, side by side.

import { choice, el, figure, plain } from "./dom.js";
import { columns } from "./columns.js";
import { valuesOf } from "./filtering.js";
import { armOf, armTitle, choose, chosen, groupOf, isProbe, outcome, store, titleOf } from "./store.js";
import { VirtualList } from "./virtual_list.js";

const GROUP_KINDS = [["", "all groups"], ["mixed", "with signal"], ["right", "all right"], ["wrong", "all wrong"], ["failed", "with failures"]];

/** All groups of two and more, in the order of their first rollout. */
function groupsOf(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!row.group || isProbe(row)) continue; // probes of one task were not compared with each other
    const key = groupOf(row);
    if (!found.has(key)) found.set(key, { key, rows: [] });
    found.get(key).rows.push(row);
  }
  return [...found.values()].filter((group) => group.rows.length > 1).map((group) => {
    const scores = group.rows.filter((row) => row.state === "scored").map((row) => row.score);
    const mean = scores.length ? scores.reduce((sum, one) => sum + one, 0) / scores.length : null;
    return { ...group, mean, mixed: new Set(scores).size > 1, outcomes: group.rows.map(outcome) };
  });
}

function isKind(group, kind) {
  if (!kind) return true;
  if (kind === "mixed") return group.mixed;
  if (kind === "failed") return group.outcomes.includes("failed");
  return group.outcomes.every((one) => one === kind);
}

function groupNode(group) {
  const first = group.rows[0];
  return [
    el("span", { class: "title" }, titleOf(first)), el("span", { class: "figure" }, figure(group.mean)),
    el("span", { class: "under" }, armTitle(armOf(first)), first.step >= 0 ? ` · step ${first.step}` : "", ` · ${plain(first.task)}`),
    el("span", { class: "strip", role: "img", "aria-label": group.outcomes.join(", ") },
      group.outcomes.slice(0, 16).map((one) => el("i", { class: one }))),
  ];
}

export class GroupsView {
  constructor() {
    this.list = new VirtualList({ label: "Groups", height: 52, draw: groupNode, chosen: (group) => choose({ group: group.key }), known: (group) => group.key });
    this.choices = el("div", { class: "filters" });
    this.count = el("p", { class: "count muted", role: "status" });
    this.detail = el("article", { class: "detail wide", tabindex: -1, "aria-label": "Group" });
    this.node = el("div", { class: "split groups" },
      el("div", { class: "side" }, el("div", { class: "controls" }, this.choices, this.count), this.list.node), this.detail);
    this.open = null;
  }

  update() {
    const wanted = chosen();
    const all = groupsOf(wanted.arm ? store.rows.filter((row) => armOf(row) === wanted.arm) : store.rows);
    const groups = all.filter((group) => isKind(group, wanted.kind));
    const at = groups.findIndex((group) => group.key === wanted.group);
    this.list.show(groups, at);
    this.count.textContent = `${figure(groups.length)} of ${figure(all.length)} groups`;
    const arms = [["", "all stages"], ...valuesOf((row) => (isProbe(row) ? [] : [armOf(row)])).map((arm) => [arm, armTitle(arm)])];
    this.choices.replaceChildren(choice("Stage", wanted.arm ?? "", arms, (arm) => choose({ arm })), choice("Kind", wanted.kind ?? "", GROUP_KINDS, (kind) => choose({ kind })));
    this.#show(all.find((group) => group.key === wanted.group), all.length);
  }

  #show(group, count) {
    this.node.classList.toggle("reading", Boolean(group));
    const signature = group ? `${store.generation} ${group.key} ${group.rows.length}` : "";
    if (signature === this.open) return;
    this.open = signature;
    if (!group) {
      const nothing = count ? "Choose a group, or press j." : "No groups: these rollouts were not sampled several for a task.";
      this.detail.replaceChildren(el("p", { class: "empty" }, nothing));
      this.list.reveal();
      return;
    }
    const back = el("button", { type: "button", class: "quiet back", on: { click: () => choose({ group: "" }) } }, "← all groups");
    this.detail.replaceChildren(el("header", {}, back, el("h2", {}, titleOf(group.rows[0])),
      el("p", { class: "muted" }, `${group.rows.length} rollouts, mean ${figure(group.mean, 3)}`)),
    columns(group.rows, group.rows.map((_, place) => `number ${place + 1}`)));
  }

  key(name) {
    if (this.list.key(name)) return true;
    if (name === "Enter") this.detail.querySelector(".columns")?.focus();
    else if (name === "Escape") { choose({ group: "" }); this.list.node.focus(); }
    else return false;
    return true;
  }
}
