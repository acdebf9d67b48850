"""The audit: every statistic against brute force and by hand, wrong forms rejected, and the command on a run."""

import itertools
import json

import numpy as np
import pytest
from scipy import stats
from tests.toys import small_config

from turnwise.commands.cli import main
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.lab.diagnostics import fidelity_run
from turnwise.lab.diagnostics.audit import (
    audit,
    auroc,
    draw_weights,
    effective_share,
    mean,
    precision,
    rank_correlation,
    rank_within,
)
from turnwise.lab.diagnostics.audit_show import JUDGE, as_json, audit_run, audit_table
from turnwise.lab.diagnostics.effects import Effects, action_number, measure_effects, permutation_test
from turnwise.lab.diagnostics.fidelity_run import measure_run
from turnwise.lab.diagnostics.statistics import interval_of_draws
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ONES = np.ones((1, 6))


# -- effects -----------------------------------------------------------------------------------------------------------


def test_an_effect_is_what_follows_minus_what_other_actions_bring():
    # one trajectory of two responses; both histories are continued four times
    return_HK = np.array([[1.0, 0.0, 1.0, 4.0], [2.0, 2.0, 4.0, 4.0]])
    action_HK = np.array([[7, 8, 9, 7], [5, 5, 5, 5]])
    found = measure_effects(
        np.array([0.5, 3.0]), np.array([7, 5]), np.array([0, 1]), np.array([1, -1]), return_HK, action_HK
    )
    # the first: 0.5 + mean(2, 2, 4, 4) against 0 and 1 of the actions 8 and 9; not the 1 and 4 of its own action
    assert found.effect_R[0] == pytest.approx(0.5 + 3 - 0.5)
    assert found.variance_R[0] == pytest.approx((4 / 3) / 4 + 0.5 / 2)
    assert found.alternatives_R.tolist() == [2, 0]
    assert found.defined_R.tolist() == [True, False], "the policy never drew anything else"
    one = measure_effects(
        np.array([3.0]), np.array([7]), np.array([0]), np.array([-1]), return_HK, action_HK, alternatives=2
    )
    assert one.effect_R[0] == pytest.approx(3 - 0.5), "the end is worth nothing more"
    assert one.variance_R[0] == pytest.approx(0.25), "and every replay ends alike"
    few = measure_effects(
        np.array([3.0]), np.array([7]), np.array([0]), np.array([-1]), return_HK, action_HK, alternatives=3
    )
    assert not few.defined_R.any()
    return_HK[0, 1] = np.nan
    lost = measure_effects(np.array([3.0]), np.array([7]), np.array([0]), np.array([-1]), return_HK, action_HK)
    assert not lost.defined_R.any(), "one alternative is left, whose spread is unknown"


def test_the_permutation_test_is_the_exact_one_but_for_its_draws():
    own, others = np.array([1.0, 1.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0, 0.0])
    values = np.concatenate([own, others])

    def far(chosen):
        rest = [place for place in range(10) if place not in chosen]
        return abs(values[list(chosen)].mean() - values[rest].mean())

    seen = far(range(5))
    exact = [far(chosen) for chosen in itertools.combinations(range(10), 5)]
    p, size = permutation_test(own, others)
    assert p == pytest.approx(np.mean([each >= seen - 1e-9 for each in exact]), abs=0.03)
    largest = max(p for p in (np.mean([e >= each - 1e-9 for e in exact]) for each in exact) if p <= 0.05)
    assert size == pytest.approx(largest, abs=0.01)
    assert permutation_test(np.ones(4), np.ones(3)) == (1.0, 0.0)
    assert permutation_test(np.array([0.1 + 0.2] * 4), np.full(3, 0.3)) == (1.0, 0.0), "equal but for rounding"


def test_chance_alone_shows_no_share_of_effects():
    """Half of 2,000 turns have an effect; `shown - size` stays below the share that has one, and is 0 without any."""
    generator = np.random.default_rng(0)
    for share in (0.0, 0.5):
        has = generator.random(2000) < share
        p = np.where(has, 0.95, 0.3)
        tests = [
            permutation_test(*np.split((generator.random(20) < np.r_[[q] * 12, [0.3] * 8]) * 1.0, [12])) for q in p
        ]
        shown, size = np.array([[p <= 0.05, size] for p, size in tests], dtype=float).T
        assert shown.mean() - size.mean() == pytest.approx(0, abs=0.012) or share
        assert not share or 0.3 < shown.mean() - size.mean() < share
        assert shown.mean() > 0.01, "the raw share counts chance too"


def test_squared_effects_lose_the_noise_of_their_estimates():
    generator = np.random.default_rng(1)
    rows = 4000
    return_HK = generator.normal(size=(2 * rows, 6))
    return_HK[:rows] += 2.0 * (np.arange(rows) % 2)[:, None] - 1.0
    before, after = np.arange(rows), np.arange(rows) + rows
    found = measure_effects(
        np.zeros(rows), np.zeros(rows, int), before, after, return_HK, np.ones((2 * rows, 6), dtype=int)
    )
    assert np.mean(found.effect_R**2 - found.variance_R) == pytest.approx(1.0, abs=0.06)
    assert np.mean(found.effect_R**2) > 1.25


def test_actions_have_numbers_that_a_file_keeps():
    assert action_number("go east") == action_number("go east") != action_number("go west")
    assert np.int64(action_number("go east")) == action_number("go east")


# -- statistics --------------------------------------------------------------------------------------------------------


def repeated(values, counts):
    return np.repeat(values, np.asarray(counts, dtype=int))


def weighted_draws():
    """Random values with ties, and whole weights, some of them 0."""
    generator = np.random.default_rng(3)
    for _ in range(30):
        n = int(generator.integers(4, 30))
        weights = generator.integers(0, 3, size=(2, n)).astype(float)
        weights[:, :2] = 1
        yield generator.integers(-3, 4, size=n) / 2.0, generator.normal(size=n).round(1), weights, generator


def brute_auroc(score, has):
    pairs = [(a > b) + (a == b) / 2 for a in score[has] for b in score[~has]]
    return np.mean(pairs)


def brute_precision(score, has, share=0.1):
    """Take the best ones, and of equal scores at the edge a random part: the mean over all orders of them."""
    left, found = share * len(score), 0.0
    for value in sorted(set(score), reverse=True):
        tied = has[score == value]
        taken = min(left, len(tied))
        found, left = found + taken * tied.mean(), left - taken
    return found / (share * len(score))


def test_statistics_equal_brute_force_on_repeated_rows():
    for a, b, weight_DR, generator in weighted_draws():
        has = generator.random(len(a)) < 0.4
        has[:2] = [True, False]
        for draw, counts in enumerate(weight_DR):
            rows = repeated(np.arange(len(a)), counts)
            wanted = stats.spearmanr(a[rows], b[rows])[0] if np.ptp(a[rows]) and np.ptp(b[rows]) else 0.0
            assert rank_correlation(a, b, weight_DR)[draw] == pytest.approx(wanted, abs=1e-12)
            assert auroc(a, has, weight_DR)[draw] == pytest.approx(brute_auroc(a[rows], has[rows]))
            assert precision(a, has, weight_DR)[draw] == pytest.approx(brute_precision(a[rows], has[rows]))
            wanted = np.abs(a[rows]).sum() ** 2 / max((a[rows] ** 2).sum(), 1e-300) / len(rows)
            assert effective_share(a, weight_DR)[draw] == pytest.approx(wanted)


def test_statistics_by_hand():
    score, has = np.array([3.0, 2.0, 2.0, 1.0, 1.0, 0.0]), np.array([1, 1, 0, 0, 1, 0], dtype=bool)
    # pairs won: 3 beats all three; 2 ties 2, beats 1 and 0; 1 loses to 2, ties 1, beats 0
    assert auroc(score, has, ONES)[0] == pytest.approx((3 + 2.5 + 1.5) / 9)
    assert precision(score, has, ONES, 1 / 3)[0] == pytest.approx((1 + 0.5) / 2)
    assert effective_share(np.array([1.0, -1.0, 0, 0, 0, 0]), ONES)[0] == pytest.approx(2 / 6)
    assert effective_share(np.array([3.0, 1.0, 0, 0, 0, 0]), ONES)[0] == pytest.approx(16 / 10 / 6)
    assert effective_share(np.zeros(6), ONES)[0] == 0
    assert auroc(np.zeros(6), has, ONES)[0] == 0.5, "constant credit is chance"
    assert precision(np.zeros(6), has, ONES)[0] == 0.5, "and finds the base rate"
    assert np.isnan(auroc(score, np.ones(6, dtype=bool), ONES)[0])
    names = np.array([0, 0, 0, 1, 1, 1])
    effect = np.array([1.0, 2.0, 3.0, 3.0, 2.0, 1.0])
    assert rank_within(effect, effect, names, ONES)[0] == pytest.approx(1.0)
    assert rank_within(np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]), effect, names, ONES)[0] == pytest.approx(0.0)
    assert rank_within(names * 1.0, effect, names, ONES)[0] == 0, "credit per trajectory says nothing within one"
    assert abs(rank_correlation(names * 1.0, np.array([1.0, 1, 2, 5, 6, 7]), ONES)[0]) > 0.5


WRONG = {
    "ties are lost": lambda score, has: np.mean([a > b for a in score[has] for b in score[~has]]),
    "ties are won": lambda score, has: np.mean([a >= b for a in score[has] for b in score[~has]]),
    "accuracy at the median": lambda score, has: np.mean((score > np.median(score)) == has),
    "the rank of all, not of those without": lambda score, has: np.mean(stats.rankdata(score)[has]) / len(score),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_auroc_is_rejected(name):
    score, has = np.array([3.0, 2.0, 2.0, 1.0, 1.0, 0.0]), np.array([1, 1, 0, 0, 1, 0], dtype=bool)
    assert WRONG[name](score, has) != pytest.approx(auroc(score, has, ONES)[0], abs=0.01)


def test_intervals_cover_what_many_groups_say():
    """Credit is the effect with noise of its own and of its group; 24 groups of 20 turns each, 200 times."""

    def draw(groups, generator):
        group_R = np.repeat(np.arange(groups), 20)
        effect = generator.normal(size=len(group_R)) * (generator.random(len(group_R)) < 0.3)
        shift = generator.normal(size=groups)[group_R]
        return group_R, effect, effect + generator.normal(size=len(group_R)) + shift

    generator = np.random.default_rng(0)
    _, effect, credit = draw(20_000, generator)
    one = np.ones((1, len(effect)))
    wanted = [rank_correlation(credit, effect, one)[0], auroc(np.abs(credit), effect != 0, one)[0]]
    wanted += [precision(np.abs(credit), effect != 0, one)[0], effective_share(credit, one)[0]]
    covered = np.zeros(4)
    for number in range(200):
        group_R, effect, credit = draw(24, generator)
        weight = draw_weights(group_R, 24, number, draws=200)
        found = [rank_correlation(credit, effect, weight), auroc(np.abs(credit), effect != 0, weight)]
        found += [precision(np.abs(credit), effect != 0, weight), effective_share(credit, weight)]
        intervals = [interval_of_draws(each, 24) for each in found]
        covered += [each.low <= value <= each.high for each, value in zip(intervals, wanted, strict=True)]
    assert covered.min() >= 178, covered  # 0.95 * 200 less four standard errors
    assert covered.max() < 200


@pytest.mark.parametrize(("hot", "most"), [(1, 0.0), (3, 0.1), (5, 0.06)])
def test_noise_finds_no_effects_however_few_groups_have_some(hot, most):
    """24 groups of 40 turns; drawn as 24 units, noise differs from chance in 79, 23 and 7 % of the runs."""
    generator = np.random.default_rng(2)
    group_R = np.repeat(np.arange(24), 40)
    batch = Batch(Segments.from_lengths([1] * 24), Segments.from_lengths([40] * 24), np.zeros(960))
    wrong = 0
    for number in range(60):
        shown_R = (generator.random(960) < 0.3) & (group_R < hot)
        effects = Effects(
            effect_R=shown_R * 1.0,
            variance_R=np.zeros(960),
            p_R=np.where(shown_R, 0.0, 1.0),
            size_R=np.full(960, 0.05),
            alternatives_R=np.ones(960, dtype=int),
        )
        found = audit(effects, {}, {"noise": generator.random(960)}, batch, seed=number).found["noise"].auroc
        wrong += not found.low <= 0.5 <= found.high
    assert wrong / 60 <= most


def test_groups_are_drawn_as_a_whole():
    group_R = np.array([0, 0, 0, 1, 1, 2])
    weight = draw_weights(group_R, 3, 0)
    assert (weight[0] == 1).all()
    assert (weight[:, 0] == weight[:, 2]).all()
    assert (weight[:, [0, 3, 5]].sum(1) == 3).all()
    assert np.isinf(interval_of_draws(mean(np.ones(6), weight[:1]), 3).high), "without draws there is no interval"
    assert np.isinf(interval_of_draws(np.zeros(50), 12).high), "draws that are all equal say nothing"


def test_ties_that_differ_by_rounding_are_ties():
    score, has = np.full(40, 0.3), np.arange(40) < 4
    score[has] = 0.1 + 0.2
    assert precision(score, has, np.ones((1, 40)))[0] == pytest.approx(0.1)


def test_an_audit_tells_a_method_that_finds_effects_from_one_that_does_not():
    generator = np.random.default_rng(0)
    groups, turns = 30, 8
    has = generator.random(groups * 4 * turns) < 0.25
    effect = np.where(has, generator.choice([-1.0, 1.0], len(has)), 0.0)
    effect[:5] = np.nan
    batch = Batch(Segments.from_lengths([4] * groups), Segments.from_lengths([turns] * 4 * groups), np.zeros(len(has)))
    effects = Effects(effect, np.zeros(len(has)), np.where(has, 0.001, 1.0), np.zeros(len(has)), has.astype(np.int64))
    finder = np.nan_to_num(effect) + 0.5 * generator.normal(size=len(has))
    made = audit(effects, {"finder": finder, "blind": generator.normal(size=len(has))}, {"hint": has * 1.0}, batch)
    assert (made.responses, made.defined) == (len(has), len(has) - 5)
    assert made.at_least.low < has[5:].mean() < made.at_least.high
    assert made.size.value == pytest.approx(np.sqrt(has[5:].mean()))
    found, blind = made.found["finder"], made.found["blind"]
    assert found.auroc.low > 0.7
    assert found.precision.low > 0.7
    assert found.sign.low > 0.9
    assert found.rank.low > 0.3 < found.rank_within.low
    for one, chance in ((blind.auroc, 0.5), (blind.rank, 0.0), (blind.rank_within, 0.0), (blind.sign, 0.5)):
        assert one.low < chance < one.high
    assert made.found["hint"].auroc.value == 1
    assert np.isnan(made.found["hint"].effective.value)
    assert as_json(made)["found"]["hint"]["effective"]["value"] is None
    rows = audit_table(made)
    assert [row[0] for row in rows[1:]] == ["hint", "finder", "blind"]
    assert rows[1][-1] == "-"


# -- on a run ----------------------------------------------------------------------------------------------------------


def judge(cases):
    """Rates every turn alike."""
    return [float(case.text.count("Turn")) for case in cases]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    environment = {"options": {"turns": 3}}
    judged = {"run": "tests.diagnostics.test_audit:judge"}
    config = small_config(tmp_path_factory.mktemp("run"), run={"steps": 1}, environment=environment, judge=judged,
                          measures=["progress"])  # fmt: skip
    return train(config)


def test_an_audit_and_a_fidelity_share_their_replays(run, monkeypatch):
    """In `Colors` every turn pays by itself: whoever got it right did better than what else it would have said."""
    folder, _ = RunFolder.open(run.path)
    first = measure_run(folder, ["grpo", "gigpo"], step=0, groups=6, continuations=8)
    monkeypatch.setattr(fidelity_run.Stage, "play", lambda *_, **__: pytest.fail("continued again"))
    again = measure_run(folder, ["grpo", "gigpo"], step=0, groups=6, continuations=8, alternatives=2)
    effects, reward_R = again.replayed.effects, again.replayed.batch.reward_R
    assert (first.replayed.effects.alternatives_R == effects.alternatives_R).all()
    assert effects.alternatives_R.max() > 1
    shown = effects.shown_R
    assert shown.sum() > 5
    assert (np.sign(effects.effect_R[shown]) == np.where(reward_R[shown] > 0, 1, -1)).mean() > 0.9
    made = audit_run(again)
    assert set(made.found) == {"grpo", "gigpo", JUDGE, "uncertainty: entropy", "uncertainty: surprisal"}
    alike = made.found[JUDGE]
    assert alike.auroc.value == 0.5, "a judge who rates all alike finds nothing"
    assert alike.effective.value == 1


def test_the_command_prints_and_writes(run, tmp_path, capsys):
    command = ["audit", str(run.path), "--groups", "6", "--continuations", "6", "--out", str(tmp_path)]
    assert main([*command, "--alternatives", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "share with an effect, at least" in out
    assert "grpo+aem" in out
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written["found"]["grpo"]["auroc"]["low"] <= written["found"]["grpo"]["auroc"]["value"]
    assert (tmp_path / "audit.png").stat().st_size > 5000
    assert main(command) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


def test_numbers_that_differ_by_rounding_alone_are_tied():
    """Every return is 0.7, so no turn has an effect; sums in another order differ by 1e-16."""
    noise = np.array([0, 1.1e-16, 1.1e-16, 1.1e-16, 0, 0])
    credit = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert rank_correlation(credit, noise, ONES)[0] == 0
    assert np.isnan(rank_within(credit, noise, np.zeros(6, dtype=np.int64), ONES)[0])
    third = np.array([0.1 + 0.2, 0.3, 0.3, 0.5, 0.6, 0.7]) * 1e-6
    even = np.array([0.3, 0.3, 0.3, 0.5, 0.6, 0.7])
    has = np.array([1, 0, 1, 0, 1, 0], dtype=bool)
    assert auroc(third, has, ONES)[0] == auroc(even, has, ONES)[0]
    assert rank_correlation(third, credit, ONES)[0] == rank_correlation(even, credit, ONES)[0]


def test_two_responses_have_no_rank_and_trajectories_count_alike():
    names = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
    effect = np.array([1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0])
    credit = np.where(names == 1, effect, -effect)
    assert rank_within(credit, effect, names, np.ones((1, 9)))[0] == pytest.approx(0.0)


def test_the_effective_sample_is_of_all_responses_though_some_effects_are_not_defined():
    effect, num = np.tile([1.0, -1.0, np.nan, np.nan], 6), 24
    batch = Batch(Segments.from_lengths([2] * 3), Segments.from_lengths([4] * 6), np.zeros(num))
    effects = Effects(effect, np.zeros(num), np.full(num, 0.01), np.zeros(num), np.ones(num, dtype=np.int64))
    made = audit(effects, {"m": np.tile([1.0, 1.0, 3.0, 0.0], 6)}, {}, batch)
    assert made.found["m"].effective.value == pytest.approx(5**2 / 11 / 4)
