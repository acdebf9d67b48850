"""Measure what a rollout through the Tinker API costs this process: calls, bytes, processor time, waiting.

    OMP_NUM_THREADS=1 python -m benchmarks.tinker_cost                       # 1, 8, 64 and 512 conversations
    OMP_NUM_THREADS=1 python -m benchmarks.tinker_cost --delay 0.25 --turns 20

A server in a process of its own answers each request for a response after a fixed delay, with tokens that it makes up,
so that all other time is the client's and the connection's. Conversations grow by an observation and a response a turn,
and every request carries the whole prompt, as the API wants it. "Busy" is the least time that the delays allow over the
time that it took. The update's bytes are those of one pass over as many trajectories.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from benchmarks.tables import table

from turnwise.config import parse_config
from turnwise.engines.base import Sampling
from turnwise.extensions.tinker.engine import TinkerEngine
from turnwise.extensions.tinker.model import TinkerModel, datum, loss_input

SAMPLING = Sampling(max_new_tokens=12, stop_ids=(2,))
WORDS = 32000


class Delayed(asyncio.Protocol):
    """Answer the requests of one connection; what is sampled can be fetched after the delay.

    Args:
        delay_s: Seconds from a request for a response to its result.
        seen: Counts of requests, and of bytes received and sent, of all connections.
    """

    def __init__(self, delay_s: float, seen: dict[str, int]):
        self.delay_s, self.seen, self.data = delay_s, seen, b""

    def connection_made(self, transport: Any) -> None:
        """Keep the connection."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request; requests have a length, and paths say all that matters but the number."""
        self.seen["received"] += len(data)
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].decode().lower()
            length = int(head.split("content-length:")[1].split("\r\n")[0]) if "content-length:" in head else 0
            if len(self.data) < end + 4 + length:
                return
            body, self.data = self.data[end + 4 : end + 4 + length], self.data[end + 4 + length :]
            self.answer(head.split(" ", 2)[1].rpartition("/")[2], body)

    def answer(self, name: str, body: bytes) -> None:
        """Answer a request by the last part of its path."""
        self.seen[name] = self.seen.get(name, 0) + 1
        loop = asyncio.get_running_loop()
        if name == "asample":
            self.send({"request_id": f"{loop.time() + self.delay_s:.6f}"})
        elif name == "retrieve_future":
            due = float(json.loads(body)["request_id"])
            tokens = [5] * SAMPLING.max_new_tokens
            made = {"tokens": tokens, "logprobs": [-1.25] * len(tokens), "stop_reason": "length"}
            loop.call_at(due, self.send, {"type": "sample", "sequences": [made]})
        else:
            model = [{"model_name": "delayed", "max_context_length": 32768}]
            self.send({"supported_models": model, "session_id": "s", "sampling_session_id": "s", "request_id": "0"})

    def send(self, content: dict[str, Any]) -> None:
        """Send an answer, unless the connection was closed."""
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.seen["sent"] += len(head) + len(body)
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)


def serve(delay_s: float) -> None:
    """Serve until the input ends; print the port, and for each line of input what was seen since the last."""

    async def run() -> None:
        loop, seen = asyncio.get_running_loop(), {"received": 0, "sent": 0}
        server = await loop.create_server(lambda: Delayed(delay_s, seen), "127.0.0.1", 0, backlog=4096)
        print(server.sockets[0].getsockname()[1], flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps([seen, time.process_time()]), flush=True)
            seen.clear()
            seen.update(received=0, sent=0)

    asyncio.run(run())


class Server:
    """A server in a process of its own."""

    def __init__(self, delay_s: float):
        command = [sys.executable, "-m", "benchmarks.tinker_cost", "--serve", "--delay", str(delay_s)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self._line()}"

    def seen(self) -> tuple[dict[str, int], float]:
        """Return what was seen since the last call, and the server's processor time (seconds)."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        counts, seconds = json.loads(self._line())
        return counts, seconds

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


async def converse(engine: TinkerEngine, number: int, turns: int, observation: int, begin: int) -> None:
    """Play one conversation."""
    ids = np.random.default_rng(number).integers(10, WORDS, begin + turns * observation).tolist()
    prompt = ids[:begin]
    for turn in range(turns):
        prompt = prompt + ids[begin + turn * observation :][:observation]
        prompt += (await engine.generate(number, prompt, SAMPLING)).token_ids


def measure(engine: TinkerEngine, server: Server, count: int, options: argparse.Namespace) -> tuple[Any, ...]:
    """Play conversations at once; return a row of the table."""

    async def play() -> float:
        try:
            await converse(engine, count, 1, 1, 1)  # opens a session
            before = server.seen()[1]
            begun = time.perf_counter(), time.process_time()
            each = (converse(engine, n, options.turns, options.observation, options.begin) for n in range(count))
            await asyncio.gather(*each)
            spent.extend((time.perf_counter() - begun[0], time.process_time() - begun[1]))
            return before
        finally:
            await engine.aclose()

    spent = list[float]()
    before = asyncio.run(play())
    seen, after = server.seen()
    responses = count * options.turns
    wall, own = spent
    calls = sum(value for name, value in seen.items() if name not in ("received", "sent"))
    return (count, f"{calls / responses:.2f}", f"{seen['received'] / responses / 1024:.1f}",
            f"{seen['sent'] / responses / 1024:.2f}", f"{1e3 * own / responses:.2f}",
            f"{1e3 * (after - before) / responses:.2f}", f"{responses / wall:,.0f}",
            f"{100 * options.delay * options.turns / wall:.0f} %", f"{update_mb(count, options):,.1f}")  # fmt: skip


def update_mb(count: int, options: argparse.Namespace) -> float:
    """Return the size of the requests of a forward-backward pass over as many trajectories (MiB)."""
    length = options.begin + options.turns * (options.observation + SAMPLING.max_new_tokens)
    generator = np.random.default_rng(0)
    at = np.flatnonzero(generator.random(length) < SAMPLING.max_new_tokens / (SAMPLING.max_new_tokens + 40))
    values = {name: (at, generator.normal(size=at.size)) for name in ("logprobs", "advantages")}
    one = loss_input("ppo", [datum(generator.integers(10, WORDS, length), values)])
    return count * len(json.dumps(one, separators=(",", ":"))) / 2**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--delay", type=float, default=1.0, help="seconds that the server takes for a response")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--begin", type=int, default=400, help="tokens of the first prompt")
    parser.add_argument("--observation", type=int, default=40, help="tokens")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        serve(options.delay)
        return
    server = Server(options.delay)
    settings: Any = parse_config({"engine": {"name": "tinker", "url": server.url}}).engine
    model = TinkerModel()
    model.connect(settings, 32768)
    model.sampler = "tinker://model/sampler_weights/0"
    engine = TinkerEngine(model, settings, max_context=32768)
    rows = [measure(engine, server, count, options) for count in options.conversations]
    server.process.terminate()
    header = ("conversations", "calls a response", "KiB sent", "KiB received", "client CPU ms", "server CPU ms",
              "responses a second", "busy", "update, MiB")  # fmt: skip
    table(f"{options.turns} turns, {options.delay:g} s a response", header, rows)


if __name__ == "__main__":
    main()
