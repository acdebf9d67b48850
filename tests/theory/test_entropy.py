"""The theory of AEM (arXiv 2605.00425), checked exactly on policies that can be written down."""

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import turnwise as tw
from turnwise.credit.entropy import (
    END,
    TreePolicy,
    chain_rule_entropy,
    entropy_regularized_weights,
    fisher_rao_drift,
    fisher_rao_velocity,
    logit_drift,
    mean_token_entropy,
    response_entropy,
    surprisal,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}  # the same sum in another order


def softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - logits.max())
    return weight / weight.sum()


def random_logits(seed: int, num_tokens: int = 3, max_length: int = 3) -> dict[tuple[int, ...], np.ndarray]:
    """Logits after every prefix that has not ended, up to a length limit."""
    generator = np.random.default_rng(seed)
    return {
        prefix: generator.normal(scale=1.5, size=num_tokens)
        for length in range(max_length)
        for prefix in itertools.product(range(num_tokens), repeat=length)
        if END not in prefix
    }


def policy_of(logits: dict[tuple[int, ...], np.ndarray]) -> TreePolicy:
    return TreePolicy({prefix: softmax(values) for prefix, values in logits.items()})


SEEDS = pytest.mark.parametrize("seed", range(5))
CATEGORICAL = np.array([0.4, 0.25, 0.15, 0.1, 0.05, 0.04, 0.01])


# -- 1.1 response entropy ----------------------------------------------------------------------------------------------


@SEEDS
def test_responses_have_variable_length_and_probabilities_that_sum_to_one(seed):
    policy = policy_of(random_logits(seed))
    assert {len(response) for response in policy.responses} == {1, 2, 3}
    assert all(END not in response[:-1] for response in policy.responses)
    np.testing.assert_allclose(policy.probability_Y.sum(), 1.0, **EXACT)


@SEEDS
def test_response_entropy_is_the_expected_surprisal_and_the_expected_sum_of_token_entropies(seed):
    policy = policy_of(random_logits(seed))
    probability_Y = policy.probability_Y
    entropy = response_entropy(policy)
    surprisal_Y = [surprisal(policy, response) for response in policy.responses]
    token_sum_Y = [policy.token_entropies(response).sum() for response in policy.responses]
    np.testing.assert_allclose(probability_Y @ surprisal_Y, entropy, **EXACT)
    np.testing.assert_allclose(probability_Y @ token_sum_Y, entropy, **EXACT)
    np.testing.assert_allclose(chain_rule_entropy(policy), entropy, **EXACT)


def test_response_entropy_of_a_policy_worked_by_hand():
    # stop with 1/2, else one of two ends with 1/4 and 3/4
    policy = TreePolicy({(): [0.5, 0.5], (1,): [0.25, 0.75]})
    expected = 0.5 * np.log(2) + 0.125 * np.log(8) + 0.375 * np.log(8 / 3)
    np.testing.assert_allclose(response_entropy(policy), expected, **EXACT)
    np.testing.assert_allclose(surprisal(policy, (1, 0)), np.log(8), **EXACT)
    end = 0.25 * np.log(4) + 0.75 * np.log(4 / 3)
    np.testing.assert_allclose(mean_token_entropy(policy, (1, 1)), (np.log(2) + end) / 2, **EXACT)
    np.testing.assert_allclose(mean_token_entropy(policy, (0,)), np.log(2), **EXACT)


def test_tokens_of_probability_zero_count_nothing():
    policy = TreePolicy({(): [0.0, 1.0, 0.0], (1,): [0.5, 0.5, 0.0], (2,): [1.0, 0.0, 0.0]})
    assert policy.responses == [(1, 0), (1, 1)]
    np.testing.assert_allclose(response_entropy(policy), np.log(2), **EXACT)
    np.testing.assert_allclose(chain_rule_entropy(policy), np.log(2), **EXACT)


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ({(1,): [1.0]}, "first token"),
        ({(): [0.5, 0.4]}, "sum to 0.9"),
        ({(): [1.5, -0.5]}, "negative"),
        ({(): [0.5, 0.5], (0,): [1.0]}, "passes an end"),
        ({(): [0.5, 0.5], (1, 1): [1.0]}, "cannot be reached"),
        ({(): [0.5, 0.5], (2,): [1.0]}, "unknown token"),
    ],
)
def test_a_policy_that_is_none_is_refused(tokens, complaint):
    with pytest.raises(ValueError, match=complaint):
        TreePolicy(tokens)


def test_the_sum_of_token_entropies_can_vary_where_surprisal_does_not():
    """The caution of the module: the variance inequality is not true in general."""
    policy = TreePolicy({(): [0.1, 0.9], (1,): [1 / 9] * 9})
    probability_Y = policy.probability_Y
    np.testing.assert_allclose(probability_Y, 0.1, **EXACT)
    surprisal_Y = np.array([surprisal(policy, response) for response in policy.responses])
    token_sum_Y = np.array([policy.token_entropies(response).sum() for response in policy.responses])
    mean = probability_Y @ token_sum_Y
    np.testing.assert_allclose(mean, probability_Y @ surprisal_Y, **EXACT)
    np.testing.assert_allclose(surprisal_Y.std(), 0.0, atol=1e-12)
    variance = probability_Y @ (token_sum_Y - mean) ** 2
    np.testing.assert_allclose(variance, 0.1 * 0.9 * np.log(9) ** 2, **EXACT)
    assert round(variance, 4) == 0.4345


# -- 1.2 entropy drift -------------------------------------------------------------------------------------------------


def entropy_of(probability: np.ndarray) -> float:
    return float(-(probability * np.log(probability)).sum())


@pytest.mark.parametrize("sampled", range(len(CATEGORICAL)))
@pytest.mark.parametrize("advantage", [-0.7, 1.3])
def test_drift_along_the_natural_gradient_flow_is_advantage_times_relative_surprisal(sampled, advantage):
    """Entropy at both ends of a short stretch of the exact flow, integrated to 1e-12."""
    time = 2e-5

    def flow(span: float) -> float:
        solution = solve_ivp(
            lambda _, probability: fisher_rao_velocity(probability, sampled, advantage),
            (0.0, span),
            CATEGORICAL,
            rtol=1e-12,
            atol=1e-14,
        )
        return entropy_of(solution.y[:, -1])

    slope = (flow(time) - flow(-time)) / (2 * time)
    # central difference of a function of order 1: error of order time^2 = 4e-10 times its third derivative (about 1 /
    # p^2 = 1e4)
    np.testing.assert_allclose(slope, fisher_rao_drift(CATEGORICAL, sampled, advantage), rtol=0, atol=1e-5)


@SEEDS
def test_the_same_drift_follows_from_the_fisher_matrix_of_token_logits(seed):
    """The natural gradient does not depend on the parameters: token logits give the law of whole responses."""
    logits = random_logits(seed, num_tokens=2, max_length=3)
    policy = policy_of(logits)
    slots = [(prefix, token) for prefix, values in logits.items() for token in range(len(values))]
    score = np.zeros((len(policy.responses), len(slots)))  # d log pi(response) / d logit
    for y, response in enumerate(policy.responses):
        for slot, (prefix, token) in enumerate(slots):
            if response[: len(prefix)] == prefix and len(response) > len(prefix):
                score[y, slot] = (response[len(prefix)] == token) - policy.tokens[prefix][token]
    fisher = score.T @ (policy.probability_Y[:, None] * score)
    advantage, step = 0.8, 1e-6
    for y in range(len(policy.responses)):
        direction = np.linalg.pinv(fisher, rcond=1e-12) @ (advantage * score[y])

        def moved(size: float, direction: np.ndarray = direction) -> float:
            change = dict(zip(slots, size * direction, strict=True))
            return response_entropy(
                policy_of(
                    {
                        prefix: values + [change[prefix, token] for token in range(len(values))]
                        for prefix, values in logits.items()
                    }
                )
            )

        slope = (moved(step) - moved(-step)) / (2 * step)
        expected = fisher_rao_drift(policy.probability_Y, y, advantage)
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-5)  # error of order step^2 / p^2


@SEEDS
def test_the_expected_drift_is_the_covariance_of_advantage_and_surprisal(seed):
    policy = policy_of(random_logits(seed))
    probability_Y = policy.probability_Y
    advantage_Y = np.random.default_rng([seed, 1]).normal(size=len(probability_Y))  # of any mean
    surprisal_Y = -np.log(probability_Y)
    drift = sum(p * fisher_rao_drift(probability_Y, y, float(advantage_Y[y])) for y, p in enumerate(probability_Y))
    mean_A, mean_S = probability_Y @ advantage_Y, probability_Y @ surprisal_Y
    covariance = probability_Y @ ((advantage_Y - mean_A) * (surprisal_Y - mean_S))
    np.testing.assert_allclose(drift, covariance, **EXACT)


@pytest.mark.parametrize("sampled", range(len(CATEGORICAL)))
def test_a_plain_gradient_in_the_logits_drifts_by_its_own_formula(sampled):
    logits, advantage, step = np.log(CATEGORICAL), 1.3, 1e-5
    gradient = advantage * (np.eye(len(CATEGORICAL))[sampled] - CATEGORICAL)
    slope = (entropy_of(softmax(logits + step * gradient)) - entropy_of(softmax(logits - step * gradient))) / (2 * step)
    # central difference: error of order step^2 = 1e-10
    np.testing.assert_allclose(slope, logit_drift(CATEGORICAL, sampled, advantage), rtol=0, atol=1e-9)


def test_the_two_gradients_differ_in_size_and_at_times_in_sign():
    fisher = np.array([fisher_rao_drift(CATEGORICAL, y, 1.0) for y in range(len(CATEGORICAL))])
    plain = np.array([logit_drift(CATEGORICAL, y, 1.0) for y in range(len(CATEGORICAL))])
    assert np.abs(fisher - plain).max() > 0.5
    assert (np.sign(fisher) != np.sign(plain)).any()


@pytest.mark.parametrize(
    ("advantage", "surprising", "rises"),
    [(-1.0, True, False), (-1.0, False, True), (1.0, True, True), (1.0, False, False)],
)
def test_the_sign_table(advantage, surprising, rises):
    sampled = len(CATEGORICAL) - 1 if surprising else 0
    assert bool(-np.log(CATEGORICAL[sampled]) > entropy_of(CATEGORICAL)) == surprising
    assert (fisher_rao_drift(CATEGORICAL, sampled, advantage) > 0) == rises


def test_a_response_of_typical_surprisal_leaves_entropy_alone():
    uniform = np.full(8, 1 / 8)
    np.testing.assert_allclose(fisher_rao_drift(uniform, 3, 5.0), 0.0, atol=1e-14)
    np.testing.assert_allclose(logit_drift(uniform, 3, 5.0), 0.0, atol=1e-14)


# -- 1.3 the exponential map -------------------------------------------------------------------------------------------

COST = np.array([0.0, 0.2, 0.35, 0.8, 1.0])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_exponential_map_solves_the_entropy_regularised_problem(temperature):
    def objective(weight: np.ndarray) -> float:
        return float(weight @ COST + (weight * np.log(weight)).sum() / temperature)

    solved = minimize(
        objective,
        np.full(len(COST), 1 / len(COST)),
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * len(COST),
        constraints={"type": "eq", "fun": lambda weight: weight.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    weights = entropy_regularized_weights(COST, temperature=temperature)
    np.testing.assert_allclose(weights, solved.x, rtol=0, atol=1e-5)  # the solver's accuracy: sqrt of its ftol
    assert objective(weights) <= objective(solved.x) + 1e-12
    generator = np.random.default_rng(0)
    others = generator.dirichlet(np.ones(len(COST)), size=2000)
    assert objective(weights) < min(map(objective, others)), "no other point of the simplex is better"


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_aems_coefficient_is_the_number_of_responses_times_those_weights(temperature):
    batch = tw.Batch(
        tw.Segments([0, 2]), tw.Segments([0, 2, 5]), np.zeros(5), {"entropy": 0.4 + 2.0 * COST}
    )  # min-max normalisation undoes offset and unit
    alpha_R = tw.entropy_coefficient(batch, temperature=temperature)
    np.testing.assert_allclose(alpha_R, 5 * entropy_regularized_weights(COST, temperature=temperature), **EXACT)
    np.testing.assert_allclose(alpha_R.mean(), 1.0, **EXACT)


def test_at_temperature_one_the_coefficient_stays_between_one_over_e_and_e():
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1000]), np.zeros(1000), {"entropy": [0.0] + [1.0] * 999})
    alpha_R = tw.entropy_coefficient(batch)
    assert alpha_R.max() < np.e
    np.testing.assert_allclose(alpha_R.max(), np.e, rtol=2e-3)  # 1000 responses come that close
    few = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 1000]), np.zeros(1000), {"entropy": [1.0] + [0.0] * 999})
    assert tw.entropy_coefficient(few).min() > 1 / np.e


def test_aem_raises_entropy_while_failures_dominate_and_lowers_it_once_successes_do():
    """The motivation, exact: one state, every response drawn once, all failed or all succeeded."""
    probability_Y = np.array([0.4, 0.3, 0.2, 0.1])
    surprisal_Y = -np.log(probability_Y)
    weights = len(surprisal_Y) * entropy_regularized_weights(
        (surprisal_Y - surprisal_Y.min()) / np.ptp(surprisal_Y), temperature=1.0
    )
    for advantage, sign in ((-1.0, 1), (1.0, -1)):
        plain = sum(fisher_rao_drift(probability_Y, y, advantage) for y in range(4))
        modulated = sum(fisher_rao_drift(probability_Y, y, advantage * float(weights[y])) for y in range(4))
        assert sign * (modulated - plain) > 0.01
