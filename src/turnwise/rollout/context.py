"""Build prompts: turn the conversation with an environment into the token ids that the policy reads."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from turnwise.environments.base import Step
from turnwise.models.format import Format


class PromptContext(Protocol):
    """The prompts of one trajectory."""

    conversation: int  # the engine's number of this conversation; it stays the same while ids are only appended
    ids: list[int]  # token ids that the next response continues
    fresh: bool  # whether `ids` start over, instead of continuing those of the previous response

    def observe(self, step: Step) -> list[int]:
        """Add an observation; returns the ids that it appends after the previous response, or all ids if `fresh`."""
        ...

    def respond(self, response_ids: Sequence[int]) -> None:
        """Add a response, as it was sampled."""
        ...


class Append:
    """Keep the whole conversation as one growing list of ids; nothing is encoded twice.

    Args:
        fmt: Turns observations into tokens.
        number: Number of the trajectory.
    """

    def __init__(self, fmt: Format, number: int):
        self.fmt, self.conversation = fmt, number
        self.ids: list[int] = []
        self.fresh = True
        self._subgoal = ""

    def observe(self, step: Step) -> list[int]:
        """Add an observation; returns the ids that it appends."""
        self.fresh = not self.ids
        known = len(self.ids)
        self.ids = self.fmt.closed(self.ids) if known else []
        self.ids += self.fmt.prompt_ids(self.fmt.describe(step, subgoal=self._subgoal), first=self.fresh)
        return self.ids[known:]

    def respond(self, response_ids: Sequence[int]) -> None:
        """Add a response, as it was sampled."""
        self._subgoal = self.fmt.subgoal_after(response_ids, self._subgoal)
        self.ids += response_ids


class Window:
    """Build a separate prompt per response: first observation, last `size` turns, latest observation.

    An empty response stands for the omitted turns. Up to `size` responses, the prompt equals that of `Append`, with two
    differences: it lists only the latest admissible actions and subgoal, and omits the reasoning of earlier responses.

    Args:
        fmt: Turns observations into tokens.
        number: Number of the trajectory.
        size: Observations and responses to repeat, 0 or more.
        stride: Added to the conversation's number at each response; the number of trajectories keeps numbers distinct.
    """

    def __init__(self, fmt: Format, number: int, *, size: int, stride: int):
        self.fmt, self.conversation = fmt, number
        self.ids: list[int] = []
        self.fresh = True
        self._stride = stride
        self._first: list[int] = []
        self._latest: list[int] = []  # the latest observation, as later prompts repeat it
        self._past: deque[list[int]] = deque(maxlen=size)
        self._num_responses = 0
        self._subgoal = ""

    def observe(self, step: Step) -> list[int]:
        """Add an observation; returns the whole prompt."""
        first = not self._num_responses
        latest = self.fmt.prompt_ids(self.fmt.describe(step, subgoal=self._subgoal), first=first)
        self._latest = self.fmt.prompt_ids(self.fmt.describe(step, latest=False), first=first)
        if first:
            self._first = self._latest
        else:
            self.conversation += self._stride
        left_out = self._num_responses > len(self._past)
        self.ids = [*self._first, self.fmt.stop_id] if left_out else []
        for piece in self._past:
            self.ids += piece
        self.ids += latest
        return list(self.ids)

    def respond(self, response_ids: Sequence[int]) -> None:
        """Add a response, as it was sampled."""
        self._subgoal = self.fmt.subgoal_after(response_ids, self._subgoal)
        self._num_responses += 1
        self._past.append(self._latest + self.fmt.remembered_ids(response_ids))


def make_context(fmt: Format, number: int, *, window: int | None, stride: int) -> PromptContext:
    """Make the context of trajectory `number` of `stride`; `window` None keeps the whole conversation."""
    return Append(fmt, number) if window is None else Window(fmt, number, size=window, stride=stride)
