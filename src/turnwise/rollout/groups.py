"""Define groups, batches of them, and collectors, which play them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from turnwise.engines.base import Engine
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

OnTurn = Callable[[int, int], None] | None
"""Called after every turn with the number of live trajectories and of all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskBatch:
    """Tasks to play at the same time, one group each.

    Attributes:
        models: Models of the run; the policy acts.
        tasks: One per group.
        places: Number of each group among those that are numbered together; default: 0, 1, ...
        together: How many groups are numbered together; default: those of the batch.
        seed: Seed of the sampling. Draws depend on it, on a group's number, and on a trajectory's place in the group.
        group_size: Trajectories per task, as in an evaluation; None: training, with the recipe's number.
        temperature: Default: the recipe's, with its top_p. A given one sets top_p to 1.
        on_turn: Progress callback.
        engine: Generates; default: the policy's.
        environments: Where the tasks are played; default: those of the collector.
        version: Version of the weights for which the batch is planned; default: the current one.
    """

    models: Models
    tasks: Sequence[Task]
    places: Sequence[int] | None = None
    together: int | None = None
    seed: int
    group_size: int | None = None
    temperature: float | None = None
    on_turn: OnTurn = None
    engine: Engine | None = None
    environments: Environments | None = None
    version: int | None = None

    @property
    def planned_version(self) -> int:
        """Version of the weights for which the batch is planned."""
        return self.models.policy.version if self.version is None else self.version

    @property
    def training(self) -> bool:
        """Whether steps learn from the batch; otherwise it evaluates."""
        return self.group_size is None


@dataclasses.dataclass
class Waits:
    """Count trajectories that wait for others of their group.

    Attributes:
        count: Returns their number; set by a collector whose trajectories wait for each other.
        changed: Call it when one begins to wait.
    """

    count: Callable[[], int] = lambda: 0
    changed: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A group to play.

    Attributes:
        models: Models of the run; the policy acts.
        task: Its task.
        name: Name of the task in records.
        number: Its number among the groups that are numbered together.
        size: Its trajectories.
        first: Number of its first trajectory.
        stride: A number above those of all trajectories that are numbered together.
        seed: Seed of the sampling.
        training: Whether steps learn from it.
        temperature: That of an evaluation; None: the recipe's.
        engine: Generates for this group; conversations have the numbers of their trajectories, plus multiples of
            `stride`.
        environments: Where it is played.
        on_turn: Progress callback.
        plan: What the collector has decided about the group.
        watched: Receives the trajectories during play, for steps that learn from half-played ones.
        waits: Counts how many of them wait for others.
        around: Wrappers of each of its trajectories, innermost first.
    """

    models: Models
    task: Task
    name: str
    number: int
    size: int
    first: int
    stride: int
    seed: int
    training: bool
    temperature: float | None
    engine: Engine
    environments: Environments
    on_turn: OnTurn = None
    plan: Any = None
    watched: dict[int, Trajectory] | None = None
    waits: Waits = dataclasses.field(default_factory=Waits)
    around: tuple[Callable[[Start], Start], ...] = ()

    def start(self, number: int, tree: int | None = None, task: Task | None = None) -> Start:
        """Start the task, or a replacement, for the trajectory of a number."""
        start = Start(self.task if task is None else task, self.number, self.name, conversation=number, tree=tree)
        for put in self.around:
            start = put(start)
        return start

    def starts(self) -> list[Start]:
        """Start the task once per trajectory."""
        numbers = range(self.first, self.first + self.size)
        starts = [self.start(number) for number in numbers]
        if self.watched is None:
            return starts
        self.watched.update({number: Trajectory(self.number, self.name) for number in numbers})
        return [
            dataclasses.replace(start, into=self.watched[number]) for start, number in zip(starts, numbers, strict=True)
        ]


class Collector(Protocol):
    """Plays groups of trajectories. A stateful one also has `state_dict` and `load_state_dict`."""

    async def plan(self, batch: TaskBatch) -> list[Group]:
        """Divide a batch into its groups, one per task."""
        ...

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group. Different groups are played concurrently, on one event loop."""
        ...

    def learn(self, played: Sequence[tuple[Group, list[Trajectory]]]) -> None:
        """Learn from what a step has played, in the order in which the groups were started."""
        ...
