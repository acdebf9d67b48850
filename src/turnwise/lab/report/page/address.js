// Keep what is shown in the address: the open turn, the filters and the view. A link restores all of it.
"use strict";

(() => {
  const get = (id) => document.querySelector(id);
  const FIELDS = {
    axis: "#axis",
    smooth: "#smooth",
    sort: "#sort",
    only_step: "#step",
    only_group: "#group",
    task: "#task",
    text: "#text",
  };
  const VIEW = ["axis", "smooth"];
  let section = null; // what the links of the bar led to
  let chosen = false; // whether the open turn was chosen, by a link or by hand

  const plain = (field) => (field.options ? field.options[0].value : "");
  const show = () => get("#filters").elements.show;

  /** What differs from a fresh page, as parameters. */
  function shown() {
    const result = new URLSearchParams();
    for (const [name, id] of Object.entries(FIELDS)) {
      const { value } = get(id);
      if (value !== plain(get(id))) result.set(name, value);
    }
    if (show().value !== "all") result.set("show", show().value);
    if (turnwise.view() !== "cards") result.set("view", turnwise.view());
    if (get("#contrast").checked) result.set("contrast", "1");
    if (section) result.set("section", section);
    return result;
  }

  const labelOf = (name) => turnwise.summary.runs.find((run) => run.name === name)?.label ?? name;

  /** A link to a turn, or without a place to the chosen run, with the filters of now. */
  turnwise.address = (place) => {
    const { run, step, trajectory, turn = 0, as = "" } = place ?? { run: turnwise.run().name };
    const result = new URLSearchParams({ run: labelOf(run) });
    if (place) {
      const shownPlace = { step, rollout: trajectory, turn: turn + 1 };
      for (const [name, value] of Object.entries(shownPlace)) result.set(name, value);
      if (as) result.set("as", as);
    }
    shown().forEach((value, name) => result.set(name, value));
    return `#${result}`;
  };

  turnwise.placeIn = (hash) => {
    const given = new URLSearchParams(hash.slice(1));
    if (!given.has("step") || !given.has("rollout")) return null;
    const run = runIn(given);
    return {
      run: run.name,
      step: Number(given.get("step")),
      trajectory: Number(given.get("rollout")),
      turn: Number(given.get("turn") ?? 1) - 1,
      as: run.methods.includes(given.get("as")) ? given.get("as") : "",
    };
  };

  const runIn = (given) =>
    turnwise.summary.runs.find((run) => run.label === given.get("run")) ?? turnwise.summary.runs[0];

  /** Write what is shown into the address; `place` if somebody chose the open turn. */
  turnwise.remember = ({ place = chosen } = {}) => {
    chosen = place;
    history.replaceState(null, "", turnwise.address(place ? turnwise.place : null));
  };

  /** Restore what a link says. A field that it does not name stays. */
  turnwise.restore = async (hash) => {
    const given = new URLSearchParams(hash.slice(1));
    if (given.has("run") && runIn(given).name !== turnwise.run().name) await turnwise.chooseRun(runIn(given).name);
    const put = (names) => {
      for (const name of names) if (given.has(name)) get(FIELDS[name]).value = given.get(name);
      for (const name of names) if (get(FIELDS[name]).value === "") get(FIELDS[name]).value = plain(get(FIELDS[name]));
    };
    const view = () => VIEW.map((name) => get(FIELDS[name]).value).join();
    const before = view();
    put(Object.keys(FIELDS).filter((name) => name !== "only_group"));
    if (given.has("show")) show().value = given.get("show");
    if (!show().value) show().value = "all";
    if (given.has("contrast")) get("#contrast").checked = given.get("contrast") === "1";
    if (view() !== before) turnwise.redraw();
    if (given.has("view")) turnwise.setView(given.get("view"));
    await turnwise.filter();
    if (given.has("only_group")) {
      put(["only_group"]);
      await turnwise.filter();
    }
    chosen = turnwise.placeIn(hash) !== null;
    section = document.querySelector(`main > section[id="${CSS.escape(given.get("section") ?? "")}"]`)?.id ?? section;
    if (given.has("section") && section) get(`#${section}`).scrollIntoView({ block: "start", behavior: "instant" });
  };

  get("nav .links").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    section = link.hash.slice(1);
    get(link.hash).querySelectorAll("details.fold").forEach((fold) => (fold.open = true));
    get(link.hash).setAttribute("tabindex", "-1");
    get(link.hash).focus({ preventScroll: true });
    get(link.hash).scrollIntoView({ block: "start" });
    turnwise.remember();
  });
})();
