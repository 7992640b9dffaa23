// Run by test_browser_scripts.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { counted, duration, said } from "../../../dashboard/dapo_dashboard/browser/clock.js";

for (const [seconds, text] of [
  [-5, "0s"], [0.7, "0s"], [42, "42s"], [185, "3m05s"], [720, "12m"], [7500, "2h05m"], [356400, "4d03h"],
]) test(`${seconds} s are ${text}`, () => assert.equal(duration(seconds), text));

test("an element counts from when it came, and anew when the server sends another duration", () => {
  const element = { dataset: { dapoSeconds: "10" } };
  assert.equal(counted(element, 5000), 10);
  assert.equal(counted(element, 8000), 13);
  element.dataset.dapoSeconds = "2";
  assert.equal(counted(element, 9000), 2);
});

for (const [dapoAfter, text] of [["ago", "10s ago"], [" ago", "10s ago"], ["", "10s"], [undefined, "10s"]])
  test(`"${dapoAfter}" after a duration`, () => assert.equal(said({ dataset: { dapoSeconds: "10", dapoAfter } }, 0), text));
