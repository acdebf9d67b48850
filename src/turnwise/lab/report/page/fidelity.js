// Show the true advantages of a fidelity analysis next to the credit of methods, one group at a time.
"use strict";

(() => {
  const { make, number, signed, wash } = turnwise;
  const choice = document.querySelector("#fidelity-group");
  const TRUE = "true";
  const FIRST = 6; // best methods that are shown at first, with the run's own
  let chosen = new Set(); // first name of each column of methods that is shown
  let shownRun = null;

  /** Fill the section for the chosen run; hide it if the run has no analysis. */
  turnwise.fillFidelity = async () => {
    const { name, fidelity } = turnwise.run();
    for (const part of document.querySelectorAll("#fidelity, nav a[href='#fidelity']")) part.hidden = !fidelity;
    if (!fidelity) return;
    const rows = await turnwise.table(`${name}/fidelity`);
    if (name !== turnwise.run().name) return; // another run was chosen meanwhile
    const groups = Map.groupBy(rows, (row) => row.group);
    document.querySelector("#fidelity-about").textContent =
      `Step ${fidelity.step}: A* is the true advantage of a response, estimated by fresh continuations, ± one ` +
      "standard error. The other columns are the advantages of methods on the same trajectories, each coloured on " +
      "its own scale. The number below a name is its fidelity: the cosine with A*, 1 is perfect credit" +
      (Object.keys(fidelity.audit).length ? "; AUROC: how well it finds turns with an effect, 0.5 is chance." : ".");
    const before = name === shownRun ? Number(choice.value) : null;
    shownRun = name;
    choice.replaceChildren(
      ...[...groups].map(([group, turns]) => make("option", { value: group }, `${group}: ${turns[0].task}`)),
    );
    choice.value = groups.has(before) ? before : widest(groups);
    choice.onchange = () => draw(groups.get(Number(choice.value)), fidelity);
    const first = [...fidelity.ranked.slice(0, FIRST), own(turnwise.run())].filter(Boolean);
    if (before === null) chosen = new Set(first.map(({ names }) => names[0]));
    columnChoice(fidelity);
    choice.onchange();
  };

  /** The group with the most to decide. */
  function widest(groups) {
    const square = (rows) => rows.reduce((sum, row) => sum + (row[TRUE] ?? 0) ** 2, 0);
    return [...groups].sort(([, a], [, b]) => square(b) - square(a))[0][0];
  }

  const own = ({ fidelity, method }) =>
    fidelity.ranked.find(({ names }) => names.includes(method.replaceAll(" ", "")));
  const label = ({ names }) => names.join(" = ");
  const quality = ({ names, fidelity }, { audit }) => {
    const auroc = names.map((name) => audit[name]).find((value) => value !== undefined && value !== null);
    return number(fidelity, 2) + (auroc === undefined ? "" : `, AUROC ${number(auroc, 2)}`);
  };

  /** The fidelity of a run's own method, and the best that was measured; null without an analysis. */
  turnwise.quality = (run) => {
    const { fidelity } = run;
    if (!fidelity?.ranked.length) return null;
    const mine = own(run);
    const [best] = fidelity.ranked;
    const described = (one) => `${label(one)} ${quality(one, fidelity)}`;
    const rest = `Cosine with the true advantages after step ${fidelity.step}; 1 is perfect credit.`;
    if (!mine) return [`Best measured: ${described(best)}`, rest];
    const above = mine === best ? "The best measured." : `Best measured: ${described(best)}.`;
    return [`Fidelity ${quality(mine, fidelity)}`, above, rest];
  };

  function columnChoice(fidelity) {
    const holder = document.querySelector("#fidelity-columns");
    holder.hidden = fidelity.ranked.length < 2;
    holder.querySelector("div").replaceChildren(
      ...fidelity.ranked.map((one) => {
        const box = make("input", { type: "checkbox", checked: chosen.has(one.names[0]) ? "" : null });
        box.addEventListener("change", () => {
          chosen[box.checked ? "add" : "delete"](one.names[0]);
          choice.onchange();
        });
        return make("label", {}, box, ` ${label(one)}`);
      }),
    );
  }

  function draw(rows, fidelity) {
    const methods = fidelity.ranked.filter(({ names }) => chosen.has(names[0]));
    const columns = [TRUE, ...methods.map(({ names }) => `as:${names[0]}`)];
    const top = columns.map((name) => Math.max(1e-6, ...rows.map((row) => Math.abs(row[name] ?? 0))));
    const head = ["trajectory", "turn", "response", "A*"].map((title) => make("th", { scope: "col" }, title));
    const further = methods.map((one) =>
      make("th", { scope: "col" }, label(one), make("span", { class: "quiet" }, quality(one, fidelity))),
    );
    document.querySelector("#fidelity-table").replaceChildren(
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...head, ...further)),
        make("tbody", {}, ...rows.map((row) => line(row, columns, top))),
      ),
    );
  }

  function line(row, columns, top) {
    const first = row.turn === 0;
    const cells = columns.map((name, place) => {
      const value = row[name];
      const colour = value ? wash(value < 0 ? "--minus" : "--plus", Math.sqrt(Math.abs(value) / top[place])) : null;
      const style = colour ? `background:${colour}` : null;
      const error = name === TRUE && value !== null ? ` ± ${number(row.error, 2)}` : "";
      return make("td", { class: "value", style }, `${signed(value)}${error}`);
    });
    return make(
      "tr",
      { class: first ? "first" : null },
      make("td", {}, first ? `${row.trajectory}: return ${turnwise.reward(row.reward)}` : ""),
      make("td", {}, `${row.turn + 1}`),
      make("td", { class: "said", title: row.observation }, row.response),
      ...cells,
    );
  }
})();
