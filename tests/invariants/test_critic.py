"""The value loss is the definition's, whatever cuts a step into passes, and reaches the policy only if asked to."""

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.invariants.test_update import Frozen, assert_same, experience, flat_gradient, make_config
from tests.steps import measured, updated, with_column

import turnwise as tw
from turnwise.credit.trace import Trace, Traced
from turnwise.models.critic import Critic
from turnwise.models.settings import CriticConfig
from turnwise.objective.tokens import generated_states, score
from turnwise.objective.values import OF_SUBGOALS, Places, ValueTerm, _metrics
from turnwise.train import update as step_module

TRUNK = {"trunk_gradient": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "head": {"width": 3},
    "head, into the trunk": {"width": 3, **TRUNK},
    "after, clipped": {"read": "after", "clip": 0.05},
    "copy of the policy": {"kind": "model"},
    "tiny": {"kind": "model", "name": "tiny", "hidden_size": 8, "num_heads": 2, "num_layers": 1},
}


COLUMNS = ("value", "value_next", "value_T")


class Kept(torch.optim.SGD):
    """Keeps weights and gradients as they are."""

    def step(self, closure=None):
        pass

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)


def make_critic(policy, columns=COLUMNS, **settings: Any) -> Critic:
    critic = Critic(policy, CriticConfig(**{"max_grad_norm": 1e9, **settings}), columns, seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in critic.network.named_parameters():
            if name.startswith("heads"):
                weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    critic.optimizer = Kept(critic.network.parameters())
    return critic


def credit_of(batch: tw.Batch) -> tw.Trace:
    """A turn method and a token method at once: each reports a target of its own."""
    return tw.mix(tw.gae(), tw.ppo()).trace(batch)[0]


def gradients(config, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Gradients of policy and critic, and the metrics."""
    policy, _, _, trajectories, _ = experience()
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    critic = make_critic(policy, **settings)
    term = ValueTerm(critic)
    step = measured(policy.model, trajectories, config, value=term)
    credit = credit_of(step.batch)
    metrics, _ = updated(policy.model, Frozen(policy.model.parameters()), step, credit, config, step=1, value=term)
    return flat_gradient(policy.model), flat_gradient(critic.network), metrics


@pytest.mark.parametrize("kind", KINDS)
def test_neither_gradient_depends_on_micro_batches(kind):
    whole = gradients(make_config(), **KINDS[kind])
    assert whole[0].abs().max() > 0 < whole[1].abs().max()
    for max_tokens in (1, 60):
        cut = gradients(make_config(max_tokens=max_tokens), **KINDS[kind])
        assert_same(cut[0], whole[0])
        assert_same(cut[1], whole[1])
        assert cut[2]["value_loss"] == pytest.approx(whole[2]["value_loss"], rel=1e-5)


def test_a_gradient_is_shortened_to_its_bound():
    policy, critic, metrics = gradients(make_config(), width=3)
    norms = float(policy.norm()), float(critic.norm())
    assert (metrics["grad_norm"], metrics["critic_grad_norm"]) == pytest.approx(norms)
    config = make_config(max_grad_norm=norms[0] / 2)
    assert_same(gradients(config, width=3)[0], policy / 2)
    assert_same(gradients(config, width=3, max_grad_norm=norms[1] / 2)[1], critic / 2)


def test_mini_batches_average_to_the_whole_step():
    """With weights that stay, the gradients of two halves average to that of the step."""
    halves, policy = [], experience()[0]
    for number in range(2):
        critic = make_critic(policy, columns=("value",))
        term = ValueTerm(critic)
        config = make_config(mini_batches=2)
        step = measured(policy.model, experience()[3], config, value=term)
        taken = []
        critic.step = lambda critic=critic, taken=taken: taken.append(flat_gradient(critic.network)) or 1.0
        updated(copy.deepcopy(policy.model), Frozen(policy.model.parameters()), step, credit_of_turns(step.batch),
                config, step=1, value=term)  # fmt: skip
        halves.append(taken[number])
    critic = make_critic(policy, columns=("value",))
    term, config = ValueTerm(critic), make_config()
    step = measured(policy.model, experience()[3], config, value=term)
    updated(copy.deepcopy(policy.model), Frozen(policy.model.parameters()), step, credit_of_turns(step.batch), config,
            step=1, value=term)  # fmt: skip
    assert_same((halves[0] + halves[1]) / 2, flat_gradient(critic.network))


def credit_of_turns(batch: tw.Batch) -> tw.Trace:
    return tw.gae().trace(batch)[0]


@pytest.mark.parametrize("read", ["before", "after"])
def test_the_value_loss_is_the_one_of_the_definition(read):
    """One trajectory, one turn at a time; targets by a loop over turns and tokens, every denominator counted.

    The critic's values have moved since they were measured, some by more than the clip's width.
    """
    policy, _, _, trajectories, _ = experience()
    trajectories = [dataclasses.replace(each, ended="truncated") for each in trajectories[:2]] + trajectories[2:]
    clip, decay, ppo_decay = 0.05, 0.95, 0.95
    critic = make_critic(policy, read=read, clip=clip)
    term, config = ValueTerm(critic), make_config()
    step = measured(policy.model, trajectories, config, value=term)
    generator, columns = np.random.default_rng(0), step.batch.columns
    olds = {name: columns[name] + generator.normal(0, 0.1, len(columns[name])) for name in COLUMNS}
    step = with_column(step, **olds)
    updated(copy.deepcopy(policy.model), Frozen(policy.model.parameters()), step, credit_of(step.batch), config,
            step=1, value=term)  # fmt: skip
    ours = flat_gradient(critic.network)

    old_of = {name: iter(values.tolist()) for name, values in olds.items()}  # in the order of the loops below
    reads: dict[str, list] = {name: [] for name in COLUMNS}  # (value, old value, target) where a target is known
    for each in trajectories:
        ids = [token for turn in each.turns for token in (*turn.prompt_ids, *turn.response_ids)]
        with torch.no_grad():
            hidden = policy.model.get_decoder()(input_ids=torch.tensor([ids])).last_hidden_state[0]
        value = {name: critic.network(name, hidden) for name in COLUMNS}
        place, first, last, tokens = 0, [], [], []
        for turn in each.turns:
            place += len(turn.prompt_ids)
            first.append(place - 1)
            tokens.append([place - 1 + k for k in range(len(turn.response_ids))])
            place += len(turn.response_ids)
            last.append(place - 1)
        at = first if read == "before" else last
        flat = [p for turn in tokens for p in turn]
        old = {name: [next(old_of[name]) for _ in part] for name, part in zip(COLUMNS, (at, last, flat), strict=True)}
        v, v_T = old["value"], old["value_T"]
        target, carry = [0.0] * len(v), 0.0
        for k in reversed(range(len(v))):
            follows = v[k + 1] if k + 1 < len(v) else 0.0
            carry = each.turns[k].reward + follows - v[k] + decay * carry
            target[k] = carry + v[k]
        reads["value"] += zip(value["value"][at], v, target, strict=True)
        after = target[1:] + ([0.0] if each.ended == "terminated" else [])  # what follows a truncated one is unknown
        reads["value_next"] += zip(value["value_next"][last], old["value_next"], after, strict=False)
        ends = {turn[-1]: each.turns[k].reward for k, turn in enumerate(tokens)}
        carry = 0.0
        for k in reversed(range(len(flat))):
            follows = v_T[k + 1] if k + 1 < len(flat) else 0.0
            carry = ends.get(flat[k], 0.0) + follows - v_T[k] + ppo_decay * carry
            reads["value_T"].append((value["value_T"][flat[k]], v_T[k], carry + v_T[k]))
    loss = torch.zeros(())
    for pairs in reads.values():
        for now, before, target in pairs:
            near = before + (now - before).clamp(-clip, clip)
            loss = loss + torch.maximum((now - target) ** 2, (near - target) ** 2) / len(pairs) / 2 / len(reads)
    critic.network.zero_grad()
    loss.backward()
    assert_same(ours, flat_gradient(critic.network))


def test_the_values_of_subgoals_learn_where_their_targets_are_known():
    """Decision and subgoal are read before a response, the action before its last token; no target, no loss."""
    policy, _, _, trajectories, _ = experience()
    critic = make_critic(policy, columns=OF_SUBGOALS)
    critic.format = SimpleNamespace(planned=lambda ids: SimpleNamespace(cuts=(0, len(ids) - 1)))
    term, config = ValueTerm(critic), make_config(max_tokens=60)
    step = measured(policy.model, trajectories, config)
    values = term.begin(step.sequences, trajectories, config.model, step_module.Budget(60))
    step = with_column(step, **{name: values.column(name) for name in OF_SUBGOALS})
    generator, zeros = np.random.default_rng(1), np.zeros(step.batch.num_responses)
    targets = {name: generator.normal(size=len(zeros)) for name in OF_SUBGOALS}
    targets["value_high"][::2] = np.nan
    credit = Trace(zeros, (Traced("targets", zeros, zeros + 1, zeros, targets=targets),))
    updated(copy.deepcopy(policy.model), Frozen(policy.model.parameters()), step, credit, config, step=1, value=term)
    ours = flat_gradient(critic.network)

    loss, row = torch.zeros(()), 0
    for each in trajectories:
        ids = [token for turn in each.turns for token in (*turn.prompt_ids, *turn.response_ids)]
        with torch.no_grad():
            hidden = policy.model.get_decoder()(input_ids=torch.tensor([ids])).last_hidden_state[0]
        place = 0
        for turn in each.turns:
            place += len(turn.prompt_ids)
            for name in OF_SUBGOALS:
                at = place - 1 + (len(turn.response_ids) - 1 if name == "value_low" else 0)
                value, target = critic.network(name, hidden[at : at + 1])[0], targets[name][row]
                np.testing.assert_allclose(value.item(), step.batch.columns[name][row], rtol=1e-4, atol=1e-5)
                if np.isfinite(target):
                    loss = loss + (value - target) ** 2 / np.isfinite(targets[name]).sum() / 2 / len(OF_SUBGOALS)
            place += len(turn.response_ids)
            row += 1
    critic.network.zero_grad()
    loss.backward()
    assert_same(ours, flat_gradient(critic.network))


def test_the_value_loss_stays_out_of_the_policy_unless_asked():
    policy, _, _, trajectories, _ = experience()
    config = make_config()
    step = measured(policy.model, trajectories, config, value=ValueTerm(make_critic(policy)))
    model = copy.deepcopy(policy.model)
    updated(model, Frozen(model.parameters()), step, credit_of(step.batch), config, step=1)
    without_critic = flat_gradient(model)
    apart, joint, double = (gradients(config, trunk_gradient=share)[0] for share in (0.0, 0.5, 1.0))
    assert_same(apart, without_critic)
    assert (joint - apart).abs().max() > 1e-3 * apart.abs().max()
    assert_same(double - apart, 2 * (joint - apart))
    assert CriticConfig().trunk_gradient == 0.0


def test_a_head_makes_no_pass_of_its_own(monkeypatch):
    policy, _, _, trajectories, _ = experience()
    config, calls = make_config(), []
    decoder = policy.model.get_decoder()
    monkeypatch.setattr(decoder, "forward", _counted(decoder.forward, calls))

    def passes(value: ValueTerm | None) -> int:
        calls.clear()
        step = measured(policy.model, trajectories, config, value=value)
        credit = tw.Trace(np.ones(step.batch.num_responses))
        updated(policy.model, Frozen(policy.model.parameters()), step, credit, config, step=1, value=value)
        return len(calls)

    assert passes(ValueTerm(make_critic(policy))) == passes(None) == 2


def _counted(forward, calls):
    def watched(*arguments, **options):
        calls.append(1)
        return forward(*arguments, **options)

    return watched


def test_values_are_the_same_along_the_scoring_pass_and_in_a_pass_of_their_own():
    policy, _, _, trajectories, _ = experience()
    along = ValueTerm(make_critic(policy))
    step = measured(policy.model, trajectories, make_config(), value=along)
    alone = ValueTerm(make_critic(policy)).begin(
        step.sequences, trajectories, make_config().model, step_module.Budget(40)
    )
    for column in COLUMNS:
        np.testing.assert_allclose(alone.column(column), step.batch.columns[column], rtol=1e-5, atol=1e-6)


def test_places_are_found_in_any_order_of_tokens():
    generator = np.random.default_rng(0)
    where = generator.permutation(40)[:25]
    places = Places(np.sort(generator.permutation(40)[:12]), after=False)
    reads, at = (part.tolist() for part in places.among(where))
    assert [(int(places.tokens[read]), int(where[k])) for read, k in zip(reads, at, strict=True)] == [
        (int(token), int(token)) for token in places.tokens if token in where
    ]
    assert 0 < len(reads) < 12


def test_token_credit_reaches_the_loss_token_by_token():
    """At ratio 1 the gradient is that of minus the mean of advantage times log-probability."""
    policy, _, _, trajectories, _ = experience()
    config = make_config()
    step = measured(policy.model, trajectories, config, value=ValueTerm(make_critic(policy)))
    credit = tw.ppo().trace(step.batch)[0]
    model = copy.deepcopy(policy.model)
    updated(model, Frozen(model.parameters()), step, credit, config, step=1)
    ours = flat_gradient(model)
    tokens = step.batch.tokens
    assert tokens is not None
    advantage = iter(credit.advantage_T(tokens))
    assert credit.within_T(tokens) is not None
    total, count = torch.zeros(()), tokens.num_elements
    model.zero_grad()
    for each in trajectories:
        ids = [token for turn in each.turns for token in (*turn.prompt_ids, *turn.response_ids)]
        every = torch.log_softmax(model(torch.tensor([ids])).logits[0] / config.rollout.temperature, -1)
        place = 0
        for turn in each.turns:
            place += len(turn.prompt_ids)
            for token in turn.response_ids:
                total = total - next(advantage) * every[place - 1, token] / count
                place += 1
    total.backward()
    assert_same(ours, flat_gradient(model))
    at_response = copy.deepcopy(policy.model)
    updated(at_response, Frozen(at_response.parameters()), step, tw.Trace(credit.advantage_R), config, step=1)
    assert (flat_gradient(at_response) - ours).abs().max() > 1e-3 * ours.abs().max()


def test_hidden_states_are_those_before_and_after_each_token():
    policy, _, _, trajectories, _ = experience()
    step = measured(policy.model, trajectories, make_config())
    states, ids = generated_states(policy.model, step.sequences, np.array([2, 0]))
    which = torch.tensor([1, 4])
    rows, columns = states.rows[which], states.columns[which]
    assert torch.equal(states.at(which, after=False), states.hidden[rows, columns - 1])
    assert torch.equal(states.at(which, after=True), states.hidden[rows, columns])
    where = step.sequences.token_index(np.array([2, 0]))
    logprob_T, _ = score(policy.model, step.sequences)
    output = policy.model.get_output_embeddings()
    assert output is not None
    told = torch.log_softmax(output(states.at(which, after=False)), -1)[torch.arange(2), ids[rows, columns]]
    np.testing.assert_allclose(told.detach().numpy(), logprob_T[where[which.numpy()]], rtol=1e-4)


def test_a_critic_that_is_off_by_a_constant_explains_all_of_the_variance():
    made = _metrics("value", np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 3.0]))
    assert made["value_explained"] == pytest.approx(1.0)
    assert _metrics("value", np.zeros(2), np.array([0.0, 2.0]))["value_explained"] == pytest.approx(0.0)
