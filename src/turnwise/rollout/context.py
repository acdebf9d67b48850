"""What a policy reads before a response: how the conversation with a world becomes token ids."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from turnwise.environments.base import Step
from turnwise.rollout.format import Format


class Context(Protocol):
    """The prompts of one trajectory.

    Attributes:
        conversation: Number under which the engine knows what is read; the same as long as ids are only added.
        ids: Token ids that the next response continues.
        fresh: Whether `ids` begin anew, instead of continuing those of the response before.
    """

    conversation: int
    ids: list[int]
    fresh: bool

    def observe(self, step: Step) -> list[int]:
        """Take in what the world said; returns the ids that it adds to the response before, all of them if `fresh`."""
        ...

    def respond(self, response_ids: Sequence[int]) -> None:
        """Take in a response, as it was sampled."""
        ...


class Append:
    """The whole conversation, one list of ids that only ever grows: nothing is encoded twice.

    Args:
        fmt: Turns observations into tokens.
        number: Of the trajectory.
    """

    def __init__(self, fmt: Format, number: int):
        self.fmt, self.conversation = fmt, number
        self.ids: list[int] = []
        self.fresh = True

    def observe(self, step: Step) -> list[int]:
        """Take in what the world said; returns the ids that it adds."""
        self.fresh = not self.ids
        known = len(self.ids)
        self.ids = self.fmt.closed(self.ids) if known else []
        self.ids += self.fmt.prompt_ids(self.fmt.describe(step), first=self.fresh)
        return self.ids[known:]

    def respond(self, response_ids: Sequence[int]) -> None:
        """Take in a response, as it was sampled."""
        self.ids += response_ids


class Window:
    """The first observation, the last `size` observations with their responses, and the latest: a prompt of its own for each response.

    An empty response stands for what is left out. Up to `size` responses the prompt is that of `Append`, except that admissible
    actions are those of the latest step, and reasoning is left out of earlier responses.

    Args:
        fmt: Turns observations into tokens.
        number: Of the trajectory.
        size: Observations and responses that are remembered, 0 or more.
        stride: Added to the conversation's number at each response; the number of trajectories, so that no two meet.
    """

    def __init__(self, fmt: Format, number: int, *, size: int, stride: int):
        self.fmt, self.conversation = fmt, number
        self.ids: list[int] = []
        self.fresh = True
        self._stride = stride
        self._first: list[int] = []
        self._latest: list[int] = []  # the latest observation as it will be remembered
        self._past: deque[list[int]] = deque(maxlen=size)
        self._num_responses = 0

    def observe(self, step: Step) -> list[int]:
        """Take in what the world said; returns the whole prompt."""
        first = not self._num_responses
        latest = self.fmt.prompt_ids(self.fmt.describe(step), first=first)
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
        """Take in a response, as it was sampled."""
        self._num_responses += 1
        self._past.append(self._latest + self.fmt.remembered_ids(response_ids))


def make_context(fmt: Format, number: int, *, window: int | None, stride: int) -> Context:
    """The context of trajectory `number` of `stride`; `window` None keeps the whole conversation."""
    return Append(fmt, number) if window is None else Window(fmt, number, size=window, stride=stride)
