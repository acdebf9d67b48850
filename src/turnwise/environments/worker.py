"""Talk to one worker process of `environments.workers`: its requests, its answers, and how long each may take."""

import asyncio
import dataclasses
import socket
from collections import deque
from typing import Any, Protocol

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.wire import Frames, ProtocolError
from turnwise.environments.worker_process import MAX_CAUSE, EnvironmentCall, Ready, WorkerAnswer, WorkerRequest

GRACE_S = 1.0
"""Seconds for more of an answer that has begun to arrive, ten times at most."""


def make_future() -> asyncio.Future[tuple[float, Any]]:
    """Make the future of an answer: its seconds, and a step or whether it was copied."""
    return asyncio.get_running_loop().create_future()


@dataclasses.dataclass(eq=False, slots=True)
class Life:
    """An environment with everything needed to rebuild it."""

    key: int
    task: bytes
    past: list[EnvironmentCall] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    home: "Worker | None" = None
    response: str | None = None
    answer: asyncio.Future[tuple[float, Any]] | None = None  # of a step, or of whether it was copied
    origin: int | None = None  # key of the environment that it is being copied from
    broken: EnvironmentFault | None = None  # its worker broke the protocol, so nothing it sent counts

    @property
    def waits(self) -> bool:
        """Whether anything waits for its answer."""
        return self.answer is not None and not self.answer.done()

    def succeed(self, seconds: float, answer: Any) -> None:
        """Give the answer to its waiter."""
        if self.answer and self.waits:
            self.answer.set_result((seconds, answer))

    def fail(self, error: Exception) -> None:
        """Raise an error in the waiter."""
        if self.answer and self.waits:
            self.answer.set_exception(error)


class Owner(Protocol):
    """What a worker reports to and asks of its owner."""

    starter: Any
    limits: Any
    load: Any

    def lost(self, worker: "Worker") -> None:
        """Learn that the process has ended."""
        ...

    def patience(self, life: Life, *, anew: bool) -> float:
        """Return how long an answer may take (seconds)."""
        ...

    def late(self, life: Life, waited: float) -> str:
        """Name the time limit that an environment exceeded."""
        ...


class Worker:
    """A process and its pipe; bound to an event loop only while it has environments."""

    def __init__(self, owner: Owner, number: int, pipe: socket.socket):
        self.owner, self.number, self.pipe = owner, number, pipe
        self.pid = 0  # as it reports, once it is ready
        self.lives: set[Life] = set()
        self.asked: deque[Life] = deque()  # answers arrive in this order
        self._anew: deque[bool] = deque()  # which of them replay a past
        self._sent, self._answered = 0, 0  # requests, and answers to them
        self._unsent, self._received = bytearray(), Frames(owner.limits.max_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False  # whether the loop watches for room to write
        self._alarm: asyncio.TimerHandle | None = None

    def ask(self, life: Life, **request: Any) -> None:
        """Send a request for an environment; its fields are those of `WorkerRequest`."""
        self.asked.append(life)
        self._anew.append(bool((request.get("made") or [0, 0])[1]))
        self._sent += 1
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._detach()
            self._loop = loop
            loop.add_reader(self.pipe, self._read)
        self._unsent += WorkerRequest(self._sent, life.key, **request).framed()
        self._write()
        if len(self.asked) == 1:
            self._watch()

    def forget(self, life: Life) -> None:
        """Release an environment in the process."""
        self.lives.discard(life)
        self._unsent += WorkerRequest(0, life.key).framed()
        self._write()
        self.settle()
        if not self.lives:
            self._detach()

    def settle(self) -> None:
        """End the worker if nothing waits for its answers, because the event loop may close before it is done."""
        if self.asked and not any(life.waits for life in self.asked):
            self.end()

    def abandon(self) -> None:
        """End the worker, even if requests wait."""
        self.asked.clear()
        self.end()

    def has_died_idle(self) -> bool:
        """Return whether the process died without a pending request, so that no environment is at fault."""
        if self.asked:
            return False
        try:
            return not self.pipe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def end(self) -> str:
        """Kill the process unless it is dead, and return how it ended."""
        self._detach()
        self.pipe.close()
        how = self.owner.starter.end(self.number) if self.pid else ""  # a process that is not ready ends with its pipe
        self.owner.lost(self)
        return how

    def _blame(self, cause: str | None) -> None:
        """End the worker because of its first request."""
        life = self.asked.popleft()
        life.home = None
        self.lives.discard(life)
        how = self.end()
        life.fail(EnvironmentFault(cause or f"its worker process ended, {how}"))

    def _break(self, what: str) -> None:
        """End the worker because it broke the protocol, and fail everything that it played."""
        fault = EnvironmentFault(f"its worker sent something that is not an answer ({what}), and was ended")
        lives = self.lives | set(self.asked)
        self.asked.clear()
        self.end()
        for life in lives:
            life.broken = fault
            life.fail(fault)

    def _fail(self, error: Exception) -> None:
        """End a worker that never became usable."""
        for life in self.asked:
            life.fail(error)
        self.abandon()

    def _write(self) -> None:
        try:
            del self._unsent[: self.pipe.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the process has ended; `_read` handles it
            self._unsent.clear()
        if self._loop and self._writing != bool(self._unsent):
            self._writing = bool(self._unsent)
            self._loop.add_writer(self.pipe, self._write) if self._writing else self._loop.remove_writer(self.pipe)

    def _read(self) -> bool:
        """Read from the pipe; returns whether anything arrived."""
        try:
            chunk = self.pipe.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            if not self.pid:
                self._fail(EnvironmentFault("no worker process could be started; see its messages above"))
            elif self.asked:
                self._blame(None)
            else:
                self.end()
            return False
        self._received.add(chunk)
        took = False
        try:
            while self._loop and (message := self._received.next()) is not None:  # stops once the worker has ended
                self._take(message)
                took = True
            if took:  # a part of an answer gives no more time
                self._watch()
        except ProtocolError as error:
            self._break(str(error))
        return bool(self._loop)

    def _take(self, message: bytes) -> None:
        """Read one message."""
        if not self.pid:
            ready = Ready.read(message)
            self.pid = ready.pid or -1
            self.owner.starter.loaded = True
            if ready.error is not None:
                self._fail(ConfigError(f"workers cannot load make_environment: {ready.error[:MAX_CAUSE]}"))
            return
        answer = WorkerAnswer.read(message)
        if not self.asked or answer.number != self._answered + 1:
            raise ProtocolError(f"an answer to request {answer.number}, which is not pending")
        if len(self.asked) == 1 and len(self._received):
            raise ProtocolError(f"more than the answer to request {answer.number}")
        life = self.asked[0]
        content = self._content(answer, copies=life.origin is not None)
        self.asked.popleft()
        self._anew.popleft()
        self._answered += 1
        if isinstance(content, str):
            life.fail(EnvironmentFault(content))
        else:
            self.owner.load.add(answer)
            life.succeed(answer.seconds, content)

    def _content(self, answer: WorkerAnswer, *, copies: bool) -> Step | bool | str:
        """Return an answer's content: a step, whether it was copied, or the cause of a fault."""
        given = [each for each in (answer.step, answer.copied, answer.fault) if each is not None]
        if len(given) != 1 or (given[0] is answer.step and copies) or (given[0] is answer.copied and not copies):
            raise ProtocolError(f"an answer to request {answer.number} without what was asked for")
        if answer.step is not None:
            return answer.step.step(self.owner.limits.max_observation_chars)
        return answer.fault[:MAX_CAUSE] if answer.fault is not None else bool(answer.copied)

    def _watch(self) -> None:
        """Start the timer of the first request, once the process is ready."""
        if self._alarm:
            self._alarm.cancel()
        if self.pid and self._loop and self.asked:
            patience = self.owner.patience(self.asked[0], anew=self._anew[0])
            self._alarm = self._loop.call_later(patience, self._overdue, patience)

    def _overdue(self, waited: float, had: int = 0, left: int = 10) -> None:
        """Fail the first request, unless its answer, or more of it than `had` bytes, has arrived."""
        late = self.asked[0]
        while self._loop and self._read():  # this event loop may have been blocked meanwhile
            pass
        if self._loop and self.asked and self.asked[0] is late:
            if (has := len(self._received)) > had and left:
                self._alarm = self._loop.call_later(GRACE_S, self._overdue, waited, has, left - 1)
            else:
                self._blame(self.owner.late(late, 0.0 if self._anew[0] else waited))

    def _detach(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        if self._loop:
            self._loop.remove_reader(self.pipe)
            self._loop.remove_writer(self.pipe)
        self._alarm, self._loop, self._writing = None, None, False
