// Starts the page: the views, the address, the keys.

import { el, figure, plain } from "./dom.js";
import { CompareView } from "./compare_view.js";
import { GroupsView } from "./groups_view.js";
import { helpNodes, meant } from "./keys.js";
import { Overview } from "./overview.js";
import { RolloutsView } from "./rollout_view.js";
import { RowsView } from "./rows_view.js";
import { changes, choose, chosen, follow, source, store } from "./store.js";

const MAKE = { overview: Overview, rollouts: RolloutsView, groups: GroupsView, compare: CompareView, rows: RowsView };
const views = {};
const place = document.getElementById("view");
const help = document.getElementById("help");

/** The views of what was opened: runs, files of rows, or both. */
const there = () => Object.keys(MAKE).filter((name) => (name === "rows" ? store.files.length : store.runs.length || !store.files.length));

function current() {
  const name = there().includes(chosen().v) ? chosen().v : there()[0];
  views[name] ??= new MAKE[name]();
  return { name, view: views[name] };
}

function draw() {
  if (store.facts === null) return; // nothing is known yet; what was chosen meanwhile is in the address
  const { name, view } = current();
  if (view.node.parentNode !== place) {
    place.replaceChildren(view.node);
    view.list?.node.focus({ preventScroll: true });
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.hidden = !there().includes(link.dataset.view);
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.update();
}

let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function drawStatus() {
  const status = document.getElementById("status");
  const count = store.runs.length ? `${figure(store.rows.length)} rollouts` : "";
  let kind = "still";
  let words = count;
  if (!store.connected) [kind, words] = ["lost", "the server is gone; what is here stays"];
  else if (!store.whole) words = `${count} read so far`;
  else if (source.live) [kind, words] = ["live", count];
  status.replaceChildren(el("i", { class: kind }), words);
  const names = [...store.runs.map((run) => run.name), ...store.files].map(plain);
  document.getElementById("brand").textContent = names.length === 1 ? names[0] : "toolbake";
  document.title = `${names.join(", ")} · toolbake`;
}

// ---- light and dark

function stored() {
  try { return localStorage.getItem("theme"); } catch { return null; } // a file may keep nothing
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  try { if (theme) localStorage.setItem("theme", theme); } catch { /* it holds for this time */ }
}

function otherTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

// ---- keys

function toggleHelp() {
  if (help.open) { help.close(); return; }
  help.replaceChildren(...helpNodes(() => help.close()).flat(Infinity));
  help.showModal();
}

function onKey(event) {
  const key = meant(event);
  if (key === null) return;
  const named = Object.keys(MAKE)[Number(key) - 1];
  let done = true;
  if (key === "?") toggleHelp();
  else if (key === "t") otherTheme();
  else if (there().includes(named)) choose({ v: named }, { fresh: true });
  else done = current().view.key(key);
  if (done) event.preventDefault();
}

setTheme(stored());
document.getElementById("theme").addEventListener("click", otherTheme);
document.getElementById("help-button").addEventListener("click", toggleHelp);
document.addEventListener("keydown", onKey);
addEventListener("popstate", draw);
addEventListener("hashchange", draw);
changes.addEventListener("chosen", draw);
changes.addEventListener("rows", () => { drawStatus(); drawSoon(); });
changes.addEventListener("runs", drawSoon);
changes.addEventListener("labels", drawSoon);
changes.addEventListener("status", drawStatus);
follow().catch((error) => place.replaceChildren(el("p", { class: "empty bad" }, plain(error.message))));
