// Show tables: all metrics of a run, settings of the runs, and causes of failure.
"use strict";

(() => {
  const tables = {};
  function shown(value) {
    if (typeof value !== "number") return "–";
    if (Number.isInteger(value)) return String(value);
    return Math.abs(value) < 0.001 ? value.toPrecision(3).replace("-", "−") : turnwise.number(value, 4);
  }

  /** Titles are names that environments and users choose, so they are text, never HTML. */
  const columnDefaults = { titleFormatter: (cell) => turnwise.make("span", {}, cell.getValue()) };

  const titles = (columns) => columns.map(({ title, field }) => `${field}: ${title}`).join();

  /** Fill a table. Tabulator draws only the rows in view. With the columns of before, filters and scroll stay. */
  function fill(id, columns, data, options = {}) {
    const holder = document.querySelector(id);
    holder.hidden = !data.length;
    if (!data.length) return;
    if (tables[id]?.initialized && titles(tables[id].options.columns) === titles(columns)) return renew(id, data);
    empty(id);
    tables[id] = new Tabulator(holder, {
      data,
      columns,
      columnDefaults,
      layout: "fitDataFill",
      maxHeight: 420,
      ...options,
    });
  }

  /** Replace the rows of a table; with `maxHeight` Tabulator loses the place that they were scrolled to. */
  async function renew(id, data) {
    const view = document.querySelector(`${id} .tabulator-tableholder`);
    const { scrollTop, scrollLeft } = view;
    await tables[id].replaceData(data);
    Object.assign(view, { scrollTop, scrollLeft });
  }

  function empty(id) {
    tables[id]?.destroy();
    delete tables[id];
  }

  /** Fit the columns to a new width. */
  turnwise.fitTables = () => Object.values(tables).forEach((table) => table.redraw(true));

  /** Fill the tables that are unfolded, and that of failures. */
  turnwise.fillTables = () => {
    if (isOpen("#metrics")) metrics();
    if (isOpen("#settings")) settings();
    causes();
  };

  const isOpen = (id) => document.querySelector(id).closest("details").open;
  for (const fold of document.querySelectorAll("details.fold")) fold.addEventListener("toggle", turnwise.fillTables);

  turnwise.failed = () => turnwise.summary.runs.some((run) => run.causes.length);

  function metrics() {
    const { train, eval: evaluations } = turnwise.run();
    const rows = new Map();
    for (const columns of [train, evaluations]) {
      for (const [name, values] of Object.entries(columns)) {
        values.forEach((value, row) => {
          const step = columns.step[row];
          if (!rows.has(step)) rows.set(step, {});
          rows.get(step)[name] = value;
        });
      }
    }
    const names = [...new Set([...Object.keys(train), ...Object.keys(evaluations)])].filter((name) => name !== "step");
    fill(
      "#metrics",
      [
        { title: "step", field: "step", frozen: true, headerSort: true, hozAlign: "right" },
        ...names.map((name) => ({
          title: name,
          field: name,
          hozAlign: "right",
          sorter: "number",
          sorterParams: { alignEmptyValues: "bottom" },
          formatter: (cell) => shown(cell.getValue()),
        })),
      ],
      [...rows.values()].sort((a, b) => a.step - b.step),
      { nestedFieldSeparator: false, renderHorizontal: "virtual", layout: "fitData" },
    );
  }

  function settings() {
    const { runs } = turnwise.summary;
    const all = runs.map((run) => ({ ...run.settings, ...run.made }));
    const only = document.querySelector("#differing").checked;
    const rows = [...new Set(all.flatMap(Object.keys))]
      .map((name) => ({
        name,
        ...Object.fromEntries(all.map((values, index) => [`run${index}`, values[name] ?? "–"])),
      }))
      .filter((row) => !only || new Set(runs.map((_, index) => row[`run${index}`])).size > 1);
    fill(
      "#settings",
      [
        { title: "setting", field: "name", headerFilter: "input", headerFilterPlaceholder: "find" },
        ...runs.map((run, index) => ({ title: run.label, field: `run${index}` })),
      ],
      rows,
      { nestedFieldSeparator: false },
    );
    document.querySelector("#differing").parentElement.hidden = runs.length < 2;
  }

  function causes() {
    const rows = turnwise.summary.runs.flatMap((run) =>
      run.causes.map((cause) => ({ ...cause, run: run.name, label: run.label })),
    );
    const holder = document.querySelector("#causes");
    if (!rows.length) {
      empty("#causes");
      const kept = turnwise.summary.runs.some((run) => run.steps.step?.length);
      holder.replaceChildren(
        turnwise.make("p", { class: "quiet" }, kept ? "No trajectory failed." : "No rollouts were recorded."),
      );
      return;
    }
    fill(
      "#causes",
      [
        { title: "cause", field: "cause", formatter: "textarea", widthGrow: 3 },
        { title: "run", field: "label" },
        { title: "trajectories", field: "count", hozAlign: "right" },
        {
          title: "first",
          field: "step",
          formatter: (cell) => {
            const { run, step, trajectory } = cell.getData();
            return turnwise.make(
              "a",
              { href: turnwise.address({ run, step, trajectory, turn: 0 }) },
              `step ${step}, rollout ${trajectory}`,
            );
          },
        },
      ],
      rows,
      { layout: "fitColumns" },
    );
  }

  document.querySelector("#differing").addEventListener("change", settings);
})();
