"""Define the `[engine]` section of a recipe. An engine's settings do not import torch; they make it."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from turnwise.base.facets import Facet, Part
from turnwise.base.imports import import_callable
from turnwise.base.register import ENGINES
from turnwise.base.section import Kinds
from turnwise.credit.options import check_names
from turnwise.engines.base import Engine


class EngineConfig(Kinds):
    """Settings of the engine that generates the responses."""

    name: str = "local"
    """"local": transformers in this process. "server": vLLM over HTTP, see docs/how-to/vllm.md. Or your own as
    "module:function" (docs/how-to/extend.md)."""
    lenient: ClassVar[bool] = True
    reports: ClassVar[Sequence[str]] = ()
    """What responses have in addition to log-probabilities, for measures: "entropies"."""

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the settings of all engines by name."""
        return {**ENGINES, ":": OwnEngineConfig}

    @classmethod
    def remote(cls, saved: Mapping[str, Any] | None = None) -> Any:
        """Make the `RemoteModel` for weights that the engine keeps on a server; None if it keeps none.

        Args:
            saved: What a checkpoint keeps of it.
        """
        return None

    def check(self) -> None:
        """Raise a ConfigError if the engine cannot be reached, before minutes of preparation."""

    def learner(self) -> Any:
        """Return what makes the learner if the engine keeps the weights; None for the trainer's own."""
        return None

    def make(self, policy: Any, *, rounded: bool = False, apart: bool = False) -> Engine:
        """Make the engine, which generates with a policy's weights.

        Args:
            policy: The model to generate with, a `turnwise.models.policy.Policy`.
            rounded: Whether the policy's weights are rounded to bfloat16 for responses, if the engine runs in this
                process.
            apart: Whether responses are generated while the trainer changes the weights.

        Raises:
            ConfigError: It cannot generate with this policy.
        """
        raise NotImplementedError

    def parts(self) -> Iterator[Part]:
        """Return what the engine breaks; see `turnwise.base.facets`."""
        breaks = {Facet.ENGINE: "serves one version of the weights without entropies"}
        yield Part(f"engine.name={self.name!r}", breaks, mend="set engine.name=local")


class LocalEngineConfig(EngineConfig, kind="local"):
    """Settings of the engine in this process."""

    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Conversations held at a time, which bounds memory; others wait. A trajectory that waits for others, for new
    weights or for its share of a budget gives up its place. Default: all."""
    graphs: bool = True
    """Replay CUDA graphs on a GPU, where launching the operators of a small model one by one takes longer than
    computing them. At most 128 shapes of passes are captured, of up to 256 rows and 4,096 tokens, and graphs and cache
    keep their memory between steps. Other passes, models that cannot be captured, and CPUs do without."""
    reports: ClassVar[Sequence[str]] = ("entropies",)

    def make(self, policy: Any, *, rounded: bool = False, apart: bool = False) -> Engine:
        """Make the engine; see `EngineConfig.make`."""
        from turnwise.engines.build import make_local

        return make_local(self, policy, rounded=rounded, apart=apart)

    def parts(self) -> Iterator[Part]:
        """Return nothing: this engine breaks no assumption."""
        yield from ()


class ServerEngineConfig(EngineConfig, kind="server"):
    """Settings of a vLLM server."""

    url: str = pydantic.Field(default="http://127.0.0.1:8000", pattern=r"^https?://[^/]")
    """Address of the server."""
    max_concurrent: int = pydantic.Field(default=256, ge=1)
    """Concurrent requests to the server; others wait."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Time limit for one answer of the server (seconds)."""
    patience_s: float = pydantic.Field(default=600.0, ge=0)
    """How long a failed request is retried (seconds); then the run ends, and can be resumed."""
    sync_folder: Path | None = None
    """Folder for new weights, which trainer and server both see under this path. Default: a temporary folder."""
    max_difference: float = pydantic.Field(default=0.1, gt=0)
    """Largest accepted mean difference in log-probabilities between server and trainer (nats per token), which shows
    that the server uses the adapters it was given. Only for servers with --enable-lora."""

    def check(self) -> None:
        """Raise a ConfigError if the server does not answer."""
        from turnwise.engines.vllm import check_server  # only this engine needs the HTTP client

        check_server(self.url)

    def make(self, policy: Any, *, rounded: bool = False, apart: bool = False) -> Engine:
        """Make the engine; see `EngineConfig.make`."""
        from turnwise.engines.server import ServerEngine

        return ServerEngine(policy.model, self, max_context=policy.max_context, decode=policy.decode)


class OwnEngineConfig(EngineConfig, kind=":"):
    """Settings of your own engine."""

    options: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Options of the function that makes the engine, in addition to the policy."""

    def check(self) -> None:
        """Raise a ConfigError if there is no such function."""
        import_callable("engine.name", self.name)

    def make(self, policy: Any, *, rounded: bool = False, apart: bool = False) -> Engine:
        """Make the engine; see `EngineConfig.make`."""
        make = import_callable("engine.name", self.name)
        check_names(f"engine.name={self.name!r}", self.options, [*inspect.signature(make).parameters][1:])
        return make(policy, **self.options)
