"""Measure what the gateway adds to a call: `python benchmarks/gateway_overhead.py`.

An engine that answers at once stands behind it, so that all time is the gateway's: HTTP, JSON, the chat template,
tokens, the record. A client in a process of its own plays trajectories of growing histories in 64 sessions.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' small tokenizer

OBSERVATION = "you are in the red room. go to cabinet 1. " * 8


class Instant:
    """An engine that gives the same response at once."""

    def __init__(self, ids):
        self.ids = ids

    async def generate(self, conversation, prompt_ids, sampling):
        """Answer."""
        from turnwise.engines.base import Generation

        return Generation(list(self.ids), [-0.5] * len(self.ids), False, [0.5] * len(self.ids))

    def close(self, conversations=None):
        """Forget nothing."""


async def play(host, port, name, turns):
    """Play one trajectory over one connection, and return the seconds of each call."""
    reader, writer = await asyncio.open_connection(host, port)
    messages, took = [], []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{turn} {OBSERVATION}"})
        body = json.dumps({"messages": messages}).encode()
        head = f"POST /s/{name}/v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        begun = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        content = json.loads(await reader.readexactly(length))
        took.append(time.perf_counter() - begun)
        messages.append(content["choices"][0]["message"])
    writer.close()
    return took


def client(host, port, sessions, turns, results):
    """Play `sessions` trajectories at a time, then one alone."""

    async def work():
        begun = time.perf_counter()
        together = await asyncio.gather(*(play(host, port, f"s{number}", turns) for number in range(sessions)))
        wall = time.perf_counter() - begun
        alone = await play(host, port, "alone", turns)
        results.put((wall, [one for each in together for one in each], alone))

    asyncio.run(work())


async def serve(sessions, turns):
    """Serve until the client is done, and return its measurements and the processor time of a call."""
    from tests.rollout import chat_models

    from turnwise.engines.base import Sampling
    from turnwise.extensions.gateway.recorder import Recorder
    from turnwise.extensions.gateway.server import Gateway
    from turnwise.extensions.gateway.session import Serving
    from turnwise.models.chat import chat_format
    from turnwise.models.settings import PromptConfig

    fmt = chat_format(chat_models.tokenizer("qwen2_5"), PromptConfig())
    engine = Instant([*fmt.encode("go to cabinet 1 " * 8), fmt.stop_id])
    serving = Serving(engine, fmt, Sampling(max_new_tokens=64, stop_ids=(fmt.stop_id,)), 100_000)
    gateway = Gateway(serving.fmt, opens=Recorder(serving, lambda played: None).open)
    _, _, place = (await gateway.start()).partition("//")
    host, _, port = place.partition(":")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=client, args=(host, int(port), sessions, turns, results))
    cpu = time.process_time()
    process.start()
    found = await asyncio.to_thread(results.get)
    cpu = time.process_time() - cpu
    process.join()
    await gateway.aclose()
    return *found, cpu


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    wall, together, alone, cpu = asyncio.run(serve(options.sessions, options.turns))
    calls = len(together) + len(alone)
    print(f"{options.sessions} sessions of {options.turns} turns, {calls} calls, ms per call")
    print(f"all sessions at once: {1e3 * wall / len(together):.2f}, processor {1e3 * cpu / calls:.2f}")
    print(f"one session alone: median {1e3 * statistics.median(alone):.2f}")


if __name__ == "__main__":
    main()
