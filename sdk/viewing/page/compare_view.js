// Two policies on the same tasks: what one does right and the other does not.

import { choice, el, figure, plain } from "./dom.js";
import { columns } from "./columns.js";
import { grouped, valuesOf } from "./filtering.js";
import { ListView } from "./list_view.js";
import { mark } from "./panels.js";
import { armOf, armTitle, choose, chosen, isProbe, outcome, store, titleOf } from "./store.js";

const PAIR_KINDS = [["", "all tasks"], ["gained", "gained"], ["lost", "lost"], ["changed", "gained or lost"], ["right", "both right"], ["wrong", "both wrong"]];

/** The tasks that both have, each with its rollouts on either side. */
function pairsOf(first, second) {
  const sides = [first, second].map((arm) => grouped(store.rows.filter((row) => armOf(row) === arm), (row) => plain(row.task)));
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
  const rows = grouped(store.rows, armOf);
  const tasks = new Map([...rows].map(([arm, of]) => [arm, new Set(of.map((row) => row.task))]));
  const measured = arms.filter((arm) => rows.get(arm).length === tasks.get(arm).size);
  const order = measured.length > 1 ? measured : arms;
  for (const last of order.toReversed()) {
    const first = order.find((arm) => arm !== last && sharesTask(tasks.get(arm), tasks.get(last)));
    if (first !== undefined) return [first, last];
  }
  return [order[0], order.at(-1)];
}

const sharesTask = (one, other) => [...one].some((task) => other.has(task));

function pairNode(pair) {
  return [
    mark(pair.after[0]), el("span", { class: "title" }, titleOf(pair.before[0])),
    el("span", { class: `figure ${pair.kind}` }, { gained: "gained", lost: "lost" }[pair.kind] ?? ""),
    el("span", { class: "under" }, pair.task), el("span", { class: "flags" }, mark(pair.before[0]), " → ", mark(pair.after[0])),
  ];
}

export class CompareView extends ListView {
  constructor() {
    super({ label: "Tasks", one: "Task", name: "task", known: (pair) => pair.task, draw: pairNode, wide: true });
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
    const heads = [...pair.before.map(() => armTitle(a)), ...pair.after.map(() => armTitle(b))];
    this.detail.replaceChildren(el("header", {}, this.back("← all tasks"), el("h2", {}, titleOf(pair.before[0])), el("p", { class: "muted" }, pair.task)),
      columns([...pair.before, ...pair.after], heads));
  }
}
