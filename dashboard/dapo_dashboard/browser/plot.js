// One chart as uPlot draws it: its scales, axes, series and bands, and the pointer that all charts share.

import { layers } from "./aligned.js";
import { drawMarks } from "./marks.js";
import { faded } from "./theme.js";
import uPlot from "./uPlot.js";

export const HEIGHT = 190;
const DASHES = { solid: undefined, dashed: [7, 5], dotted: [2, 4] };
const SIDE = 46; // pixels of the axes at the sides
const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 13 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);
const DAY = "{YYYY}-{MM}-{DD}";
const TIMES = [
  [86400, DAY, null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", `\n${DAY}`, null, "\n{MM}-{DD}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", `\n${DAY}`, null, "\n{MM}-{DD}", null, null, null, 1],
];

/**
 * A uPlot in `holder`. `state` has the `chart`, the `data` of all charts, its `layers` and the `theme` of the moment;
 * whoever changes them redraws. `on.cursor(index)` and `on.zoom(from, to)`, in places of the x axis, are told what the
 * viewer does; `on.reset()` that all steps are wanted. A drag begins on one chart, `on.begin()`, and shows on all of them:
 * `on.begun()` tells whether it was this one.
 */
export function createPlot(holder, state, width, group, on) {
  const { chart, data } = state;
  const plot = new uPlot({
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, chart.rightUnit || hasRight(chart) ? 0 : 12, 0, 0],
    cursor: {
      y: false,
      sync: { key: group, setSeries: false, scales: ["x", null] },
      drag: { x: true, y: false, setScale: false, dist: 6 },
      points: { size: 6 },
      bind: {
        mousedown: (_, __, handler) => (event) => { on.begin(); return handler(event); },
        dblclick: () => () => { on.reset(); return null; },
      },
    },
    scales: {
      x: { time: data.axis === "time", range: () => xRange(state.data) },
      y: scale(state, false),
      right: scale(state, true),
    },
    axes: [xAxis(state), yAxis(state, "y"), ...(hasRight(chart) ? [yAxis(state, "right")] : [])],
    series: [{}, ...state.layers.series.map((each) => series(state, each))],
    bands: state.layers.bands.map((band) => ({ series: band.series, fill: () => bandColor(state, band.line) })),
    hooks: {
      draw: [(self) => drawMarks(self, state.chart, state.data)],
      setCursor: [(self) => on.cursor(self.cursor.idx)],
      setSelect: [(self) => selected(self, on)],
    },
  }, [xs(data), ...state.layers.columns], holder);
  return plot;
}

/** The chart with new values, in place. */
export function updatePlot(plot, state) {
  state.layers = layers(state.chart, state.data);
  plot.setData([xs(state.data), ...state.layers.columns]);
}

/** The places of the steps on the x axis. */
export function xs(data) {
  return data.x ?? data.steps;
}

/** The color of a line: its own, or the theme's in turn. */
export function lineColor(state, index) {
  return state.chart.lines[index].color ?? state.theme.colors[index % state.theme.colors.length];
}

function hasRight(chart) {
  return chart.lines.some((line) => line.right);
}

function xRange(data) {
  const [from, to] = data.range ?? [0, 1];
  return [from ?? 0, to === from || to == null ? (from ?? 0) + 1 : to];
}

function scale(state, right) {
  const { chart } = state;
  const log = chart.log && !right;
  const range = (_, low, high) => {
    if (low == null || high == null) return log ? [1, 10] : [0, 1];
    if (log) return uPlot.rangeLog(low, high, 10, true);
    if (chart.full && !right) return [0, 100];
    const [from, to] = uPlot.rangeNum(low, high, 0.1, true);
    return chart.zero && !right ? [Math.min(0, low), to] : [from, to];
  };
  return { distr: log ? 3 : 1, range };
}

function xAxis(state) {
  const axis = { ...lines(state), size: state.data.axis === "time" ? 42 : 28, space: 60 };
  if (state.data.axis === "step") return { ...axis, incrs: WHOLE };
  return state.data.axis === "time" ? { ...axis, values: TIMES } : axis;
}

function yAxis(state, name) {
  const right = name === "right";
  const axis = { ...lines(state), scale: name, side: right ? 1 : 3, size: SIDE, space: 36 };
  if (right) axis.grid = { show: false };
  // A label fits its axis however large or small the value is.
  axis.values = (_, splits) => splits.map((value) => (value == null ? "" : compact(value)));
  return axis;
}

function compact(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(0);
  if (size >= 1e4) return `${Number((value / (size >= 1e6 ? 1e6 : 1e3)).toPrecision(4))}${size >= 1e6 ? "M" : "k"}`;
  return String(Number(value.toPrecision(4)));
}

function lines(state) {
  return {
    stroke: () => state.theme.text,
    font: "11px sans-serif",
    gap: 4,
    grid: { stroke: () => state.theme.grid, width: 1 },
    ticks: { stroke: () => state.theme.grid, width: 1, size: 4 },
  };
}

function series(state, { line: index, kind }) {
  const line = state.chart.lines[index];
  const color = () => lineColor(state, index);
  const common = { scale: line.right ? "right" : "y", spanGaps: false };
  if (kind === "edge") return { ...common, stroke: "transparent", width: 0, points: { show: false } };
  if (kind === "faint") return { ...common, stroke: () => faded(color(), 0.3), width: 1, points: { show: false } };
  if (kind === "old") {
    // Dots alone: a line would join points of different attempts.
    const fill = () => faded(color(), 0.4);
    return { ...common, stroke: "transparent", width: 0, points: { show: true, size: 4, width: 0, fill, stroke: fill } };
  }
  const drawn = { ...common, stroke: color, width: 2, dash: DASHES[line.dash], points: line.dots ? { show: true, size: 5 } : {} };
  if (kind !== "stack") return drawn;
  // What lies on top of another is filled down to it, by a band; the lowest down to zero.
  const lowest = !state.layers.bands.some((band) => band.line === index);
  const fill = lowest ? { fill: () => faded(color(), 0.75) } : {};
  // An area needs two steps; a single one is a dot.
  const alone = (plot, at) => plot.data[at].filter((value) => value != null).length === 1;
  return { ...drawn, ...fill, width: 1, points: { show: alone, size: 6 } };
}

function bandColor(state, index) {
  return faded(lineColor(state, index), state.chart.lines[index].stack ? 0.75 : 0.2);
}

function selected(plot, on) {
  const { left, width } = plot.select;
  // The other charts show the same selection, and say nothing of it.
  if (width > 0 && on.begun()) on.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
}
