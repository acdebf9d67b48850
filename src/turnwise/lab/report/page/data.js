// Load data from scripts next to the page, because a page on disk may not read files. Each calls turnwise.take.
"use strict";

const turnwise = {};

(() => {
  const KEPT = 24; // tables in memory
  const files = document.documentElement.dataset.files;
  const received = new Map();
  const tables = new Map();

  turnwise.take = (name, value) => received.set(name, value);

  /** Load the value that a named script passes to `take`. */
  turnwise.load = (name) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `${files}/${name}.js${turnwise.live ? `?${Date.now()}` : ""}`;
      script.onload = () => {
        const value = received.get(name);
        received.delete(name);
        script.remove();
        resolve(value);
      };
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      document.head.append(script);
    });

  /** Load the rows of a Parquet table as objects. Recently used tables stay in memory. */
  turnwise.table = (name) => {
    const found = tables.get(name) ?? turnwise.load(name).then(rowsOf);
    tables.delete(name);
    tables.set(name, found);
    found.catch(() => tables.delete(name));
    if (tables.size > KEPT) tables.delete(tables.keys().next().value);
    return found;
  };

  /** Drop cached tables, which may have changed. */
  turnwise.renew = () => tables.clear();

  async function rowsOf(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return hyparquet.parquetReadObjects({ file: bytes.buffer });
  }

  turnwise.stepName = (run, step) => `${run}/step-${String(step).padStart(6, "0")}`;

  /** Build an element: make("p", {class: "quiet"}, "text", child). Text is never read as HTML. */
  turnwise.make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (value !== null && value !== false) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  turnwise.number = (value, digits = 3) =>
    value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits).replace("-", "−");
  turnwise.signed = (value, digits = 2) => (value > 0 ? "+" : "") + turnwise.number(value, digits);
  /** A reward or return: with two digits where one would hide something. */
  turnwise.reward = (value) => turnwise.number(value, Math.abs(10 * value - Math.round(10 * value)) < 1e-4 ? 1 : 2);
  turnwise.percent = (value, digits = 0) =>
    value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`;
})();
