// A file of tasks or labelled rows: the list, and the line that is open, to read, to change and to label.

import { choice, el, figure, plain, shown } from "./dom.js";
import { conversation } from "./conversation.js";
import { ListView } from "./list_view.js";
import { choose, chosen, source, store } from "./store.js";
import { panel } from "./panels.js";

const LINE_KINDS = [["", "all lines"], ["task", "tasks"], ["row", "no tasks"], ["unread", "cannot be read"]];
const LINE_MARKS = { task: ["right", "✓", "a task"], row: ["unscored", "○", "no task"], unread: ["failed", "!", "cannot be read"] };

const tagsOf = (line) => Object.entries(line.tags).map(([key, value]) => plain(`${key}=${value}`));
const labelName = (line) => plain(line.label);

function lineMark(line) {
  const [name, sign, meaning] = LINE_MARKS[line.kind];
  return el("span", { class: `mark ${name}`, role: "img", "aria-label": meaning, title: meaning }, sign);
}

export class RowsView extends ListView {
  constructor() {
    super({ label: "Rows", one: "Row", name: "line", known: (line) => line.line, draw: (line) => this.#lineNode(line) });
    this.read = { file: null, version: null, lines: [] };
    this.last = Promise.resolve();
    this.drafts = new Map(); // what was written and not yet saved: field -> value, by "file/line"
    addEventListener("beforeunload", (event) => { if (this.drafts.size) event.preventDefault(); });
  }

  update() {
    const wanted = chosen();
    const file = Math.min(Number(wanted.file) || 0, store.files.length - 1);
    if (this.read.file !== file) { this.#readFile(file); return; }
    if (document.activeElement !== this.search) this.search.value = wanted.q ?? "";
    this.filter();
    const line = this.read.lines.find((one) => String(one.line) === wanted.line);
    this.node.classList.toggle("reading", Boolean(line));
    if (line) this.#show(line);
    else {
      this.open = null;
      this.detail.replaceChildren(el("p", { class: "empty" }, this.read.lines.length ? "Choose a row, or press j." : "The file has no rows."));
    }
  }

  /** Ask the server once all that was asked before is answered: a change names the version that the one before it left. */
  #inTurn(ask) {
    this.last = this.last.then(ask, ask);
    return this.last;
  }

  async #readFile(file) {
    this.read = { file, version: null, lines: [] };
    this.open = null;
    try {
      this.read = { file, ...await this.#inTurn(() => source.lines(file)) };
      this.update();
    } catch (error) {
      this.detail.replaceChildren(el("p", { class: "empty bad" }, plain(error.message)));
    }
  }

  filter() {
    const wanted = chosen();
    const words = (wanted.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const lines = this.read.lines.filter((line) => {
      if (wanted.kind && line.kind !== wanted.kind) return false;
      if (wanted.tag && !tagsOf(line).includes(wanted.tag)) return false;
      if (wanted.label && (wanted.label === "none" ? line.label : labelName(line) !== wanted.label)) return false;
      const text = (line.search ??= `${line.line}\n${line.words}`.toLowerCase());
      return words.every((word) => text.includes(word));
    });
    this.list.show(lines, lines.findIndex((line) => String(line.line) === wanted.line));
    const unread = this.read.lines.filter((line) => line.kind === "unread").map((line) => line.line);
    this.count.replaceChildren(`${figure(lines.length)} of ${figure(this.read.lines.length)}`, unread.length
      ? el("span", { class: "bad" }, ` · cannot be read: line ${unread.slice(0, 5).join(", ")}${unread.length > 5 ? ` and ${unread.length - 5} more` : ""}`) : "");
    const each = (values, ...first) => [...first, ...[...new Set(values)].sort().map((value) => [value, value])];
    const set = (name) => (value) => choose({ [name]: value });
    this.choices.replaceChildren(...[
      store.files.length > 1 ? choice("File", String(this.read.file), store.files.map((name, place) => [String(place), name]), (file) => choose({ file, line: "" })) : null,
      choice("Kind", wanted.kind ?? "", LINE_KINDS, set("kind")),
      choice("Tag", wanted.tag ?? "", each(this.read.lines.flatMap(tagsOf), ["", "any tag"]), set("tag")),
      choice("Label", wanted.label ?? "", each(this.read.lines.map(labelName).filter(Boolean), ["", "any label"], ["none", "without label"]), set("label")),
    ].filter(Boolean));
  }

  #lineNode(line) {
    const flag = this.drafts.has(this.#key(line)) ? el("span", { class: "warn" }, "not saved") : null;
    return [
      lineMark(line), el("span", { class: "title" }, plain(line.title)), el("span", { class: "figure muted" }, String(line.line)),
      el("span", { class: line.kind === "unread" ? "under bad" : "under" }, plain(line.kind === "unread" ? line.problem : [line.under, ...tagsOf(line)].filter(Boolean).join(" · "))),
      el("span", { class: "flags" }, flag, line.label ? el("span", { class: ["good", "bad"].includes(line.label) ? `label ${line.label}` : "label" }, labelName(line)) : null),
    ];
  }

  #key(line) { return `${this.read.file}/${line.line}`; }

  async #show(line) {
    const key = this.#key(line);
    if (this.open === key) return;
    this.open = key;
    try {
      const found = await this.#inTurn(() => source.line(this.read.file, line.line));
      if (this.open === key) this.#draw(line, found);
    } catch (error) {
      if (this.open === key) this.detail.replaceChildren(el("p", { class: "empty bad" }, plain(error.message)));
    }
  }

  #draw(line, found) {
    const note = el("p", { class: "muted", role: "status" });
    if (found.version !== this.read.version) note.textContent = "The file was changed by another program since it was opened; reload the page.";
    const key = this.#key(line);
    const save = (change) => this.#save(line, change, note);
    const draft = () => this.drafts.get(key) ?? new Map();
    const saveDraft = () => save({ fields: Object.fromEntries(draft()) });
    const field = ({ name, text, is_text: isText }) => {
      const value = draft().get(name);
      const area = el("textarea", { rows: Math.max(2, Math.min(14, Math.ceil(text.length / 80) + text.split("\n").length - 1)), "aria-label": name || "whole line", spellcheck: "false", class: isText ? "" : "code" });
      area.value = value === undefined ? text : isText ? JSON.parse(value) : value;
      area.addEventListener("input", () => {
        const fields = draft();
        if (area.value === text) fields.delete(name);
        else fields.set(name, isText ? JSON.stringify(area.value) : area.value);
        if (fields.size) this.drafts.set(key, fields);
        else this.drafts.delete(key);
        note.textContent = fields.size ? "not saved" : "";
      });
      area.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { area.blur(); saveDraft(); }
      });
      return name ? el("label", { class: "field" }, el("span", { class: "muted" }, shown(name)), area)
        : el("details", { open: found.fields.length === 1 }, el("summary", {}, "the whole line"), area);
    };
    const button = (value, letter) => el("button", {
      type: "button", "data-label": value, "aria-pressed": String(line.label === value), title: `${value} (${letter})`,
      on: { click: () => save({ label: line.label === value ? "" : value }) },
    }, value);
    const labels = line.kind === "unread" ? null
      : panel("Label", el("div", { class: "choices" }, button("good", "y"), button("bad", "n"), button("unsure", "u")));
    const head = el("header", {}, this.back("← all rows"), el("h2", {}, lineMark(line), plain(line.title)),
      el("p", { class: line.kind === "unread" ? "bad" : "muted" }, line.problem ? plain(line.problem) : `line ${line.line}`));
    const edit = found.fields.length ? panel("Change", ...found.fields.map(field), el("div", { class: "choices" },
      el("button", { type: "button", on: { click: saveDraft } }, "Save")), note) : null;
    const talk = found.messages.length ? conversation({ messages: found.messages, lengths: new Map() }, {}) : null;
    if (draft().size) note.textContent = "not saved";
    this.detail.replaceChildren(el("div", { class: "rollout" }, head, el("div", { class: "talk" }, talk, edit), el("div", { class: "verdict" }, labels)));
    this.detail.scrollTop = 0;
  }

  async #save(line, change, note) {
    if (change.fields && !Object.keys(change.fields).length) return;
    const [read, key] = [this.read, this.#key(line)];
    try {
      const found = await this.#inTurn(async () => {
        const saved = await source.change(read.file, line.line, { version: read.version, ...change });
        read.version = saved.version;
        return saved;
      });
      const draft = this.drafts.get(key);
      for (const [name, value] of Object.entries(change.fields ?? {})) if (draft?.get(name) === value) draft.delete(name);
      if (!draft?.size) this.drafts.delete(key);
      read.lines[read.lines.findIndex((one) => one.line === line.line)] = found.row;
      if (this.read !== read) return; // another file is open now
      this.filter();
      if (this.open !== key) return; // another row is being read
      this.#draw(found.row, found);
      this.detail.querySelector("[role=status]")?.replaceChildren(this.drafts.has(key) ? "saved; what was written since is not yet" : "saved");
    } catch (error) {
      const shown = note.isConnected ? note : this.count; // another row may be open by now
      shown.textContent = `line ${line.line}, not saved: ${error.message}`;
    }
  }

  key(name) {
    if (super.key(name)) return true;
    if (name !== "e") return false;
    this.detail.querySelector("textarea")?.focus();
    return true;
  }
}
