// Curves as the server sends them (charts/grid_data.py) become columns over the steps of the page, as uPlot draws them.
// No DOM: tests/dashboard/browser runs this in Node.

/** A value for each step: undefined where the curve has no step, null where it has none that can be drawn. */
export function column(length, at, values) {
  if (!at) return values;
  const whole = Array.from({ length });
  at.forEach((position, index) => { whole[position] = values[index]; });
  return whole;
}

/** The sum of a column and the one below it, at the steps that either has. */
export function stacked(below, values) {
  if (!below) return values;
  return values.map((value, index) => {
    const under = below[index];
    return value == null && under == null ? value : (value ?? 0) + (under ?? 0);
  });
}

/**
 * What uPlot draws for a chart: a column for each of its series, the bands between them, the series of each line, and
 * each line's own values, which the legend shows.
 */
export function layers(chart, data) {
  const { length } = data.steps;
  const series = [], columns = [], bands = [], lines = [];
  const below = { left: null, right: null };
  const add = (line, kind, values) => {
    columns.push(values);
    series.push({ line, kind });
    return columns.length; // uPlot's series 0 is x
  };
  chart.lines.forEach((line, index) => {
    const at = line.at < 0 ? null : data.at[line.at];
    const values = column(length, at, line.y);
    const own = [];
    if (line.stack) {
      const side = line.right ? "right" : "left";
      const sum = stacked(below[side]?.values, values);
      const number = add(index, "stack", sum);
      if (below[side]) bands.push({ series: [number, below[side].number], line: index });
      below[side] = { values: sum, number };
      own.push(number);
    } else {
      if (line.high) {
        const high = add(index, "edge", column(length, at, line.high));
        const low = add(index, "edge", column(length, at, line.low));
        bands.push({ series: [high, low], line: index });
        own.push(high, low);
      }
      if (line.smooth) own.push(add(index, "faint", values));
      if (line.old) own.push(add(index, "old", column(length, line.oldAt < 0 ? null : data.at[line.oldAt], line.old)));
      own.push(add(index, "curve", line.smooth ? column(length, at, line.smooth) : values));
    }
    lines.push({ series: own, values });
  });
  return { series, columns, bands, lines };
}

/** What a chart is made of. New values do not change it, so a chart is recreated only if it shows something else. */
export function structure(chart, data) {
  const { key, title, unit, rightUnit, zero, full, log, lines } = chart;
  const parts = lines.map(({ name, color, dash, right, stack, dots, high, smooth, old }) =>
    [name, color, dash, right, stack, dots, Boolean(high), Boolean(smooth), Boolean(old)]);
  return JSON.stringify([data.axis, key, title, unit, rightUnit, zero, full, log, parts]);
}

/** The values' index nearest to `index` that the curve has, in places `xs`; null if it has none. */
export function nearest(values, index, xs) {
  if (values[index] !== undefined) return index;
  let before = index, after = index;
  while (before >= 0 && values[before] === undefined) before--;
  while (after < values.length && values[after] === undefined) after++;
  if (before < 0) return after < values.length ? after : null;
  if (after >= values.length) return before;
  return xs[index] - xs[before] <= xs[after] - xs[index] ? before : after;
}

/** The index of the last finite value, null without one. */
export function lastIndex(values) {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] != null) return index;
  return null;
}

/** Four significant digits, or all digits of the whole part. */
export function formatted(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
  const digits = Math.max(0, 3 - Math.floor(Math.log10(size || 1)));
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** What the x axis says at an index: `step 20`, a time, tokens; of several runs a place, which has no one step. */
export function axisText(data, index) {
  const step = `step ${data.steps[index]}`;
  if (data.axis === "time") return `${new Date(data.x[index] * 1000).toLocaleString()} · ${step}`;
  if (data.axis === "place") return `${formatted(data.x[index])} ${data.unit}`;
  return data.axis === "tokens" ? `${formatted(data.x[index])} ${data.unit} · ${step}` : step;
}

/** The step at a place of the x axis; between two steps, in proportion. */
export function stepAt(place, data) {
  const { steps, x } = data;
  if (!x) return Math.round(place);
  if (!x.length) return 0;
  const after = x.findIndex((each) => each >= place);
  if (after === 0) return steps[0];
  if (after < 0) return steps[steps.length - 1];
  const width = x[after] - x[after - 1];
  const share = width > 0 ? (place - x[after - 1]) / width : 1;
  return Math.round(steps[after - 1] + share * (steps[after] - steps[after - 1]));
}

/** First and last of the steps between two places, at least one apart. */
export function range(one, other, data) {
  const [from, to] = [stepAt(Math.min(one, other), data), stepAt(Math.max(one, other), data)];
  const first = Math.max(0, from);
  return { from: first, to: Math.max(to, first + 1) };
}
