"""Define the tools of the desk, and read the calls of responses."""

import json
import re
from collections.abc import Mapping
from typing import Any

from turnwise.credit.shaping.tool_calls import ToolCall
from turnwise.environments.tool_calls import read_json, read_tool_calls, without_reasoning
from turnwise.worlds.helpdesk.desk import Desk

_BARE = re.compile(r"\s*(\w+)\s*(\{.*\})\s*\Z", re.DOTALL)


def _tool(name: str, description: str, /, **arguments: tuple[str, str]) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": what} for key, (kind, what) in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": [*arguments], "additionalProperties": False}
    return {"name": name, "description": description, "parameters": schema}


TOOLS = {
    tool["name"]: tool
    for tool in (
        _tool("customer", "Find a customer's number.", name=("string", "first name"), city=("string", "city")),
        _tool("orders", "List a customer's orders.", customer=("integer", "number of the customer")),
        _tool("order", "Show an order: status, products and quantities.", order=("integer", "number of the order")),
        _tool("product", "Show a product: name, price, stock.", product=("integer", "number of the product")),
        _tool("answer", "Answer the question, which ends the task.", value=("string", "one word or number")),
    )
}
"""JSON schema of every tool, by name."""
KINDS = {"string": str, "integer": int}


def read_call(response: str) -> ToolCall | str:
    """Read the one tool call of a response, or say what is wrong with it.

    Both `<tool_call>{"name": "order", "arguments": {"order": 3}}</tool_call>` and `order {"order": 3}` will do. Spaces
    around names and texts are ignored, since tiny policies write every word apart.
    """
    _, calls = read_tool_calls(response)
    bare = _BARE.match(without_reasoning(response))
    if len(calls) == 1 and not calls[0].malformed:
        name, arguments = calls[0].name, json.loads(calls[0].arguments)
    elif bare and not calls:
        name = bare[1]
        try:
            arguments = read_json(bare[2])
        except ValueError:
            return "the arguments are not JSON"
    else:
        return "expected one tool call"
    if name not in TOOLS:
        return f"no tool {name[:40]}"
    given = {key.strip(): value.strip() if isinstance(value, str) else value for key, value in arguments.items()}
    return _misfit(name, given) or ToolCall(name, given)


def _misfit(name: str, given: Mapping[str, Any]) -> str:
    """Say how arguments differ from the tool's schema; empty if they do not. An answer may be a number."""
    wanted = TOOLS[name]["parameters"]["properties"]
    if given.keys() != wanted.keys():
        return f"{name} takes {' and '.join(wanted)}"
    for key, value in given.items():
        kind = wanted[key]["type"]
        number = isinstance(value, int) and not isinstance(value, bool)
        if not (isinstance(value, KINDS[kind]) and not isinstance(value, bool)) and not (name == "answer" and number):
            return f"{key} must be of type {kind}"
    return ""


def call_tool(desk: Desk, call: ToolCall) -> dict[str, Any]:
    """Return what a tool other than `answer` finds."""
    key = next(iter(call.arguments.values()))
    if call.name == "customer":
        wanted = call.arguments["name"], call.arguments["city"]
        found = [number for number, each in desk.customers.items() if (each.name, each.city) == wanted]
        return {"customer": found[0]} if found else {"error": "no such customer"}
    if call.name == "orders":
        rows = [{"order": number, "day": row.day} for number, row in desk.orders.items() if row.customer == key]
        return {"orders": rows} if key in desk.customers else {"error": "no such customer"}
    if call.name == "order":
        if key not in desk.orders:
            return {"error": "no such order"}
        row = desk.orders[key]
        return {"status": row.status, "lines": [{"product": each, "quantity": n} for each, n in row.lines]}
    if key not in desk.products:
        return {"error": "no such product"}
    product = desk.products[key]
    return {"name": product.name, "price": product.price, "stock": product.stock}
