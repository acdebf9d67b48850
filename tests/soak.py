"""Callers of a server, good and bad ones at once: `python -m tests.soak URL SECONDS [PATH]`.

Prints what good callers lost, and what bad callers were answered.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CALLERS = 200
SECONDS = float(os.environ.get("TURNWISE_SOAK_S", "10"))
_JSON = b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SHORT_HEADERS_S = 4.0
BAD = {
    "garbage": b"\x00\xff\xfe garbage\r\n\r\n",
    "no such method": b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no such version": b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    "other host": b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "long body": b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 1000,
    "bad length": b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    "bad JSON": _JSON + b"Content-Length: 1\r\n\r\n{",
    "bad index": _JSON + b'Content-Length: 16\r\n\r\n{"index": 99999}',
    "zero byte": b"GET /%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "parent folder": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "gone": b"GET / HTTP/1.1\r\n",
}


def held(process: int) -> tuple[float, int]:
    """Return the memory of a process (MiB, without pages of files) and its number of open files."""
    kib = re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    assert kib
    return int(kib[1]) / 1024, len(os.listdir(f"/proc/{process}/fd"))


async def soak(
    url: str, seconds: float, path: str = "/", *, process: int | None = None, bad: Mapping[str, bytes] = BAD
) -> dict:
    """Call a server for so long; a fifth of the callers are good, a fifth are slow, the others are malformed.

    Returns:
        What good callers lost, and what bad callers were answered; of a process also its memory (MiB, median of each
        tenth), and its open files before and after.
    """
    place, until = urlsplit(url), asyncio.get_running_loop().time() + seconds
    host, port = place.hostname, place.port
    told: dict = {"good": 0, "lost": [], "answers": Counter(), "server errors": []}

    def over() -> bool:
        return asyncio.get_running_loop().time() > until

    async def ask(data: bytes, patience: float) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(data)
            await writer.drain()
            return await asyncio.wait_for(reader.readline(), patience)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def good() -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        while not over():
            try:
                answer = await ask(request, 60)
                told["good"] += 1
                if b" 200 " not in answer:
                    told["lost"].append(repr(answer))
            except (OSError, TimeoutError) as error:
                told["lost"].append(repr(error))
            await asyncio.sleep(0.2)

    async def malformed(number: int) -> None:
        moments = random.Random(number)
        while not over():
            name = moments.choice(list(bad))
            try:
                answer = (await ask(bad[name], 0.2 if name == "gone" else 15)).split()[1:2]
            except (OSError, TimeoutError):
                answer = []
            code = answer[0].decode() if answer else "closed"
            told["answers"][code] += 1
            if code.startswith("5"):
                told["server errors"].append(name)
            await asyncio.sleep(0.1)

    async def slow() -> None:
        ended = False

        def enough() -> bool:
            """Each slow caller waits to be ended once, on a busy machine a while longer."""
            return asyncio.get_running_loop().time() > until + (0 if ended else 30)

        while not enough():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 10_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.5)
                    if enough() or reader.at_eof():
                        break
                ended = ended or reader.at_eof()
                told["answers"]["slow ended" if reader.at_eof() else "slow held"] += 1
                writer.close()

    async def watch() -> None:
        while process and not over():
            memory.append(held(process)[0])
            await asyncio.sleep(seconds / 100)

    memory, before = list[float](), held(process)[1] if process else 0
    makers = [lambda i: good(), lambda i: slow(), malformed, malformed, malformed]
    await asyncio.gather(watch(), *(makers[index % 5](index) for index in range(CALLERS)))
    told |= {"lost": told["lost"][:5], "server errors": sorted(set(told["server errors"]))}
    if process:
        for _ in range(100):  # the server notices in its own time that its callers are gone
            if held(process)[1] <= before:
                break
            await asyncio.sleep(0.1)
        tenth = max(1, len(memory) // 10)
        told["memory_mb"] = [
            round(statistics.median(memory[at : at + tenth]), 1) for at in range(0, len(memory), tenth)
        ]
        told["files"] = [before, held(process)[1]]
    return told


def is_flat(memory_mb: Sequence[float]) -> bool:
    """Whether the memory of the last tenth is within 5 % of the third tenth's.

    In a short soak it is within 8 MiB of the sixth's: a busy machine needs half of it to load what it uses.
    """
    return memory_mb[-1] <= (memory_mb[5] + 8 if SECONDS < 60 else 1.05 * memory_mb[2])


@contextlib.contextmanager
def serving(command: Sequence[str], says: str, guard: str, **variables: str) -> Iterator[tuple[str, int, Callable]]:
    """Run a command of turnwise that serves; in a short soak, headers have `SHORT_HEADERS_S` to arrive.

    Args:
        command: Arguments of the command.
        says: Pattern of the line with the address, as its first group.
        guard: Module whose `HEADERS_S` limits the time of headers.
        variables: Further environment variables.

    Yields:
        The address, the process id, and a function that ends the command and returns what it said.
    """
    limit = f"guard.HEADERS_S = {SHORT_HEADERS_S}; " if SECONDS < 60 else ""
    code = f"import sys, {guard} as guard; {limit}from turnwise.commands.cli import main; sys.exit(main())"
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *command],
        text=True,
        **pipes,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
    )
    said: list[str] = []

    def end() -> str:
        process.send_signal(signal.SIGTERM)
        said.append(process.communicate(timeout=60)[0])
        return "".join(said)

    try:
        while not (found := re.search(says, said[-1] if said else "")):
            assert process.stdout
            said.append(process.stdout.readline())
            assert said[-1], "".join(said)
        yield found[1], process.pid, end
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(soak(sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))))
