"""A server that closes while callers arrive closes their connections too, however far they have come."""

import asyncio
import contextlib
import gc
import socket
import warnings

import pytest

from turnwise.extensions.gateway.http import HttpResponse, HttpServer


async def close_after(rounds: int) -> None:
    """Close a server so many rounds of the event loop after four callers arrived."""

    async def handle(request):
        return HttpResponse(200, b"{}")

    server = HttpServer(handle, lambda path, status, reason: HttpResponse(status, reason.encode()))
    address = await server.start()
    await asyncio.sleep(0.01)  # it waits for callers
    port = int(address.rpartition(":")[2])
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    for _ in range(rounds):
        await asyncio.sleep(0)
    await server.aclose()
    for caller in callers:
        caller.settimeout(5)
        with caller, contextlib.suppress(ConnectionError):  # one that was never accepted is reset
            assert caller.recv(1) == b""


@pytest.mark.parametrize("rounds", range(8))
def test_no_connection_stays_open(rounds):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(close_after(rounds))
        gc.collect()
    assert not [each for each in caught if issubclass(each.category, ResourceWarning)]
