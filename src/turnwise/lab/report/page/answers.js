// Answer what a reader asks first, run by run: what was trained, did it learn, from what, at what cost.
"use strict";

(() => {
  const { make, number } = turnwise;
  const WEIGHTS = { full: "all weights", top: "upper layers", lora: "LoRA adapters" };
  const count = (value) => value.toLocaleString("en");
  const share = (part, whole) => (whole ? turnwise.percent(part / whole) : "–");
  const sum = (values) => (values ?? []).reduce((total, value) => total + (value ?? 0), 0);
  const plural = (amount, noun) => `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;

  /** Stages of a step; the parts of "measure" are left out, since it contains them. */
  turnwise.stages = (columns) =>
    Object.keys(columns).filter((name) => name.startsWith("time/") && !/^time\/measure_.+_s$/.test(name));

  /** Fill the table of answers, one row per run. */
  turnwise.answer = () => {
    const { runs } = turnwise.summary;
    const isLog = runs.every((run) => run.imported || run.recorded);
    const columns = [
      [isLog ? "What is this?" : "What was trained?", trained],
      [isLog ? "Did it succeed?" : "Did it learn?", learned],
      ["From what?", source],
      ["How good is the credit?", turnwise.quality],
      ["At what cost?", cost],
    ].map(([head, answer]) => [head, runs.map(answer)]);
    const answered = columns.filter(([, answers]) => answers.some(Boolean)); // no empty questions
    const heads = answered.map(([head]) => head);
    const row = (_, index) =>
      make("tr", {}, ...answered.map(([head, answers]) => cell(head, ...split(answers[index] ?? ["–"]))));
    document
      .querySelector("#answers")
      .replaceChildren(
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...runs.map(row)),
      );
  };

  const split = ([main, ...more]) => [main, more];

  /** A cell: the answer in bold, and sentences below it. On a phone the question stands above the answer. */
  const cell = (head, main, more) =>
    make(
      "td",
      { "data-head": head },
      make("b", {}, ...[main].flat()),
      ...more.filter(Boolean).map((text) => make("p", {}, text)),
    );

  function trained(run, index) {
    const dot = make("i", { style: `background:${turnwise.runColour(index)}` });
    if (run.imported) {
      const { log, kind, missing, scored_by: scorer } = run.imported;
      return [
        turnwise.summary.runs.length > 1 ? [dot, run.label] : `The log ${log}`,
        `Nothing was trained: turnwise read the log ${log} (${kind}). The credit is that of ${run.method}.`,
        scorer ? `The model ${scorer} computed the entropies afterwards.` : null,
        ...missing.map((what) => `Missing: ${what}.`),
      ];
    }
    if (run.recorded)
      return [
        turnwise.summary.runs.length > 1 ? [dot, run.label] : `Agents that ${run.recorded} served`,
        `Nothing was trained: turnwise gateway recorded what they did. The credit is that of ${run.method}.`,
      ];
    const weights = `${WEIGHTS[run.weights] ?? run.weights} of the model ${run.model}`;
    const limit = run.max_turns === null ? "" : `, with at most ${run.max_turns} turns`;
    return [
      turnwise.summary.runs.length > 1 ? [dot, run.label] : `${run.model} on ${run.environment}`,
      `The method ${run.method} trains ${weights} on the environment ${run.environment}.`,
      `Each step plays ${plural(run.groups, "task")} ${run.group_size} times${limit}.`,
    ];
  }

  function learned(run) {
    const { step = [], "eval/success": values = [], "eval/episodes": episodes = [] } = run.eval;
    const [low, high] = [run.eval["eval/success_low"] ?? [], run.eval["eval/success_high"] ?? []];
    const known = values.map((_, row) => row).filter((row) => values[row] !== null);
    const training = (run.train["rollout/success"] ?? []).filter((value) => value !== null).at(-1);
    if (run.recorded) {
      const compared = sum(turnwise.summary.compared.map((name) => sum(run.steps[name])));
      const won = sum(run.steps[turnwise.summary.compared[0]]);
      return [`Success ${compared ? number(won / compared, 2) : "–"}`, "Success of the recorded trajectories."];
    }
    if (!known.length)
      return [
        "Not evaluated yet",
        training === undefined ? "No step is finished." : `Success on training tasks: ${number(training, 2)}.`,
      ];
    const [first, last] = [known[0], known.at(-1)];
    const interval = (row) => `${number(values[row], 2)} [${number(low[row], 2)}, ${number(high[row], 2)}]`;
    if (run.imported)
      return [
        `Success ${number(values.at(-1), 2)}`,
        `Success of the logged trajectories${run.train.step?.length > 1 ? " of the last step" : ""}, ` +
          `with its 95 % interval: ${number(values.at(-1), 2)} ` +
          `[${number(low.at(-1), 2)}, ${number(high.at(-1), 2)}].`,
      ];
    const after = (row) =>
      `after step ${step[row]}${episodes[row] ? ` (${plural(episodes[row], "episode")})` : ""}`;
    if (first === last)
      return [
        `Not known yet: ${number(values[first], 2)}`,
        `Success on held-out tasks, with its 95 % interval: ${interval(first)} ${after(first)}.`,
        "One evaluation cannot show a change.",
      ];
    const rose = low[last] > high[first];
    const fell = high[last] < low[first];
    return [
      `${rose ? "Yes" : fell ? "No" : "Not shown"}: ${number(values[first], 2)} → ${number(values[last], 2)}`,
      `Success on held-out tasks: ${interval(first)} ${after(first)}, ${interval(last)} ${after(last)}.`,
      rose || fell
        ? `It ${rose ? "rose" : "fell"}: the 95 % intervals do not overlap.`
        : "The 95 % intervals overlap, so the difference may be chance.",
    ];
  }

  function source(run) {
    const { steps, train } = run;
    const trajectories = sum((train.step ?? []).map((step) => turnwise.played(run, step)));
    if (!steps.step?.length) {
      const shares = (train["credit/signal_frac"] ?? []).filter((value) => value !== null);
      return [
        `${count(trajectories)} trajectories`,
        shares.length ? `${share(sum(shares), shares.length)} of the groups that it learned from had contrast.` : null,
        "Rollouts were not kept.",
      ];
    }
    const [groups, contrast] = [sum(steps.groups), sum(steps.contrast)];
    const ended = turnwise.summary.endings.map((name) => [name, sum(steps[name])]).filter(([, amount]) => amount);
    const recorded = sum(ended.map(([, amount]) => amount));
    const all = `${count(trajectories)} trajectories`;
    const part = recorded < trajectories ? `${count(recorded)} of ${all} are recorded` : all;
    return [
      `${share(contrast, groups)} of ${plural(groups, "group")} had contrast`,
      "In these the same task ended with different returns, which is what credit by comparison needs.",
      `${part}: ${ended.map(([name, amount]) => `${count(amount)} ${name}`).join(", ")}.`,
    ];
  }

  function cost(run) {
    const spent = [run.train, run.eval].flatMap((columns) =>
      turnwise.stages(columns).map((name) => [name.slice(5, -2), sum(columns[name])]),
    );
    const seconds = sum(spent.map(([, value]) => value));
    const most = spent.toSorted((a, b) => b[1] - a[1]).filter(([, value]) => value > 0.05 * seconds);
    const part = ([name, value]) => `${name} ${share(value, seconds)}`;
    const tokens = sum(run.train["rollout/tokens"]);
    if (!spent.length && !tokens) return null;
    if (!spent.length) return ["Not recorded", `${count(tokens)} generated tokens.`];
    return [
      duration(seconds),
      most.length
        ? `Wall time of steps and evaluations: ${most.map(part).join(", ")}.`
        : null,
      `${count(tokens)} generated tokens in ${run.train.step?.at(-1) ?? 0} of ${plural(run.steps_planned, "step")}.`,
    ];
  }

  function duration(seconds) {
    if (seconds > 5400) return `${number(seconds / 3600, 1)} hours`;
    return seconds > 90 ? `${number(seconds / 60, 1)} minutes` : `${number(seconds, 0)} seconds`;
  }
})();
