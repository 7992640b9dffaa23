// The charts' style; uPlot's own comes first.

import { UPLOT_STYLE } from "./uPlot.js";

export const STYLE = `${UPLOT_STYLE}
.dapo-grid { display: grid; gap: .7rem; grid-template-columns: repeat(var(--dapo-columns, 3), minmax(0, 1fr)); }
.dapo-chart { display: flex; flex-direction: column; margin: 0; padding: .45rem .55rem .2rem; min-width: 0;
  border: 1px solid var(--st-border-color, #ddd); border-radius: .4rem; background: var(--st-background-color); }
.dapo-chart:focus-visible { outline: 2px solid var(--st-primary-color, currentColor); outline-offset: 1px; }
.dapo-chart .dapo-title { display: flex; align-items: baseline; gap: .4rem; font-size: .92rem; padding: 0; }
.dapo-chart .dapo-title small { opacity: .72; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.dapo-where { margin-left: auto; font-size: .78rem; opacity: .8; font-variant-numeric: tabular-nums; white-space: nowrap; }
.dapo-chart button, .dapo-chart .dapo-title a { font: inherit; font-size: .72rem; line-height: 1.05rem; color: inherit;
  background: none; border: 1px solid transparent; border-radius: .3rem; padding: 0 .2rem; cursor: pointer; }
.dapo-chart .dapo-title button, .dapo-chart .dapo-title a { opacity: .62; text-decoration: none; flex: none;
  width: auto; height: auto; margin: 0; border-color: transparent; }
.dapo-chart .dapo-title button:hover, .dapo-chart .dapo-title a:hover { opacity: 1; border-color: currentColor; }
.dapo-chart :is(button, a):focus-visible { opacity: 1; outline: 2px solid currentColor; outline-offset: 1px; }
.dapo-legend { display: flex; flex-wrap: wrap; gap: 0 .5rem; max-height: 3.75rem; overflow-y: auto; margin-bottom: .1rem; }
.dapo-legend button { display: inline-flex; align-items: center; gap: .3rem; max-width: 100%; }
.dapo-legend button[aria-pressed="false"] { opacity: .4; text-decoration: line-through; }
.dapo-legend span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.dapo-legend output { font-variant-numeric: tabular-nums; font-weight: 600; }
.dapo-legend i { width: 1.1rem; border-top: 3px solid; flex: none; }
.dapo-legend i.dashed { border-top-style: dashed; }
.dapo-legend i.dotted { border-top-style: dotted; }
.dapo-plot { min-height: 190px; margin-top: auto; }
.dapo-plot .uplot { font-family: inherit; }
.dapo-plot .u-select { background: rgba(86, 180, 233, .22); border-inline: 1px solid rgba(86, 180, 233, .9); }
.dapo-chart:fullscreen { justify-content: center; padding: 1rem; }
.dapo-voice { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 70rem) { .dapo-grid { grid-template-columns: repeat(min(2, var(--dapo-columns, 3)), minmax(0, 1fr)); } }
@media (max-width: 44rem) { .dapo-grid { grid-template-columns: minmax(0, 1fr); } }
@media (pointer: coarse) { .dapo-chart button, .dapo-chart .dapo-title a { min-height: 1.6rem; padding: .1rem .4rem; } }
`;
