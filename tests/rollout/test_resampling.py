"""T2PO: turns that are as uncertain as the turn before are sampled again, and only what is taken is learned from."""

import asyncio
import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tests.rollout.playing import POLICY
from tests.rollout.test_starts import Long
from tests.toys import small_config
from tests.train.test_every_method_trains import told, weights

from turnwise.errors import ConfigError
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.engine import Generation, Sampling
from turnwise.rollout.environments import InProcessEnvironments
from turnwise.rollout.local import LocalEngine
from turnwise.rollout.metrics import RESAMPLED, rollout_metrics
from turnwise.rollout.models import Models, NamedModel
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.resampling import Choosy, Options, uncertainty
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.loop import train

T2PO: dict[str, Any] = {"name": "t2po", "alpha": 0.5, "most_entropy": 2.0}


def collector(window: bool = False, **options: Any):
    sections = {"group_size": 4, "max_new_tokens": 3, "context": "window" if window else "append", "window": 1}
    chosen = {**T2PO, **options} if options else "independent"
    settings = RolloutConfig.model_validate({**sections, "collector": chosen})
    return make_collector(settings, InProcessEnvironments(Long), str)


def play(made, **further):
    models = Models(policy=NamedModel(POLICY, LocalEngine(POLICY.model)))
    return made.play(models, [0, 1], seed=3, **further)


class Uncertain:
    """An engine of one token per response, whose uncertainties are given in order."""

    def __init__(self, *uncertainties: float):
        self.left, self.seeds = list(uncertainties), []

    async def generate(self, conversation, prompt_ids, sampling):
        self.seeds.append(sampling.seed)
        return Generation([len(self.seeds)], [math.log(1 - self.left.pop(0))], False)

    async def aclose(self): ...

    async def update_weights(self, version=0): ...

    def close(self, conversations=None): ...


def taken(*uncertainties: float, turns: int, number: int = 1, **options: Any) -> tuple[list[int], list[list[int]], Any]:
    """Tokens of the responses that are taken, of those that are not, and the engine."""
    engine = Uncertain(*uncertainties)
    choosy = Choosy(engine, number, Options(alpha=0.0, most_entropy=1.0, **options))
    sampling = Sampling(max_new_tokens=1, seed=7)
    made = [asyncio.run(choosy.generate(turn % number, [0], sampling)).token_ids[0] for turn in range(turns)]
    return made, choosy.rejected, engine


@pytest.mark.parametrize(
    ("uncertainties", "turns", "made"),
    [
        ((0.4, 0.42, 0.8), 2, [1, 3]),  # sampled again once
        ((0.4, 0.8), 2, [1, 2]),  # taken
        ((0.4, 0.42, 0.44, 0.41), 2, [1, 4]),  # the last try is taken as it is
        ((0.4, 0.42, 0.8, 0.45), 3, [1, 3, 4]),  # compared with what was taken
        ((0.4, 0.42, 0.8, 0.75, 0.1), 3, [1, 3, 5]),
        ((0.4, 0.4), 2, [1, 2]),  # as the code has it: equal ones are taken
    ],
)
def test_a_turn_as_uncertain_as_the_last_one_is_sampled_again(uncertainties, turns, made):
    responses, (rejected,), engine = taken(*uncertainties, turns=turns)
    assert responses == made
    assert len(rejected) == len(uncertainties) - turns
    assert not engine.left


def test_trajectories_are_compared_with_themselves_alone_and_thresholds_count():
    assert taken(0.4, 0.42, 0.8, 0.9, turns=4, number=2)[0] == [1, 2, 3, 4]
    assert taken(0.4, 0.42, turns=2, eta=0.01)[0] == [1, 2]
    assert taken(0.4, 0.42, 0.43, turns=2, tries=1)[0] == [1, 3]


def test_each_try_draws_anew():
    seeds = taken(0.4, 0.42, 0.44, 0.41, turns=2)[2].seeds
    assert seeds[0] == seeds[1] == 7
    assert len(set(seeds)) == 3


def test_uncertainty_is_a_geometric_mean_of_entropy_and_improbability():
    made = Generation([1, 2], [math.log(0.5), math.log(0.9)], False, [1.0, 6.0])
    first, second = 0.25 * 0.5 + 0.75 * 0.5, 0.25 * 1.0 + 0.75 * 0.1
    assert uncertainty(made, Options(alpha=0.25, most_entropy=2.0)) == pytest.approx(math.sqrt(first * second))
    certain = Generation([1], [0.0], False, [0.0])
    assert uncertainty(certain, Options(alpha=0.5, most_entropy=1.0)) == pytest.approx(1e-6)
    with pytest.raises(ConfigError, match=r"engine\.name=local, or rollout\.collector\.alpha=0"):
        uncertainty(Generation([1], [-1.0], False), Options(alpha=0.5, most_entropy=1.0))


@pytest.mark.parametrize("window", [False, True])
def test_what_is_taken_is_played_and_what_is_not_is_counted(window):
    plain, again = play(collector(window=window)), play(collector(window=window, eta=0.3))
    assert all(one.failure is None for one in again)
    rejected = [tokens for one in again for tokens in one.info[RESAMPLED]]
    assert rejected
    assert any(
        [turn.response_ids for turn in one.turns] != [turn.response_ids for turn in other.turns]
        for one, other in zip(plain, again, strict=True)
    )
    metrics, num_turns = rollout_metrics(again), sum(len(one.turns) for one in again)
    taken_tokens = sum(len(turn.response_ids) for one in again for turn in one.turns)
    assert metrics["tokens"] == taken_tokens + sum(rejected)
    assert metrics["resampled_frac"] == len(rejected) / (len(rejected) + num_turns)
    assert metrics["env_steps"] == num_turns, "rejected ones are not played"
    assert "resampled_frac" not in rollout_metrics(plain)
    sampled_T = np.concatenate([turn.behavior_logprobs for one in again for turn in one.turns])
    np.testing.assert_allclose(sampled_T, score(POLICY.model, Sequences.from_trajectories(again))[0], atol=1e-4)


def test_a_tiny_threshold_changes_nothing_and_evaluations_take_what_comes():
    plain, never = play(collector()), play(collector(eta=1e-12))
    assert [[turn.response_ids for turn in one.turns] for one in plain] == [
        [turn.response_ids for turn in one.turns] for one in never
    ]
    assert all(RESAMPLED not in one.info for one in play(collector(eta=0.3), group_size=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"rollout.collector.alpha=1.5: Input should be less than or equal to 1"),
        ({"tries": 0}, r"rollout.collector.tries=0: Input should be greater than or equal to 1"),
        ({"etta": 0.1}, "'t2po' has no option 'etta'. Did you mean 'eta'"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        collector(**options)


def test_an_option_without_a_published_value_must_be_given():
    settings = RolloutConfig.model_validate({"group_size": 4, "collector": {"name": "t2po", "alpha": 0.5}})
    with pytest.raises(ConfigError, match="'t2po' needs the option 'most_entropy'; no value is published"):
        make_collector(settings, InProcessEnvironments(Long), str)


def test_a_run_learns_from_what_is_taken_and_resumes(tmp_path):
    config = small_config(
        tmp_path,
        method="gigpo",
        environment={"name": "tests.rollout.test_starts:Long", "max_steps": 6},
        rollout={"groups": 2, "group_size": 4, "collector": T2PO},
        checkpoint={"every": 1},
    )
    folder = train(config)
    trajectories, _ = read_rollouts(folder.rollouts / "step-000002.parquet")
    taken_tokens = sum(len(turn.response_ids) for one in trajectories for turn in one.turns)
    expected, after = told(folder, 2), weights(folder, 2)
    assert expected["rollout/resampled_frac"] > 0
    assert expected["rollout/tokens"] > taken_tokens
    shutil.rmtree(folder.checkpoints / "step-000002")
    train(config, resume=folder.path)
    assert told(folder, 2) == expected
    assert torch.equal(weights(folder, 2), after)
