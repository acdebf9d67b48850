"""An agent with its own game, loop and system prompt, to train through the gateway as a recipe trains natively.

    cd benchmarks && PYTHONPATH=. turnwise train household-smollm2-aem harness.run=household_agent:play run.name=agent

turnwise has the tasks, the warm start and the policy; what the policy reads comes from this file, over HTTP.
`play_tiny` plays the games of household-tiny-aem. docs/log.md has the comparison.
"""

import functools
import json
import urllib.request
from pathlib import Path
from typing import Any

from turnwise.config import load_config
from turnwise.environments.suites import make_suite


@functools.cache
def games(recipe: str) -> tuple[Any, Any]:
    """Return the settings and the games of a recipe."""
    config = load_config(Path(recipe))
    return config, make_suite(config.environment)


def play(task, endpoint):
    """Play one game of SmolLM2's recipe, and return its reward."""
    return play_game("household-smollm2-aem", task, endpoint)


def play_tiny(task, endpoint):
    """Play one game of the tiny policy's recipe, and return its reward."""
    return play_game("household-tiny-aem", task, endpoint)


def play_game(recipe, task, endpoint):
    """Play one game, and return its reward."""
    config, suite = games(recipe)
    game: Any = suite.environment(task)
    messages = [{"role": "system", "content": config.prompt.system}] if config.prompt.system else []
    messages.append({"role": "user", "content": game.start().observation})
    while True:
        messages.append(ask(endpoint, messages))
        step = game.step(messages[-1]["content"])
        if step.ended:
            return {"reward": step.reward, "success": step.info["success"]}
        messages.append({"role": "user", "content": step.observation})


def ask(endpoint, messages):
    """Ask the policy for its next message."""
    request = urllib.request.Request(
        f"{endpoint.base_url}/chat/completions",
        json.dumps({"model": endpoint.model, "messages": messages}).encode(),
        {"Authorization": f"Bearer {endpoint.api_key}"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]
