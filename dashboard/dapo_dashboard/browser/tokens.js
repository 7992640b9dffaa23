// A response, token by token: each colored by what the viewer wants to see of it.

const STYLE = `
.dapo-tokens { white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem/1.7 monospace; max-height: 32rem; overflow-y: auto;
  padding: .6rem; border: 1px solid var(--st-border-color, #ddd); border-radius: .4rem; }
.dapo-tokens span { border-radius: .2rem; }
.dapo-tokens span.masked { opacity: .5; text-decoration: line-through; }
.dapo-tokens span:hover { outline: 1px solid currentColor; }
.dapo-measures { display: flex; flex-wrap: wrap; gap: .3rem; margin-bottom: .4rem; }
.dapo-measures button { font: inherit; font-size: .85rem; padding: .1rem .6rem; border-radius: .3rem; cursor: pointer;
  color: inherit; background: none; border: 1px solid var(--st-border-color, #bbb); }
.dapo-measures button[aria-pressed="true"] { border-color: currentColor; font-weight: 600; }
.dapo-token { min-height: 1.4rem; font-size: .85rem; margin: .3rem 0; }`;
const drawn = new WeakMap();

/** Draws what the server sent: its tokens, and buttons for what is known of them. */
export function tokens(component) {
  const { parentElement, data } = component;
  const sent = JSON.stringify(data);
  if (drawn.get(parentElement) === sent) return;
  drawn.set(parentElement, sent);
  const style = document.createElement("style");
  style.textContent = STYLE;
  const text = make("div", "dapo-tokens");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", `The response, ${data.pieces.length} tokens`);
  const about = make("p", "dapo-token");
  about.setAttribute("aria-live", "polite");
  const masked = new Set(data.masked);
  const spans = data.pieces.map((piece, place) => {
    const span = make("span", masked.has(place) ? "masked" : "", piece); // as text: a policy may write anything
    span.dataset.place = place;
    return span;
  });
  text.append(...spans);
  text.addEventListener("pointerover", (event) => {
    const place = event.target.dataset?.place;
    if (place !== undefined) about.textContent = told(data, Number(place));
  });
  const measures = make("div", "dapo-measures");
  const buttons = data.measures.map((measure) => {
    const button = make("button", "", measure.name);
    button.type = "button";
    button.addEventListener("click", () => show(measure));
    return button;
  });
  measures.append(...buttons);
  const show = (measure) => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(data.measures[index] === measure)));
    const most = Math.max(...measure.values.slice(0, 100_000).map((value) => value ?? 0)) || 1;
    spans.forEach((span, place) => { span.style.background = color(measure.scale, measure.values[place], most); });
  };
  parentElement.replaceChildren(style, measures, text, about);
  if (data.measures.length) show(data.measures[0]);
  if (data.left > 0) about.textContent = `${data.left} more tokens are not shown.`;
}

/** What is known of the token at `place`, in words. */
export function told(data, place) {
  const values = data.measures.map((measure) => `${measure.name} ${measure.values[place] ?? "not finite"}`);
  return `token ${place + 1}: ${values.join(" · ")}`;
}

/** The color of a value: red for unlikely, above and left out, blue for below, none for what is usual. */
export function color(scale, value, most) {
  if (value == null) return "rgba(209, 73, 91, 1)";
  if (scale === "share") return red(1 - value);
  if (scale === "flag") return value ? "" : "rgba(138, 146, 155, .5)";
  if (scale === "size") return red(value / most);
  const away = scale === "ratio" ? Math.log2(Math.max(value, 1e-6)) : value;
  return away >= 0 ? red(away) : `rgba(47, 143, 204, ${strength(-away)})`;
}

function red(size) {
  return `rgba(209, 73, 91, ${strength(size)})`;
}

function strength(size) {
  return Number((0.75 * Math.min(1, Math.max(0, size))).toFixed(3));
}

function make(tag, name, text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.textContent = text;
  return element;
}
