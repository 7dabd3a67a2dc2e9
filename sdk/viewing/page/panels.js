// What stands beside a conversation: the verdict, what changed in the world, the label, the facts.

import { el, figure, limited, plain, shown } from "./dom.js";
import { seconds } from "./conversation.js";
import { armOf, armTitle, faultOf, labelOf, outcome, saveLabel, source, store } from "./store.js";
import { longText, placed } from "./texts.js";

const MARKS = { right: "✓", wrong: "✗", failed: "!", unscored: "○" };

/** A sign for how a rollout ended, with its meaning in words. */
export function mark(row) {
  const found = outcome(row);
  return el("span", { class: `mark ${found}`, role: "img", "aria-label": found, title: found }, MARKS[found]);
}

export function panel(title, ...content) {
  return el("section", { class: "panel" }, el("h3", {}, title), content);
}

/** The score, its parts, and the verifier's own words. */
export function verdictPanel(rollout, row) {
  if (rollout.failure) {
    const { boundary, kind, message } = rollout.failure;
    return panel("Not scored", el("p", { class: "bad" }, `something broke at the boundary “${plain(boundary)}”`),
      el("p", {}, el("b", {}, shown(kind ?? ""))), longText(message ?? "", placed(rollout, row, ["failure", "message"])));
  }
  if (!rollout.verdict) return panel("Not scored", el("p", { class: "muted" }, "There was no verifier."));
  const { score, components, explanation } = rollout.verdict;
  const parts = Object.entries(components ?? {});
  const { reasons, rest } = reasonsOf(explanation ?? "", components ?? {});
  const most = Math.max(1, ...parts.map(([, value]) => Math.abs(value)));
  return panel("Verdict",
    el("p", { class: "score" }, mark(row), el("span", {}, figure(score, 3))),
    parts.length ? el("div", { class: "components" }, limited(parts, 40, ([name, value]) => component(name, value, most, reasons))) : null,
    rest ? longText(rest, reasons.size ? null : placed(rollout, row, ["verdict", "explanation"])) : null,
    groupLine(row));
}

/** The lines of an explanation that begin with a component's name and score, as combined verifiers write them. */
function reasonsOf(explanation, components) {
  const reasons = new Map();
  if (explanation.length > 6000) return { reasons, rest: explanation };
  const rest = [];
  for (const line of explanation.split("\n")) {
    const found = /^(\S+) (-?[\d.e+-]+): (.*)$/u.exec(line);
    if (found && Object.hasOwn(components, found[1]) && !reasons.has(found[1])) reasons.set(found[1], found[3]);
    else rest.push(line);
  }
  return { reasons, rest: rest.join("\n").trim() };
}

function component(name, value, most, reasons) {
  const inner = name.includes(".") && reasons.has(name.slice(0, name.indexOf(".")));
  const reason = reasons.get(name);
  const bar = el("span", { class: value < 0 ? "bar negative" : "bar" });
  bar.style.setProperty("--share", String(Math.abs(value) / most));
  return [el("span", { class: inner ? "name inner" : "name" }, shown(inner ? name.slice(name.indexOf(".") + 1) : name)), bar,
    el("span", { class: "figure" }, figure(value, 3)), reason ? el("p", { class: "reason" }, shown(reason)) : null];
}

export const kindName = (kind) => plain(kind.replaceAll("_", " "));

/** What went wrong first, by the run's report. */
export function faultPanel(row) {
  const fault = faultOf(row);
  if (!fault) return null;
  const where = [fault.turn ? `turn ${fault.turn}` : "", [fault.tool, fault.argument].filter(Boolean).join(".")];
  return panel("What went wrong first",
    el("p", {}, el("strong", { class: "bad" }, kindName(fault.kind)), [...where, fault.by === "judge" ? "by a judge" : ""].filter(Boolean).map((part) => [" · ", shown(part)])),
    fault.detail ? el("p", {}, shown(fault.detail)) : null,
    el("p", { class: "reason muted" }, store.runs[row.run].fault_meanings[fault.kind] ?? ""));
}

/** What the rollout changed in its world. */
export function changesPanel(rollout, row) {
  const found = rollout.changes;
  if (!found) return null;
  if (!found.length) return panel("State", el("p", { class: "muted" }, "Nothing changed."));
  return panel(`State: ${found.length === 1 ? "one change" : `${figure(found.length)} changes`}`,
    el("ul", { class: "changes" }, limited([...found.entries()], 30, ([number, one]) => change(one, number, rollout, row))));
}

function change({ path, what, before, after }, number, rollout, row) {
  const value = (text, side) => longText(text, placed(rollout, row, ["changes", number, side]), { json: true });
  return el("li", {}, el("div", { class: "path" }, shown(path), what === "changed" ? null : el("span", { class: "muted" }, ` ${what}`)),
    before === undefined ? null : el("div", { class: "before" }, value(before, "before")),
    after === undefined ? null : el("div", { class: "after" }, value(after, "after")));
}

/** Good, bad or unsure, and a comment; kept in its folder. */
export function labelPanel(row) {
  const label = labelOf(row);
  return panel("Label", source.live ? labelForm(row) : [el("p", { class: "muted" }, label?.label ?? "none"), el("p", {}, shown(label?.comment ?? ""))]);
}

/** Its parts stay while a label is saved: to leave the comment saves it, and the same press of a mouse ends on a button. */
function labelForm(row) {
  let chosen = labelOf(row)?.label ?? null;
  const note = el("p", { class: "muted", role: "status" }, labelOf(row) ? "saved" : "");
  const comment = el("textarea", { rows: 2, placeholder: "Comment", "aria-label": "Comment", id: "comment", maxlength: 20000 });
  comment.value = labelOf(row)?.comment ?? "";
  const save = async (value) => {
    chosen = value;
    try {
      await saveLabel(row, value, comment.value);
      note.textContent = "saved";
    } catch (error) {
      chosen = labelOf(row)?.label ?? null;
      note.textContent = `not saved: ${error.message}`;
    }
    for (const one of buttons) one.setAttribute("aria-pressed", String(chosen === one.dataset.label));
  };
  comment.addEventListener("change", () => save(chosen));
  comment.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) comment.blur();
  });
  const button = ([value, key]) => el("button", {
    type: "button", "data-label": value, "aria-pressed": String(chosen === value), title: `${value} (${key})`,
    on: { click: () => save(chosen === value ? null : value) },
  }, value);
  const buttons = [["good", "y"], ["bad", "n"], ["unsure", "u"]].map(button);
  return [el("div", { class: "choices" }, buttons), comment, note];
}

/** How much of its tools a policy's prompt shows, in words. */
export const PROMPTS = { full: "full schemas", names: "names only", none: "no tools" };

/** Everything else that is known, in two columns. */
export function factsPanel(rollout, row) {
  const facts = [
    ["stage", armTitle(armOf(row))], ["policy", rollout.policy],
    ["tools in the prompt", PROMPTS[rollout.tool_prompt] ?? rollout.tool_prompt], ["task", rollout.task?.id], ["family", rollout.task?.family],
    ["group", rollout.group], ["step", row.step < 0 ? "" : row.step], ["ended", rollout.stop_reason?.replaceAll("_", " ")],
    ["turns", figure(rollout.turns)], ["tokens", figure(rollout.sampled_tokens)], ["time", seconds(rollout.duration_s ?? 0)],
    ["seed", rollout.seed], ...Object.entries(rollout.task?.tags ?? {}),
  ];
  const known = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return panel("Facts", el("dl", { class: "facts" }, known.map(([name, value]) => [el("dt", {}, shown(String(name))), el("dd", {}, shown(String(value)))])));
}

/** What was asked for: setup and gold outcome, folded. */
export function taskPanel(rollout, row) {
  const task = rollout.task ?? {};
  const part = (name) => task[name] && task[name] !== "{}"
    ? el("details", {}, el("summary", {}, name), longText(task[name], placed(rollout, row, ["task", name]), { json: true })) : null;
  const parts = [part("expected"), part("setup")].filter(Boolean);
  return parts.length ? panel("Task", parts) : null;
}

/** What was sent and how it ended, attempt by attempt. */
export function ledgerPanel(rollout) {
  const lines = rollout.ledger ?? [];
  if (!lines.length) return null;
  const first = lines[0].time;
  const draw = (line) => el("tr", { class: ["lost", "failed", "unknown"].includes(line.event) ? "bad" : "" },
    el("td", { class: "figure" }, seconds(Math.max(0, line.time - first))), el("td", {}, shown(line.event ?? "")),
    el("td", {}, shown(line.tool ?? "")), el("td", {}, shown(line.note ?? "")));
  return panel("Ledger", el("details", {}, el("summary", {}, `${figure(lines.length)} lines`), el("table", { class: "ledger" }, limited(lines, 60, draw))));
}

/** Where the run's evidence stands, where it has any. */
export function evidencePanel(rollout) {
  const found = rollout.evidence;
  if (!found) return null;
  return panel("Evidence", el("p", { class: found.right ? "good" : "bad" }, shown(found.status)), el("dl", { class: "facts" },
    Object.entries(found.facts ?? {}).map(([name, value]) => [el("dt", {}, shown(name)), el("dd", {}, shown(String(value)))])));
}

/** The numbers of a group beside this rollout's score. */
function groupLine(row) {
  const group = store.rows.filter((one) => one.run === row.run && one.stage === row.stage && one.group && one.group === row.group);
  const scores = group.filter((one) => one.state === "scored").map((one) => one.score);
  if (scores.length < 2) return null;
  const mean = scores.reduce((sum, one) => sum + one, 0) / scores.length;
  return el("p", { class: "muted" }, `its group of ${scores.length}: mean ${figure(mean, 3)}`);
}
