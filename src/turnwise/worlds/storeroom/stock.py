"""Make the database of a storeroom, its tools, its tasks, and a script that solves them."""

import json
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds

DEPOTS = {
    "north": ("bolt", "nut", "screw", "washer"),
    "south": ("cable", "plug", "fuse", "switch"),
    "east": ("paint", "glue", "brush", "tape"),
    "west": ("pipe", "valve", "pump", "hose"),
    "hill": ("lamp", "bulb", "cord", "shade"),
    "port": ("board", "beam", "panel", "plank"),
}
"""Which parts each depot keeps. No tool and no prompt says so; a look costs a call."""
CHANGES = {"reserve": 1, "release": -1}
"""How much each piece of a request changes what is reserved."""
SCHEMA = "CREATE TABLE stock (depot TEXT, part TEXT, pieces INTEGER, reserved INTEGER)"
MISSING = {"error": "not in this depot"}


class Stock:
    """A database of parts, and the request of one task.

    Args:
        seed: Draws how many pieces there are, and the request.
        moved: Let it also draw which depot keeps what.

    Attributes:
        request: What the agent is asked to do, such as "Reserve 4 pipe."
    """

    def __init__(self, seed: int, *, moved: bool = False):
        draw = random.Random(f"storeroom {seed}")
        self._data = sqlite3.connect(":memory:", check_same_thread=False)
        self._data.execute(SCHEMA)
        places = [(depot, part) for depot, parts in DEPOTS.items() for part in parts]
        if moved:
            parts = [part for _, part in places]
            draw.shuffle(parts)
            places = [(depot, part) for (depot, _), part in zip(places, parts, strict=True)]
        rows = [(*place, draw.randint(2, 9), 20) for place in places]
        self._data.executemany("INSERT INTO stock VALUES (?, ?, ?, ?)", rows)
        kind, pieces, (depot, part, there, _) = draw.choice([*CHANGES, "count"]), draw.randint(2, 9), draw.choice(rows)
        self.request = f"{kind.title()} {part}." if kind == "count" else f"{kind.title()} {pieces} {part}."
        self._answer = str(there) if kind == "count" else None
        change = CHANGES.get(kind, 0) * pieces
        self._right = [(*row[:3], row[3] + change * (row[:2] == (depot, part))) for row in rows]

    def count(self, depot: str, part: str) -> dict[str, Any]:
        """Return how many pieces of a part a depot has."""
        row = self._data.execute("SELECT pieces FROM stock WHERE depot = ? AND part = ?", (depot, part)).fetchone()
        return {"pieces": row[0]} if row else MISSING

    def reserve(self, depot: str, part: str, pieces: int) -> dict[str, Any]:
        """Reserve pieces of a part in a depot."""
        return self._change(depot, part, pieces)

    def release(self, depot: str, part: str, pieces: int) -> dict[str, Any]:
        """Release reserved pieces of a part in a depot."""
        return self._change(depot, part, -pieces)

    def _change(self, depot: str, part: str, pieces: int) -> dict[str, Any]:
        update = "UPDATE stock SET reserved = reserved + ? WHERE depot = ? AND part = ?"
        return {"done": True} if self._data.execute(update, (pieces, depot, part)).rowcount else MISSING

    def call(self, name: str, arguments: str) -> str:
        """Call a tool with its arguments as JSON, and return its result as JSON; a mistake is a result too."""
        tools: dict[str, Callable[..., Any]] = {"count": self.count, "reserve": self.reserve, "release": self.release}
        try:
            return json.dumps(tools[name](**json.loads(arguments)) if name in tools else {"error": "no such tool"})
        except (TypeError, ValueError, OverflowError, sqlite3.Error):
            return json.dumps({"error": "wrong arguments"})

    def solved(self, answer: str) -> bool:
        """Return whether the database is as requested, and the agent's last answer right if a number was asked for."""
        rows = self._data.execute("SELECT * FROM stock").fetchall()
        return rows == self._right and self._answer in (None, answer.strip())

    def close(self) -> None:
        """Release the database."""
        self._data.close()


def _tool(name: str, description: str, **kinds: str) -> dict[str, Any]:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": [*kinds]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("count", f"Count a part in a depot: {', '.join(DEPOTS)}.", depot="string", part="string"),
    _tool("reserve", "Reserve pieces of a part in a depot.", depot="string", part="string", pieces="integer"),
    _tool("release", "Release pieces of a part in a depot.", depot="string", part="string", pieces="integer"),
]
"""The tools, as chat completions describe them."""


class Tasks:
    """The tasks of a recipe. Options: num_train, num_valid."""

    def __init__(self, config: EnvironmentConfig, *, num_train: int = 150, num_valid: int = 50):
        self._counts = {"train": num_train, "valid": num_valid}

    def tasks(self, split: str) -> Sequence[int]:
        """Return the seeds of a split."""
        return split_seeds(split, self._counts.get(split, 50), of="storeroom")

    def task_name(self, task: int) -> str:
        """Name a task in records."""
        return f"storeroom-{task}"


def expert(request: str, results: Sequence[str], depots: Sequence[str]) -> dict[str, Any]:
    """Return the message of a script that does not know which depot keeps what, and tries them in turn.

    Args:
        request: What the agent is asked to do.
        results: Results of its calls so far.
        depots: The depots, in the order in which it tries them.
    """
    if results and "error" not in results[-1]:
        return {"role": "assistant", "content": str(json.loads(results[-1]).get("pieces", "Done."))}
    kind, *pieces, part = request.strip(".").split()
    arguments = {"depot": depots[len(results)], "part": part} | ({"pieces": int(pieces[0])} if pieces else {})
    function = {"name": kind.lower(), "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def conversations(number: int = 500) -> Iterator[dict[str, Any]]:
    """Record the expert where the same parts are in other depots: it shows how to ask, not where.

    Yields:
        Messages and tools, as a log of chat completions has them.
    """
    for seed in split_seeds("test", number, of="storeroom"):
        stock, results = Stock(seed, moved=True), list[str]()
        depots = random.Random(f"expert {seed}").sample([*DEPOTS], len(DEPOTS))
        messages: list[dict[str, Any]] = [{"role": "user", "content": stock.request}]
        while "tool_calls" in (answer := expert(stock.request, results, depots)):
            function = answer["tool_calls"][0]["function"]
            results.append(stock.call(function["name"], function["arguments"]))
            messages += [answer, {"role": "tool", "tool_call_id": "c", "content": results[-1]}]
        stock.close()
        yield {"messages": [*messages, answer], "tools": TOOLS}
