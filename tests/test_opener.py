"""A server that redirects does not get our key sent to another host."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from turnwise.base.errors import ConfigError
from turnwise.engines.connection import get_once
from turnwise.worlds.adapters.openenv import ask_http


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(302 if self.path == "/first" else 200)
        self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/other")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_no_redirect_is_followed(url, monkeypatch):
    monkeypatch.setenv("TURNWISE_SERVE_TOKEN", "secret")
    assert get_once(f"{url}/first", {"Authorization": "Bearer secret"}) == (302, "")
    with pytest.raises(ConfigError, match="/first answers 302"):
        ask_http(f"{url}/first")
    assert Handler.asked == [("/first", "Bearer secret")] * 2
    assert get_once(f"{url}/other") == (200, "{}")
    assert ask_http(f"{url}/other") == {}
