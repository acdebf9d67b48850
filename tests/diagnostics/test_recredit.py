"""Credit assigned anew to recorded rollouts: exactly what the run trained with, when the method is its own."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from tests.toys import small_config

import turnwise as tw
from turnwise.base.errors import ConfigError, DataError, RunError
from turnwise.commands.cli import main
from turnwise.config import parse_config
from turnwise.credit.segments import Segments
from turnwise.environments.settings import IMPORTED
from turnwise.lab.diagnostics.recredit import (
    Recorded,
    _third,
    as_recorded,
    read_recorded,
    replay,
    signal_and_noise,
    statistics,
)
from turnwise.rollout.record import read_rollouts, read_table, write_table
from turnwise.train.credit import make_transform
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train
from turnwise.train.recorded import how_to_fill

TWO_TURNS = {"environment": {"options": {"turns": 2}}, "run": {"steps": 3}, "rollout": {"groups": 2, "group_size": 4}}
OWN = {
    "aem": {"method": {"name": "gigpo+aem", "scope": "batch"}},
    "stateful": {"method": "v05+aem"},
    "of log-probabilities": {"method": "unlikeliness"},
    "of a reference": {"method": {"name": "ace", "weight": 0.5}},
    "of actions": {"method": "rtmc"},
    "of states and ends": {"method": "graph_gpo", "environment": {"name": "tests.rollout.walks:Ways"}},
    "of continuations": {"method": "vine_ppo", "continuations": {"number": 2}},
    "of a tree": {
        "method": "carl",
        "rollout": {**TWO_TURNS["rollout"], "collector": {"name": "branching", "rule": "carl", "starts": 2}},
    },
    "a dose": {"method": "gigpo", "update": {"dose": 0.3}},
    "a filter": {"method": "grpo", "rollout": {**TWO_TURNS["rollout"], "filter": "not-all-correct"}},
    "a broken world": {"method": "grpo+aem", "environment": {"name": "tests.toys:Levels"}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, RunFolder]:
    made = {}
    for name, sections in OWN.items():
        folder = tmp_path_factory.mktemp("runs")
        made[name] = train(small_config(folder, **{**TWO_TURNS, **sections}))
    return made


@pytest.mark.parametrize("name", OWN)
def test_the_runs_own_method_gives_exactly_the_recorded_advantages(name, runs):
    folder, config = RunFolder.open(runs[name].path)
    penalty = config.environment.invalid_penalty
    replayed = list(replay(folder, make_transform(config.method, update=config.update), invalid_penalty=penalty))
    assert replayed
    for recorded, trace in replayed:
        np.testing.assert_array_equal(as_recorded(trace.advantage_R, recorded.batch), recorded.advantage_R)
    assert any(np.any(recorded.advantage_R) for recorded, _ in replayed), "a comparison of zeros"
    own = statistics(replayed)
    assert (own.agreement, own.equal, own.variance) == (1.0, 1.0, 1.0)
    assert own.correlation == pytest.approx(1.0)


def test_a_method_with_state_replays_the_steps_before(runs):
    folder, _ = RunFolder.open(runs["aem"].path)
    method = make_transform(parse_config({"method": "v05"}).method)
    whole = list(replay(folder, method, invalid_penalty=0.1))
    ((last, trace),) = replay(folder, method, invalid_penalty=0.1, only=3)
    assert last.step == 3
    np.testing.assert_array_equal(trace.advantage_R, whole[-1][1].advantage_R)
    (folder.rollouts / "step-000001.parquet").rename(folder.rollouts / "aside")
    try:
        with pytest.raises(RunError, match="keeps state and needs the rollouts of all steps"):
            list(replay(folder, method, invalid_penalty=0.1, only=3))
    finally:
        (folder.rollouts / "aside").rename(folder.rollouts / "step-000001.parquet")


def test_rollouts_come_back_as_they_were_written(runs, tmp_path):
    from turnwise.rollout.record import write_rollouts

    path = runs["a broken world"].rollouts / "step-000001.parquet"
    trajectories, credit = read_rollouts(path)
    assert any(not trajectory.usable for trajectory in trajectories), "a world broke"
    again = tmp_path / "again.parquet"
    write_rollouts(again, trajectories, {name: [None if np.isnan(v) else v for v in c] for name, c in credit.items()})
    assert read_table(again, ()).equals(read_table(path, ()))


def test_a_record_of_another_version_is_refused(runs, tmp_path):
    table = read_table(runs["aem"].rollouts / "step-000001.parquet", ())
    write_table(tmp_path / "x.parquet", table.drop_columns(["state_key"]))
    with pytest.raises(DataError, match="has no column 'state_key': another version"):
        read_rollouts(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1junk")
    with pytest.raises(DataError, match="cannot read"):
        read_rollouts(tmp_path / "x.parquet")


def test_a_method_that_a_rollout_cannot_feed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs the column 'value'"):
        train(small_config(tmp_path, method="gae"))


def by_hand(advantage: list[float], words: list[str]) -> Recorded:
    """One state, a turn a trajectory."""
    size = len(words)
    batch = tw.Batch(
        Segments.from_lengths([size]), Segments.from_lengths([1] * size), [0.0] * size, {"state_key": ["s"] * size}
    )
    return Recorded(1, batch, np.array(words), np.array(advantage), np.arange(size))


def test_thirds_of_short_trajectories():
    """An only turn is in the middle, of two one is first and one last."""
    assert _third(Segments([0, 1, 3, 6, 10])).tolist() == [1, 0, 2, 0, 1, 2, 0, 1, 1, 2]


def test_signal_and_noise_by_hand():
    # gradients (A / 2)(1, -1) for "x" and (A / 2)(-1, 1) for "y": projected on (1, -1) / sqrt(2), A / sqrt(2) and -A /
    # sqrt(2)
    told = [1.0, 1.0, -1.0, -2.0]
    recorded = by_hand(told, ["x", "x", "y", "y"])
    along = np.array([1.0, 1.0, 1.0, 2.0]) / np.sqrt(2)
    noise = along.var(ddof=1) / 4
    made = signal_and_noise(recorded, np.array(told))
    assert made == pytest.approx((along.mean() ** 2 - noise, noise))
    mixed = signal_and_noise(recorded, np.array([1.0, -1.0, 1.0, -1.0]))
    assert mixed[0] < 0 < mixed[1], "trajectories that contradict each other have no signal"


@pytest.mark.usefixtures("array_types_unchecked")
def test_signal_and_noise_are_unbiased():
    generator = np.random.default_rng(0)
    draws = []
    for _ in range(3000):
        said = generator.random(8) < 0.5
        advantage = np.where(said, 0.5, -0.5) + generator.normal(0.0, 1.0, 8)
        fixed = by_hand(advantage.tolist(), ["x" if word else "y" for word in said])
        # with the policy's own probabilities, 0.5: both words in every group, or the estimate of pi would be off
        if 0 < said.sum() < 8:
            draws.append(signal_and_noise(fixed, advantage))
    signal, _ = np.mean(draws, axis=0)
    # E[g] along (1, -1) / sqrt(2) is 0.5 / sqrt(2), times 1 - 1/8 for the estimated policy
    assert signal == pytest.approx((0.5 / np.sqrt(2)) ** 2, rel=0.35)


def test_signal_grows_with_agreement_and_not_with_scale(runs):
    folder, config = RunFolder.open(runs["aem"].path)
    recorded = read_recorded(folder, 2, invalid_penalty=config.environment.invalid_penalty)
    assert recorded is not None
    one, ten = (signal_and_noise(recorded, scale * recorded.advantage_R) for scale in (1.0, 10.0))
    assert ten == pytest.approx([100 * part for part in one])


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_compares_methods(runs, tmp_path, capsys):
    path = runs["aem"].path
    assert main(["recredit", str(path), "--method", "grpo", "--method", "rloo"]) == 0  # of a run with AEM
    out, err = capsys.readouterr()
    head, *lines = out.splitlines()
    assert "variance: mean square relative to the run's" in err
    assert "signal / noise" in head
    assert [line.split()[0] for line in lines] == ["grpo", "rloo"]
    assert main(["recredit", str(path), "--method", "gigpo+aem"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("gigpo + aem")
    out = tmp_path / "credit.parquet"
    assert main(["recredit", str(path), "--out", str(out), "--step", "2"]) == 0
    assert " 1.000 " in capsys.readouterr().out.splitlines()[1]
    table = read_table(out, ("step", "row", "recorded", "advantage"))
    assert table["advantage"].equals(table["recorded"])
    assert set(table["step"].to_pylist()) == {2}


@pytest.mark.parametrize("arguments", [[], ["--method", "gigpo"]])
def test_the_dose_of_the_run_bounds_every_method_as_in_training(arguments, runs, capsys):
    assert main(["recredit", str(runs["a dose"].path), *arguments]) == 0
    out, _ = capsys.readouterr()
    cells = out.splitlines()[1].split()
    assert cells[:5] == ["gigpo", "1.000", "1.000", "1.000", "1.000"]
    assert float(cells[5]) > 0.5, "the bound left most responses out"


@pytest.mark.parametrize(
    ("method", "column", "mend"),
    [
        ("aepo", "entropy_T", "a record has values of responses, none of single tokens; choose another method"),
        ("infopo", "info_gain", "the run did not measure it; choose another method, or name its measure in `measures`"),
    ],
)
def test_what_a_run_does_not_record_is_not_sought_in_a_log(method, column, mend, runs, capsys):
    assert main(["recredit", str(runs["aem"].path), "--method", method]) == 2
    assert f"needs the column {column!r}, which step 1 of {runs['aem'].path} does not have: {mend}" in (
        capsys.readouterr().err
    )


def test_a_log_is_scored_only_for_what_scoring_fills():
    scored = {name: "--score MODEL" in how_to_fill(name, IMPORTED) for name in ("entropy", "length", "token_T")}
    assert all(scored.values())
    assert how_to_fill("info_gain", IMPORTED) == "nothing fills it in a log; choose another method"
    assert "--score" not in how_to_fill("entropy_T", IMPORTED) + how_to_fill("entropy", "frozen_lake")


def test_a_file_that_exists_is_never_overwritten(runs, tmp_path, capsys):
    out = tmp_path / "notes.md"
    out.write_text("mine")
    assert main(["recredit", str(runs["aem"].path), "--out", str(out)]) == 2
    assert "notes.md exists, and nothing is overwritten; name another" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["recredit", str(runs["aem"].path), "--out", str(tmp_path / "new.parquet")]) == 0
    assert "new.parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--method", "grp"], "unknown method 'grp'. Did you mean 'grpo'?"),
        (["--method", "gae"], "needs the column 'value'"),
        (["--method", "gae+aem"], "method 'gae + aem' needs the column 'value'"),
        (["--method", "grpo+aem", "aem=false"], "grpo+aem includes AEM, but aem=false removes it"),
        (["--method", "grpo+aec"], "method 'grpo+aec': nothing named 'aec' may follow a +. Did you mean 'aem'?"),
        (["--step", "9"], "has no rollouts of step 9; recorded steps: 1 to 3"),
        (["run.steps=3"], "recredit accepts only --method and method.*"),
        (["--method", "grpo", "--method", "rloo", "--out", "x"], "--out needs a single --method"),
    ],
)
def test_a_mistake_is_one_line(arguments, expected, runs, capsys):
    assert main(["recredit", str(runs["aem"].path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert expected in err


def test_a_run_without_signal_has_no_correlation(runs, tmp_path, capsys):
    """Its credit is made of penalties, which all methods share."""
    shutil.copytree(runs["aem"].path, tmp_path / "run")
    for path in (tmp_path / "run" / "rollouts").iterdir():
        table = read_table(path, ())
        place = table.column_names.index("reward")
        write_table(path, table.set_column(place, "reward", pa.array([0.0] * len(table))))
    assert main(["recredit", str(tmp_path / "run"), "--method", "grpo", "--method", "rloo"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["-", "-"]
    assert "\nno signal: returns are equal within every group of these steps" in err
    assert "next:" not in err
    assert main(["recredit", str(runs["aem"].path), "--method", "grpo"]) == 0
    out, err = capsys.readouterr()
    assert "no signal:" not in err
    assert err.splitlines()[-1].startswith(f"next: turnwise analyse noise {runs['aem'].path} --method grpo ")


def test_files_from_before_the_columns_were_kept_are_said_so(runs, tmp_path, capsys):
    folder, config = RunFolder.open(runs["of log-probabilities"].path)
    copy = RunFolder(tmp_path / "old")
    copy.path.mkdir()
    (copy.path / "config.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    table = read_table(folder.rollouts / "step-000001.parquet", ())
    write_table(copy.rollouts / "step-000001.parquet", table.drop_columns(["logprob"]))
    assert main(["recredit", str(copy.path), "--method", "unlikeliness", "--step", "1"]) == 2
    assert "logprob" in capsys.readouterr().err
