"""Teach and train household games through SkyRL's server of the Tinker API, JAX on the CPU.

    .venv-tinker/bin/python -m benchmarks.tinker_household --seeds 0 1 2

`make crosscheck-tinker` makes the environment. The server offers a small random Llama and trains adapters. Each seed
has a random model of its own, which is evaluated, taught by imitation, evaluated, trained with GRPO, and evaluated.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from turnwise.config import Config, parse_config
from turnwise.environments.suites import make_suite
from turnwise.models.policy import Policy
from turnwise.train.loop import train
from turnwise.train.warmstart import warm_policy

READY_S = 300.0
FEW_SHAPES = {"train_micro_batch_size": 16, "sample_max_num_sequences": 64, "max_lora_adapters": 8}
"""The server compiles for every size of a batch. Without limits a run of 400 updates and 650 evaluated turns took 50
minutes, and its process ran out of memory maps."""
GAMES = {
    "name": "household",
    "max_steps": 10,
    "options": {
        "size": "tiny",
        "task_types": ["pick_and_place_simple"],
        "num_receptacles": [2, 2],
        "num_objects": [1, 2],
        "num_train": 2000,
    },
}
SETTINGS: dict[str, Any] = {
    "environment": GAMES,
    "model": {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "max_context": 512, "tie_embeddings": True},
    "warmstart": {"games": 1500, "batch_size": 16, "learning_rate": 5e-3},
    "rollout": {"groups": 8, "group_size": 8, "max_new_tokens": 10},
    "update": {"learning_rate": 3e-4, "scoring": "trainer"},
    "evaluate": {"every": 0, "temperature": 1.0},
    "checkpoint": {"every": 1000},
    "method": "grpo",
}


def random_policy(config: Config) -> Policy:
    """Return a random policy of a spread at which frozen embeddings can tell tokens apart.

    The server trains adapters alone. With the small embeddings from which all weights are trained elsewhere, no hidden
    state makes a token likely.
    """
    policy = warm_policy(config, make_suite(config.environment))[0]
    with torch.no_grad():
        for matrix in (weight for weight in policy.model.parameters() if weight.dim() > 1):
            matrix.mul_(config.model.hidden_size**-0.5 / matrix.std())
    return policy


@contextlib.contextmanager
def skyrl(model: Path, folder: Path) -> Iterator[str]:
    """Serve a model from a folder, and yield the address. The server reads the command line of `uv run`, its parent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", "run", "--no-project", "--active", "-m", "skyrl.tinker.api"]
    command += ["--base-model", str(model), "--backend", "jax", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--checkpoints-base", str(folder / "saved"), "--database-url", f"sqlite:///{folder / 'tinker.db'}"]
    command += ["--backend-config", json.dumps(FEW_SHAPES)]
    own = {"JAX_PLATFORMS": "cpu", "TINKER_API_KEY": "tml-none", "VIRTUAL_ENV": sys.prefix}
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(
            command, env=os.environ | own, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    address, since = f"http://127.0.0.1:{port}", time.monotonic()
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/v1/healthz", timeout=5)
                break
            except OSError:
                late = time.monotonic() - since > READY_S or server.poll() is not None
                assert not late, (folder / "log.txt").read_text()[-3000:]
                time.sleep(1)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
        shutil.rmtree(folder / "saved", ignore_errors=True)


def settings(folder: Path, name: str, seed: int, steps: int, taught: int, episodes: int, **sections: Any) -> Config:
    """Return the configuration of a run in a folder."""
    own = {
        "run": {"folder": str(folder), "name": name, "seed": seed, "steps": steps, "threads": 1},
        "warmstart": {**SETTINGS["warmstart"], "steps": taught},
        "evaluate": {**SETTINGS["evaluate"], "episodes": episodes, "final_episodes": episodes},
    }
    return parse_config({**SETTINGS, **own, **sections})


def successes(config: Config) -> list[float]:
    """Train, and return the success of every evaluation."""
    return [record["eval/success"] for record in train(config).metrics() if "eval/success" in record]


def main() -> None:
    """Print a line per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--taught", type=int, default=400, help="updates of imitation; default: 400")
    parser.add_argument("--steps", type=int, default=5, help="steps of training; default: 5")
    parser.add_argument("--episodes", type=int, default=128)
    options = parser.parse_args()
    print("| seed | random | taught | trained | minutes |\n|-:|-:|-:|-:|-:|", flush=True)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            folder, begun = Path(name), time.monotonic()
            policy = random_policy(settings(folder, "random", seed, 0, 0, options.episodes))
            policy.save(folder / "model")
            with skyrl(folder / "model", folder) as url:
                engine = {"name": "tinker", "url": url, "rank": 32, "sums": "means", "patience_s": 300.0}
                untaught = settings(folder, "random", seed, 0, 0, options.episodes, engine=engine)
                through = settings(folder, "run", seed, options.steps, options.taught, options.episodes, engine=engine)
                before = successes(untaught)[-1]
                taught, *_, trained = successes(through)
        minutes = (time.monotonic() - begun) / 60
        print(f"| {seed} | {before:.3f} | {taught:.3f} | {trained:.3f} | {minutes:.0f} |", flush=True)


if __name__ == "__main__":
    main()
