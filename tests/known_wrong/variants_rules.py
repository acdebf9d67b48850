"""Bugs in token rules that read columns of responses, with the checks that reject them."""

import numpy as np
from tests.known_wrong.checks import Check
from tests.known_wrong.known import Known, column, following, known, worked
from tests.known_wrong.variants import Variant
from tests.properties.strategies import Rows

from turnwise.objective.token_rules import StepTokens, actfocus, gain_clip

# gains 1, 1 of the first, -1, -1 of the second: z is +-1/sqrt(2); the answers have none
ALIKE = known([[[0, 0, 0], [0, 0, 0]]], gold_logprob=[0, 1, 2, 0, -1, -2])
# late gains ten times as large as early ones: at their own turn they are the same
LATE = known([[[0, 0, 0], [0, 0, 0]]], gold_logprob=[0, 1, 11, 0, -1, -11])
WIDER = 0.2 * (1 + 0.3 * (2 / (1 + np.exp(-1 / np.sqrt(2.0))) - 1))
WIDTHS = [WIDER, WIDER, 0.2, 0.4 - WIDER, 0.4 - WIDER, 0.2]
# reasoning of entropy 9 before and after actions of entropy 1 and 3, whose mean is 2; the last response has no action
ACTING = known([[[0, 0, 0]]], action_T=[[0, 1], [1, 0], [0, 0]], entropy_T=[[9, 1], [3, 9], [9, 9]])

SUITES: dict[str, list[Check]] = {
    "gain_clip": [
        worked("a_gain_widens_the_clip_and_a_loss_narrows_it", ALIKE, WIDTHS, atol=1e-6),
        worked("early_and_late_gains_widen_alike", LATE, WIDTHS, atol=1e-6),
    ],
    "actfocus": [
        worked("actions_weigh_by_their_entropy", ACTING, [(0.25 + 0.5) / 2, (1.5 + 0.25) / 2, 1.0], atol=1e-9),
    ],
}


def tokens_of(rows: Rows) -> tuple[StepTokens, np.ndarray]:
    """One token per response, in the order of the batch, and the order that leads back."""
    assert isinstance(rows, Known)
    batch, order = rows.built
    one = np.ones(len(rows))
    counted = type(batch)(
        batch.groups, batch.trajectories, batch.reward_R, batch.columns, tokens=type(batch.groups).from_lengths(one)
    )
    return StepTokens(one, -one, one, batch=counted), order


def real_factors(rows: Rows) -> np.ndarray:
    """The mean factor of each response."""
    batch, _ = rows.built  # in the order of the rows
    assert batch.tokens is not None
    entropy_T = batch.columns["entropy_T"]
    tokens = StepTokens(entropy_T, entropy_T, entropy_T, batch=batch)
    factor_T = actfocus(tokens, reasoning=0.25, low=0.0, high=9.0, normalize=False).factor_T
    assert factor_T is not None
    return batch.tokens.mean(factor_T)


def factors(rows: Rows, *, over_all: bool = False, reasoning: bool = True, lone: bool = False) -> np.ndarray:
    """The mean factor of each response in plain loops, with bugs to choose from."""
    assert isinstance(rows, Known)
    marks, entropies = ([row[name] for row in rows.more] for name in ("action_T", "entropy_T"))
    pairs = [pair for mark, told in zip(marks, entropies, strict=True) for pair in zip(mark, told, strict=True)]
    mean = np.mean([entropy for acts, entropy in pairs if acts or over_all])
    result = []
    for mark, told in zip(marks, entropies, strict=True):
        rest = 0.25 if reasoning else 1.0
        own = [entropy / mean if acts else rest for acts, entropy in zip(mark, told, strict=True)]
        result.append(np.mean(own) if any(mark) or lone else 1.0)
    return np.array(result)


def real(rows: Rows) -> np.ndarray:
    """The widths above 1 of the rule."""
    tokens, order = tokens_of(rows)
    width = gain_clip(tokens, difference="logprob").clip_high_T
    assert width is not None
    out = np.empty(len(rows))
    out[order] = width
    return out


def widths(rows: Rows, *, by_turn: bool = True, magnitude: bool = False, answer: bool = False) -> np.ndarray:
    """The rule in plain loops, with bugs to choose from."""
    gold, names = column(rows, "gold_logprob"), rows.names()
    ends = following(rows, np.ones(len(rows))) == 0
    gain = np.where(ends, 0.0, following(rows, gold) - gold)
    turn = np.array([names[:row].count(name) for row, name in enumerate(names)])
    z = np.zeros(len(rows))
    for row in np.flatnonzero(~ends):
        pool = gain[~ends & ((turn == turn[row]) | (not by_turn))]
        z[row] = (gain[row] - pool.mean()) / (pool.std(ddof=1) + 1e-6)
    z = np.abs(z) if magnitude else z
    z = np.where(ends & answer, 1.0, z)
    return 0.2 * (1 + 0.3 * (2 / (1 + np.exp(-z)) - 1))


REAL = {"gain_clip": real, "actfocus": real_factors}
VARIANTS = {
    "large losses widen the clip too": Variant(
        "gain_clip",
        lambda rows: widths(rows, magnitude=True),
        "card A2TGPO: informative turns may move more, those that lose move less",
        ("a_gain_widens_the_clip_and_a_loss_narrows_it",),
    ),
    "the answer turn has a gain": Variant(
        "gain_clip",
        lambda rows: widths(rows, answer=True),
        "card A2TGPO: the answer turn has c = 1",
        ("a_gain_widens_the_clip_and_a_loss_narrows_it",),
    ),
    "widths pooled over all turns": Variant(
        "gain_clip",
        lambda rows: widths(rows, by_turn=False),
        "IGPO's pool under this name; card A2TGPO",
        ("early_and_late_gains_widen_alike",),
    ),
    "entropies compared with reasoning": Variant(
        "actfocus",
        lambda rows: factors(rows, over_all=True),
        "card ActFocus: mean over action tokens of the batch",
        ("actions_weigh_by_their_entropy",),
    ),
    "reasoning weighs as much": Variant(
        "actfocus",
        lambda rows: factors(rows, reasoning=False),
        "card ActFocus: less for reasoning",
        ("actions_weigh_by_their_entropy",),
    ),
    "a response without an action is reasoning": Variant(
        "actfocus",
        lambda rows: factors(rows, lone=True),
        "card ActFocus: no action found, whole turn weight 1",
        ("actions_weigh_by_their_entropy",),
    ),
}
