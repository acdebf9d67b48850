"""Ask a server of the Tinker API: requests are answered with a number, under which results follow."""

import os
import re
from typing import Any

from turnwise.base.errors import ConfigError, EngineFault, guide
from turnwise.engines.connection import Connection, Unanswered, failure_of, get_once, read_json

API = "/api/v1/"
CAPABILITIES = f"{API}get_server_capabilities"
KEY = "TINKER_API_KEY"
_LOST = re.compile(r"not (found|loaded)|unknown (model|session)|there is no (model|session|request)", re.IGNORECASE)


class Gone(Unanswered):
    """The server no longer knows a model, a session or a request, such as after a restart."""


class Service(Connection):
    """Send requests to a server of the Tinker API, from any event loop."""

    async def computed(self, name: str, **body: Any) -> Any:
        """Have the server compute something, and return the result."""
        return await self.result(await self.begin(name, **body))

    async def begin(self, name: str, **body: Any) -> dict[str, Any]:
        """Have the server begin to compute something, and return its number with the rest of the answer."""
        return await self.post(API + name, json=body)

    async def delete(self, path: str) -> None:
        """Have the server delete what is at a path."""
        await self._ask("DELETE", path)

    async def result(self, begun: dict[str, Any]) -> Any:
        """Return the result of what was begun.

        Raises:
            Unanswered: The server lost it, or failed; a later request may succeed.
            EngineFault: The server rejects the request as wrong.
        """
        while True:
            result = await self.post(API + "retrieve_future", json={"request_id": begun["request_id"]})
            if result.get("type") == "try_again":
                continue
            if error := result.get("error"):
                if _LOST.search(str(error)):
                    raise Gone(str(error))
                if result.get("category") != "user":
                    raise Unanswered(str(error))
                raise EngineFault(f"the server at {self.settings.url} rejects the request: {error}")
            return result

    async def _ask(self, method: str, path: str, *, plain: bool = False, **content: Any) -> Any:
        status, text = await self._send(method, path, headers=_key(), **content)
        if status < 300:
            return read_json(text, path)
        failure = failure_of(status, text, path)
        if status in (404, 410) or (status == 400 and _LOST.search(failure)):
            raise Gone(failure)
        if status == 408 or status == 425 or status == 429 or status >= 500:
            raise Unanswered(failure)
        if status in (401, 403):
            raise ConfigError(f"the server at {self.settings.url} refuses the key ({failure}); set {KEY}")
        raise EngineFault(f"the server at {self.settings.url} rejects the request: {failure}")


def _key() -> dict[str, str]:
    return {"X-API-Key": os.environ.get(KEY, "tml-none")}


def check_server(settings: Any) -> dict[str, Any]:
    """Check once that a server answers, and return what it offers.

    Raises:
        ConfigError: It cannot be reached.
    """
    try:
        status, text = get_once(settings.url.rstrip("/") + CAPABILITIES, _key())
        if status == 200:
            return read_json(text, CAPABILITIES)
        cause = f"HTTP {status}"
    except Unanswered as error:
        cause = str(error)[:200]
    page = guide("how-to/tinker.md")
    raise ConfigError(
        f"no server of the Tinker API answers at engine.url={settings.url!r} ({cause}): start one as {page} says, "
        "or set engine.url"
    )
