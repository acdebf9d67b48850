"""Bugs in EMPG on reward to go, with the checks that reject them."""

import dataclasses

import numpy as np
from tests.known_wrong.checks import (
    CLOSE,
    Check,
    Credit,
    labels_are_names_not_numbers,
    rows_may_come_in_any_order,
    table,
)
from tests.known_wrong.known import following, worked
from tests.known_wrong.variants import Variant, discounted
from tests.properties.strategies import Rows

import turnwise as tw

CARD = dataclasses.replace(table([[[0, 0, 1]]]), entropy=np.array([0.2, 0.5, 1.0]))  # reward to go 1, 1, 1
FAILURES = dataclasses.replace(
    table([[[0, 0], [0, 0, 0]], [[0]]]), entropy=np.array([0.5, 1.0, 0.0, 0.25, 0.75, 0.5])
)  # clarity of the next: exp(-1), -, exp(-1/4), exp(-3/4), -, -


def credit_sums_to_zero_over_responses(credit: Credit) -> None:
    """The last step of EMPG: every response counts once."""
    np.testing.assert_allclose([credit(CARD).sum(), credit(FAILURES).sum()], 0.0, **CLOSE)


def the_bonus_is_for_the_clarity_of_the_next_response(credit: Credit) -> None:
    """Failures have no advantage: the bonus is all they get, and the last of a trajectory gets none."""
    bonus = 0.1 * np.array([np.exp(-1), 0, np.exp(-0.25), np.exp(-0.75), 0, 0])
    values = credit(FAILURES)
    np.testing.assert_allclose(values - values[1], bonus, **CLOSE)


EMPG = [
    rows_may_come_in_any_order,
    labels_are_names_not_numbers,
    credit_sums_to_zero_over_responses,
    the_bonus_is_for_the_clarity_of_the_next_response,
    worked("the_cards_steps", CARD, [0.493, 0.005, -0.498], atol=5e-4),
]


def empg(
    rows: Rows, *, low: float | None = None, next_of=following, power: float = 1.0, centre: bool = True
) -> np.ndarray:
    low = rows.entropy.min() if low is None else low
    scale = np.exp(-(rows.entropy - low) / (rows.entropy.max() - low))
    base = discounted(rows, 1.0, lambda t, k: k - t)
    credit = base * (scale / scale.mean()) ** power + 0.1 * next_of(rows, scale)
    return credit - credit.mean() if centre else credit


def scaled_once_per_segment(rows: Rows) -> np.ndarray:
    scale = np.exp(-(rows.entropy - rows.entropy.min()) / np.ptp(rows.entropy))
    base = discounted(rows, 1.0, lambda t, k: k - t) * np.prod(scale / scale.mean())
    credit = base + 0.1 * following(rows, scale)
    return credit - credit.mean()


def centred_over_padding(rows: Rows) -> np.ndarray:
    credit = empg(rows, centre=False)
    longest = max(rows.names().count(name) for name in rows.names())
    return credit - credit.sum() / (longest * len(set(rows.names())))


def centred_by_label(rows: Rows) -> np.ndarray:
    credit = empg(rows, centre=False)
    number = np.array([int(label) for label in rows.group])
    return credit - np.array([credit[number == n].mean() for n in number])


SUITES: dict[str, list[Check]] = {"empg on returns": EMPG}

REAL: dict[str, Credit] = {"empg on returns": lambda rows: rows.credit(tw.empg(tw.reinforce()))}

NEXT = "the_bonus_is_for_the_clarity_of_the_next_response"

VARIANTS: dict[str, Variant] = {
    "the whole batch scaled once per segment": Variant(
        "empg on returns",
        scaled_once_per_segment,
        "the authors' listing, card EMPG: g_H[i] inside the loop",
        ("the_cards_steps",),
    ),
    "min and max over padding": Variant(
        "empg on returns",
        lambda rows: empg(rows, low=0.0),
        "card EMPG, known bugs: padding has entropy 0",
        ("the_cards_steps",),
    ),
    "the mean counts padding": Variant(
        "empg on returns",
        centred_over_padding,
        "card EMPG, known bugs: the centre of masked places",
        ("credit_sums_to_zero_over_responses",),
    ),
    "a bonus at the last step, from the next trajectory": Variant(
        "empg on returns",
        lambda rows: empg(rows, next_of=lambda rows, scale: np.append(scale[1:], 0.0)),
        "card EMPG: no bonus for the last step",
        (NEXT, "rows_may_come_in_any_order"),
    ),
    "a bonus for one's own certainty": Variant(
        "empg on returns", lambda rows: empg(rows, next_of=lambda rows, scale: scale), "card EMPG: f_{k+1}", (NEXT,)
    ),
    "not centred": Variant(
        "empg on returns",
        lambda rows: empg(rows, centre=False),
        "card EMPG, step 5 left out",
        ("credit_sums_to_zero_over_responses",),
    ),
    "centred by numbers made of labels": Variant(
        "empg on returns",
        centred_by_label,
        "verl 0.9.1, as_torch_index, under EMPG's centring",
        ("labels_are_names_not_numbers",),
    ),
}
