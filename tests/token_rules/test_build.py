"""Rules in a recipe: what is wrong is said in one line, before anything starts."""

import inspect
import json

import numpy as np
import pytest
import torch

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.base.register import ENTROPY_RULES, TOKEN_RULES
from turnwise.base.streams import Stream
from turnwise.config import load_config, override_config, parse_config
from turnwise.credit.trace import Trace, Traced
from turnwise.objective import losses, policy
from turnwise.objective.part import part_of
from turnwise.objective.policy import PolicyTerm
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, StepView
from turnwise.objective.token_rules.build import build_entropy_rule, build_token_rule
from turnwise.objective.token_rules.step import step_tokens

# options of the rules whose papers leave them open: no paper's values
OPEN = {
    "d3s_mask": {"first_frac": 0.1, "last_frac": 0.5},
    "flexible_clip": {"upper": [0.5, 0.2], "lower": [0.4, 0.1]},
    "adapo": {"rate": 0.1, "high_min": 0.1, "high_max": 0.4},
    "repo": {"zeta": 0.02},
}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("update.tokens=stear", r"unknown update.tokens 'stear'. Did you mean 'steer'\?"),
        ("update.tokens.name=zzz", r"unknown update.tokens 'zzz'. Known: adapo, clip_cov, d3s_mask, .*steer"),
        ("update.entropy=eppo", r"unknown update.entropy 'eppo'. Did you mean 'epo'\?"),
        ("update.tokens={name='steer', weight_mim=0.5}", r"'steer' has no option 'weight_mim'. .* 'weight_min'\?"),
        ("update.tokens={name='steer', weight_min=2.0}", r"weight_min=2.0 of 'steer': .*less than or equal to 1"),
        ("update.tokens={name='steer', weight_min=0}", r"weight_min=0 of 'steer': .*greater than 0"),
        ("update.tokens={name='steer', weight_min='0.5'}", r"weight_min='0.5' of 'steer': .*valid number"),
        ("update.tokens={name='steer', weight_min=true}", r"weight_min=True of 'steer': .*valid number"),
        ("update.tokens={name='steer', mapping='line'}", r"mapping='line' of 'steer': .*'exponential' or 'linear'"),
        ("update.tokens={name='hapo', widths=1}", r"widths=1 of 'hapo': .*valid boolean"),
        ("update.tokens=d3s_mask", r"'d3s_mask' needs first_frac and last_frac; the paper's value is unknown, choose"),
        ("update.tokens={name='flexible_clip', upper=[0.3], lower=[0.2, 0.1]}", r"upper=\[0.3\] of .*at least 2 items"),
        ("update.tokens={name='flexible_clip', upper=[0.1, 0.3], lower=[0.2, 0.1]}", r"upper=\[0.1, 0.3\] grows"),
        ("update.tokens=repo", r"update.tokens 'repo' needs zeta; the paper's value is unknown, choose one"),
        ("update.entropy={name='epo', beta_decay=1.0, high=-1}", r"high=-1 of 'epo': .*greater than or equal to 0"),
        ("update.tokens=3", r"update.tokens: .*, got 3"),
        ("update.tokens={weight_min=0.5}", r"update.tokens.name needs a value"),
        ("update.importance=turn", r"update.importance: .*'token', 'response' or 'trajectory'.*, got \"turn\""),
        ("update.clip=pop", r"update.clip: .*'ppo', 'keep', 'cispo' or 'none'.*, got \"pop\""),
        ("update.dual_clip=1", r"update.dual_clip: .*greater than 1, got 1"),
        ("update.aggregate=nested", r"update.aggregate: .*'nested-mean'.*, got \"nested\""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, [override])
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_rule_is_a_name_or_a_table():
    bare = load_config(None, ["update.tokens=steer", "update.tokens.weight_min=0.5"])
    table = load_config(None, ["update.tokens={name='steer', weight_min=0.5}"])
    assert bare == table
    assert parse_config(json.loads(table.model_dump_json())) == table
    assert override_config(table, ["update.tokens=hapo"]).update.tokens != table.update.tokens
    off = load_config(None)
    assert override_config(off, ["update.entropy.name=epo", "update.entropy.beta_decay=1"]).update.entropy
    assert override_config(off, ["update.entropy=epo"]).update.entropy


@pytest.mark.parametrize("name", [*TOKEN_RULES, *ENTROPY_RULES])
def test_every_rule_can_be_named_and_documents_its_options(name):
    build, rules = (build_token_rule, TOKEN_RULES) if name in TOKEN_RULES else (build_entropy_rule, ENTROPY_RULES)
    build(name, OPEN.get(name, {}))
    text = inspect.getdoc(rules[name]) or ""
    _, *options = inspect.signature(rules[name]).parameters.values()
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert all(f"{option.name}: " in text for option in options)
    assert "arXiv " in text.split("Reference: ")[1]
    required = {option.name for option in options if option.default is option.empty}
    assert required == set(OPEN.get(name, {}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("steer", {"mapping": "linear", "weight_min": 0.8, "weight_max": 0.5}, "would favour large changes"),
        ("clip_cov", {"low": 5.0, "high": 1.0}, "no token would be a candidate"),
        ("flexible_clip", {**OPEN["flexible_clip"], "schedule": "id", "entropy_min": 0.5}, "only for schedule='od'"),
    ],
)
def test_options_that_contradict_each_other_or_do_nothing_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build_token_rule(name, options)


def test_a_rule_sees_the_step_and_its_place_in_the_run():
    columns = {"logprob_T": [[-1.0, -2.0]], "entropy_T": [[0.5, 0.25]]}
    batch, _ = tw.Batch.from_arrays(group=[0], trajectory=[0], reward=[1.0], columns=columns)
    step = StepView(batch, Trace(np.array([3.0])), step=3, steps=7, seed=5)
    seen = step_tokens(step, UpdateConfig(clip_low=0.1, clip_high=0.3), "state")
    assert seen.advantage_T.tolist() == [3.0, 3.0]
    assert (seen.logprob_T.tolist(), seen.entropy_T.tolist()) == ([-1.0, -2.0], [0.5, 0.25])
    assert (seen.clip_low, seen.clip_high) == (0.1, 0.3)
    assert (seen.steps_done, seen.steps, seen.progress) == (2, 7, 2 / 7)
    assert seen.seed == (5, Stream.TOKEN_RULES, 3)
    assert (seen.state, seen.batch) == ("state", batch)


def test_a_rule_does_not_compare_tokens_that_the_loss_leaves_out():
    """Fails if the rule sees the left response, whose entropy is the highest, or if the loss has a part of it."""
    rows = [
        {"reward": 0.0, "logprob_T": [-1.0, -2.0], "entropy_T": [entropy, 1.0], "behavior_logprob_T": [-1.0, -2.0]}
        for entropy in (0.5, 9.0, 2.0)
    ]
    batch, advantage_R = tw.Batch.from_trajectories([[rows[:2], rows[2:]]]), np.array([1.0, -2.0, 3.0])
    kept = Traced("keep", advantage_R, np.ones(3), advantage_R, kept_R=np.array([True, False, True]))
    settings = UpdateConfig.model_validate({"tokens": {"name": "hapo", "widths": False}, "clip": "none"})
    logprob = torch.tensor([-1.5, -1.0, -7.0, -9.0, -2.0, -0.5])
    found = PolicyTerm(settings).prepare(StepView(batch, Trace(advantage_R, (kept,))))
    loss, _ = found.loss(Pass(logprob, logprob * 0, torch.arange(6)))
    alone = part_of(StepView(batch, Trace(advantage_R)), np.array([0, 2]))
    expected, _ = PolicyTerm(settings).prepare(alone).loss(Pass(logprob[[0, 1, 4, 5]], torch.zeros(4), torch.arange(4)))
    everyone, _ = (
        PolicyTerm(settings)
        .prepare(StepView(batch, Trace(advantage_R)))
        .loss(Pass(logprob, logprob * 0, torch.arange(6)))
    )
    assert loss.item() == pytest.approx(expected.item())
    assert loss.item() != pytest.approx(everyone.item())
    assert found.matters_N.tolist() == [True, True]


@pytest.mark.parametrize("importance", ["token", "response", "trajectory"])
def test_the_ratio_of_a_trajectory_is_that_of_all_its_tokens_with_a_rule_and_without(importance):
    """STEER with a least weight of 1 does nothing; the loss leaves out one turn of the first trajectory."""
    draw = np.random.default_rng(0)
    rows = [
        {"reward": r, "logprob_T": p, "entropy_T": -p, "behavior_logprob_T": p}
        for r, p in zip([0.0, 1.0, 1.0], draw.uniform(-3, -0.1, (3, 2)), strict=True)
    ]
    batch, advantage_R = tw.Batch.from_trajectories([[rows[:2], rows[2:]]]), np.array([1.0, 1.0, -1.0])
    kept = Traced("keep", advantage_R, np.ones(3), advantage_R, kept_R=np.array([True, False, True]))
    step, gradients, now = StepView(batch, Trace(advantage_R, (kept,))), [], draw.uniform(-3, -0.1, 6)
    for rule in ({}, {"tokens": {"name": "steer", "weight_min": 1.0}}):
        settings = UpdateConfig.model_validate({**rule, "importance": importance, "clip": "none"})
        logprob = torch.tensor(now, requires_grad=True)
        loss, _ = PolicyTerm(settings).prepare(step).loss(Pass(logprob, torch.zeros(6), torch.arange(6)))
        loss.backward()
        gradients.append(logprob.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("left", range(6))
def test_a_rule_that_reads_columns_sees_the_whole_step(left, monkeypatch):
    """A turn keeps the width that its gain has among all turns of the group, whichever of them the loss leaves out."""
    tokens = {"logprob_T": [[-1.0]] * 6, "entropy_T": [[1.0]] * 6, "behavior_logprob_T": [[-1.0]] * 6}
    columns = {"gold_logprob": np.log([0.1, 0.5, 0.6, 0.1, 0.2, 0.4]), **tokens}
    batch, _ = tw.Batch.from_arrays(
        group=[0] * 6, trajectory=[0, 0, 0, 1, 1, 1], reward=[0, 0, 1, 0, 0, 0], columns=columns
    )
    settings = UpdateConfig.model_validate({"tokens": "gain_clip"})

    def widths(kept_R) -> np.ndarray:
        seen = []

        def noted(logprob, **options):
            seen.append(options)
            return losses.policy_loss(logprob, **options)

        monkeypatch.setattr(policy, "policy_loss", noted)
        traced = Traced("keep", np.ones(6), np.ones(6), np.ones(6), kept_R=kept_R)
        term = PolicyTerm(settings).prepare(StepView(batch, Trace(np.ones(6), (traced,))))
        term.loss(Pass(torch.full((6,), -1.0), torch.ones(6), torch.arange(6)))
        return seen[0]["clip_high"].numpy()

    kept_R = np.arange(6) != left
    assert len({*widths(None).round(6)}) == 3
    np.testing.assert_array_equal(widths(kept_R), widths(None))


@pytest.mark.parametrize("mismatch", ["truncate", "mask", "reject"])
@pytest.mark.parametrize("rule", ["spo_mask", "d3s_mask", "hapo"])
def test_a_rule_and_the_engines_mismatch_both_count(rule, mismatch):
    """Either may leave tokens out, or weigh them: the weights of both together are the product of each alone."""
    own = np.linspace(-3.0, -0.1, 12).reshape(4, 3)
    rows = [
        {"reward": r, "logprob_T": p, "entropy_T": -p, "behavior_logprob_T": p - np.array([0.0, 1.5, -0.2]) * (r > 0)}
        for r, p in zip([0.0, 1.0, 0.0, 1.0], own, strict=True)
    ]
    batch, advantage_R = tw.Batch.from_trajectories([[[row] for row in rows]]), np.array([-1.0, 2.0, -3.0, 4.0])
    logprob = torch.tensor(own.ravel())

    def weights(**settings: object) -> torch.Tensor:
        config = UpdateConfig.model_validate({"clip": "none", "aggregate": "constant", **settings})
        term = PolicyTerm(config).prepare(StepView(batch, Trace(advantage_R)))
        leaf = logprob.clone().requires_grad_()
        term.loss(Pass(leaf, leaf.detach() * 0, torch.arange(12)))[0].backward()
        assert leaf.grad is not None
        return leaf.grad

    tokens = {"tokens": {"name": rule, **OPEN.get(rule, {})}}
    cap = {"mismatch_cap": 2.0, "mismatch": mismatch}
    both, plain = weights(**tokens, **cap), weights()
    torch.testing.assert_close(both, weights(**tokens) * weights(**cap) / plain)
    assert (both != plain).any()
