"""Test whether an environment conforms to the protocol, before training in it.

`check_environment` plays in this process. `turnwise.environments.check_apart` uses separate processes, so it also
reports a step that hangs or ends its process.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import (
    MAX_REWARD,
    Environment,
    SeatStep,
    Step,
    Task,
    checked_admissible,
    checked_ends,
    checked_info,
    checked_key,
    checked_rewards,
    shown,
)
from turnwise.environments.check_plays import (
    Broken,
    Defect,
    OnCall,
    Play,
    alike,
    check_copy,
    nonsense_first,
    offered,
    play,
    scripted,
    untried,
)
from turnwise.environments.suites import Suite

TRIED_TURNS, TRIED_PLAYS = 50, 5
"""Turns and episodes per task where admissible actions are tried."""
MAX_TURNS = 200
"""Turns after which a trajectory counts as endless, unless the environment's own limit is higher."""
ACCEPTED = "a response that is accepted"
"""Without one, nothing that the environment does with an action was tested."""
SAMPLES, SAMPLE_TURNS, SAMPLES_S = 12, 10, 5.0
"""Sample answers tried per task, turns of each, and seconds after which no more are tried."""


class Conformance(NamedTuple):
    """Result of the conformance test.

    Attributes:
        problems: Problems found, empty for a sound environment.
        visible: By task, what a policy sees of its first play; see `Play.visible`. Empty if a problem is severe.
        repeats: Whether the environment promises the same observations in every play.
        missed: What no play encountered, so that it was not tested.
    """

    problems: list[Defect]
    visible: dict[str, list[dict[str, Any]]]
    repeats: bool
    missed: tuple[str, ...] = ()


def check_environment(
    suite: Suite, *, split: str = "train", num_tasks: int = 3, max_turns: int = MAX_TURNS, slow_s: float = 1.0
) -> list[Defect]:
    """Play some tasks twice with the same responses and report problems that would break a run.

    Args:
        suite: The environment to test.
        split: Split of the tasks.
        num_tasks: Tasks to play.
        max_turns: Turns after which a trajectory counts as endless.
        slow_s: Median seconds per step above which a warning is given.

    Returns:
        Problems found, empty for a sound environment. Tested: determinism, types, finite rewards, admissible actions,
        ends, picklable tasks, tasks that differ, copies, time per step.
    """
    return inspect_environment(suite, split=split, num_tasks=num_tasks, max_turns=max_turns, slow_s=slow_s).problems


def inspect_environment(
    suite: Suite,
    *,
    split: str = "train",
    num_tasks: int = 3,
    max_turns: int = MAX_TURNS,
    slow_s: float = 1.0,
    on_call: OnCall = lambda call: None,
    answers: Sequence[str] = (),
) -> Conformance:
    """Test an environment as `check_environment` does, and also return its answers and what was not tested.

    Args:
        suite: The environment to test.
        split: Split of the tasks.
        num_tasks: Tasks to play.
        max_turns: Turns after which a trajectory counts as endless.
        slow_s: Median seconds per step above which a warning is given.
        on_call: Called with the name of every call of the environment, and None after it.
        answers: Sample answers to play too. Default: words of the environment, if it accepted nothing else.
    """
    problems: list[Defect] = []
    tasks = suite.tasks(split)
    if len(tasks) == 0:
        return Conformance([Defect(f"split {split!r} has no tasks", "return at least one task from tasks()")], {}, True)
    count = min(num_tasks, len(tasks))
    chosen = [tasks[index * len(tasks) // count] for index in range(count)]
    plays: dict[str, Play] = {}
    of_tasks: list[list[Play]] = []
    refused: dict[str, None] = {}
    for task in chosen:
        problems += _check_pickling(suite, task)

        def build(task: Task = task) -> Environment:
            return suite.environment(task)

        try:
            first = play(build, nonsense_first(), max_turns, on_call)
            second = play(build, scripted(first.responses), max_turns, on_call)
            further = _try_offered(build, first, on_call)
            understood = any(step.valid for episode in (first, *further) for step in episode.steps[1:])
            samples = answers or (() if understood else _words(suite))
            twice = _try_samples(build, samples, on_call)
        except Broken as broken:
            problems.append(broken.problem)
            continue
        problems += _check_play(first, second, max_turns, slow_s) + check_copy(build, first, on_call)
        for one, other in twice:
            problems += _check_repeats(one, other) + _check_steps(one.steps)
        of_tasks.append([first, *further, *(one for one, _ in twice)])
        for episode in further:
            problems += _check_steps(episode.steps)
        for episode in (first, *further):
            refused.update(dict.fromkeys(episode.refused()))
        plays[suite.task_name(task)] = first
    if refused:
        some = ", ".join(repr(text[:40]) for text in list(refused)[:3])
        problems.append(
            Defect(
                f"{len(refused)} actions were offered as admissible and then refused (valid=False), such as {some}",
                "offer only what step() accepts, or leave admissible out",
            )
        )
    repeats = all(getattr(played.environment, "repeats", True) for played in plays.values())
    if any(problem.severe for problem in problems):
        return Conformance(_unique(problems), {}, repeats)
    visible = {name: played.visible() for name, played in plays.items()}
    seen = [[step for played in each for step in played.visible()] for each in of_tasks]
    problems += _check_seeds(suite, chosen, list(visible.values()), seen, on_call)
    return Conformance(_unique(problems), visible, repeats, _missed([played for each in of_tasks for played in each]))


def _missed(plays: Sequence[Play]) -> tuple[str, ...]:
    """List what no play encountered, although a policy will."""
    steps = [step for played in plays for step in played.steps[1:]]
    met = {
        ACCEPTED: any(step.valid for step in steps),
        "a reward other than 0": any(step.reward for step in steps),
    }
    return tuple(what for what, was_met in met.items() if not was_met)


def report(name: str, problems: Sequence[Defect], missed: Sequence[str] = ()) -> str:
    """Format the problems, and what was not exercised, as text."""
    untried = ""
    if missed:
        untried = f"not exercised: {', '.join(missed)}; give accepted responses with --answer TEXT, once for each"
    if not problems:
        tested = (
            "(determinism, types, finite rewards, admissible actions, ends, picklable tasks, tasks that differ, "
            "copies, time per step)"
        )
        result = f"{name}: {'no problem found' if ACCEPTED in missed else 'sound'} {tested}"
        return f"{result}\n{untried}" if missed else result
    lines = [f"{name}: {len(problems)} problem{'s' * (len(problems) > 1)} found"]
    lines += [
        f"  {'ERROR' if problem.severe else 'warning'}: {problem.what}\n    {problem.mend}" for problem in problems
    ]
    return "\n".join([*lines, untried] if missed else lines)


def _unique(problems: Sequence[Defect]) -> list[Defect]:
    unique: dict[str, Defect] = {}
    for problem in problems:
        unique.setdefault(problem.what, problem)
    return list(unique.values())


def _check_pickling(suite: Suite, task: Task) -> list[Defect]:
    try:
        if suite.task_name(pickle.loads(pickle.dumps(task))) == suite.task_name(task):
            return []
        return [Defect("a task changes when it is pickled", "make tasks plain data")]
    except Exception as error:  # any error means that the task cannot be sent to a worker
        mend = "make tasks plain data: numbers, strings, dataclasses"
        return [Defect(f"a task cannot be pickled ({error})", mend)]


def _try_offered(build: Callable[[], Environment], first: Play, on_call: OnCall) -> list[Play]:
    """Play admissible actions from the start until all have been tried or the turns are used up."""
    tried, turns = set(first.responses), TRIED_TURNS
    plays = [first]
    while turns > 0 and len(plays) <= TRIED_PLAYS:
        if all(tried.issuperset(offered(step)) for played in plays for step in played.steps):
            break
        plays.append(play(build, untried(tried), turns, on_call))
        turns -= max(1, len(plays[-1].responses))
    return plays[1:]


def _words(suite: Suite) -> list[str]:
    """List words of an environment, short ones first: many accept numbers and single words."""
    try:
        texts = suite.words()  # pyright: ignore[reportAttributeAccessIssue]
        return sorted(dict.fromkeys(word for text in texts for word in text.split()), key=len)
    except Exception:  # reported where words are tested
        return []


def _try_samples(build: Callable[[], Environment], samples: Sequence[str], on_call: OnCall) -> list[tuple[Play, Play]]:
    """Play sample answers, each as every response of an episode, twice."""
    plays: list[tuple[Play, Play]] = []
    for answer in samples[:SAMPLES]:
        one, other = (play(build, scripted([answer] * SAMPLE_TURNS), SAMPLE_TURNS, on_call) for _ in range(2))
        plays.append((one, other))
        if sum(sum(played.seconds) for pair in plays for played in pair) > SAMPLES_S:
            break
    return plays


def _check_play(first: Play, second: Play, max_turns: int, slow_s: float) -> list[Defect]:
    problems = _check_steps(first.steps) + _check_repeats(first, second)
    if not first.steps[-1].ended:
        problems.append(
            Defect(
                f"an episode did not end within {max_turns} turns",
                "return truncated=True after a step limit of the environment",
            )
        )
    median = sorted(first.seconds)[len(first.seconds) // 2] if first.seconds else 0.0
    if median > slow_s:
        problems.append(
            Defect(
                f"a step takes {median:.2f} s",
                "no response is generated meanwhile; cache static data, or make step a coroutine",
                severe=False,
            )
        )
    return problems


def _check_repeats(first: Play, second: Play) -> list[Defect]:
    """Report the first turn at which two plays of the same responses differ."""
    repeats = getattr(first.environment, "repeats", True)
    pairs = enumerate(zip(first.steps, second.steps, strict=False))
    differ = [turn for turn, (one, other) in pairs if not alike(one, other, repeats)]
    if not differ and len(first.steps) == len(second.steps):
        return []
    turn = min([*differ, len(first.steps), len(second.steps)])
    return [
        Defect(
            f"the same responses gave a different answer at turn {turn} of a second play",
            "derive all randomness from the task; keep no state outside the object",
        )
    ]


def _check_steps(steps: Sequence[Step]) -> list[Defect]:
    """Check the fields of each step; a field is reported at its first turn only."""
    found: dict[str, Defect] = {}
    for turn, step in enumerate(steps):
        for name, problem in _check_step(turn, step).items():
            found.setdefault(name, problem)
    last = steps[-1]
    if last.ended and "info" not in found and "success" not in last.info:
        found["success"] = Defect(
            "the last step's info has no 'success'",
            "add info={'success': True or False}; evaluation counts a missing one as failure",
            severe=False,
        )
    return list(found.values())


def _check_step(turn: int, step: Step) -> dict[str, Defect]:
    """Find the problems of one step, by field."""
    found: dict[str, Defect] = {}
    if not isinstance(step.observation, str):
        found["observation"] = Defect(
            f"observation at turn {turn} is {type(step.observation).__name__}, expected str",
            "describe the state in words",
        )
    reward = step.reward
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        found["reward"] = Defect(
            f"reward at turn {turn} is {shown(reward)}, expected a finite number",
            "return a float; 0.0 when nothing was earned",
        )
    elif abs(reward) > MAX_REWARD:
        found["reward"] = Defect(
            f"reward at turn {turn} is {shown(reward)}, expected at most {MAX_REWARD:,.0f} in size", "scale the rewards"
        )
    for name in ("terminated", "truncated", "valid"):
        if not isinstance(getattr(step, name), bool):
            found[name] = Defect(
                f"{name} at turn {turn} is {shown(getattr(step, name))}, expected True or False", "wrap it in bool()"
            )
    if step.terminated and step.truncated:
        found["ends"] = Defect(f"turn {turn} is both terminated and truncated", "terminated wins: the task ended")
    try:
        hash(step.state_key)
        checked_key(step.state_key)
    except TypeError:
        found["state_key"] = Defect(f"state_key at turn {turn} is not hashable", "use a string or a tuple")
    except EnvironmentFault as fault:
        found["state_key"] = Defect(f"turn {turn}: {fault}", "use a string or a tuple of strings")
    for name, check, mend in (
        ("rewards", checked_rewards, "give a dict of finite numbers by name, or None"),
        ("admissible", checked_admissible, "give a list of the texts that step() accepts, or None"),
        ("info", checked_info, "give a dict; its 'success' is True or False"),
    ):
        try:
            check(getattr(step, name))
        except Exception as fault:  # a field may be of any class
            found[name] = Defect(f"turn {turn}: {fault}", mend)
    if isinstance(step, SeatStep):
        try:
            checked_ends(step.ends)
        except EnvironmentFault as fault:
            found["ends"] = Defect(f"turn {turn}, the last step of a seat: {fault}", "give each seat a sound Step")
    return found


def _check_seeds(
    suite: Suite,
    tasks: Sequence[Task],
    visible: Sequence[list[dict[str, Any]]],
    seen: Sequence[list[dict[str, Any]]],
    on_call: OnCall,
) -> list[Defect]:
    """Report tasks that all look the same, because held-out tasks would equal training tasks.

    If all responses were refused, the environments must also have the same attributes, apart from the task.

    Args:
        suite: The suite.
        tasks: Tasks that were played.
        visible: Steps of the first play of each.
        seen: Steps of all plays of each.
        on_call: Called before each call.
    """
    if len(seen) < 2 or any(other != seen[0] for other in seen[1:]):
        return []
    names = ", ".join(suite.task_name(task) for task in tasks)
    understood = any(step["valid"] for step in visible[0][1:])
    try:
        begun = [play(lambda task=task: suite.environment(task), scripted([]), 0, on_call) for task in tasks[:2]]
    except Broken as broken:
        return [broken.problem]
    if understood and _holds(begun[0], None) is not None and _holds(begun[0], None) == _holds(begun[1], None):
        return [
            Defect(
                f"the seed is ignored: tasks {names} gave the same answers, and nothing of the task is kept",
                "derive what differs between games from the task (the seed); if there is only one game, write a suite "
                "whose tasks() has one task",
            )
        ]
    without = [_holds(played, task) for played, task in zip(begun, tasks, strict=False)]
    if understood or (without[0] is not None and without[0] == without[1]):
        return [
            Defect(
                f"tasks {names} gave the same answers to the same responses: the seed may be ignored",
                "derive what differs between games from the task (the seed); if there is only one game, held-out tasks "
                "are those of training",
                severe=False,
            )
        ]
    return []


def _holds(played: Play, task: Task | None) -> bytes | None:
    """Pickle an environment's attributes without the task itself; None if they cannot be pickled."""
    try:
        kept = {name: value for name, value in vars(played.environment).items() if task is None or value != task}
        return pickle.dumps(kept)
    except Exception:  # the attributes may be of any class
        return None
