"""Play environments of an OpenEnv server: `environment.name = "openenv"`.

options = { url = "http://localhost:8000", action = "message", observation = "echoed_message", sessions = 64 }

This client uses only the protocol (JSON over one WebSocket per episode). The package's own client silently opens a new
session when a connection is lost, and the episode would continue in another game.
"""

import asyncio
import contextlib
import functools
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.base.loopback import is_loopback
from turnwise.base.opener import make_opener
from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.isolation import TOKEN_VARIABLE
from turnwise.environments.needs import check_counts, needed
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds
from turnwise.environments.wire import ProtocolError, key_from_json
from turnwise.worlds.adapters.background import Background
from turnwise.worlds.adapters.openenv_texts import Act, Show, choose_action, choose_observation

EXTRA = "openenv"
"""Extra of turnwise that has what is needed here."""

MAX_MESSAGE_BYTES = 2**27

_BACKGROUND = Background()


class OpenEnvEnvironment:
    """One trajectory on a server, in its own session.

    A response that is not an action of the server changes nothing, counts as a step and is marked invalid. The step
    takes over the fields `valid`, `truncated`, `state_key`, `admissible` and `info` of an observation, which `turnwise
    serve-env` provides.

    Args:
        url: Address of the server.
        reset: Arguments of `reset`, such as {"seed": 3}.
        act: Converts a response to the fields of an action, or None.
        show: Converts an observation to text.
        slots: Semaphore held while the trajectory is played.
        max_steps: The trajectory is truncated after this many steps.
        threshold: A success has a last reward above it, unless the environment reports success itself.
        timeout_s: Time limit to connect, and for each answer (seconds).
    """

    def __init__(
        self,
        url: str,
        reset: Mapping[str, Any],
        *,
        act: Act,
        show: Show,
        slots: asyncio.Semaphore,
        max_steps: int = 50,
        threshold: float = 0.0,
        timeout_s: float = 60.0,
    ):
        self.url, self.reset, self.act, self.show = url, reset, act, show
        self.max_steps, self.threshold, self.timeout_s = max_steps, threshold, timeout_s
        self._slots, self._steps = slots, 0
        self._last: Step | None = None  # None: not playing
        self._session = _Session(url, timeout_s)

    async def start(self) -> Step:
        """Open a session and reset the environment.

        Raises:
            EnvironmentFault: The server cannot be reached, is full, or refuses.
        """
        self._last = await _BACKGROUND.run(self._begin())
        return self._last

    async def step(self, response: str) -> Step:
        """Play a response.

        Raises:
            EnvironmentFault: The trajectory has not begun, or is over; the session is lost, or the server's environment
                raised.
        """
        if self._last is None:
            raise EnvironmentFault(f"{self.url}: step() {'after the end' if self._steps else 'before start()'}.")
        last, self._last = self._last, None
        step = await _BACKGROUND.run(self._play(response, last))
        self._last = None if step.ended else step
        return step

    async def _begin(self) -> Step:
        await self._session.open(self._slots)
        return self._read(await self._session.ask("reset", dict(self.reset)) or {})

    async def _play(self, response: str, last: Step) -> Step:
        self._steps += 1
        action = self.act(response)
        answer = None if action is None else await self._session.ask("step", action)
        if answer is None:
            truncated = self._steps >= self.max_steps
            step = Step(
                observation=last.observation,
                truncated=truncated,
                valid=False,
                state_key=last.state_key,
                admissible=last.admissible,
                info=last.info,
            )
        else:
            step = self._read(answer)
        if step.ended:
            await self._session.close()
        return step

    def _read(self, answer: Mapping[str, Any]) -> Step:
        said = answer.get("observation") or {}
        reward = float(answer.get("reward") or 0.0)
        done, truncated = bool(answer.get("done")), said.get("truncated") is True
        info = dict(said["info"]) if isinstance(said.get("info"), dict) else {}
        for more in (said, said.get("metadata"), answer.get("metadata")):
            if isinstance(more, dict) and isinstance(more.get("success"), bool):
                info.setdefault("success", more["success"])
        if done:
            info.setdefault("success", not truncated and reward > self.threshold)
        admissible = said.get("admissible")
        return Step(
            observation=self.show(said),
            reward=reward,
            terminated=done and not truncated,
            truncated=truncated or (not done and self._steps >= self.max_steps),
            valid=said.get("valid") is not False,
            state_key=_key(said.get("state_key")),
            admissible=tuple(admissible) if isinstance(admissible, list) else None,
            info=info,
        )

    def __del__(self):
        if self._session.is_open:  # abandoned: its context was full, or its engine broke
            _BACKGROUND.soon(self._session.close())


class _Session:
    """A connection, which is a session on the server; runs in the background thread."""

    def __init__(self, url: str, timeout_s: float):
        self.url, self.timeout_s = url, timeout_s
        self._socket: Any = None
        self._slots: asyncio.Semaphore | None = None

    @property
    def is_open(self) -> bool:
        return self._slots is not None

    async def open(self, slots: asyncio.Semaphore) -> None:
        client = needed("websockets.asyncio.client", extra=EXTRA, by="the environment 'openenv'")
        await slots.acquire()
        self._slots = slots
        limits = {"open_timeout": self.timeout_s, "max_size": MAX_MESSAGE_BYTES, "ping_interval": None}
        local = {"proxy": None} if is_loopback(urlsplit(self.url).hostname or "") else {}
        try:
            address = f"ws{self.url.removeprefix('http')}/ws"
            connecting = client.connect(address, additional_headers=_token(), **limits, **local)
            connecting.process_redirect = lambda error: error  # another host must not get the token
            self._socket = await connecting
        except BaseException as error:  # cancelled, too
            await self._lost(error, "cannot connect")
            raise

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Send a message and return the answer; None if the environment rejects the action."""
        closed = needed("websockets.exceptions", extra=EXTRA, by="the environment 'openenv'").ConnectionClosed
        try:
            async with asyncio.timeout(self.timeout_s):
                with contextlib.suppress(closed):  # a full server sends the reason and closes; it can still be read
                    await self._socket.send(json.dumps({"type": kind, "data": data}))
                message = json.loads(await self._socket.recv())
        except BaseException as error:  # cancelled, too: a late answer would be taken for that of the next message
            await self._lost(error, f"no answer to {kind}")
            raise
        found = message.get("data", {})
        if message.get("type") == "observation":
            return found
        if kind == "step" and found.get("code") == "VALIDATION_ERROR":
            return None
        await self.close()
        raise EnvironmentFault(f"{self.url}: {kind} failed: {found.get('message')} ({found.get('code')})")

    async def close(self) -> None:
        """End the session."""
        slots, self._slots = self._slots, None
        socket, self._socket = self._socket, None
        try:
            if socket is not None:
                await socket.close()
        finally:
            if slots is not None:
                slots.release()

    async def _lost(self, error: BaseException, what: str) -> None:
        """Close the session and raise a fault, if the error is one of the server."""
        await asyncio.shield(self.close())
        if isinstance(error, TimeoutError):
            raise EnvironmentFault(f"{self.url}: {what} within {self.timeout_s:g} s") from error
        if isinstance(error, Exception):
            cause = " ".join(str(error).split())
            raise EnvironmentFault(f"{self.url}: {what}: {type(error).__name__}: {cause}") from error


class OpenEnv:
    """Any environment of an OpenEnv server.

    Options:
        url: Address of the server, such as "http://localhost:8000".
        action: The field that a response fills; "json": a response is an object of all fields; "tool_call": it calls a
            tool; or "module:function", which converts a response to a dict, or to None if it is not an action. Default:
            the environment's only field.
        fields: Further fields of every action.
        observation: The field to read; "json": all fields but those that the step takes over; or "module:function",
            called with the dict of all fields. Default: the only text field, otherwise "json".
        tasks: "seed": tasks are seeds of reset; "index": the server's tasks, by split and index. Default: "index" if
            the server counts its tasks.
        num_train, num_valid: Number of seeds; "index" uses all tasks.
        reset: Further arguments of every reset.
        sessions: Concurrent trajectories, at most the server's `max_concurrent_envs`; further ones wait.
        threshold: See `OpenEnvEnvironment`.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        url: str = "",
        action: str = "",
        fields: Mapping[str, Any] | None = None,
        observation: str = "",
        tasks: str = "",
        num_train: int = 1000,
        num_valid: int = 256,
        reset: Mapping[str, Any] | None = None,
        sessions: int = 64,
        threshold: float = 0.0,
    ):
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(
                f"environment.options.url={url!r}: expected a server's address, such as 'http://localhost:8000'"
            )
        if tasks not in ("", "seed", "index"):
            raise ConfigError(f"environment.options.tasks={tasks!r}: expected 'seed' or 'index'")
        check_counts(num_train=num_train, num_valid=num_valid, sessions=sessions)
        if config.level != "in-process":
            raise ConfigError(
                f"environment.workers={config.workers} with environment.isolation={config.level!r}: an OpenEnv "
                "environment runs on its server, not in workers; set environment.workers=0, and "
                "environment.isolation='in-process' or none"
            )
        needed("websockets.asyncio.client", extra=EXTRA, by="the environment 'openenv'")
        self._url, self._reset = url.rstrip("/"), dict(reset or {})
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}
        schema = ask_http(f"{self._url}/schema")  # errors should occur before a run, not during it
        self._by = tasks or ("index" if self._counts_tasks() else "seed")
        self._options: dict[str, Any] = {
            "act": choose_action(action, dict(fields or {}), schema.get("action", {})),
            "show": choose_observation(observation, schema.get("observation", {})),
            "slots": asyncio.Semaphore(sessions),
            "max_steps": config.max_steps,
            "threshold": threshold,
            "timeout_s": config.step_timeout_s,
        }

    @functools.cache  # noqa: B019 (one suite a process)
    def tasks(self, split: str) -> Sequence[Task]:
        """Return the arguments of reset for each task of a split."""
        if self._by == "index":
            return [{"split": split, "index": index} for index in range(self._num_tasks(split))]
        split_seeds(split, of="an OpenEnv environment")  # raises if the split is unknown
        # consecutive seeds: a server that takes them modulo its number of tasks would map distant ones to equal tasks
        names = list(self._counts)
        first = sum(self._counts[before] for before in names[: names.index(split)])
        return [{"seed": seed} for seed in range(first, first + self._counts[split])]

    def _num_tasks(self, split: str) -> int:
        name = ask_http(f"{self._url}/list_environments")[0]
        return int(ask_http(f"{self._url}/{name}/num_tasks", {"split": split})["num_tasks"])

    def _counts_tasks(self) -> bool:
        """Return whether the server numbers its tasks by split, as turnwise's own does."""
        try:
            return self._num_tasks("train") > 0
        except (ConfigError, LookupError, TypeError, ValueError):
            return False

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return OpenEnvEnvironment(self._url, {**self._reset, **task}, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return "-".join(str(value) for value in task.values())


def ask_http(url: str, data: Mapping[str, Any] | None = None, *, timeout_s: float = 10.0) -> Any:
    """Send an HTTP request to a server, outside of any session.

    Raises:
        ConfigError: It does not answer, or not with JSON.
    """
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **_token()})
    try:
        local = is_loopback(urlsplit(url).hostname or "")
        with make_opener(proxy=not local).open(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(error.read(300).decode(errors="replace").split())
        raise ConfigError(f"{url} answers {error.code}: {said}; is an OpenEnv environment served there?") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url} does not answer ({error}); is an OpenEnv environment served there?") from error


def _token() -> dict[str, str]:
    """Return the header with the token of `turnwise serve-env`, if there is one."""
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _key(record: Any) -> Any:
    """Read a state key as `turnwise serve-env` writes it; of another server, as it comes."""
    try:
        return key_from_json(record)
    except ProtocolError:
        return _hashable(record)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key if not isinstance(key, dict) else repr(key)
