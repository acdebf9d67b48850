"""Measure the fidelity of credit assignment methods on the policy of a run."""

import contextlib
import dataclasses
import hashlib
import itertools
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from scipy import stats

from turnwise.base.errors import ConfigError, RunError, TurnwiseError, did_you_mean
from turnwise.base.files import replacing
from turnwise.credit.batch import Batch
from turnwise.credit.methods import METHODS
from turnwise.credit.methods.build import named_method
from turnwise.credit.methods.names import is_modifier, modifiers, split_at_plus
from turnwise.credit.transform import Transform
from turnwise.credit.transforms.modulation import entropy_coefficient
from turnwise.environments.base import Task
from turnwise.extensions.continuations.play import Histories
from turnwise.extensions.judge.settings import JudgeConfig
from turnwise.lab.diagnostics.critics import SEES, check_others, explained, learn_critics, needs_critic, split_sight
from turnwise.lab.diagnostics.drift import measure_drift
from turnwise.lab.diagnostics.effects import Effects, action_number, measure_effects
from turnwise.lab.diagnostics.fidelity import Fidelities, Importance, importance, measure_fidelity
from turnwise.lab.diagnostics.fidelity_gradient import Errors, GradientFidelity, compare_gradients, response_gradients
from turnwise.lab.diagnostics.fidelity_record import responses_table
from turnwise.lab.diagnostics.paid import OWN, paid_measures, plays_on, take_paid, time_credit
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.values import Truth, continue_histories, estimated_values, true_advantages
from turnwise.measures.played import action_of
from turnwise.objective.values import ValueTerm
from turnwise.rollout.groups import OnTurn
from turnwise.rollout.replays import Replays
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.folder import RunFolder

MEASURED = ("entropy", "logprob", "state_key")
"""Columns that the breakdowns and the entropy drift need."""
JUDGED = "progress"
"""Column of a run's judge, which is audited along with the methods."""
PLAYS_ON = "it continues from every turn itself; ask for it by name"
"""Why a method that needs its own continuations is left out."""
FIFTHS = ("surest", "second", "third", "fourth", "most uncertain")
"""Names of the fifths of response entropy."""

Play = Callable[[Stage], tuple[list[Trajectory], list[Task]]]
"""Provides trajectories to measure, and the task of each group."""


@dataclasses.dataclass(frozen=True, slots=True)
class FidelityOfRun:
    """What a policy's trajectories show about credit."""

    step: int  # step of the checkpoint
    success: float  # share of the trajectories that succeeded
    groups: int  # number of groups that were played
    histories: int  # number of histories that were valued
    continuations: int  # continuations per history
    fidelities: Fidelities  # fidelity of each method, and differences to the first
    importance: list[Importance]  # mean squared true advantage by kind of response
    failed: int  # number of continuations that failed
    diverged: int  # number of those, in this call, whose replay was answered differently
    unknown: int  # number of responses whose true advantage is therefore unknown
    left_out: dict[str, str]  # methods that could not be measured, with the cause
    responses: pa.Table  # every response with its true advantage and credit; see `fidelity_record`
    drift: Fidelities | None  # entropy drift of each method; None for a policy without entropy
    # Share of the variance of true values that critics explain, as `SEES` calls it; nan if unknown
    explained: dict[str, float]
    # Tokens per response that were computed for a method and that GRPO does not need: read and generated; for
    # continuations, only generated
    extra_tokens: dict[str, float]
    # Time of each method's credit per 1,000 responses, several times; see `time_credit`
    milliseconds: dict[str, list[float]] = dataclasses.field(compare=False)
    replayed: "Replayed" = dataclasses.field(compare=False)  # what an audit needs from the same replays
    gradient: GradientFidelity | None = None  # the same for policy gradients, if asked for


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """Responses with their effects, and what methods and other signals say about them."""

    batch: Batch  # the responses
    effects: Effects  # their effects
    credit: dict[str, np.ndarray]  # `[responses]` advantages by method
    judged: np.ndarray | None  # A judge's ratings of progress, if the run has a judge


def measure_run(
    folder: RunFolder,
    methods: Sequence[str] = (),
    *,
    step: int | None = None,
    groups: int = 24,
    continuations: int = 12,
    seed: int = 0,
    device: torch.device | None = None,
    gradient: bool = False,
    alternatives: int = 1,
    critic_groups: int | None = None,
    play: Play | None = None,
    on_turn: OnTurn = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_gradient: Callable[[int, int], None] = lambda done, total: None,
) -> FidelityOfRun:
    """Play groups of training tasks with a checkpoint's policy, value every history, and compare methods.

    Returns of continuations are kept in the run folder, so an interrupted call continues where it stopped.

    Args:
        folder: Folder of the run.
        methods: Names such as "grpo" or "gigpo+empg", with default options and without the penalty for invalid
            responses; the first one is what others are compared with. A method that needs a critic gets one by ridge
            regression; with "turn_ppo+peers" or "turn_ppo+visits" it sees more. One that needs continuations gets
            those of `[continuations]`. Default: all that can be measured without their own continuations.
        step: Step of the checkpoint; default: the last.
        groups: Number of groups of `rollout.group_size` trajectories, each on another task.
        continuations: Continuations per history, two or more.
        seed: Seed of tasks and draws.
        device: Device of the policy; default: the CPU.
        gradient: Whether to compare policy gradients too: one backward pass per response.
        alternatives: Distinct other actions without which a response has no effect; see `effects`.
        critic_groups: Number of other groups that critics learn from; default: four per measured group.
        play: Gives the trajectories to measure, and the task of each group, such as those of a log; default: the policy
            plays `groups` groups. The policy continues from them in any case.
        on_turn: Called after every turn of the groups, with the number of live episodes and of all.
        on_progress: Called with the number of histories valued and of all.
        on_gradient: Called with the number of groups whose gradients are computed and of all.

    Raises:
        TurnwiseError: A named method is unknown or needs a column that cannot be measured, the environment does not
            repeat, there is no such checkpoint, or there is too little to measure.
    """
    if groups < 3:
        raise ConfigError(f"groups={groups}: expected 3 or more, since intervals are over groups")
    if continuations < 2:
        raise ConfigError(f"continuations={continuations}: expected 2 or more, since two halves estimate the noise")
    with contextlib.closing(Stage.open(folder, step, device, on_turn=on_turn)) as stage:
        if stage.config.rollout.collector.name == "self_play":
            raise ConfigError(
                f"the run {folder.path} was played by rollout.collector='self_play', whose trajectories need the other "
                "seats to continue; choose a run with another collector"
            )
        stage.refuse_unrepeatable("this analysis")
        chosen, left_out = _methods(stage, methods, groups)
        paid = {name: method for name, method in chosen.items() if paid_measures(method)}
        needs = {f"method {name!r}": method.needs for name, method in chosen.items() if name not in paid}
        judged = stage.config.section(JudgeConfig) is not None
        needs["this analysis"] = (*MEASURED, JUDGED) if judged else MEASURED
        plan = stage.plan(needs, models=["critic", "judge"])
        trajectories, tasks = play(stage) if play else stage.play_groups(groups, seed)
        if (played := len({trajectory.group for trajectory in trajectories})) < 3:
            raise RunError(
                f"{played} groups could be played of {len(tasks)} training tasks, expected 3 or more for an interval; "
                "choose a run, or a log, on more tasks, whose environment works"
            )
        sights = sorted({split_sight(name)[1] for name, method in chosen.items() if needs_critic(method)})
        critics: Mapping[str, ValueTerm | None] = {"": None}
        if sights:
            critics = learn_critics(stage, plan, sights, groups=groups, seed=seed, others=critic_groups)
        batches, sequences = stage.measure_with(plan, trajectories, critics)
        batch = next(iter(batches.values()))
        found = Histories.of(trajectories, tasks)
        kept = _Kept(folder.path / "analyses", stage.step, found, continuations, seed)
        known, action_HK = kept.load() or (None, np.zeros((len(found.starts), continuations), dtype=np.int64))
        numbers = {id(start): number for number, start in enumerate(found.starts)}

        def play_on(starts: Sequence[Start], *, seed: int) -> list[Trajectory]:
            played = stage.play(starts, seed=seed)
            for place, (start, one) in enumerate(zip(starts, played, strict=True)):
                if one.failure is None:
                    first = action_number(action_of(one.turns[len(start.turns)].response))
                    action_HK[numbers[id(start)], place % continuations] = first
            return played

        def keep(return_HK: np.ndarray, done: int) -> None:
            kept.save(return_HK, action_HK)
            on_progress(done, len(found.starts))

        replays = Replays()
        return_HK = continue_histories(
            found.starts,
            continuations,
            play_on,
            at_once=stage.config.rollout.groups * stage.config.rollout.group_size,
            seed=1_000_003 * (seed + 1),
            known=known,
            on_part=keep,
            replays=replays,
        )
        of_paid, tokens = take_paid(stage, paid, MEASURED, trajectories, tasks, seed) if paid else (batch, {})
    truth = true_advantages(batch.reward_R, found.before_R, found.after_R, return_HK)
    action_R = [action_number(action_of(turn.response)) for one in trajectories for turn in one.turns]
    places = found.before_R, found.after_R, return_HK, action_HK
    effects = measure_effects(batch.reward_R, np.array(action_R), *places, alternatives=alternatives)
    seen = {name: of_paid if name in paid else batches.get(split_sight(name)[1], batch) for name in chosen}
    credit = {name: method.trace(seen[name])[0].advantage_R for name, method in chosen.items()}
    valued = {end: of for end, of in batches.items() if "value" in of.columns}
    gradients = None
    if gradient:
        errors = Errors(found.before_R, found.after_R, estimated_values(return_HK)[1])
        made = response_gradients(stage, sequences, batch, seed=seed, on_group=on_gradient)
        gradients = compare_gradients(made, credit, truth, errors, batch)
    return FidelityOfRun(
        stage.step,
        float(np.mean([trajectory.success for trajectory in trajectories])),
        batch.num_groups,
        len(found.starts),
        continuations,
        measure_fidelity(credit, truth, batch.group_responses),
        _importance(batch, truth, trajectories, credit),
        int(np.isnan(return_HK).sum()),
        replays.diverged,
        int((~truth.known_R).sum()),
        left_out,
        responses_table(trajectories, credit, truth, stage.step),
        measure_drift(credit, batch),
        {SEES[end][0]: explained(of.columns["value"], found.before_R, return_HK) for end, of in valued.items()},
        {name: tokens.get(name, 0.0) for name in chosen},
        time_credit(chosen, seen),
        Replayed(batch, effects, credit, batch.columns.get(JUDGED)),
        gradients,
    )


def _methods(stage: Stage, names: Sequence[str], groups: int) -> tuple[dict[str, Transform], dict[str, str]]:
    """Build the named methods, or all that can be measured, with GRPO first; also return why others are left out."""
    if names:
        return {name: _measurable(stage, name, groups) for name in names}, {}
    chosen: dict[str, Transform] = {}
    left_out: dict[str, str] = {}
    known = [f"grpo+{name}" if is_modifier(name) else name for name in METHODS]
    for name in sorted(known, key=lambda name: (name != "grpo", name)):
        try:
            method = _measurable(stage, name, groups)
            if plays_on(method):
                raise ConfigError(PLAYS_ON)
            chosen |= dict.fromkeys([name + end for end in SEES] if needs_critic(method) else [name], method)
        except TurnwiseError as error:
            left_out[name] = str(error)
    return chosen, left_out


def _measurable(stage: Stage, name: str, groups: int) -> Transform:
    """Build a method."""
    method = fidelity_method(name)
    stage.plan({f"method {name!r}": method.needs}, models=OWN if paid_measures(method, name) else ["critic"])
    if needs_critic(method):
        check_others(stage, groups)
    return method


def fidelity_method(name: str) -> Transform:
    """Build a method by a name such as "gigpo+empg", "gae(decay=0.7)" or "turn_ppo+peers", without a penalty.

    Raises:
        ConfigError: There is no such method, it needs an option, or it has no critic that could see more.
    """
    base, end = split_sight(name)
    _, *further = split_at_plus(base)
    ends = [*modifiers(), *(known.removeprefix("+") for known in SEES if known)]
    if unknown := next((each for each in further if ":" not in each and each.partition("(")[0] not in ends), None):
        raise ConfigError(
            f"method {name!r}: {'+' + unknown!r} is not a suffix of a method's name.{did_you_mean(unknown, ends)}"
        )
    method = named_method(base)
    if end and not needs_critic(method):
        raise ConfigError(f"method {name!r}: {base!r} has no critic that could see more; leave out {end!r}")
    return method


class _Kept:
    """Returns and first actions of continuations in the run folder, in one file per policy, seed and histories."""

    def __init__(self, folder: Path, step: int, found: Histories, continuations: int, seed: int):
        played = [(start.group, start.name, [turn.response_ids for turn in start.turns]) for start in found.starts]
        digest = hashlib.sha256(repr((played, continuations, seed)).encode()).hexdigest()[:16]
        self.path = folder / f"values-{step:06d}-{digest}.npz"

    def load(self) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            with np.load(self.path) as file:
                return file["returns"], file["actions"]
        except FileNotFoundError:
            return None
        except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:
            raise RunError(f"cannot read {self.path} ({error}); remove it to measure again") from error

    def save(self, return_HK: np.ndarray, action_HK: np.ndarray) -> None:
        self.path.parent.mkdir(exist_ok=True)
        with replacing(self.path) as temporary, temporary.open("wb") as file:
            np.savez(file, returns=return_HK, actions=action_HK)


def _importance(
    batch: Batch, truth: Truth, trajectories: Sequence[Trajectory], credit: Mapping[str, np.ndarray]
) -> list[Importance]:
    """Break the true advantages down by what a method could know about a response."""
    entropy_R = batch.column("entropy", needed_by="the analysis")
    alpha_R = entropy_coefficient(batch)
    fifth_R = ((stats.rankdata(entropy_R) - 0.5) * len(FIFTHS) // len(entropy_R)).astype(int)  # ties stay together
    valid_R = np.array([turn.valid for trajectory in trajectories for turn in trajectory.turns])
    recurs_R = _recurs(batch)
    kinds = [(f"entropy, {name} fifth", fifth_R == number) for number, name in enumerate(FIFTHS)]
    kinds += [(name, (first <= batch.turn_R) & (batch.turn_R < after)) for name, first, after in _turns()]
    kinds += [("valid", valid_R), ("invalid", ~valid_R)]
    kinds += [("state of several trajectories", recurs_R), ("state of one trajectory", ~recurs_R)]
    how = truth, alpha_R, batch.group_responses, credit
    return [importance(name, of_R, *how) for name, of_R in kinds if of_R.any()]


def _turns() -> Iterator[tuple[str, int, int]]:
    """Yield single turns up to the third, then ranges that double: name, first turn from 0, first one after."""
    for first, after in itertools.pairwise((0, 1, 2, 3, 6, 12, 24, 48, sys.maxsize)):
        if after == first + 1:
            name = f"turn {after}"
        else:
            name = f"turns {first + 1} to {after}" if after < sys.maxsize else f"turn {first + 1} and later"
        yield name, first, after


def _recurs(batch: Batch) -> np.ndarray:
    """Return which responses were given in a state that another trajectory of the group was in, `[responses]` bool."""
    state_R, trajectory_R = batch.column("state_key", needed_by="the analysis"), batch.trajectories.ids
    place_R = np.unique(np.stack([batch.group_responses.ids, state_R]), axis=1, return_inverse=True)[1].reshape(-1)
    pairs = np.unique(np.stack([place_R, trajectory_R]), axis=1)
    return np.bincount(pairs[0])[place_R] > 1
