// Explain the credit of a response: the sum from base to advantage, the origin of base, and the four numbers.
"use strict";

(() => {
  const ROUNDING = 1e-9; // a credit below this is 0
  const NAMES = { modulate_by_entropy: "α", add_penalty: "penalty" };
  const { make, number, signed } = turnwise;
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

  /** The numbers of a card, in its order. */
  turnwise.MEANING = {
    H: "mean entropy of the response's tokens, in nats",
    α: "coefficient on base; above 1 the response counts more, as a confident one where entropy modulates",
    base: "advantage before coefficients and penalties, computed from the returns",
    A: "advantage that the update used",
  };

  /** The legend of the four numbers. */
  turnwise.meaning = () => {
    const entry = ([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text));
    const entries = Object.entries(turnwise.MEANING).map(entry);
    return make("dl", { class: "meaning", "aria-label": "The numbers of a response" }, ...entries);
  };

  /** Choose digits that show two significant ones: 0.84, 0.084. */
  function digits(value) {
    const size = Math.abs(value);
    return size < 5e-5 ? null : Math.max(2, Math.min(4, 1 - Math.floor(Math.log10(size * (1 + 1e-6)))));
  }
  const amount = (value) => (digits(value) ? number(Math.abs(value), digits(value)) : "0.00");
  const plus = (value) => (digits(value) ? signed(value, digits(value)) : "0.00");
  function factor(value) {
    const off = Math.abs(value - 1);
    return number(value, off < 0.0005 ? 4 : off < 0.005 ? 3 : 2);
  }
  const named = (block) => NAMES[block] ?? block.replaceAll("_", " ");
  const exact = (value) => number(value, 5);
  const byWhat = (block) => (block === "other" ? "by blocks that the record does not trace" : `by ${block}`);
  const ofPart = ({ block, coefficient, result }) =>
    `; in it ${block}${coefficient === 1 ? "" : ` × ${factor(coefficient)}`} → ${plus(result)}`;

  /** The sum as terms, {text, name, title}, without terms that change nothing. Null if left out of the update. */
  function terms(turn) {
    if (!known(turn.base) || !known(turn.advantage)) return null;
    const { base: meaningOfBase, A: meaningOfA } = turnwise.MEANING;
    const result = [{ text: plus(turn.base), name: "base", title: `${meaningOfBase}: ${exact(turn.base)}` }];
    let value = turn.base;
    let parts = [];
    for (const did of turn.trace) {
      if (did.part) {
        parts.push(did);
        continue;
      }
      const name = named(did.block);
      const how = `${byWhat(did.block)}${parts.map(ofPart).join("")}, after it ${exact(did.result)}`;
      if (did.coefficient !== 1 && Math.abs(value) > ROUNDING) {
        const title = `coefficient ${exact(did.coefficient)} ${how}`;
        result.push({ text: `× ${factor(did.coefficient)}`, name, title });
      }
      if (Math.abs(did.added) > ROUNDING) result.push(isMasked(did) ? masked(did) : added(did, name, how));
      value = did.result;
      parts = [];
    }
    if (result.at(-1).kind === "masked") return result;
    const title = `${meaningOfA}: ${exact(turn.advantage)}`;
    return [...result, { text: `= ${plus(turn.advantage)}`, name: "", title, kind: "total" }];
  }

  const isMasked = ({ block, result }) => result === 0 && !block.startsWith("add_");

  function masked({ block }) {
    const title = `the response does not teach: credit set to 0 ${byWhat(block)}`;
    return { text: "masked → 0", name: "", title, kind: "masked" };
  }

  function added(did, name, how) {
    const sign = did.added < 0 ? "−" : "+";
    return { text: `${sign} ${amount(did.added)}`, name, title: `${sign}${exact(Math.abs(did.added))} added ${how}` };
  }

  const before = (term, place) => (term.kind === "masked" ? ", " : place ? " " : "");

  /** The sum as text: "+0.84 base × 1.31 α − 0.10 penalty = +1.00". */
  turnwise.sumText = (turn) => {
    const shown = terms(turn) ?? [{ text: "left out of the update" }];
    return shown.map((term, place) => `${before(term, place)}${term.text}${term.name ? ` ${term.name}` : ""}`).join("");
  };

  /** The sum as an element, and below it where base comes from. */
  turnwise.sum = (turn, group) => {
    const shown = terms(turn);
    if (!shown) return [];
    const spans = shown.flatMap((term, place) => {
      const name = term.name ? [" ", make("em", {}, term.name)] : [];
      return [before(term, place), make("span", { title: term.title, class: term.kind ?? null }, term.text, ...name)];
    });
    const from = originOf(turn, group);
    const isCommon = from === group.origins?.get(turn.trajectory);
    return [make("p", { class: "sum" }, ...spans), isCommon ? null : paragraph(from)];
  };

  /** Where base comes from: the arithmetic that gives it, if the returns alone do, else the returns. */
  function originOf(turn, { returns }) {
    const own = returns.of.get(turn.trajectory);
    return known(own) && known(turn.base) ? arithmetic(turn.base, own, returns) : null;
  }

  const ORIGIN =
    "return: sum of the trajectory's rewards; group: its trajectories that ended, without failed and pruned ones. " +
    "Without an equation, the method compares more than these returns, such as responses in the same state.";
  const paragraph = (text) => (text ? make("p", { class: "origin quiet", title: ORIGIN }, text) : null);

  /** What most turns of a rollout have in common, told once, in its head. */
  turnwise.commonOrigin = (turns, group) => {
    const counts = new Map();
    for (const turn of turns) {
      const text = originOf(turn, group);
      if (text) counts.set(text, (counts.get(text) ?? 0) + 1);
    }
    const [most] = [...counts].toSorted((a, b) => b[1] - a[1]);
    return most?.[0] ?? null;
  };

  turnwise.originLine = paragraph;

  function arithmetic(base, own, { of, mean, std }) {
    const brief = (value) => number(value, Number.isInteger(value) ? 0 : 2);
    if (of.size < 2) return `return ${brief(own)}; no other in its group`;
    const [off, others] = [own - mean, (mean * of.size - own) / (of.size - 1)];
    const is = (value) => Math.abs(base - value) <= 1e-3 * Math.abs(value) + 1e-6;
    const difference = `return ${brief(own)} − group mean ${brief(mean)}`;
    if (std > 0 && is(off / std)) return `base = (${difference}) / std ${brief(std)}`;
    if (is(off)) return `base = ${difference}`;
    if (is(own - others)) return `base = return ${brief(own)} − mean of the others ${brief(others)}`;
    return `return ${brief(own)}; group mean ${brief(mean)}, std ${brief(std)}`;
  }

  /** Returns of a group: `of` (trajectory to return), mean and sample standard deviation. */
  turnwise.groupReturns = (trajectories) => {
    const of = new Map(trajectories.map(({ trajectory, reward }) => [trajectory, reward]));
    const values = [...of.values()];
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const std = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
    return { of, mean, std: std > 1e-6 * Math.abs(mean) ? std : 0 }; // sums in float32
  };

  /** Say why a group without contrast has no credit; `usable` are its trajectories whose returns are compared. */
  turnwise.noContrast = (usable, { mean }) => {
    const all = usable.length;
    if (!all) return "no contrast: no trajectory of this group has a return to compare";
    const turns = usable.flat();
    const won = usable.filter(([first]) => first.outcome === 0).length;
    const what = won === all ? "won" : won ? "got the same return" : "failed the task";
    const who = all === 1 ? `only one trajectory has a return to compare, and it ${what}` : `all ${all} ${what}`;
    const some = (field) => turns.some((turn) => Math.abs(turn[field] ?? 0) > ROUNDING);
    const penalties = some("advantage") ? "no credit but penalties" : "no credit";
    const credit = some("base") ? "returns give no credit" : penalties;
    return `no contrast: ${who} (return ${number(mean, Number.isInteger(mean) ? 0 : 2)}), so ${credit}`;
  };
})();
