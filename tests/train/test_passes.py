"""SeeUPO's passes: the card's numbers, the order of the turns, fresh old log-probabilities, and the carried ratio."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.invariants.test_update import experience, make_config
from tests.steps import measured
from tests.toys import small_config

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.trace import Trace, Traced
from turnwise.extensions.passes.passes import TurnPasses, cut, next_ratio, normalised
from turnwise.objective import losses
from turnwise.objective.build import make_objective
from turnwise.objective.gradient import Budget, Diverged
from turnwise.objective.mismatch import correct_mismatch
from turnwise.objective.part import PartView, part_of
from turnwise.objective.policy import PolicyTerm
from turnwise.objective.terms import StepView
from turnwise.objective.tokens import score
from turnwise.train.loop import train
from turnwise.train.update import Learner, Measured

SEEUPO = {"name": "seeupo"}


def test_the_numbers_of_the_code():
    """Returns 1 and 0 in a group: +-0.5, over the sample's deviation 0.7071; with ratios 1.2 and 0.8."""
    batch, _ = tw.Batch.from_arrays(group=["q"] * 3, trajectory=["a", "a", "b"], reward=[0, 1, 0])
    advantage_R = normalised(tw.dr_grpo()(batch), batch, most=3.0)
    np.testing.assert_allclose(advantage_R, [0.5**0.5, 0.5**0.5, -(0.5**0.5)])
    np.testing.assert_allclose(advantage_R * [1.2, 1.2, 0.8], [0.8485, 0.8485, -0.5657], atol=5e-5)


def test_equal_returns_are_not_divided_and_large_advantages_are_clipped():
    batch, _ = tw.Batch.from_arrays(group=["q"] * 2, trajectory=["a", "b"], reward=[1, 1])
    assert normalised(tw.dr_grpo()(batch), batch, most=3.0).tolist() == [0.0, 0.0]
    many, _ = tw.Batch.from_arrays(group=[0] * 40, trajectory=list(range(40)), reward=[1.0] + [0.0] * 39)
    assert normalised(tw.dr_grpo()(many), many, most=3.0).max() == 3.0


def test_the_correction_is_clipped_twice():
    found = next_ratio(np.array([1.0, 1.2, 1.2, 0.8, 1.0]), np.array([0.1, 5.0, -0.1, -50.0, 0.0]), clip=0.2)
    np.testing.assert_allclose(found, [np.exp(0.1), 1.2, 1.2 * np.exp(-0.1), 0.8, 1.0])


def learner(config: Any) -> TurnPasses:
    return TurnPasses(make_objective(config.update), config.update, config.model, Budget(10**6), temperature=0.8)


def passes(**update: Any):
    return make_config(passes=SEEUPO, importance="response", aggregate="response-mean", **update)


def step_of(config: Any) -> Measured:
    _, old, _, trajectories, _ = experience()
    return measured(old.model, trajectories, config)


def test_a_part_has_the_tokens_and_probabilities_of_its_turn_alone():
    config = passes()
    step = step_of(config)
    model = experience()[0].model
    whole_T, _ = score(model, step.sequences, temperature=0.8)
    assert step.batch.tokens is not None
    for turn in range(int(step.batch.turn_R.max()) + 1):
        rows = np.flatnonzero(step.batch.turn_R == turn)
        part = part_of(StepView(step.batch, Trace(np.zeros(step.batch.num_responses))), rows)
        found_T, _ = score(model, cut(step.sequences, step.batch.tokens, rows), temperature=0.8)
        np.testing.assert_allclose(found_T, whole_T[np.isin(step.batch.tokens.ids, rows)], atol=1e-5)
        np.testing.assert_array_equal(part.batch.reward_R, step.batch.reward_R[rows])
        assert part.batch.num_groups == len({*step.batch.group_responses.ids[rows].tolist()})


def seen_passes(monkeypatch, config: Any, optimizer_lr: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """What each inner update was given: advantages, old log-probabilities, and those under the weights it starts at."""
    seen, plain = [], Learner.update

    def watched(self, model, optimizer, part, credit, step, **options):
        now_T, _ = score(model, part.sequences, temperature=0.8)
        seen.append({"size": part.batch.num_trajectories, "now_T": now_T, "advantage_R": credit.advantage_R})
        seen[-1]["old_T"] = part.batch.columns["logprob_T"]
        seen[-1]["weight"] = self.view.weights("response-mean").sum()
        told = plain(self, model, optimizer, part, credit, step, **options)
        seen[-1]["after_T"], _ = score(model, part.sequences, temperature=0.8)
        seen[-1]["tokens"] = part.batch.tokens
        return told

    monkeypatch.setattr(Learner, "update", watched)
    policy, _, _, _, advantage_R = experience()
    model = copy.deepcopy(policy.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=optimizer_lr)
    changes: list[int] = []
    told = learner(config).update(
        model, optimizer, step_of(config), Trace(advantage_R), 1, before_change=lambda: changes.append(1)
    )
    assert changes == [1], "the weights change for the first time once a step"
    return seen, told


def test_the_last_turn_learns_first_and_corrects_those_before(monkeypatch):
    config = passes(learning_rate=0.3, warmup_steps=0)
    seen, told = seen_passes(monkeypatch, config, 0.3)
    step = step_of(config)
    turn_R, owner_R = step.batch.turn_R, step.batch.trajectories.ids
    last = int(turn_R.max())
    assert [each["size"] for each in seen] == [int((turn_R == turn).sum()) for turn in range(last, -1, -1)]
    base_R = normalised(experience()[4], step.batch, most=3.0)
    ratio_N, moved = np.ones(step.batch.num_trajectories), 0.0
    for turn, each in zip(range(last, -1, -1), seen, strict=True):
        rows = np.flatnonzero(turn_R == turn)
        np.testing.assert_allclose(each["old_T"], each["now_T"], atol=1e-6, err_msg="the pass starts at ratio 1")
        np.testing.assert_allclose(each["weight"], len(rows) / step.batch.num_trajectories)
        np.testing.assert_allclose(each["advantage_R"], base_R[rows] * ratio_N[owner_R[rows]], rtol=1e-5)
        change = each["tokens"].mean(each["after_T"] - each["old_T"])
        ratio_N[owner_R[rows]] = np.clip(ratio_N[owner_R[rows]] * np.clip(np.exp(change), 0.8, 1.2), 0.8, 1.2)
        moved = max(moved, float(np.abs(change).max()))
    assert moved > 0.02, "the updates are large enough to tell a correction from none"
    assert told["turn_ratio_min"] < 0.999


def test_a_turn_that_few_reach_weighs_little():
    """Two trajectories of five reach the turn, with three tokens each; a mean over tokens runs over theirs alone."""
    row, counts = {"reward": 0, "x_T": [0, 0, 0]}, {"reached": 4, "present": 5}
    view = PartView(tw.Batch.from_trajectories([[[row], [row]]]), Trace(np.zeros(2)), max_new_tokens=10, **counts)
    for aggregate, total in (("token-mean", 1.0), ("constant", 6 / (5 * 10))):
        np.testing.assert_allclose(view.weights(aggregate), total / 6)
    for aggregate in ("response-mean", "trajectory-mean", "nested-mean"):
        np.testing.assert_allclose(view.weights(aggregate), 2 / 4 / 6)


def test_what_a_method_leaves_out_has_no_part_in_a_mean(monkeypatch):
    """A trajectory of which nothing is kept is not counted; one that is kept in part is."""
    config = passes(learning_rate=0.1, warmup_steps=0)
    step = step_of(config)
    owner_R, turn_R = step.batch.trajectories.ids, step.batch.turn_R
    long = int(np.flatnonzero(np.bincount(owner_R) > 1)[0])
    kept_R = (owner_R != owner_R.max()) & ~((owner_R == long) & (turn_R == 0))
    weights, plain = {}, Learner.update

    def watched(self, model, optimizer, part, credit, number, **options):
        weights[int(part.batch.columns["turn"][0])] = self.view.weights("response-mean").sum()
        return plain(self, model, optimizer, part, credit, number, **options)

    monkeypatch.setattr(Learner, "update", watched)
    model = copy.deepcopy(experience()[0].model)
    step.batch.columns["turn"] = turn_R
    advantage_R = experience()[4]
    credit = Trace(advantage_R, (Traced("x", advantage_R, np.ones(len(kept_R)), advantage_R, kept_R=kept_R),))
    learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.1), step, credit, 1)
    num_kept = step.batch.num_trajectories - 1
    assert weights == {t: pytest.approx(((turn_R == t) & kept_R).sum() / num_kept) for t in weights}
    assert 0 in weights


def test_stale_log_probabilities_would_differ(monkeypatch):
    """Known wrong: the old log-probabilities of the start of the step, in a pass after others."""
    seen, _ = seen_passes(monkeypatch, passes(learning_rate=0.3, warmup_steps=0), 0.3)
    policy = experience()[0]
    step = step_of(passes())
    assert step.batch.tokens is not None
    start_T, _ = score(policy.model, step.sequences, temperature=0.8)
    first = np.flatnonzero(step.batch.turn_R == 0)
    assert np.abs(start_T[np.isin(step.batch.tokens.ids, first)] - seen[-1]["old_T"]).max() > 0.02


def test_one_turn_is_a_plain_update():
    """With one turn there is nothing to carry: the weights are those of a plain update on normalised advantages."""
    config = passes(learning_rate=0.1, warmup_steps=0)
    policy, old, _, trajectories, _ = experience()
    step = measured(old.model, [t for t in trajectories if len(t.turns) == 1], config)
    advantage_R = np.linspace(-1, 2, step.batch.num_responses)
    models = []
    for kind, credit_R in ((TurnPasses, advantage_R), (Learner, normalised(advantage_R, step.batch, most=3.0))):
        model = copy.deepcopy(policy.model)
        fresh = measured(model, [t for t in trajectories if len(t.turns) == 1], config)
        one = kind(make_objective(config.update), config.update, config.model, Budget(10**6), temperature=0.8)
        one.update(model, torch.optim.SGD(model.parameters(), lr=0.1), fresh, Trace(credit_R), 1)
        models.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    torch.testing.assert_close(models[0], models[1], atol=1e-6, rtol=1e-5)


def test_a_diverged_trajectory_keeps_its_number():
    config = passes()
    policy, *_ = experience()
    step = step_of(config)
    worst = int(np.flatnonzero(np.bincount(step.batch.trajectories.ids) > 1)[-1])
    advantage_R = np.where(step.batch.trajectories.ids == worst, 1e38, 0.0)
    model = copy.deepcopy(policy.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.extensions.passes.passes.normalised", lambda given, *_, **__: given * 1e10)
        with pytest.raises(Diverged) as caught:
            learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.1), step, Trace(advantage_R), 1)
    assert caught.value.trajectories == [worst]


def test_a_run_learns_by_passes(tmp_path):
    config = small_config(
        tmp_path,
        method="dr_grpo",
        run={"steps": 8},
        environment={"options": {"turns": 2}},
        rollout={"groups": 8, "group_size": 8},
        update={"passes": SEEUPO, "learning_rate": 0.02, "importance": "response", "mini_batches": 2},
    )
    steps = [line for line in train(config).metrics() if "update/turn_ratio_mean" in line]
    assert len(steps) == 8
    assert any(line["update/turn_ratio_min"] != 1.0 for line in steps)
    assert np.mean([s["rollout/reward"] for s in steps[-3:]]) > np.mean([s["rollout/reward"] for s in steps[:3]]) + 0.1


def test_credit_of_tokens_is_refused():
    config = passes()
    step, model = step_of(config), experience()[0].model
    assert step.batch.tokens is not None
    advantage_R = experience()[4]
    within_T = np.linspace(-1, 1, step.batch.tokens.num_elements)
    told = Traced("x", advantage_R, np.ones(len(advantage_R)), advantage_R, within_T=within_T)
    with pytest.raises(ConfigError, match="learns one advantage per response"):
        learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.1), step, Trace(advantage_R, (told,)), 1)


def test_mistakes_are_told(tmp_path):
    for sections, message in (
        ({"update": {"passes": {"name": "seeupoo"}}}, "update.passes.name"),
        (
            {
                "update": {"passes": {"name": "seeupo"}},
                "method": "spo_tree",
                "rollout": {
                    "collector": {"name": "branching", "rule": "spo_tree", "branching": [2, 2]},
                    "group_size": 4,
                },
            },
            "update.passes.name='seeupo' .*, and method 'spo_tree' gives each token its own advantage; choose",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            small_config(tmp_path, **sections)


def test_terms_that_compare_trajectories_learn_in_a_last_pass_over_the_whole_step(monkeypatch):
    """Fails if a preference is split by turns, or if it learns before a turn, with its weights in the old ones."""
    config, seen, plain = passes(preference={"name": "simpo"}), [], Learner.update

    def watched(self, model, optimizer, part, credit, step, **options):
        seen.append(([*self.objective.terms], part.batch.num_trajectories))
        return plain(self, model, optimizer, part, credit, step, **options)

    monkeypatch.setattr(Learner, "update", watched)
    step, model = step_of(config), copy.deepcopy(experience()[0].model)
    told = learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.1), step, Trace(experience()[4]), 1)
    turns = int(step.batch.turn_R.max()) + 1
    assert [names for names, _ in seen] == [["policy"]] * turns + [["preference"]]
    assert seen[-1][1] == step.batch.num_trajectories
    assert told["preference_pairs"] > 0


def watched_loss(monkeypatch, config: Any, **columns: Any) -> list[dict[str, Any]]:
    """What the policy's loss is computed from in each pass, of a step with other columns."""
    seen, plain = [], PolicyTerm.prepare

    def prepare(self, step):
        seen.append({"step": step, "credit": self._rule(step) if self._rule else None})
        return plain(self, step)

    monkeypatch.setattr(PolicyTerm, "prepare", prepare)
    step, model = step_of(config), copy.deepcopy(experience()[0].model)
    for name, value in columns.items():
        step.batch.columns[name] = value  # pyright: ignore[reportIndexIssue]
    learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.3), step, Trace(experience()[4]), 1)
    return seen


def test_a_token_rule_compares_the_tokens_of_the_step_once_and_each_pass_has_its_part(monkeypatch):
    """Fails if a pass asks the rule about its own turn, whose largest covariances are others than the step's."""
    config = passes(tokens={"name": "clip_cov", "frac": 0.3, "low": -100.0, "high": 100.0}, clip_low=1.0, clip_high=1.0)
    seen = watched_loss(monkeypatch, config)
    assert len({id(each["credit"]) for each in seen}) == 1
    factor_T = seen[0]["credit"].factor_T
    step = step_of(config)
    assert step.batch.tokens is not None
    assert len(factor_T) == step.batch.tokens.num_elements
    assert 0 < factor_T.mean() < 1
    parts = [each["credit"].part(each["step"].chosen_T).factor_T for each in seen]
    turns = [np.isin(step.batch.tokens.ids, np.flatnonzero(step.batch.turn_R == t)) for t in range(len(seen))][::-1]
    for part, turn_T in zip(parts, turns, strict=True):
        np.testing.assert_array_equal(part, factor_T[turn_T])
    assert len({round(float(part.mean()), 3) for part in parts}) > 1, "turns have other shares than the step"


def test_advantages_of_a_token_rule_are_normalised_and_corrected_as_those_of_responses(monkeypatch):
    """REPO with a bonus of nearly 0 gives tokens the advantages of their responses, and so the same weights."""
    plain = seen_advantages(monkeypatch, passes())
    ruled = seen_advantages(monkeypatch, passes(tokens={"name": "repo", "zeta": 1e-9, "zeta_min": 0.0}))
    assert len(plain) > 1
    for first, second in zip(plain, ruled, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)


def seen_advantages(monkeypatch, config: Any) -> list[np.ndarray]:
    """The advantages of tokens in each pass."""
    seen: list[np.ndarray] = []

    def noted(logprob: torch.Tensor, **options: Any) -> Any:
        seen.append(options["advantage"].numpy())
        return losses.policy_loss(logprob, **options)

    step, model = step_of(config), copy.deepcopy(experience()[0].model)
    with monkeypatch.context() as patch:
        patch.setattr("turnwise.objective.policy.policy_loss", noted)
        learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.3), step, Trace(experience()[4]), 1)
    return seen


def test_what_is_left_out_is_no_part_of_the_deviation():
    batch, _ = tw.Batch.from_arrays(group=[0] * 4, trajectory=[0, 0, 1, 2], reward=[0.0] * 4)
    advantage_R = np.array([1.0, 3.0, -1.0, 50.0])
    kept_R = np.array([True, False, True, False])
    np.testing.assert_allclose(normalised(advantage_R, batch, kept_R, most=99.0)[kept_R], np.array([1, -1]) / 2**0.5)


def test_ratios_are_relative_to_the_weights_that_sampled_if_these_are_others(monkeypatch):
    """Known wrong: present weights as the old ones of a response that earlier weights sampled."""
    config, found = passes(old_policy="behavior", learning_rate=1e-9), list[np.ndarray]()
    monkeypatch.setattr(
        "turnwise.extensions.passes.passes.next_ratio",
        lambda ratio, log_ratio, clip: (found.append(log_ratio), ratio)[1],
    )
    step, model = step_of(config), copy.deepcopy(experience()[0].model)
    assert step.batch.tokens is not None
    columns: Any = step.batch.columns
    columns["behavior_logprob_T"] = columns["behavior_logprob_T"] - 0.5
    told = learner(config).update(model, torch.optim.SGD(model.parameters(), lr=0.0), step, Trace(experience()[4]), 1)
    behavior_T, (now_T, _) = columns["behavior_logprob_T"], score(model, step.sequences, temperature=0.8)
    difference_R = step.batch.tokens.mean(now_T - behavior_T)
    last = int(step.batch.turn_R.max())
    np.testing.assert_allclose(found[0], difference_R[step.batch.turn_R == last], atol=1e-5)
    assert told["log_ratio_abs"] > 0.1


def test_mismatch_weights_are_those_of_the_start_of_the_step(monkeypatch):
    """Fails if they follow the passes, in which present weights are the old ones."""
    found, plain = [], correct_mismatch
    monkeypatch.setattr(
        "turnwise.objective.mismatch.correct_mismatch",
        lambda start_T, behavior_T, **options: (found.append(start_T), plain(start_T, behavior_T, **options))[1],
    )
    config = passes(mismatch_cap=2.0, mismatch_level="trajectory")
    watched_loss(monkeypatch, config)
    assert len(found) > 1
    for start_T in found:
        np.testing.assert_array_equal(start_T, step_of(config).batch.columns["logprob_T"])


def test_what_is_rejected_for_its_mismatch_is_rejected_in_every_pass(monkeypatch):
    config = passes(mismatch_cap=1.0 + 1e-12, mismatch_floor=1.0 - 1e-12, mismatch="reject")
    assert step_of(config).batch.tokens is not None
    for rejected in (False, True):
        step, model = step_of(config), copy.deepcopy(experience()[0].model)
        columns: Any = step.batch.columns
        columns["behavior_logprob_T"] = columns["logprob_T"] - 0.5 * rejected
        told = learner(config).update(
            model, torch.optim.SGD(model.parameters(), lr=0.0), step, Trace(experience()[4]), 1
        )
        assert (told["grad_norm"] == 0) == rejected
        assert told["mismatch_trajectories_frac"] == rejected


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_critic_learns_the_whole_step_beside_the_passes(tmp_path, kind):
    config = small_config(
        tmp_path,
        method="turn_ppo",
        run={"steps": 12},
        environment={"options": {"turns": 2}},
        rollout={"groups": 8, "group_size": 8},
        critic={"kind": kind, "learning_rate": 0.02},
        update={"passes": SEEUPO, "learning_rate": 1e-9, "warmup_steps": 0},
    )
    lines = [line for line in train(config).metrics() if "update/value_loss" in line]
    gaps = [abs(line["update/value_target"] - line["update/value_mean"]) for line in lines]
    assert len(gaps) == 12
    assert np.mean(gaps[-3:]) < 0.5 * gaps[0], "the policy stays, so its returns can be learned"
