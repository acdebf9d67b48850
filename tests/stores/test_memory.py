"""SLEA-RL's memory: what is stored, what a turn is shown, that it helps, and that a resumed run is the same."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stores.same import content
from tests.stores.test_replay import plain, rollouts
from tests.toys import COLORS, ScriptedEngine, small_config, trajectory
from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.config import override_config
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.stores.extension import texts_of
from turnwise.extensions.stores.lessons import ASKED
from turnwise.extensions.stores.recall import ADVICE, Experiences, Memory, Recalled
from turnwise.extensions.stores.remember import Remembering, actions_of
from turnwise.extensions.stores.reminded import FAILURE, RECALLED, SUCCESS, Reminded, lines_of
from turnwise.extensions.stores.rows import FILE, Row, make_row, read_store
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.similarity import similarity
from turnwise.extensions.stores.store import Store
from turnwise.models.settings import ModelConfig
from turnwise.models.tiny import tiny_policy
from turnwise.objective.tokens import Sequences
from turnwise.rollout.collectors import Independent
from turnwise.rollout.experience import Experience
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.pool import Pool
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

SLEA: dict[str, Any] = {
    "name": "slea_rl",
    "capacity": 30,
    "extract": "rule",
    "actions": 1,
    "evaluate": True,
    "warm_up": 1,
    "least": 1,
    "min_similarity": 1.0,
}
NOUNS = ("box", "door", "lamp", "rug")


class Secret:
    """The color of a thing, which only an earlier success can tell; two turns, about two things."""

    def __init__(self, task: int):
        self.task, self.turn, self.won = task, 0, 0

    @staticmethod
    def words() -> list[str]:
        return [*NOUNS, *COLORS, *(str(number) for number in range(10))]

    @staticmethod
    def color(task: int, turn: int) -> str:
        return COLORS[(3 * task + 2 * turn + 1) % 4]

    def start(self) -> str:
        return self.seen

    @property
    def seen(self) -> str:
        return f"{NOUNS[(self.task + self.turn) % 4]} {self.task % 10}"

    def step(self, response: str) -> Step:
        self.won += response.split()[:1] == [self.color(self.task, self.turn)]
        self.turn += 1
        return Step(
            observation=self.seen,
            reward=float(self.won == self.turn == 2),
            terminated=self.turn == 2,
            valid=response.split()[:1] != ["box"],
            info={"success": self.won == 2},
        )


def policy_of(settings: StoreConfig | None = None) -> Any:
    model = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_context=64)
    return tiny_policy(Secret.words(), model, seed=0, texts=texts_of(settings or StoreConfig(**SLEA)))


class Believer(ScriptedEngine):
    """Says what the latest observation recalls of a success, else a random color."""

    def __init__(self, policy: Any):
        super().__init__(lambda *_: [])
        self.policy, self.draws, self.prompts = policy, random.Random(3), list[str]()

    async def generate(self, conversation: int, prompt_ids: Any, sampling: Sampling) -> Generation:
        text = self.policy.format.tokenizer.decode(prompt_ids).split("<obs>")[-1]
        self.prompts.append(text)
        line = " ".join(self.policy.format.tokenizer.tokenize(SUCCESS))
        word = text.split(line)[1].split()[0] if line in text else self.draws.choice(COLORS)
        ids = self.policy.format.response_ids(word)
        return Generation(ids, [-0.5] * len(ids), False)


def played(steps: int = 6, tasks: Any = range(4), **settings: Any) -> tuple[list[Experience], Store, Believer, Any]:
    """Steps of a policy that believes its memory, over four tasks."""
    given = StoreConfig(**{**SLEA, **settings})
    policy = policy_of(given)
    engine, store = Believer(policy), Store(given, str)
    models = Models(policy=NamedModel(policy, engine))
    rollout = RolloutConfig(groups=4, group_size=24, max_new_tokens=3)
    collector = Reminded(Independent(InProcessEnvironments(Secret), rollout), Memory(store))
    source = Remembering(Pool(tasks, rollout, 0), store, 0)
    found = []
    for step in range(1, steps + 1):
        models.publish(step - 1)
        found.append(source.next(collector, models, step))
    return found, store, engine, lambda: play_tasks(collector, models, range(4), seed=1, group_size=1, temperature=1.0)


def success(experience: Experience) -> float:
    return float(np.mean([each.success for each in experience.trajectories]))


def test_remembered_successes_give_the_answer():
    """Fails if retrieval is switched off: two guesses of four colors are right in one of 16 cases."""
    steps, store, _, evaluated = played()
    assert success(steps[0]) < 0.3
    assert success(steps[-1]) == 1.0
    assert all(each.success for each in evaluated())
    without, _, _, _ = played(shown=0, warnings=0)
    assert success(without[-1]) < 0.3
    far, _, _, _ = played(warm_up=99)
    assert success(far[-1]) < 0.3
    assert {row.task for row in store.rows if row.trajectory.success} == {0, 1, 2, 3}


def test_the_warm_up_counts_steps_though_nothing_new_is_found():
    """Known wrong: to compare it with the step of the newest experience."""
    steps, store, _, _ = played(warm_up=4, warnings=0)
    assert store.rows[-1].step < 4
    assert [each.metrics["recalled_frac"] > 0 for each in steps] == [False] * 4 + [True] * 2


def test_each_turn_is_shown_what_was_done_there():
    steps, _, _, _ = played()
    last = steps[-1]
    for each in last.trajectories:
        for number, turn in enumerate(each.turns):
            task = last.numbers[each.group]
            own = f"{NOUNS[(task + number) % 4]} {task}"
            *lines, observation = turn.observation.split("\n")
            assert observation == own
            assert f"{SUCCESS}{Secret.color(task, number)}" in lines
            assert all(line.startswith((SUCCESS, FAILURE)) for line in lines)
            assert turn.state_key == own, "anchors compare states, not what is remembered of them"
            told = [origin for origin in each.info[RECALLED] if origin["turn"] == number]
            assert len(told) == len(lines)
            assert all(origin["step"] < 6 and origin["similarity"] == 1.0 for origin in told)
            assert {origin["task"] for origin in told} == {str(task)}
    assert last.metrics["recalled_frac"] == 1.0
    assert last.metrics["recalled_similarity"] == 1.0
    assert last.metrics["recalled_age"] >= 1
    assert steps[0].metrics["recalled_frac"] == 0.0


def test_the_lines_are_context_and_nothing_learns_from_them():
    steps, _, engine, _ = played()
    used = steps[-1].used
    sequences = Sequences.from_trajectories(used)
    tokenizer = engine.policy.format.tokenizer
    for ids, places, each in zip(sequences.token_ids, sequences.generated, used, strict=True):
        learned = [ids[place] for place in places]
        assert learned == [token for turn in each.turns for token in turn.response_ids]
        assert "Memory" in tokenizer.decode(ids)
        assert "Memory" not in tokenizer.decode(learned)
        assert "<unk>" not in tokenizer.decode(ids), "a tiny policy knows the words of the lines"


@pytest.mark.parametrize("evaluate", [True, False])
def test_evaluations_are_reminded_only_if_asked(evaluate):
    _, store, engine, evaluated = played(evaluate=evaluate)
    before, rows = len(engine.prompts), store.rows
    found = evaluated()
    assert any("Memory" in text for text in engine.prompts[before:]) == evaluate
    assert all(bool(each.info.get(RECALLED)) == evaluate for each in found)
    assert store.rows is rows, "nothing of an evaluation is stored"


def made(task: int, step: int, success: bool, *turns: tuple[str, str]) -> Row:
    each = trajectory(0, *[([1], [2])] * len(turns), success=success)
    for turn, (observation, _) in zip(each.turns, turns, strict=True):
        turn.observation = turn.state_key = observation
    info = {ADVICE: [advice for _, advice in turns]}
    return make_row(task, step, dataclasses.replace(each, task=str(task), info=info))


def test_the_most_similar_come_first_and_are_those_of_a_full_comparison():
    draws = random.Random(0)
    rows = [
        made(task, 1, True, *((" ".join(draws.choices("abcde", k=5)), f"{task} {turn}") for turn in range(3)))
        for task in range(12)
    ]
    found = Experiences(rows)
    for _ in range(60):
        text, first = " ".join(draws.choices("abcde", k=5)), "a b"
        recalled = found.recall(text, first, 3, 0.4)
        every = [similarity(text.split(), turn.observation.split()) for row in rows for turn in row.trajectory.turns]
        best = sorted((each for each in every if each >= 0.4), reverse=True)[:3]
        assert [each.similarity for each in recalled] == pytest.approx(best)
        for each in recalled:
            task, turn = map(int, each.advice.split())
            assert each.row is rows[task]
            assert similarity(text.split(), rows[task].trajectory.turns[turn].observation.split()) == each.similarity


def test_ties_go_to_the_same_kind_of_task_and_then_to_the_newest():
    rows = [
        made(0, 1, True, ("find cup", "x"), ("fridge", "take cup")),
        made(1, 2, True, ("find mug", "x"), ("fridge", "take mug")),
        made(2, 3, True, ("find mug", "x"), ("fridge", "take the mug")),
        made(3, 4, True, ("find mug", "x"), ("fridge", "take mug")),
        made(4, 5, True, ("find mug", "x"), ("fridge", "")),
    ]
    found = Experiences(rows)
    assert [each.advice for each in found.recall("fridge", "find cup", 9, 0.5)] == [
        "take cup",
        "take mug",
        "take the mug",
    ]
    assert [each.row.step for each in found.recall("fridge", "find mug", 1, 0.5)] == [4]
    assert found.recall("sink", "find mug", 9, 0.5) == []
    assert len(found.recall("sink", "find mug", 1, 0.0)) == 1, "without a limit, the best there is"


def test_lines_take_at_most_their_characters():
    row = made(0, 1, True, ("fridge", "take cup"))
    recalled = [Recalled(text, 1.0, row) for text in ("take cup", "take mug")]
    assert lines_of(recalled, 50) == [f"{SUCCESS}take cup", f"{SUCCESS}take mug"[: 50 - len(f"{SUCCESS}take cup")]]
    assert lines_of(recalled, 5) == [SUCCESS[:5]]


def test_nothing_is_recalled_before_there_are_enough_experiences():
    row, store = made(0, 1, True, ("fridge", "take cup")), Store(StoreConfig(**{**SLEA, "least": 2}), str)
    memory = Memory(store)
    store.add([row], step=1)
    assert memory.recall("fridge", "fridge") == []
    store.add([row], step=1)
    assert [each.advice for each in memory.recall("fridge", "fridge")] == ["take cup"]


def test_the_store_is_bounded_and_failures_cannot_fill_it():
    _, store, _, _ = played(capacity=6, steps=8)
    assert len(store.rows) <= 6
    assert sum(not row.trajectory.success for row in store.rows) <= 2
    _, bare, _, _ = played(warnings=0)
    assert all(row.trajectory.success for row in bare.rows)
    _, aging, _, _ = played(max_age=2, steps=8)
    assert all(8 - row.step <= 2 for row in aging.rows)


def test_what_is_known_is_not_stored_again():
    steps, store, _, _ = played(steps=8)
    texts = [(row.task, row.trajectory.success, *row.trajectory.info[ADVICE]) for row in store.rows]
    assert len(texts) == len(set(texts))
    assert steps[-1].metrics["extracted"] == 0, "all four answers are known"
    for row in store.rows:
        assert RECALLED not in row.trajectory.info
        assert all("Memory" not in turn.observation for turn in row.trajectory.turns)


def test_actions_of_a_trajectory():
    each = Trajectory(0, "", made(0, 1, True, *[("o", "")] * 4).trajectory.turns)
    for turn, (text, valid) in zip(each.turns, [("go  a", True), ("??", False), ("b", True), ("c", True)], strict=True):
        turn.response, turn.valid = text, valid
    fmt = policy_of().format
    assert actions_of(each, fmt, 1) == ["go a", "", "b", "c"]
    assert actions_of(each, fmt, 3) == ["go a; b; c", "", "b; c", "c"]


def test_the_policy_can_say_what_it_learned():
    """The engine believes its memory; asked about an attempt, it says a color at random."""
    steps, store, engine, _ = played(extract="policy", actions=None, lesson_tokens=3, steps=3, capacity=90)
    questions = [" ".join(engine.policy.format.tokenizer.tokenize(text)) for text in ASKED.values()]
    asked = [sum(question in text for text in engine.prompts) for question in questions]
    assert sum(asked) == sum(each.metrics["extracted"] for each in steps)
    won = [row.trajectory.success for row in store.rows]
    assert asked == [won.count(True), won.count(False)]
    assert asked[0] != asked[1]
    for row in store.rows:
        (lesson,) = set(row.trajectory.info[ADVICE])
        assert lesson in COLORS


@pytest.fixture(autouse=True)
def tasks_of_splits(monkeypatch):
    """Four tasks for training, which come back, and others that are held out."""
    from turnwise.environments.suites import Seeded

    monkeypatch.setattr(Seeded, "tasks", lambda self, split: range(4) if split == "train" else range(100, 108))


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "environment": {"name": "tests.stores.test_memory:Secret"},
            "rollout": {"groups": 4, "group_size": 8},
            "evaluate": {"every": 1, "episodes": 4},
            "store": {**SLEA, "min_similarity": 0.4},
            "checkpoint": {"every": 1},
            **sections,
        },
    )


@pytest.mark.parametrize("extract", [{}, {"extract": "policy", "actions": None, "lesson_tokens": 4}], ids=str)
def test_a_resumed_run_is_the_same_to_the_bit_and_held_out_tasks_stay_out(tmp_path, extract, capsys, monkeypatch):
    given = {"store": {**SLEA, "min_similarity": 0.4, **extract}, "model": {"max_context": 128}}
    whole = train(config_of(tmp_path / "whole", run={"steps": 5}, **given))
    part = train(config_of(tmp_path / "part", run={"steps": 2}, **given))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=5"]), resume=part.path)
    assert plain(rollouts(part)) == plain(rollouts(whole))
    assert rollouts(part)[-1]["rollout/recalled_frac"] > 0
    ends = [latest_checkpoint(folder) for folder in (whole, part)]
    for name in (FILE, "model.safetensors"):
        one, other = (content(end / name) for end in ends)
        assert one == other, name
    assert {row.trajectory.task for row in read_store(ends[0] / FILE)} <= {"0", "1", "2", "3"}
    recorded, _ = read_rollouts(part.rollouts / "step-000005.parquet")
    assert any(turn.observation.startswith((SUCCESS, FAILURE)) for each in recorded for turn in each.turns)
    evaluations = [[line for line in each.metrics() if "eval/success" in line] for each in (whole, part)]
    assert plain(evaluations[0])[-1] == plain(evaluations[1])[-1]
    if not extract:
        capsys.readouterr()
        recall, found = Memory.recall, []
        monkeypatch.setattr(Memory, "recall", lambda *given: (found.append(recall(*given)), found[-1])[1])
        assert main(["eval", str(part.path), "--episodes", "4"]) == 0
        assert any(found), "the warm-up is over at the step of the checkpoint"
        (ends[1] / FILE).write_text("{}\n")
        assert main(["eval", str(part.path), "--episodes", "4"]) == 2
        assert f"{FILE}, header, is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"store": {"name": "slea_rl", "capacity": 4, "extract": "rule", "actions": 1}}, r"store\.evaluate needs a"),
        ({"store": {**SLEA, "actions": None}}, r"store\.actions needs a value"),
        ({"store": {**SLEA, "lesson_tokens": 4}}, r"store\.lesson_tokens is an option of store\.extract='policy' only"),
        ({"store": {**SLEA, "replays": 4}}, r"store\.replays is an option of store\.name='rlep' or"),
        (
            {"harness": {"run": "tests.toys:Colors"}},
            r"\[harness\] .*, and store\.name='slea_rl' puts experiences into prompts; remove one",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)
