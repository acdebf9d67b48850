// Show one turn: the observation, the response with shaded tokens, and its credit as colour and number.
"use strict";

(() => {
  const FULL_SHADE = 2; // nats
  const MERGE_BEYOND = 400; // tokens of a response, beyond which equal shades share an element
  const { make, number, signed, wash } = turnwise;

  /** Make the card of a turn. `group` has the scales and states of all its rollouts. */
  turnwise.turnCard = (turn, group) => {
    const flags = [
      turn.valid ? null : make("span", { class: "flag" }, "invalid"),
      turn.truncated ? make("span", { class: "flag" }, "cut off") : null,
      turn.reward ? make("span", { class: "reward" }, `reward ${paid(turn.reward)}`) : null,
      tree(turn) ? make("span", { class: "quiet" }, tree(turn)) : null,
    ];
    const state = group.states.get(turn.state_key);
    const card = make(
      "article",
      { class: `turn sign${Math.sign(turn.advantage ?? 0)}`, tabindex: "-1", "aria-label": spoken(turn, group) },
      make(
        "header",
        {},
        make("b", {}, `turn ${turn.turn + 1}`),
        ...flags,
        make(
          "span",
          { class: "state", title: turn.state_key },
          `state ${state.number}${state.count > 1 ? ` ×${state.count}` : ""}`,
        ),
      ),
      sent(turn),
      turn.turn === 0 && turn.observation === group.question
        ? make("p", { class: "quiet" }, "the task, as above")
        : make("p", { class: "observation" }, turn.observation),
      make("p", { class: "response" }, ...tokens(turn, group)),
      make("div", { class: "why" }, credit(turn, group), ...turnwise.sum(turn, group)),
    );
    card.dataset.state = state.number;
    return card;
  };

  /** What an agent sent before the observation, such as its system message and tools, folded. */
  function sent(turn) {
    if (!turn.sent?.length) return null;
    const fold = make(
      "details",
      { class: "sent" },
      make("summary", {}, `${turn.sent.length} more sent`),
      ...turn.sent.map((text) => make("p", {}, text)),
    );
    fold.addEventListener("click", (event) => event.stopPropagation()); // elsewhere on the card it means the turn
    fold.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") event.stopPropagation();
    });
    return fold;
  }

  const paid = (reward) => `${reward > 0 ? "+" : ""}${turnwise.reward(reward)}`;

  /** Which rollouts share the turn, or where a branch begins. */
  function tree(turn) {
    if (turn.num_paths > 1) return `shared by ${turn.num_paths} rollouts`;
    return turn.parent === null || turn.parent === undefined ? null : `branches from rollout ${turn.parent}`;
  }

  function spoken(turn, group) {
    const parts = [
      `turn ${turn.turn + 1}`,
      tree(turn),
      turn.valid ? null : "invalid",
      `response: ${turn.response}`,
      `entropy ${number(turn.entropy)}`,
      `credit: ${turnwise.sumText(turn).replaceAll("α", "alpha")}`,
      group.as ? `${group.as} ${signed(turn[`as:${group.as}`])}` : null,
    ];
    return parts.filter(Boolean).join(", ");
  }

  turnwise.spokenTurn = spoken;

  function credit(turn, group) {
    const cell = (name, text, background, title = turnwise.MEANING[name], kind = null) =>
      make(
        "div",
        { title, class: kind, style: background ? `background:${background}` : null },
        make("dt", {}, name),
        make("dd", {}, text),
      );
    const alpha = turn.alpha ?? 1; // unknown without credit
    const cells = [
      cell("H", number(turn.entropy), wash("--entropy", turn.entropy / group.entropy)),
      cell(
        "α",
        number(turn.alpha, 2),
        wash(alpha < 1 ? "--damped" : "--raised", Math.abs(alpha - 1) / group.alpha),
      ),
      cell("base", signed(turn.base), turnwise.creditColour(turn.base, group)),
      cell("A", signed(turn.advantage), turnwise.creditColour(turn.advantage, group)),
    ];
    if (group.as) {
      const value = turn[`as:${group.as}`];
      cells.push(
        cell(
          group.as,
          signed(value),
          turnwise.creditColour(value, group),
          `advantage by ${group.as}, recomputed`,
          "other",
        ),
      );
    }
    return make("dl", { class: "credit" }, ...cells);
  }

  /** Colour of an advantage on a square-root scale, so that small ones stay visible next to a large one. */
  turnwise.creditColour = (value, group) =>
    value === null || value === undefined
      ? null
      : wash(value < 0 ? "--minus" : "--plus", Math.sqrt(Math.abs(value) / group.advantage));

  /** Show the response as tokens shaded by entropy (or surprisal), or as plain text if tokens are unknown. */
  function tokens(turn, group) {
    const ids = turn.tokens ?? [];
    const shades = turn.shade ?? [];
    if (!ids.length || ids.some((id) => group.pieces[id] === undefined)) return [turn.response];
    const level = (row) => Math.min(12, Math.round((12 * (shades[row] ?? 0)) / FULL_SHADE));
    const spans = [];
    for (let row = 0; row < ids.length;) {
      let end = row + 1;
      while (ids.length > MERGE_BEYOND && end < ids.length && level(end) === level(row)) end += 1;
      const text = ids
        .slice(row, end)
        .map((id) => group.pieces[id])
        .join("");
      const mean = shades.slice(row, end).reduce((sum, value) => sum + value, 0) / (end - row);
      const special = end === row + 1 && /^\s*<.*>$/.test(text);
      spans.push(
        make(
          "span",
          {
            class: special ? "special" : null,
            style: level(row) ? `background:${wash("--entropy", level(row) / 12, 62)}` : null,
            title: `${group.shade} ${number(mean)} nats`,
          },
          row ? text : text.trimStart(),
        ),
      );
      row = end;
    }
    return spans;
  }
})();
