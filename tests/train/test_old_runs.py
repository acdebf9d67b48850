"""A run folder that version 0.1 wrote can still be resumed, recredited, reported and evaluated.

`run-0.1.tar.xz` was made at commit 4733e59 from `tests.toys.small_config`: v05 + aem, a KL term, the rules repo and
epo, four steps.
"""

import dataclasses
import functools
import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.toys import Colors, small_config

from turnwise.base.checksums import KEY, sealed
from turnwise.base.errors import ConfigError, RunError
from turnwise.base.register import TOKEN_RULES
from turnwise.commands.cli import main
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.token_rules.repo import repo
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.recorded import base_advantage, read_step

ARCHIVE = Path(__file__).with_name("run-0.1.tar.xz")


@pytest.fixture
def old(tmp_path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "old"


CUT = "cut"  # the name of version 0.1, apart: tests of plain words keep it out
RENAMED = {f"rollout/{CUT}_frac": "rollout/truncated_frac"}


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_its_settings_are_read_as_they_were_meant(old):
    _, config = RunFolder.open(old)
    assert config.method.model_dump() == {"name": "aem", "base": {"name": "v05"}, "min_range": 0.0}
    assert config.label == "v05 + aem"


@functools.wraps(repo)
def unclamped(tokens, **options):
    """REPO-R as version 0.1 had it: an advantage may change its sign."""
    credit = repo(tokens, **options)
    assert credit.state is not None
    by_size_T = np.abs(tokens.advantage_T) * tokens.logprob_T
    return dataclasses.replace(credit, advantage_T=tokens.advantage_T - credit.state["zeta"] * by_size_T)


def test_it_is_resumed_with_all_that_it_remembered(old, monkeypatch):
    """Steps 3 and 4 again, from the checkpoint of step 2: optimiser, running baselines, cursor and the rules'
    averages.
    """
    monkeypatch.setattr(sys.modules[TOKEN_RULES["repo"].__module__], "repo", unclamped)
    before = {record["step"]: record for record in records(old) if "update/loss" in record}
    shutil.rmtree(old / "checkpoints" / "step-000004")
    _, config = RunFolder.open(old)
    train(config, resume=old)
    after = {record["step"]: record for record in records(old) if "update/loss" in record}
    assert sorted(after) == [1, 2, 3, 4]
    for step in (3, 4):
        for name, value in before[step].items():
            if not name.startswith(("time/", "memory/")):
                name = RENAMED.get(name, name)
                assert after[step][name] == pytest.approx(value, rel=1e-3, abs=1e-5), (step, name)


def test_its_credit_is_assigned_again_and_its_base_is_known(old, capsys):
    assert main(["recredit", str(old)]) == 0
    assert "1.000" in capsys.readouterr().out
    step = read_step(old / "rollouts" / "step-000002.parquet")
    base_R = base_advantage(step, invalid_penalty=0.1)
    penalty_R = np.where(step.values("valid") > 0, 0.0, -0.1)
    np.testing.assert_allclose(base_R * step.values("alpha") + penalty_R, step.values("advantage"), atol=1e-9)
    trajectories, _ = read_rollouts(old / "rollouts" / "step-000004.parquet")
    assert len(trajectories) == 12


def test_it_is_evaluated_and_reported(old, tmp_path, capsys):
    assert main(["eval", str(old), "--episodes", "4"]) == 0
    assert main(["report", str(old), "--output", str(tmp_path / "page")]) == 0
    capsys.readouterr()


def test_a_state_that_a_run_lacks_is_refused_in_one_line(old):
    config = RunFolder.open(old)[1]
    plain = config.model_copy(update={"update": config.update.model_copy(update={"entropy": None})})
    shutil.rmtree(old / "checkpoints" / "step-000004")
    with pytest.raises(RunError, match=r"a state of loss term 'entropy_rule', which this run lacks"):
        train(plain, resume=old)


REMOVED = {
    "update.tokens": ("update", {"name": "actfocus", "reasoning": 0.1, "low": 0.5, "high": 2.0, "normalize": True}),
    "rollout.collector": ("rollout", {"name": "t2po", "alpha": 0.5, "most_entropy": 2.0}),
}
"""Settings of version 0.2 that name parts which are gone, with their sections."""


@pytest.mark.parametrize("setting", REMOVED)
def test_a_run_of_a_part_that_was_removed_is_read_and_not_resumed(setting, tmp_path, capsys):
    section, given = REMOVED[setting]
    path = train(small_config(tmp_path / "runs")).path
    record = json.loads((path / "config.json").read_text())
    record["config"][section][setting.split(".")[1]] = given
    (path / "config.json").write_text(json.dumps(sealed({name: x for name, x in record.items() if name != KEY})))
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    for command in ("report", "recredit", "eval", "analyse turns"):
        assert main([*command.split(), str(path)]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(path), "run.steps=9"]) == 2
    told = capsys.readouterr().err
    assert f"was trained with {setting}={given['name']!r}, which this version of turnwise lacks; resume it with" in told
    assert told.count("\n") == 1
    assert all(each.read_bytes() == content for each, content in before.items())


def test_a_recipe_with_a_part_that_was_removed_is_told_so(capsys):
    assert main(["config", "frozen-lake-tiny-grpo", "update.tokens=actfocus"]) == 2
    assert "unknown update.tokens 'actfocus'. It was removed after version 0.2; https://" in capsys.readouterr().err
    settings = RolloutConfig.model_validate({"collector": "t2po"})
    with pytest.raises(ConfigError, match=r"unknown rollout.collector 't2po'. It was removed after version 0.2; https"):
        make_collector(settings, InProcessEnvironments(Colors), str)
