"""Play groups of matches with one policy on several seats, against past selves and fixed opponents."""

import copy
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from turnwise.base.errors import ConfigError
from turnwise.base.streams import Stream
from turnwise.engines.base import Engine, Generation, Sampling, give_back
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.self_play.tables import SeatAt, Tables, check_roles
from turnwise.rollout.collectors import Independent
from turnwise.rollout.gate import Gate, OwnConversations, VisitedEngine
from turnwise.rollout.groups import Group, TaskBatch
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory
from turnwise.worlds.seats.base import POLICY, Deal
from turnwise.worlds.seats.match import OPPONENTS


class Cast:
    """An engine that combines several; see `Engine` for the methods.

    Args:
        engines: Engines of the players.
        player: Index of the engine that plays each trajectory, by its number.
        stride: Above these numbers; conversation c belongs to trajectory `c % stride`.
    """

    def __init__(self, engines: Sequence[Engine], player: Mapping[int, int], stride: int):
        self._engines, self._player, self._stride = engines, player, stride

    def _engine(self, conversation: int) -> Engine:
        return self._engines[self._player[conversation % self._stride]]

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation with its player's weights. The next turn may be another player's."""
        engine = self._engine(conversation)
        try:
            return await engine.generate(conversation, prompt_ids, sampling)
        finally:
            give_back(engine, conversation)

    async def update_weights(self, version: int = 0) -> None:
        """Do nothing: the owners of the engines load their weights."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all."""
        for engine in self._engines:
            own = conversations and [each for each in conversations if self._engine(each) is engine]
            engine.close(None if conversations is None else own)

    async def aclose(self) -> None:
        """Forget all conversations of all engines."""
        for engine in self._engines:
            await engine.aclose()


SELF, PAST = "self", "past"


class SelfPlay(Independent):
    """Play the matches of a group concurrently; each seat that a policy holds is a trajectory of the group.

    A group plays `rollout.group_size` / (seats of a match) matches of its task. In each, the policy meets itself, a
    past self or a player of the environment, drawn by the shares; against others it holds all seats of one role. Steps
    learn only from the policy's seats whose role `train` names. The trajectories of past selves are recorded, and not
    learned from; `info["actor"]` says who played. A seat whose match ends before it acts has a trajectory without
    turns, which is not a failure. A game with a given group size, such as an evaluation, is played as its tasks say.

    Args:
        environments: Where the matches are played.
        settings: The `[rollout]` of a recipe.
        task_name: Names a task in records.
        train: Roles of the seats that learn; default: all.
        past: Share of matches against a past self, from 0 to 1.
        random: Share against a player that draws admissible actions.
        expert: Share against the game's expert. The rest is against the policy itself.
        every: Training steps between past selves; the first is the policy before training.
        keep: Past selves to keep, the latest ones. Checkpoints hold their trainable weights.

    Raises:
        ConfigError: An option has an impossible value, or does not fit the rest of `[rollout]`.
    """

    def __init__(
        self,
        environments: Environments,
        settings: RolloutConfig,
        task_name: Callable[[Task], str] = str,
        *,
        train: Sequence[str] | None = None,
        past: float = 0.0,
        random: float = 0.0,
        expert: float = 0.0,
        every: int = 10,
        keep: int = 5,
    ):
        self._share = {PAST: past, "random": random, "expert": expert}
        _check(self._share, every, keep, settings)
        super().__init__(environments, settings, task_name)
        self._share[SELF] = 1.0 - sum(self._share.values())
        self._train = train
        self._every, self._keep = every, keep
        self._selves: list[tuple[int, bytes]] = []  # version and weights; bytes, which copies of the state share
        self._past: list[_PastSelf] = []

    def check_suite(self, suite: Any, environment: str) -> None:
        """Check that an environment has seats for the players.

        Args:
            suite: The environment.
            environment: Its name.

        Raises:
            ConfigError: It has none, or lacks those that `train` names.
        """
        if "role" not in getattr(suite, "gives", ()):
            raise ConfigError(
                f"rollout.collector='self_play' needs an environment with seats, and {environment!r} has none; set "
                "environment.name=seats, or remove rollout.collector"
            )
        if roles := getattr(suite, "roles", ()):  # else the first matches reveal it
            check_roles(roles, self._train, self._settings.group_size)

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups, and seat the players of all matches; see `Collector.plan`."""
        if not batch.training:
            return await super().plan(batch)
        rng = np.random.default_rng([batch.seed, Stream.OPPONENTS])
        self._remember(batch.models, batch.planned_version)
        version, weights = self._selves[rng.integers(len(self._selves))] if self._selves else (0, b"")
        begin = int(rng.integers(2**31))  # so that groups which start alone do not all begin with the same role
        seated = [self._places(group, task, rng, begin) for group, task in enumerate(batch.tasks)]
        past = None
        if any(place.actor == PAST for places in seated for place in places):
            past = self._past_engine(batch.models, version, weights)
        plans = [_Plan(places, version, past) for places in seated]
        sizes = [len(places) for places in seated]
        return self._groups(batch, sizes, plans, most=self._settings.group_size)

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group of matches; see `Collector.play`."""
        if not group.training:
            return await super().play(group)
        plan: _Plan = group.plan
        tables = Tables(group.environments, group.waits.changed)
        group.waits.count = tables.count
        engines = [group.engine, *([OwnConversations(plan.past)] if plan.past else ())]
        player = {group.first + place: int(each.actor == PAST) for place, each in enumerate(plan.places)}
        starts = [group.start(group.first + place, task=each.seat) for place, each in enumerate(plan.places)]
        played = await self._play_starts(group, starts, environments=tables, engine=Cast(engines, player, group.stride))
        for start, trajectory, place in zip(starts, played, plan.places, strict=True):
            trajectory.learns = place.learns
            assert start.conversation is not None
            if start.conversation in tables.unasked:
                _end_unasked(trajectory, tables.unasked[start.conversation])
            trajectory.info["actor"] = f"step {plan.version}" if place.actor == PAST else POLICY
        return played

    def _places(self, group: int, task: Task, rng: np.random.Generator, begin: int) -> list["_Place"]:
        """Seat the players of a group's matches; roles to train take turns from `begin` on."""
        kinds, shares = list(self._share), list(self._share.values())
        if not isinstance(task, Deal):
            raise ConfigError(
                f"rollout.collector='self_play' needs tasks with seats, got {type(task).__name__}; set "
                "environment.name=seats, or remove rollout.collector"
            )
        check_roles(task.roles, self._train, self._settings.group_size)
        train = self._train or tuple(dict.fromkeys(task.roles))
        matches = self._settings.group_size // len(task.roles)
        places: list[_Place] = []
        for match in range(group * matches, (group + 1) * matches):
            kind = kinds[rng.choice(len(kinds), p=shares)]
            own = train[(begin + match) % len(train)]
            players = [kind if kind in OPPONENTS and role != own else POLICY for role in task.roles]
            deal = dataclasses.replace(task, players=tuple(players))
            for seat in (seat for seat, player in enumerate(players) if player == POLICY):
                actor = PAST if kind == PAST and task.roles[seat] != own else POLICY
                places.append(_Place(SeatAt(match, seat, deal), actor, actor == POLICY and task.roles[seat] in train))
        return places

    def _remember(self, models: Models, version: int) -> None:
        """Keep the policy as a past self when its step is due."""
        due = self._share[PAST] > 0 and version % self._every == 0
        if due and version not in [known for known, _ in self._selves]:
            named = dict(models.policy.policy.model.named_parameters())
            weights = {name: each.detach().cpu().contiguous() for name, each in named.items() if each.requires_grad}
            self._selves = [*self._selves, (version, save(weights))][-self._keep :]

    def _past_engine(self, models: Models, version: int, weights: bytes) -> Engine:
        """Make an engine that plays with earlier weights."""
        policy, engine = models.policy.policy, models.policy.sampler
        while isinstance(engine, (Gate, VisitedEngine)):
            engine = engine.engine
        assert isinstance(engine, LocalEngine), "Config refuses other engines"
        own = next((each for each in self._past if each.version == version), None)
        if own is None:  # a model that plays keeps its weights: groups replace others while the rest still play
            own = next((each for each in self._past if not each.engines), None)
            if own is None:
                own = _PastSelf(copy.deepcopy(policy.model))
                self._past.append(own)
            own.model.load_state_dict(load(weights), strict=False)
            own.version = version
        past = LocalEngine(
            own.model,
            rounded=engine.copy_dtype == torch.bfloat16,
            decode=engine.decode,
            patience=engine.patience,
            graphs=engine.graphs,
        )
        past.version = version
        own.engines.add(past)
        return past

    def state_dict(self) -> dict[str, Any]:
        """Return the past selves, for checkpoints."""
        return {"selves": list(self._selves)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the past selves that `state_dict` returned."""
        self._selves, self._past = [(int(version), weights) for version, weights in state["selves"]], []


@dataclasses.dataclass(eq=False, slots=True)
class _PastSelf:
    """A model with the weights of a past self, and the engines of groups that it plays in."""

    model: Any  # a transformers.PreTrainedModel
    version: int = -1
    engines: "weakref.WeakSet[Engine]" = dataclasses.field(default_factory=weakref.WeakSet)


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Who plays the trajectories of a group, and the past self that does: its version and its engine."""

    places: "list[_Place]"
    version: int
    past: Engine | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A trajectory to play: its seat, who plays it, and whether a step learns from it."""

    seat: SeatAt
    actor: str
    learns: bool


def _end_unasked(trajectory: Trajectory, last: Step) -> None:
    """End a trajectory whose match ended before its seat acted: no fault, and nothing to learn from."""
    trajectory.failure, trajectory.ended, trajectory.learns = None, "terminated", False
    trajectory.success = bool(last.info.get("success", False))
    trajectory.info, trajectory.last_observation = dict(last.info), last.observation


def _check(share: dict[str, float], every: int, keep: int, settings: RolloutConfig) -> None:
    """Raise ConfigError for impossible options."""
    where = "rollout.collector"
    for name, value in share.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigError(f"{where}.{name}={value!r}: expected a share from 0 to 1")
    if sum(share.values()) > 1:
        raise ConfigError(f"{where}: the shares {share} exceed 1; what they leave is played against the policy itself")
    for name, value in (("every", every), ("keep", keep)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{where}.{name}={value!r}: expected a whole number of 1 or more")
