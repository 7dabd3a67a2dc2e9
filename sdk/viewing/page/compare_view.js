// Two policies on the same tasks: what one does right and the other does not.

import { choice, el, figure, plain } from "./dom.js";
import { columns } from "./columns.js";
import { valuesOf } from "./filtering.js";
import { mark } from "./panels.js";
import { armOf, armTitle, choose, chosen, isProbe, outcome, store, titleOf } from "./store.js";
import { VirtualList } from "./virtual_list.js";

const PAIR_KINDS = [["", "all tasks"], ["gained", "gained"], ["lost", "lost"], ["changed", "gained or lost"], ["right", "both right"], ["wrong", "both wrong"]];

/** The tasks that both have, each with its rollouts on either side. */
function pairsOf(first, second) {
  const sides = [new Map(), new Map()];
  for (const row of store.rows) {
    const arm = armOf(row);
    for (const [place, wanted] of [first, second].entries()) {
      if (arm !== wanted) continue;
      const task = plain(row.task);
      if (!sides[place].has(task)) sides[place].set(task, []);
      sides[place].get(task).push(row);
    }
  }
  return [...sides[0]].filter(([task]) => sides[1].has(task)).map(([task, before]) => {
    const after = sides[1].get(task);
    return { task, before, after, kind: kindOf(share(before), share(after)) };
  });
}

/** The share of tries that were right, of those that were scored. */
function share(rows) {
  const scored = rows.filter((row) => row.state === "scored");
  return scored.length ? scored.filter((row) => outcome(row) === "right").length / scored.length : null;
}

function kindOf(before, after) {
  if (before === null || after === null) return "unscored";
  if (after > before) return "gained";
  if (after < before) return "lost";
  return before === 1 ? "right" : before === 0 ? "wrong" : "same";
}

/** Those compared where the address says nothing, of the stages in which each task was tried once: the last that has a
    task in common with another, and the first such. */
function defaults(arms) {
  const counts = new Map();
  for (const row of store.rows) {
    const arm = armOf(row);
    if (!counts.has(arm)) counts.set(arm, { rows: 0, tasks: new Set() });
    counts.get(arm).rows += 1;
    counts.get(arm).tasks.add(row.task);
  }
  const measured = arms.filter((arm) => counts.get(arm).rows === counts.get(arm).tasks.size);
  const order = measured.length > 1 ? measured : arms;
  for (const last of order.toReversed()) {
    const first = order.find((arm) => arm !== last && sharesTask(counts.get(arm), counts.get(last)));
    if (first !== undefined) return [first, last];
  }
  return [order[0], order.at(-1)];
}

const sharesTask = (one, other) => [...one.tasks].some((task) => other.tasks.has(task));

function pairNode(pair) {
  return [
    mark(pair.after[0]), el("span", { class: "title" }, titleOf(pair.before[0])),
    el("span", { class: `figure ${pair.kind}` }, { gained: "gained", lost: "lost" }[pair.kind] ?? ""),
    el("span", { class: "under" }, pair.task), el("span", { class: "flags" }, mark(pair.before[0]), " → ", mark(pair.after[0])),
  ];
}

export class CompareView {
  constructor() {
    this.list = new VirtualList({ label: "Tasks", height: 52, draw: pairNode, chosen: (pair) => choose({ task: pair.task }), known: (pair) => pair.task });
    this.choices = el("div", { class: "filters" });
    this.count = el("p", { class: "count muted", role: "status" });
    this.detail = el("article", { class: "detail wide", tabindex: -1, "aria-label": "Task" });
    this.node = el("div", { class: "split groups" },
      el("div", { class: "side" }, el("div", { class: "controls" }, this.choices, this.count), this.list.node), this.detail);
    this.open = null;
  }

  update() {
    const wanted = chosen();
    const arms = valuesOf((row) => [armOf(row)]);
    const [first, last] = defaults(valuesOf((row) => (isProbe(row) ? [] : [armOf(row)])));
    const [a, b] = [wanted.a ?? first, wanted.b ?? last];
    const all = pairsOf(a, b);
    const pairs = all.filter((pair) => !wanted.kind || pair.kind === wanted.kind || (wanted.kind === "changed" && ["gained", "lost"].includes(pair.kind)));
    this.list.show(pairs, pairs.findIndex((pair) => pair.task === wanted.task));
    const options = arms.map((arm) => [arm, armTitle(arm)]);
    this.choices.replaceChildren(choice("Before", a, options, (value) => choose({ a: value })),
      choice("After", b, options, (value) => choose({ b: value })), choice("Kind", wanted.kind ?? "", PAIR_KINDS, (kind) => choose({ kind })));
    const count = (kind) => all.filter((pair) => pair.kind === kind).length;
    this.count.textContent = `${figure(pairs.length)} of ${figure(all.length)} tasks · ${count("gained")} gained, ${count("lost")} lost`;
    this.#show(all.find((pair) => pair.task === wanted.task), a, b, all.length);
  }

  #show(pair, a, b, count) {
    this.node.classList.toggle("reading", Boolean(pair));
    const signature = pair ? [store.generation, pair.task, a, b, pair.before.length, pair.after.length].join(" ") : "";
    if (signature === this.open) return;
    this.open = signature;
    if (!pair) {
      this.detail.replaceChildren(el("p", { class: "empty" }, count ? "Choose a task, or press j." : "These two have no task in common."));
      return;
    }
    const back = el("button", { type: "button", class: "quiet back", on: { click: () => choose({ task: "" }) } }, "← all tasks");
    const heads = [...pair.before.map(() => armTitle(a)), ...pair.after.map(() => armTitle(b))];
    this.detail.replaceChildren(el("header", {}, back, el("h2", {}, titleOf(pair.before[0])), el("p", { class: "muted" }, pair.task)),
      columns([...pair.before, ...pair.after], heads));
  }

  key(name) {
    if (this.list.key(name)) return true;
    if (name === "Enter") this.detail.querySelector(".columns")?.focus();
    else if (name === "Escape") { choose({ task: "" }); this.list.node.focus(); }
    else return false;
    return true;
  }
}
