// Which rollouts are listed, and in which order.

import { armOf, calledIn, faultOf, labelOf, outcome, store } from "./store.js";

const ORDERS = {
  "": null,
  low: (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity),
  high: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
  turns: (a, b) => b.turns - a.turns,
  tokens: (a, b) => b.tokens - a.tokens,
  slow: (a, b) => b.seconds - a.seconds,
  late: (a, b) => b.n - a.n,
};

export const ORDER_NAMES = [
  ["", "as recorded"], ["late", "latest first"], ["low", "worst first"], ["high", "best first"],
  ["turns", "most turns"], ["tokens", "most tokens"], ["slow", "slowest"],
];

/** The rows that are wanted. `inside`: numbers of those whose whole conversation has the text, where it was searched. */
export function filtered(wanted, inside = null) {
  const words = inside ? [] : (wanted.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const step = wanted.step === undefined ? null : Number(wanted.step);
  const rows = store.rows.filter((row) => {
    if (wanted.arm && armOf(row) !== wanted.arm) return false;
    if (wanted.result && !matches(row, wanted.result)) return false;
    if (wanted.fault && faultOf(row)?.kind !== wanted.fault) return false;
    if (wanted.tool && !calledIn(row).includes(wanted.tool)) return false;
    if (wanted.label && !labelled(row, wanted.label)) return false;
    if (step !== null && row.step !== step) return false;
    if (inside && !inside.has(row.n)) return false;
    return words.every((word) => row.words.includes(word));
  });
  const order = ORDERS[wanted.sort ?? ""];
  return order ? rows.sort(order) : rows;
}

function matches(row, result) {
  if (result === "mistakes") return row.mistakes > 0;
  return outcome(row) === result;
}

function labelled(row, wanted) {
  const label = labelOf(row);
  if (wanted === "none") return !label;
  if (wanted === "comment") return Boolean(label?.comment);
  return wanted === "any" ? Boolean(label) : label?.label === wanted;
}

/** All values of something over the rows, in the order of their first row. */
export function valuesOf(value) {
  return [...new Set(store.rows.flatMap(value))];
}

/** Rows by a value of theirs, in the order of the first row of each. */
export function grouped(rows, value) {
  const found = new Map();
  for (const row of rows) {
    const key = value(row);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(row);
  }
  return found;
}
