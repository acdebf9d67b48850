// Read colours from the style sheet, so that charts follow light and dark mode.
"use strict";

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  turnwise.colour = css;
  turnwise.runColour = (index) => css(`--run${index % 8}`);
  turnwise.outcomeColour = (index) => css(`--outcome${index}`);
  turnwise.stageColour = (index) => css(`--run${(index + 1) % 8}`);
  turnwise.still = () => still.matches;
  turnwise.onTheme = (callback) => dark.addEventListener("change", callback);

  /** Mix a share of a colour over the background, weak enough that text stays readable. */
  turnwise.wash = (name, share, most = 42) =>
    `color-mix(in srgb, var(${name}) ${(most * Math.min(1, Math.max(0, share))).toFixed(1)}%, transparent)`;
})();
