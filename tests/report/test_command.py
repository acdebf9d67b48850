"""`turnwise report`: a folder or a server, and one line for a mistake."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.report.synthetic import write_run

from turnwise.commands.cli import main
from turnwise.lab.report.live import _listen


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "seed0", steps=2)


def refused(capsys, *arguments: object) -> str:
    assert main(["report", *map(str, arguments)]) == 2
    notes, _, line = capsys.readouterr().err.rstrip("\n").rpartition("\n")
    assert line.startswith("turnwise: ")
    assert all(note.endswith("was written without checksums: its files are unverified") for note in notes.splitlines())
    return line


def test_a_report_goes_into_its_run_or_beside_several(run, capsys):
    assert main(["report", str(run), "--methods", "grpo,gigpo+aem"]) == 0
    assert capsys.readouterr().out == f"{run / 'report' / 'index.html'}\n"
    assert main(["report", str(run), str(write_run(run.parent / "seed1", steps=1))]) == 0
    assert capsys.readouterr().out == f"{run.parent / 'report' / 'index.html'}\n"


def test_a_mistake_is_one_line(run, capsys, tmp_path):
    assert "Did you mean 'seed" in refused(capsys, run.parent / "seedO")
    assert "is not a run folder" in refused(capsys, tmp_path)
    assert "Did you mean 'gigpo'?" in refused(capsys, run, "--methods", "gigop")
    assert "need --live" in refused(capsys, run, "--port", 8010)
    assert "remove --output" in refused(capsys, run, "--live", "--output", tmp_path)
    assert "exists and is not a report" in refused(capsys, run, "--output", run)


def test_a_folder_of_another_is_left_alone(run, capsys, tmp_path):
    mine = tmp_path / "mine" / "files-2024" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years")
    assert "exists and is not a report" in refused(capsys, run, "--output", mine.parents[1])
    assert main(["report", str(run), "--output", str(tmp_path / "report")]) == 0
    mine.parent.rename(tmp_path / "report" / "files-2024")
    assert main(["report", str(run), "--output", str(tmp_path / "report")]) == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} > {"index.html", "files-2024"}
    assert len(list((tmp_path / "report").iterdir())) == 3


def test_a_taken_port_is_one_line(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another port with --port" in refused(capsys, run, "--live", "--port", taken.getsockname()[1])


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_version_6_can_be_listened_on(tmp_path):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no address ::1")
    _listen("::1", 0, tmp_path).server_close()


def test_live_serves_what_training_adds_and_ends_at_control_c(tmp_path):
    made = write_run(tmp_path / "ran", steps=2)
    run, late = tmp_path / "run", tmp_path / "run" / "rollouts" / "step-000002.parquet"
    kept = (made / "rollouts" / late.name).read_bytes()
    (made / "rollouts" / late.name).unlink()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    often = "import sys, turnwise.lab.report.live as live; live.EVERY_S = 0.2"
    often += "; from turnwise.commands.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", often, "report", "--live", str(run), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline().startswith(f"http://127.0.0.1:{port}/")
        assert 'data-live="yes"' in get(port, "/")
        waits = f"{run} does not exist yet; it appears once its training begins. Did you mean 'ran'?\n"
        assert server.stdout.readline() == waits
        assert summary(port)["waiting"] == ["run"]
        made.rename(run)
        wait_until(lambda: not summary(port)["waiting"])
        assert steps(port) == [1]
        late.write_bytes(kept)
        wait_until(lambda: steps(port) != [1])
        assert steps(port) == [1, 2]
        assert get(port, "/files/run0/step-000002.js").startswith("turnwise.take(")
        assert "Error code: 403" in get(port, "/", host="evil.example")
        assert "Error code: 404" in get(port, "/files/")
    finally:
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(120) == 0
        finally:
            server.kill()
            server.stdout.close()


def get(port: int, path: str, host: str | None = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def summary(port: int) -> dict:
    return json.loads(
        re.fullmatch(r'turnwise\.take\("summary", (.*)\);\n', get(port, "/files/summary.js"), re.DOTALL)[1]
    )


def steps(port: int) -> list[int]:
    return summary(port)["runs"][0]["steps"]["step"]


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.2)


def test_the_report_needs_no_torch(run, tmp_path):
    command = ["report", str(run), "--output", str(tmp_path / "page")]
    statement = f"import sys; from turnwise.commands.cli import main; main({command!r}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.stdout.split()[-1] == "False", done.stderr
