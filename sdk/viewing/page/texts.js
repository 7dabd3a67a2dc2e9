// Texts of any length, and JSON laid out for reading without being parsed: a browser's numbers would round large ones.

import { el, figure, shown } from "./dom.js";
import { source, store } from "./store.js";

const AT_FIRST = 6000;
const THEN = 20000;

/** What the server left out of a rollout: the length of the text at a place, by that place. */
export function lengthsOf(rollout) {
  return new Map((rollout.cut ?? []).map((one) => [one.at.join("\n"), one.chars]));
}

/** Where a text of a rollout stands, so that the rest of it can be asked for. */
export function placed(rollout, row, at) {
  const whole = rollout.lengths.get(at.join("\n"));
  return { row, at, whole };
}

const PAIR = /[\ud800-\udbff][\udc00-\udfff]/g;

/** How many characters a text has, as the server counts them: to a browser, one beyond U+FFFF is two. */
function characters(text) {
  return text.length - (text.match(PAIR)?.length ?? 0);
}

/** Where a piece of a text ends that begins at `at`; no character is cut in two. */
function pieceEnd(text, at, most) {
  const end = Math.min(text.length, at + most);
  return text.codePointAt(end - 1) > 0xffff ? end + 1 : end;
}

/** A text as it is, its beginning first. `place`: see `placed`; without one the text is whole. */
export function longText(text, place = null, { json = false } = {}) {
  const node = el("div", { class: json ? "text code" : "text", dir: "auto" });
  const total = place?.whole ?? characters(text);
  if (total <= AT_FIRST) {
    node.append(...(json ? jsonNodes(text) : shown(text)));
    return node;
  }
  let at = pieceEnd(text, 0, AT_FIRST);
  let known = text;
  let received = characters(text);
  let seen = characters(text.slice(0, at));
  node.append(...shown(text.slice(0, at)));
  const note = el("span", { class: "muted" });
  const more = el("button", { type: "button", class: "more" }, "Show more");
  const say = () => { note.textContent = `${figure(seen)} of ${figure(total)} characters `; };
  more.addEventListener("click", async () => {
    more.disabled = true;
    if (at >= known.length && received < total) {
      const piece = await source.text(store.generation, place.row.n, place.at, received);
      known += piece;
      received += characters(piece);
    }
    const next = pieceEnd(known, at, THEN);
    const piece = known.slice(at, next);
    node.append(...shown(piece));
    at = next;
    seen += characters(piece);
    more.disabled = false;
    say();
    if (seen >= total) more.remove();
  });
  say();
  return el("div", {}, node, el("p", { class: "rest" }, note, more));
}

const JSON_PIECE = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;
const NARROW = 76;
const DEEPEST = 40; // beyond, nobody reads the steps, and laying them out would hold the page up

/** Whether a text is the JSON of an object or a list. */
export function isJson(text) {
  if (!/^\s*[{[]/.test(text) || text.length > AT_FIRST) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** JSON as nodes: short values stay on a line, others get a line for each of their parts. Numbers are as written, and so
    is what is nested deeper than anybody reads. */
export function jsonNodes(text) {
  if (!isJson(text)) return shown(text);
  const pieces = text.match(JSON_PIECE) ?? [];
  const ends = closings(pieces);
  return ends ? laidOut(pieces, ends, 0, pieces.length, 0).flat(Infinity) : shown(text);
}

/** Where each object and each list ends; null where they are nested too deep. */
function closings(pieces) {
  const open = [];
  const ends = new Map();
  let deepest = 0;
  pieces.forEach((piece, at) => {
    if (piece === "{" || piece === "[") deepest = Math.max(deepest, open.push(at));
    else if (piece === "}" || piece === "]") ends.set(open.pop(), at);
  });
  return deepest > DEEPEST ? null : ends;
}

function laidOut(pieces, ends, from, to, depth) {
  const nodes = [];
  for (let at = from; at < to; at += 1) {
    const piece = pieces[at];
    const end = ends.get(at);
    if (end === undefined) {
      nodes.push(token(piece, pieces[at + 1] === ":"));
      if (piece === ":") nodes.push(" ");
      else if (piece === ",") nodes.push(depth < 0 ? " " : `\n${"  ".repeat(depth)}`);
      continue;
    }
    const flat = depth < 0 || pieces.slice(at, end + 1).join(" ").length + 2 * depth <= NARROW;
    const inner = flat ? -1 : depth + 1;
    nodes.push(piece, flat ? "" : `\n${"  ".repeat(inner)}`);
    nodes.push(laidOut(pieces, ends, at + 1, end, inner), flat ? "" : `\n${"  ".repeat(depth)}`, pieces[end]);
    at = end;
  }
  return nodes;
}

function token(piece, isKey) {
  if (isKey) return el("span", { class: "key" }, shown(piece));
  if (piece.startsWith('"')) return el("span", { class: "string" }, shown(piece));
  return /^[,:]$/.test(piece) ? piece : el("span", { class: "number" }, shown(piece));
}
