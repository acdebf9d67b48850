// Show the true advantages of a fidelity analysis beside the credit of every method, a group at a time.
"use strict";

(() => {
  const { make, number, signed, wash } = turnwise;
  const choice = document.querySelector("#fidelity-group");
  const TRUE = "true";
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
      "its own scale. The closer a column's colours are to those of A*, the better its credit.";
    const before = name === shownRun ? Number(choice.value) : null;
    shownRun = name;
    choice.replaceChildren(
      ...[...groups].map(([group, turns]) => make("option", { value: group }, `${group}: ${turns[0].task}`)),
    );
    choice.value = groups.has(before) ? before : widest(groups);
    choice.onchange = () => draw(groups.get(Number(choice.value)), fidelity.methods);
    choice.onchange();
  };

  /** The group with the most to decide. */
  function widest(groups) {
    const square = (rows) => rows.reduce((sum, row) => sum + (row[TRUE] ?? 0) ** 2, 0);
    return [...groups].sort(([, a], [, b]) => square(b) - square(a))[0][0];
  }

  function draw(rows, methods) {
    const columns = [TRUE, ...methods.map((method) => `as:${method}`)];
    const top = columns.map((name) => Math.max(1e-6, ...rows.map((row) => Math.abs(row[name] ?? 0))));
    const head = ["trajectory", "turn", "response", "A*", ...methods];
    document.querySelector("#fidelity-table").replaceChildren(
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)))),
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
