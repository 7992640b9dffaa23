// Charts without a mouse: arrow keys and fingers.

import { axisText, formatted, nearest } from "./aligned.js";
import { xs } from "./plot.js";

const SAID_AFTER = 250; // milliseconds: whoever holds a key hears the last value alone
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

/** Arrow keys walk from step to step, with Shift they select, Enter zooms into the selection or opens the step, Escape
 * leaves it. */
export function listenToKeys(element, plot, state, on, say) {
  let anchor = null, timer = 0;
  element.addEventListener("keydown", (event) => {
    if (event.target !== element) return;
    const last = state.data.steps.length - 1;
    if (event.key in KEYS && last >= 0) {
      const now = plot.cursor.idx ?? last;
      const next = Math.min(last, Math.max(0, now + KEYS[event.key]));
      anchor = event.shiftKey ? anchor ?? now : null;
      const left = plot.valToPos(xs(state.data)[next], "x");
      plot.setCursor({ left, top: plot.over.clientHeight / 2 }, true, true);
      select(plot, anchor === null ? null : plot.valToPos(xs(state.data)[anchor], "x"), left);
      clearTimeout(timer);
      timer = setTimeout(() => say(spokenAt(state, next)), SAID_AFTER);
    } else if (event.key === "Enter" && anchor !== null && plot.cursor.idx != null) {
      on.zoom(xs(state.data)[anchor], xs(state.data)[plot.cursor.idx]);
      anchor = null;
    } else if (event.key === "Enter" && plot.cursor.idx != null) {
      on.open(plot.cursor.idx);
    } else if (event.key === "Escape") {
      if (anchor === null) on.reset();
      anchor = null;
      select(plot, null, 0);
      plot.setCursor({ left: -10, top: -10 }, true, true);
    } else return;
    event.preventDefault();
  });
}

/** All values at an index of the steps, in a sentence. */
export function spokenAt(state, index) {
  const values = state.layers.lines.map(({ values: column }, line) => {
    const at = nearest(column, index, xs(state.data));
    return `${state.chart.lines[line].name} ${at === null || column[at] == null ? "no value" : formatted(column[at])}`;
  });
  return `${axisText(state.data, index)}: ${values.join(", ")}`;
}

const MOVED = 5; // pixels: what moves farther is a drag
const DOUBLE_CLICK = 300; // milliseconds

/** A click opens the step; in a zoom it waits whether it is the first of a double-click, which shows all steps again. */
export function listenToClicks(plot, on) {
  let from = 0, timer = 0;
  plot.over.addEventListener("mousedown", (event) => { from = event.clientX; });
  plot.over.addEventListener("dblclick", () => clearTimeout(timer));
  plot.over.addEventListener("click", (event) => {
    // A finger that taps wants to see the values.
    if (Math.abs(event.clientX - from) > MOVED || event.pointerType === "touch") return;
    const index = plot.cursor.idx;
    clearTimeout(timer);
    if (on.waits()) timer = setTimeout(() => on.open(index), DOUBLE_CLICK);
    else on.open(index);
  });
}

/** One finger points, two select what lies between them; a page still scrolls up and down. */
export function listenToTouch(plot, on) {
  const fingers = new Map();
  const across = (event) => event.clientX - plot.over.getBoundingClientRect().left;
  const ends = () => [...fingers.values()].slice(0, 2);
  plot.over.style.touchAction = "pan-y";
  const down = (event) => {
    if (event.pointerType === "mouse") return;
    fingers.set(event.pointerId, across(event));
    move(event);
  };
  const move = (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, across(event));
    const [one, other] = ends();
    if (other === undefined) plot.setCursor({ left: one, top: plot.over.clientHeight / 2 }, true, true);
    else select(plot, one, other);
  };
  const up = (event) => {
    if (!fingers.has(event.pointerId)) return;
    const [one, other] = ends();
    fingers.clear();
    if (other !== undefined) on.zoom(plot.posToVal(one, "x"), plot.posToVal(other, "x"));
  };
  plot.over.addEventListener("pointerdown", down);
  plot.over.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) plot.over.addEventListener(name, up);
}

function select(plot, one, other) {
  const width = one === null ? 0 : Math.abs(other - one);
  plot.setSelect({ left: one === null ? 0 : Math.min(one, other), top: 0, width, height: plot.over.clientHeight }, false);
}
