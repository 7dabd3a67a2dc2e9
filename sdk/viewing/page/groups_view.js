// Groups: rollouts of one task that are compared with each other, side by side.

import { choice, el, figure, plain } from "./dom.js";
import { columns } from "./columns.js";
import { grouped, valuesOf } from "./filtering.js";
import { ListView } from "./list_view.js";
import { armOf, armTitle, choose, chosen, groupOf, isProbe, outcome, store, titleOf } from "./store.js";

const GROUP_KINDS = [["", "all groups"], ["mixed", "with signal"], ["right", "all right"], ["wrong", "all wrong"], ["failed", "with failures"]];

/** All groups of two and more, in the order of their first rollout. */
function groupsOf(rows) {
  // Probes of one task were not compared with each other.
  const found = [...grouped(rows.filter((row) => row.group && !isProbe(row)), groupOf)];
  return found.filter(([, group]) => group.length > 1).map(([key, group]) => {
    const scores = group.filter((row) => row.state === "scored").map((row) => row.score);
    const mean = scores.length ? scores.reduce((sum, one) => sum + one, 0) / scores.length : null;
    return { key, rows: group, mean, mixed: new Set(scores).size > 1, outcomes: group.map(outcome) };
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

export class GroupsView extends ListView {
  constructor() {
    super({ label: "Groups", one: "Group", name: "group", known: (group) => group.key, draw: groupNode, wide: true });
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
    this.detail.replaceChildren(el("header", {}, this.back("← all groups"), el("h2", {}, titleOf(group.rows[0])),
      el("p", { class: "muted" }, `${group.rows.length} rollouts, mean ${figure(group.mean, 3)}`)),
    columns(group.rows, group.rows.map((_, place) => `number ${place + 1}`)));
  }
}
