"""Record the calls of one harness as a trajectory."""

import asyncio
import collections
import dataclasses
import functools
import secrets
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from turnwise.base.errors import EngineFault, text_of
from turnwise.engines.base import Engine, Generation, Sampling
from turnwise.environments.base import checked_key
from turnwise.extensions.gateway.call import Call, Reply, make_reply
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, added_to, history_keys, last_message, length_of, next_key
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.extensions.gateway.record import Record
from turnwise.extensions.gateway.rows import Ledger, SharedRows
from turnwise.extensions.gateway.said import Said
from turnwise.models.format import Format
from turnwise.rollout.starts import Start, ends_of
from turnwise.rollout.trajectory import Trajectory, Turn

CHARACTERS_PER_TOKEN = 16
"""Characters that a token of a longest prompt may have on average; text has four, and code up to ten."""
StateKey = Callable[[Sequence[Message]], Hashable]
"""Names the state in which a response is given, from the messages before it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A response with all ids and messages of its conversation up to its end, and the engine's number of that."""

    turn: Turn
    ids: list[int]
    messages: int
    conversation: int


@dataclasses.dataclass(frozen=True)
class Serving:
    """What all sessions of a gateway share.

    Attributes:
        engine: Generates the responses.
        fmt: Conversation format of the model.
        sampling: Sampling settings where a request does not decide, and the longest response.
        max_context: Maximum conversation length (tokens).
        fixed: Whether temperature, top_p and seed of requests are ignored, as in training.
        schemas: Whether responses may have to follow a JSON schema: the engine can constrain them, and nothing is
            trained, since the update would compute other probabilities than those sampled from.
        state_key: Names the state in which a response is given.
        stride: Added to the engine's number of a session for each further conversation; above every session's number.
        ledger: Counts the rows of the engine that sessions hold; default: those of this object's sessions alone.
    """

    engine: Engine
    fmt: Format
    sampling: Sampling
    max_context: int
    fixed: bool = True
    schemas: bool = False
    state_key: StateKey = last_message
    stride: int = 2**20
    ledger: Ledger | None = None

    @functools.cached_property
    def prompter(self) -> Prompter:
        """Makes the prompts."""
        return Prompter(self.fmt)

    @functools.cached_property
    def rows(self) -> SharedRows:
        """Generates for all sessions, and holds as many of their conversations as the engine has rows."""
        return SharedRows(self.engine, self.ledger)


class Session:
    """A trajectory in progress.

    Args:
        serving: What all sessions share.
        number: Number of the session, the engine's number of its first conversation.
        name: Name in addresses; default: a new one that cannot be guessed.
        task: Name of the task.
        trajectory: Gets the turns; default: a new one.
        start: Turns that are given: as many requests are answered from them, and checked.
        exact: Whether a request that differs from the recorded ones is refused.
        heard: Called with every request.
    """

    def __init__(
        self,
        serving: Serving,
        number: int,
        *,
        name: str = "",
        task: str = "",
        trajectory: Trajectory | None = None,
        start: Start | None = None,
        exact: bool = True,
        heard: list[Call] | None = None,
    ):
        self.name = name or secrets.token_urlsafe(12)
        self.trajectory = trajectory or Trajectory(0, task)
        given = start is not None and (start.turns or start.observation is not None)
        self._given_turns = len(self.trajectory.turns)
        self._record = Record(start, exact=exact) if start and given else None
        self._heard = heard
        self._ends = ends_of(start.task if start else None)
        self.cut: dict[str, Any] | None = None  # what ended the trajectory before its harness did
        self.outcome: Outcome | None = None
        self.fault = self.refused = ""  # why the last call failed in the engine, or was refused
        self.full = False  # whether the last call was too long
        self.closed = False
        self.used_at = asyncio.get_running_loop().time()
        self.remembered: dict[str, list[Message]] = {}  # conversations up to an answer, by its id
        self.serving, self._prompter = serving, serving.prompter
        self._next_conversation = number
        self._owner: tuple[str, ...] | None = None
        self._known: dict[bytes, _Known] = {}  # by the history up to the response
        self._said = Said()
        self._held: _Known | None = None  # whose conversation the engine still holds
        self._replies: collections.Counter[bytes] = collections.Counter()  # how many, by the history before them
        self._running = 0

    def claim(self, owner: tuple[str, ...]) -> None:
        """Refuse a caller other than the first, and every caller after the end.

        Raises:
            BadRequest: The session has ended, or another harness uses it.
        """
        self._check_open()
        if self._owner not in (None, owner):
            raise BadRequest(
                "another harness uses this session (its address, key or X-Turnwise-Harness differs); give each "
                "harness its own session",
                status=409,
                code="session_in_use",
            )
        self._owner = owner
        self.used_at = asyncio.get_running_loop().time()

    @property
    def over(self) -> bool:
        """Whether the trajectory has ended or has its reward; no turn may follow."""
        return self.closed or self.outcome is not None

    def _check_open(self) -> None:
        if self.over:
            raise BadRequest("this session has ended; open another", status=409, code="session_ended")

    async def respond(self, call: Call, *, actor: str = "") -> tuple[list[Reply], int]:
        """Generate the responses to a request, and record each as a turn.

        Args:
            call: The request.
            actor: Name of the agent that asks, where a harness has several.

        Returns:
            The responses, and the number of prompt tokens.

        Raises:
            BadRequest: The conversation is too long, the chat template refuses it, the engine failed, or the session
                ended before the responses were complete.
            EngineLost: The engine is unavailable.
        """
        shared = self.serving
        if self._heard is not None:
            self._heard.append(call)
        if call.schema is not None and not shared.schemas:
            raise BadRequest(
                "a response that follows a JSON schema needs `turnwise gateway` with engine.name=server; in training "
                "no engine can give one. Ask for text",
                param="response_format",
            )
        most = CHARACTERS_PER_TOKEN * shared.max_context
        length = CHARACTERS_PER_TOKEN * len(call.messages) + length_of(call.messages) + length_of(call.tools)
        self.full = length > most
        if self.full:  # not tokenised: that takes seconds and gigabytes while all other sessions wait
            raise BadRequest(
                f"the conversation has {length} characters, {CHARACTERS_PER_TOKEN} more per message; the model reads "
                f"{shared.max_context} tokens, so at most {most} are tried",
                param="messages",
                code="context_length_exceeded",
            )
        keys = history_keys(call.messages, call.tools)
        key = self._state_key(call) if call.state_key is None else call.state_key
        parent, ids = self._prompt(call, keys, actor)
        sampling = dataclasses.replace(self._sampling(call, shared.max_context - len(ids)), actor=actor)
        self.full = len(ids) + sampling.max_new_tokens > shared.max_context
        if self.full:
            raise BadRequest(
                f"the conversation has {len(ids)} tokens; with a response of up to {sampling.max_new_tokens} tokens "
                f"it exceeds the model's {shared.max_context}",
                param="messages",
                code="context_length_exceeded",
            )
        replies, begun = self._given(call, keys, ids), None
        if (first := len(replies)) == call.n:
            return replies, len(ids)
        self.cut = self._ends(self.trajectory.turns, key)
        if self.cut is not None:
            raise BadRequest(
                f"this trajectory ends after {len(self.trajectory.turns)} responses, by the limit of the run",
                code="turn_limit",
            )
        parent = None if first else parent  # only the first response to a prompt continues its conversation
        is_next = self._record is not None and not self._record.goes_on
        if is_next and self._record:
            begun = self._record.go_on(ids, last_message(call.messages))
            is_next = self._record.goes_on
        try:
            generations, conversations = await self._generate(parent, ids, sampling, call.n - first, begun)
            self._check_open()  # a reward that came meanwhile belongs to the response before
        except BaseException:  # also a caller that went away
            if is_next and self._record:
                self._record.goes_on = False  # the agent may ask again
            raise
        for index, generation in enumerate(generations):
            reply = self._reply(generation, call, keys)
            turns = self.trajectory.turns
            last = turns[-1] if turns and not index else None
            # a role may have its own weights
            continues = bool(parent and last and last is parent.turn and last.extras.get("actor", "") == actor)
            turn = Turn(
                observation=last_message(call.messages),
                state_key=key,
                prompt_ids=ids[len(parent.ids) :] if parent is not None and continues else ids,
                response_ids=generation.token_ids,
                behavior_logprobs=generation.logprobs,
                response=shared.fmt.text(generation.token_ids),
                truncated=generation.truncated,
                valid=reply.valid,
                fresh=not continues,
                behavior_entropies=generation.entropies,
                version=generation.version,
            )
            extras = {"actor": actor or None, "spreads": generation.spreads, "state": generation.state}
            before = parent.messages if parent is not None and continues else 0
            extras["request"] = added_to(call.messages, call.tools, before)
            if begun and self._record and not index:
                extras |= {"origin": self._record.origin, "begun": len(begun.token_ids)}
            turn.put(**{name: each for name, each in extras.items() if each is not None})
            turns.append(turn)
            known = _Known(turn, [*ids, *generation.token_ids], len(keys) + 1, conversations[index])
            # of equal responses to one prompt, the first is the one that a history means
            self._known.setdefault(next_key(keys[-1], reply.message), known)
            self._said.add(actor, call.messages[-1], reply.message, generation.token_ids)
            replies.append(reply)
            if not index and not self._running:
                self._held = known
        return replies, len(ids)

    def _given(self, call: Call, keys: Sequence[bytes], ids: list[int]) -> list[Reply]:
        """Answer a request from the record, if it still covers it."""
        replies, record = list[Reply](), self._record
        while record and len(replies) < call.n and (turn := record.next(ids)):
            reply = self._reply(record.generation(turn), call, keys)
            known = _Known(turn, [*ids, *turn.response_ids], len(keys) + 1, -1)  # the engine has no conversation
            self._known.setdefault(next_key(keys[-1], reply.message), known)
            self._said.add(turn.extras.get("actor", ""), call.messages[-1], reply.message, turn.response_ids)
            replies.append(reply)
        return replies

    def _reply(self, generation: Generation, call: Call, keys: Sequence[bytes]) -> Reply:
        fmt, earlier = self.serving.fmt, self._replies[keys[-1]]
        self._replies[keys[-1]] += 1
        name = keys[-1] + str(earlier).encode()
        return make_reply(generation, fmt.decoded(generation.token_ids), call, opened=fmt.opens_reasoning, name=name)

    def _state_key(self, call: Call) -> Hashable:
        try:
            return checked_key(self.serving.state_key(call.messages))
        except Exception as error:  # a function of the recipe; what it gives must not fail the record of others
            cause = f"{type(error).__name__}: {' '.join(text_of(error).split())[:300]}"
            raise BadRequest(f"harness.state_key failed: {cause}", code="state_key_failed") from error

    def _prompt(self, call: Call, keys: Sequence[bytes], actor: str) -> tuple[_Known | None, list[int]]:
        """Return the known response that a conversation continues, if any, and the ids of the whole prompt.

        A conversation continues a response if everything up to it is as it was. Elsewhere, a response with a known
        text still gets the ids that were sampled for it.
        """
        answers = [index for index, message in enumerate(call.messages) if message["role"] == "assistant"]
        last = next((index for index in reversed(answers) if keys[index] in self._known), None)
        parent = None if last is None else self._known[keys[last]]
        begun = None if last is None or parent is None else (last, parent.ids)
        return parent, self.serving.prompter.prompt_ids(
            call.messages, call.tools, self._said.sampled(actor, call.messages), begun
        )

    def _sampling(self, call: Call, room: int) -> Sampling:
        """Return the sampling settings of a request with room for `room` tokens."""
        given, fixed = self.serving.sampling, self.serving.fixed
        stop = tuple(dict.fromkeys((*given.stop, *call.stop)))
        longest = min(call.max_tokens or given.max_new_tokens, given.max_new_tokens)
        if not fixed and call.max_tokens is None and room > 0:  # natively, only whole responses count
            longest = min(longest, room)
        asked = {} if fixed else {"temperature": call.temperature, "top_p": call.top_p, "seed": call.seed}
        changed: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if "seed" in changed:  # so that the same request is answered alike, whatever was asked before
            changed["draws"] = 0
        return dataclasses.replace(given, max_new_tokens=longest, stop=stop, schema=call.schema, **changed)

    async def _generate(
        self, parent: _Known | None, ids: list[int], sampling: Sampling, count: int, begun: Generation | None = None
    ) -> tuple[list[Generation], list[int]]:
        """Generate `count` responses to a prompt, and return them with the numbers of their conversations.

        Between calls the engine holds one conversation of a session until another needs its row; others find their
        prefix in its cache.
        """
        engine, held, self._held = self.serving.rows, self._held, None
        conversations = [self._new_conversation() for _ in range(count - 1)]
        if held is not None and held is parent:
            conversations.insert(0, held.conversation)
        else:
            conversations.insert(0, self._new_conversation())
            if held is not None:
                engine.close([held.conversation])
        self._running += 1
        keep = 0
        first = begun.token_ids if begun else []
        prompts = [([*ids, *first], dataclasses.replace(sampling, begun=len(first)))]
        for index in range(1, count):
            draws = None if sampling.draws is None else sampling.draws + index
            prompts.append((ids, dataclasses.replace(sampling, draws=draws)))
        try:
            work = (engine.generate(number, *each) for number, each in zip(conversations, prompts, strict=True))
            generations = list(await asyncio.gather(*work))
            if begun:
                generations[0] = begun.joined(generations[0])
            self.fault, keep = "", 1
        except EngineFault as fault:
            self.fault = str(fault)
            raise BadRequest(f"the engine failed: {fault}", status=503, code="engine_fault") from fault
        finally:
            self._running -= 1
            self.used_at = asyncio.get_running_loop().time()
            engine.close(conversations[0 if self._running or self.over else keep :])
        return generations, conversations

    @property
    def silent_s(self) -> float:
        """Seconds since the last call; 0 while one is answered."""
        return 0.0 if self._running else asyncio.get_running_loop().time() - self.used_at

    def _new_conversation(self) -> int:
        number = self._next_conversation
        self._next_conversation += self.serving.stride
        return number

    def finish(self, outcome: Outcome) -> None:
        """Accept the reward.

        Raises:
            BadRequest: There is one already.
        """
        if self.over:
            raise BadRequest("this session has its reward already", status=409, code="session_ended")
        self.outcome = outcome

    def end(self, failure: str | None = None) -> Trajectory:
        """End the session, and return its trajectory.

        Args:
            failure: Why the harness gave no reward; an earlier reward still counts.
        """
        self.closed = True
        if self._held is not None:
            self.serving.rows.close([self._held.conversation])
        self._held = None
        for known in (self._known, self._said, self.remembered):
            known.clear()
        trajectory, outcome = self.trajectory, self.outcome
        if self._record and (lost := self._record.lost(len(trajectory.turns) - self._given_turns)):
            cause = f"engine: {self.fault}" if self.fault and not self._record.diverged else f"harness: {lost}"
            trajectory.failure, trajectory.ended = cause, "failed"
        elif outcome is not None and trajectory.turns:
            trajectory.turns[-1].reward = outcome.reward
            trajectory.success, trajectory.info, trajectory.ended = outcome.success, outcome.info, "terminated"
        elif self.cut is not None and trajectory.turns:
            trajectory.ended, trajectory.info = "truncated", self.cut
        elif self.full and trajectory.turns:
            trajectory.ended = "context"
        else:
            cause = (failure or "it gave no reward") + self.refused
            cause = f"engine: {self.fault}" if self.fault else f"harness: {cause}"
            cause = cause if outcome is None else "harness: it gave a reward without asking the model"
            trajectory.failure, trajectory.ended = cause, "failed"
        return trajectory
