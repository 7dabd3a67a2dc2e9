// Everything that is known of the runs, and what is chosen of it. Views listen for "rows", "runs", "labels" and "status".

import { plain } from "./dom.js";
import { openSource } from "./data.js";

export const source = openSource();
export const store = {
  generation: 0, rows: [], runs: [], facts: null, whole: false, unread: 0, problems: [], labels: new Map(), connected: true, files: [],
};
export const changes = new EventTarget();

const say = (what) => changes.dispatchEvent(new Event(what));

/** What a rollout is called across generations: in addresses, which cannot hold every character an id can. */
export const keyOf = (row) => (row.key ??= plain(`${row.run}/${row.stage}/${row.id}`));
export const groupOf = (row) => plain(`${row.run}/${row.stage}/${row.group}`);

/** The stage, with the run's name where there are several runs, and the policy where a stage has several. */
export function armOf(row) {
  const known = `${row.run}/${row.stage}/${row.policy}`;
  if (!arms.has(known)) arms.set(known, armName(row, row.stage));
  return arms.get(known);
}

/** What an arm is called: once the run has a report its stage has the report's name, and addresses stay as they were. */
export function armTitle(arm) {
  for (const row of armTitles.size ? [] : store.rows) {
    if (!armTitles.has(armOf(row))) armTitles.set(armOf(row), armName(row, store.runs[row.run].titles[row.stage] ?? row.stage));
  }
  return armTitles.get(arm) ?? arm;
}

function armName(row, stage) {
  const run = store.runs.length > 1 ? `${store.runs[row.run].name} · ` : "";
  const policies = policiesOf.get(`${row.run}/${row.stage}`);
  return plain(run + stage + (policies && policies.size > 1 ? ` · ${row.policy}` : ""));
}

let policiesOf = new Map();
let arms = new Map();
let armTitles = new Map();

/** Whether a degenerate policy played it, to see if the verifier pays for nothing. */
export const isProbe = (row) => row.stage === store.runs[row.run].probes;

/** What went wrong first, where the run's report says so. */
export function faultOf(row) {
  const faults = store.runs[row.run].faults[row.stage];
  return faults && Object.hasOwn(faults, row.id) ? faults[row.id] : undefined; // an id may be "constructor"
}
const tools = new Map();

/** The tools that a rollout called, each once, as they are shown. */
export function calledIn(row) {
  row.called ??= [...new Set(row.tools)].map((name) => {
    if (!tools.has(name)) tools.set(name, plain(name));
    return tools.get(name);
  });
  return row.called;
}

export const titleOf = (row) => (row.title ??= plain(row.prompt) || plain(row.task));

export const threshold = (row) => store.runs[row.run]?.threshold ?? 1;

/** "right", "wrong", or what kept the rollout from being scored. */
export function outcome(row) {
  if (row.state !== "scored") return row.state;
  return row.score >= threshold(row) - 1e-9 ? "right" : "wrong"; // as the report: a sum may miss it by rounding
}

export const labelOf = (row) => store.labels.get(keyOf(row));

function rowFrom(fields, values, n) {
  const row = { n };
  fields.forEach((name, place) => { row[name] = values[place]; });
  const tags = Object.entries(row.tags).map(([key, value]) => `${key}=${value}`).join(" ");
  row.words = [row.id, row.task, row.policy, row.prompt, row.answer, row.tools.join(" "), tags, row.note, row.stop]
    .join("\n").toLowerCase();
  return row;
}

/** Read what there is, and what is new. Returns after how many milliseconds to ask again. */
async function readRows() {
  const found = await source.rows(store.generation, store.rows.length);
  const other = (found.facts ?? "") !== store.facts;
  if (other) Object.assign(store, { runs: await source.runs(), facts: found.facts ?? "" });
  const anew = found.generation !== store.generation;
  if (anew) Object.assign(store, { generation: found.generation, rows: [] });
  if (anew) policiesOf = new Map();
  const start = store.rows.length;
  found.rows.forEach((values, place) => {
    const row = rowFrom(found.fields, values, start + place);
    store.rows.push(row);
    const stage = `${row.run}/${row.stage}`;
    if (!policiesOf.has(stage)) policiesOf.set(stage, new Set());
    policiesOf.get(stage).add(row.policy);
  });
  [arms, armTitles] = [new Map(), new Map()];
  if (other) say("runs");
  const news = anew || found.rows.length > 0 || found.whole !== store.whole;
  Object.assign(store, { whole: found.whole, unread: found.unread, problems: found.problems, files: found.files ?? [] });
  if (news) say("rows");
  if (found.whole) return document.hidden ? 10000 : 2000;
  return found.rows.length ? 0 : 50;
}

async function readLabels() {
  for (const label of await source.labels()) store.labels.set(keyOf({ ...label, id: label.rollout }), label);
  say("labels");
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Read the runs, and go on reading while they are being written. */
export async function follow() {
  await readLabels(); // first: a rollout that is opened shows its label, and its comment is not written over
  let next = await readRows();
  while (source.live) {
    await pause(next);
    try {
      next = await readRows();
      if (!store.connected) { store.connected = true; say("status"); }
    } catch (error) {
      next = 2000;
      if (store.connected) { store.connected = false; say("status"); }
    }
  }
}

let lastSave = Promise.resolve();

/** One after the other: the last one stands. */
export async function saveLabel(row, label, comment) {
  const save = () => source.save(store.generation, row.n, { stage: row.stage, rollout: row.id, label, comment });
  const saved = await (lastSave = lastSave.then(save, save));
  store.labels.set(keyOf(row), { run: row.run, ...saved });
  say("labels");
}

// ---- what is chosen: all of it is in the address, so that reloading and links keep it

export function chosen() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Change the address. `fresh`: leave out what was chosen before; `silent`: do not draw again. */
export function choose(values, { fresh = false, silent = false } = {}) {
  const next = new URLSearchParams();
  for (const [name, value] of Object.entries(fresh ? values : { ...chosen(), ...values })) {
    if (value !== "" && value !== null && value !== undefined) next.set(name, value);
  }
  const address = `#${next}`;
  if (silent) {
    history.replaceState(null, "", address);
  } else if (address !== location.hash) {
    history.pushState(null, "", address);
    say("chosen"); // at once: the next key may follow before the browser tells of a changed address
  }
}
