"""The update is a function of the trajectories and their advantages, not of how they are cut into passes.

Gradients are compared twice. The largest difference, relative to the largest entry of the gradient, catches a gross
error anywhere; float32 sums of a few hundred terms in another order differ by about 1e-6, the bound is ten times that.
The mean difference, relative to the mean entry, catches a small error of one sign everywhere, such as a wrong
denominator: rounding has either sign and averages out over thousands of entries.
"""

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from tests.steps import measured as score_trajectories
from tests.steps import updated as update_policy
from tests.steps import with_column
from tests.toys import Colors, color_policy, small_config, trajectory

from turnwise.base.blocking import blocking
from turnwise.config import Config
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.models.policy import Policy
from turnwise.objective.losses import policy_loss
from turnwise.objective.tokens import generated_logprobs, score
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.starts import make_starts
from turnwise.rollout.trajectory import Trajectory
from turnwise.train import update as step_module
from turnwise.train.update import Measured

MAX_DIFFERENCE = 1e-5
MEAN_DIFFERENCE = 1e-5

Gradient = torch.Tensor


class Frozen(torch.optim.SGD):
    """Keeps weights and gradients as they are."""

    def step(self, closure=None):
        pass


def make_config(**update: Any) -> Config:
    settings = {"max_grad_norm": 1e9, "clip_low": 0.1, "clip_high": 0.2, **update}
    return small_config("unused", update=settings, rollout={"max_new_tokens": 4, "temperature": 0.8})  # pyright: ignore


def make_policy() -> Policy:
    return color_policy(layers=2, seed=5, spread=20.0)


def moved(policy: Policy, size: float, seed: int) -> Policy:
    """A policy nearby: ratios leave 1, so that the clip binds here and there."""
    other, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return other


def experience() -> tuple[Policy, Policy, Policy, list[Trajectory], np.ndarray]:
    """Policy to update, sampling policy, reference, ragged trajectories, and advantages, 0 for three trajectories.

    Made once for all tests, but no policy keeps gradients that an earlier test left.
    """
    policy, old, reference, trajectories, advantage_R = _experience()
    for each in (policy, old, reference):
        each.model.zero_grad()
    return policy, old, reference, trajectories, advantage_R


@functools.cache
def _experience() -> tuple[Policy, Policy, Policy, list[Trajectory], np.ndarray]:
    policy = make_policy()
    old = moved(policy, 0.02, 1)
    request = Request(
        engine=LocalEngine(old.model),
        environments=InProcessEnvironments(lambda task: Colors(task[0], turns=task[1])),
        fmt=old.format,
        sampling=Sampling(max_new_tokens=4, stop_ids=(old.format.stop_id,), temperature=0.8, seed=3),
        max_context=64,
    )
    trajectories = blocking(play(make_starts([(0, 1), (1, 4), (2, 2), (3, 3)], 4), request))
    advantage_R = np.random.default_rng(0).normal(0.5, 1.0, sum(len(t.turns) for t in trajectories))
    starts = np.cumsum([0, *(len(t.turns) for t in trajectories)])
    for number in (0, 6, 13):
        advantage_R[starts[number] : starts[number + 1]] = 0.0
    return policy, old, moved(policy, 0.05, 2), trajectories, advantage_R


def scored_by_old(config: Config, *, reference: bool = False) -> Measured:
    """The experience as a step measures it; once for all configurations of `make_config` that measure it alike."""
    return _scored_by_old(config.update.max_tokens, config.update.scoring, reference)


@functools.cache
def _scored_by_old(max_tokens: int, scoring: str, reference: bool) -> Measured:
    _, old, ref, trajectories, _ = experience()
    config = make_config(max_tokens=max_tokens, scoring=scoring)
    scored = score_trajectories(old.model, trajectories, config, reference=ref.model if reference else None)
    gold = np.random.default_rng(1).normal(-2.0, 1.0, scored.batch.num_responses)
    return with_column(scored, gold_logprob=gold)


def gradient(config: Config, *, reference: bool = False, state: Any = None) -> Gradient:
    """What `update_policy` makes of the experience, as one vector."""
    policy, _, _, _, advantage_R = experience()
    model, scored = copy.deepcopy(policy.model), scored_by_old(config, reference=reference)
    update_policy(model, Frozen(model.parameters()), scored, advantage_R, config, step=1, state=state)
    return flat_gradient(model)


@functools.cache
def whole_gradient(aggregate: str = "token-mean") -> Gradient:
    """The gradient in micro-batches of the usual size, with which the tests below compare; made once for all."""
    return gradient(make_config(aggregate=aggregate))


def flat_gradient(model: torch.nn.Module) -> Gradient:
    return torch.cat(
        [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()]
    ).double()


def difference(ours: Gradient, theirs: Gradient) -> tuple[float, float]:
    """Largest and mean difference, both relative."""
    residual = ours - theirs
    return (
        float(residual.abs().max() / theirs.abs().max()),
        float((residual * theirs.sign()).mean().abs() / theirs.abs().mean()),
    )


def assert_same(ours: Gradient, theirs: Gradient) -> None:
    largest, mean = difference(ours, theirs)
    assert largest < MAX_DIFFERENCE
    assert mean < MEAN_DIFFERENCE


def naive_gradient(config: Config, *, reference: bool = False) -> Gradient:
    """The definition: one trajectory, one turn, one token at a time, in float64, every denominator counted by hand."""
    policy, old, ref, trajectories, advantage_R = experience()
    settings, temperature = config.update, config.rollout.temperature
    model, old_model, ref_model = (copy.deepcopy(p.model).double() for p in (policy, old, ref))
    num_tokens = sum(len(turn.response_ids) for t in trajectories for turn in t.turns)
    num_responses = sum(len(t.turns) for t in trajectories)
    responses = iter(advantage_R)
    for t in trajectories:
        ids = [token for turn in t.turns for token in (*turn.prompt_ids, *turn.response_ids)]
        with torch.no_grad():
            old_all = torch.log_softmax(old_model(torch.tensor([ids])).logits[0] / temperature, -1)
            ref_all = torch.log_softmax(ref_model(torch.tensor([ids])).logits[0] / temperature, -1)
        now_all = torch.log_softmax(model(torch.tensor([ids])).logits[0] / temperature, -1)
        own_tokens = sum(len(turn.response_ids) for turn in t.turns)
        loss, place = torch.zeros((), dtype=torch.float64), 0
        for turn in t.turns:
            advantage = next(responses)
            place += len(turn.prompt_ids)
            for token in turn.response_ids:
                weight = {
                    "token-mean": 1 / num_tokens,
                    "response-mean": 1 / (num_responses * len(turn.response_ids)),
                    "trajectory-mean": 1 / (len(trajectories) * own_tokens),
                    "constant": 1 / (len(trajectories) * config.rollout.max_new_tokens),
                }[settings.aggregate]
                now = now_all[place - 1]
                ratio = torch.exp(now[token] - old_all[place - 1, token])
                clipped = torch.clamp(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
                loss = loss - weight * torch.minimum(ratio * advantage, clipped * advantage)
                if reference:
                    log = ref_all[place - 1, token] - now[token]
                    loss = loss + settings.kl * weight * (torch.exp(log) - log - 1)
                loss = loss - settings.entropy_bonus * weight * -(now.exp() * now).sum()
                place += 1
        loss.backward()
    return flat_gradient(model)


@pytest.mark.parametrize("aggregate", ["token-mean", "response-mean", "trajectory-mean", "constant"])
def test_the_gradient_is_the_one_of_the_definition(aggregate):
    assert_same(whole_gradient(aggregate), naive_gradient(make_config(aggregate=aggregate)))


def test_the_gradient_with_kl_and_entropy_is_the_one_of_the_definition():
    config = make_config(kl=0.3, entropy_bonus=0.05)
    assert_same(gradient(config, reference=True), naive_gradient(config, reference=True))


def test_the_clip_binds_somewhere_in_this_experience():
    """Else the tests above say nothing about it."""
    policy, _, _, _, advantage_R = experience()
    model = copy.deepcopy(policy.model)
    config = make_config()
    totals, _ = update_policy(model, Frozen(model.parameters()), scored_by_old(config), advantage_R, config, step=1)
    assert 0.02 < totals["clipped_frac"] < 0.5


@pytest.mark.parametrize("aggregate", ["token-mean", "response-mean", "trajectory-mean", "constant"])
@pytest.mark.parametrize("max_tokens", [1, 40, 100])
def test_the_size_of_micro_batches_does_not_matter(max_tokens, aggregate):
    config = make_config(aggregate=aggregate, max_tokens=max_tokens)
    assert_same(gradient(config), whole_gradient(aggregate))


@pytest.mark.parametrize("chunk_tokens", [1, 7])
def test_the_size_of_chunks_does_not_matter(chunk_tokens, monkeypatch):
    whole = gradient(make_config())
    monkeypatch.setattr(
        step_module, "generated_logprobs", functools.partial(generated_logprobs, chunk_tokens=chunk_tokens)
    )
    assert_same(gradient(make_config()), whole)


def test_skipping_trajectories_without_advantage_does_not_matter(monkeypatch):
    passes = []

    def counted(model, sequences, indices, **options):
        passes.append(len(indices))
        return generated_logprobs(model, sequences, indices, **options)

    monkeypatch.setattr(step_module, "generated_logprobs", counted)
    skipping = gradient(make_config())
    assert sum(passes) == 13
    all_of_them = gradient(make_config(entropy_bonus=1e-30))  # an entropy term needs every trajectory
    assert sum(passes) == 13 + 16
    assert_same(skipping, all_of_them)


@pytest.mark.parametrize("max_tokens", [1, 60])
def test_updated_weights_do_not_depend_on_micro_batches(max_tokens):
    def updated(max_tokens: int) -> tuple[torch.Tensor, dict[str, float]]:
        policy, _, _, _, advantage_R = experience()
        model = copy.deepcopy(policy.model)
        config = make_config(
            max_tokens=max_tokens, epochs=2, mini_batches=3, kl=0.1, max_grad_norm=0.5, learning_rate=0.05
        )
        scored = scored_by_old(config, reference=True)
        totals, _ = update_policy(model, torch.optim.SGD(model.parameters()), scored, advantage_R, config, step=4)
        return torch.cat([p.detach().flatten() for p in model.parameters()]).double(), totals

    start = torch.cat([p.detach().flatten() for p in experience()[0].model.parameters()]).double()
    (ours, ours_totals), (theirs, theirs_totals) = updated(max_tokens), updated(16384)
    largest, _ = difference(ours - start, theirs - start)
    assert largest < 1e-4  # six updates: differences of one grow in the next; weights of size 1 have 1e-7 of rounding
    assert ours_totals == pytest.approx(theirs_totals, rel=1e-4, abs=1e-6)


def test_mini_batches_average_to_the_whole_step():
    """With frozen weights the mini-batches' gradients have the step's gradient as their mean."""
    policy, _, _, _, advantage_R = experience()
    model, parts = copy.deepcopy(policy.model), []

    class Recording(Frozen):
        def step(self, closure=None):
            parts.append(flat_gradient(model).clone())

    config = make_config(mini_batches=4)
    update_policy(model, Recording(model.parameters()), scored_by_old(config), advantage_R, config, step=1)
    assert len(parts) == 4
    assert_same(torch.stack(parts).mean(0), whole_gradient())


def local_denominators(max_tokens: int) -> Gradient:
    """Known wrong: each micro-batch averages over its own tokens, and the micro-batches are averaged."""
    policy, _, _, _, advantage_R = experience()
    config = make_config()
    scored, model = scored_by_old(config), copy.deepcopy(policy.model)
    assert scored.batch.tokens is not None
    advantage_T = torch.from_numpy(scored.batch.tokens.broadcast(advantage_R)).float()
    old_T = torch.tensor(scored.batch.columns["logprob_T"]).float()
    batches = list(scored.sequences.micro_batches(max_tokens))
    for indices in batches:
        where = torch.from_numpy(scored.sequences.token_index(indices))
        logprob, _ = generated_logprobs(model, scored.sequences, indices, temperature=config.rollout.temperature)
        weight = torch.full((len(where),), 1 / len(where) / len(batches))
        loss = policy_loss(logprob, old_T[where], advantage_T[where], weight, clip_low=0.1, clip_high=0.2).loss
        loss.backward()
    return flat_gradient(model)


def test_local_denominators_are_rejected():
    right = naive_gradient(make_config())
    assert_same(local_denominators(100_000), right)  # one micro-batch: nothing to tell them apart
    largest, mean = difference(local_denominators(60), right)
    assert largest > 100 * MAX_DIFFERENCE
    assert mean > 100 * MEAN_DIFFERENCE


def test_the_gradient_points_up_the_expected_reward():
    """A bandit whose actions are all single tokens: the gradient by finite differences of `J = sum_a pi(a) r(a)`."""
    policy = make_policy()
    prompt, num_actions = policy.format.prompt_ids("say red", first=True), len(policy.tokenizer)
    reward = np.random.default_rng(1).normal(size=num_actions)
    trajectories = [trajectory(0, (prompt, [action])) for action in range(num_actions)]
    config = make_config()
    scored = score_trajectories(policy.model, trajectories, config)
    probability = np.exp(scored.batch.columns["logprob_T"])
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)
    model = copy.deepcopy(policy.model)
    advantage = num_actions * probability * reward  # every action once, weighted as often as it would be drawn
    update_policy(model, Frozen(model.parameters()), scored, advantage, config, step=1)
    ascent = -flat_gradient(model)

    exact = copy.deepcopy(policy.model).double()
    parameters = list(exact.parameters())
    start = torch.nn.utils.parameters_to_vector(parameters).detach()

    @torch.no_grad()
    def expected_reward(at: torch.Tensor) -> float:
        torch.nn.utils.vector_to_parameters(at, parameters)
        logits = exact(torch.tensor([prompt])).logits[0, -1] / config.rollout.temperature
        return float(torch.softmax(logits, -1) @ torch.from_numpy(reward))

    generator, size = torch.Generator().manual_seed(0), 1e-5
    for _ in range(8):
        direction = torch.randn(len(start), generator=generator, dtype=torch.float64)
        slope = (expected_reward(start + size * direction) - expected_reward(start - size * direction)) / (2 * size)
        assert slope == pytest.approx(float(ascent @ direction), rel=1e-3, abs=1e-5)


def test_scoring_does_not_depend_on_micro_batches():
    _, old, _, _, _ = experience()
    sequences = scored_by_old(make_config()).sequences
    for one, other in zip(score(old.model, sequences, max_tokens=1), score(old.model, sequences), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(("step", "warmup_steps", "share"), [(1, 0, 1), (1, 5, 0.2), (3, 5, 0.6), (5, 5, 1), (9, 5, 1)])
def test_the_learning_rate_rises_over_the_first_steps(step, warmup_steps, share):
    policy, _, _, _, advantage_R = experience()
    model, config = copy.deepcopy(policy.model), make_config(learning_rate=0.1, warmup_steps=warmup_steps)
    optimizer = torch.optim.SGD(model.parameters())
    update_policy(model, optimizer, scored_by_old(config), advantage_R, config, step=step)
    moved_by = torch.cat(
        [(a - b).flatten() for a, b in zip(model.parameters(), policy.model.parameters(), strict=True)]
    )
    torch.testing.assert_close(moved_by.double(), -0.1 * share * gradient(config), rtol=0, atol=2e-7)


def test_a_step_without_any_advantage_leaves_the_weights():
    policy, _, _, _, advantage_R = experience()
    model = copy.deepcopy(policy.model)
    config = make_config()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    totals, _ = update_policy(model, optimizer, scored_by_old(config), 0 * advantage_R, config, step=1)
    assert totals["grad_norm"] == 0
    for ours, before in zip(model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(ours, before)


def test_a_kl_term_alone_needs_every_trajectory():
    """Three trajectories have no advantage; the reference pulls on them all the same."""
    config = make_config(kl=0.3)
    assert_same(gradient(config, reference=True), naive_gradient(config, reference=True))


def test_the_absolute_log_ratio_is_the_mean_over_tokens():
    policy, _, _, _, advantage_R = experience()
    config = make_config(entropy_bonus=1e-30)  # so that every trajectory is passed
    model, scored = copy.deepcopy(policy.model), scored_by_old(config)
    totals, _ = update_policy(model, Frozen(model.parameters()), scored, advantage_R, config, step=1)
    now_T, _ = score(policy.model, scored.sequences, temperature=config.rollout.temperature)
    moved_T = now_T - scored.batch.columns["logprob_T"]
    assert totals["log_ratio_abs"] == pytest.approx(np.abs(moved_T).mean(), rel=1e-4)
    assert totals["kl_old"] == pytest.approx(-moved_T.mean(), rel=1e-3)
