"""A log is played again from its turns: the same numbers as from the trajectories that it tells of."""

from pathlib import Path

import pytest
from tests.gateway.late import late_config
from tests.integrations.logs.test_formats import lines

from turnwise.base.errors import DataError
from turnwise.commands.cli import main
from turnwise.integrations.logs.export import export
from turnwise.integrations.logs.replayed import log_groups
from turnwise.lab.diagnostics.fidelity_run import FidelityOfRun, measure_run
from turnwise.rollout.record import read_rollouts
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    return train(late_config(tmp_path_factory.mktemp("runs"), "harness"))


def measure(run: RunFolder, play) -> FidelityOfRun:
    return measure_run(run, ["grpo", "gigpo"], groups=4, continuations=4, play=play)


@pytest.mark.parametrize("to", ["atif", "chat"])
def test_a_log_has_the_fidelity_of_the_trajectories_that_it_tells_of(run, tmp_path, to):
    """With tokens exactly; texts lose tokens that have none, such as those of padding."""
    export(run.path, log := tmp_path / "log.jsonl", to, step=1)

    def of_run(stage):
        played, _ = read_rollouts(run.rollouts / "step-000001.parquet")
        names = list(dict.fromkeys(trajectory.task for trajectory in played))
        for trajectory in played:
            trajectory.group = names.index(trajectory.task)
        return sorted(played, key=lambda trajectory: trajectory.group), [int(name) for name in names]

    def of_log(stage):
        return log_groups(log, {str(task): task for task in range(8)}, stage.policy, stage.config)

    told, known = measure(run, of_log), measure(run, of_run)
    assert (told.failed, told.diverged, told.success) == (0, 0, known.success)
    for name, one in known.fidelities.by_method.items():
        found = told.fidelities.by_method[name]
        assert (
            found.value == pytest.approx(one.value, abs=1e-6) if to == "atif" else found.low <= one.value <= found.high
        )


def test_the_command_measures_a_log(run, tmp_path, capsys):
    export(run.path, log := tmp_path / "log.jsonl", "chat", step=1)
    asked = ["analyse", "fidelity", str(run.path), "--log", str(log), "--continuations", "2", "--out", str(tmp_path)]
    assert main(asked) == 0
    assert f"{log} and step 2 of {run.path}: " in " ".join(capsys.readouterr().out.split())


def test_a_task_that_the_run_does_not_have_is_named(tmp_path):
    path = lines(Path(tmp_path / "log.jsonl"), {"task": "tsk 1", "messages": [], "reward": 1})
    with pytest.raises(DataError, match=r"line 1: the task 'tsk 1' is none of the run's\. Did you mean 'task 1'"):
        log_groups(path, {"task 1": 1}, None, None)  # pyright: ignore[reportArgumentType]
