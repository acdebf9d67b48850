"""An agent of the package `smolagents`, as a function that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_smolagents:agent model.max_context=8192
"""

from smolagents import OpenAIModel, ToolCallingAgent, tool

from turnwise.worlds.storeroom.stock import Stock

CALLS = 3


def agent(task, endpoint):
    """Play a task, and return its reward."""
    stock = Stock(task)

    @tool
    def count(depot: str, part: str) -> dict:
        """Count a part in a depot.

        Args:
            depot: The depot.
            part: The part.
        """
        return stock.count(depot, part)

    @tool
    def reserve(depot: str, part: str, pieces: int) -> dict:
        """Reserve pieces of a part in a depot.

        Args:
            depot: The depot.
            part: The part.
            pieces: How many.
        """
        return stock.reserve(depot, part, pieces)

    @tool
    def release(depot: str, part: str, pieces: int) -> dict:
        """Release reserved pieces of a part in a depot.

        Args:
            depot: The depot.
            part: The part.
            pieces: How many.
        """
        return stock.release(depot, part, pieces)

    model = OpenAIModel(endpoint.model, api_base=endpoint.base_url, api_key=endpoint.api_key)
    own = ToolCallingAgent([count, reserve, release], model, max_steps=CALLS, verbosity_level=0)
    return float(stock.solved(str(own.run(stock.request))))
