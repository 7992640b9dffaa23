// A chart's frame: title, unit, help, buttons, and the legend, which shows the values under the pointer.

import { axisText, formatted, lastIndex, nearest } from "./aligned.js";
import { lineColor, xs } from "./plot.js";

/** The frame of `state.chart`; `on.csv()`, `on.png()` and `on.toggle(line, shown)` are told of clicks. */
export function createCard(state, on) {
  const { chart } = state;
  const element = make("figure", "dapo-chart", { role: "group", tabindex: "0", "data-chart": chart.key });
  element.setAttribute("aria-label", `Chart ${chart.title}. Arrow keys walk along it, Enter opens the step, Shift selects, then Enter zooms.`);
  const where = make("span", "dapo-where");
  const title = make("div", "dapo-title");
  const unit = chart.rightUnit ? `${chart.unit} · → ${chart.rightUnit}` : chart.unit;
  title.append(make("b", "", {}, chart.title), make("small", "", {}, unit), where, ...buttons(chart, element, on));
  const legend = make("div", "dapo-legend");
  const outputs = chart.lines.map((_, index) => entry(state, index, legend, on));
  const holder = make("div", "dapo-plot", { role: "img" });
  element.append(title, legend, holder);

  const card = { element, holder, index: null };
  /** Shows the values at an index of the steps; the last ones without. */
  card.point = (index) => {
    card.index = index ?? null;
    where.textContent = index == null ? "" : axisText(state.data, index);
    state.chart.lines.forEach((_, line) => {
      outputs[line].textContent = formatted(valueAt(state, line, index));
    });
  };
  card.refresh = () => {
    holder.setAttribute("aria-label", state.chart.spoken);
    legend.querySelectorAll("i").forEach((swatch, line) => paint(swatch, state, line));
    card.point(card.index);
  };
  holder.setAttribute("aria-label", chart.spoken);
  return card;
}

/** A line's value at an index of the steps or the nearest that it has; its last value without an index. */
export function valueAt(state, line, index) {
  const { values } = state.layers.lines[line];
  const at = index == null ? lastIndex(values) : nearest(values, index, xs(state.data));
  return at == null ? null : values[at];
}

function buttons(chart, element, on) {
  const help = make("a", "", { href: `help?topic=${encodeURIComponent(chart.help)}`, title: "What this means" }, "?");
  help.setAttribute("aria-label", `What ${chart.title} means`);
  return [
    help,
    button("CSV", `Save the points of ${chart.title} as CSV`, on.csv),
    button("PNG", `Save ${chart.title} as PNG`, on.png),
    button("⤢", `Show ${chart.title} on the whole screen`, () => {
      if (document.fullscreenElement) document.exitFullscreen();
      else element.requestFullscreen?.();
    }),
  ];
}

function button(text, label, clicked) {
  const made = make("button", "", { type: "button", title: label, "aria-label": label }, text);
  made.addEventListener("click", clicked);
  return made;
}

function entry(state, index, legend, on) {
  const line = state.chart.lines[index];
  const made = make("button", "", { type: "button", "aria-pressed": "true", title: `Show or hide ${line.name}` });
  const swatch = make("i", line.dash);
  paint(swatch, state, index);
  const value = make("output");
  made.append(swatch, make("span", "", {}, line.name), value);
  made.addEventListener("click", () => {
    const shown = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", String(shown));
    on.toggle(index, shown);
  });
  legend.append(made);
  return value;
}

function paint(swatch, state, index) {
  swatch.style.borderTopColor = lineColor(state, index);
}

function make(tag, name, attributes = {}, text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text) element.textContent = text; // as text: names come from whoever wrote the job
  return element;
}
