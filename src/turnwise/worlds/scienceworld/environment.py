"""A ScienceWorld task as an environment."""

from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

from turnwise.base.errors import ConfigError, EnvironmentFault, TurnwiseError
from turnwise.environments.base import Step
from turnwise.environments.needs import check_choices
from turnwise.worlds.scienceworld.java import fault, simulator

CHOICES = {"reward": ("gain", "final", "success"), "state_key": ("observation", "state")}
NOT_UNDERSTOOD = "No known action matches that input."
"""The simulator's answer to a response that is not an action."""


class Variation(NamedTuple):
    """A task: one of the thirty, with the number of its variation (other substances, animals, rooms)."""

    task: str
    number: int


class ScienceworldEnvironment:
    """One trajectory in ScienceWorld.

    A response is an action, as "open door to kitchen". One that the simulator does not understand changes nothing,
    counts as a step and is marked invalid. The trajectory ends when the task is done, or lost by focusing on a wrong
    thing. `info` has success (score 1), score (from 0 to 1; a lost task has 0) and task_type, the task's name.

    Args:
        task: Task and variation.
        simplifications: Names for the simulator, joined with commas.
        max_steps: The trajectory is truncated after this many steps.
        success_reward: Reward of the maximum score.
        reward: "gain": the increase of the score at each step; "final": the score at the end; "success": only a score
            of 1.
        admissible: Whether steps list all admissible actions, hundreds, which takes 20 to 100 ms per step.
        state_key: "observation", its text; "state": the texts of "look around" and the inventory, with the score.
        heap_mb: See `turnwise.worlds.scienceworld.java.simulator`.

    Reference: R. Wang et al., arXiv 2203.07540.
    """

    def __init__(
        self,
        task: Variation,
        *,
        simplifications: str = "",
        max_steps: int = 100,
        success_reward: float = 10.0,
        reward: Literal["gain", "final", "success"] = "gain",
        admissible: bool = False,
        state_key: Literal["observation", "state"] = "observation",
        heap_mb: int = 1024,
    ):
        check_choices(CHOICES, reward=reward, state_key=state_key)
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1.")
        self.task, self.simplifications, self.max_steps = task, simplifications, max_steps
        self.success_reward, self.reward, self.admissible = success_reward, reward, admissible
        self.by_state, self.heap_mb = state_key == "state", heap_mb
        self._game: Any = None
        self._steps, self._score, self._ended = 0, 0.0, False

    def start(self) -> Step:
        """Start the trajectory; returns the task and the first view."""
        self._steps, self._score, self._ended = 0, 0.0, False
        return self._called(self._load, gold=False)

    def step(self, response: str) -> Step:
        """Play an action.

        Raises:
            EnvironmentFault: The trajectory has not begun, or is over, or the Java process has ended.
        """
        if self._game is None or self._ended:
            raise EnvironmentFault(
                f"step() {'after the end' if self._ended else 'before start()'} of {name(self.task)}."
            )
        self._steps += 1
        return self._called(self._play, response.strip())

    def gold(self) -> list[str]:
        """Return the simulator's own solution; restarts the trajectory."""
        self._called(self._load, gold=True)
        return self._called(lambda: [str(action) for action in self._game.getGoldActionSequence()])

    def _called(self, function: Any, *arguments: Any, **settings: Any) -> Any:
        try:
            return function(*arguments, **settings)
        except TurnwiseError:
            raise
        except Exception as error:  # after any error of py4j, the environment is lost
            self._ended = True
            raise fault(error, name(self.task)) from error

    def _load(self, *, gold: bool) -> Step:
        self._game = simulator(self.heap_mb)
        self._game.load(self.task.task, self.task.number, self.simplifications, gold)
        return self._answer(f"{self._game.getTaskDescription()}\n\n{self._game.freeActionLook()}")

    def _play(self, action: str) -> Step:
        observation, before = self._game.step(action), self._score
        points = float(self._game.getScore())
        self._score, lost = max(points, 0.0), points < 0
        over = bool(self._game.getCompleted()) or lost
        truncated = not over and self._steps >= self.max_steps
        self._ended = over or truncated
        paid = {"gain": self._score - before, "final": self._score * self._ended, "success": float(self._score == 1)}
        return self._answer(
            observation,
            reward=self.success_reward * paid[self.reward],
            terminated=over,
            truncated=truncated,
            valid=not observation.startswith(NOT_UNDERSTOOD),
        )

    def _answer(self, observation: str, **outcome: Any) -> Step:
        game, key = self._game, None
        if self.by_state:
            key = (game.freeActionLook(), game.freeActionInventory(), self._score)
        actions = (
            sorted(map(str, game.getValidActionObjectCombinations())) if self.admissible and not self._ended else None
        )
        info = {"success": self._score == 1, "score": self._score, "task_type": self.task.task}
        state_key: Hashable | None = key
        return Step(observation=observation.strip(), state_key=state_key, admissible=actions, info=info, **outcome)


def name(task: Variation) -> str:
    """Name a task in records."""
    return f"{task.task}-{task.number}"
