"""HPT: which groups are taught, by which tokens, with which denominators; and that a run learns by it."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.invariants.test_update import Frozen, assert_same, difference, experience, flat_gradient, make_config
from tests.steps import measured
from tests.toys import COLORS, Colors, color_policy, small_config
from turnwise.base.errors import ConfigError
from turnwise.config import Config
from turnwise.credit.trace import Trace
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Demonstrated, Step
from turnwise.environments.suites import Seeded
from turnwise.extensions.demonstrations.library import Demonstrations
from turnwise.extensions.demonstrations.settings import DemonstrationsConfig
from turnwise.extensions.demonstrations.taught import Lesson, Taught
from turnwise.extensions.demonstrations.term import ImitationTerm, RunLessons, prepare_lesson
from turnwise.extensions.stores.replay import with_more
from turnwise.objective.build import make_objective
from turnwise.objective.objective import Objective
from turnwise.objective.terms import Stateless, StepView, TermLoss
from turnwise.objective.tokens import Sequences, generated_logprobs
from turnwise.objective.values import ValueTerm
from turnwise.rollout.experience import Experience, Steps
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.extension import Context, Extension
from turnwise.train.loop import train
from turnwise.train.parts import make_learner
from turnwise.train.update import Learner

HPT = {"name": "hpt"}


def library(file: Path | None = None, *, turns: int = 2, tasks: int = 6, factory: Any = Colors) -> Demonstrations:
    suite = Seeded(factory, {"turns": turns})
    return Demonstrations(suite, range(tasks), file=file, seed=0, window=None)


def demonstration(task: int, *, turns: int = 2) -> Trajectory:
    found = library(turns=turns).trajectory(task, color_policy().format, 64)
    assert found is not None
    return found


class Played:
    """A source that has played four groups of four, with 0, 1, 2 and no usable trajectories of success."""

    def next(self, collector: Any, models: Any, step: int, on_turn: Any = None) -> Experience:
        trajectories = []
        for group, won in enumerate((0, 1, 2, 0)):
            for number in range(4):
                failure = "gone" if group == 3 else None
                own = dataclasses.replace(demonstration(group), group=group, success=number < won, failure=failure)
                trajectories.append(own)
        used_N = np.array([each.usable for each in trajectories])
        return Experience(trajectories, used_N, {}, numbers=(0, 1, 2, 3))

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": 4}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"cursor": 4}


def taught(demonstrations: Demonstrations | None = None, **settings: Any) -> tuple[Lesson, dict[str, float]]:
    source: Any = Taught(Played(), DemonstrationsConfig(name="hpt", **settings), demonstrations or library())
    given: Steps = source
    no_collector: Any = None
    experience = given.next(no_collector, Models(policy=NamedModel(color_policy())), 1)
    assert given.state_dict() == {"cursor": 4}
    return source.lesson, experience.metrics


@pytest.mark.parametrize(("gate", "groups"), [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])])
def test_groups_with_at_most_gate_successes_are_taught(gate, groups):
    """A group without a usable trajectory has no outcome, and is not taught."""
    lesson, metrics = taught(gate=gate)
    assert [each.task for each in lesson.demonstrations] == [str(group) for group in groups]
    assert lesson.left_N.tolist() == [group in groups for group in (0, 1, 2) for _ in range(4)]
    assert metrics == {"taught_frac": len(groups) / 4, "undemonstrated_frac": 0.0}


def test_a_group_without_a_demonstration_is_left_out(tmp_path):
    lesson, metrics = taught(library(written(tmp_path, {"task": "1", "responses": ["green", "blue"]})), gate=1)
    assert [each.task for each in lesson.demonstrations] == ["1"]
    assert lesson.left_N.tolist() == [True] * 8 + [False] * 4
    assert metrics == {"taught_frac": 0.25, "undemonstrated_frac": 0.25}


def test_own_trajectories_can_be_kept():
    lesson, _ = taught(gate=1, beside=True)
    assert (len(lesson.demonstrations), lesson.left_N.any()) == (2, False)


def test_a_demonstration_is_what_the_policy_would_have_played():
    fmt = color_policy().format
    found = demonstration(1)
    assert [turn.response for turn in found.turns] == ["green", "blue"]
    assert [fmt.text(turn.prompt_ids) for turn in found.turns] == ["say green", "say blue"]
    assert all(turn.response_ids[-1] == fmt.stop_id for turn in found.turns)
    assert library().trajectory(1, fmt, 6) is None, "it does not fit"


def test_noise_is_read_and_not_imitated(monkeypatch):
    """Fails if the tokens of a turn with imitate=False are learned from, or if the policy does not read them."""

    class Patient(Colors):
        def step(self, response: str) -> Step:
            if response == "say":
                return Step(observation="say what", valid=False)
            return super().step(response)

        @staticmethod
        def demonstrate(task: int, **options: Any) -> Any:
            first, second = Colors.demonstrate(task, **options)
            return [("say", False), (first, True), ("say", False), (second, True)]

    fmt = color_policy().format
    found = library(factory=Patient).trajectory(0, fmt, 64)
    assert found is not None
    assert [turn.response for turn in found.turns] == ["red", "green"]
    one, two = Sequences.from_trajectories([found]), Sequences.from_trajectories([demonstration(0)])
    assert len(one.token_ids[0]) > len(two.token_ids[0])
    learned = [[ids[at].item() for at in places] for ids, places in zip(one.token_ids, one.generated, strict=True)]
    assert learned == [[id for turn in found.turns for id in turn.response_ids]]


def lesson_of(left: list[int], demonstrations: int, trajectories: int) -> Lesson:
    left_N = np.isin(np.arange(trajectories), left)
    return Lesson(left_N, [demonstration(task, turns=3) for task in range(demonstrations)])


class Source:
    """Knows a lesson."""

    def __init__(self, lesson: Lesson | None):
        self.lesson = lesson


class Lessons(Extension):
    """Brings the lessons of a source."""

    def __init__(self, source: Any):
        self._source = source

    def lessons(self) -> RunLessons | None:
        return RunLessons(self._source) if self._source.lesson else None


def learner_from(source: Any, objective: Objective, config: Config, max_tokens: int) -> Learner:
    update = config.update.model_copy(update={"max_tokens": max_tokens})
    rollout = config.rollout.model_copy(update={"temperature": 0.8, "max_new_tokens": 4})
    config = config.model_copy(update={"update": update, "rollout": rollout})
    return make_learner([Lessons(source)], objective, Context(config, Seeded(Colors, {})))


def gradient(lesson: Lesson | None, advantage_R: np.ndarray, *, weight: float = 0.7, max_tokens=10**6, **update: Any):
    """The gradient of one update with a lesson, as one vector, and its metrics."""
    policy, old, _, trajectories, _ = experience()
    config = make_config(**update)
    settings = DemonstrationsConfig(name="hpt", weight=weight)
    objective = make_objective(config.update, *([ImitationTerm(settings.weight)] if lesson else []))
    learner = learner_from(Source(lesson), objective, config, max_tokens)
    model, step = copy.deepcopy(policy.model), measured(old.model, trajectories, config)
    told = learner.update(model, Frozen(model.parameters()), step, Trace(advantage_R), 1)
    return flat_gradient(model), told


def imitation_by_hand(demonstrations: list[Trajectory], temperature: float = 0.8) -> torch.Tensor:
    """The gradient of the mean of -log p over all demonstrated tokens, one demonstration at a time."""
    model = copy.deepcopy(experience()[0].model)
    count = sum(len(turn.response_ids) for each in demonstrations for turn in each.turns)
    for each in demonstrations:
        sequences = Sequences.from_trajectories([each])
        logprob, _ = generated_logprobs(model, sequences, np.arange(1), temperature=temperature)
        (-logprob.sum() / count).backward()
    return flat_gradient(model)


@pytest.mark.parametrize("aggregate", ["token-mean", "constant", "nested-mean"])
def test_the_gradient_is_that_of_the_kept_trajectories_plus_that_of_the_demonstrations(aggregate):
    """Fails if the two share a denominator, if a left trajectory counts, or if a demonstration has an advantage."""
    _, _, _, trajectories, advantage_R = experience()
    left = [1, 2, 9]
    lesson = lesson_of(left, 2, len(trajectories))
    both, told = gradient(lesson, advantage_R, aggregate=aggregate)
    kept = [number for number in range(len(trajectories)) if number not in left]
    own = own_gradient(kept, aggregate=aggregate)
    assert_same(both, own + 0.7 * imitation_by_hand(list(lesson.demonstrations)))
    assert told["imitated"] == 2
    assert told["imitated_tokens"] == sum(len(t.response_ids) for each in lesson.demonstrations for t in each.turns)
    for max_tokens in (1, 60):
        assert_same(gradient(lesson, advantage_R, aggregate=aggregate, max_tokens=max_tokens)[0], both)
    alike = gradient(lesson_of([], 2, len(trajectories)), advantage_R, aggregate=aggregate)[0]
    assert difference(alike, both)[0] > 1e-3, "leaving trajectories out changes the gradient"


def own_gradient(kept: list[int], **update: Any) -> torch.Tensor:
    """The gradient of an update of some trajectories alone."""
    policy, old, _, trajectories, advantage_R = experience()
    config = make_config(**update)
    starts = np.cumsum([0, *(len(each.turns) for each in trajectories)])
    rows = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in kept])
    chosen = [trajectories[number] for number in kept]
    model = copy.deepcopy(policy.model)
    learner = learner_from(Source(None), make_objective(config.update), config, 10**6)
    step = measured(old.model, chosen, config)
    learner.update(model, Frozen(model.parameters()), step, Trace(advantage_R[rows]), 1)
    return flat_gradient(model)


def test_a_step_whose_groups_are_all_taught_imitates_alone():
    _, _, _, trajectories, advantage_R = experience()
    everyone = list(range(len(trajectories)))
    lesson = lesson_of(everyone, 2, len(trajectories))
    assert_same(gradient(lesson, advantage_R)[0], 0.7 * imitation_by_hand(list(lesson.demonstrations)))
    nothing, told = gradient(lesson_of(everyone, 0, len(trajectories)), advantage_R)
    assert not nothing.any()
    assert told["imitated"] == 0


def test_a_step_without_a_lesson_is_as_ever():
    advantage_R = experience()[4]
    nobody = lesson_of([], 0, len(experience()[3]))
    assert_same(gradient(nobody, advantage_R)[0], gradient(None, advantage_R)[0])


class Sparse(Colors):
    """Pays only for a success, which needs three right colors in a row."""

    def step(self, response: str) -> Step:
        step = super().step(response)
        return dataclasses.replace(step, reward=float(step.info["success"]))


def run_of(folder: Path, **sections: Any) -> list[dict[str, Any]]:
    sections = {
        "method": "dr_grpo",
        "environment": {"name": "tests.demonstrations.test_hpt:Sparse", "options": {"turns": 3}},
        "rollout": {"groups": 8, "group_size": 4},
        "evaluate": {"every": 0},
        "update": {"learning_rate": 0.01, "clip": "none", "aggregate": "constant"},
    } | sections
    config = small_config(folder, **sections)
    return [line for line in train(config).metrics() if "rollout/success" in line]


def test_a_policy_that_always_fails_learns_from_demonstrations(tmp_path):
    """Fails if HPT is switched off: without it, no group has a success, and no weight moves."""
    metrics = run_of(tmp_path, run={"steps": 60}, demonstrations={**HPT, "gate": 0})
    first, last = (np.mean([line["rollout/success"] for line in part]) for part in (metrics[:10], metrics[-10:]))
    assert last > first + 0.1, "guessing wins one game in 64"
    assert metrics[0]["rollout/taught_frac"] > 0.8
    assert metrics[-1]["rollout/taught_frac"] < metrics[0]["rollout/taught_frac"], "a task that succeeds is left to RL"
    assert metrics[-1]["update/imitation_loss"] < 0.5 * metrics[0]["update/imitation_loss"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"demonstrations": {**HPT, "gate": 9}}, r"demonstrations\.gate=9 is above rollout\.group_size=4"),
        ({"demonstrations": {"name": "hptt"}}, r"demonstrations\.name"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        small_config(tmp_path, **{"demonstrations": HPT, **sections})


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_file_has_responses_or_messages(tmp_path):
    messages = [
        {"role": "user", "content": "say green"},
        {"role": "assistant", "content": "green"},
        {"role": "user", "content": "say blue"},
        {"role": "assistant", "content": "blue"},
    ]
    told = [{"response": "say", "imitate": False}, "green"]
    file = written(tmp_path, {"task": "1", "messages": messages}, {"task": "0", "responses": ["red", "green"]})
    found = library(file)
    fmt = color_policy().format
    for task, colors in ((0, ["red", "green"]), (1, ["green", "blue"]), (2, None)):
        trajectory = found.trajectory(task, fmt, 64)
        assert (trajectory and [turn.response for turn in trajectory.turns]) == colors
    with pytest.raises(ConfigError, match="demonstration of task '0', turn 2, 'green': the environment declares no"):
        library_error(written(tmp_path, {"task": "0", "responses": told}))


def library_error(file: Path) -> None:
    """Read a file; errors of data as errors of configuration, so that one `raises` covers them."""
    try:
        library(file)
    except ValueError as error:
        raise ConfigError(str(error)) from None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"task": "1", "responses": ["green", "say"]},
            r"line 1: .* of task '1', turn 2, 'say': the .*accept",
        ),
        ({"task": "1", "responses": ["green", "blue", "red"]}, r"turn 3, 'red': the task ended before this turn"),
        ({"task": "1", "responses": ["green"]}, r"turn 1, 'green': the environment declares no success"),
        ({"task": "99", "responses": ["green"]}, r"line 1: '99' is none of the 6 training tasks, .* like '0'"),
        ({"task": "1"}, r"line 1: expected 'responses'"),
        ({"task": "1", "responses": [{"answer": "x"}]}, r"line 1, response 1: expected a text, or an object"),
        ("{", r"line 1: not valid JSON"),
        ("", r"has no demonstration"),
    ],
    ids=str,
)
def test_a_bad_file_names_line_task_turn_and_command(tmp_path, line, message):
    with pytest.raises(ConfigError, match=message):
        library_error(written(tmp_path, line))


def test_a_second_line_of_a_task_is_refused(tmp_path):
    line = {"task": "0", "responses": ["red", "green"]}
    with pytest.raises(ConfigError, match="line 2: '0' has a demonstration already"):
        library_error(written(tmp_path, line, line))


def test_a_bad_file_ends_the_command_before_anything_is_made(tmp_path, capsys):
    from turnwise.commands.cli import main

    file = written(tmp_path, {"task": "1", "responses": ["say"]})
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[environment]\nname = "tests.toys:Colors"\n[warmstart]\nsteps = 0\n')
    given = ["demonstrations.name=hpt", f"demonstrations.file={file}", f"run.folder={tmp_path / 'runs'}"]
    assert main(["train", str(recipe), *given]) == 2
    error = capsys.readouterr().err
    assert "demonstration of task '1', turn 1, 'say': the environment does not accept it" in error
    assert not (tmp_path / "runs" / "recipe").exists()


def test_a_task_that_the_expert_fails_has_no_demonstration(monkeypatch):
    assert library().trajectory(1, color_policy().format, 64) is not None
    monkeypatch.setattr(Colors, "demonstrate", staticmethod(lambda task, **_: [Demonstrated(COLORS[0], True)] * 2))
    assert library().trajectory(1, color_policy().format, 64) is None


def test_an_environment_without_an_expert_says_what_to_set(tmp_path):
    class Silent:
        def tasks(self, split: str) -> range:
            return range(3)

    with pytest.raises(ConfigError, match=r"no demonstrate\(\); set demonstrations\.file"):
        Demonstrations(Silent(), range(3), file=None, seed=0, window=None)  # pyright: ignore[reportArgumentType]


def test_a_resumed_run_is_the_same(tmp_path):
    whole = run_of(tmp_path / "whole", run={"steps": 4}, demonstrations=HPT)
    run_of(tmp_path / "part", run={"steps": 2}, demonstrations=HPT, checkpoint={"every": 1})
    config = small_config_of(tmp_path / "part", steps=4)
    part = [line for line in train(config, resume=tmp_path / "part" / "run").metrics() if "rollout/success" in line]
    for one, other in zip(whole, part, strict=True):
        assert {n: v for n, v in one.items() if n[:4] != "time" and n[:6] != "memory" and n != "crc32"} == {
            n: v for n, v in other.items() if n[:4] != "time" and n[:6] != "memory" and n != "crc32"
        }


def small_config_of(folder: Path, *, steps: int):
    from turnwise.config import override_config
    from turnwise.train.folder import RunFolder

    return override_config(RunFolder.open(folder / "run")[1], [f"run.steps={steps}"])


def test_a_critic_learns_the_returns_of_a_taught_group_and_no_other_term_sees_it():
    """Fails if a critic never learns from tasks that fail, or if a preference pairs trajectories that are left out."""
    _, old, _, trajectories, advantage_R = experience()
    config, sizes = make_config(), dict[str, int]()

    class Seen(Stateless):
        unit, needs = "sequence", ()

        def __init__(self, name: str, of_policy: bool):
            self.name, self.of_policy = name, of_policy

        def prepare(self, step: StepView) -> TermLoss:
            sizes[self.name] = step.batch.num_trajectories
            matters_N = np.ones(step.batch.num_trajectories, dtype=bool)
            return TermLoss(lambda given: (given.logprob.sum() * 0, {}), matters_N)

    objective = Objective([Seen("of_policy", True), Seen("of_critic", False), ImitationTerm(1.0)])
    lesson, step = lesson_of([0, 3], 2, len(trajectories)), measured(old.model, trajectories, config)
    found, _ = prepare_lesson(objective, StepView(step.batch, Trace(advantage_R)), step.sequences, lesson)
    assert sizes == {"of_policy": len(trajectories) - 2, "of_critic": len(trajectories)}
    assert len(found.matters_N) == len(trajectories) + 2
    assert not ValueTerm.of_policy
    assert found.parts["of_policy"].matters_N.tolist() == [n not in (0, 3) for n in range(len(trajectories))]


class Dropped(Played):
    """Drops the group without a success, as a filter does, and has a replay of a success in it."""

    def next(self, *given: Any) -> Experience:
        played = super().next(*given)
        replay = dataclasses.replace(demonstration(0), group=0, success=True, info={"replayed": 1})
        used_N = played.used_N & np.array([each.group != 0 for each in played.trajectories])
        return with_more(dataclasses.replace(played, used_N=used_N), [replay], {}, np.array([False]))


def test_a_dropped_group_that_fails_is_taught_and_measured_whatever_a_store_replays():
    """Fails if a lesson is lost because no trajectory is learned from, or if a replay counts as a success."""
    for beside in (False, True):
        source: Any = Taught(Dropped(), DemonstrationsConfig(name="hpt", beside=beside), library())
        experience = source.next(None, Models(policy=NamedModel(color_policy())), 1)
        assert [each.task for each in source.lesson.demonstrations] == ["0"]
        left = [n for n, each in enumerate(experience.used) if each.group == 0]
        assert len(left) == 5, "the four of the group and the replay"
        assert np.flatnonzero(source.lesson.left_N).tolist() == left, "a dropped group shapes no policy"


def test_groups_that_something_else_began_are_not_taught():
    """A group from a prefix, say, has a head start, and its task has a group of its own."""

    class Further(Played):
        def next(self, *given: Any) -> Experience:
            more = [dataclasses.replace(demonstration(0), group=4, success=False) for _ in range(4)]
            return with_more(super().next(*given), more, {}, numbers=[0], tasks=[0])

    source: Any = Taught(Further(), DemonstrationsConfig(name="hpt"), library())
    experience = source.next(None, Models(policy=NamedModel(color_policy())), 1)
    assert len(source.lesson.demonstrations) == 1
    assert source.lesson.left_N.tolist() == [each.group == 0 for each in experience.used]
    assert experience.metrics["taught_frac"] == 1 / 4
