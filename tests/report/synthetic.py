"""Run folders made up for the tests, as large as asked for, in the shape that training leaves them."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.base.files import write_json
from turnwise.config import parse_config
from turnwise.credit.batch import Batch
from turnwise.credit.methods.build import build_method
from turnwise.credit.segments import Segments
from turnwise.credit.transform import Transform, chain
from turnwise.credit.transforms import add_penalty
from turnwise.rollout.record import SCHEMA

WORDS = np.array(["go", "to", "open", "take", "the", "cabinet", "drawer", "mug", "1", "2", "<end>"])
PENALTY = 0.1


def write_run(
    path: Path,
    *,
    steps: int = 4,
    groups: int = 3,
    group_size: int = 4,
    turns: int = 4,
    seed: int = 0,
    failed: bool = True,
    method: Transform | None = None,
    level: bool = False,
) -> Path:
    """Write a run of GRPO with AEM, or of another method.

    With `failed`, the last trajectory of each step was lost before its first turn. With `level`, no trajectory of each
    step's first group succeeds, so that the group has no contrast.
    """
    path.mkdir(parents=True)
    settings = {
        "run": {"name": path.name, "folder": str(path.parent), "steps": steps},
        "method": {"name": "grpo"},
        "environment": {"invalid_penalty": PENALTY},
        "rollout": {"groups": groups, "group_size": group_size},
    }
    config = parse_config(settings)
    write_json(path / "config.json", {"config": config.model_dump(mode="json"), "created": "2026-01-01T00:00:00Z"})
    write_tokenizer(path / "checkpoints" / "step-000000" / "tokenizer.json")
    (path / "rollouts").mkdir()
    method = method or build_method("grpo+aem", {})
    generator, records = np.random.default_rng(seed), [evaluation(0, 0.3)]
    for step in range(1, steps + 1):
        records.append(write_step(path, generator, step, groups, group_size, turns, method, failed=failed, level=level))
        if step % max(1, steps // 4) == 0:
            records.append(evaluation(step, 0.3 + 0.4 * step / steps))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_step(path, generator, step, groups, group_size, turns, method, *, failed, level) -> dict:
    """Write a step's rollouts; returns its metrics."""
    num = groups * group_size
    lengths = generator.integers(max(1, turns // 2), turns + 1, num)
    if failed:
        lengths[-1] = 1
    trajectories = Segments.from_lengths(lengths)
    rows, trajectory_R, turn_R = trajectories.num_elements, trajectories.ids, trajectories.positions
    success_N = generator.random(num) < 0.3 + 0.4 * step / 150
    if failed:
        success_N[-1] = False
    if level:
        success_N[:group_size] = False
    last_R = turn_R + 1 == trajectories.broadcast(lengths)
    token_lengths = generator.integers(3, 9, rows)
    if failed:
        token_lengths[-1] = 0
    ids = generator.integers(0, len(WORDS), token_lengths.sum()).astype(np.int32)
    logprobs = -generator.exponential(0.5, len(ids)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(token_lengths)])
    texts = [" ".join(WORDS[ids[a:b]]) for a, b in itertools.pairwise(offsets)]
    state_R = generator.integers(0, 6, rows)
    valid_R = generator.random(rows) > 0.1
    lost_R = trajectory_R == (num - 1 if failed else -1)
    entropy_R = generator.gamma(2.0, 0.2, rows)
    reward_R = np.where(last_R & trajectories.broadcast(success_N), 10.0, 0.0)
    table = {
        "group": trajectory_R // group_size,
        "trajectory": trajectory_R,
        "turn": turn_R,
        "task": [f"task-{(step * groups + g) % 40}" for g in trajectory_R // group_size],
        "observation": [f"You are in room {s}. You see a cabinet 1 and a drawer 2." for s in state_R],
        "response": texts,
        "reward": reward_R,
        "valid": valid_R,
        "truncated": np.zeros(rows, bool),
        "state_key": [f"room {s}" for s in state_R],
        "success": trajectories.broadcast(success_N),
        "ended": np.where(lost_R, "failed", np.where(trajectories.broadcast(success_N), "terminated", "truncated")),
        "failure": [f"OSError: world {step} is gone" if lost else None for lost in lost_R],
        "info": ["{}" if last else None for last in last_R],
        "fresh": turn_R == 0,
        "prompt_ids": pa.ListArray.from_arrays(np.zeros(rows + 1, np.int32), np.zeros(0, np.int32)),
        "response_ids": pa.ListArray.from_arrays(offsets.astype(np.int32), ids),
        "behavior_logprobs": pa.ListArray.from_arrays(offsets.astype(np.int32), logprobs),
    }
    table = pa.table({name: pa.array(column, SCHEMA.field(name).type) for name, column in table.items()})
    kept = ~lost_R
    columns = {"entropy": entropy_R[kept], "penalty": np.where(valid_R, 0.0, -PENALTY)[kept]}
    used = Segments.from_sorted_ids(trajectory_R[kept])
    batch = Batch(
        Segments.from_sorted_ids(used.first((trajectory_R // group_size)[kept])), used, reward_R[kept], columns
    )
    trace, _ = chain(method, add_penalty()).trace(batch)
    credit = {"entropy": batch.columns["entropy"], **trace.columns}
    for name, values in credit.items():
        filled = np.full(rows, np.nan)
        filled[kept] = values
        table = table.append_column(name, pa.array(filled, pa.float64(), from_pandas=True))
    pq.write_table(table, path / "rollouts" / f"step-{step:06d}.parquet", compression="zstd")
    return {
        "step": step,
        "rollout/success": float(success_N.mean()),
        "rollout/turns": float(lengths.mean()),
        "rollout/invalid_frac": float(1 - valid_R.mean()),
        "rollout/tokens": float(len(ids)),
        "credit/entropy": float(entropy_R.mean()),
        "credit/signal_frac": 0.8,
        "update/grad_norm": 0.5,
        "time/rollout_s": 2.0,
        "time/update_s": 1.0,
    }


def evaluation(step: int, success: float) -> dict[str, float]:
    """An evaluation's metrics."""
    return {
        "step": step,
        "eval/success": success,
        "eval/success_low": success - 0.05,
        "eval/success_high": success + 0.05,
        "eval/success/heat": success,
        "eval/success/cool": success / 2,
        "time/eval_s": 3.0,
    }


def write_tokenizer(path: Path) -> None:
    """A tokenizer of whole words, as tiny policies have."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS.tolist())}, unk_token="<end>"))
    tokenizer.pre_tokenizer = Whitespace()
    path.parent.mkdir(parents=True)
    tokenizer.save(str(path))
