// The runs as a whole: what they could do at each stage, and how training went.

import { counted, el, figure, plain } from "./dom.js";
import { chart } from "./chart.js";
import { seconds } from "./conversation.js";
import { grouped } from "./filtering.js";
import { jsonNodes } from "./texts.js";
import { kindName, PROMPTS } from "./panels.js";
import { armOf, armTitle, choose, faultOf, isProbe, outcome, source, store } from "./store.js";

const FIRST = ["reward", "groups_with_signal", "loss", "entropy", "kl", "sampler_gap/mean", "grad_norm", "learning_rate"];
const Z = 1.959963984540054;
const EMBEDDED = "SmolLM2-135M-Instruct, embedded";

/** Wilson's interval of a share, 95 %. */
export function wilson(right, all) {
  const share = right / all;
  const middle = (share + (Z * Z) / (2 * all)) / (1 + (Z * Z) / all);
  const half = (Z / (1 + (Z * Z) / all)) * Math.sqrt((share * (1 - share)) / all + (Z * Z) / (4 * all * all));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

/** The arms with their rows: those of degenerate probes, or all others. */
function stages(probes) {
  return [...grouped(store.rows.filter((row) => isProbe(row) === probes), armOf)];
}

function stageRow([arm, rows]) {
  const scored = rows.filter((row) => row.state === "scored");
  const right = scored.filter((row) => outcome(row) === "right").length;
  const mean = (value) => (rows.length ? rows.reduce((sum, row) => sum + value(row), 0) / rows.length : null);
  const tasks = new Set(rows.map((row) => row.task)).size;
  const families = new Set(rows.map((row) => row.family)).size;
  const link = el("a", { href: `#${new URLSearchParams({ v: "rollouts", arm })}` }, armTitle(arm));
  const once = tasks === rows.length && scored.length > 0;
  // The report averages the tries at a task first; of some tasks fewer may be scored.
  const interval = store.runs[rows[0].run].intervals[rows[0].stage];
  const share = interval ? interval[1] : right / scored.length;
  return el("tr", {},
    el("th", { scope: "row" }, link),
    el("td", { class: "figure" }, scored.length ? `${figure(100 * share, 1)} %` : "–"),
    el("td", { class: "interval" }, interval ? whisker(...interval, "as reported") : once ? unclustered(right, scored.length) : null),
    el("td", { class: "figure" }, scored.length ? figure(scored.reduce((sum, row) => sum + row.score, 0) / scored.length, 3) : "–"),
    el("td", { class: "figure" }, figure(rows.length)), el("td", { class: "figure" }, figure(tasks)), el("td", { class: "figure" }, figure(families)),
    el("td", { class: "figure" }, rows.length - scored.length ? el("a", { href: `#${new URLSearchParams({ v: "rollouts", arm, result: "failed" })}` }, figure(rows.length - scored.length)) : "0"),
    el("td", { class: "figure" }, figure(mean((row) => row.turns), 1)), el("td", { class: "figure" }, figure(mean((row) => row.tokens), 0)),
    el("td", { class: "figure" }, seconds(mean((row) => row.seconds) ?? 0)));
}

function unclustered(right, all) {
  const [low, high] = wilson(right, all);
  return whisker(low, right / all, high, "tasks taken as independent");
}

function whisker(low, middle, high, note) {
  const words = `95 % interval ${figure(100 * low, 1)} to ${figure(100 * high, 1)} %, ${note}`;
  const node = el("span", { class: "whisker", role: "img", "aria-label": words, title: words }, el("i"));
  node.style.setProperty("--low", `${100 * low}%`);
  node.style.setProperty("--high", `${100 * high}%`);
  node.style.setProperty("--middle", `${100 * middle}%`);
  return node;
}

function stageTable(arms) {
  const heads = ["stage", "right", "95 % interval", "mean score", "rollouts", "tasks", "families", "not scored", "turns", "tokens", "time"];
  return el("div", { class: "scroll" }, el("table", { class: "stages" },
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place ? "figure" : "" }, head)))),
    el("tbody", {}, arms.map(stageRow))));
}

/** Whether doing nothing of use was paid for; each probe folded. */
function probeNodes() {
  const arms = stages(true);
  const rows = arms.flatMap(([, of]) => of);
  if (!rows.length) return null;
  const paid = rows.filter((row) => outcome(row) === "right").length;
  const words = paid ? `${figure(paid)} of ${figure(rows.length)} rollouts earned the reward` : `none of ${figure(rows.length)} rollouts earned the reward`;
  return el("details", { class: "probes" }, el("summary", { class: paid ? "bad" : null }, `${counted(arms.length, "degenerate probe")}: ${words}`), stageTable(arms));
}

/** How many rollouts of each stage went wrong first in which way; a number leads to them. */
function faultNodes() {
  const counts = new Map();
  const meanings = {};
  for (const row of store.rows) {
    const kind = faultOf(row)?.kind;
    if (!kind) continue;
    if (!counts.has(kind)) counts.set(kind, new Map());
    counts.get(kind).set(armOf(row), (counts.get(kind).get(armOf(row)) ?? 0) + 1);
    meanings[kind] = store.runs[row.run].fault_meanings[kind];
  }
  if (!counts.size) return [];
  const arms = stages(false).map(([arm]) => arm).filter((arm) => [...counts.values()].some((of) => of.has(arm)));
  const total = (of) => [...of.values()].reduce((sum, one) => sum + one, 0);
  const cell = (kind, of, arm) => el("td", { class: "figure" }, of.has(arm)
    ? el("a", { href: `#${new URLSearchParams({ v: "rollouts", arm, fault: kind })}` }, figure(of.get(arm))) : "0");
  const rows = [...counts].sort(([, one], [, other]) => total(other) - total(one)).map(([kind, of]) => el("tr", {},
    el("th", { scope: "row", title: meanings[kind] }, kindName(kind)), arms.map((arm) => cell(kind, of, arm))));
  return [el("h2", {}, "What went wrong first"), el("div", { class: "scroll" }, el("table", { class: "stages faults" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "rollouts"), arms.map((arm) => el("th", { scope: "col", class: "figure" }, armTitle(arm))))),
    el("tbody", {}, rows)))];
}

/** Put other nodes in; what was unfolded stays so. */
function refill(place, ...nodes) {
  const open = [...place.querySelectorAll("details")].map((one) => one.open);
  place.replaceChildren(...nodes.flat().filter(Boolean));
  [...place.querySelectorAll("details")].forEach((one, at) => { if (open[at]) one.open = true; });
}

/** Each measure of the metrics' lines that changes, the well-known ones first. */
export function seriesOf(metrics) {
  const found = new Map();
  metrics.forEach((lines, run) => {
    for (const line of lines) {
      for (const [name, value] of Object.entries(line)) {
        if (typeof value !== "number" || name === "step") continue;
        const key = `${name}\n${line.stage ?? ""}`;
        if (!found.has(key)) found.set(key, new Map());
        const runs = found.get(key);
        if (!runs.has(run)) runs.set(run, []);
        runs.get(run).push([line.step, value]);
      }
    }
  });
  const rank = (key) => { const at = FIRST.indexOf(key.split("\n")[0]); return at < 0 ? FIRST.length : at; };
  return [...found].map(([key, runs]) => {
    const [name, stage] = key.split("\n");
    return { name, stage, rank: rank(key), lines: [...runs].map(([run, points]) => ({ name: store.runs[run].name, points })) };
  }).sort((a, b) => a.rank - b.rank || (a.stage === "grpo" ? 0 : 1) - (b.stage === "grpo" ? 0 : 1));
}

function curves(metrics) {
  const all = seriesOf(metrics);
  if (!all.length) return [];
  const draw = (series) => chart(series.stage ? `${series.name} · ${series.stage}` : series.name, series.lines);
  const varies = (series) => series.lines.some((line) => new Set(line.points.map(([, value]) => value)).size > 1);
  const main = all.filter((series) => series.rank < FIRST.length && varies(series));
  const others = all.filter((series) => !main.includes(series));
  const rest = el("div", { class: "charts" });
  const more = el("details", {}, el("summary", {}, `${others.length} more measures`), rest);
  more.addEventListener("toggle", () => { if (more.open && !rest.childNodes.length) rest.append(...others.map(draw)); });
  const legend = store.runs.length > 1 ? el("p", { class: "legend" }, store.runs.map((run, at) => el("span", { class: `line-${at % 5}` }, plain(run.name)))) : null;
  return [el("h2", {}, "Training"), legend, el("div", { class: "charts" }, main.map(draw)), others.length ? more : null];
}

/** Each condition of an evaluation with its model. */
function measuredIn(conditions) {
  return conditions.map(([name, , model]) => `${name} (${model ?? EMBEDDED})`).join("; ");
}

/** What a training's prompts show of the tools, where that is not their full schemas. */
function promptOf(config) {
  const shown = config.train?.tool_prompt ?? (Array.isArray(config.evaluate) ? null : config.tool_prompt) ?? "full";
  if (typeof shown === "string") return shown === "full" ? "" : PROMPTS[shown] ?? shown;
  return Object.entries(shown).map(([length, share]) => `${PROMPTS[length] ?? length} (${Math.round(1000 * share) / 10} %)`).join(" and ");
}

function runNode(run) {
  const config = run.config ?? {};
  const model = Array.isArray(config.evaluate) ? measuredIn(config.evaluate) : config.model ?? config.evaluate ?? EMBEDDED;
  const facts = [["model", model], ["tools in the prompts", promptOf(config)], ["verifier", config.verifier?.name], ["begun", (run.created_at ?? "").replace("T", " ").replace("+00:00", " UTC")],
    ["done", run.stages_done.join(", ") || "nothing yet"], ["set aside", run.set_aside.join(", ")],
    ["evidence", run.evidence ? "recorded; toolbake verify recomputes it" : ""]];
  return el("section", { class: "run" }, el("h1", {}, plain(run.name)),
    el("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(typeof value === "string" ? value : JSON.stringify(value)))])),
    run.next_steps.length ? [el("h2", {}, "Next"), el("ul", { class: "next" }, run.next_steps.map((step) => el("li", {}, plain(step))))] : null,
    run.problems.map((problem) => el("p", { class: "warn" }, plain(problem))),
    el("details", {}, el("summary", {}, "all settings"), el("div", { class: "text code" }, jsonNodes(JSON.stringify(config)))));
}

export class Overview {
  constructor() {
    this.node = el("div", { class: "overview" });
    this.runs = el("div", { class: "runs" });
    this.table = el("div");
    this.curves = el("div");
    this.faults = el("div");
    this.node.append(this.runs, this.table, this.curves, this.faults);
  }

  async update() {
    const drawn = `${store.generation} ${store.rows.length} ${store.facts} ${store.labels.size}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const damaged = store.problems.map((problem) => el("p", { class: "warn" }, plain(problem)));
    if (store.unread > store.problems.length) damaged.push(el("p", { class: "warn" }, `and ${store.unread - store.problems.length} more`));
    refill(this.runs, store.runs.map(runNode));
    refill(this.table, el("h2", {}, "Rollouts"), damaged, store.rows.length ? stageTable(stages(false)) : el("p", { class: "muted" }, "none yet"), probeNodes(), exportLine());
    refill(this.faults, faultNodes());
    refill(this.curves, curves(await source.metrics()));
  }

  key(name) {
    if (name !== "Enter") return false;
    choose({ v: "rollouts" }, { fresh: true });
    return true;
  }
}

function exportLine() {
  if (!source.live || !store.labels.size) return "";
  return el("p", { class: "muted" }, `${figure(store.labels.size)} labelled: `, el("a", { href: "api/labels.jsonl", download: "labels.jsonl" }, "download with their rollouts as JSONL"));
}
