"""Write tables as scripts, because a page opened from disk may load scripts but not read files."""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnwise.base.files import write_text
from turnwise.lab.report.blocks import blocks_column, traced_blocks
from turnwise.lab.report.steps import outcomes
from turnwise.rollout.tree_rows import PREFIX
from turnwise.train.recorded import TOKEN_ENTROPY, RecordedStep, base_advantage

SHOWN = (
    "group",
    "trajectory",
    "turn",
    "task",
    "observation",
    "response",
    "reward",
    "valid",
    "truncated",
    "state_key",
    "ended",
    "failure",
    "info",
)
LONGEST = 2000
"""Characters of a message that an agent sent besides the observation."""


def write_table(path: Path, name: str, table: pa.Table) -> None:
    """Write a table as a script that hands its Parquet bytes to the page under a name.

    Snappy compression needs no extra library in the page.
    """
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="snappy", write_statistics=False)
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f'turnwise.take({json.dumps(name)}, "{content}");\n')


def write_value(path: Path, name: str, value: Any) -> None:
    """Write plain data as a script that hands it to the page under a name."""
    write_text(path, f"turnwise.take({json.dumps(name)}, {json.dumps(value, allow_nan=False)});\n")


def turns_table(step: RecordedStep, others: Mapping[str, np.ndarray], *, invalid_penalty: float) -> pa.Table:
    """Build what the page shows of a step, one row per response.

    Args:
        step: Recorded rollouts of the step.
        others: Advantages of other methods by name; their columns are named "as:METHOD".
        invalid_penalty: `environment.invalid_penalty` of the run.

    Returns:
        Recorded columns; the outcome; whether the turn was played; what an agent sent besides; tokens, if known, with
        their shades; entropy, base, alpha and advantage; and `trace`, a list of what each block did: block,
        coefficient, added, result and part, see `turnwise.lab.report.blocks`; and the columns of `shared_turns`.
    """
    table = step.table.select(SHOWN)
    numbers = {
        **{name: step.values(name) for name in ("entropy", "alpha", "advantage")},
        "base": base_advantage(step, invalid_penalty=invalid_penalty),
        **{f"as:{name}": values for name, values in others.items()},
    }
    columns = {
        "outcome": pa.array(step.trajectories.broadcast(outcomes(step)).astype(np.int32)),
        "played": pa.array(step.num_tokens_R != 0),
        "sent": sent_besides(step),
        "tokens": filled(step.table["response_ids"]),
        "shade": token_shades(step),
        **shared_turns(step),
        "trace": blocks_column(step, traced_blocks(step, invalid_penalty=invalid_penalty)),
        **{name: pa.array(values.astype(np.float32), from_pandas=True) for name, values in numbers.items()},
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def sent_besides(step: RecordedStep) -> pa.Array:
    """Return what an agent's request added to its conversation besides the observation: a list of texts per response.

    Answers of the policy that an agent sends again in an edited history are among them; long texts are shortened.
    """
    if "request" not in step.table.column_names:
        return pa.nulls(step.table.num_rows, pa.list_(pa.string()))
    return pa.array(
        [text and _sent(json.loads(text)) for text in step.table["request"].to_pylist()], pa.list_(pa.string())
    )


def _sent(request: Mapping[str, Any]) -> list[str]:
    names = [_name(tool) for tool in request.get("tools", ()) if isinstance(tool, dict)]
    told = [f"tools: {', '.join(names)}"] if names else []
    for message in request["messages"]:
        calls = [
            f"{call['function']['name']}({json.dumps(call['function']['arguments'])})"
            for call in message.get("tool_calls", ())
        ]
        if text := "\n".join(filter(None, (message.get("content"), *calls))):
            told.append(f"{message['role']}: {text if len(text) <= LONGEST else f'{text[:LONGEST]}...'}")
    return told


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    return str(function.get("name") if isinstance(function, dict) else function)


def shared_turns(step: RecordedStep) -> dict[str, pa.Array]:
    """Describe the trees of a step, one value per response.

    Returns:
        `num_paths`: number of trajectories that contain the response. `parent`: for the first response that a fork gave
        itself, the trajectory that gave the response before it; else null.
    """
    num_rows = step.table.num_rows
    if PREFIX not in step.table.column_names:
        return {"num_paths": pa.array(np.ones(num_rows, dtype=np.int32)), "parent": pa.nulls(num_rows, pa.int32())}
    trajectory_R = step.table["trajectory"].to_numpy()
    _, first, inverse = np.unique(step.table[PREFIX].to_numpy(), return_index=True, return_inverse=True)
    owner_R = trajectory_R[first[inverse]]
    before_R = np.roll(owner_R, 1)  # of the response before it, in the same trajectory
    begins_R = (step.trajectories.positions > 0) & (owner_R == trajectory_R) & (before_R != trajectory_R)
    return {
        "num_paths": pa.array(np.bincount(inverse)[inverse].astype(np.int32)),
        "parent": pa.array(before_R.astype(np.int32), mask=~begins_R),
    }


def filled(lists: pa.ChunkedArray) -> pa.ListArray:
    """Return a column of lists with empty ones where the tokens are unknown."""
    array = lists.combine_chunks()
    if not array.null_count:
        return array
    ends = np.cumsum(array.value_lengths().fill_null(0).to_numpy())
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]).astype(np.int32)), array.flatten())


def token_shades(step: RecordedStep) -> pa.ChunkedArray:
    """Return a number per token (nats): its entropy if the run recorded it, else its surprisal, -log p."""
    logprobs = filled(step.table["behavior_logprobs"])
    offsets = np.concatenate([[0], np.cumsum(logprobs.value_lengths().to_numpy())])
    surprisal = -logprobs.flatten().to_numpy()
    shades = pa.chunked_array([pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(surprisal))])
    if not step.has_token_entropies:
        return shades
    return pc.call_function("coalesce", [step.table[TOKEN_ENTROPY], shades])
