// Show the table of all trajectories of a run, with filters, order and text search. A row opens its group.
"use strict";

(() => {
  const get = (id) => document.querySelector(id);
  const ORDERS = { step: "desc", alpha: "desc", entropy: "desc", advantage: "desc", invalid: "desc", turns: "desc" };
  const key = (row) => `${row.step}/${row.trajectory}`;
  const phone = matchMedia("(max-width: 640px)");
  let table = null;
  let rows = [];
  let shownRun = null;
  let sought = null; // {text, steps, keys}: what to find, steps already searched, trajectories where it was found

  /** Fill the table with the trajectories of the chosen run, unless it already shows them. */
  turnwise.fillBrowser = async ({ again = false } = {}) => {
    const run = turnwise.run();
    if (run.name === shownRun && !again) return;
    const found = run.steps.step?.length ? await turnwise.table(`${run.name}/index`) : [];
    if (run.name !== turnwise.run().name) return; // another run was chosen meanwhile
    for (const row of found) row.key = key(row);
    if (run.name !== shownRun) clear();
    else if (sought && rows.some((row, at) => JSON.stringify(row) !== JSON.stringify(found[at]))) {
      seek(sought.text); // the run was rewound, and texts of its steps may be others
    }
    shownRun = run.name;
    rows = found;
    options(get("#step"), ["all", ...(run.steps.step ?? [])]);
    get("#tasks").replaceChildren(
      ...[...new Set(rows.map((row) => row.task))]
        .slice(0, 2000)
        .map((task) => turnwise.make("option", { value: task })),
    );
    if (table) await table.replaceData(rows);
    else await create();
    await find();
    if (!rows.length) turnwise.nothing("No rollouts were recorded.");
  };

  function create() {
    const number = (digits) => (cell) => turnwise.number(cell.getValue(), digits);
    const right = { hozAlign: "right", headerHozAlign: "right" };
    table = new Tabulator("#table", {
      data: rows,
      index: "key",
      height: 330,
      layout: "fitColumns",
      selectableRows: false,
      placeholder: "No trajectory matches.",
      rowFormatter: (row) => {
        const open = row.getData().key === openKey();
        row.getElement().classList.toggle("open", open);
        row.getElement().setAttribute("aria-selected", open);
      },
      columns: [
        { title: "step", field: "step", width: 70, ...right },
        { title: "task", field: "task", minWidth: 130, widthGrow: 3 },
        { title: "group", field: "group", width: 80, ...right },
        { title: "rollout", field: "trajectory", width: 85, ...right },
        { title: "ended", field: "outcome", width: 120, formatter: (cell) => turnwise.outcomeBadge(cell.getValue()) },
        { title: "turns", field: "turns", width: 78, ...right },
        { title: "reward", field: "reward", width: 90, formatter: number(2), ...right },
        { title: "invalid", field: "invalid", width: 90, ...right },
        { title: "max α", field: "alpha", width: 84, formatter: number(2), ...right },
        { title: "entropy", field: "entropy", width: 92, formatter: number(3), ...right },
        { title: "mean |A|", field: "advantage", width: 98, formatter: number(3), ...right },
      ],
    });
    table.on("rowClick", (_, row) => turnwise.open(placeOf(row.getData())));
    table.on("dataFiltered", (_, found) => say(found.length));
    get("#table").addEventListener("keydown", move);
    phone.addEventListener("change", fitPhone);
    return new Promise((resolve) => table.on("tableBuilt", () => resolve(fitPhone())));
  }

  /** On a phone only the columns that tell trajectories apart; all others are on the cards. */
  function fitPhone() {
    const [hide, show] = [(name) => table.hideColumn(name), (name) => table.showColumn(name)];
    const further = ["group", "trajectory", "turns", "reward", "invalid", "alpha", "entropy", "advantage"];
    further.forEach(phone.matches ? hide : show);
    table.redraw(true);
  }

  /** Whether the return of a trajectory with this outcome is compared: not if it failed, was pruned or goes on. */
  turnwise.usable = (outcome) => outcome < turnwise.summary.compared.length;

  /** Whether the returns of a group of the chosen run differ. */
  turnwise.hasContrast = (step, group) => rows.some((row) => row.contrast && row.step === step && row.group === group);

  /** Open the first group with contrast that the filters leave, or else the first. Nothing scrolls. */
  async function openOneOf(shown) {
    const first = shown.find((row) => row.contrast) ?? shown[0];
    if (!first) return;
    await turnwise.open(placeOf(first), { focus: false, address: turnwise.placeIn(location.hash) !== null });
    table.scrollToRow(first.key, "nearest", false).catch(() => {});
  }

  /** Open a group of the chosen run unless one is open. */
  turnwise.openFirst = async () => {
    if (turnwise.place?.run !== shownRun) await openOneOf(table.getData("active"));
  };

  /** Show the trajectories of a step: the recorded one that is nearest. */
  turnwise.showStep = async (run, step) => {
    if (run !== turnwise.run().name) await turnwise.chooseRun(run);
    const recorded = turnwise.run().steps.step ?? [];
    if (!recorded.length) return;
    const nearest = recorded.reduce((best, other) => (Math.abs(other - step) < Math.abs(best - step) ? other : best));
    get("#step").value = String(nearest);
    get("#group").value = "all";
    await turnwise.filter();
    await openOneOf(table.getData("active"));
    turnwise.remember();
    get("#trajectories").scrollIntoView({ block: "start", behavior: turnwise.still() ? "instant" : "smooth" });
  };

  turnwise.outcomeBadge = (outcome) =>
    turnwise.make("span", { class: `badge outcome${outcome}` }, turnwise.summary.outcomes[outcome]);

  const placeOf = ({ step, trajectory }) => ({ run: shownRun, step, trajectory, turn: 0 });
  const openKey = () => (turnwise.place?.run === shownRun ? key(turnwise.place) : null);

  /** Mark the open row. */
  turnwise.markRow = () => {
    table?.getRows("visible").forEach((row) => row.reformat());
  };

  /** Arrow keys open the row above or below; Enter opens its rollouts. */
  function move(event) {
    if (event.key === "Enter" && turnwise.place) turnwise.focusTurn();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const shown = table.getRows("active");
      const at = shown.findIndex((row) => row.getData().key === openKey());
      const next = shown[Math.max(0, Math.min(shown.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))];
      if (!next) return;
      turnwise.open(placeOf(next.getData()), { focus: false });
      table.scrollToRow(next, "nearest", false).catch(() => {});
    } else return;
    event.preventDefault();
  }

  function options(select, values) {
    const chosen = select.value;
    select.replaceChildren(...values.map((value) => turnwise.make("option", { value }, String(value))));
    select.value = values.map(String).includes(chosen) ? chosen : "all";
  }

  function clear() {
    get("#filters").reset();
    sought = null;
  }

  /** Apply the filters and the order of the form. */
  function refresh() {
    const form = new FormData(get("#filters"));
    const show = form.get("show");
    const [step, task] = [get("#step").value, get("#task").value.trim().toLowerCase()];
    options(get("#group"), [
      "all",
      ...(step === "all" ? [] : new Set(rows.filter((row) => row.step === Number(step)).map((row) => row.group))),
    ]);
    get("#group").disabled = step === "all";
    const group = get("#group").value;
    const outcomes =
      { won: (o) => o === 0, lost: (o) => o > 0 && turnwise.usable(o), failed: (o) => o === 4 }[show] ?? (() => true);
    const contrast = get("#contrast").checked;
    const order = get("#sort").value;
    table.setSort(
      order === "step"
        ? [
            { column: "trajectory", dir: "asc" },
            { column: "step", dir: "desc" },
          ]
        : [{ column: order, dir: ORDERS[order] }],
    );
    table.setFilter(
      (row) =>
        outcomes(row.outcome) &&
        (show !== "invalid" || row.invalid > 0) &&
        (!contrast || row.contrast) &&
        (step === "all" || row.step === Number(step)) &&
        (group === "all" || row.group === Number(group)) &&
        (!task || row.task.toLowerCase().includes(task)) &&
        (!sought || sought.keys.has(row.key)),
    );
  }

  function say(count) {
    get("#found").textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} trajectories`;
  }

  /** Search for the text of the form. */
  function search() {
    seek(get("#text").value.trim().toLowerCase());
    return find();
  }

  /** Forget what was found before, and search all steps for a text, if there is one. */
  function seek(text) {
    sought = text ? { text, steps: new Set(), keys: new Set() } : null;
  }

  /** Search the chosen step or all, step by step, except those that were searched before, and show the matches. */
  async function find() {
    const mine = sought;
    const chosen = get("#step").value === "all" ? (turnwise.run().steps.step ?? []) : [Number(get("#step").value)];
    const steps = mine ? chosen.filter((step) => !mine.steps.has(step)) : [];
    for (const [done, step] of steps.entries()) {
      for (const row of await turnwise.table(turnwise.stepName(shownRun, step))) {
        if (row.response.toLowerCase().includes(mine.text) || row.observation.toLowerCase().includes(mine.text))
          mine.keys.add(`${step}/${row.trajectory}`);
      }
      if (mine !== sought) return;
      mine.steps.add(step);
      get("#found").textContent = `searched ${done + 1} of ${steps.length} steps, ${mine.keys.size} found`;
    }
    refresh();
  }

  get("#filters").addEventListener("submit", (event) => {
    event.preventDefault();
    search().then(() => turnwise.remember());
  });
  /** Apply the form; text is searched again, since what is found depends on the chosen step. */
  turnwise.filter = async () => {
    refresh();
    if (sought || get("#text").value.trim()) await search();
  };

  get("#filters").addEventListener("change", async (event) => {
    if (event.target.id === "text" || event.target.id === "step") await turnwise.filter();
    else refresh();
    turnwise.remember();
  });
  get("#task").addEventListener("input", () => {
    refresh();
    turnwise.remember();
  });
})();
