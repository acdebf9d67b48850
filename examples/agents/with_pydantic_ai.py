"""An agent of the package `pydantic-ai`, as a function that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_pydantic_ai:agent
"""

from openai import AsyncOpenAI
from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from turnwise.worlds.storeroom.stock import Stock

CALLS = 3


async def agent(task, endpoint):
    """Play a task, and return its reward."""
    stock = Stock(task)
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        model = OpenAIChatModel(endpoint.model, provider=OpenAIProvider(openai_client=client))
        own = Agent(model, tools=[stock.count, stock.reserve, stock.release])
        try:
            said = (await own.run(stock.request, usage_limits=UsageLimits(request_limit=CALLS))).output
        except (UsageLimitExceeded, UnexpectedModelBehavior):  # raised, they would lose the trajectory
            said = ""
    return float(stock.solved(said))
