"""Serve a report while its runs train, and update it every few seconds."""

import contextlib
import functools
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.report.build import Progress, ReportData, Say
from turnwise.report.write import install, write_index

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERY_S = 3.0
"""Seconds between updates."""


def serve_report(
    paths: Sequence[Path],
    methods: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8010,
    on_ready: Callable[[str], None],
    progress: Progress = lambda done, total: None,
    on_problem: Say = lambda text: None,
) -> None:
    """Serve a report until interrupted.

    Args:
        paths: Run folders; they may still be empty.
        methods: Methods to compare with.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        on_ready: Called with the page's address once it can be opened.
        progress: Called with the steps read and all steps, at the start.
        on_problem: Called with every damaged or doubled file, which the page leaves out.

    Raises:
        TurnwiseError: A path is not a run, or the port is taken.
    """
    with tempfile.TemporaryDirectory(prefix="turnwise-report-") as name:
        output = Path(name)
        files = output / "files"
        data = ReportData(paths, files, methods, on_problem)
        server = _listen(host, port, output)
        try:
            install(files)
            data.update(progress)
            write_index(output, files.name, live=True)
            on_ready(f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}/")
            stop = threading.Event()
            watcher = threading.Thread(target=_watch, args=(data, stop), daemon=True)
            watcher.start()
            try:
                server.serve_forever()
            finally:
                stop.set()
                watcher.join()
        finally:
            server.server_close()


def _watch(data: ReportData, stop: threading.Event) -> None:
    while not stop.wait(EVERY_S):
        # a file may disappear, such as when the run is rewound; the next update reads the new state
        with contextlib.suppress(OSError, TurnwiseError):
            data.update()


def _listen(host: str, port: int, folder: Path) -> ThreadingHTTPServer:
    kind = type(
        "Server", (ThreadingHTTPServer,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET}
    )
    try:
        return kind((host, port), functools.partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another port with --port") from None


class _Handler(SimpleHTTPRequestHandler):
    """Serve files of the report to requests whose Host is this machine."""

    def do_GET(self) -> None:
        # guard against DNS rebinding: another site's name could resolve to the loopback address
        listening = self.request.getsockname()[0]
        asked = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if listening in LOOPBACK and asked not in LOOPBACK:
            self.send_error(403, "this report is only for this machine")
            return
        super().do_GET()

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the terminal shows the training."""
