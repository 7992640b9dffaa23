// What happened to a run, drawn over a chart: a line and a symbol at each mark, red where values were not finite.

const LINES = { restart: [5, 4], suspend: [1, 3], alert: [], checkpoint: [] };
const FAINT = { checkpoint: 0.25 };
const AT_BOTTOM = new Set(["checkpoint", "validation"]);

/** Draws the marks of `data` and the broken ranges of `chart`; for uPlot's hook `draw`. */
export function drawMarks(plot, chart, data) {
  const { ctx } = plot;
  const { left, top, width, height } = plot.bbox;
  const ratio = window.devicePixelRatio || 1;
  const across = (place) => Math.round(plot.valToPos(place, "x", true));
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  for (const [from, to] of chart.broken) {
    const start = across(from);
    ctx.fillStyle = data.colors.broken;
    ctx.fillRect(start, top, Math.max(ratio, across(to) - start), height);
    ctx.fillStyle = data.colors.alert;
    ctx.font = `${10 * ratio}px sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText("not finite", start + 2 * ratio, top + 12 * ratio);
  }
  for (const [kind, place] of data.marks) {
    const at = across(place);
    ctx.strokeStyle = ctx.fillStyle = data.colors[kind];
    if (LINES[kind]) {
      ctx.globalAlpha = FAINT[kind] ?? 1;
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash(LINES[kind].map((length) => length * ratio));
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
    symbol(ctx, kind, at, AT_BOTTOM.has(kind) ? top + height - 4 * ratio : top + 4 * ratio, 4 * ratio);
  }
  ctx.restore();
}

// Color is not the only difference.
function symbol(ctx, kind, x, y, size) {
  ctx.beginPath();
  if (kind === "restart") polygon(ctx, [[x - size, y - size], [x + size, y - size], [x, y + size]]);
  else if (kind === "checkpoint") polygon(ctx, [[x - size, y + size], [x + size, y + size], [x, y - size]]);
  else if (kind === "alert") polygon(ctx, [[x, y - size], [x + size, y], [x, y + size], [x - size, y]]);
  else if (kind === "validation") polygon(ctx, [[x - size / 4, y - size], [x + size / 4, y - size],
    [x + size / 4, y + size], [x - size / 4, y + size]]);
  else polygon(ctx, [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]]);
  ctx.fill();
}

function polygon(ctx, points) {
  points.forEach(([x, y], index) => (index ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.closePath();
}
