"""Play the help desk: one question.

what is the status of the order of ann from oslo of day 4?
customer {"name": "ann", "city": "oslo"}                      {"customer": 17}
orders {"customer": 17}                                       {"orders": [{"order": 5, "day": 4}]}
order {"order": 5}                                            {"status": "sent", "lines": [...]}
answer {"value": "sent"}                                      right
"""

import json

from turnwise.base.errors import EnvironmentFault
from turnwise.credit.shaping.tool_calls import Rule, ToolCall, turn_rewards
from turnwise.environments.base import Step
from turnwise.environments.tool_calls import describe_tools
from turnwise.worlds.helpdesk.desk import Desk
from turnwise.worlds.helpdesk.tools import TOOLS, call_tool, read_call

ENDS = {True: "right", False: "wrong"}


class HelpdeskEnvironment:
    """One question about a database, answered by tool calls; a response is one call.

    A malformed call is invalid, and takes its turn. Every step tells the turn rewards so far, by which the calls match
    the reference (`info["step_rewards"]`), and the right answer (`info["gold"]`).

    Args:
        desk: Database and question.
        max_steps: Turns after which the trajectory is truncated.
        success_reward: Reward of the right answer.
        explain: Whether the first observation describes the tools, as a chat model needs it.
        rule: How calls are matched with the reference, see `turnwise.credit.shaping.tool_calls.match_calls`.
    """

    gives = ("gold", "step_rewards")

    def __init__(
        self,
        desk: Desk,
        *,
        max_steps: int = 10,
        success_reward: float = 10.0,
        explain: bool = False,
        rule: Rule = "assignment",
    ):
        self._desk, self._max_steps, self._reward = desk, max_steps, success_reward
        self._explain = explain
        self._rule: Rule = rule
        self._calls: list[list[ToolCall]] | None = None  # of each turn
        self._ended = False

    def start(self) -> Step:
        """Ask the question."""
        self._calls = []
        tools = describe_tools([*TOOLS.values()]) + "\n" if self._explain else ""
        return Step(observation=tools + self._desk.question, state_key=self._state())

    def step(self, response: str) -> Step:
        """Carry out a tool call.

        Raises:
            EnvironmentFault: The question has not been asked, or is answered.
        """
        if self._calls is None or self._ended:
            raise EnvironmentFault(f"step() {'after the end' if self._ended else 'before start()'} of a question.")
        call = read_call(response)
        answer = str(call.arguments["value"]) if isinstance(call, ToolCall) and call.name == "answer" else None
        self._calls.append([call] if isinstance(call, ToolCall) and answer is None else [])
        right = answer is not None and answer.lower() == self._desk.answer
        self._ended = answer is not None or len(self._calls) == self._max_steps
        if isinstance(call, str):
            observation = json.dumps({"error": call})
        else:
            observation = ENDS[right] if answer is not None else json.dumps(call_tool(self._desk, call))
        told = turn_rewards(self._calls, self._desk.calls, answer=answer, gold=self._desk.answer, rule=self._rule)
        return Step(
            observation=observation,
            reward=self._reward * right,
            terminated=answer is not None,
            truncated=answer is None and self._ended,
            valid=isinstance(call, ToolCall),
            state_key=self._state(),
            info={
                "success": right,
                "task_type": self._desk.kind,
                "gold": self._desk.answer,
                "gold_form": 'answer {"value": "{gold}"}',
                "step_rewards": told.tolist(),
            },
        )

    def _state(self) -> tuple[str, tuple[str, ...]]:
        """Name the state: the question, and what has been looked up, in any order."""
        known = {f"{call.name} {sorted(call.arguments.items())}" for of_turn in self._calls or () for call in of_turn}
        return self._desk.question, tuple(sorted(known))
