// Starts the page: the views, the address, the keys.

import { el, figure, plain } from "./dom.js";
import { CompareView } from "./compare_view.js";
import { GroupsView } from "./groups_view.js";
import { helpNodes, meant } from "./keys.js";
import { Overview } from "./overview.js";
import { RolloutsView } from "./rollout_view.js";
import { changes, choose, chosen, follow, source, store } from "./store.js";

const MAKE = { overview: Overview, rollouts: RolloutsView, groups: GroupsView, compare: CompareView };
const views = {};
const place = document.getElementById("view");
const help = document.getElementById("help");

function current() {
  const name = Object.hasOwn(MAKE, chosen().v) ? chosen().v : "overview";
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
  const count = `${figure(store.rows.length)} rollouts`;
  let kind = "still";
  let words = count;
  if (!store.connected) [kind, words] = ["lost", "the server is gone; what is here stays"];
  else if (!store.whole) words = `${count} read so far`;
  else if (source.live) [kind, words] = ["live", count];
  status.replaceChildren(el("i", { class: kind }), words);
  document.getElementById("brand").textContent = store.runs.length === 1 ? plain(store.runs[0].name) : "toolbake";
  document.title = `${store.runs.map((run) => plain(run.name)).join(", ")} · toolbake`;
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
  const names = Object.keys(MAKE);
  let done = true;
  if (key === "?") toggleHelp();
  else if (key === "t") otherTheme();
  else if (/^[1-4]$/.test(key)) choose({ v: names[Number(key) - 1] }, { fresh: true });
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
