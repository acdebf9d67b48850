// Load the summary, draw the page, follow the address, and poll for updates when served live.
"use strict";

(() => {
  const POLL_MS = 4000;
  const get = (id) => document.querySelector(id);
  let chosen = 0;

  turnwise.live = document.body.dataset.live === "yes";
  turnwise.run = () => turnwise.summary.runs[chosen];

  /** Choose the run for charts and tables that show a single run. */
  turnwise.chooseRun = async (name) => {
    chosen = Math.max(
      0,
      turnwise.summary.runs.findIndex((run) => run.name === name),
    );
    get("#run").value = turnwise.run().name;
    turnwise.redraw();
    turnwise.noteMemory();
    turnwise.fillTables();
    await turnwise.fillBrowser();
  };

  function heading() {
    const { runs } = turnwise.summary;
    get("#title").textContent = runs.length === 1 ? runs[0].label : `${runs.length} runs`;
    get("#subtitle").textContent = [...new Set(runs.map((run) => `${run.environment}, model ${run.model}`))].join("; ");
    document.title = `${runs.map((run) => run.label).join(", ")} · turnwise`;
    get("#runs").replaceChildren(
      ...runs.map((run, index) => {
        const dot = turnwise.make("i", { style: `background:var(--run${index % 8})` });
        return turnwise.make(
          "li",
          {},
          dot,
          turnwise.make("b", {}, run.label),
          ` ${run.method}`,
          turnwise.make("span", { class: "quiet" }, ` ${success(run)}`),
        );
      }),
    );
    get("#run-choice").hidden = runs.length < 2;
    get("#run").replaceChildren(...runs.map((run) => turnwise.make("option", { value: run.name }, run.label)));
    get("#run").value = turnwise.run().name;
  }

  function success(run) {
    const values = run.eval["eval/success"] ?? [];
    const at = (row, digits = 2) => turnwise.number(row, digits);
    if (!values.length) return "not evaluated yet";
    const interval = `[${at(run.eval["eval/success_low"].at(-1))}, ${at(run.eval["eval/success_high"].at(-1))}]`;
    return values.length < 2
      ? `held-out success ${at(values[0])} ${interval}`
      : `held-out success ${at(values[0])} → ${at(values.at(-1))} ${interval}`;
  }

  function tiles() {
    const { runs } = turnwise.summary;
    const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
    const trajectories = sum(runs.flatMap((run) => (run.train.step ?? []).map((step) => turnwise.played(run, step))));
    const failed = runs.some((run) => run.steps.step?.length)
      ? sum(runs.flatMap((run) => run.steps.failed ?? [])).toLocaleString("en")
      : "not kept";
    const seconds = sum(
      runs.flatMap((run) =>
        [run.train, run.eval].flatMap((columns) =>
          Object.entries(columns)
            .filter(([name]) => name.startsWith("time/"))
            .flatMap(([, values]) => values),
        ),
      ),
    );
    const time = seconds > 5400 ? `${turnwise.number(seconds / 3600, 1)} h` : `${turnwise.number(seconds / 60, 1)} min`;
    const steps = runs.map((run) => `${run.train.step?.at(-1) ?? 0} of ${run.steps_planned}`);
    const items = {
      steps: [...new Set(steps)].join(", "),
      trajectories: trajectories.toLocaleString("en"),
      failed,
      "generated tokens": sum(runs.flatMap((run) => run.train["rollout/tokens"] ?? [])).toLocaleString("en"),
      time,
    };
    get("#tiles").replaceChildren(
      ...Object.entries(items).map(([name, value]) =>
        turnwise.make("div", {}, turnwise.make("dt", {}, name), turnwise.make("dd", {}, value)),
      ),
    );
  }

  async function follow() {
    const place = turnwise.placeIn(location.hash);
    if (place) {
      get("#trajectories").scrollIntoView({ block: "start", behavior: "instant" });
      await turnwise.open(place);
      get("#rollouts").scrollIntoView({ block: "start", behavior: "instant" });
    } else await turnwise.openFirst();
  }

  async function look() {
    const status = get("#live");
    try {
      const summary = await turnwise.load("summary");
      status.textContent = `live, step ${summary.runs[chosen].train.step?.at(-1) ?? 0}`;
      status.classList.remove("gone");
      if (JSON.stringify(summary) === JSON.stringify(turnwise.summary)) return;
      turnwise.summary = summary;
      turnwise.renew();
      heading();
      tiles();
      turnwise.redraw();
      turnwise.noteMemory();
      turnwise.fillTables();
      await turnwise.fillBrowser({ again: true });
      if (!turnwise.placeIn(location.hash)) await turnwise.openFirst();
    } catch {
      status.textContent = "the server has stopped";
      status.classList.add("gone");
    }
  }

  async function start() {
    turnwise.summary = await turnwise.load("summary");
    heading();
    tiles();
    turnwise.addCurves();
    turnwise.addStages();
    turnwise.noteMemory();
    turnwise.fillTables();
    get("#run").addEventListener("change", () => turnwise.chooseRun(get("#run").value).then(turnwise.openFirst));
    for (const id of ["#axis", "#smooth"]) get(id).addEventListener("change", turnwise.redraw);
    addEventListener("hashchange", follow);
    await turnwise.fillBrowser();
    await follow();
    document.body.dataset.ready = "yes";
    if (turnwise.live) {
      get("#live").hidden = false;
      setInterval(look, POLL_MS);
      look();
    }
  }

  start().catch((error) => {
    get("#title").textContent = "Cannot show this report";
    get("#subtitle").textContent = error.message;
    throw error;
  });
})();
