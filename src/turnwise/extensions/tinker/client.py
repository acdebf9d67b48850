"""Ask a server of the Tinker API: requests are answered with a number, under which results follow."""

import asyncio
import os
import re
import time
from typing import Any

import pydantic

from turnwise.base.errors import ConfigError, EngineFault, guide
from turnwise.engines.connection import FIRST_WAIT_S, A, Answer, Connection, Unanswered, get_once, read_json

API = "/api/v1/"
CAPABILITIES = f"{API}get_server_capabilities"
KEY = "TINKER_API_KEY"
LONG_POLL_S = 1.0
"""A server that answers 408 sooner has not waited for the result."""
_LOST = re.compile(r"not (found|loaded)|unknown (model|session)|there is no (model|session|request)", re.IGNORECASE)


class Gone(Unanswered):
    """The server no longer knows a model, a session or a request, such as after a restart."""


class OfferedModel(Answer):
    """A model that the server has, and the tokens that it reads at most."""

    model_name: str
    max_context_length: int | None = None


class Capabilities(Answer):
    """What the server offers."""

    supported_models: list[OfferedModel] = pydantic.Field(default_factory=list)


class Begun(Answer):
    """The number of what the server has begun; of a model the name too."""

    request_id: str
    model_id: str | None = None


class NewSession(Answer):
    """A session, to which models and samplers belong."""

    session_id: str


class NewSampler(Answer):
    """A sampler of some weights."""

    sampling_session_id: str


class Pending(Answer):
    """Whether there is a result, or what went wrong."""

    type: str | None = None
    error: Any = None
    category: str | None = None


class CreateResult(Answer):
    """The name of a new model."""

    model_id: str | None = None


class SaveResult(Answer):
    """The name of saved weights."""

    path: str


class StepResult(Answer):
    """What the server reports of an optimiser step."""

    metrics: dict[str, Any] | None = None

    @property
    def grad_norm(self) -> float:
        """Norm of the gradient before clipping, under whatever name; 0 if it is not reported."""
        found = (value for name, value in (self.metrics or {}).items() if "grad_norm" in name)
        return next((float(value) for value in found if isinstance(value, int | float)), 0.0)


class TokenValues(Answer):
    """A value per token."""

    data: list[float]


class PassOutput(Answer):
    """What a pass returns of a sequence."""

    logprobs: TokenValues


class PassResult(Answer):
    """What a pass returns, by sequence."""

    loss_fn_outputs: list[PassOutput]


class Pausing(Unanswered):
    """The server has no result within its time; the same request may be sent again."""


class Sample(Answer):
    """A response."""

    tokens: list[int]
    logprobs: list[float] | None = None


class SampleResult(Answer):
    """Responses to a prompt."""

    sequences: list[Sample] = pydantic.Field(min_length=1)


ANSWERS: dict[str, type[Answer]] = {
    "forward": PassResult,
    "forward_backward": PassResult,
    "load_weights": Answer,
    "optim_step": StepResult,
    "save_weights": SaveResult,
    "save_weights_for_sampler": SaveResult,
}
"""What requests about the weights of a model result in."""


class Service(Connection):
    """Send requests to a server of the Tinker API, from any event loop."""

    expected = "the Tinker API says"

    def offered(self) -> list[OfferedModel]:
        """Check once that the server answers, and return the models that it has.

        Raises:
            ConfigError: It does not.
            EngineLost: The answer has another form.
        """
        try:
            status, text = get_once(self.settings.url.rstrip("/") + CAPABILITIES, self._headers())
            if status == 200:
                return self._read(Capabilities, read_json(text, CAPABILITIES)).supported_models
            cause = f"HTTP {status}"
        except Unanswered as error:
            cause = str(error)[:200]
        raise ConfigError(
            f"no server of the Tinker API answers at engine.url={self.settings.url!r} ({cause}): "
            f"start one as {guide('how-to/tinker.md')} says, or set engine.url"
        )

    async def begin(self, name: str, **body: Any) -> Begun:
        """Have the server begin to compute something."""
        return await self.post(API + name, Begun, body)

    async def result(self, begun: Begun, kind: type[A]) -> A:
        """Return the result of what was begun.

        Raises:
            Unanswered: The server lost it, or failed; a later request may succeed.
            EngineFault: The server rejects the request as wrong.
            EngineLost: The result has another form.
        """
        waited = time.monotonic()  # when the server last took its time over an answer
        while True:
            asked = time.monotonic()
            try:
                answer = await self._ask("POST", API + "retrieve_future", json={"request_id": begun.request_id})
            except Pausing:
                now = time.monotonic()
                waited = now if now - asked >= LONG_POLL_S else waited
                if now - waited > self.settings.patience_s:
                    raise
                await asyncio.sleep(FIRST_WAIT_S)
                continue
            pending = self._read(Pending, answer)
            if pending.type == "try_again":
                continue
            if pending.error:
                if _LOST.search(str(pending.error)):
                    raise Gone(str(pending.error))
                if pending.category != "user":
                    raise Unanswered(str(pending.error))
                raise EngineFault(f"the server at {self.settings.url} rejects the request: {pending.error}")
            return self._read(kind, answer)

    def _fault(self, status: int, failure: str) -> Exception:
        if status in (404, 410) or (status == 400 and _LOST.search(failure)):
            return Gone(failure)
        if status == 408:
            return Pausing(failure)
        if status in (425, 429) or status >= 500:
            return Unanswered(failure)
        if status in (401, 403):
            return ConfigError(f"the server at {self.settings.url} refuses the key ({failure}); set {KEY}")
        return EngineFault(f"the server at {self.settings.url} rejects the request: {failure}")

    def _headers(self) -> dict[str, str]:
        return {"X-API-Key": os.environ.get(KEY, "tml-none")}
