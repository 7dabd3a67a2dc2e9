// Line charts, small and many, drawn as SVG.

import { el, figure, plain, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [360, 150, 44, 20, 8, 8];

/** One measure over the steps. `lines`: [{ name, points: [[step, value], ...] }]. */
export function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const steps = points.map(([step]) => step);
  const values = points.map(([, value]) => value);
  const [from, to] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = bounds(values);
  const x = (step) => LEFT + (to > from ? (step - from) / (to - from) : 0.5) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": spoken(title, lines) });
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 3, "text-anchor": "end" }, tick(value)));
  }
  for (const [step, anchor] of to > from ? [[from, "start"], [to, "end"]] : [[from, "middle"]]) {
    picture.append(svg("text", { class: "tick", x: x(step), y: HEIGHT - 4, "text-anchor": anchor }, `step ${step}`));
  }
  lines.forEach((line, number) => picture.append(drawn(line, number, x, y)));
  const readout = el("span", { class: "muted figure" }, latest(lines));
  followPointer(picture, lines, x, y, readout);
  return el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, plain(title)), readout), picture);
}

function bounds(values) {
  let [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  if (low >= 0 && high <= 1 && high > 0.2) return [0, 1];
  if (low > 0 && low < 0.7 * high) low = 0;
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  return [low, high];
}

const tick = (value) => (value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e5) ? value.toExponential(0) : figure(value, Math.abs(value) < 0.1 ? 3 : 2));

function drawn(line, number, x, y) {
  const path = line.points.map(([step, value], place) => `${place ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const group = svg("g", { class: `line line-${number % 5}` }, svg("path", { d: path }));
  if (line.points.length < 40) for (const [step, value] of line.points) group.append(svg("circle", { cx: x(step), cy: y(value), r: 2.2 }));
  return group;
}

function latest(lines) {
  return lines.map((line) => figure(line.points.at(-1)[1], 4)).join(" · ");
}

function spoken(title, lines) {
  return lines.map((line) => `${plain(title)} ${plain(line.name)}: from ${figure(line.points[0][1], 4)} to ${figure(line.points.at(-1)[1], 4)} in ${line.points.length} steps`).join("; ");
}

function followPointer(picture, lines, x, y, readout) {
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
  picture.append(cursor);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = lines.map((line) => line.points.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best)));
    cursor.setAttribute("x1", x(near[0][0]));
    cursor.setAttribute("x2", x(near[0][0]));
    readout.textContent = `step ${near[0][0]}: ${near.map((point) => figure(point[1], 4)).join(" · ")}`;
  });
  picture.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    readout.textContent = latest(lines);
  });
}
