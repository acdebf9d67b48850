"""An agent of the package `anthropic`, as a function that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_anthropic:agent
"""

import json

from anthropic import Anthropic

from turnwise.worlds.storeroom.stock import TOOLS, Stock

CALLS = 3
FUNCTIONS = [tool["function"] for tool in TOOLS]
OWN = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS]


def agent(task, endpoint):
    """Play a task, and return its reward."""
    stock, said = Stock(task), ""
    messages = [{"role": "user", "content": stock.request}]
    base_url = endpoint.base_url.removesuffix("/v1")  # this client adds it
    with Anthropic(base_url=base_url, api_key=endpoint.api_key, max_retries=0) as client:
        for _ in range(CALLS):
            answer = client.messages.create(model=endpoint.model, max_tokens=1024, messages=messages, tools=OWN)
            messages.append({"role": "assistant", "content": answer.content})
            said = "".join(block.text for block in answer.content if block.type == "text")
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": stock.call(block.name, json.dumps(block.input)),
                }
                for block in answer.content
                if block.type == "tool_use"
            ]
            if not results:
                break
            messages.append({"role": "user", "content": results})
    return float(stock.solved(said))
