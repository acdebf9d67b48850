"""Serve our environments over OpenEnv's protocol, for other trainers: `turnwise serve-env household`."""

import asyncio
import inspect
import json
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

from turnwise.base.errors import EnvironmentFault, TurnwiseError
from turnwise.base.loopback import is_loopback
from turnwise.base.terminal import say
from turnwise.environments.base import Environment, as_step, checked_step, shown
from turnwise.environments.isolation import TOKEN_VARIABLE
from turnwise.environments.needs import needed
from turnwise.environments.serve_guard import MAX_BODY, RequestGuard, patient_protocol, token_for
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite, refuse_agents_suite
from turnwise.environments.wire import key_as_json

EXTRA = "serve-env"
"""Extra of turnwise with the packages needed here."""

PING_TIMEOUT_S = 600.0
"""Idle time after which a session ends (seconds); a computing trainer may be silent for long."""

SPARE = 64
"""Connections in addition to two per session; beyond that, new ones replace callers that have asked nothing yet."""

LISTED = 1000
"""Maximum number of tasks in a list; all can be requested by index."""


def make_app(config: EnvironmentConfig, *, sessions: int = 256) -> Any:
    """Build the server of an environment, an ASGI application.

    `reset(split=..., index=...)` selects a task by its index in a split. `reset(seed=...)` takes the seed modulo the
    number of tasks; without either, the task is random. The observation's `info` names the task. Each connection has
    its own environment.

    Args:
        config: The environment with its options.
        sessions: Maximum number of concurrent environments.

    Raises:
        ConfigError: The environment cannot be made or should be isolated, or the package is missing.
    """
    server = needed("openenv.core.env_server.http_server", extra=EXTRA, by="serve-env")
    types = needed("openenv.core.env_server.types", extra=EXTRA, by="serve-env")
    interfaces = needed("openenv.core.env_server.interfaces", extra=EXTRA, by="serve-env")
    config.check_in_process("serve-env")
    suite = make_suite(config)
    refuse_agents_suite(suite, config.name)
    suite.tasks(config.train_split)  # loads the tasks, and fails early

    class TextAction(types.Action):
        """The policy's response."""

        text: str

    class TextObservation(types.Observation):
        """The environment's answer; see `turnwise.environments.base.Step`."""

        text: str
        valid: bool = True
        truncated: bool = False
        state_key: Any = None
        admissible: list[str] | None = None
        info: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies it)

    class Served(interfaces.Environment):
        """The environment of one connection."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self._environment: Environment | None = None
            self._task: dict[str, Any] = {}
            self._state = types.State()

        async def reset_async(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            split: str = config.train_split,
            index: int | None = None,
            **further: Any,
        ) -> Any:
            if further:
                raise EnvironmentFault(f"reset() got {', '.join(further)}; expected seed, split, index or episode_id")
            if not isinstance(split, str):
                raise EnvironmentFault(f"reset(split={shown(split)}): expected the name of a split")
            tasks = await asyncio.to_thread(suite.tasks, split)
            index = _place(len(tasks), seed, index, split)
            self._task = {"split": split, "index": index, "task": suite.task_name(tasks[index])}
            self._state = types.State(episode_id=episode_id or secrets.token_hex(8), **self._task)
            self._environment = await asyncio.to_thread(suite.environment, tasks[index])
            return self._observation(as_step(await _answer(self._environment.start)))

        async def step_async(self, action: Any, timeout_s: float | None = None, **further: Any) -> Any:
            if self._environment is None:
                raise EnvironmentFault("step() before reset()")
            self._state.step_count += 1
            return self._observation(checked_step(await _answer(self._environment.step, action.text)))

        def reset(self, **options: Any) -> Any:  # OpenEnv requires it; its server uses the coroutines
            return asyncio.run(self.reset_async(**options))

        def step(self, action: Any, **options: Any) -> Any:
            return asyncio.run(self.step_async(action, **options))

        @property
        def state(self) -> Any:
            return self._state

        def _observation(self, step: Any) -> Any:
            return TextObservation(
                text=step.observation,
                done=step.ended,
                reward=float(step.reward),
                valid=step.valid,
                truncated=step.truncated,
                state_key=key_as_json(step.state_key),
                admissible=None if step.admissible is None else list(step.admissible),
                info=_plain(dict(step.info)),
                metadata=self._task,
            )

        def list_splits(self) -> list[str]:
            return list(dict.fromkeys((config.train_split, config.eval_split)))

        def num_tasks(self, split: str) -> int:
            return len(suite.tasks(split))

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            tasks = suite.tasks(split)
            return {"split": split, "index": index, "task": suite.task_name(tasks[_place(len(tasks), 0, index, split)])}

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            places = range(self.num_tasks(split))[start:stop]
            return [self.get_task(split, index) for index in places[:LISTED]]

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return self.get_task_range(split)

    name = config.name.replace(":", ".")
    app = server.create_fastapi_app(Served, TextAction, TextObservation, max_concurrent_envs=sessions, env_name=name)
    responses = needed("starlette.responses", extra=EXTRA, by="serve-env")
    exceptions = needed("fastapi.exceptions", extra=EXTRA, by="serve-env")

    async def refuse(request: Any, error: Exception) -> Any:
        return responses.JSONResponse({"detail": str(error)}, status_code=400)

    async def malformed(request: Any, error: Any) -> Any:  # without the input, such as NaN, which JSON cannot hold
        problems = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
        return responses.JSONResponse({"detail": problems}, status_code=422)

    app.add_exception_handler(TurnwiseError, refuse)  # such as a split or an index that does not exist
    app.add_exception_handler(exceptions.RequestValidationError, malformed)
    return app


def serve(config: EnvironmentConfig, *, host: str, port: int, sessions: int, on_ready: Callable[[], None]) -> None:
    """Serve an environment until interrupted; other machines need a token. `on_ready` is called once it is loaded."""
    uvicorn = needed("uvicorn", extra=EXTRA, by="serve-env")
    token = token_for(host)
    app = RequestGuard(make_app(config, sessions=sessions), loopback=is_loopback(host), token=token)
    on_ready()
    say(f"{config.name} at http://{host}:{port}; Ctrl-C ends it", file=sys.stderr, flush=True)
    if token and not os.environ.get(TOKEN_VARIABLE):
        say(f"callers need this token, in {TOKEN_VARIABLE}: {token}", file=sys.stderr, flush=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        http=patient_protocol(EXTRA, most=2 * sessions + SPARE),
        ws_ping_timeout=PING_TIMEOUT_S,
        ws_max_size=MAX_BODY,
    )


def _place(count: int, seed: int | None, index: int | None, split: str) -> int:
    if index is not None:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise EnvironmentFault(f"reset(index={shown(index)}): split {split!r} has {count} tasks, counted from 0")
        return index
    return secrets.randbelow(count) if seed is None else seed % count


async def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an environment without blocking the others: in a thread, or await its coroutine."""
    answer = await asyncio.to_thread(function, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; other values become text."""
    return json.loads(json.dumps(value, default=str))
