// Draw the charts of one run: outcomes of trajectories, time and memory by stage.
"use strict";

(() => {
  const columnsOf = (run, prefix) => Object.keys(run.train).filter((name) => name.startsWith(prefix));
  const stepAxis = { name: "step", nameLocation: "middle", nameGap: 26, minInterval: 1, splitLine: { show: false } };
  const short = (name) => name.replace(/^\w+\//, "").replace(/_(s|mb)$/, "");

  /** Draw stacked areas, one per name. */
  function stacked(steps, parts, { percent = false, unit = "" } = {}) {
    if (!steps?.length || !parts.length) return null;
    return {
      grid: { left: 6, right: 14, top: 34, bottom: 22, containLabel: true },
      legend: turnwise.legend(parts.map(({ name }) => name)),
      xAxis: turnwise.valueAxis({ ...stepAxis, min: "dataMin", max: "dataMax" }),
      yAxis: turnwise.valueAxis({ percent, max: percent ? 1 : undefined }),
      tooltip: turnwise.tooltip({
        valueFormatter: (value) => (percent ? turnwise.percent(value, 1) : `${turnwise.number(value, 2)} ${unit}`),
      }),
      series: parts.map(({ name, colour, values }) => ({
        name,
        run: turnwise.run().name,
        type: "line",
        stack: "all",
        symbol: "none",
        data: steps.map((step, row) => [step, values[row] ?? 0]),
        emphasis: { disabled: true },
        lineStyle: { width: 0.5, color: colour },
        itemStyle: { color: colour },
        areaStyle: { color: colour, opacity: 0.75 },
      })),
    };
  }

  function endings() {
    const { steps } = turnwise.run();
    const totals = (steps.step ?? []).map((_, row) =>
      turnwise.summary.endings.reduce((sum, name) => sum + steps[name][row], 0),
    );
    return stacked(
      steps.step,
      turnwise.summary.endings.map((name, index) => ({
        name,
        colour: turnwise.outcomeColour(index),
        values: turnwise.smoothed((steps[name] ?? []).map((count, row) => (totals[row] ? count / totals[row] : null))),
      })),
      { percent: true },
    );
  }

  function time() {
    const { train } = turnwise.run();
    return stacked(
      train.step,
      turnwise.stages(train).map((name, index) => ({
        name: short(name),
        colour: turnwise.stageColour(index),
        values: turnwise.smoothed(train[name]),
      })),
      { unit: "s" },
    );
  }

  function memory() {
    const { train } = turnwise.run();
    const names = columnsOf(turnwise.run(), "memory/");
    return turnwise.lines(
      names.map((name, index) => ({
        name: short(name),
        colour: turnwise.stageColour(index),
        points: train.step.map((step, row) => [step, train[name][row]]).filter((point) => point[1] !== null),
      })),
      { digits: 0 },
    );
  }

  /** Draw the total time of each stage, one bar per run. */
  function totals() {
    const { runs } = turnwise.summary;
    const sum = (values) => (values ?? []).reduce((total, value) => total + (value ?? 0), 0) / 60;
    const names = [
      ...new Set(
        runs.flatMap((run) => [...turnwise.stages(run.train), ...turnwise.stages(run.eval)]),
      ),
    ];
    if (!names.length) return null;
    return {
      grid: { left: 6, right: 14, top: 34, bottom: 22, containLabel: true },
      legend: turnwise.legend(names.map(short)),
      xAxis: turnwise.valueAxis({ name: "minutes", nameLocation: "middle", nameGap: 26 }),
      yAxis: turnwise.valueAxis({
        type: "category",
        data: runs.map((run) => run.label),
        inverse: true,
        splitLine: { show: false },
      }),
      tooltip: turnwise.tooltip({
        axisPointer: { type: "shadow" },
        valueFormatter: (value) => `${turnwise.number(value, 1)} min`,
      }),
      series: names.map((name, index) => ({
        name: short(name),
        type: "bar",
        stack: "all",
        barMaxWidth: 26,
        itemStyle: { color: turnwise.stageColour(index), opacity: 0.85 },
        data: runs.map((run) => sum(run.train[name]) + sum(run.eval[name])),
      })),
    };
  }

  function speed() {
    return turnwise.lines(
      turnwise.summary.runs.map((run, index) => {
        const tokens = run.train["rollout/tokens"] ?? [];
        const seconds = run.train["time/rollout_s"] ?? [];
        const rates = turnwise.smoothed(tokens.map((count, row) => (seconds[row] ? count / seconds[row] : null)));
        return {
          name: run.label,
          run: run.name,
          colour: turnwise.runColour(index),
          points: rates.map((rate, row) => [run.train.step[row], rate]).filter((point) => point[1] !== null),
        };
      }),
      { digits: 0, yAxis: { min: 0 } },
    );
  }

  turnwise.addStages = () => {
    turnwise.addChart("endings", {
      title: "How trajectories end",
      note: "share of a step's trajectories",
      wide: true,
      options: endings,
      describe: () => `Of ${turnwise.run().label}.`,
    });
    turnwise.addChart("cost", {
      title: "Time by stage",
      note: "seconds per step",
      options: time,
      describe: () => `Of ${turnwise.run().label}.`,
    });
    turnwise.addChart("cost", { title: "Total time", note: "minutes, including evaluations", options: totals });
    turnwise.addChart("cost", { title: "Generated tokens", note: "per second of rollout", options: speed });
    turnwise.addChart("cost", {
      title: "Memory by stage",
      note: "MiB: peak on a GPU, at the end of the stage on a CPU",
      options: memory,
    });
  };

  turnwise.noteMemory = () => {
    const note = document.querySelector("#no-memory");
    note.hidden = columnsOf(turnwise.run(), "memory/").length > 0;
    note.textContent = `${turnwise.run().label} did not record its memory.`;
  };
})();
