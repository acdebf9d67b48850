"""On-policy distillation: a trained policy teaches a fresh one, token by token."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.measures.probed import PLAYED
from tests.rollout.playing import POLICY
from tests.toys import Colors, color_policy, small_config

from turnwise.base.errors import ConfigError, RunError
from turnwise.extensions.teacher.measures import teacher
from turnwise.measures import Played
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.scorer import Scorer
from turnwise.objective.tokens import Sequences
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


class Few(Colors):
    """An environment of fewer words."""

    @staticmethod
    def words(**options):
        return ["say", "red"]


def test_the_gap_is_the_teachers_logprob_minus_the_policys():
    other = color_policy(seed=7, context=POLICY.max_context)
    score = Scorer(Sequences.from_trajectories(PLAYED), ModelConfig(), 1.0, Budget(10_000))
    played = Played(PLAYED, models={"policy": POLICY.model, "teacher": other.model}, score=score)
    mine, theirs = score(POLICY.model)[0], score(other.model)[0]
    got = teacher.run(played, {"logprob_T": mine, "behavior_logprob_T": np.zeros(len(mine))})["teacher_gap_T"]
    np.testing.assert_allclose(got, theirs - mine, atol=1e-6)
    assert np.abs(got).max() > 0.1
    by_engine = mine + 1.0  # what an engine scored is not of the same pass
    again = teacher.run(played, {"logprob_T": by_engine, "behavior_logprob_T": by_engine})["teacher_gap_T"]
    np.testing.assert_allclose(again, got, atol=1e-6)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[RunFolder, RunFolder]:
    """A teacher that was shown what to say, and a student that was not."""
    more = {"folder": tmp_path_factory.mktemp("taught"), "rollout": {"groups": 8}}
    teach = train(small_config(run={"name": "teacher", "steps": 1}, warmstart={"steps": 120, "games": 32}, **more))
    how = {"method": {"name": "opd", "balance": 0.5}, "update": {"learning_rate": 0.02}}
    run = {"name": "student", "steps": 40, "seed": 1}
    return teach, train(small_config(run=run, teacher={"run": str(teach.path)}, **how, **more))


def test_a_students_divergence_from_its_teacher_falls_without_rewards(taught):
    """The mean advantage is minus the reverse KL divergence per token, which no reward enters."""
    _, student = taught
    files = [student.rollouts / f"step-{step:06d}.parquet" for step in range(1, 41)]
    told = [pq.read_table(file)["advantage"].to_numpy() for file in files]
    early, late = (-np.concatenate(part).mean() for part in (told[:5], told[-5:]))
    assert early > 0.4
    assert late < early / 3, (early, late)


def test_a_teacher_must_exist_and_have_the_same_tokens(tmp_path, taught):
    config = small_config(tmp_path, method="opd", teacher={"run": str(tmp_path / "nobody")})
    with pytest.raises(RunError, match="nobody"):
        train(config)
    with pytest.raises(ConfigError, match=r"needs the column 'teacher_gap_T'.*teacher\.run=runs/NAME"):
        train(small_config(tmp_path, method="opd"))
    other = small_config(
        tmp_path,
        method="opd",
        teacher={"run": str(taught[0].path)},
        environment={"name": "tests.train.test_teacher:Few"},
    )
    with pytest.raises(ConfigError, match="has other tokens than this run's policy"):
        train(other)
