"""Rules of tokens by their entropy and gain, on numbers worked by hand."""

import math
from typing import Any

import numpy as np
import pytest
from tests.token_rules.steps import WIDTHS, column, given, step

import turnwise as tw
from turnwise.extensions.token_rules.adapo import adapo
from turnwise.extensions.token_rules.epo import epo
from turnwise.extensions.token_rules.flexible import flexible_clip
from turnwise.extensions.token_rules.gain_clip import gain_clip
from turnwise.extensions.token_rules.hapo import hapo
from turnwise.extensions.token_rules.repo import repo
from turnwise.objective.token_rules import StepTokens

HAPO_ENTROPY = np.array([0.01, 0.1, 1.0, 0.5, 2.5, 1.5])


def test_hapo_places_tokens_between_the_extremes():
    level_T = column(hapo(step(1.0, entropy=HAPO_ENTROPY)).tilt_T)
    pivot = math.log(1.5)  # the nearest to 0.8 of six: number round(0.8 * 5) = 4 from below
    expected = [(math.log(h) - pivot) / abs(math.log(0.01) - pivot) for h in (0.01, 0.1, 1.0, 0.5)]
    np.testing.assert_allclose(level_T, [*expected, 1.0, 0.0])
    assert level_T[0] == -1
    middle = column(hapo(step(1.0, entropy=HAPO_ENTROPY), quantile=0.4).tilt_T)  # number 2: 0.5
    np.testing.assert_allclose(middle[[0, 2, 3, 4]], [-1, math.log(2) / math.log(5), 0, 1])


def test_the_release_of_hapo_has_no_negative_level():
    paper, release = (column(hapo(step(1.0, entropy=HAPO_ENTROPY), sign=sign).tilt_T) for sign in ("paper", "release"))
    np.testing.assert_allclose(release, np.abs(paper))
    assert (release[0], release[-1], release[4]) == (1, 0, 1)


def test_hapo_widens_the_clip_for_what_a_token_may_do():
    tokens = step(1.0, entropy=[0.1, 1.0, 10.0], clip_low=0.2, clip_high=0.28)
    credit = hapo(tokens, quantile=0.5)  # levels -1, 0, 1
    np.testing.assert_allclose(column(credit.clip_low_T), [0.4, 0.2, 0.2])
    np.testing.assert_allclose(column(credit.clip_high_T), [0.28, 0.28, 0.56])
    release = hapo(tokens, quantile=0.5, sign="release")
    np.testing.assert_allclose(column(release.clip_low_T), 0.2)
    np.testing.assert_allclose(column(release.clip_high_T), [0.56, 0.28, 0.56])
    assert given(credit) == {"clip_low_T", "clip_high_T", "tilt_T"}
    assert given(hapo(tokens, widths=False)) == {"tilt_T"}
    assert given(hapo(tokens, redistribute=False)) == {"clip_low_T", "clip_high_T"}


def test_hapo_of_equal_or_zero_entropies():
    for entropy in (0.7, 0.0):
        np.testing.assert_array_equal(column(hapo(step(1.0, np.full(4, -1.0), entropy)).tilt_T), 0)


def informed(gold: list[list[float]], **fields: Any) -> StepTokens:
    """Tokens of one group, two per response, with the gold answer's log-probability before each response."""
    turns = [[{"reward": 0.0, "gold_logprob": value, "num_tokens": 2} for value in values] for values in gold]
    batch = tw.Batch.from_trajectories([turns])
    return step(np.ones(2 * batch.num_responses), batch=batch, **fields)


def test_gain_clip_by_worked_numbers():
    """Two trajectories that gain and lose the same at both turns: z is +-1/sqrt(2); the answer turns have none."""
    tokens = informed([[-2, -1, 0], [-2, -3, -4]], clip_low=0.2, clip_high=0.4)
    credit = gain_clip(tokens, difference="logprob")
    assert given(credit) == {"clip_low_T", "clip_high_T"}
    more = 0.3 * (2 / (1 + math.exp(-1 / math.sqrt(2))) - 1)
    factor_R = np.array([1 + more, 1 + more, 1, 1 - more, 1 - more, 1])
    np.testing.assert_allclose(column(credit.clip_low_T), 0.2 * factor_R.repeat(2), rtol=1e-5)
    np.testing.assert_allclose(column(credit.clip_high_T), 0.4 * factor_R.repeat(2), rtol=1e-5)
    wide = gain_clip(tokens, width=1.0, difference="logprob")
    np.testing.assert_allclose(column(wide.clip_low_T)[:2], 0.2 * (1 + more / 0.3), rtol=1e-5)


def test_gain_clip_of_the_release_divides_by_the_population_deviation():
    """z is +-1, so that the widths change by 0.3 (2 sigmoid(1) - 1) = 0.1386."""
    credit = gain_clip(informed([[-2, -1], [-2, -3]]), difference="logprob", convention="release")
    factor_R = np.array([1.1386, 1, 1 - 0.1386, 1])
    np.testing.assert_allclose(column(credit.clip_high_T), 0.2 * factor_R.repeat(2), rtol=1e-4)
    # the second gain of the first is 0: its turn belongs to the third one, which is compared with the other's second
    idle = informed([np.log([0.1, 0.2, 0.2, 0.4]).tolist(), np.log([0.1, 0.3, 0.4]).tolist()])
    factor_R = np.array([-1, 1, 1, 0, 1, -1, 0]) * 0.1386 + 1
    credit = gain_clip(idle, convention="release")
    np.testing.assert_allclose(column(credit.clip_high_T), 0.2 * factor_R.repeat(2), rtol=1e-4)


def test_gain_clip_compares_probabilities_by_default():
    """The same gain of log-probability is a larger gain of probability where the answer is likely."""
    gold = [[-1, -0.5, 0], [-3, -2.5, 0], [-1, -1, 0]]
    likely, unlikely, none = column(gain_clip(informed(gold)).clip_high_T)[[0, 6, 12]]
    assert likely > 0.2 > unlikely > none
    likely, unlikely, none = column(gain_clip(informed(gold), difference="logprob").clip_high_T)[[0, 6, 12]]
    assert likely == unlikely > 0.2 > none


HALF = {"logprob": math.log(0.5), "clip_low": 0.2, "clip_high": 0.28, "steps": 8}  # U = 0.4, M = 0.25


# schedule -> steps done -> (clip_low, clip_high)
FLEXIBLE = {
    "id": {0: (0.2, 0.4), 2: (0.2, 0.34), 4: (0.2, 0.28), 6: (0.225, 0.28), 8: (0.2, 0.28)},
    "did": {0: (0.2, 0.28), 2: (0.2, 0.34), 4: (0.2, 0.4), 6: (0.225, 0.4), 8: (0.2, 0.4)},
}


@pytest.mark.parametrize("schedule", FLEXIBLE)
def test_flexible_widths_on_their_schedule(schedule):
    for done, (low, high) in FLEXIBLE[schedule].items():
        credit = flexible_clip(step(**HALF, steps_done=done), schedule=schedule, **WIDTHS)
        assert given(credit) == {"clip_low_T", "clip_high_T"}
        np.testing.assert_allclose(column(credit.clip_low_T), low)
        np.testing.assert_allclose(column(credit.clip_high_T), high)


def test_flexible_widths_fall_with_the_probability():
    credit = flexible_clip(step(logprob=np.log([1e-300, 0.25, 1.0]), clip_low=0.2), **WIDTHS)
    np.testing.assert_allclose(column(credit.clip_high_T), [0.6, 0.5, 0.2])
    np.testing.assert_allclose(column(credit.clip_low_T), 0.2)


def test_flexible_widths_that_oscillate():
    """Entropy 2 at first: raised from 0.4 on, lowered again above 0.5 + 1.5 * (1 - u), u = 0, 0.1, ..."""
    state, raising = None, []
    for done, entropy in enumerate([2.0, 1.0, 0.41, 0.4, 0.3, 1.2, 1.0, 0.96, 0.9, 0.38]):
        tokens = step(entropy=entropy, logprob=math.log(0.5), steps_done=done, steps=10, state=state)
        credit = flexible_clip(tokens, schedule="od", entropy_min=0.5, **WIDTHS)
        state = credit.state
        raising.append(float(column(credit.clip_high_T)[0]) == pytest.approx(0.4))
        np.testing.assert_allclose(column(credit.clip_low_T), 0.2 if raising[-1] else 0.25)
    # thresholds for lowering: 2, 1.85, 1.7, 1.55, 1.4, 1.25, 1.1, 0.95, 0.8, 0.65
    assert raising == [False, False, False, True, True, True, True, False, False, True]


def test_repo_by_worked_numbers():
    tokens = step([1.0, 1.0, -1.0, -1.0], [-0.1, -3.0, -0.1, -3.0])
    credit = repo(tokens, zeta=0.01)
    np.testing.assert_allclose(column(credit.advantage_T), [1.001, 1.03, -0.999, -0.97])
    assert given(credit) == {"advantage_T", "state"}


def test_repo_never_changes_the_sign_of_an_advantage():
    """At zeta 0.5 a token of log-probability -3 would change its sign, and -50 counts as -20."""
    tokens = step([-1.0, -1.0, 1.0, 1.0, 0.0], [-1.0, -3.0, -3.0, -50.0, -3.0])
    raised = repo(tokens, zeta=0.5, zeta_max=0.5)
    np.testing.assert_allclose(column(raised.advantage_T), [-0.5, 0.0, 2.5, 11.0, 0.0])
    # zeta is negative after a step above the target
    lowered = repo(
        step([-1.0, -1.0, 1.0, 1.0], [-1.0, -50.0, -1.0, -3.0], state={"zeta": -0.25, "target": 0.0}),
        zeta=0.5,
        zeta_max=0.5,
    )
    assert lowered.state is not None
    assert lowered.state["zeta"] == -0.5
    np.testing.assert_allclose(column(lowered.advantage_T), [-1.5, -11.0, 0.5, 0.0])


def test_repo_turns_its_zeta_round_at_the_target():
    state, zetas = None, []
    for entropy in [1.0, 0.9, 0.8, 0.7, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.5, 1.5, 1.5, 0.9, 0.9, 0.9, 0.9, 0.9]:
        credit = repo(step(1.0, -1.0, entropy, state=state), zeta=0.02, zeta_min=0.01, zeta_max=0.1)
        state = credit.state
        zetas.append(column(credit.advantage_T)[0] - 1)
    up = [0.02, 0.04, 0.08, 0.1, 0.1, 0.05, 0.025, 0.0125]
    np.testing.assert_allclose(
        zetas, [*up, -0.01, -0.02, -0.04, -0.08, -0.1, -0.05, -0.025, -0.0125, 0.01, 0.02], rtol=1e-9
    )


def test_repo_keeps_its_zeta_where_it_is_told_to():
    state: Any = {"zeta": 0.02, "target": 1.0}
    assert repo(step(entropy=0.5, state=state), zeta=0.02, adapt=False).state == state
    assert repo(step(entropy=0.5, state=state), zeta=0.02).state == {"zeta": 0.04, "target": 1.0}
    # a smallest size of zero is no change of sign, however long the entropy is too high
    state["zeta"] = 1e-300
    assert repo(step(entropy=1.5, state=state), zeta=0.02, zeta_min=0.0).state == {"zeta": 5e-301, "target": 1.0}


def test_repo_without_the_advantage_subtracts_what_is_surprising_of_each_token():
    tokens = step([1.0, 1.0, -1.0], [-0.1, -3.0, -1.0], [0.5, 0.5, 1.0])
    credit = repo(tokens, zeta=0.01, form="repo")
    # log p + H: 0.4, -2.5 and 0
    np.testing.assert_allclose(column(credit.advantage_T), [0.996, 1.025, -1.0])


def test_adapo_widens_below_the_first_entropy_and_narrows_above():
    state, widths = None, []
    for entropy in [1.0, 0.9, 0.8, 1.0, 1.1, 1.2, 1.3, 1.4]:
        tokens = step([1.0, -1.0], -1.0, entropy, clip_low=0.3, clip_high=0.2, state=state)
        credit = adapo(tokens, rate=1.0, high_min=0.1, high_max=0.5)
        state = credit.state
        np.testing.assert_array_equal(column(credit.clip_low_T), [0.3, 0.3])
        widths.append(column(credit.clip_high_T)[0])
    np.testing.assert_allclose(widths, [0.2, 0.4, 0.5, 0.5, 0.25, 0.125, 0.1, 0.1])
    beyond = adapo(step(clip_high=0.9), rate=1.0, high_min=0.1, high_max=0.5)
    np.testing.assert_array_equal(column(beyond.clip_high_T), [0.5])


def test_epo_measures_against_the_past():
    state, terms = None, []
    for done, entropy in enumerate([0.5, 0.7, 0.3, 0.9]):
        tokens = step(entropy=[entropy - 0.2, entropy + 0.2], steps_done=done, steps=5, state=state)
        terms.append(epo(tokens, beta_decay=math.log(2), bonus=0.01, penalty=0.05, low=0.5, high=1.5))
        state = terms[-1].state
    assert all(term.aggregate == "nested-mean" for term in terms)
    assert [term.bonus for term in terms] == [0.01] * 4
    # means of the past: none, 0.5, 0.6, 0.5; the middle is step 2, where beta is 1 + 1/2
    assert [term.low for term in terms[1:]] == pytest.approx([0.25, 0.3, 0.25])
    assert [term.high for term in terms[1:]] == pytest.approx([0.75, 0.9, 0.75])
    betas = [1 + 2**-0.5, 1.5, 1 + 2**-1.5]
    assert terms[0].penalty == 0
    assert [term.penalty for term in terms[1:]] == pytest.approx([0.01 * beta * 0.05 for beta in betas])
