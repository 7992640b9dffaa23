// Durations that go on while nothing happens: the browser counts, so the server sends nothing.

const firstSeen = new WeakMap();

/** As dapo_core.run.formatting.duration: `42s`, `3m05s`, `12m`, `2h05m`, `4d03h`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

/**
 * The duration in seconds of an element that said `seconds` when it came: its own time counts, since the clocks of
 * browser and server differ.
 */
export function counted(element, now) {
  const sent = element.dataset.dapoSeconds;
  const seen = firstSeen.get(element);
  if (seen?.sent !== sent) firstSeen.set(element, { sent, now });
  return Number(sent) + (now - firstSeen.get(element).now) / 1000;
}

/** What the element says now. A space before what comes after the duration would not survive the page's sanitizer. */
export function said(element, now) {
  const after = element.dataset.dapoAfter?.trim();
  return duration(counted(element, now)) + (after ? ` ${after}` : "");
}

/** Counts on every duration of the page, each second, for as long as the page is open; the page's HTML calls it. */
export function tick() {
  setInterval(() => {
    for (const element of document.querySelectorAll("[data-dapo-seconds]")) {
      const text = said(element, performance.now());
      if (element.textContent !== text) element.textContent = text;
    }
  }, 1000);
}
