// One pointer for all charts of a page: the step under it shows on every chart, and dragging over a range of one chart
// asks the page to show that range on all. Streamlit's chart element draws each chart by itself and offers no groups, so
// pointer events are passed on to the others as what they are: DOM events. Nothing of ECharts' inside is touched.
const CHART = '[class*="st-key-chart-"] .stEChartsChart';
const DRAG_PIXELS = 6;
const LEGEND_PIXELS = 30;

function create() {
  const link = { charts: {}, domain: null, snap: false, send: () => {}, drag: null, frame: 0, last: null };

  const keyOf = (element) => {
    const holder = element.closest('[class*="st-key-chart-"]');
    const name = holder && [...holder.classList].find((c) => c.startsWith("st-key-chart-"));
    return name ? name.slice("st-key-".length) : null;
  };
  const all = () => [...document.querySelectorAll(CHART)].filter((element) => element.clientWidth > 0);
  const plot = (element) => {
    const box = element.getBoundingClientRect();
    const [left, right] = link.charts[keyOf(element)] ?? [50, 14];
    return { box, start: box.left + left, width: Math.max(1, box.width - left - right) };
  };
  const shareAt = (element, clientX) => {
    const { start, width } = plot(element);
    return (clientX - start) / width;
  };
  const inPlot = (share) => share >= 0 && share <= 1;
  // Charts have plots of different widths: on a whole step, each of them finds the same point nearest.
  const onStep = (share) => {
    if (!link.snap || !link.domain) return share;
    const [low, high] = link.domain;
    return (Math.round(low + share * (high - low)) - low) / (high - low);
  };
  const pass = (type, element, share, clientY) => {
    const canvas = element.querySelector("canvas");
    if (!canvas) return;
    const { box, start, width } = plot(element);
    canvas.dispatchEvent(new MouseEvent(type, {
      bubbles: true, view: window, relatedTarget: null,
      clientX: start + share * width, clientY: clientY ?? box.top + box.height * 0.5,
    }));
  };
  const show = (under, share, clientY) => {
    const shared = onStep(share);
    for (const element of all()) pass("mousemove", element, shared, element === under ? clientY : undefined);
  };
  const overPlot = (element, event) =>
    // Above the plot is the legend, whose entries are pointed at and clicked.
    inPlot(shareAt(element, event.clientX)) && event.clientY > plot(element).box.top + LEGEND_PIXELS;
  const hide = () => all().forEach((element) => pass("mouseout", element, 0));

  const shade = () => {
    const [a, b] = [link.drag.from, link.drag.to].sort((x, y) => x - y);
    all().forEach((element, at) => {
      let cover = link.drag.covers[at];
      if (!cover) {
        cover = document.createElement("div");
        cover.className = "dapo-zoom-cover";
        cover.style.cssText = "position:fixed;z-index:999;pointer-events:none;background:rgba(86,180,233,.22);" +
          "border-inline:1px solid rgba(86,180,233,.9)";
        document.body.append(cover);
        link.drag.covers[at] = cover;
      }
      const { box, start, width } = plot(element);
      Object.assign(cover.style, {
        left: `${start + a * width}px`, width: `${(b - a) * width}px`, top: `${box.top + LEGEND_PIXELS}px`,
        height: `${box.height - 54}px`,
      });
    });
  };
  const endDrag = () => {
    link.drag?.covers.forEach((cover) => cover.remove());
    link.drag = null;
  };

  const over = (event) => (event.isTrusted ? event.target.closest?.(CHART) ?? null : null);
  const onMove = (event) => {
    if (!event.isTrusted) return;
    if (link.drag) {
      link.drag.to = Math.min(1, Math.max(0, shareAt(link.drag.element, event.clientX)));
      link.drag.moved ||= Math.abs(event.clientX - link.drag.x) > DRAG_PIXELS;
      if (link.drag.moved) shade();
      return;
    }
    const chart = over(event);
    const element = chart && overPlot(chart, event) ? chart : null;
    if (!element && !link.last) return;
    link.last = element;
    // The chart under the pointer is moved like the others: to the step, not to the pixel.
    if (element) event.stopPropagation();
    cancelAnimationFrame(link.frame);
    const { clientX, clientY } = event;
    link.frame = requestAnimationFrame(() => (element ? show(element, shareAt(element, clientX), clientY) : hide()));
  };
  const onDown = (event) => {
    const element = over(event);
    if (!element || event.button !== 0) return;
    if (!overPlot(element, event)) return;
    const share = shareAt(element, event.clientX);
    link.drag = { element, x: event.clientX, from: share, to: share, moved: false, covers: [] };
    event.preventDefault();
  };
  const onUp = () => {
    if (!link.drag) return;
    const { from, to, moved } = link.drag;
    endDrag();
    if (!moved || !link.domain) return;
    const [low, high] = link.domain;
    const [a, b] = [from, to].sort((x, y) => x - y).map((share) => low + share * (high - low));
    link.send("zoom", { from: a, to: b });
  };
  const onDouble = (event) => {
    const element = over(event);
    if (element && overPlot(element, event)) link.send("zoom", { reset: true });
  };
  const onKey = (event) => { if (event.key === "Escape") endDrag(); };

  document.addEventListener("mousemove", onMove, true);
  document.addEventListener("mousedown", onDown, true);
  document.addEventListener("mouseup", onUp, true);
  document.addEventListener("dblclick", onDouble, true);
  document.addEventListener("keydown", onKey, true);
  return link;
}

export default function (component) {
  const link = (window.dapoChartLink ??= create());
  link.charts = component.data?.charts ?? {};
  link.domain = component.data?.domain ?? null;
  link.snap = component.data?.snap ?? false;
  link.send = (name, value) => component.setTriggerValue(name, value);
}
