"""Write a small log with Inspect itself: `python tests/crosscheck/gateway/make_inspect_log.py FOLDER [eval|json]`.

tests/integrations/logs/sums.eval comes from it. Two samples in two epochs, with a tool call, a right and wrong answers.
"""

import sys

import tiktoken
from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


class _Words:
    """Inspect counts the tokens of its stand-in model with an encoding that would be downloaded."""

    def encode(self, text, **options):
        return text.split()


@tool
def add():
    async def execute(x: int, y: int):
        """Add two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        return x + y

    return execute


def make(folder: str, kind: str) -> str:
    """Run the evaluation, and return the place of its log."""
    tiktoken.get_encoding = lambda name: _Words()
    answers = ["The sum is 2", "The sum is 3", "The sum is 4", "no idea"]
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 1}),
        *(ModelOutput.from_content("mockllm/model", answer) for answer in answers),
    ]
    samples = [Sample(id="one", input="1 + 1?", target="2"), Sample(id="two", input="2 + 2?", target="4")]
    task = Task(dataset=samples, solver=[use_tools(add()), generate()], scorer=includes(), epochs=2, name="sums")
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = run_eval(task, model=model, log_dir=folder, log_format=kind, display="none", max_samples=1)
    assert log.status == "success", log.error
    return str(log.location)


if __name__ == "__main__":
    print(make(sys.argv[1], (sys.argv[2:] or ["eval"])[0]))
