"""Measure the local engine beside a vLLM server on the same weights, conversations and number of tokens.

    VLLM_PYTHON=<python with vllm> python -m benchmarks.engine_vllm    # SmolLM2-135M's shape, bfloat16

Both are driven through `Engine.generate`, as a rollout does, in turn in one process. On a CPU both have all cores;
seconds are of the clock, since the server computes in processes of its own. docs/how-to/vllm.md says how to install it.

The server's prefix cache keeps whole blocks. On a CPU vLLM's own default are blocks of 128 tokens, which at turns of 44
tokens reads 2.6 times as many prompt tokens as needed; `--block-size 32` is the least that its kernels are made for.
"""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import numpy as np
from benchmarks.common import counted, describe, make_smollm2
from benchmarks.rollout_speed import NO_STOP, prompts, together
from benchmarks.tables import ratios, spread, table
from transformers import PreTrainedModel

from turnwise.engines.base import Engine, Sampling
from turnwise.engines.local import LocalEngine
from turnwise.engines.server import ServerEngine
from turnwise.engines.settings import ServerEngineConfig

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
def served(model: PreTrainedModel, python: str, most: int, block: int, eager: bool) -> Iterator[str]:
    """Serve a model with vLLM in a process group of its own; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        options = OPTIONS | {"--model": folder, "--port": str(port), "--max-num-seqs": str(most)}
        options |= {"--block-size": str(block)}
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


def prefilled(url: str) -> int:
    """Count the prompt tokens that the server has computed so far: those that its prefix cache did not have."""
    text = httpx2.get(f"{url}/metrics", trust_env=False).text
    counts = dict(re.findall(r"^vllm:prefix_cache_(queries|hits)_total\{.*\} (\S+)$", text, re.MULTILINE))
    if len(counts) < 2:
        sys.exit(f"{url}/metrics has no counters of the prefix cache: use the vLLM that docs/how-to/vllm.md names")
    return int(float(counts["queries"]) - float(counts["hits"]))


async def played(engine: Engine, added: np.ndarray, sampling: Sampling, url: str) -> tuple[int, int, float]:
    """Run conversations from an empty cache; return generated and computed prompt tokens, and seconds of the clock."""
    await engine.update_weights()  # empties the cache
    before = prefilled(url)
    with counted(engine.model) as fed:  # pyright: ignore[reportAttributeAccessIssue]
        began = time.perf_counter()
        generated = await together(engine, added, sampling)
        seconds = time.perf_counter() - began
    await engine.aclose()
    return generated, fed[0] + prefilled(url) - before, seconds  # only one of the two has computed


def compare(engines: Mapping[str, Engine], url: str, options: argparse.Namespace) -> None:
    """Play with each engine in turn, and print medians and ranges."""
    sampling, rows = Sampling(max_new_tokens=options.response, stop_ids=NO_STOP), []
    for count in options.conversations:
        added = prompts(count, options.turns, options.observation)
        runs = [
            {name: asyncio.run(played(engine, added, sampling, url)) for name, engine in engines.items()}
            for _ in range(options.repeats)
        ]
        tokens, seconds = runs[0]["vLLM"][0], {name: [run[name][2] for run in runs] for name in engines}
        assert all(run[name][0] == tokens for run in runs for name in engines)
        computed = (f"{statistics.median(run[name][1] for run in runs):,.0f}" for name in engines)
        rate = (spread([tokens / each for each in seconds[name]], 0) for name in engines)
        rows.append((count, f"{tokens:,}", *computed, *rate, spread(ratios(seconds["turnwise"], seconds["vLLM"]))))
    size = f"{options.turns} turns, {options.observation} tokens an observation, responses of {options.response}"
    title = f"{size}, {options.repeats} rounds, vLLM's blocks of {options.block_size} tokens"
    header = ("conversations", "generated", *(f"{name}, prompt tokens computed" for name in engines),
              *(f"{name}, a second" for name in engines), "time, turnwise / vLLM")  # fmt: skip
    table(title, header, rows)


def main() -> None:
    """Start a server, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--observation", type=int, default=32, help="tokens")
    parser.add_argument("--response", type=int, default=12, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=32, help="tokens; vLLM's own default is 128")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument(
        "--eager", action="store_true", help="vLLM does not compile the model, for which it needs a C++ compiler"
    )
    options = parser.parse_args()
    python = os.environ.get("VLLM_PYTHON") or sys.exit("VLLM_PYTHON names no python with vllm; see docs/how-to/vllm.md")
    model = make_smollm2(options.layers)
    print(describe(model))
    with served(model, python, max(options.conversations), options.block_size, options.eager) as url:
        engines: dict[str, Engine] = {
            "turnwise": LocalEngine(model, rounded=True),
            "vLLM": ServerEngine(model, ServerEngineConfig(name="server", url=url), max_context=CONTEXT),
        }
        for engine in engines.values():  # the first requests compile
            asyncio.run(played(engine, prompts(2, 2, 8), Sampling(max_new_tokens=4, stop_ids=NO_STOP), url))
        compare(engines, url, options)


if __name__ == "__main__":
    main()
