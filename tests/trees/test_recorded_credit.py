"""A record of forked trajectories holds what methods read on each path, so that their credit can be assigned again."""

import json

import numpy as np
import pytest
from tests.train.test_every_method_trains import config_of

import turnwise as tw
from turnwise.config import override_config
from turnwise.integrations.logs.chat_lines import ADVANTAGE
from turnwise.integrations.logs.export import export
from turnwise.lab.diagnostics.recredit import as_recorded, replay
from turnwise.train.credit import make_transform
from turnwise.train.loop import train

FORKS = ['rollout.collector={name="branching", rule="tree_grpo", trees=2, expand=1}', "rollout.groups=2"]
READ_PATHS = ("spae", "hcapo", "lotapo", "infopo", "arena_rl")
"""Methods with a measure that is another one on each path of a shared response."""


def is_recorded(name: str) -> bool:
    """Whether the method reads no column of tokens, which runs do not record."""
    return not any(column.endswith("_T") and column != "token_T" for column in tw.trial(tw.METHODS[name]).needs)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in READ_PATHS else [pytest.mark.slow])
        for name in tw.METHODS
        if is_recorded(name)
    ],
)
def test_credit_assigned_again_to_forked_trajectories_equals_the_record(name, tmp_path):
    config = override_config(config_of(name, tmp_path), FORKS)
    replayed = [
        *replay(train(config), make_transform(config.method), invalid_penalty=config.environment.invalid_penalty)
    ]
    assert any((recorded.batch.columns["num_paths"] > 1).any() for recorded, _ in replayed), "nothing is shared"
    for recorded, trace in replayed:
        np.testing.assert_array_equal(as_recorded(trace.advantage_R, recorded.batch), recorded.advantage_R)


def test_forked_trajectories_are_exported_with_the_credit_of_any_method(tmp_path):
    run = train(override_config(config_of("grpo", tmp_path), FORKS))
    export(run.path, tmp_path / "own.jsonl", "chat")
    export(run.path, tmp_path / "again.jsonl", "chat", method="grpo")
    own, again = (
        [json.loads(line)[ADVANTAGE] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("own", "again")
    )
    assert [len(each) for each in own] == [len(each) for each in again]
    assert np.isfinite(np.concatenate(again)).all()
