"""R3's replay and reflection: which groups get what, what a prompt shows, and that a resumed run is the same."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stores.same import content
from tests.stores.test_replay import plain, ratio_gradient, rollouts
from tests.toys import COLORS, ScriptedEngine, small_config
from turnwise.base.errors import ConfigError
from turnwise.config import override_config
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.stores.extension import texts_of
from turnwise.extensions.stores.reflection import AGAIN, FAILED, ReplayAndReflection, shown
from turnwise.extensions.stores.rows import FILE
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.models.settings import ModelConfig
from turnwise.models.tiny import tiny_policy
from turnwise.objective.tokens import Sequences
from turnwise.rollout.collectors import Independent
from turnwise.rollout.experience import Experience
from turnwise.rollout.pool import Pool
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.credit import Credit, make_transform
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.recorded import read_step, recorded_batch

R3: dict[str, Any] = {"name": "r3", "capacity": 400, "replays": 2, "tau": 0.5, "transcript": 200}
METHOD = {"name": "r3", "max_reward": 0.5, "std_weight": 1.0, "eps": 1e-6, "beside": "replayed"}


class Coin:
    """Two answers of which one is right, which only an earlier failure can tell."""

    def __init__(self, task: int):
        self.task = task

    @staticmethod
    def words() -> list[str]:
        return ["say", "wrong", *COLORS, *(str(number) for number in range(10))]

    def start(self) -> str:
        return f"say {self.task % 10}"

    def step(self, response: str) -> Step:
        right = response.split()[:1] == [COLORS[self.task % 2]]
        return Step(observation="" if right else "wrong", reward=float(right), terminated=True, info={"success": right})


def policy_of() -> Any:
    model = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_context=96)
    return tiny_policy(Coin.words(), model, seed=0, texts=texts_of(StoreConfig(**R3)))


class Penitent(ScriptedEngine):
    """Says one of two colors: not the one that its prompt shows to be wrong, else mostly the first."""

    def __init__(self, policy: Any, share: float):
        super().__init__(lambda *_: [])
        self.policy, self.share, self.draws = policy, share, random.Random(1)
        self.prompts: list[str] = []

    async def generate(self, conversation: int, prompt_ids: Any, sampling: Sampling) -> Generation:
        text = self.policy.format.tokenizer.decode(prompt_ids)
        self.prompts.append(text)
        wrong = [color for color in COLORS[:2] if f"> {color}" in text]
        first = self.draws.random() < self.share
        said = COLORS[1 - COLORS.index(wrong[0])] if wrong else COLORS[0 if first else 1]
        ids = self.policy.format.response_ids(said)
        return Generation(ids, [-0.5 - len(wrong) - 1e-3 * len(self.prompts)] * len(ids), False)  # no two are alike


def played(steps: int = 4, share: float = 0.9, **settings: Any) -> tuple[list[Experience], ReplayAndReflection, Any]:
    """Steps of a policy that mostly says the first color, over four tasks, of which two want the second."""
    policy = policy_of()
    engine, store = Penitent(policy, share), Store(StoreConfig(**{**R3, **settings}), str)
    models = Models(policy=NamedModel(policy, engine))
    rollout, environments = RolloutConfig(groups=4, group_size=4, max_new_tokens=3), InProcessEnvironments(Coin)
    source = ReplayAndReflection(Pool(range(4), rollout, 0), store, range(4), environments, rollout, 0)
    collector = Independent(environments, rollout)
    return [source.next(collector, models, step) for step in range(1, steps + 1)], source, engine


def groups_of(experience: Experience) -> list[list[Trajectory]]:
    return [[each for each in experience.trajectories if each.group == g] for g in range(len(experience.numbers))]


def test_groups_without_contrast_get_the_other_outcome():
    steps, _, _ = played(steps=6)
    before: dict[tuple[int, bool], int] = {}
    found = 0
    for number, experience in enumerate(steps, 1):
        for task, members in zip(experience.numbers[:4], groups_of(experience)[:4], strict=True):
            own = [each for each in members if "replayed" not in each.info]
            replays = [each for each in members if "replayed" in each.info]
            assert len(own) == 4
            outcomes = {each.success for each in own}
            lacks = not own[0].success
            expected = min(2, before.get((task, lacks), 0)) if len(outcomes) == 1 else 0
            assert len({each.turns[0].behavior_logprobs[0] for each in replays}) == len(replays) == expected
            assert all(each.success == lacks and each.info["replayed"] < number for each in replays)
            assert {each.task for each in members} == {str(task)}
            found += expected
        for task, members in zip(experience.numbers[:4], groups_of(experience)[:4], strict=True):
            for each in members:
                if "replayed" not in each.info:
                    before[task, each.success] = before.get((task, each.success), 0) + 1
        assert experience.metrics["replayed"] == sum("replayed" in each.info for each in experience.trajectories)
    assert found > 4


def test_a_failure_in_the_prompt_gives_the_answer():
    """Fails if reflection is switched off, or if the prompt shows the failure of another task."""
    steps, source, engine = played()
    assert steps[0].metrics["reflections"] == 0, "nothing is known before the first step"
    for experience in steps[1:]:
        again = groups_of(experience)[4:]
        assert {task % 2 for task in experience.numbers[4:]} == {1}, "those of the other color"
        assert experience.metrics["reflections"] == len(again) == 2
        for members in again:
            assert len(members) == 4
            assert all(each.success for each in members)
            assert all(each.info["reflection"] < 9 and each.task.endswith(", again") for each in members)
        assert experience.metrics["reflection_success"] == 1.0
        now = [turn for each in experience.trajectories if "replayed" not in each.info for turn in each.turns]
        assert experience.metrics["env_steps"] == len(now) == 4 * 6
        assert experience.metrics["tokens"] == sum(turn.num_generated for turn in now)
        own = [
            each.success for members in groups_of(experience)[:4] for each in members if not each.info.get("replayed")
        ]
        assert np.mean(own) < 0.9
    assert not any(row.trajectory.task.endswith("again") for row in source._store.rows)
    assert not played(tau=1e-9)[0][-1].metrics["reflections"]
    asked = [text for text in engine.prompts if AGAIN.split()[0] in text]
    assert len(asked) == 3 * 2 * 4


def test_history_counts_own_trajectories_of_earlier_steps():
    steps, source, _ = played(steps=3)
    counted = np.zeros((2, 4))
    for experience in steps:
        for task, members in zip(experience.numbers[:4], groups_of(experience)[:4], strict=True):
            for each in members:
                counted[int(each.success), task] += "replayed" not in each.info
    np.testing.assert_array_equal(source.history, counted)
    assert counted.sum() == 3 * 16


def test_what_a_reflection_shows():
    turns = [Turn(text, text, [1], [2], [0.0], answer, False) for text, answer in (("a task", "go"), ("a hall", "up"))]
    failure = Trajectory(0, "0", turns, last_observation="a\nwall")
    assert shown(failure, 99) == (FAILED, "> go", "a hall", "> up", "a wall", AGAIN)
    assert shown(failure, 12) == (FAILED, "> up", "a wall", AGAIN)
    assert shown(failure, 3) == (FAILED, "all", AGAIN)


def test_the_prompt_is_context_and_states_keep_their_names():
    steps, _, engine = played()
    again = [each for each in steps[-1].used if "reflection" in each.info]
    sequences = Sequences.from_trajectories(again)
    for ids, places, each in zip(sequences.token_ids, sequences.generated, again, strict=True):
        assert [ids[place] for place in places] == each.turns[0].response_ids
        text = engine.policy.format.tokenizer.decode(ids)
        assert "failed" in text
        assert "<unk>" not in text
        assert each.turns[0].observation.endswith(f"\n{each.turns[0].state_key}")


def test_ratios_of_replays_are_relative_to_the_weights_that_sampled(tmp_path):
    """Known wrong: `old_policy = "start"`. The stored probabilities differ from the present policy's."""
    steps, _, engine = played(steps=5)
    assert any("replayed" in each.info for each in steps[-1].used)
    sections = {"method": "dr_grpo", "environment": {"invalid_penalty": 0.0}, "store": R3}
    given = {"clip": "none", "max_grad_norm": 1e9}
    config = small_config(tmp_path, **sections, update=given)
    assert config.update.old_policy == "behavior"
    right = ratio_gradient(steps[-1], engine.policy, config)
    start = small_config(tmp_path, **{**sections, "store": None}, update={**given, "old_policy": "start"})
    assert not np.allclose(right, ratio_gradient(steps[-1], engine.policy, start), rtol=1e-2, atol=1e-3)


@pytest.fixture(autouse=True)
def four_tasks(monkeypatch):
    """Tasks that come back in each step."""
    from turnwise.environments.suites import Seeded

    monkeypatch.setattr(Seeded, "tasks", lambda self, split: range(4))


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "environment": {"name": "tests.stores.test_reflection:Coin"},
            "model": {"max_context": 96},
            "rollout": {"groups": 4, "group_size": 4},
            "evaluate": {"every": 0},
            "store": R3,
            "method": METHOD,
            "checkpoint": {"every": 1},
            **sections,
        },
    )


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path):
    whole = train(config_of(tmp_path / "whole", run={"steps": 5}))
    part = train(config_of(tmp_path / "part", run={"steps": 2}))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=5"]), resume=part.path)
    assert plain(rollouts(part)) == plain(rollouts(whole))
    for name in (FILE, "model.safetensors"):
        one, other = (content(latest_checkpoint(folder) / name) for folder in (whole, part))
        assert one == other, name
    assert rollouts(part)[-1]["rollout/reflections"] > 0
    assert sum(line["rollout/replayed"] for line in rollouts(part)) > 0
    read_rollouts(part.rollouts / "step-000005.parquet")
    again = recorded_batch(read_step(part.rollouts / "step-000005.parquet"), invalid_penalty=0.1)
    assert set(np.unique(again.columns["replayed"])) <= {0.0, 1.0}


def test_failures_are_ranked_where_a_success_is_replayed(tmp_path):
    """Fails if the method takes the replay for a success of the group."""
    from tests.steps import measured

    steps, _, engine = played(steps=6)
    policy, config = engine.policy, config_of(tmp_path)
    checked = 0
    for experience in steps:
        batch = measured(policy.model, experience.used, config).batch
        ranked, plain_R = (
            Credit(make_transform(config_of(tmp_path, method={**METHOD, "beside": name}).method))
            .update(batch)
            .advantage_R
            for name in ("replayed", None)
        )
        for group, members in enumerate(groups_of(experience)):
            own = [each.success for each in members if "replayed" not in each.info]
            of_group = batch.group_responses.ids == group
            failed_with_replays = len(members) > len(own) and not any(own)
            assert np.array_equal(ranked[of_group], plain_R[of_group]) != failed_with_replays
            checked += failed_with_replays
    assert checked


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"store": {**R3, "tau": None}}, r"store\.tau needs a value"),
        ({"store": {**R3, "transcript": None}}, r"store\.transcript needs a value"),
        ({"store": {"name": "rlep", "capacity": 4, "replays": 1, "tau": 0.5}}, r"store\.tau is an option of"),
        ({"harness": {"run": "tests.toys:Colors"}}, r"\[harness\] .*makes the prompts, and store\.name='r3' plays"),
        (
            {"update": {"old_policy": "start"}},
            r"store\.name='r3' replays .*, and update\.old_policy='start' .*; remove",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)
