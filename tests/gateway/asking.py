"""Ask a gateway from tests: sessions without HTTP, and harnesses that play real games over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.toys import Colors, ScriptedEngine
from turnwise.engines.base import Sampling
from turnwise.environments.base import as_step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.extensions.gateway.dialects import chat
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.extensions.gateway.session import Serving, Session
from turnwise.models.format import Format

HOUSEHOLD = EnvironmentConfig(max_steps=4, options={"size": "tiny", "num_train": 12})
suite = make_suite(HOUSEHOLD)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(messages: list[dict[str, Any]], **more: Any):
    return chat.read(json.dumps({"messages": messages, **more}).encode())


def serving(fmt: Format, engine: Any, **more: Any) -> Serving:
    sampling = Sampling(max_new_tokens=4, stop_ids=(fmt.stop_id,))
    return Serving(**{"engine": engine, "fmt": fmt, "sampling": sampling, "max_context": 4096, **more})


def scripted(fmt: Format, responses: Sequence[list[int]], **more: Any) -> tuple[Session, ScriptedEngine]:
    """A session of an engine that answers its calls with these ids, in order. To be made in an event loop."""
    left = iter(responses)
    engine = ScriptedEngine(lambda conversation, turn: next(left))
    return Session(serving(fmt, engine, **more), 0), engine


def post(endpoint: Endpoint, path: str, content: Any, **headers: str) -> Any:
    """Send JSON, as a harness without any package would."""
    given = {"Authorization": f"Bearer {endpoint.api_key}", **headers}
    request = urllib.request.Request(f"{endpoint.base_url}/{path}", json.dumps(content).encode(), given)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def ask(endpoint: Endpoint, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    try:
        return post(endpoint, "chat/completions", {"messages": messages, **more})["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(json.load(error)["error"]["message"]) from None


def play_household(task: Any, endpoint: Endpoint) -> dict[str, Any]:
    """A harness: the loop of observation and response, over HTTP."""
    game = suite.environment(task)
    step: Any = as_step(game.start())
    messages, reward = [], 0.0
    while not step.ended:
        messages.append(user(step.observation))
        messages.append(ask(endpoint, messages))
        step = game.step(messages[-1]["content"])
        reward += step.reward
    return {"reward": reward, "success": step.info["success"], "info": {"steps": len(messages) // 2}}


def play_toy(task: Any, endpoint: Endpoint) -> dict[str, Any]:
    """A harness that plays the colors of `tests.toys`, two turns long."""
    game = Colors(task, turns=2)
    messages, reward = [user(game.start())], 0.0
    while True:
        messages.append(ask(endpoint, messages))
        step = game.step(messages[-1]["content"])
        reward += step.reward
        if step.ended:
            return {"reward": reward, "success": step.info["success"]}
        messages.append(user(step.observation))
