"""Serve HTTP/1.1 from the event loop of the engine, with limits on what callers may send."""

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import h11

from turnwise.environments.serve_guard import HEADERS_S, refusal
from turnwise.errors import ConfigError
from turnwise.loopback import is_loopback

MAX_BODY = 1 << 24
"""Longest request (bytes); a harness sends the whole conversation with every call."""
MAX_CONNECTIONS = 1024
IDLE_S = 600.0
"""Time for which an idle connection is kept (seconds)."""
_CHUNK = 1 << 16

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        method: Method, such as "POST".
        path: Path without its query.
        headers: Headers by their names in lower case.
        body: Body.
        client: Address of the caller.
    """

    method: str
    path: str
    headers: dict[bytes, str]
    body: bytes
    client: str


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One answer: JSON, or server-sent events.

    Attributes:
        content: JSON value.
        status: HTTP status.
        events: Server-sent events to send instead of `content`, each without the empty line that ends it.
    """

    content: Any = None
    status: int = 200
    events: list[str] | None = None


Handle = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Answer requests until closed.

    Args:
        handle: Answers a request. It is cancelled when the caller goes away.
        refuse: Makes the answer to a request that is refused, from path, status and reason.
        token: Token that callers must send; None: none is needed.
    """

    def __init__(self, handle: Handle, refuse: Callable[[str, int, str], Answer], *, token: str | None = None):
        self._handle, self._refuse, self._token = handle, refuse, token
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loopback = True

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the server's address; port 0 takes a free one.

        Raises:
            ConfigError: The port is taken.
        """
        self._loopback = is_loopback(host)
        try:
            self._server = await asyncio.start_server(self._connected, host, port, backlog=MAX_CONNECTIONS)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another port with --port") from None
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self._server.sockets[0].getsockname()[1]}"

    async def aclose(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, h11.RemoteProtocolError, TimeoutError, asyncio.CancelledError):
            pass  # the caller went away, or the server closes
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        client = str((writer.get_extra_info("peername") or ("",))[0])
        wait_s, refused = HEADERS_S, False
        while not refused:
            try:
                request = await self._read(connection, reader, client, wait_s)
            except h11.RemoteProtocolError as error:
                request = self._refuse("", error.error_status_hint, f"not a request of HTTP/1.1: {error}")
            if request is None:
                return
            refused = isinstance(request, Answer)
            answer = request if isinstance(request, Answer) else await self._answer(request, connection, reader)
            if answer is None:
                return
            for part in _parts(answer, close=refused):
                writer.write(connection.send(part) or b"")
            await writer.drain()
            if refused or connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()
            wait_s = IDLE_S

    async def _read(
        self, connection: h11.Connection, reader: asyncio.StreamReader, client: str, wait_s: float
    ) -> Request | Answer | None:
        """Read a request; an answer refuses it, None ends the connection."""
        method, path, headers, body, begun = "", "", dict[bytes, str](), bytearray(), False
        async with asyncio.timeout(wait_s) as deadline:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(_CHUNK)
                    if data and not begun:  # once per request: bytes that trickle in must not prolong it
                        begun = True
                        deadline.reschedule(asyncio.get_running_loop().time() + HEADERS_S)
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    method, path = event.method.decode(), event.target.decode("latin-1").partition("?")[0]
                    headers = {name: value.decode("latin-1") for name, value in event.headers}
                    if key := headers.get(b"x-api-key"):  # as Anthropic's clients send it
                        headers.setdefault(b"authorization", f"Bearer {key}")
                    code, why = refusal(headers, loopback=self._loopback, token=self._token, max_body=MAX_BODY)
                    if code:
                        return self._refuse(path, code, why)
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY:
                        return self._refuse(path, 413, f"the body has more than {MAX_BODY} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    return Request(method, path, headers, bytes(body), client)
                else:  # the connection is closed
                    return None

    async def _answer(
        self, request: Request, connection: h11.Connection, reader: asyncio.StreamReader
    ) -> Answer | None:
        """Answer a request; None if the caller went away meanwhile."""
        work = asyncio.ensure_future(self._handle(request))
        gone = asyncio.ensure_future(reader.read(_CHUNK))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and gone.result():  # the next request comes early
                connection.receive_data(gone.result())
            elif gone.done() and not work.done():
                return None
            return await work
        except (asyncio.CancelledError, OSError):
            raise
        except Exception:
            log.exception("turnwise: the gateway failed to answer %s %s", request.method, request.path)
            return self._refuse(request.path, 500, "the gateway failed; its log has the cause")
        finally:
            for each in (work, gone):
                each.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


def _parts(answer: Answer, *, close: bool) -> Iterator[h11.Event]:
    """Yield the events of an answer."""
    closing = [("connection", "close")] if close else []
    if answer.events is None:
        body = json.dumps(answer.content).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), *closing]
        yield h11.Response(status_code=answer.status, headers=headers)
        yield h11.Data(data=body)
    else:
        headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache"), *closing]
        yield h11.Response(status_code=answer.status, headers=[*headers, ("transfer-encoding", "chunked")])
        for event in answer.events:
            yield h11.Data(data=f"{event}\n\n".encode())
    yield h11.EndOfMessage()
