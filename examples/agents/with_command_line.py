"""A command-line agent that takes a base URL, here `mini` of mini-swe-agent, as a command that `[harness]` runs.

    turnwise train my.toml 'harness.run=["python", "with_command_line.py"]' environment.name=my_tasks:Tasks

Base URL, key and model are in the variables that clients of OpenAI and Anthropic read.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = 4
SYSTEM = "You use bash. Once the task is done, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def main():
    """Play the task on standard input, and print its reward as the last line."""
    task = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "numbers.txt").write_text("".join(f"{number}\n" for number in range(task)))
        options = {
            "model.model_name": f"openai/{os.environ['OPENAI_MODEL']}",
            "agent.system_template": SYSTEM,
            "agent.instance_template": "{{task}}",
            "agent.step_limit": CALLS,
        }
        line = ["mini", "--yolo", "--exit-immediately", "--output", f"{folder}/log.json"]
        line += ["--task", "Write the sum of the lines of numbers.txt to sum.txt."]
        line += [part for name, value in options.items() for part in ("--config", f"{name}={value}")]
        own = {"MSWEA_CONFIGURED": "1", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        own |= {"MSWEA_GLOBAL_CONFIG_DIR": folder}
        subprocess.run(line, cwd=folder, env=os.environ | own, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        answer = Path(folder, "sum.txt")
        right = answer.is_file() and answer.read_text().strip() == str(sum(range(task)))
    print(json.dumps({"reward": float(right)}))


if __name__ == "__main__":
    main()
