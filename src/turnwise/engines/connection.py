"""Send requests to a server that may be unavailable for a while: retries, and errors that name the cause."""

import asyncio
import contextlib
import dataclasses
import http.client
import json as json_format
import logging
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import aiohttp

from turnwise.base.errors import ConfigError, EngineFault, EngineLost, guide
from turnwise.engines.settings import ServerEngineConfig

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0
"""Seconds between a failed request and the next try; the wait doubles each time."""
FIRST_ANSWER_S = 5.0
"""Time limit for the answer to a check (seconds)."""
IDLE_S = 4.0
"""Seconds until an idle connection is closed; uvicorn, which vLLM runs on, closes it after five."""
GUIDE = f"start one as {guide('how-to/vllm.md')} says"
RESUME = "then resume with `turnwise train --resume RUN_FOLDER`"

log = logging.getLogger(__name__)


class Unanswered(Exception):
    """The server gave no usable answer; a later request may succeed."""


class Refused(Unanswered):
    """The server reports an internal error."""


@dataclasses.dataclass(eq=False, slots=True)
class _Session:
    """Client and locks of one event loop."""

    loop: asyncio.AbstractEventLoop
    client: aiohttp.ClientSession
    gate: asyncio.Semaphore
    alone: asyncio.Lock
    end: AsyncGenerator[None, None]  # closes the client, at the latest when the loop shuts down


class Connection:
    """Send requests to one server, from any event loop.

    Args:
        settings: Address, timeouts and limits of the server.
    """

    def __init__(self, settings: ServerEngineConfig):
        self.settings = settings
        self._session: _Session | None = None
        self._away = False

    @property
    def gate(self) -> asyncio.Semaphore:
        """Semaphore that admits `max_concurrent` requests at a time."""
        return self._open().gate

    @property
    def alone(self) -> asyncio.Lock:
        """Lock that admits one request at a time."""
        return self._open().alone

    async def get(self, path: str) -> Any:
        """Get the content at a path; see `post`."""
        return await self._ask("GET", path)

    async def post(self, path: str, *, plain: bool = False, **content: Any) -> Any:
        """Send one request, without retries, and return the JSON of the answer; with `plain` it may be a text.

        Raises:
            Unanswered: No usable answer; a later request may succeed.
            EngineFault: The server rejects the request as wrong.
            ConfigError: The server does not offer this kind of request.
        """
        return await self._ask("POST", path, plain=plain, **content)

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry until the request succeeds.

        Raises:
            EngineLost: It did not succeed within `patience_s`.
        """
        url, patience_s = self.settings.url, self.settings.patience_s
        since, wait_s = None, FIRST_WAIT_S
        while True:
            try:
                result = await work()
            except Unanswered as error:
                since = time.monotonic() if since is None else since
                left_s = since + patience_s - time.monotonic()
                if left_s <= 0:
                    raise EngineLost(
                        f"the server at {url} gave no usable answer for {patience_s:g} s ({error}): "
                        f"start it again, {RESUME}"
                    ) from error
                if not self._away:  # one warning, not one per waiting request
                    log.warning("turnwise: retrying the server at %s for %g s (%s)", url, patience_s, error)
                self._away = True
                await asyncio.sleep(min(wait_s, left_s))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                self._away = False
                return result

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        session, self._session = self._session, None
        if session and session.loop is asyncio.get_running_loop():
            await session.end.aclose()

    def _open(self) -> _Session:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.loop is not loop:
            settings = self.settings
            client = aiohttp.ClientSession(  # uses no proxy unless told to
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
                timeout=aiohttp.ClientTimeout(None, sock_connect=settings.timeout_s, sock_read=settings.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            gate, end = asyncio.Semaphore(settings.max_concurrent), _closing(client)
            with contextlib.suppress(StopIteration):  # it has begun without waiting, so that its loop knows of it
                end.__anext__().send(None)
            self._session = _Session(loop, client, gate, asyncio.Lock(), end)
        return self._session

    async def _ask(self, method: str, path: str, *, plain: bool = False, **content: Any) -> Any:
        status, text = await self._send(method, path, **content)
        return text if plain and status < 300 else _read(status, text, path, self.settings.url)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Send one request; return the status and the text of the answer.

        Raises:
            Unanswered: There is no answer.
        """
        body = None if json is None else json_format.dumps(json, separators=(",", ":"), allow_nan=False).encode()
        typed = {} if body is None else {"Content-Type": "application/json"}
        url = self.settings.url.rstrip("/") + "/" + path.lstrip("/")
        sending = {"data": body, "headers": {**typed, **(headers or {})}, "params": params, "allow_redirects": False}
        try:
            async with self._open().client.request(method, url, **sending) as answer:
                return answer.status, await answer.text(errors="replace")
        except (aiohttp.ClientError, OSError) as error:  # also TimeoutError
            raise Unanswered(f"{_name(error)} at {path}") from error


async def _closing(client: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close a client in the end. Event loops end the generators that began in them, whoever forgot to close."""
    try:
        yield
    finally:
        await client.close()


def get_once(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Get what is at an address; return the status and the text.

    Raises:
        Unanswered: Nothing answers there, or it is no address.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy between trainer and engine
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=FIRST_ANSWER_S) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise Unanswered(_name(cause if isinstance(cause, Exception) else error)) from error


def check_server(url: str) -> None:
    """Check once that a server is healthy.

    Raises:
        ConfigError: The server cannot be reached, or reports that it is not healthy.
    """
    try:
        status, _ = get_once(url.rstrip("/") + "/health")
        cause = "" if status == 200 else f"HTTP {status} at /health"
    except Unanswered as error:
        cause = str(error)
    if cause:
        raise ConfigError(f"no server is ready at engine.url={url!r} ({cause}): {GUIDE}, or set engine.url")


def read_json(text: str, path: str) -> Any:
    """Read the JSON of an answer.

    Raises:
        Unanswered: It is none.
    """
    try:
        return json_format.loads(text)
    except ValueError:
        raise Unanswered(f"no JSON at {path}") from None


def failure_of(status: int, text: str, path: str) -> str:
    """Say in a line what a server answered instead."""
    return f"HTTP {status} at {path}: {' '.join(text.split())[:300]}"


def _read(status: int, text: str, path: str, url: str) -> Any:
    """Read the JSON content of an answer."""
    if status < 300:
        return read_json(text, path)
    text = failure_of(status, text, path)
    if status == 500:
        raise Refused(text)
    if status in (408, 425, 429) or status > 500:
        raise Unanswered(text)
    if status in (400, 413, 422):
        raise EngineFault(f"the server rejects the request: {text}")
    raise ConfigError(f"the server at {url} does not offer a required endpoint ({text}): {GUIDE}")


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
