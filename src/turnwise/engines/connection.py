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
from typing import Any, ClassVar, Protocol, TypeVar

import aiohttp
import pydantic

from turnwise.base.errors import EngineLost
from turnwise.base.opener import make_opener

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0
"""Seconds between a failed request and the next try; the wait doubles each time."""
FIRST_ANSWER_S = 5.0
"""Time limit for the answer to a check (seconds)."""
IDLE_S = 4.0
"""Seconds until an idle connection is closed; uvicorn, which vLLM runs on, closes it after five."""

log = logging.getLogger(__name__)


class ConnectionLimits(Protocol):
    """Settings of a connection; `ServerEngineConfig` describes them."""

    url: str
    max_concurrent: int
    timeout_s: float
    patience_s: float


class Unanswered(Exception):
    """The server gave no usable answer; a later request may succeed."""


class Answer(pydantic.BaseModel, strict=True, protected_namespaces=()):
    """What is read of an answer; other fields are ignored. Another version may answer otherwise: it is checked."""


A = TypeVar("A", bound=Answer)


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

    Attributes:
        expected: Who answers as we expect, for errors.
    """

    expected: ClassVar[str]

    def __init__(self, settings: ConnectionLimits):
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

    async def get(self, path: str, kind: type[A]) -> A:
        """Get what is at a path; see `post`."""
        return self._read(kind, await self._ask("GET", path))

    async def post(self, path: str, kind: type[A], json: Any = None) -> A:
        """Send one request, without retries, and return the answer.

        Raises:
            EngineLost: The answer has another form.
            Unanswered: There is none, as in all requests; a later one may succeed. Or see `_fault`.
        """
        return self._read(kind, await self._ask("POST", path, json=json))

    async def tell(self, path: str, *, method: str = "POST", **content: Any) -> None:
        """Send one request whose answer says nothing; see `post`."""
        await self._text(method, path, **content)

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
                        f"the server at {url} gave no usable answer for {patience_s:g} s ({error}); start it again"
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

    def _fault(self, status: int, failure: str) -> Exception:
        """Return what to raise for a status that is no success; `failure` says in a line what was answered."""
        raise NotImplementedError

    def _headers(self) -> Mapping[str, str]:
        """Return what every request has in its head."""
        return {}

    def _read(self, kind: type[A], answer: Any) -> A:
        """Check the form of an answer."""
        try:
            return kind.model_validate(answer)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"])) or "the answer"
            raise EngineLost(
                f"the server at {self.settings.url} does not answer as {self.expected} ({place}: {wrong['msg']}); "
                "start another one"
            ) from None

    async def _ask(self, method: str, path: str, **content: Any) -> Any:
        """Send one request, and return the JSON of the answer."""
        return read_json(await self._text(method, path, **content), path)

    async def _text(self, method: str, path: str, **content: Any) -> str:
        status, text = await self._send(method, path, **content)
        if status >= 300:
            raise self._fault(status, f"HTTP {status} at {path}: {' '.join(text.split())[:300]}")
        return text

    async def _send(
        self, method: str, path: str, *, json: Any = None, params: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Send one request; return the status and the text of the answer.

        Raises:
            Unanswered: There is no answer.
        """
        body = None if json is None else json_format.dumps(json, separators=(",", ":"), allow_nan=False).encode()
        typed = {} if body is None else {"Content-Type": "application/json"}
        url = self.settings.url.rstrip("/") + "/" + path.lstrip("/")
        sending = {"data": body, "headers": {**typed, **self._headers()}, "params": params, "allow_redirects": False}
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
    opener = make_opener(proxy=False)  # none between trainer and engine
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=FIRST_ANSWER_S) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise Unanswered(_name(cause if isinstance(cause, Exception) else error)) from error


def read_json(text: str, path: str) -> Any:
    """Read the JSON of an answer.

    Raises:
        Unanswered: It is none.
    """
    try:
        return json_format.loads(text)
    except ValueError:
        raise Unanswered(f"no JSON at {path}") from None


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
