// Elements are made here and nowhere else. Text becomes text nodes; there is no way from a string to markup.

const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\u2028\u2029]+/gu;

/** An element. `attributes.on` holds listeners by event; null, undefined and false leave an attribute out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

/** An SVG element with plain attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

function escaped(characters) {
  return Array.from(characters, (one) => {
    const code = one.codePointAt(0);
    if (one === "\r") return "\\r";
    const hex = code.toString(16);
    if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  }).join("");
}

/** What a model or a tool wrote as one line of plain text: control and direction-changing characters as escapes. */
export function plain(text) {
  return String(text).replace(HIDDEN, escaped).replace(/\s+/gu, " ");
}

/** What a model or a tool wrote, as nodes: escapes stand apart from text that only looks like them. */
export function shown(text) {
  const nodes = [];
  let done = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > done) nodes.push(text.slice(done, found.index));
    nodes.push(el("span", { class: "escape", title: "a character that cannot be seen" }, escaped(found[0])));
    done = found.index + found[0].length;
  }
  if (done < text.length) nodes.push(text.slice(done));
  return nodes;
}

/** Show the first of many items, and a button for as many again. */
export function limited(items, most, render) {
  const parts = items.slice(0, most).map(render);
  if (items.length > most) {
    const more = el("button", { type: "button", class: "more" }, `${(items.length - most).toLocaleString("en")} more`);
    more.addEventListener("click", () => more.replaceWith(...[limited(items.slice(most), most, render)].flat()));
    parts.push(more);
  }
  return parts;
}

/** A select with its label for screen readers. `options`: [value, text] pairs. */
export function choice(label, value, options, changed) {
  const select = el("select", { "aria-label": label, title: label });
  if (!options.some(([key]) => key === value)) options = [...options, [value, value]]; // a link may ask for what is not there yet
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, plain(text)));
  select.value = value;
  select.addEventListener("change", () => changed(select.value));
  return select;
}

/** A count with its noun. */
export function counted(number, noun) {
  return `${figure(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A number as people read it, with at most `digits` after the point; a dash for none. */
export function figure(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}
