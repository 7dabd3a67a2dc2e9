// One rollout as a conversation: who said what, which calls were made, what came back.

import { el, figure, limited, plain, shown } from "./dom.js";
import { isJson, longText, placed } from "./texts.js";

/** The messages of a rollout, each result under its call. */
export function conversation(rollout, row) {
  const records = recordsByCall(rollout.calls ?? [], ["calls"]);
  const messages = rollout.messages?.length ? rollout.messages : opening(rollout.task);
  const users = (rollout.user_turns ?? []).map((one, number) => ({ ...one, number }));
  const silentTurn = (place) => ({ message: { role: "user", content: "" }, place, calls: [], user: users.shift() });
  const turns = [];
  let answered = false;
  messages.forEach((message, place) => {
    const last = turns.at(-1);
    const waiting = message.role === "tool" && last?.calls.find((one) => !one.result && one.call.id === message.tool_call_id);
    if (waiting) Object.assign(waiting, { result: message, resultPlace: place });
    else {
      const calls = (message.tool_calls ?? []).map((call, number) => ({ call, at: ["messages", place, "tool_calls", number] }));
      // Conversations of an agent of one's own come one after the other, and not as they were led.
      const isTurn = answered && message.role === "user" && users[0]?.said === message.content;
      turns.push({ message, place, calls, user: isTurn ? users.shift() : undefined });
    }
    if (message.role !== "assistant") return;
    answered = true;
    if (users[0] && !users[0].said && users[0].heard === message.content && !message.tool_calls?.length) turns.push(silentTurn(place));
  });
  while (users.length) {
    if (users[0].said) users.shift();
    else turns.push(silentTurn(messages.length - 1));
  }
  const draw = (turn) => turnNode(turn, rollout, row, records);
  return el("ol", { class: "conversation" }, limited(turns, 80, draw));
}

function opening(task) {
  return typeof task.prompt === "string" ? [{ role: "user", content: task.prompt }] : task.prompt ?? [];
}

/** The calls that reached the world, by their id, in order: an id may come again in a later turn. */
function recordsByCall(calls, at) {
  const found = new Map();
  calls.forEach((record, place) => {
    const id = record.call?.id;
    found.set(id, [...(found.get(id) ?? []), { ...record.result, at: [...at, place, "result"] }]);
  });
  return found;
}

function turnNode(turn, rollout, row, records) {
  const { message, place } = turn;
  const parts = [];
  const at = (name) => placed(rollout, row, ["messages", place, name]);
  if (message.reasoning) {
    parts.push(el("details", { class: "thinking" }, el("summary", {}, "thinking"), longText(message.reasoning, at("reasoning"))));
  }
  const isResult = message.role === "tool";
  if (turn.user) parts.push(...userParts(turn.user, rollout, row));
  if (message.content || !(turn.calls.length || message.reasoning || turn.user?.ended)) {
    const json = isResult && isJson(message.content ?? "");
    parts.push(message.content ? longText(message.content, at("content"), { json }) : el("p", { class: "muted" }, "(nothing)"));
  }
  for (const call of turn.calls) parts.push(callNode(call, rollout, row, records));
  return el("li", { class: `turn ${["user", "assistant", "system", "tool"].includes(message.role) ? message.role : ""}` },
    el("span", { class: "who" }, plain(isResult ? "result" : message.role ?? ""), turn.user ? el("span", { class: "muted" }, " by ", shown(turn.user.by ?? "")) : null),
    el("div", { class: "said" }, parts));
}

/** What a user who answers back did beside its words: calls of its own tools, and the end of the conversation. */
function userParts(user, rollout, row) {
  const calls = user.calls ?? [];
  const records = recordsByCall(calls, ["user_turns", user.number, "calls"]);
  const nodes = calls.map(({ call }, place) => callNode({ call, at: ["user_turns", user.number, "calls", place, "call"] }, rollout, row, records));
  return user.ended ? [...nodes, el("p", { class: "muted" }, "(ended the conversation)")] : nodes;
}

function callNode({ call, at, result, resultPlace }, rollout, row, records) {
  const record = records.get(call.id)?.shift();
  const given = call.arguments ?? "{}";
  const head = el("div", { class: "call-head" }, el("span", { class: "tool-name" }, shown(call.name ?? "")),
    record?.duration_s ? el("span", { class: "muted figure" }, seconds(record.duration_s)) : null);
  const parts = [head];
  if (call.error) parts.push(el("p", { class: "bad" }, "could not be read: ", shown(call.error)));
  else if (given !== "{}") parts.push(longText(given, placed(rollout, row, [...at, "arguments"]), { json: true }));
  if (result || record) parts.push(resultNode({ result, resultPlace, record }, rollout, row));
  else if (!call.error && row.n !== undefined) parts.push(el("p", { class: "muted" }, "no result was recorded"));
  return el("div", { class: "call" }, parts);
}

function resultNode({ result, resultPlace, record }, rollout, row) {
  const wrong = record?.is_error;
  const text = result ? result.content ?? "" : record.text ?? "";
  const place = placed(rollout, row, result ? ["messages", resultPlace, "content"] : [...record.at, "text"]);
  const parts = [];
  if (wrong) parts.push(el("p", { class: "bad" }, plain((record.error_kind ?? "error").replaceAll("_", " "))));
  parts.push(text ? longText(text, place, { json: isJson(text) }) : el("p", { class: "muted" }, "(empty)"));
  if (record?.structured) {
    const where = placed(rollout, row, [...record.at, "structured"]);
    parts.push(el("details", {}, el("summary", {}, "structured content"), longText(record.structured, where, { json: true })));
  }
  if (record?.truncated_chars) parts.push(el("p", { class: "warn" }, `cut by ${figure(record.truncated_chars)} characters before the policy read it`));
  for (const note of record?.notes ?? []) parts.push(el("p", { class: "warn" }, shown(note)));
  return el("div", { class: wrong ? "result wrong" : "result" }, parts);
}

export function seconds(value) {
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value / 60)} min`;
}
