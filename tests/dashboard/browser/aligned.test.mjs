// Run by test_browser_scripts.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as aligned from "../../../dashboard/dapo_dashboard/browser/aligned.js";

const line = (more) => ({ name: "a", color: null, dash: "solid", right: false, stack: false, dots: false, at: -1, y: [], ...more });
const chart = (...lines) => ({ key: "k", title: "T", unit: "", rightUnit: "", zero: false, full: false, log: false, lines });

test("a curve at some steps is undefined between them, and null where it has a gap", () => {
  assert.deepEqual(aligned.column(4, [1, 3], [5, null]), [undefined, 5, undefined, null]);
  assert.deepEqual(aligned.column(2, null, [1, 2]), [1, 2]);
});

test("stacked lines are sums, with a band from each to the one below", () => {
  const data = { steps: [1, 2], at: [] };
  const found = aligned.layers(chart(line({ stack: true, y: [1, 2] }), line({ stack: true, y: [3, null] })), data);
  assert.deepEqual(found.columns, [[1, 2], [4, 2]]);
  assert.deepEqual(found.bands, [{ series: [2, 1], line: 1 }]);
  assert.deepEqual(found.lines[1].values, [3, null]);
});

test("a line with extremes and smoothing is four series of one line", () => {
  const data = { steps: [1, 2], at: [[0]] };
  const found = aligned.layers(chart(line({ at: 0, y: [1], low: [0], high: [2], smooth: [1.5] })), data);
  assert.deepEqual(found.series.map(({ kind }) => kind), ["edge", "edge", "faint", "curve"]);
  assert.deepEqual(found.columns[3], [1.5, undefined]);
  assert.deepEqual(found.lines, [{ series: [1, 2, 3, 4], values: [1, undefined] }]);
});

test("overwritten points are a series of their line, below it, and not among its values", () => {
  const data = { axis: "step", steps: [1, 2, 3], at: [[0, 1]] };
  const drawn = chart(line({ y: [4, 5, 6], oldAt: 0, old: [1, null] }));
  const found = aligned.layers(drawn, data);
  assert.deepEqual(found.series.map(({ kind }) => kind), ["old", "curve"]);
  assert.deepEqual(found.columns, [[1, null, undefined], [4, 5, 6]]);
  assert.deepEqual(found.lines, [{ series: [1, 2], values: [4, 5, 6] }]);
  assert.deepEqual(aligned.layers(chart(line({ y: [4, 5, 6], oldAt: -1, old: [1, 2, 3] })), data).columns[0], [1, 2, 3]);
  assert.notEqual(aligned.structure(drawn, data), aligned.structure(chart(line({ y: [4, 5, 6] })), data));
});

test("new values leave a chart what it is, a new line does not", () => {
  const data = { axis: "step" };
  const before = aligned.structure(chart(line({ y: [1] })), data);
  assert.equal(aligned.structure(chart(line({ y: [1, 2] })), data), before);
  assert.notEqual(aligned.structure(chart(line({ y: [1] }), line({ name: "b" })), data), before);
  assert.notEqual(aligned.structure(chart(line({ y: [1] })), { axis: "time" }), before);
});

for (const [name, values, index, expected] of [
  ["a value that is there", [1, 2, 3], 1, 1],
  ["a gap is a gap", [1, null, 3], 1, 1],
  ["the nearer one", [1, undefined, undefined, 4], 2, 3],
  ["the first of two as near", [1, undefined, 3], 1, 0],
  ["before the first", [undefined, 2], 0, 1],
  ["after the last", [1, undefined], 1, 0],
  ["none", [undefined], 0, null],
]) test(`nearest: ${name}`, () => assert.equal(aligned.nearest(values, index, [10, 20, 30, 40]), expected));

for (const [value, expected] of [
  [null, "–"], [0, "0"], [0.123456, "0.1235"], [85.0149, "85.01"], [-3.14159, "-3.142"],
  [12345.6, "12,346"], [0.00012345, "1.23e-4"], [5e9, "5.00e+9"],
]) test(`${value} is written ${expected}`, () => assert.equal(aligned.formatted(value), expected));

for (const [name, data, expected] of [
  ["a step", { axis: "step", steps: [3] }, "step 3"],
  ["tokens of a run", { axis: "tokens", steps: [3], x: [1.25], unit: "M tokens" }, "1.25 M tokens · step 3"],
  ["a place of several runs", { axis: "place", steps: [4500000], x: [1.25], unit: "hours" }, "1.25 hours"],
]) test(`what the x axis says: ${name}`, () => assert.equal(aligned.axisText(data, 0), expected));

for (const [name, place, data, expected] of [
  ["steps are themselves", 7.4, { steps: [1, 9] }, 7],
  ["between two in proportion", 150, { steps: [10, 20], x: [100, 200] }, 15],
  ["before the first", 50, { steps: [10, 20], x: [100, 200] }, 10],
  ["after the last", 500, { steps: [10, 20], x: [100, 200] }, 20],
  ["two steps at one time", 100, { steps: [1, 2, 3], x: [50, 100, 100] }, 2],
  ["no steps", 5, { steps: [], x: [] }, 0],
]) test(`the step at a place: ${name}`, () => assert.equal(aligned.stepAt(place, data), expected));

test("a selection is at least one step, whichever way it was drawn", () => {
  assert.deepEqual(aligned.range(9, 3, { steps: [1, 9] }), { from: 3, to: 9 });
  assert.deepEqual(aligned.range(4, 4.2, { steps: [1, 9] }), { from: 4, to: 5 });
  assert.deepEqual(aligned.range(-3, -2, { steps: [1, 9] }), { from: 0, to: 1 });
});
