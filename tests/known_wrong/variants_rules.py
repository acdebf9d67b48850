"""Bugs in token rules that read columns of responses, with the checks that reject them."""

import numpy as np
from tests.known_wrong.checks import Check
from tests.known_wrong.known import Known, column, following, known, worked
from tests.known_wrong.variants import Variant
from tests.properties.strategies import Rows

from turnwise.extensions.token_rules.gain_clip import gain_clip
from turnwise.objective.token_rules import StepTokens

# gains 1, 1 of the first, -1, -1 of the second: z is +-1/sqrt(2); the answers have none
ALIKE = known([[[0, 0, 0], [0, 0, 0]]], gold_logprob=[0, 1, 2, 0, -1, -2])
# late gains ten times as large as early ones: at their own turn they are the same
LATE = known([[[0, 0, 0], [0, 0, 0]]], gold_logprob=[0, 1, 11, 0, -1, -11])
WIDER = 0.2 * (1 + 0.3 * (2 / (1 + np.exp(-1 / np.sqrt(2.0))) - 1))
WIDTHS = [WIDER, WIDER, 0.2, 0.4 - WIDER, 0.4 - WIDER, 0.2]

SUITES: dict[str, list[Check]] = {
    "gain_clip": [
        worked("a_gain_widens_the_clip_and_a_loss_narrows_it", ALIKE, WIDTHS, atol=1e-6),
        worked("early_and_late_gains_widen_alike", LATE, WIDTHS, atol=1e-6),
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


REAL = {"gain_clip": real}
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
}
