// The page's colors, out of the CSS variables that Streamlit gives to a component.

const USUAL = ["#0B6FB3", "#D55E00", "#32600D", "#BB377C", "#899B73", "#4621AC", "#B56AF0", "#68344C"];

/** Colors of text, grid and curves around `element`; `key` is the same for the same colors. */
export function themeOf(element) {
  const style = getComputedStyle(element);
  const read = (name, usual) => style.getPropertyValue(`--st-${name}`).trim() || usual;
  const listed = read("chart-categorical-colors", "").split(/,(?![^(]*\))/).map((color) => color.trim()).filter(Boolean);
  const theme = {
    text: read("text-color", "#17212B"),
    grid: read("border-color", "#DDE3E9"),
    background: read("background-color", "#FFFFFF"),
    colors: listed.length ? listed : USUAL,
  };
  return { ...theme, key: JSON.stringify(theme) };
}

/** The color with an opacity in [0, 1]. */
export function faded(color, opacity) {
  if (/^#[0-9a-f]{6}$/i.test(color)) return color + Math.round(opacity * 255).toString(16).padStart(2, "0");
  return `color-mix(in srgb, ${color} ${Math.round(opacity * 100)}%, transparent)`;
}
