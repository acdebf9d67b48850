"""Define the `[engine]` section of a recipe."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic

from turnwise.base.facets import Facet, Part
from turnwise.base.section import Section


class EngineConfig(Section):
    """Settings of the engine that generates the responses."""

    name: Literal["local", "server"] = "local"
    """"local": transformers in this process. "server": vLLM over HTTP, see docs/how-to/vllm.md."""
    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Conversations that the local engine holds at a time, which bounds its memory; further ones wait. A trajectory
    that waits for others, for new weights or for its share of a budget gives its place back. Default: all."""
    graphs: bool = True
    """Whether the local engine replays CUDA graphs on a GPU, where starting the operators of a small model one by one
    takes longer than computing them. It captures at most 128 shapes of passes, of up to 256 rows and 4,096 tokens. The
    memory of graphs and cache is kept between steps. Other passes, models that cannot be captured and a CPU do without.
    The fields below are only for the server."""
    url: str = pydantic.Field(default="http://127.0.0.1:8000", pattern=r"^https?://[^/]")
    """Address of the server."""
    max_concurrent: int = pydantic.Field(default=256, ge=1)
    """Concurrent requests to the server; further ones wait."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Longest time for one answer of the server (seconds)."""
    patience_s: float = pydantic.Field(default=600.0, ge=0)
    """Time for which a failed request is retried (seconds); then the run ends, and can be resumed."""
    sync_folder: Path | None = None
    """Folder for new weights that trainer and server both see under this path. Default: a temporary folder."""
    max_difference: float = pydantic.Field(default=0.1, gt=0)
    """Largest mean difference of log-probabilities between server and trainer (nats per token), with which a server is
    seen to use the adapters that it was given. Only where it gets adapters, which it does with --enable-lora."""

    def parts(self) -> Iterator[Part]:
        """Return what the engine breaks; see `turnwise.base.facets`."""
        if self.name == "server":
            breaks = {Facet.ENGINE: "serves one version of the weights without entropies"}
            yield Part("engine.name='server'", breaks, mend="set engine.name=local")
