"""Measure the local engine beside a vLLM server on the same weights, conversations and number of tokens.

    VLLM_PYTHON=<python with vllm> python -m benchmarks.engine_vllm    # SmolLM2-135M's shape, bfloat16

Both are driven through `Engine.generate`, as a rollout does, in turn in one process. On a CPU both have all cores;
seconds are of the clock, since the server computes in processes of its own. docs/how-to/vllm.md says how to install it.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import numpy as np
from benchmarks.common import describe, make_smollm2
from benchmarks.rollout_speed import NO_STOP, prompts, together
from benchmarks.tables import table
from transformers import PreTrainedModel

from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.local import LocalEngine
from turnwise.rollout.server import ServerEngine
from turnwise.rollout.settings import EngineConfig

CONTEXT = 2048
OPTIONS = {
    "--dtype": "bfloat16",
    "--logprobs-mode": "processed_logprobs",
    "--generation-config": "vllm",
    "--load-format": "dummy",
    "--hf-overrides": '{"tie_word_embeddings": false}',
    "--max-model-len": str(CONTEXT),
    "--max-num-batched-tokens": "16384",
    "--host": "127.0.0.1",
}
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@contextlib.contextmanager
def served(model: PreTrainedModel, python: str, most: int, eager: bool) -> Iterator[str]:
    """Serve a model with vLLM in a process group of its own; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        options = OPTIONS | {"--model": folder, "--port": str(port), "--max-num-seqs": str(most)}
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--tokens-only"]
        # vllm-cpu 0.32 dies when it reads a part of a prompt with a seed: "CPU Generator does not use offset"
        command += ["--no-enable-chunked-prefill"]
        command += [word for pair in options.items() for word in pair]
        command += ["--enforce-eager"] if eager else []
        log = Path(folder) / "server.log"
        with open(log, "wb") as out:
            environment = {**os.environ, **ENVIRONMENT}
            environment.pop("PYTHONPATH", None)
            process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, cwd=folder, start_new_session=True
            )
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(url):
                if process.poll() is not None:
                    sys.exit(f"vLLM did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.5)
            yield url
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx2.RequestError):
        return httpx2.get(f"{url}/health", trust_env=False).status_code == 200
    return False


async def played(engine: Engine, added: np.ndarray, sampling: Sampling) -> tuple[int, float]:
    """Run conversations from an empty cache; return the generated tokens and the seconds of the clock."""
    await engine.update_weights()  # empties the cache
    began = time.perf_counter()
    generated = await together(engine, added, sampling)
    seconds = time.perf_counter() - began
    await engine.aclose()
    return generated, seconds


def compare(engines: Mapping[str, Engine], options: argparse.Namespace) -> None:
    """Play with each engine in turn, and print the best of its seconds."""
    sampling, rows = Sampling(max_new_tokens=options.response, stop_ids=NO_STOP), []
    for count in options.conversations:
        added = prompts(count, options.turns, options.observation)
        runs = [
            {name: asyncio.run(played(engine, added, sampling)) for name, engine in engines.items()}
            for _ in range(options.repeats)
        ]
        tokens, seconds = runs[0]["vLLM"][0], {name: min(run[name][1] for run in runs) for name in engines}
        assert all(run[name][0] == tokens for run in runs for name in engines)
        rate = (f"{tokens / seconds[name]:,.0f}" for name in engines)
        rows.append((count, f"{tokens:,}", *rate, f"{seconds['turnwise'] / seconds['vLLM']:.2f}"))
    title = f"{options.turns} turns, {options.observation} tokens an observation, responses of {options.response}"
    header = ("conversations", "generated", *(f"{name}, a second" for name in engines), "time, turnwise / vLLM")
    table(title, header, rows)


def main() -> None:
    """Start a server, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--observation", type=int, default=32, help="tokens")
    parser.add_argument("--response", type=int, default=12, help="tokens")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument(
        "--eager", action="store_true", help="vLLM does not compile the model, for which it needs a C++ compiler"
    )
    options = parser.parse_args()
    python = os.environ.get("VLLM_PYTHON") or sys.exit("VLLM_PYTHON names no python with vllm; see docs/how-to/vllm.md")
    model = make_smollm2(options.layers)
    print(describe(model))
    with served(model, python, max(options.conversations), options.eager) as url:
        engines: dict[str, Engine] = {
            "turnwise": LocalEngine(model, rounded=True),
            "vLLM": ServerEngine(model, EngineConfig(name="server", url=url), max_context=CONTEXT),
        }
        for engine in engines.values():  # the first requests compile
            asyncio.run(played(engine, prompts(2, 2, 8), Sampling(max_new_tokens=4, stop_ids=NO_STOP)))
        compare(engines, options)


if __name__ == "__main__":
    main()
