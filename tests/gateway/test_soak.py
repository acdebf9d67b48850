"""`turnwise gateway` among callers that are malformed or slow; TURNWISE_SOAK_S=600 for ten minutes."""

import asyncio
import json

from tests import soak
from tests.gateway.asking import ask, post, user
from tests.toys import small_config
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train

AGENTS = 4


def request(path: str, content: object) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


CHAT = "/s/bad/v1/chat/completions"
BAD = {
    **soak.BAD,
    "no session": request("/v1/chat/completions", {"messages": [user("x")]}),
    "no messages": request(CHAT, {"messages": []}),
    "deep JSON": request(CHAT, b"[" * 100_000),
    "not UTF-8": request(CHAT, b"\xff\xfe"),
    "huge number": request(CHAT, b'{"messages": [], "n": 1e999}'),
    "too long": request(CHAT, {"messages": [user("red " * 5000)]}),
    "a reward of text": request("/s/bad/v1/reward", "all of it"),
}


def test_a_soak_loses_no_session_and_memory_and_files_stay_flat(tmp_path):
    run, out = train(small_config(tmp_path, run={"steps": 0}, evaluate={"final_episodes": 1})), tmp_path / "seen"
    command = [
        "gateway",
        str(run.path),
        "--out",
        str(out),
        "--port",
        "0",
        "--batch",
        "4",
    ]  # what writing a step loads is there early

    lost: list[str] = []

    def play(url: str, number: int, until: float) -> list[str]:
        names: list[str] = []
        while loop.time() < until:
            names.append(f"agent-{number}-{len(names)}")
            endpoint = Endpoint(f"{url}/s/{names[-1]}/v1", "any", "policy")
            said = [user("say red")]
            try:
                said.append({"role": "assistant", "content": ask(endpoint, said)["content"]})
                ask(endpoint, [*said, user("say green")])
                post(endpoint, "reward", float(number))
            except (OSError, RuntimeError) as error:
                lost.append(f"{names[-1]} after {soak.SECONDS + loop.time() - until:.0f} s: {error!r}")
        return names

    with soak.serving(command, r"at (http://127\.0\.0\.1:\d+)/s/NAME", "turnwise.extensions.gateway.http") as (
        url,
        process,
        end,
    ):
        loop = asyncio.new_event_loop()

        async def together():
            until = loop.time() + soak.SECONDS
            agents = (asyncio.to_thread(play, url, number, until) for number in range(AGENTS))
            return await asyncio.gather(soak.soak(url, soak.SECONDS, "/v1/models", process=process, bad=BAD), *agents)

        told, *played = loop.run_until_complete(together())
        loop.close()
        said = end()
    print(told, [len(names) for names in played])
    assert (lost, told["lost"], told["server errors"]) == ([], [], [])
    assert told["answers"]["slow ended"] >= 40, "a slow caller was not ended"
    assert told["files"][1] <= told["files"][0]
    assert soak.is_flat(told["memory_mb"])
    assert "Traceback" not in said
    recorded = [each for path in sorted((out / "rollouts").iterdir()) for each in read_rollouts(path)[0]]
    good = {each.task: each for each in recorded if each.failure is None}
    assert good.keys() == {name for names in played for name in names}
    for name, each in good.items():
        assert (len(each.turns), each.reward) == (2, float(name.split("-")[1]))
