// The list of rollouts, and the one that is open.

import { choice, counted, el, figure, plain } from "./dom.js";
import { conversation, seconds } from "./conversation.js";
import { filtered, ORDER_NAMES, valuesOf } from "./filtering.js";
import { ListView } from "./list_view.js";
import { changesPanel, evidencePanel, factsPanel, faultPanel, kindName, labelPanel, ledgerPanel, mark, taskPanel, verdictPanel } from "./panels.js";
import { armOf, armTitle, calledIn, choose, chosen, faultOf, groupOf, keyOf, labelOf, source, store, titleOf } from "./store.js";
import { lengthsOf } from "./texts.js";
import { tokensPanel } from "./tokens.js";

const RESULTS = [
  ["", "any result"], ["right", "right"], ["wrong", "wrong"], ["failed", "failed"], ["unscored", "not scored"],
  ["mistakes", "with tool errors"],
];
const LABELS = [
  ["", "any label"], ["any", "labelled"], ["none", "without label"], ["good", "good"], ["bad", "bad"], ["unsure", "unsure"],
  ["comment", "with comment"],
];

/** The content of one row in a list. */
export function rowNode(row) {
  const label = labelOf(row);
  return [
    mark(row),
    el("span", { class: "title" }, titleOf(row)),
    el("span", { class: "figure" }, row.state === "scored" ? figure(row.score) : ""),
    el("span", { class: "under" }, underLine(row)),
    el("span", { class: "flags" }, label ? el("span", { class: `label ${label.label ?? ""}` }, label.label ?? "comment") : null,
      row.mistakes ? el("span", { class: "warn" }, `${row.mistakes} err`) : null),
  ];
}

function underLine(row) {
  const where = [chosen().arm ? null : armTitle(armOf(row)), row.step >= 0 && chosen().step === undefined ? `step ${row.step}` : null];
  const what = [...row.tools, row.answer ? `“${row.answer}”` : null].filter(Boolean).join(" → ");
  return [...where, plain(what) || "no calls, no answer"].filter(Boolean).join(" · ");
}

/** Load one rollout with its texts' places. */
export async function load(row) {
  const rollout = await source.rollout(store.generation, row.n);
  rollout.lengths = lengthsOf(rollout);
  return rollout;
}

export class RolloutsView extends ListView {
  constructor() {
    super({ label: "Rollouts", one: "Rollout", name: "at", known: keyOf, draw: rowNode });
    this.search.addEventListener("keydown", (event) => this.#searched(event));
    this.inside = null;
  }

  /** Draw what the address asks for. */
  update() {
    const wanted = chosen();
    if (document.activeElement !== this.search) this.search.value = wanted.q ?? "";
    this.filter();
    const row = wanted.at ? store.rows.find((one) => keyOf(one) === wanted.at) : null;
    this.node.classList.toggle("reading", Boolean(row));
    if (row) this.#show(row);
    else this.#nothing();
  }

  filter() {
    const wanted = chosen();
    if (this.inside && (this.inside.words !== wanted.q || this.inside.generation !== store.generation)) this.inside = null;
    const rows = filtered(wanted, this.inside?.found);
    const at = rows.findIndex((row) => keyOf(row) === wanted.at);
    this.list.show(rows, at);
    this.count.textContent = `${figure(rows.length)} of ${figure(store.rows.length)}${this.inside ? " · searched in whole conversations" : ""}`;
    this.#drawChoices(wanted);
  }

  #drawChoices(wanted) {
    const signature = JSON.stringify([store.rows.length, store.facts, wanted.arm, wanted.result, wanted.fault, wanted.tool, wanted.label, wanted.sort, wanted.step]);
    if (signature === this.drawn) return;
    this.drawn = signature;
    const set = (name) => (value) => choose({ [name]: value });
    const each = (values, all) => [["", all], ...values.map((value) => [value, value])];
    const kinds = valuesOf((row) => faultOf(row)?.kind ?? []).sort();
    const step = wanted.step === undefined ? null
      : el("button", { type: "button", class: "chip", on: { click: () => choose({ step: "" }) } }, `step ${plain(wanted.step)} ×`);
    this.choices.replaceChildren(
      choice("Stage", wanted.arm ?? "", [["", "all stages"], ...valuesOf((row) => [armOf(row)]).map((arm) => [arm, armTitle(arm)])], set("arm")),
      choice("Result", wanted.result ?? "", RESULTS, set("result")),
      ...(kinds.length || wanted.fault ? [choice("Went wrong first", wanted.fault ?? "", [["", "any fault"], ...kinds.map((kind) => [kind, kindName(kind)])], set("fault"))] : []),
      choice("Tool called", wanted.tool ?? "", each(valuesOf(calledIn).sort(), "any tool"), set("tool")),
      choice("Label", wanted.label ?? "", LABELS, set("label")),
      choice("Order", wanted.sort ?? "", ORDER_NAMES, set("sort")), ...(step ? [step] : []));
  }

  async #searched(event) {
    if (event.key !== "Enter" || !this.search.value.trim()) return;
    this.count.textContent = "searching in whole conversations …";
    const [words, generation] = [this.search.value, store.generation];
    try {
      this.inside = { words, generation, found: new Set(await source.search(generation, words)) };
      this.filter();
    } catch (error) {
      this.count.textContent = `not searched: ${error.message}`;
    }
  }

  #nothing() {
    this.open = null;
    this.detail.replaceChildren(el("p", { class: "empty" }, store.rows.length ? "Choose a rollout, or press j." : "No rollouts yet."));
  }

  async #show(row) {
    const key = `${store.generation} ${keyOf(row)}`;
    if (this.open === key) return;
    this.open = key;
    let content;
    try {
      content = rolloutNodes(await load(row), row, this.back("← all rollouts"));
    } catch (error) {
      content = [el("p", { class: "empty bad" }, plain(error.message))];
    }
    if (this.open !== key) return; // another one was chosen meanwhile
    this.detail.replaceChildren(...content);
    this.detail.scrollTop = 0;
  }

  key(name) {
    if (super.key(name)) return true;
    if (name === "e") this.detail.querySelector("#comment")?.focus();
    else if (name === "p") { const part = this.detail.querySelector("#tokens"); if (part) { part.open = !part.open; part.scrollIntoView({ block: "nearest" }); } }
    else if (name === "b") this.#group();
    else return false;
    return true;
  }

  #group() {
    const row = store.rows.find((one) => keyOf(one) === chosen().at);
    if (row?.group) choose({ v: "groups", group: groupOf(row) }, { fresh: true });
  }
}

function rolloutNodes(rollout, row, back) {
  const head = el("header", {}, back, el("h2", {}, mark(row), titleOf(row)),
    el("p", { class: "muted" }, `${armTitle(armOf(row))}${row.step >= 0 ? ` · step ${row.step}` : ""} · ${plain(row.id)} · ${counted(row.turns, "turn")} · ${counted(row.tokens, "token")} · ${seconds(row.seconds)}`));
  const verdict = el("div", { class: "verdict" }, verdictPanel(rollout, row), faultPanel(row));
  const rest = [labelPanel(row), changesPanel(rollout, row), evidencePanel(rollout), taskPanel(rollout, row), factsPanel(rollout, row), ledgerPanel(rollout)];
  const talk = el("div", { class: "talk" }, conversation(rollout, row), tokensPanel(rollout, row));
  return [el("div", { class: "rollout" }, head, talk, verdict, el("div", { class: "beside" }, rest.filter(Boolean)))];
}
