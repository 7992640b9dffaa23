// Run by test_browser_scripts.py.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { follow } from "../../../dashboard/dapo_dashboard/browser/live.js";

globalThis.document = { baseURI: "https://dapo.example/team/run?run=a" };

/** A page that follows, its connections, and how often it asked to be looked at. */
function started(path = "live-updates/one") {
  const sockets = [];
  globalThis.WebSocket = class {
    constructor(address) { this.address = address.href; this.open = true; sockets.push(this); }
    close() { this.open = false; this.onclose?.(); }
  };
  const parentElement = { isConnected: true };
  const page = { parentElement, sockets, looks: 0 };
  page.draw = (to) => follow({
    parentElement, data: { path: to, seconds: 2 }, setTriggerValue: (name) => { page.looks += name === "look"; },
  });
  page.leave = page.draw(path);
  return page;
}

test("a page waits at its own server, and is looked at when it is out of date", () => {
  const page = started();
  assert.equal(page.sockets[0].address, "wss://dapo.example/team/live-updates/one");
  page.sockets[0].onmessage();
  assert.equal(page.looks, 1);
});

test("drawn again, a page keeps its connection; another page gets another", () => {
  const page = started();
  page.draw("live-updates/one");
  assert.equal(page.sockets.length, 1);
  page.draw("live-updates/two");
  assert.deepEqual(page.sockets.map((each) => each.open), [false, true]);
});

test("without a connection, a page is looked at as often as the server would", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const page = started();
  for (let times = 1; times <= 3; times++) {
    page.sockets.at(-1).onclose();
    mock.timers.tick(2000);
    assert.deepEqual([page.looks, page.sockets.length], [times, times + 1]);
  }
  mock.timers.reset();
});

test("a page that is gone waits no longer", () => {
  const page = started();
  page.leave();
  assert.ok(page.sockets[0].open, "a call that a newer one overtook, while the page is still there");
  page.parentElement.isConnected = false;
  page.leave();
  assert.ok(!page.sockets[0].open && page.looks === 0);
});
