// Files that a viewer saves.

import { lineColor } from "./plot.js";

const PADDING = 12, LINE = 18;

/** Saves the chart as PNG: its title, its legend, and what is drawn. */
export function picture(plot, state) {
  const { chart, theme } = state;
  const drawn = plot.ctx.canvas;
  const ratio = window.devicePixelRatio || 1;
  const head = (PADDING + 2 * LINE) * ratio;
  const canvas = document.createElement("canvas");
  canvas.width = drawn.width + 2 * PADDING * ratio;
  canvas.height = drawn.height + head + PADDING * ratio;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = theme.background;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.scale(ratio, ratio);
  ctx.textBaseline = "top";
  ctx.fillStyle = theme.text;
  ctx.font = "600 14px sans-serif";
  ctx.fillText([chart.title, chart.unit && `(${chart.unit})`].filter(Boolean).join(" "), PADDING, PADDING / 2);
  ctx.font = "12px sans-serif";
  let left = PADDING;
  chart.lines.forEach((line, index) => {
    ctx.fillStyle = lineColor(state, index);
    ctx.fillRect(left, PADDING / 2 + LINE + 6, 14, 3);
    ctx.fillStyle = theme.text;
    ctx.fillText(line.name, left + 18, PADDING / 2 + LINE);
    left += 30 + ctx.measureText(line.name).width;
  });
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.drawImage(drawn, PADDING * ratio, head);
  canvas.toBlob((blob) => download(blob, `${chart.key}.png`), "image/png");
}

/** Hands a file to the browser's downloads. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
