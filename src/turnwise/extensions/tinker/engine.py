"""Sample from the weights that a server of the Tinker API holds."""

from typing import Any

from turnwise.base.errors import EngineFault
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.server import ServerEngine, seed_of
from turnwise.extensions.tinker.client import API, Gone, NewSampler, SampleResult, Service
from turnwise.extensions.tinker.model import TinkerModel, open_session


class TinkerEngine(ServerEngine):
    """Sample on a server, token ids in and out; see `ServerEngine` for the arguments."""

    model: TinkerModel

    def __init__(self, model: Any, settings: Any, **more: Any):
        super().__init__(model, settings, **more)
        self._server: Service = Service(settings)
        self._session: str | None = None
        self._asked = self._opened = 0

    async def update_weights(self, version: int = 0) -> None:
        """Have the server save the weights for sampling; see `Engine.update_weights`.

        Raises:
            EngineLost: The server stayed unavailable.
        """
        self.model.publish()
        self.version, self._session = version, None
        await self.aclose()

    async def _generate(self, conversation: int, prompt: list[int], sampling: Sampling) -> Generation:
        draws = conversation if sampling.draws is None else sampling.draws
        params = {
            "max_tokens": sampling.max_new_tokens - sampling.begun,
            "stop": list(sampling.stop_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "seed": seed_of(sampling.seed, draws, len(prompt)) % 2**31,
        }
        body = {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
            "sampling_params": params,
            "num_samples": 1,
            "type": "sample",
        }

        async def ask() -> Generation:
            session = await self._open_sampler()
            self._asked += 1
            try:
                begun = await self._server.begin("asample", sampling_session_id=session, seq_id=self._asked, **body)
                sampled = await self._server.result(begun, SampleResult)
            except Gone:
                if self._session == session:
                    self._session = None
                raise
            sample = sampled.sequences[0]
            return self._made(sample.tokens, sample.logprobs or [], prompt, sampling)

        async with self._server.gate:
            return await self._server.patiently(ask)

    async def _open_sampler(self) -> str:
        async with self._server.alone:
            if self._session is None:
                if self.model.sampler is None:
                    raise EngineFault("the server has no weights yet: call update_weights() before the first response")
                self._opened += 1
                weights = {"model_path": self.model.sampler, "sampling_session_seq_id": self._opened}
                asked = {"session_id": await open_session(self._server), "type": "create_sampling_session", **weights}
                opened = await self._server.post(API + "create_sampling_session", NewSampler, asked)
                self._session = opened.sampling_session_id
            return self._session
