"""Tables as scripts: a page that was opened from disk may not read files, but it may load scripts."""

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

from turnwise.report.steps import outcomes
from turnwise.train.folder import write_text
from turnwise.train.recorded import TOKEN_ENTROPY, Step

SHOWN = ("group", "trajectory", "turn", "task", "observation", "response", "reward", "valid", "truncated", "state_key", "ended",
         "failure", "info")  # fmt: skip


def write_table(path: Path, name: str, table: pa.Table) -> None:
    """Write a table as a script that hands its Parquet bytes to the page under a name.

    Snappy, because the page's reader knows it without a further library.
    """
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="snappy", write_statistics=False)
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f'turnwise.take({json.dumps(name)}, "{content}");\n')


def write_value(path: Path, name: str, value: Any) -> None:
    """Write plain data as a script that hands it to the page under a name."""
    write_text(path, f"turnwise.take({json.dumps(name)}, {json.dumps(value, allow_nan=False)});\n")


def turns_table(step: Step, base_R: np.ndarray, others: Mapping[str, np.ndarray]) -> pa.Table:
    """What the page shows of a step, a row a response; advantages of other methods are columns named "as:METHOD"."""
    table = step.table.select(SHOWN)
    numbers = {
        **{name: step.values(name) for name in ("entropy", "alpha", "advantage")},
        "base": base_R,
        **{f"as:{name}": values for name, values in others.items()},
    }
    columns = {
        "outcome": pa.array(step.trajectories.broadcast(outcomes(step)).astype(np.int32)),
        "tokens": step.table["response_ids"],
        "shade": token_shades(step),
        **{name: pa.array(values.astype(np.float32), from_pandas=True) for name, values in numbers.items()},
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def token_shades(step: Step) -> pa.ChunkedArray:
    """A number of every token, in nats: its entropy where the run's engine measured it, else its surprisal, -log p."""
    logprobs = step.table["behavior_logprobs"].combine_chunks()
    offsets = np.concatenate([[0], np.cumsum(logprobs.value_lengths().to_numpy())])
    surprisal = -logprobs.flatten().to_numpy()
    shades = pa.chunked_array([pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(surprisal))])
    if not step.has_token_entropies:
        return shades
    return pc.call_function("coalesce", [step.table[TOKEN_ENTROPY], shades])
