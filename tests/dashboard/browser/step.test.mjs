// Run by test_browser_scripts.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { reach, ticks } from "../../../dashboard/dapo_dashboard/browser/step.js";
import { color, told } from "../../../dashboard/dapo_dashboard/browser/tokens.js";

test("ticks are round numbers within the range", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(-1.06, 1.06, 5), [-1, -0.5, 0, 0.5, 1]);
  assert.deepEqual(ticks(97, 312, 4), [100, 200, 300]);
});

test("a range has a margin, and one value too", () => {
  assert.deepEqual(reach([3, 3]), [2.5, 3.5]);
  assert.deepEqual(reach([null]), [0, 1]);
  const [low, high] = reach([0, null, 10]);
  assert.ok(low < 0 && low > -1 && high > 10 && high < 11);
});

for (const [scale, value, most, wanted] of [
  ["share", 1, 1, "rgba(209, 73, 91, 0)"],
  ["share", 0, 1, "rgba(209, 73, 91, 0.75)"],
  ["ratio", 2, 2, "rgba(209, 73, 91, 0.75)"],
  ["ratio", 0.5, 1, "rgba(47, 143, 204, 0.75)"],
  ["ratio", 1, 1, "rgba(209, 73, 91, 0)"],
  ["sign", 1, 1, "rgba(209, 73, 91, 0.75)"],
  ["sign", -1, 1, "rgba(47, 143, 204, 0.75)"],
  ["size", 1, 4, "rgba(209, 73, 91, 0.188)"],
  ["flag", 1, 1, ""],
  ["flag", 0, 1, "rgba(138, 146, 155, .5)"],
  ["share", null, 1, "rgba(209, 73, 91, 1)"],
]) test(`${scale} of ${value}`, () => assert.equal(color(scale, value, most), wanted));

test("what is known of a token, in words", () => {
  const measures = [{ name: "Entropy", values: [0.5, null] }, { name: "Clipped", values: [1, 0] }];
  assert.equal(told({ measures }, 0), "token 1: Entropy 0.5 · Clipped 1");
  assert.equal(told({ measures }, 1), "token 2: Entropy not finite · Clipped 0");
});
