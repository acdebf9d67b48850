"""Entropy drift: equal to the change that a small step makes, on policies whose responses can be enumerated."""

import itertools

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.lab.diagnostics.drift import measure_drift

POLICIES = {
    "bandit": {(): [1 / 2, 1 / 4, 1 / 8, 1 / 8]},
    "responses of one and two tokens": {(): [1 / 2, 1 / 4, 1 / 4], (0,): [3 / 4, 1 / 4], (1,): [1 / 2, 1 / 2]},
}
"""Probabilities of the next token by the tokens before it; a response ends where there are none. All are eighths."""


def entropy(p) -> float:
    return float(-(np.asarray(p) * np.log(p)).sum())


def responses(policy) -> list[tuple[int, ...]]:
    """Eight responses, each as often as it is likely."""
    found = []
    for tokens in itertools.chain(*(itertools.product(range(4), repeat=length) for length in (1, 2))):
        chosen = [(policy.get(tokens[:place], []), token) for place, token in enumerate(tokens)]
        if tokens not in policy and all(token < len(p) for p, token in chosen):
            found += [tokens] * round(8 * np.prod([p[token] for p, token in chosen]))
    return found


def drawn(policy, reward, groups: int = 3) -> Batch:
    """Groups of the eight responses, one turn each."""
    given = [tokens for _ in range(groups) for tokens in responses(policy)]
    measured = [
        [(np.log(policy[tokens[:place]][token]), entropy(policy[tokens[:place]])) for place, token in enumerate(tokens)]
        for tokens in given
    ]
    return Batch(
        Segments.from_lengths([8] * groups),
        Segments.from_lengths([1] * len(given)),
        [reward[tokens] for tokens in given],
        {
            "logprob": np.array([np.mean([logprob for logprob, _ in one]) for one in measured]),
            "entropy": np.array([np.mean([h for _, h in one]) for one in measured]),
        },
        Segments.from_lengths([len(tokens) for tokens in given]),
    )


def moved(policy, reward, step: float) -> float:
    """The change of the entropy of a response's tokens by a step of the logits along each token's mean advantage."""
    given, change = responses(policy), 0.0
    for prefix, p in policy.items():
        through = [tokens for tokens in given if tokens[: len(prefix)] == prefix and len(tokens) > len(prefix)]
        mean = [np.mean([reward[x] for x in through if x[len(prefix)] == token]) for token in range(len(p))]
        weight = p * np.exp(step * np.array(mean))
        change += len(through) / 8 * (entropy(weight / weight.sum()) - entropy(p))
    return change


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_change_of_entropy_by_a_small_step(name, seed):
    policy, generator = POLICIES[name], np.random.default_rng(seed)
    reward = {tokens: float(generator.normal()) for tokens in responses(policy)}
    batch = drawn(policy, reward)
    found = measure_drift({"it": batch.reward_R, "tripled": 3 * batch.reward_R, "blamed": -batch.reward_R}, batch)
    values = {method: one.value for method, one in found.by_method.items()}
    rate = (moved(policy, reward, 1e-5) - moved(policy, reward, -1e-5)) / 2e-5
    excess_R = -batch.tokens.lengths * (batch.column("logprob", needed_by="") + batch.column("entropy", needed_by=""))
    size = np.sqrt(np.mean(batch.reward_R**2) * np.mean(excess_R**2))
    assert values["it"] == pytest.approx(rate / size, rel=1e-6)
    assert abs(values["it"]) > 0.02
    assert values["tripled"] == pytest.approx(values["it"])
    assert values["blamed"] == pytest.approx(-values["it"])
    assert found.above_first["blamed"].value == pytest.approx(-2 * values["it"])


def test_rewarding_what_is_likely_lowers_entropy_and_rewarding_what_is_rare_raises_it():
    policy = POLICIES["bandit"]
    for token, sign in ((0, -1), (3, 1)):
        batch = drawn(policy, {tokens: float(tokens == (token,)) for tokens in responses(policy)})
        assert np.sign(measure_drift({"grpo": tw.grpo()(batch)}, batch).by_method["grpo"].value) == sign


def test_aem_and_its_reverse_lie_on_both_sides_of_their_base():
    """The sure state is rewarded for its rare response, the unsure one for its likely one: AEM favours the first."""
    sure, unsure = {(): [3 / 4, 1 / 8, 1 / 8]}, POLICIES["bandit"]
    parts = [
        drawn(sure, {(0,): -0.2, (1,): 1.0, (2,): -0.4}),
        drawn(unsure, {(0,): 1.0, (1,): -1.0, (2,): 0.0, (3,): -2.0}),
    ]
    order = np.argsort([*np.repeat(range(3), 8), *np.repeat(range(3), 8)], kind="stable")
    joined = {name: np.concatenate([part.columns[name] for part in parts])[order] for name in ("logprob", "entropy")}
    reward_R = np.concatenate([part.reward_R for part in parts])[order]
    batch = Batch(
        Segments.from_lengths([16] * 3),
        Segments.from_lengths([1] * 48),
        reward_R,
        joined,
        Segments.from_lengths([1] * 48),
    )
    credit = {f"{t:+}": tw.modulate_by_entropy(temperature=t)(batch) for t in (0.0, 1.0, -1.0)}
    found = measure_drift(credit, batch)
    assert found.above_first["+1.0"].value > 0.02
    assert found.above_first["-1.0"].value < -0.02


def test_a_policy_without_entropy_has_no_drift():
    certain = drawn({(): [1.0]}, {(0,): 1.0})
    assert measure_drift({"grpo": certain.reward_R}, certain) is None
