"""pass@k: the estimator against enumeration, its intervals on made counts, and the command on runs."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnostics.made import made_run
from tests.toys import color_policy, small_config

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.environments.suites import make_suite
from turnwise.lab.diagnostics.capability import (
    TaskOutcomes,
    as_json,
    capability_of,
    capability_table,
    play_checkpoint,
    solved_table,
)
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.statistics import contrast
from turnwise.models.policy import Policy
from turnwise.train.checkpoint import save_checkpoint
from turnwise.train.evaluation.pass_at_k import budgets, pass_at_k
from turnwise.train.evaluation.play import panel
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_estimate_counts_the_draws_with_a_success(drawn):
    n, c, k = drawn
    choices = list(itertools.combinations([1] * c + [0] * (n - c), k))
    share = Fraction(sum(any(choice) for choice in choices), len(choices))
    assert pass_at_k(np.array([c]), np.array([n]), [k])[0, 0] == pytest.approx(float(share), abs=1e-12)


@pytest.mark.parametrize(("chance", "k"), [(0.003, 16), (0.2, 16), (0.7, 3)])
def test_the_estimate_is_unbiased_and_a_plug_in_is_not(chance, k):
    """Over the binomial distribution of c; the plug-in 1 - (1 - c/n)^k, a known mistake, is too low."""
    n = 20
    c = np.arange(n + 1)
    weight = np.array([math.comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in c])
    truth = 1 - (1 - chance) ** k
    assert weight @ pass_at_k(c, np.full(n + 1, n), [k])[:, 0] == pytest.approx(truth, rel=1e-12)
    assert abs(weight @ (1 - (1 - c / n) ** k) - truth) > 1e-3


def test_large_counts_stay_exact():
    n = 20_000
    found = pass_at_k(np.array([3, n, 0, n - 255]), np.full(4, n), [1, 256])
    exact = 1 - Fraction(math.comb(n - 3, 256), math.comb(n, 256))
    np.testing.assert_allclose(found[0], [3 / n, float(exact)], rtol=1e-10)
    assert found[1].tolist() == [1.0, 1.0]
    assert found[2].tolist() == [0.0, 0.0]
    assert found[3, 1] == 1.0, "fewer than k failures: k trajectories cannot all fail"


def test_k_beyond_the_trajectories_is_refused():
    with pytest.raises(ConfigError, match="k=9, expected a number from 1 to 8"):
        pass_at_k(np.array([1, 1]), np.array([10, 8]), [1, 9])
    with pytest.raises(ConfigError, match="successes must lie between 0"):
        pass_at_k(np.array([3]), np.array([2]), [1])
    assert budgets(256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert budgets(48) == [1, 2, 4, 8, 16, 32, 48]
    assert budgets(1) == [1]


def played(successes: list[int], n: int = 8) -> TaskOutcomes:
    return TaskOutcomes(0, [f"t{i}" for i in range(len(successes))], np.array(successes), np.full(len(successes), n))


def test_sharpening_gains_at_one_and_loses_at_the_largest(tmp_path):
    """One half of the debate: likelier where it was possible, lost where it was rare."""
    run = made_run(tmp_path / "a", 0, [True])
    found = capability_of([run], [(played([2] * 40), played([8] * 25 + [0] * 15))])
    changes = dict(zip(found.k, found.change, strict=True))
    assert changes[1].value == pytest.approx(25 / 40 - 0.25)
    assert changes[1].low > 0
    assert changes[8].value == pytest.approx(-15 / 40)
    assert changes[8].high < 0
    assert found.solved.tolist() == [[0.0, 0.0], [15.0, 25.0]]
    rows = capability_table({"grpo": found})
    assert (rows[1][-1], rows[-1][-1]) == ("gained", "lost")
    assert solved_table({"grpo": found})[1] == ("grpo", "40", "25", "15", "0", "0")


def test_the_change_is_paired_by_task(tmp_path):
    """Tasks of unequal difficulty: each curve is uncertain, but every task gained the same."""
    run = made_run(tmp_path / "a", 0, [True])
    before = [0, 7] * 20
    found = capability_of([run], [(played(before), played([c + 1 for c in before]))])
    assert found.change[0].value == pytest.approx(1 / 8)
    assert not math.isfinite(found.change[0].high), "no spread between the tasks: no interval"
    assert found.before[0].high - found.before[0].low > 0.2
    assert as_json({"grpo": found})["grpo"]["change"][0] == [pytest.approx(1 / 8), None, None]


def test_intervals_cover_the_truth_as_often_as_they_say(tmp_path):
    run, generator, hits = made_run(tmp_path / "a", 0, [True]), np.random.default_rng(0), 0
    for trial in range(60):
        chance = generator.beta(0.5, 1.0, size=(2, 60))  # mean 1/3 of every population of tasks
        wins = generator.binomial(16, chance)
        found = capability_of([run], [(played(list(wins[0]), 16), played(list(wins[1]), 16))], seed=trial, draws=500)
        hits += found.change[0].low <= 0.0 <= found.change[0].high
    assert 52 <= hits <= 60


def test_intervals_over_few_runs_cover_the_truth_too(tmp_path):
    """What runs gain differs more than tasks do. Without a correction for three runs, 50 of 60 hold the truth."""
    runs, generator, hits = [made_run(tmp_path / "a", n, [True]) for n in range(3)], np.random.default_rng(0), 0
    for trial in range(60):
        chance = np.full((3, 2, 40), 0.5)
        chance[:, 1] += 0.1 * generator.normal(size=(3, 1))
        wins = generator.binomial(16, chance)
        pairs = [(played(list(before), 16), played(list(after), 16)) for before, after in wins]
        found = capability_of(runs, pairs, seed=trial, draws=500)
        hits += found.change[0].low <= 0.0 <= found.change[0].high
    assert hits >= 53


def test_runs_are_drawn_too(tmp_path):
    """One of two seeds fails everywhere: of two runs, the interval is Student's, whatever the bootstrap says."""
    runs = [made_run(tmp_path / "a", seed, [True]) for seed in (0, 1)]
    pairs = [(played([4] * 30), played([8] * 30)), (played([4] * 30), played([0] * 30))]
    found = capability_of(runs, pairs)
    assert (found.change[0].low, found.change[0].high) == (-1.0, 1.0), "cut off at what is possible"
    three = [(played([4] * 30), played([after] * 30)) for after in (5, 3, 4)]
    found = capability_of([*runs, made_run(tmp_path / "a", 2, [True])], three)
    ends = contrast([np.array([0.125, -0.125, 0.0])], [1.0])
    assert (found.change[0].low, found.change[0].high) == pytest.approx((ends.low, ends.high))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[RunLog]:
    folder = tmp_path_factory.mktemp("runs")
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.train.prepare.warm_policy", lambda *_, **__: (_policy(), False))
        for name, options in (("grpo", {}), ("grpo_n", {"sign": "negative"})):
            method = {"name": name, **options}
            made.append(train(small_config(folder, method=method, **setup(name))))
    return [RunLog(*RunFolder.open(each.path)) for each in made]


def setup(name: str) -> dict[str, dict[str, object]]:
    return {"run": {"name": name, "steps": 1}, "rollout": {"groups": 8, "group_size": 8}}


def _policy() -> Policy:
    return color_policy(spread=20.0)


def test_the_command_plays_both_policies_of_every_run(runs, tmp_path, capsys):
    paths = [str(run.folder.path) for run in runs]
    asked = ["--tasks", "6", "--samples", "12", "--out", str(tmp_path / "out")]
    assert main(["analyse", "pass-at-k", *paths, *asked]) == 0
    told = json.loads((tmp_path / "out" / "pass-at-k.json").read_text())
    assert list(told) == ["grpo", "grpo_n sign=negative"]
    first = told["grpo"]["runs"][0]
    assert (first["before"]["step"], first["after"]["step"]) == (0, 1)
    assert first["before"]["trajectories"] == [12] * 6
    suite = make_suite(runs[0].config.environment)
    assert first["before"]["tasks"] == first["after"]["tasks"] == [str(task) for task in panel(suite.tasks("valid"), 6)]
    elsewhere = play_checkpoint(runs[0], 1, tasks=2, samples=1, split="train")
    assert list(elsewhere.tasks) == [str(task) for task in panel(suite.tasks("train"), 2)]
    again = pass_at_k(np.array(first["after"]["successes"]), np.full(6, 12), told["grpo"]["k"]).mean(axis=0)
    np.testing.assert_allclose(again, [value for value, *_ in told["grpo"]["after"]])
    assert first["before"] == told["grpo_n sign=negative"]["runs"][0]["before"], "the same policy, the same draws"
    assert first["after"] != told["grpo_n sign=negative"]["runs"][0]["after"]
    assert 0 < sum(first["before"]["successes"]) < 72
    assert len(set(first["before"]["successes"])) > 1, "tasks differ"
    page = (tmp_path / "out" / "pass-at-k.md").read_text()
    assert "| grpo_n sign=negative | 1 | 12 |" in page
    assert (tmp_path / "out" / "pass-at-k.png").stat().st_size > 10_000
    assert "pass@k is the chance that at least one of k trajectories succeeds" in capsys.readouterr().out


def test_mistakes_are_told(runs, capsys, tmp_path):
    path = str(runs[0].folder.path)
    assert main(["analyse", "pass-at-k", path, "--step", "7"]) == 2
    assert "has no checkpoint of step 7; saved steps: 0, 1" in capsys.readouterr().err
    assert main(["analyse", "pass-at-k", path, "--before", "1", "--step", "0"]) == 2
    assert "--before 1 --step 0: expected --step after --before" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["analyse", "pass-at-k", path, "--temperature", "0"])
    assert "--temperature: expected a number above 0, got '0'" in " ".join(capsys.readouterr().err.split())
    other = made_run(Path(tmp_path / "b"), 0, [True], environment={"options": {"turns": 2}})
    save_checkpoint(other.folder, 0, _policy(), {}, keep=1)
    assert main(["analyse", "pass-at-k", path, str(other.folder.path)]) == 2
    assert "differ in options: {} and {'turns': 2}; compare runs of one environment" in capsys.readouterr().err
