"""mini-swe-agent repairs a bug of our repair tasks through our gateway.

Its commands run in our sandbox, and our tests grade the repair: the reward that a harness would return.
"""

import asyncio
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="see benchmarks/requirements-gateway.txt")

sys.path.insert(0, str(Path(__file__).parents[3]))  # for the tests' helpers
from tests.crosscheck.gateway.test_harnesses import KEY, session
from tests.environments.swe.conftest import called, data, sandboxed, site, suite, task  # noqa: F401

pytestmark = pytest.mark.crosscheck
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
REPAIR = "sed -i 's/side + side/side * side/; 14s/-5/0/' shapes/__init__.py"


def block(command: str) -> str:
    return f"THOUGHT: next.\n```mswea_bash_command\n{command}\n```"


class Sandbox:
    """An environment of mini-swe-agent: a session of our repair tasks."""

    def __init__(self, played: Any):
        self.played, self.last = played, played.start()

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        from minisweagent.exceptions import Submitted

        command = action["command"]
        if command.strip() == f"echo {DONE}":
            self.last = self.played.step(called("submit"))
            raise Submitted({"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}})
        text, _, status = self.played.step(called("run", command=command)).observation.rpartition("[exit status ")
        return {"output": text, "returncode": int(status.rstrip("]") or -1), "exception_info": ""}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return more

    def serialize(self) -> dict[str, Any]:
        return {}


@pytest.mark.filterwarnings("ignore")  # litellm's own
def test_mini_swe_agent_repairs_a_bug(sandboxed, data, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setitem(os.environ, "MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    monkeypatch.setitem(os.environ, "MSWEA_COST_TRACKING", "ignore_errors")
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    agents = importlib.import_module("minisweagent.agents.default")
    models = importlib.import_module("minisweagent.models.litellm_textbased_model")
    texts = [block("cat shapes/__init__.py"), "I am thinking.", block(REPAIR), block(f"echo {DONE}")]
    with session(*texts) as (address, recorded):
        model = models.LitellmTextbasedModel(
            model_name="openai/policy",
            model_kwargs={"api_base": address, "api_key": KEY},
            cost_tracking="ignore_errors",
        )
        environment = Sandbox(suite(data).session(task()))
        agent = agents.DefaultAgent(model, environment, system_template="You repair.", instance_template="{{task}}")
        ended = agent.run(environment.last.observation)
        turns = recorded.trajectory.turns
    sys.modules["litellm"].in_memory_llm_clients_cache.flush_cache()
    for left in gc.get_objects():  # litellm's, which would be found when the tests end
        if isinstance(left, asyncio.BaseEventLoop) and not left.is_running():
            left.close()
    del model, agent
    gc.collect()
    assert ended["exit_status"] == "Submitted"
    assert (environment.last.reward, environment.last.info["success"]) == (10.0, True)
    assert [turn.fresh for turn in turns] == [True, False, True, False], (
        "it leaves a malformed response out of its history"
    )
    assert "side + side" in turns[1].observation
    assert "EXACTLY ONE action" in turns[2].observation
