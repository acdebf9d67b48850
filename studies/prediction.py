"""Ask whether the fidelity of a method's credit at the start predicts how well the method learns.

    python studies/prediction.py            # write docs/results/prediction from the finished runs of the three studies

The studies fidelity-household, fidelity-hesitant and fidelity-confident say what was decided before the first run.
Runs are read from runs/, what predicts from docs/results/prediction/before: the leaderboard's data of that time. Drift
and transfer did not exist then; they come from docs/results/prediction/later, the leaderboard's data of a later day,
whose policies were trained again by the same recipes. So do fidelity, gradient and signal once more, measured anew.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from turnwise.base.errors import RunError, TurnwiseError
from turnwise.base.files import write_json, write_text
from turnwise.base.tables import Page, page_as_markdown
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.show import p_text
from turnwise.lab.diagnostics.statistics import holm
from turnwise.lab.diagnostics.study import finished, load_study

ROOT = Path(__file__).parents[1]
STUDIES = {
    "household": "household",
    "hesitant": "crossroads-hesitant",
    "confident": "crossroads-confident",
}
"""Study, after "fidelity-", to the leaderboard's environment."""
PLANNED = ("fidelity", "gradient", "signal", "drift")
TOGETHER = (("fidelity",), ("gradient",), ("transfer",), ("fidelity", "signal"), ("fidelity", "signal", "drift"))
DIFFER = ("grpo+aem", "gigpo+aem", "empg", "grpo_n", "a_grae")
"""Methods whose credit differs most from GRPO's on crossroads, chosen after the results."""
RESAMPLES = 2000
BEFORE = ROOT / "docs" / "results" / "prediction" / "before"
LATER = BEFORE.with_name("later")


@dataclasses.dataclass(frozen=True)
class Learned:
    """What the methods of one study reached: `[methods, seeds]`, seeds that all methods have finished."""

    methods: list[str]
    seeds: list[int]
    area: np.ndarray
    final: np.ndarray


def read_study(path: Path) -> Learned:
    """Read the finished runs of a study.

    Raises:
        RunError: Fewer than two seeds are finished for all methods.
    """
    study = load_study(path)
    (arms,) = finished(study).values() or ({},)
    by_seed = {arm: {run.config.run.seed: run for run in runs} for arm, runs in arms.items()}
    methods = list(study.config.methods)
    seeds = sorted(set.intersection(*(set(by_seed.get(name, {})) for name in methods)))
    if len(seeds) < 2:
        raise RunError(f"{study.name}: {len(seeds)} seeds are finished for all methods, expected 2 or more")
    runs = [[by_seed[name][seed] for seed in seeds] for name in methods]
    read = lambda value: np.array([[value(run) for run in row] for row in runs])  # noqa: E731
    return Learned([name.replace(" ", "") for name in methods], seeds, read(area), read(lambda run: run.curve()[2][-1]))


def area(run: RunLog) -> float:
    """Return the success of the trajectories that training played, averaged over steps."""
    return float(np.mean([line["rollout/success"] for line in run.records if "rollout/success" in line]))


def predictors(environment: str, methods: Sequence[str], before: Path, later: Path) -> dict[str, np.ndarray]:
    """Read what was measured at the start: before the studies began, and what was added later if it is there."""
    found, added = (_start(folder, environment) for folder in (before, later))
    first, anew = (
        {kind: {name: one for name, (one, _) in table.items()} for kind, table in measured(data).items()}
        for data in (found, added)
    )
    value = lambda table: {name: one["value"] for name, one in (table or {}).items()}  # noqa: E731
    tables = {
        **first,
        "drift": value((added.get("drift") or {}).get("drift")),
        "transfer": value(((added.get("gradient") or {}).get("transfer") or {}).get("transfer")),
        **{f"{kind} anew": table for kind, table in anew.items()},
    }
    return {name: np.array([table[m] for m in methods]) for name, table in tables.items() if table}


def measured(found: Mapping) -> dict[str, dict[str, tuple[float, bool]]]:
    """Return by kind and method what the leaderboard measured, and whether it is told from zero; empty if nothing."""
    if not found:
        return {}
    within = lambda one: (one["value"], one["low"] > 0 or one["high"] < 0)  # noqa: E731
    size = lambda one: one["signal"] + one["noise"]  # noqa: E731
    share = lambda one: (one["signal"] / size(one), abs(one["signal"]) > 2 * one["error"])  # noqa: E731
    return {
        "fidelity": {name: within(one) for name, one in found["fidelity"].items()},
        "gradient": {name: within(one) for name, one in found["gradient"]["fidelity"].items()},
        "signal": {name: share(one) for name, one in found["gradient"]["noise"].items()},
    }


def agreement(environment: str, methods: Sequence[str], before: Path, later: Path) -> dict[str, dict[str, float]]:
    """Say how far two measurements agree: the rank correlation of both, and how many methods each tells from zero."""
    both = [measured(_start(folder, environment)) for folder in (before, later)]
    result = {}
    for kind in both[0] if all(both) else ():
        value_2M = np.array([[table[kind][name][0] for name in methods] for table in both])
        first, anew = (sum(table[kind][name][1] for name in methods) for table in both)
        result[kind] = {"correlation": _spearman(*value_2M).item(), "shown": first, "shown anew": anew}
    return result


def _start(folder: Path, environment: str) -> dict:
    """Read the leaderboard's data of an environment at the start of training; empty if there are none."""
    path = folder / f"{environment}-start.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def rank_correlation(value_M: np.ndarray, reached_MS: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Correlate ranks over methods, with an interval by resampling seeds and a p value by exchanging methods."""
    draw = np.random.default_rng(seed)
    rho = _spearman(value_M, reached_MS.mean(1)).item()
    seeds = draw.integers(reached_MS.shape[1], size=(RESAMPLES, reached_MS.shape[1]))
    again = _spearman(value_M, reached_MS[:, seeds].mean(2).T)
    chance = _spearman(draw.permuted(np.tile(value_M, (RESAMPLES, 1)), axis=1), reached_MS.mean(1))
    low, high = np.quantile(again, [0.025, 0.975])
    p = (1 + np.sum(np.abs(chance) >= abs(rho) - 1e-12)) / (1 + RESAMPLES)
    return {"value": rho, "low": float(low), "high": float(high), "p": float(p)}


def corrected(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Add Holm-corrected p values among the predictors that were planned."""
    planned = [kind for kind in PLANNED if kind in found]
    for kind, p in zip(planned, holm([found[kind]["p"] for kind in planned]), strict=True):
        found[kind]["holm"] = p
    return found


def left_out(values: Sequence[np.ndarray], reached_MS: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Predict the rank of each method by regression on the ranks of the others, and correlate with what it reached.

    The interval resamples seeds.
    """
    ranks = np.stack([np.ones(len(reached_MS)), *(_ranks(one) for one in values)], axis=1)
    drawn = np.random.default_rng(seed).integers(reached_MS.shape[1], size=(RESAMPLES, reached_MS.shape[1]))
    reached_DM = np.concatenate([reached_MS.mean(1)[None], reached_MS[:, drawn].mean(2).T])
    target_DM = _ranks(reached_DM)
    guessed_DM = np.empty_like(target_DM)
    for method in range(len(reached_MS)):
        others = np.arange(len(reached_MS)) != method
        guessed_DM[:, method] = ranks[method] @ np.linalg.lstsq(ranks[others], target_DM[:, others].T, rcond=None)[0]
    rho, *again = _spearman(guessed_DM, reached_DM).tolist()
    low, high = np.quantile(again, [0.025, 0.975])
    return {"value": rho, "low": float(low), "high": float(high)}


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation along the last axis; 0 if one side does not vary.

    What differs by rounding alone is a tie: some methods give the same credit in other units.
    """
    a, b = (_ranks(one) for one in (a, b))
    a, b = (rank - rank.mean(-1, keepdims=True) for rank in (a, b))
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), size, out=np.zeros_like(size), where=size > 0)


def _ranks(value: np.ndarray) -> np.ndarray:
    return stats.rankdata(np.round(value, 6), axis=-1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "results" / "prediction")
    parser.add_argument("--later", type=Path, default=LATER)
    options = parser.parse_args(arguments)
    try:
        results = {}
        for study, environment in STUDIES.items():
            try:
                learned = read_study(ROOT / "studies" / f"fidelity-{study}.toml")
            except RunError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            where = environment, learned.methods, BEFORE, options.later
            results[environment] = judge(learned, predictors(*where)) | {"agreement": agreement(*where)}
        if not results:
            raise RunError("no study has runs; play them with `turnwise study studies/fidelity-hesitant.toml`")
        options.folder.mkdir(parents=True, exist_ok=True)
        write_json(options.folder / "data.json", results)
        write_text(options.folder / "README.md", page_as_markdown(page(results)))
        plot(results, options.folder / "prediction.png")
    except TurnwiseError as error:
        print(f"prediction: {error}", file=sys.stderr)
        return 2
    return 0


def judge(learned: Learned, values: Mapping[str, np.ndarray]) -> dict:
    """Return everything that the page says about one environment."""
    few = np.array([name not in DIFFER for name in learned.methods])
    return {
        "seeds": learned.seeds,
        "methods": {
            name: {
                "area": float(learned.area[row].mean()),
                "final": float(learned.final[row].mean()),
                **{kind: float(value[row]) for kind, value in values.items()},
            }
            for row, name in enumerate(learned.methods)
        },
        "area": corrected({kind: rank_correlation(value, learned.area) for kind, value in values.items()}),
        "final": {kind: rank_correlation(value, learned.final) for kind, value in values.items()},
        "few": {
            "methods": int(few.sum()),
            "area": {kind: rank_correlation(value[few], learned.area[few]) for kind, value in values.items()},
        },
        "together": {
            ", ".join(kinds): left_out([values[kind] for kind in kinds], learned.area)
            for kinds in TOGETHER
            if all(kind in values for kind in kinds)
        },
    }


def page(results: Mapping[str, dict]) -> Page:
    """Compose the page."""
    return [
        "# Does fidelity predict learning?",
        "Methods were trained with equal seeds and trajectories, and ranked by success over training: that of the "
        "trajectories played, averaged over steps. What may predict it was measured at the start, on one policy of "
        "another seed ([data](before)): [fidelity](../../how-to/fidelity.md), fidelity and signal of the gradient, "
        "entropy drift, transfer. The first four were planned before the first run "
        "(`studies/fidelity-household.toml`; drift was measured later, on policies that the same recipes trained "
        'again); transfer was added after the first results. "Anew" is a second measurement, from the '
        "leaderboard's [data of a later day](later). Somebody looked at household's results after six of its ten "
        "seeds. In `graph_gpo` the last response of a failure led nowhere then; now it leads to the state in which "
        "it ended. "
        f"{_missing(results)}`python studies/prediction.py` writes this page from the runs, and [data.json](data.json) "
        "with every number: each method's values, predictors joined by regression (`together`), and the correlations "
        "without the methods whose credit differs most from GRPO's on crossroads (`few`: AEM, EMPG, GRPO-N and A-GRAE "
        "left out, chosen after the results).",
        "![Success against fidelity of the gradient](prediction.png)",
        "Spearman's rank correlation over the methods with success over training; 95 % intervals by resampling "
        "seeds; p by permuting methods, and after Holm's correction over the four that were planned. `few` is the "
        "correlation without the methods named above; agreement is the rank correlation of the two measurements. "
        "Where they do not agree, a small p of one of them says little. The intervals cover the noise of training "
        "seeds alone, not the error of what was measured at the start on 12 groups, and nothing here is about other "
        "methods or policies. On both settings of crossroads no dead end shows before the end, so all trajectories "
        "of a mile look alike, and GRPO, GiGPO and HGPO give the same credit up to its scale, as do both AEMs: there "
        "are eleven different credits, where p counts fourteen. Training also deducts 0.1 for each invalid response, "
        "43 % of them on household at the start; the measurements leave that out.",
        [
            ("environment", "measured at the start", "all", "p", "Holm", "few", "agreement"),
            *(
                (
                    environment,
                    kind,
                    _text(one),
                    p_text(one["p"]),
                    p_text(one["holm"]) if "holm" in one else "-",
                    f"{found['few']['area'][kind]['value']:+.2f}",
                    f"{found['agreement'][kind]['correlation']:+.2f}" if kind in found.get("agreement", {}) else "-",
                )
                for environment, found in results.items()
                for kind, one in found["area"].items()
            ),
        ],
        *(
            f"{environment}, {len(found['seeds'])} seeds, by success over training: {ranked(found)}."
            for environment, found in results.items()
        ),
    ]


def ranked(found: Mapping[str, dict]) -> str:
    """List methods with their success over training, best first."""
    rows = sorted(found["methods"].items(), key=lambda item: -item[1]["area"])
    return ", ".join(f"{name} {one['area']:.3f}" for name, one in rows)


def _missing(results: Mapping[str, dict]) -> str:
    """Say which of the planned environments have no runs."""
    missing = [environment for environment in STUDIES.values() if environment not in results]
    return f"Planned and not run: {', '.join(missing)}. " if missing else ""


def _text(one: Mapping[str, float]) -> str:
    return f"{one['value']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}]"


def plot(results: Mapping[str, dict], path: Path) -> None:
    """Draw success over training against fidelity of credit and of gradient."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(results), 6.5), layout="constrained")
    axes = figure.subplots(2, len(results), squeeze=False)
    for column, (environment, found) in enumerate(results.items()):
        for row, kind in enumerate(("fidelity", "gradient")):
            axis, methods = axes[row][column], found["methods"]
            x, y = ([one[what] for one in methods.values()] for what in (kind, "area"))
            axis.scatter(x, y, s=14)
            for name, one in methods.items():
                axis.annotate(name, (one[kind], one["area"]), fontsize=6, xytext=(2, 2), textcoords="offset points")
            axis.set_title(f"{environment}: rank correlation {found['area'][kind]['value']:+.2f}", fontsize=9)
            axis.set_xlabel({"fidelity": "fidelity of the credit", "gradient": "fidelity of the gradient"}[kind])
            axis.set_ylabel("success over training")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
