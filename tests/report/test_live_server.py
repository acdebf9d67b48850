"""`report --live` among callers that are malformed, slow, or elsewhere; TURNWISE_SOAK_S=600 for ten minutes."""

import asyncio
import http.client
import queue
import socket
import sys
import threading
import time

import pytest
from tests import soak
from tests.report.browser import serving
from tests.report.synthetic import write_run
from tests.toys import small_config

from turnwise.lab.report import live
from turnwise.train.loop import train


@pytest.fixture
def page(tmp_path):
    (tmp_path / "index.html").write_text("<p>the page</p>")
    return tmp_path


@pytest.fixture
def url(page):
    with serving(page) as url:
        yield url


@pytest.fixture
def guarded(page):
    with serving(page, "the-token") as url:
        yield url


def ask(url: str, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_soak_loses_no_good_request_and_memory_and_files_stay_flat(tmp_path):
    run = train(small_config(tmp_path, run={"steps": 2}, evaluate={"final_episodes": 1}))
    command = ["report", str(run.path), "--live", "--port", "0"]
    with soak.serving(command, r"(http://127\.0\.0\.1:\d+)/", "turnwise.lab.report.live") as (url, process, end):
        told = asyncio.run(soak.soak(url, soak.SECONDS, process=process))
        said = end()
    print(told)
    assert told["lost"] == []
    assert told["server errors"] == []
    assert told["good"] > 40
    assert told["answers"]["slow ended"] >= 40, "a slow caller was not ended"
    assert told["files"][1] <= told["files"][0]
    assert soak.is_flat(told["memory_mb"])
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("method", "path", "host", "code"),
    [
        ("GET", "/", "evil.example", 403),
        ("HEAD", "/", "evil.example", 403),
        ("POST", "/", "127.0.0.1", 405),
        ("GET", "/%00", "127.0.0.1", 400),
        ("GET", "/none", "127.0.0.1", 404),
        ("HEAD", "/", "127.0.0.1", 200),
    ],
)
def test_a_callers_mistake_is_4xx(url, method, path, host, code):
    assert ask(url, path, method, Host=host).status == code


def test_pages_of_other_sites_are_refused(url):
    for told in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}):
        assert ask(url, "/", **told).status == 403
    assert ask(url, "/", Origin=url).status == 200
    assert ask(url, "/", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200


def test_a_page_for_other_machines_needs_its_token_once(guarded):
    assert ask(guarded, "/").status == 401
    assert ask(guarded, "/?token=wrong").status == 401
    greeted = ask(guarded, "/?token=the-token")
    assert greeted.status == 200
    cookie = greeted.getheader("Set-Cookie", "")
    assert "HttpOnly; SameSite=Strict" in cookie
    assert ask(guarded, "/", Cookie=cookie.partition(";")[0]).status == 200
    assert ask(guarded, "/", Cookie="turnwise=wrong").status == 401
    assert ask(guarded, "/", Cookie="turnwise=\xe4").status == 401


def test_the_address_for_other_machines_has_the_token_that_a_caller_needs(tmp_path, monkeypatch):
    servers, ready, listen = [], queue.Queue(), live._listen
    monkeypatch.setattr(live, "_listen", lambda *about: servers.append(listen(*about)) or servers[0])
    run = write_run(tmp_path / "run", steps=1)
    serve = {"host": "0.0.0.0", "port": 0, "on_ready": ready.put}
    thread = threading.Thread(target=live.serve_report, args=([run], []), kwargs=serve)
    thread.start()
    try:
        place, _, token = ready.get(timeout=60).partition("/?token=")
        assert len(token) > 20
        url = place.replace("0.0.0.0", "127.0.0.1")
        assert ask(url, "/").status == 401
        assert ask(url, f"/?token={token}").status == 200
    finally:
        servers[0].shutdown()
        thread.join()


def test_a_good_caller_waits_for_slow_ones_that_hold_all_connections(page, monkeypatch):
    monkeypatch.setattr(live, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(live, "HEADERS_S", 1.0)
    with serving(page) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        begun = time.monotonic()
        with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
            assert ask(url, "/", Host="127.0.0.1").status == 200
        assert time.monotonic() - begun >= live.HEADERS_S, "it was served beside the slow ones"
