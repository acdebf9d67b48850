"""Agents of the package `openai`, by chat completions and by responses, as functions that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_openai:agent
"""

from openai import OpenAI

from turnwise.worlds.storeroom.stock import TOOLS, Stock

CALLS = 3


def agent(task, endpoint):
    """Play a task with chat completions, and return its reward."""
    stock, said = Stock(task), ""
    messages = [{"role": "user", "content": stock.request}]
    with OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        for _ in range(CALLS):
            answer = client.chat.completions.create(model=endpoint.model, messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                said = message.content or ""
                break
            for call in message.tool_calls:
                result = stock.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return float(stock.solved(said))


def responses_agent(task, endpoint):
    """Play a task with the Responses API, which keeps the history by the id of the last answer."""
    stock, said, last = Stock(task), "", None
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
    items = [{"role": "user", "content": stock.request}]
    with OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        for _ in range(CALLS):
            more = {"previous_response_id": last} if last else {}
            answer = client.responses.create(model=endpoint.model, input=items, tools=tools, **more)
            last, said = answer.id, answer.output_text
            items = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": stock.call(item.name, item.arguments),
                }
                for item in answer.output
                if item.type == "function_call"
            ]
            if not items:
                break
    return float(stock.solved(said))
