"""Callers of a server, good and bad ones at once: `python -m tests.soak URL SECONDS [PATH]`.

Prints what good callers lost, and what bad callers were answered.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections import Counter
from urllib.parse import urlsplit

CALLERS = 200
_JSON = b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
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


async def soak(url: str, seconds: float, path: str = "/") -> dict:
    """Call a server for so long; a fifth of the callers are good, a fifth are slow, the others are malformed."""
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
            name = moments.choice(list(BAD))
            try:
                answer = (await ask(BAD[name], 0.2 if name == "gone" else 15)).split()[1:2]
            except (OSError, TimeoutError):
                answer = []
            code = answer[0].decode() if answer else "closed"
            told["answers"][code] += 1
            if code.startswith("5"):
                told["server errors"].append(name)
            await asyncio.sleep(0.1)

    async def slow() -> None:
        while not over():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 10_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.5)
                    if over() or reader.at_eof():
                        break
                told["answers"]["slow ended" if reader.at_eof() else "slow held"] += 1
                writer.close()

    makers = [lambda i: good(), lambda i: slow(), malformed, malformed, malformed]
    await asyncio.gather(*(makers[index % 5](index) for index in range(CALLERS)))
    return {**told, "lost": told["lost"][:5], "server errors": sorted(set(told["server errors"]))}


SECONDS = float(os.environ.get("TURNWISE_SOAK_S", "10"))

if __name__ == "__main__":
    print(json.dumps(asyncio.run(soak(sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))))
