"""Guard a server against careless and malicious callers: Host, Origin, token, length and time of requests."""

import asyncio
import json
import os
import secrets
import weakref
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from turnwise.base.loopback import is_foreign, is_loopback, names_loopback
from turnwise.environments.isolation import TOKEN_VARIABLE
from turnwise.environments.needs import needed

MAX_BODY = 1 << 20
"""Maximum size of a request or message (bytes)."""
HEADERS_S = 10.0
"""Time limit for the headers of a request to arrive, and for its body."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def token_for(host: str) -> str | None:
    """Return the token that callers need: none on loopback, otherwise that of the environment, or a new one."""
    return None if is_loopback(host) else os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)


class RequestGuard:
    """Refuse requests with 4xx before they reach an ASGI application.

    Args:
        app: The application.
        loopback: Whether the server listens on loopback; then a Host other than this machine is refused, since another
            site's name could resolve to it.
        token: Token that callers must send as `Authorization: Bearer TOKEN`; None: no token.
    """

    def __init__(self, app: Any, *, loopback: bool, token: str | None):
        self._app, self._loopback, self._token = app, loopback, token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        body, (code, why) = b"", refusal(headers, loopback=self._loopback, token=self._token)
        if scope["type"] == "websocket":
            if code:
                return await send({"type": "websocket.close", "code": 1008, "reason": why})  # answers 403
            return await self._app(scope, receive, send)
        if not code:
            body, code, why = await self._body(receive)
        if code:
            return await _refuse(send, code, why)
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def received() -> Message:
            return next(parts, None) or await receive()

        return await self._app(scope, received, send)

    async def _body(self, receive: Receive) -> tuple[bytes, int, str]:
        body = bytearray()
        try:
            async with asyncio.timeout(HEADERS_S):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY:
                        return b"", 413, f"the body has more than {MAX_BODY} bytes"
                    if not message.get("more_body"):
                        return bytes(body), 0, ""
        except TimeoutError:
            return b"", 408, f"the body took longer than {HEADERS_S:g} s"


def refusal(
    headers: dict[bytes, str], *, loopback: bool, token: str | None, max_body: int = MAX_BODY
) -> tuple[int, str]:
    """Return the status and the reason with which to refuse a request; (0, "") to serve it.

    Args:
        headers: Headers by their names in lower case.
        loopback: Whether the server listens on loopback only.
        token: Token that callers must send; None: no token.
        max_body: Maximum body size (bytes).
    """
    if loopback and not names_loopback(headers.get(b"host", "")):
        return 403, "this server is only for this machine"
    named = (headers.get(name, "") for name in (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode"))
    if is_foreign(*named):
        return 403, "this server does not answer pages of other sites"
    scheme, _, given = headers.get(b"authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else scheme
    if token and not secrets.compare_digest(given.encode(), token.encode()):
        return 401, f"send the header Authorization: Bearer TOKEN, with the token of {TOKEN_VARIABLE}"
    length = headers.get(b"content-length", "0")
    if not length.isdecimal() or int(length) > max_body:
        return 413, f"the body has {length[:20]} bytes, expected at most {max_body}"
    return 0, ""


async def _refuse(send: Send, code: int, why: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": why}).encode()})


def patient_protocol(extra: str, most: int) -> Any:
    """Return uvicorn's HTTP protocol with limits on header time and connections, which uvicorn lacks.

    Args:
        extra: Extra of turnwise that has uvicorn.
        most: Connections at a time. One more replaces the oldest caller that has asked nothing yet, or is closed if
            there is none.
    """
    h11 = needed("uvicorn.protocols.http.h11_impl", extra=extra, by="serve-env")

    silent: Any = weakref.WeakKeyDictionary()  # ordered; a connection that becomes a WebSocket has no end here

    class Patient(h11.H11Protocol):
        """Close a connection whose headers do not arrive in time, or if there are too many."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            silent[self] = None
            if len(self.connections) > most:
                asked = [each for each in silent if each.scope is not None or each.transport.is_closing()]
                for each in asked:
                    del silent[each]
                next(iter(silent.keys())).transport.close()
            self._alarm = self.loop.call_later(HEADERS_S, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._alarm.cancel()
            super().connection_lost(exc)

        def _late(self) -> None:
            if self.scope is None and not self.transport.is_closing():
                self.transport.close()

    return Patient
