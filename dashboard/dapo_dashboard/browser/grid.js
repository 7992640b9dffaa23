// All charts of a page. A chart is made once and then given new values; the pointer and the zoom are those of all charts.

import { layers, range, structure } from "./aligned.js";
import { createCard } from "./card.js";
import { HEIGHT, createPlot, updatePlot } from "./plot.js";
import { download, picture } from "./saving.js";
import { STYLE } from "./style.js";
import { themeOf } from "./theme.js";
import { listenToClicks, listenToKeys, listenToTouch } from "./walking.js";

const grids = new WeakMap();
const decoder = new TextDecoder();

/** Draws what the server sent into the component's element; Streamlit calls it again with everything it sends. */
export function draw(component) {
  const { parentElement } = component;
  if (!grids.has(parentElement)) grids.set(parentElement, createGrid(parentElement));
  grids.get(parentElement).show(component);
  // Streamlit also calls this for a call that a newer one overtook, while the charts are still there.
  return () => { if (!parentElement.isConnected) grids.get(parentElement)?.close(); };
}

function createGrid(parent) {
  const style = document.createElement("style");
  style.textContent = STYLE;
  const root = document.createElement("div");
  root.className = "dapo-grid";
  const voice = document.createElement("p");
  voice.className = "dapo-voice";
  voice.setAttribute("aria-live", "polite");
  parent.append(style, root, voice);
  const grid = { cards: new Map(), sent: null, theme: null, send: () => {}, active: null, data: null };
  const name = `dapo-${Math.random()}`;
  const fit = ({ card, plot }) => {
    const width = card.holder.clientWidth;
    const height = document.fullscreenElement === card.element ? window.innerHeight - 140 : HEIGHT;
    if (width > 0 && (width !== plot.width || height !== plot.height)) plot.setSize({ width, height });
  };
  const fitAll = () => grid.cards.forEach(fit);
  const resized = new ResizeObserver(fitAll);
  resized.observe(root);
  root.addEventListener("fullscreenchange", fitAll);
  const zoom = (one, other) => {
    grid.cards.forEach(({ plot }) => plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false));
    grid.send("zoom", range(one, other, grid.data));
  };
  const reset = () => { if (grid.data.zoomed) grid.send("zoom", { reset: true }); };

  const frame = (chart, theme) => {
    const state = { chart, data: grid.data, theme, layers: layers(chart, grid.data) };
    const each = { state, structure: structure(chart, grid.data) };
    each.card = createCard(state, {
      csv: () => grid.send("csv", chart.key),
      png: () => picture(each.plot, each.state),
      toggle: (line, shown) => each.state.layers.lines[line].series.forEach((number) => each.plot.setSeries(number, { show: shown })),
    });
    root.append(each.card.element);
    grid.cards.set(chart.key, each);
    return each;
  };

  // Made once all frames stand: measuring each after adding it would lay out the page again for every chart.
  const fill = ({ card, state }, width) => {
    const { key } = state.chart;
    const on = {
      begin: () => { grid.active = key; },
      begun: () => grid.active === key,
      cursor: (index) => card.point(index),
      zoom, reset,
      open: (index) => { if (grid.data.opens && index != null) grid.send("point", grid.data.steps[index]); },
      waits: () => grid.data.zoomed,
    };
    const plot = createPlot(card.holder, state, width, name, on);
    listenToTouch(plot, on);
    listenToClicks(plot, on);
    listenToKeys(card.element, plot, state, on, (text) => { voice.textContent = text; });
    card.point(null);
    return plot;
  };

  const update = (each, chart, theme) => {
    const restyled = theme.key !== each.state.theme.key;
    Object.assign(each.state, { chart, data: grid.data, theme });
    updatePlot(each.plot, each.state);
    if (restyled) each.plot.redraw(false, true);
    each.card.refresh();
  };

  const remove = (key) => {
    const each = grid.cards.get(key);
    each.plot?.destroy();
    each.card.element.remove();
    grid.cards.delete(key);
  };

  grid.show = (component) => {
    grid.send = (what, value) => component.setTriggerValue(what, value);
    const text = component.data instanceof Uint8Array ? decoder.decode(component.data) : JSON.stringify(component.data);
    const theme = themeOf(root);
    if (text === grid.sent && theme.key === grid.theme?.key) return;
    grid.data = text === grid.sent ? grid.data : JSON.parse(text);
    Object.assign(grid, { sent: text, theme });
    root.style.setProperty("--dapo-columns", grid.data.columns);
    const wanted = new Map(grid.data.charts.map((chart) => [chart.key, chart]));
    for (const [key, each] of grid.cards) {
      if (!wanted.has(key) || structure(wanted.get(key), grid.data) !== each.structure) remove(key);
    }
    const added = [];
    for (const [key, chart] of wanted) {
      if (grid.cards.has(key)) update(grid.cards.get(key), chart, theme);
      else added.push(frame(chart, theme));
    }
    // The order is the server's; what stands in its place stays where it is.
    [...wanted.keys()].forEach((key, index) => {
      const { element } = grid.cards.get(key).card;
      if (root.children[index] !== element) root.insertBefore(element, root.children[index]);
    });
    const width = added[0]?.card.holder.clientWidth || 400;
    added.forEach((each) => { each.plot = fill(each, width); });
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
    root.dataset.step = String(grid.data.steps.at(-1) ?? "");
  };
  grid.close = () => {
    resized.disconnect();
    [...grid.cards.keys()].forEach(remove);
    grids.delete(parent);
  };
  return grid;
}

/** Saves a file that the server made; it comes with the answer to a click, once. */
export function save(component) {
  const { data } = component;
  if (data?.text !== undefined) download(new Blob([data.text], { type: "text/csv" }), data.name);
}
