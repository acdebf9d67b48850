// Draw the curves that overlay all runs: learning and credit.
"use strict";

(() => {
  const WINDOW = () => Number(document.querySelector("#smooth").value);
  const AXIS = () => document.querySelector("#axis").value;

  const rows = new WeakMap(); // row of each step, by the column of steps

  function rowOf(steps, step) {
    if (!rows.has(steps)) rows.set(steps, new Map(steps.map((other, row) => [other, row])));
    return rows.get(steps).get(step);
  }

  /** Where each training step lies on the horizontal axis: Map of step to x. */
  function positions(run) {
    const train = run.train;
    const steps = train.step ?? [];
    const result = new Map([[0, 0]]);
    const stages = turnwise.stages(train);
    const axis = AXIS() === "minutes" && !stages.length ? "step" : AXIS(); // a run without times
    let total = 0;
    steps.forEach((step, row) => {
      if (axis === "trajectories") total += turnwise.played(run, step);
      else if (axis === "minutes") total += stages.reduce((sum, name) => sum + (train[name][row] ?? 0), 0) / 60;
      result.set(step, axis === "step" ? step : total);
    });
    return result;
  }

  /** The training step that lies nearest to a place on the horizontal axis. */
  turnwise.stepAt = (name, x) => {
    const run = turnwise.summary.runs.find((other) => other.name === name);
    const away = ([, place]) => Math.abs(place - x);
    return [...positions(run)].reduce((best, other) => (away(other) < away(best) ? other : best))[0];
  };

  /** Trajectories of a training step; runs of earlier versions tell those recorded, or the size of their batches. */
  turnwise.played = (run, step) => {
    const column = rowOf(run.train.step, step);
    const reported = run.train["rollout/trajectories"]?.[column];
    if (reported !== undefined && reported !== null) return reported;
    const row = run.steps.step && rowOf(run.steps.step, step);
    if (row !== undefined) return turnwise.summary.endings.reduce((sum, outcome) => sum + run.steps[outcome][row], 0);
    return run.groups * run.group_size * (run.train["rollout/batches"]?.[column] ?? 1);
  };

  /** Moving mean over `window` values. */
  turnwise.smoothed = (values, window = WINDOW()) => {
    const half = Math.floor(window / 2);
    return values.map((value, row) => {
      const near = values
        .slice(Math.max(0, row - half), row + half + 1)
        .filter((other) => other !== null && other !== undefined);
      return value === null || value === undefined || !near.length
        ? null
        : near.reduce((sum, other) => sum + other, 0) / near.length;
    });
  };

  /** Points of a column, smoothed; with low and high, points have an interval. */
  function points(run, columns, name, { low, high, smooth = true } = {}) {
    const at = positions(run);
    const of = (column) => (smooth ? turnwise.smoothed(columns[column] ?? []) : (columns[column] ?? []));
    const [main, below, above] = [of(name), low ? of(low) : [], high ? of(high) : []];
    return (columns.step ?? [])
      .map((step, row) => [at.get(step) ?? step, main[row] ?? null, ...(low ? [below[row], above[row]] : [])])
      .filter((point) => point[1] !== null);
  }

  const each = (build) =>
    turnwise.summary.runs.flatMap((run, index) => {
      const colour = turnwise.runColour(index);
      const name = (what) =>
        turnwise.summary.runs.length > 1 ? [run.label, what].filter(Boolean).join(", ") : what || run.label;
      return [build(run, colour, name)].flat().map((line) => ({ ...line, run: run.name }));
    });

  function describe(columns, name, shown = turnwise.number) {
    return turnwise.summary.runs
      .map((run) => {
        const values = (run[columns][name] ?? []).filter((value) => value !== null);
        return values.length ? `${run.label}: from ${shown(values[0])} to ${shown(values.at(-1))}.` : "";
      })
      .join(" ");
  }

  function simple(section, title, note, columns, name, options = {}) {
    turnwise.addChart(section, {
      title,
      note,
      options: () =>
        turnwise.lines(
          each((run, colour, label) => ({ name: label(""), colour, points: points(run, run[columns], name) })),
          { xName: AXIS(), ...options },
        ),
      describe: () => describe(columns, name, options.percent ? turnwise.percent : turnwise.number),
    });
  }

  turnwise.addCurves = () => {
    turnwise.addChart("learning", {
      title: "Success",
      note: turnwise.summary.runs.every((run) => run.imported || run.recorded)
        ? "trajectories of the log; mark: those of its last step, with a 95 % interval"
        : "held-out tasks with 95 % intervals; thin: training tasks",
      wide: true,
      options: () =>
        turnwise.lines(
          each((run, colour, label) => [
            { name: label("training"), colour, faint: true, points: points(run, run.train, "rollout/success") },
            {
              name: label("held-out"),
              colour,
              marks: true,
              points: points(run, run.eval, "eval/success", {
                low: "eval/success_low",
                high: "eval/success_high",
                smooth: false,
              }),
            },
          ]),
          { percent: true, xName: AXIS(), yAxis: { min: 0, max: 1 } },
        ),
      describe: () => `Held-out success. ${describe("eval", "eval/success", turnwise.percent)}`,
    });
    turnwise.addChart("learning", { title: "By type of task", note: "last evaluation", options: byType });
    simple("learning", "Turns", "per trajectory", "train", "rollout/turns", { digits: 2 });
    simple(
      "learning",
      "Invalid responses",
      "share that the environment did not accept",
      "train",
      "rollout/invalid_frac",
      { percent: true },
    );
    simple(
      "learning",
      "Groups with a signal",
      "share, of the groups learned from, whose trajectories differ in return",
      "train",
      "credit/signal_frac",
      { percent: true },
    );

    simple("credit", "Entropy", "of the policy, nats per token", "train", "credit/entropy");
    turnwise.addChart("credit", {
      title: "Drift of entropy",
      note: "change from step to step, nats; mean of 5 steps or more",
      options: () =>
        turnwise.lines(
          each((run, colour, label) => ({ name: label(""), colour, points: drift(run) })),
          { digits: 4, xName: AXIS() },
        ),
      describe: () => "Change of the mean token entropy from each step to the next.",
    });
    turnwise.addChart("credit", {
      title: "Alpha",
      note: "median over responses, with 5th to 95th percentile",
      options: () =>
        turnwise.lines(
          each((run, colour, label) => ({
            name: label(""),
            colour,
            points: points(run, run.steps, "alpha_50", { low: "alpha_05", high: "alpha_95" }),
          })),
          { xName: AXIS() },
        ),
      describe: () => describe("steps", "alpha_50"),
    });
    turnwise.addChart("credit", {
      title: "Balance",
      note: "share of responses with a positive advantage; dashed: a negative one",
      options: () =>
        turnwise.lines(
          each((run, colour, label) => [
            { name: label("positive"), colour, points: points(run, run.steps, "positive") },
            { name: label("negative"), colour, dashed: true, points: points(run, run.steps, "negative") },
          ]),
          { percent: true, xName: AXIS(), yAxis: { min: 0 } },
        ),
      describe: () => `Positive share. ${describe("steps", "positive", turnwise.percent)}`,
    });
    turnwise.addChart("credit", {
      title: "Push",
      note: "mean positive and mean negative part of the advantage",
      options: () =>
        turnwise.lines(
          each((run, colour, label) => [
            { name: label("positive"), colour, points: points(run, run.steps, "gain") },
            { name: label("negative"), colour, dashed: true, points: points(run, run.steps, "loss") },
          ]),
          { xName: AXIS() },
        ),
      describe: () => `Positive part. ${describe("steps", "gain")}`,
    });
    simple("credit", "Gradient norm", "before clipping", "train", "update/grad_norm", { yAxis: { min: 0 } });
  };

  function drift(run) {
    const entropy = run.train["credit/entropy"] ?? [];
    const change = entropy.map((value, row) =>
      row && value !== null && entropy[row - 1] !== null ? value - entropy[row - 1] : null,
    );
    const columns = { step: run.train.step ?? [], change: turnwise.smoothed(change, Math.max(5, WINDOW())) };
    return points(run, columns, "change", { smooth: false });
  }

  function byType() {
    const prefix = "eval/success/";
    const types = [
      ...new Set(
        turnwise.summary.runs.flatMap((run) => Object.keys(run.eval).filter((name) => name.startsWith(prefix))),
      ),
    ]
      .sort()
      .reverse();
    if (types.length < 2) return null;
    return {
      grid: { left: 6, right: 30, top: turnwise.summary.runs.length > 1 ? 30 : 6, bottom: 6, containLabel: true },
      legend:
        turnwise.summary.runs.length > 1 ? turnwise.legend(turnwise.summary.runs.map((run) => run.label)) : undefined,
      xAxis: turnwise.valueAxis({ percent: true, min: 0, max: 1, interval: 0.5 }),
      yAxis: turnwise.valueAxis({
        type: "category",
        data: types.map((name) => name.slice(prefix.length).replaceAll("_", " ")),
        splitLine: { show: false },
      }),
      tooltip: turnwise.tooltip({
        axisPointer: { type: "shadow" },
        valueFormatter: (value) => turnwise.percent(value, 1),
      }),
      series: turnwise.summary.runs.map((run, index) => ({
        name: run.label,
        type: "bar",
        itemStyle: { color: turnwise.runColour(index), borderRadius: [0, 3, 3, 0] },
        barMaxWidth: 14,
        data: types.map((name) => (run.eval[name] ?? []).at(-1) ?? null),
      })),
    };
  }
})();
