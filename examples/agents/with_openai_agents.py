"""An agent of the package `openai-agents`, as a function that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_openai_agents:agent
"""

import json

from agents import Agent, MaxTurnsExceeded, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from turnwise.worlds.storeroom.stock import Stock

CALLS = 3


async def agent(task, endpoint):
    """Play a task, and return its reward."""
    stock = Stock(task)

    @function_tool
    def count(depot: str, part: str) -> str:
        """Count a part in a depot."""
        return json.dumps(stock.count(depot, part))

    @function_tool
    def reserve(depot: str, part: str, pieces: int) -> str:
        """Reserve pieces of a part in a depot."""
        return json.dumps(stock.reserve(depot, part, pieces))

    @function_tool
    def release(depot: str, part: str, pieces: int) -> str:
        """Release reserved pieces of a part in a depot."""
        return json.dumps(stock.release(depot, part, pieces))

    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        model = OpenAIChatCompletionsModel(model=endpoint.model, openai_client=client)
        own = Agent(name="storeroom", model=model, tools=[count, reserve, release])
        how = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI
        try:
            said = (await Runner.run(own, stock.request, max_turns=CALLS, run_config=how)).final_output
        except MaxTurnsExceeded:  # raised, it would lose the trajectory
            said = ""
    return float(stock.solved(said))
