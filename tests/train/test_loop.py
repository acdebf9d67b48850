"""The main path, end to end: it learns, it resumes as if never stopped, and it stops when it must."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tests.toys import Colors, Levels, small_config

from turnwise.base.errors import ConfigError, RunError
from turnwise.config import override_config
from turnwise.credit.methods import METHODS
from turnwise.credit.transform import Transform, chain
from turnwise.credit.transforms import outcome_return
from turnwise.environments.base import Step
from turnwise.environments.suites import Seeded, make_suite
from turnwise.train.checkpoint import checkpoints, latest_checkpoint, load_checkpoint
from turnwise.train.display import Display
from turnwise.train.evaluation.outcomes import read_outcomes
from turnwise.train.evaluation.play import panel
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ROOT = Path(__file__).parents[2]


def metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """All but the times."""
    return [{k: v for k, v in record.items() if not k.startswith(("time/", "memory/"))} for record in folder.metrics()]


def steps(folder: RunFolder) -> list[dict[str, Any]]:
    return [record for record in metrics(folder) if "rollout/success" in record]


def weights(folder: RunFolder) -> torch.Tensor:
    policy = load_checkpoint(latest_checkpoint(folder))[1]
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Metrics, weights bit for bit, optimizer and rollouts."""
    assert metrics(one) == metrics(other)
    assert torch.equal(weights(one), weights(other))
    states = [torch.load(latest_checkpoint(folder) / "state.pt", weights_only=True) for folder in (one, other)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    names = [sorted(path.name for path in folder.rollouts.iterdir()) for folder in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        assert pq.read_table(one.rollouts / name).equals(pq.read_table(other.rollouts / name))


def test_a_run_leaves_what_the_documentation_says(tmp_path):
    shown = []

    class Watching(Display):
        def step(self, step, steps, metrics):
            shown.append((step, steps))

        def evaluation(self, step, metrics, failure=""):
            shown.append(("held-out", step))

    evaluate = {"every": 2, "episodes": 3, "final_episodes": 5}
    config = small_config(tmp_path, run={"steps": 4}, evaluate=evaluate, checkpoint={"every": 3, "keep": 1})
    folder = train(config, display=Watching())
    assert shown == [("held-out", 0), (1, 4), (2, 4), ("held-out", 2), (3, 4), (4, 4), ("held-out", 4)]
    assert [path.name for path in checkpoints(folder)] == ["step-000000", "step-000004"]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == [f"step-{n:06d}.parquet" for n in (1, 2, 3, 4)]
    assert [record["step"] for record in folder.metrics()] == [0, 1, 2, 2, 3, 4, 4]
    rows = pq.read_table(folder.rollouts / "step-000001.parquet").to_pylist()
    assert len(rows) == 12
    assert {"entropy", "alpha", "advantage"} <= set(rows[0])
    held_out = make_suite(config.environment).tasks("valid")
    for step, episodes in ((0, 5), (2, 3), (4, 5)):
        outcomes = read_outcomes(folder.evaluations / f"step-{step:06d}.parquet")
        assert [outcome["task"] for outcome in outcomes] == [str(task) for task in panel(held_out, episodes)]
    assert not [path for path in folder.path.rglob("*") if ".tmp" in path.name]


def test_a_policy_learns(tmp_path):
    config = small_config(
        tmp_path, run={"steps": 20}, model={"hidden_size": 32}, rollout={"groups": 16, "group_size": 8}
    )
    folder = train(config)
    success = [record["rollout/success"] for record in steps(folder)]
    assert sum(success[:3]) / 3 < 0.3  # four colors, and a word at random before that
    assert sum(success[-3:]) / 3 > 0.8
    held_out = [record["eval/success"] for record in metrics(folder) if "eval/success" in record]
    assert held_out[0] < 0.5 < 0.9 < held_out[-1]


def test_household_games_run(tmp_path):
    config = small_config(
        tmp_path,
        environment={"name": "household", "max_steps": 8, "options": {"size": "tiny", "num_train": 20, "num_valid": 4}},
        warmstart={"steps": 3, "games": 8, "batch_size": 4},
        model={"max_context": 512},
        rollout={"groups": 2, "group_size": 3, "max_new_tokens": 8},
        method="gigpo+aem",
    )
    folder = train(config)
    assert len(steps(folder)) == 2
    for record in steps(folder):
        assert record["rollout/failed_frac"] == 0
        assert record["rollout/turns"] > 1
        assert record["credit/mismatch_max"] < 1e-4
    assert any(name.startswith("eval/success/") for record in folder.metrics() for name in record)


def running_mean() -> Transform:
    """A method with state: the reward less its mean over all steps so far."""

    def update(credit_R, state, batch):
        total, count = state["total"] + credit_R.sum(), state["count"] + len(credit_R)
        return credit_R - total / count, {"total": total, "count": count}

    baseline = Transform("running mean", update, init=lambda: {"total": 0.0, "count": 0})
    return chain(outcome_return(), baseline)


VADE = {"name": "vade", "observed_decay": 0.2, "unobserved_decay": 0.999}


@pytest.mark.parametrize("group_filter", ["none", "mixed", "not-all-correct"])
@pytest.mark.parametrize("select", ["epochs", VADE], ids=["epochs", "vade"])
def test_the_choice_of_tasks_goes_on_as_if_never_interrupted(tmp_path, select, group_filter):
    settings: dict[str, Any] = {
        "environment": {"name": "tests.train.test_loop:FewLevels"},
        "rollout": {"select": select, "filter": group_filter, "max_batches": 4},
        "evaluate": {"every": 3},
        "checkpoint": {"every": 3},
    }
    whole = train(small_config(tmp_path / "whole", run={"steps": 6}, **settings))
    half = small_config(tmp_path / "half", run={"steps": 3}, **settings)
    train(half)
    longer = small_config(tmp_path / "half", run={"steps": 6}, **settings)
    assert_same_run(train(longer, resume=half.run_folder), whole)
    assert (max(record["rollout/batches"] for record in steps(whole)) > 1) == (group_filter != "none")


class FewLevels(Seeded):
    """Twenty tasks of a tunable world: more than an epoch in a run."""

    def __init__(self, config):
        super().__init__(Levels, {})

    def tasks(self, split: str) -> range:
        return range(20)


@pytest.mark.parametrize("method", ["grpo+aem", "running_mean"])
def test_a_run_that_was_interrupted_goes_on_as_if_it_never_was(tmp_path, monkeypatch, method):
    monkeypatch.setitem(METHODS, "running_mean", running_mean)
    settings: dict[str, Any] = {
        "method": method,
        "environment": {"options": {"turns": 2}},
        "evaluate": {"every": 3},
        "checkpoint": {"every": 3},
        "update": {"epochs": 2, "mini_batches": 2, "kl": 0.1, "learning_rate": 0.01, "warmup_steps": 4},
    }
    whole = train(small_config(tmp_path / "whole", run={"steps": 6}, **settings))
    half = small_config(tmp_path / "half", run={"steps": 3}, **settings)
    train(half)
    longer = small_config(tmp_path / "half", run={"steps": 6}, **settings)
    assert_same_run(train(longer, resume=half.run_folder), whole)
    assert len(steps(whole)) == 6
    assert steps(whole)[-1]["update/kl_reference"] > 0


KILLED = """
import os, signal
from pathlib import Path
from tests.toys import small_config
from turnwise.train.display import Display
from turnwise.train.loop import train

class Deadly(Display):
    def step(self, step, steps, metrics):
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

train(small_config(Path({folder!r}), **{settings!r}), display=Deadly())
"""


@pytest.mark.parametrize("rollout", [{}, {"select": VADE, "filter": "mixed"}], ids=["plain", "chosen"])
def test_a_run_that_was_killed_goes_on_as_if_it_never_was(tmp_path, rollout):
    settings: dict[str, Any] = {"run": {"steps": 6}, "checkpoint": {"every": 2}, "rollout": rollout}
    whole = train(small_config(tmp_path / "whole", **settings))
    script = KILLED.format(folder=str(tmp_path / "killed"), settings=settings)
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder, config = RunFolder.open(tmp_path / "killed" / "run")
    assert [record["step"] for record in folder.metrics()] == [0, 1, 2, 3, 4, 5]
    assert latest_checkpoint(folder).name == "step-000004"
    with folder.metrics_path.open("a") as file:
        file.write('{"step": 6, "rollo')  # as if in the middle of a line
    (folder.checkpoints / ".step-000006.tmp").mkdir()
    assert_same_run(train(config, resume=folder.path), whole)


def test_a_run_that_was_killed_at_its_first_evaluation_makes_up_for_it(tmp_path):
    class Deadly(Display):
        def evaluation(self, step, metrics, failure=""):
            raise KeyboardInterrupt

    config = small_config(tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        train(config, display=Deadly())
    RunFolder(config.run_folder).metrics_path.unlink()
    assert_same_run(train(config, resume=config.run_folder), train(small_config(tmp_path / "whole")))


def test_what_a_run_goes_on_with_is_written_down(tmp_path):
    folder = train(small_config(tmp_path, run={"steps": 2}))
    before = json.loads((folder.path / "config.json").read_text())
    asked = override_config(RunFolder.open(folder.path)[1], ["run.steps=3", "evaluate.temperature=1.5"])
    train(asked, resume=folder.path)
    after = json.loads((folder.path / "config.json").read_text())
    assert RunFolder.open(folder.path)[1] == asked
    assert {key for key in before if before[key] != after[key]} == {
        "config",
        "crc32",
    }  # versions and commit are those it began with
    assert metrics(train(RunFolder.open(folder.path)[1], resume=folder.path))[-1]["step"] == 3


def test_a_run_does_not_go_back_to_fewer_steps(tmp_path):
    folder = train(small_config(tmp_path, run={"steps": 2}))
    before = (folder.path / "config.json").read_text(), metrics(folder)
    with pytest.raises(RunError, match=r"has done 2 steps, but run.steps=1"):
        train(override_config(RunFolder.open(folder.path)[1], ["run.steps=1"]), resume=folder.path)
    assert ((folder.path / "config.json").read_text(), metrics(folder)) == before


def test_where_a_run_cannot_be_kept_is_said_before_the_warm_start(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    warm = {"steps": 3, "games": 4, "batch_size": 2}
    with pytest.raises(RunError, match=r"cannot write into .*file: "):
        train(small_config(tmp_path / "file", warmstart=warm, environment={"name": "tests.toys:Broken"}))
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("turnwise.train.warmstart.imitate", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(RunError, match=r"cannot write into .*; set TURNWISE_CACHE"):
        train(small_config(tmp_path, warmstart=warm))


def test_a_finished_run_has_nothing_to_go_on_with(tmp_path):
    config = small_config(tmp_path)
    before = metrics(train(config))
    told = []
    display = Display()
    display.note = told.append
    assert metrics(train(config, resume=config.run_folder, display=display)) == before
    assert [note for note in told if "has done all its 2 steps; run.steps=N trains on" in note]


def test_a_damaged_checkpoint_can_be_removed(tmp_path):
    config = small_config(tmp_path, run={"steps": 4}, checkpoint={"every": 2})
    folder = train(config)
    done, final = metrics(folder), weights(folder)
    (latest_checkpoint(folder) / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        RunError,
        match=r"step-000004 \(.*model.safetensors is damaged: expected 19040 bytes, got 0\); remove it to resume",
    ):
        train(config, resume=folder.path)
    assert metrics(folder) == done  # and nothing was rewound
    for path in latest_checkpoint(folder).iterdir():
        path.unlink()
    latest_checkpoint(folder).rmdir()
    train(config, resume=folder.path)
    assert metrics(folder) == done
    assert torch.equal(weights(folder), final)


def test_an_existing_run_is_refused_before_anything_is_done(tmp_path):
    config = small_config(tmp_path, environment={"name": "tests.toys:Broken"})
    config.run_folder.mkdir(parents=True)
    with pytest.raises(RunError, match="never overwritten"):
        train(config)
    assert not list(config.run_folder.iterdir())


def test_a_world_that_always_fails_stops_the_run_with_its_cause(tmp_path):
    config = small_config(tmp_path, run={"steps": 50}, environment={"name": "tests.toys:Broken"})
    with pytest.raises(
        RunError, match=r"10 consecutive steps.*OSError: the game server is gone at step \(toys.py:\d+\)"
    ):
        train(config)
    folder = RunFolder(config.run_folder)
    assert len(steps(folder)) == 10
    assert (folder.checkpoints / "step-000010").is_dir(), "what there is to go on with is kept"
    assert all(record["rollout/failed_frac"] == 1 for record in steps(folder))
    rows = pq.read_table(folder.rollouts / "step-000010.parquet").to_pylist()
    assert all("OSError" in row["failure"] for row in rows)


def test_a_context_without_room_stops_the_run_with_its_cause(tmp_path):
    config = small_config(tmp_path, run={"steps": 50}, rollout={"max_new_tokens": 62})
    with pytest.raises(RunError, match=r"10 consecutive steps.*max_context=64.*max_new_tokens=62"):
        train(config)


class Fragile(Colors):
    """Every third game breaks."""

    def step(self, response: str) -> Step:
        if self.seed % 3 == 0:
            raise ConnectionError("lost")
        return super().step(response)


def test_some_failures_are_counted_and_not_the_end(tmp_path):
    config = small_config(tmp_path, environment={"name": "tests.train.test_loop:Fragile"}, rollout={"groups": 12})
    folder = train(config)
    assert len(steps(folder)) == 2
    assert all(0 < record["rollout/failed_frac"] < 1 for record in steps(folder))
    row = next(r for r in pq.read_table(folder.rollouts / "step-000001.parquet").to_pylist() if r["failure"])
    assert (row["ended"], row["advantage"]) == ("failed", None)
    assert "ConnectionError: lost" in row["failure"]


def test_a_suite_without_tasks_is_said_so(tmp_path):
    config = small_config(tmp_path, environment={"name": "tests.train.test_loop:NoTasks"})
    with pytest.raises(ConfigError, match=r"split 'train' of environment .*NoTasks.* has no tasks"):
        train(config)
    assert not config.run_folder.exists()


class NoTasks:
    def __init__(self, config):
        pass

    def tasks(self, split: str) -> list:
        return []


def test_an_unknown_device_is_said_so_before_a_run_begins(tmp_path):
    config = small_config(tmp_path, run={"device": "gpu"})
    with pytest.raises(ConfigError, match=r"run.device='gpu'"):
        train(config)
    assert not config.run_folder.exists()


def test_the_reference_is_the_policy_before_training(tmp_path):
    config = small_config(tmp_path, run={"steps": 3}, update={"kl": 0.1}, checkpoint={"every": 1, "keep": 1})
    folder = train(config)
    first = checkpoints(folder)[0]
    assert first.name == "step-000000"
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    with pytest.raises(RunError, match="no checkpoint of step 0"):
        train(small_config(tmp_path, run={"steps": 4}, update={"kl": 0.1}), resume=folder.path)


def test_weights_have_the_version_of_their_step_though_it_learned_nothing(tmp_path, monkeypatch):
    """Draws of continuations and the lag go by the version, and a resumed run starts with that of its checkpoint."""
    from turnwise.engines.models import Models

    published, publish = [], Models.publish
    monkeypatch.setattr(Models, "publish", lambda self, step=0: (published.append(step), publish(self, step))[1])
    environment = {"name": "tests.toys:Levels", "options": {"levels": ["never"]}}
    config = small_config(tmp_path, environment=environment, rollout={"filter": "mixed", "max_batches": 1})
    assert not any(line.get("update/loss") for line in metrics(train(config)))
    assert published == [0, 1, 2]
