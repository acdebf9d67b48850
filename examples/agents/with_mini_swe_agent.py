"""An agent of the package `mini-swe-agent`, with bash as its tool, as a function that `[harness]` runs.

    turnwise train my.toml harness.run=with_mini_swe_agent:agent environment.name=with_mini_swe_agent:Tasks

Its commands can do what you can: harness.isolation = "bubblewrap" stops that.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no prices are downloaded
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

CALLS = 4
SYSTEM = "You use bash. Once the task is done, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Tasks:
    """Numbers to add up: a task is how many."""

    def __init__(self, config):
        pass

    def tasks(self, split):
        """Return the tasks of a split."""
        return list(range(2, 42)) if split == "train" else list(range(42, 62))

    def task_name(self, task):
        """Name a task in records."""
        return f"{task} numbers"


def agent(task, endpoint):
    """Play a task, and return its reward."""
    model = LitellmModel(
        model_name=f"openai/{endpoint.model}",
        model_kwargs={"api_base": endpoint.base_url, "api_key": endpoint.api_key, "num_retries": 0},
        cost_tracking="ignore_errors",
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "numbers.txt").write_text("".join(f"{number}\n" for number in range(task)))
        own = DefaultAgent(
            model,
            LocalEnvironment(cwd=folder),
            system_template=SYSTEM,
            instance_template="{{task}}",
            step_limit=CALLS,
        )
        own.run("Write the sum of the lines of numbers.txt to sum.txt.")
        answer = Path(folder, "sum.txt")
        return float(answer.is_file() and answer.read_text().strip() == str(sum(range(task))))
