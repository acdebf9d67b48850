"""Route requests to sessions."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

from turnwise.base.errors import EngineLost, EnvironmentFault, did_you_mean
from turnwise.environments.tool_calls import read_json
from turnwise.extensions.gateway.dialects import DIALECTS, error_body_at
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.http import HttpRequest, HttpResponse, HttpServer
from turnwise.extensions.gateway.outcome import as_outcome
from turnwise.extensions.gateway.session import CHARACTERS_PER_TOKEN, Session
from turnwise.models.format import Format
from turnwise.models.spelling import spell

SESSION_HEADER = b"x-turnwise-session"
STATE_HEADER = b"x-turnwise-state-key"
ACTOR_HEADER = b"x-turnwise-actor"
TASK_HEADER = b"x-turnwise-task"
HARNESS_HEADER = b"x-turnwise-harness"
ROUTES = (*DIALECTS, "models", "reward")
MAX_NAME = 200
BYTES_PER_CHARACTER, MORE_BYTES = 6, 1 << 20
"""Bytes that a request may have per character of a longest prompt, as escapes in JSON have, and besides these."""
REMEMBERED = 1 << 16
"""Names of ended sessions that are remembered, so that a late call does not open another session."""


class Gateway:
    """Serve sessions over HTTP.

    A session's addresses begin with `/s/NAME/v1/`. Callers that can only set headers use `/v1/` and the header
    `X-Turnwise-Session: NAME`. A session belongs to its first caller: one address, one key, and one value of the header
    `X-Turnwise-Harness`.

    Args:
        fmt: Conversation format of the model.
        model: Name of the model in answers.
        token: Token that callers must send; None: none is needed.
        takes_rewards: Whether callers may end a session with its reward.
        opens: Opens a session that a caller names first, for its task; None: such a name is refused.
    """

    def __init__(
        self,
        fmt: Format,
        *,
        model: str = "policy",
        token: str | None = None,
        takes_rewards: bool = True,
        opens: Callable[[str, str], Session] | None = None,
    ):
        self.model, self._fmt, self._opens, self._takes_rewards = model, fmt, opens, takes_rewards
        self.sessions: dict[str, Session] = {}
        self._ended: dict[str, None] = {}  # in the order in which they ended
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._created = int(time.time())
        self._http = HttpServer(self._answer, _refuse, token=token)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the server's address; port 0 takes a free one."""
        return await self._http.start(host, port)

    async def aclose(self) -> None:
        """Stop serving. Sessions and engine stay as they are."""
        await self._http.aclose()
        self.lost.cancel()

    def open(self, session: Session) -> Session:
        """Serve a session."""
        self.sessions[session.name] = session
        return session

    def forget(self, session: Session) -> None:
        """Release an ended session; its name stays refused for a long time."""
        del self.sessions[session.name]
        self._ended[session.name] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        session = None
        try:
            name, route = _route(request)
            if route == "models":
                _method(request, "GET", "HEAD")
                return HttpResponse(self._models())
            _method(request, "POST")
            session = self._session(name, route, request)
            names = (b"authorization", HARNESS_HEADER)
            owner = (request.client, *(request.headers.get(name, "") for name in names))
            session.claim(owner)
            if route == "reward":
                return self._reward(session, request.body)
            return await self._respond(session, route, request)
        except BadRequest as error:
            if session is not None:
                session.refused = f"; its last call was refused: {error.message}"
            return HttpResponse(
                error_body_at(request.path, error.status, error.message, error.param, error.code), error.status
            )
        except EngineLost as error:
            if not self.lost.done():
                self.lost.set_exception(error)
            return _refuse(request.path, 503, "the engine is lost")

    def _session(self, name: str, route: str, request: HttpRequest) -> Session:
        session = self.sessions.get(name)
        if session is None and name in self._ended:
            raise BadRequest("this session has ended; open another", status=409, code="session_ended")
        opens = route != "reward"  # the reward of a misspelt name would be lost in a new session
        if session is None and name and opens and self._opens is not None:
            session = self.open(self._opens(name, request.headers.get(TASK_HEADER, "")))
        if session is None:
            what = f"there is no session {name!r}" if name else "the request names no session"
            how = "use the base URL that the harness got, or the header X-Turnwise-Session"
            if name and self._opens is not None:
                how = "a call to the model opens it, and its reward follows"
            raise BadRequest(
                f"{what}; {how}",
                status=404,
                code="session_not_found",
            )
        return session

    async def _respond(self, session: Session, route: str, request: HttpRequest) -> HttpResponse:
        dialect = DIALECTS[route]
        names = request.headers
        _check_size(session, request.body)
        call = dialect.read(request.body, session.remembered)
        call = dataclasses.replace(call, state_key=names.get(STATE_HEADER))
        session.refused = ""
        replies, num_prompt = await session.respond(call, actor=names.get(ACTOR_HEADER, ""))
        spelled = functools.partial(spell, self._fmt.tokenizer)
        content = dialect.write(call, replies, num_prompt, model=self.model, spell=spelled)
        if dialect.remembers:
            said = replies[0].message
            if ids := [each["id"] for each in replies[0].calls]:  # results may come in another order
                named = zip(said["tool_calls"], ids, strict=True)
                said = {**said, "tool_calls": [{**each, "id": name} for each, name in named]}
            session.remembered[content["id"]] = [*call.messages[call.num_instructions :], said]
        return HttpResponse(events=dialect.events(call, content)) if call.stream else HttpResponse(content)

    def _reward(self, session: Session, body: bytes) -> HttpResponse:
        if not self._takes_rewards:
            raise BadRequest(
                'this harness returns its reward; one that posts it needs harness.reward = "posted"',
                status=403,
                code="reward_is_returned",
            )
        try:
            session.finish(as_outcome(read_json(body)))
        except ValueError as error:
            raise BadRequest(f'the body is not valid JSON: {error}; expected {{"reward": 1.0}}') from None
        except EnvironmentFault as fault:
            raise BadRequest(str(fault), param="reward") from None
        return HttpResponse({"object": "reward"})

    def _models(self) -> dict[str, Any]:
        model = {"id": self.model, "object": "model", "created": self._created, "owned_by": "turnwise"}
        return {"object": "list", "data": [model]}


def _route(request: HttpRequest) -> tuple[str, str]:
    """Return the name of the session, perhaps empty, and what is asked."""
    path = request.path
    if "://" in path:  # the whole address, as a request to a proxy has it
        path = path.partition("://")[2].partition("/")[2]
    parts = path.strip("/").split("/")
    name = request.headers.get(SESSION_HEADER, "")
    if parts[0] == "s" and len(parts) > 1:
        name, parts = parts[1], parts[2:]
    route = "/".join(parts[1:] if parts[:1] == ["v1"] else parts)
    if route not in ROUTES:
        raise BadRequest(f"there is nothing at {request.path[:MAX_NAME]!r}.{did_you_mean(route, ROUTES)}", status=404)
    if len(name) > MAX_NAME:
        raise BadRequest(f"the session's name has {len(name)} characters, expected at most {MAX_NAME}")
    return name, route


def _check_size(session: Session, body: bytes) -> None:
    """Refuse a request that is far too long before it is read, which takes seconds while all others wait."""
    longest = session.serving.max_context
    most = BYTES_PER_CHARACTER * CHARACTERS_PER_TOKEN * longest + MORE_BYTES
    session.full = len(body) > most
    if session.full:
        raise BadRequest(
            f"the request has {len(body)} bytes; the model reads {longest} tokens, so at most {most} are read",
            param="messages",
            code="context_length_exceeded",
        )


def _method(request: HttpRequest, *expected: str) -> None:
    if request.method not in expected:
        raise BadRequest(f"{request.method} {request.path}: expected {' or '.join(expected)}", status=405)


def _refuse(path: str, status: int, why: str) -> HttpResponse:
    return HttpResponse(error_body_at(path, status, why), status)
