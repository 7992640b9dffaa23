// A step: its phases in time, and its groups as points that can be clicked.

import { themeOf } from "./theme.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000, LANE = 26, PLOT = 300, LEFT = 56, BOTTOM = 34;
const drawn = new WeakMap();

/** Draws what the server sent; a click on a group is sent to it as `group`. */
export function step(component) {
  const { parentElement, data } = component;
  const theme = themeOf(parentElement);
  const sent = JSON.stringify(data) + theme.key;
  if (drawn.get(parentElement) === sent) return;
  drawn.set(parentElement, sent);
  parentElement.replaceChildren(style(), lanes(data.phases, theme), legend(data.legend), scatter(data, theme, component));
}

/** Round numbers that divide `low` to `high`, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.ceil(low / size) * size;
  return Array.from({ length: Math.floor((high - first) / size + 1e-9) + 1 }, (_, index) => first + index * size);
}

/** The lowest and the highest of `values`, apart where they are the same. */
export function reach(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value != null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  const margin = (high - low) * 0.06 || 0.5;
  return [low - margin, high + margin];
}

function lanes(phases, theme) {
  const total = phases.reduce((most, phase) => Math.max(most, phase.from + phase.seconds), 0) || 1;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${LANE * phases.length}`, role: "img" });
  svg.setAttribute("aria-label", phases.map((phase) => `${phase.title} ${phase.text}`).join(", "));
  phases.forEach((phase, index) => {
    const left = 160 + ((WIDTH - 260) * phase.from) / total;
    const width = Math.max(2, ((WIDTH - 260) * phase.seconds) / total);
    const color = theme.colors[index % theme.colors.length];
    svg.append(
      make("text", { x: 150, y: LANE * index + 17, "text-anchor": "end", fill: theme.text }, phase.title),
      make("rect", { x: left, y: LANE * index + 4, width, height: LANE - 8, rx: 3, fill: color }),
      make("text", { x: left + width + 6, y: LANE * index + 17, fill: theme.text }, phase.text),
    );
  });
  return svg;
}

function legend(entries) {
  const made = document.createElement("p");
  made.className = "dapo-fates";
  for (const entry of entries) {
    const part = document.createElement("span");
    const dot = document.createElement("i");
    dot.style.background = entry.color;
    part.append(dot, entry.text);
    made.append(part);
  }
  return made;
}

function scatter(data, theme, component) {
  const { groups } = data;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${groups.length ? PLOT : 0}`, role: "group" });
  svg.setAttribute("aria-label", `${groups.length} groups by length and reward; those with a ring can be opened`);
  if (!groups.length) return svg;
  const [left, right] = reach(groups.map((group) => group.x));
  const [low, high] = reach(groups.map((group) => group.y));
  const x = (value) => LEFT + ((WIDTH - LEFT - 12) * (value - left)) / (right - left);
  const y = (value) => PLOT - BOTTOM - ((PLOT - BOTTOM - 10) * (value - low)) / (high - low);
  const most = Math.max(...groups.map((group) => group.size ?? 0)) || 1;
  for (const value of ticks(left, right, 8)) {
    svg.append(make("text", { x: x(value), y: PLOT - 18, "text-anchor": "middle", fill: theme.text }, round(value)));
  }
  for (const value of ticks(low, high, 5)) {
    svg.append(
      make("line", { x1: LEFT, x2: WIDTH - 12, y1: y(value), y2: y(value), stroke: theme.grid }),
      make("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", fill: theme.text }, round(value)),
    );
  }
  svg.append(make("text", { x: WIDTH / 2, y: PLOT - 3, "text-anchor": "middle", fill: theme.text }, "mean length in tokens; up: mean reward; size: largest advantage"));
  // What can be opened lies on top.
  for (const group of [...groups].sort((one, other) => one.recorded - other.recorded)) svg.append(point(group));
  return svg;

  function point(group) {
    const radius = 3.5 + 5 * Math.sqrt((group.size ?? 0) / most);
    const dot = make("circle", { cx: x(group.x ?? left), cy: y(group.y ?? low), r: radius, fill: group.color, "fill-opacity": 0.62 });
    dot.append(make("title", {}, group.text));
    if (group.recorded || group.chosen) dot.setAttribute("stroke", theme.text);
    if (group.chosen) dot.setAttribute("stroke-width", 3);
    dot.setAttribute("class", "dapo-group");
    dot.setAttribute("tabindex", group.recorded ? "0" : "-1");
    dot.setAttribute("role", "button");
    dot.setAttribute("data-recorded", String(group.recorded));
    const open = () => component.setTriggerValue("group", group.uid);
    dot.addEventListener("click", open);
    dot.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    return dot;
  }
}

function round(value) {
  return String(Number(value.toPrecision(4)));
}

function style() {
  const made = document.createElement("style");
  made.textContent = `.dapo-group { cursor: pointer; } .dapo-group:focus-visible { outline: 2px solid currentColor; }
.dapo-fates { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; margin: .5rem 0; }
.dapo-fates i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .3rem; }
svg[viewBox^="0 0 ${WIDTH} "] { max-width: ${WIDTH}px; }
svg[viewBox^="0 0 ${WIDTH} "] text { font-size: 12px; font-family: inherit; }`;
  return made;
}

function make(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  if (text !== "") element.textContent = text; // as text: names come from whoever wrote the job
  return element;
}
