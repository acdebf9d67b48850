"""Serve HTTP/1.1 from the event loop of the engine, with limits on what callers may send."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import h11

from turnwise.base.errors import ConfigError
from turnwise.base.loopback import is_loopback
from turnwise.environments.serve_guard import HEADERS_S, refusal

MAX_BODY = 1 << 24
"""Maximum request size (bytes); a harness sends the whole conversation with every call."""
MAX_EARLY = 1 << 20
"""Limit of what a caller may send before its request is answered (bytes)."""
MAX_CONNECTIONS = 1024
"""Limit of concurrent connections; others wait to be accepted."""
IDLE_S = 600.0
"""How long an idle connection is kept, and how long a caller may take to read its answer (seconds)."""
ROOM_S = 0.1
"""Time between checks for an idle connection that can make room for a waiting caller (seconds)."""
LINGER_S = 2.0
"""How long a refused caller may go on sending before its connection is closed (seconds)."""
_CHUNK = 1 << 16

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request."""

    method: str  # method, such as "POST"
    path: str  # path without its query
    headers: dict[bytes, str]  # headers by their names in lower case
    body: bytes
    client: str  # address of the caller


@dataclasses.dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer: JSON, or server-sent events."""

    content: Any = None  # JSON value; bytes are sent as they are, as protocol buffers
    status: int = 200  # HTTP status
    # Server-sent events to send instead of `content`, each without the empty line that ends it
    events: list[str] | None = None


Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port.

    Raises:
        ConfigError: The port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ConfigError(f"cannot listen on {host}:{port}: {why}; choose another port with --port") from None


async def _caller(listener: socket.socket) -> socket.socket:
    """Accept the next caller. Unlike with `loop.sock_accept`, a task that is cancelled loses none that was accepted."""
    while True:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            return connection
        await _readable(listener)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(listener, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(listener)


class HttpServer:
    """Answer requests until closed.

    Args:
        handle: Answers a request. It is cancelled when the caller goes away.
        refuse: Makes the answer to a request that is refused, from path, status and reason.
        token: Token that callers must send; None: none is needed.
    """

    def __init__(self, handle: Handle, refuse: Callable[[str, int, str], HttpResponse], *, token: str | None = None):
        self._handle, self._refuse, self._token = handle, refuse, token
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.StreamWriter, None] = {}  # kept for a further request, longest idle first
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._loopback = True

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the server's address; port 0 takes a free one.

        Raises:
            ConfigError: The port is taken.
        """
        self._loopback = is_loopback(host)
        listener = listen(host, port)
        listener.setblocking(False)
        self._keep(asyncio.ensure_future(self._accept(listener)))
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{listener.getsockname()[1]}"

    async def aclose(self) -> None:
        """Stop listening and end all connections."""
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept callers one at a time, each once there is room; others wait in the system's queue."""
        with listener:
            while True:
                try:
                    connection = await _caller(listener)
                except OSError as error:  # no file descriptor is left, or the caller has gone away already
                    log.warning("turnwise: the gateway cannot accept a connection: %s; it tries again", error)
                    await asyncio.sleep(ROOM_S)
                    continue
                try:
                    while self._room.locked():
                        if self._idle:  # a waiting caller goes before an idle one, which can reconnect
                            self._close(next(iter(self._idle)))
                        await asyncio.sleep(ROOM_S)
                    await self._room.acquire()
                except asyncio.CancelledError:
                    connection.close()
                    raise
                task = asyncio.ensure_future(self._connected(connection))
                task.add_done_callback(functools.partial(self._left, connection))  # also if it never begins
                self._keep(task)

    def _left(self, connection: socket.socket, _: asyncio.Task[None]) -> None:
        self._room.release()
        connection.close()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._idle.pop(writer, None)
        writer.close()

    async def _connected(self, connection: socket.socket) -> None:
        writer = None
        try:
            # asyncio does so only for sockets that name their protocol; an answer's last part would wait 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            reader, writer = await asyncio.open_connection(sock=connection, limit=_CHUNK)
            await self._serve(reader, writer)
        except (OSError, h11.RemoteProtocolError, TimeoutError, asyncio.CancelledError):
            pass  # the caller went away, or the server closes
        finally:
            if writer is not None:
                self._close(writer)
                try:
                    with contextlib.suppress(OSError, TimeoutError):
                        async with asyncio.timeout(HEADERS_S):
                            await writer.wait_closed()
                finally:
                    writer.transport.abort()  # does nothing, unless the caller takes no answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        client = str((writer.get_extra_info("peername") or ("",))[0])
        refused, method = False, ""
        while not refused:
            try:
                method, request = await self._read(connection, reader, writer, client)
            except h11.RemoteProtocolError as error:
                request = self._refuse("", error.error_status_hint, f"not a request of HTTP/1.1: {error}")
            if request is None:
                return
            refused = isinstance(request, HttpResponse)
            answer = request if isinstance(request, HttpResponse) else await self._answer(request, connection, reader)
            if answer is None:
                return
            parts = _parts(answer, close=refused, bodiless=method == "HEAD")
            writer.write(b"".join(connection.send(part) or b"" for part in parts))
            async with asyncio.timeout(IDLE_S):
                await writer.drain()
            if refused:
                await _drop(reader, writer)
            if refused or connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()
            self._idle[writer] = None

    async def _read(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> tuple[str, HttpRequest | HttpResponse | None]:
        """Read a request, and return it after its method; an answer refuses it, None ends the connection."""
        method, path, headers, body, begun = "", "", dict[bytes, str](), bytearray(), False
        async with asyncio.timeout(IDLE_S if writer in self._idle else HEADERS_S) as deadline:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(_CHUNK)
                    if data and not begun:  # once per request: bytes that trickle in must not prolong it
                        begun = True
                        self._idle.pop(writer, None)
                        deadline.reschedule(asyncio.get_running_loop().time() + HEADERS_S)
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    method, path = event.method.decode(), event.target.decode("latin-1").partition("?")[0]
                    headers = {name: value.decode("latin-1") for name, value in event.headers}
                    if key := headers.get(b"x-api-key"):  # as Anthropic's clients send it
                        headers.setdefault(b"authorization", f"Bearer {key}")
                    code, why = refusal(headers, loopback=self._loopback, token=self._token, max_body=MAX_BODY)
                    if code:
                        return method, self._refuse(path, code, why)
                    if connection.they_are_waiting_for_100_continue:  # it sends the body once this is answered
                        writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY:
                        return method, self._refuse(path, 413, f"the body has more than {MAX_BODY} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    self._idle.pop(writer, None)
                    return method, HttpRequest(method, path, headers, bytes(body), client)
                else:  # the connection is closed
                    return method, None

    async def _answer(
        self, request: HttpRequest, connection: h11.Connection, reader: asyncio.StreamReader
    ) -> HttpResponse | None:
        """Answer a request; None if the caller went away meanwhile."""
        work = asyncio.ensure_future(self._handle(request))
        gone = asyncio.ensure_future(_gone(connection, reader))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else None
        except (asyncio.CancelledError, OSError):
            raise
        except Exception:
            log.exception("turnwise: the gateway failed to answer %s %s", request.method, request.path)
            return self._refuse(request.path, 500, "the gateway failed; its log has the cause")
        finally:
            for each in (work, gone):
                each.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _gone(connection: h11.Connection, reader: asyncio.StreamReader) -> None:
    """Return once a caller has gone away, or sends more than it may while its request is answered."""
    early = 0
    while early <= MAX_EARLY and (data := await reader.read(_CHUNK)):  # the next request may come early
        connection.receive_data(data)
        early += len(data)


async def _drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read for a while what a refused caller still sends; closing the connection first could lose the answer."""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while await reader.read(_CHUNK):
                pass


def _parts(answer: HttpResponse, *, close: bool, bodiless: bool) -> Iterator[h11.Event]:
    """Yield the events of an answer, without its body if it answers HEAD."""
    closing = [("connection", "close")] if close else []
    if answer.events is None:
        binary = isinstance(answer.content, bytes)
        body = answer.content if binary else json.dumps(answer.content).encode()
        kind = "application/x-protobuf" if binary else "application/json"
        headers = [("content-type", kind), ("content-length", str(len(body))), *closing]
        yield h11.Response(status_code=answer.status, headers=headers)
        events = [] if bodiless else [h11.Data(data=body)]
    else:
        headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache"), *closing]
        yield h11.Response(status_code=answer.status, headers=[*headers, ("transfer-encoding", "chunked")])
        events = [] if bodiless else [h11.Data(data=f"{event}\n\n".encode()) for event in answer.events]
    yield from events
    yield h11.EndOfMessage()
