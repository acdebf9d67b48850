"""Kills a training at random moments and lets it go on, again and again: `python -m tests.train.kills FOLDER KILLS
SEED [KIND]`; the last word has another kind of run: `harness` plays through the gateway, others are keys of `KINDS`.

Lives are forks of one process that has trained once, so that a kill falls into the training and not into the imports.
A run that ends is compared with one that nobody disturbed, and the next one begins.
"""

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from tests.toys import small_config
from tqdm.auto import tqdm

from turnwise.base.checksums import RUN_KEY
from turnwise.rollout.record import read_table
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

SETTINGS = {
    "run": {"steps": 6},
    "method": "v05+aem",  # it keeps a state
    "evaluate": {"every": 3},
    "checkpoint": {"every": 2, "keep": 1},
}
HARNESS = {
    "harness": {"run": "tests.gateway.asking:play_toy", "concurrent": 1},  # one at a time: sums in a fixed order
    "environment": {"options": {"turns": 2}},
}
TURNS = {"environment": {"options": {"turns": 2}}}
SEATS = {
    "environment": {"name": "seats", "max_steps": 8, "options": {"game": "kuhn", "opponent": "random"}},
    "model": {"max_context": 256},
    "evaluate": {"every": 3, "temperature": 1.0},
}
KINDS = {
    "harness": HARNESS,
    "store": {"store": {"name": "rlep", "capacity": 64, "replays": 2}, "method": "grpo"},
    "demonstrations": {
        "method": "dr_grpo",
        "demonstrations": {"name": "hpt", "gate": 0},
        "update": {"learning_rate": 0.01, "clip": "none", "aggregate": "constant"},
        **TURNS,
    },
    "branching": {
        "rollout": {"collector": {"name": "branching", "rule": "tree_grpo", "trees": 2, "expand": 1}},
        **TURNS,
    },
    "budget": {
        "environment": {"name": "tests.train.uneven:Uneven", "max_steps": 7},
        "rollout": {"groups": 2, "group_size": 2, "step_budget": {"turns": 8}},
    },
    "lag": {"rollout": {"max_lag": 1}, **TURNS},
    "self-play": {
        **SEATS,
        "method": "mars",
        "rollout": {"collector": {"name": "self_play", "past": 0.5, "random": 0.2, "every": 1, "keep": 2}},
    },
    "reward model": {"method": "istar", "reward_model": {"learning_rate": 0.01}, **TURNS},
    "judge": {
        "method": "arena_rl",
        "judge": {"run": "tests.train.test_every_method_trains:decide"},
    },
}
"""Settings of further kinds of runs."""

# tqdm's own lock is shared by forks, and stays taken when one is killed that holds it; its thread would take it too.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0


def live(folder: Path) -> int:
    """Start a life in a process of its own: the run begins, or goes on where it was."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        torch.set_num_threads(1)
        run = folder / "run"
        if run.exists():
            train(RunFolder.open(run)[1], resume=run)
        else:
            train(small_config(folder, **SETTINGS))
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(status)


def whole(folder: Path, name: str = "run") -> dict:
    """What a finished run has left, but for times and memory; reading it fails where a file is damaged."""
    run = RunFolder(folder / name)
    records = [{k: v for k, v in record.items() if not k.startswith(("time/", "memory/"))} for record in run.metrics()]
    tables = [read_table(path, ()) for folder in run.tables for path in sorted(folder.glob("*"))]
    _, policy, states = load_checkpoint(latest_checkpoint(run))
    stored = states.pop("store", None)
    lines = stored.read_text().splitlines() if stored else ()
    return {
        "metrics": records,
        "tables": [table.to_pylist() for table in tables],
        "weights": {name: weight.tolist() for name, weight in policy.model.state_dict().items()},
        "states": {name: repr(state) for name, state in states.items()},
        "store": [{**record, "crc32": "", RUN_KEY: ""} for record in map(json.loads, lines)],
        "names": sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.name != ".lock"),
    }


def trained(folder: Path, name: str = "run") -> dict:
    """Which tasks a finished run has trained and evaluated: ahead of the update, time decides which weights play."""
    found = whole(folder, name)
    return {
        "records": [(record["step"], "eval/success" in record) for record in found["metrics"]],
        "tasks": [sorted({(row["task"], row.get("trajectory", 0)) for row in table}) for table in found["tables"]],
        "names": found["names"],
    }


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill so many times; prints how many runs came to their end, and what differed."""
    left = trained if "max_lag" in SETTINGS.get("rollout", {}) else whole
    moments, killed, ended, differing = random.Random(seed), 0, 0, []
    train(small_config(folder / "warm", **SETTINGS))  # what a first run imports and fills, lives inherit
    start = time.monotonic()
    assert os.waitpid(live(folder / "whole"), 0)[1] == 0
    lasts, expected = time.monotonic() - start, left(folder / "whole")
    while True:
        process = live(folder / "killed")
        if killed < kills:
            time.sleep(moments.uniform(0, lasts))
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        killed += os.WIFSIGNALED(status)
        if os.WIFEXITED(status):
            assert status == 0, "a run could not go on"
            found = left(folder / "killed")
            differing += [name for name in expected if found[name] != expected[name]]
            shutil.rmtree(folder / "killed")
            ended += 1
            if killed >= kills:
                break
    print(json.dumps({"killed": killed, "ended": ended, "differing": differing}))


if __name__ == "__main__":
    for kind in sys.argv[4:]:
        import tests.gateway.asking
        import tests.train.test_every_method_trains  # noqa: F401 (both before the forks)

        SETTINGS |= KINDS[kind]
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
