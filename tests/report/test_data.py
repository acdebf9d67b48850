"""What the page is given: the record's numbers, and nothing lost or invented on the way."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.report.synthetic import PENALTY, WORDS, write_run

from turnwise.base.errors import ConfigError, DataError, RunError
from turnwise.base.section import flattened
from turnwise.lab.report.build import ReportData
from turnwise.lab.report.chunks import token_shades, turns_table
from turnwise.lab.report.credit import OtherMethods
from turnwise.lab.report.steps import OUTCOMES, has_contrast, index_columns, outcomes
from turnwise.lab.report.summary import failure_causes, metrics_columns, step_statistics
from turnwise.lab.report.write import write_report
from turnwise.train.folder import RunFolder
from turnwise.train.recorded import TOKEN_ENTROPY, base_advantage, read_step


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(scope="module")
def step(run):
    return read_step(run / "rollouts" / "step-000002.parquet")


@pytest.fixture(scope="module")
def config(run):
    return RunFolder.open(run)[1]


def taken(script: Path):
    """What a script hands to the page."""
    name, value = re.fullmatch(r'turnwise\.take\("([^"]+)", (.*)\);\n', script.read_text(), re.DOTALL).groups()
    assert name == f"{script.parent.name}/{script.stem}" or name == script.stem
    return json.loads(value)


def table_in(script: Path) -> pa.Table:
    return pq.read_table(io.BytesIO(base64.b64decode(taken(script))))


def test_the_runs_own_method_recomputed_is_what_the_trainer_recorded(step, config):
    again = OtherMethods(["grpo+aem"], invalid_penalty=config.environment.invalid_penalty)(step)["grpo+aem"]
    np.testing.assert_allclose(again, step.values("advantage"), rtol=0, atol=1e-12)


def test_base_advantage_is_that_of_the_method_without_aem_and_penalty(step, config):
    grpo = OtherMethods(["grpo"], invalid_penalty=config.environment.invalid_penalty)(step)["grpo"]
    penalty = np.where(step.values("valid") > 0, 0.0, -PENALTY)
    np.testing.assert_allclose(
        base_advantage(step, invalid_penalty=config.environment.invalid_penalty), grpo - penalty, rtol=0, atol=1e-12
    )
    assert (
        np.isnan(base_advantage(step, invalid_penalty=config.environment.invalid_penalty)).sum() == 1
    )  # the trajectory that was lost


def test_other_methods_differ_and_leave_out_what_the_step_left_out(step, config):
    values = OtherMethods(["grpo", "gigpo"], invalid_penalty=config.environment.invalid_penalty)(step)
    assert np.nanmax(np.abs(values["grpo"] - values["gigpo"])) > 0.01
    for name in values:
        np.testing.assert_array_equal(np.isnan(values[name]), ~step.learned_R)


def test_a_step_that_learned_nothing_has_no_credit(run, config, tmp_path):
    table = pq.read_table(run / "rollouts" / "step-000001.parquet").drop(["entropy", "alpha", "advantage"])
    pq.write_table(table, tmp_path / "step-000001.parquet")
    bare = read_step(tmp_path / "step-000001.parquet")
    assert np.isnan(OtherMethods(["grpo"], invalid_penalty=config.environment.invalid_penalty)(bare)["grpo"]).all()
    assert "positive" not in step_statistics(bare)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gigpoo", "Did you mean 'gigpo'"),
        ("grpo+x", r"'x' may follow a \+"),
        ("hiper", "needs the column"),
    ],
)
def test_methods_that_cannot_be_computed_are_named(name, message):
    with pytest.raises(ConfigError, match=message):
        OtherMethods([name], invalid_penalty=PENALTY)


def test_outcomes_by_hand(step):
    rows = step.table.to_pylist()
    by_trajectory = {row["trajectory"]: row for row in rows}
    expected = []
    for row in by_trajectory.values():
        expected.append("failed" if row["failure"] else "won" if row["success"] else "out of turns")
    assert [OUTCOMES[place] for place in outcomes(step)] == expected
    counts = step_statistics(step)
    assert {name: counts[name] for name in OUTCOMES} == {name: expected.count(name) for name in OUTCOMES}


def test_index_has_a_row_a_trajectory(step):
    index = pa.table(index_columns(step)).to_pylist()
    rows = step.table.to_pylist()
    for entry in index[:-1]:
        own = [row for row in rows if row["trajectory"] == entry["trajectory"]]
        assert entry["turns"] == len(own)
        assert entry["invalid"] == sum(not row["valid"] for row in own)
        assert entry["task"] == own[0]["task"]
        assert entry["alpha"] == pytest.approx(max(row["alpha"] for row in own), rel=1e-6)
        assert entry["entropy"] == pytest.approx(np.mean([row["entropy"] for row in own]), rel=1e-6)
    lost = index[-1]  # before its first turn
    assert (lost["turns"], lost["invalid"], lost["alpha"]) == (0, 0, None)
    assert lost["failure"] == "OSError: world 2 is gone"


def test_balance_by_hand(step):
    advantage = step.values("advantage")[step.learned_R]
    statistics = step_statistics(step)
    assert statistics["positive"] == pytest.approx(sum(a > 0 for a in advantage) / len(advantage))
    assert statistics["gain"] + statistics["loss"] == pytest.approx(advantage.mean())
    assert statistics["alpha_05"] < statistics["alpha_50"] < statistics["alpha_95"]


def test_where_all_trajectories_failed_nothing_is_known():
    """Their means are recorded as 0."""
    lost = {"rollout/success": 0.0, "rollout/reward": 0.0, "rollout/turns": 0.0, "rollout/tokens": 5.0}
    columns = metrics_columns(
        [
            {"step": 0, "eval/success": 0.0, "eval/success_low": 0.0, "eval/episodes": 0.0},
            {"step": 1, **lost, "rollout/failed_frac": 1.0},
            {"step": 2, **lost, "rollout/failed_frac": 0.5, "eval/success": 0.0, "eval/episodes": 2.0},
        ]
    )
    assert columns["train"]["rollout/success"] == [None, 0.0]
    assert columns["train"]["rollout/tokens"] == [5.0, 5.0]
    assert columns["eval"]["eval/success"] == [None, 0.0]
    assert columns["eval"]["eval/success_low"] == [None, None]


def test_what_json_cannot_hold_is_left_open(step, monkeypatch):
    plain = type(step).values

    def endless(self, name):
        return np.where(plain(self, name) > 0, np.inf, 0.0) if name == "advantage" else plain(self, name)

    monkeypatch.setattr(type(step), "values", endless)
    statistics = step_statistics(step)
    assert statistics["gain"] is None
    json.dumps(statistics, allow_nan=False)


def test_tokens_are_shaded_by_surprisal_until_a_run_records_entropies(step):
    rows = step.table.to_pylist()
    for row, shades in zip(rows, token_shades(step).to_pylist(), strict=True):
        assert shades == pytest.approx([-value for value in row["behavior_logprobs"]])
    entropies = [[2.0 * value for value in row["behavior_logprobs"]] for row in rows]
    kept = step.table.append_column(TOKEN_ENTROPY, pa.array(entropies, pa.list_(pa.float32())))
    assert token_shades(type(step)(2, kept, step.trajectories)).to_pylist() == kept[TOKEN_ENTROPY].to_pylist()


def test_where_the_engine_measured_no_entropies_the_shades_are_surprisals(step):
    surprisals = token_shades(step).to_pylist()
    for some in ([None] * len(surprisals), [None, [7.0] * len(surprisals[1]), *[None] * (len(surprisals) - 2)]):
        kept = type(step)(
            2, step.table.append_column(TOKEN_ENTROPY, pa.array(some, pa.list_(pa.float32()))), step.trajectories
        )
        assert kept.has_token_entropies == any(some)
        expected = [known or surprisal for known, surprisal in zip(some, surprisals, strict=True)]
        assert token_shades(kept).to_pylist() == expected


def test_causes_count_trajectories_and_ignore_numbers(step):
    assert failure_causes(step) == {"OSError: world N is gone": (1, 11)}


def test_metrics_become_columns_without_nan():
    records = [
        {"step": 0, "eval/success": 0.5},
        {"step": 1, "rollout/success": 0.1, "update/loss": float("nan")},
        {"step": 2, "rollout/success": 0.2},
    ]
    columns = metrics_columns(records)
    assert columns["eval"] == {"step": [0], "eval/success": [0.5]}
    assert columns["train"] == {"step": [1, 2], "rollout/success": [0.1, 0.2], "update/loss": [None, None]}


def test_settings_are_flat():
    assert flattened({"a": {"b": 1, "c": {}}, "d": "text"}) == {"a.b": 1, "d": "text"}


def test_contrast_by_hand(tmp_path):
    step = read_step(write_run(tmp_path / "run", steps=1, level=True) / "rollouts" / "step-000001.parquet")
    returns: dict[int, dict[int, float]] = {}
    for row in step.table.to_pylist():
        if row["failure"] is None:
            own = returns.setdefault(row["group"], {})
            own[row["trajectory"]] = own.get(row["trajectory"], 0.0) + row["reward"]
    expected = [len(set(own.values())) > 1 for own in returns.values()]
    assert expected == has_contrast(step).tolist()
    assert set(expected) == {True, False}
    assert [row["contrast"] for row in pa.table(index_columns(step)).to_pylist()] == np.repeat(expected, 4).tolist()
    statistics = step_statistics(step)
    assert (statistics["groups"], statistics["contrast"]) == (3, sum(expected))


def test_trajectories_that_go_on_or_were_pruned_are_not_lost_and_give_no_contrast(step):
    assert has_contrast(step).any()
    for name, ended in {"goes on": "unfinished", "pruned": "pruned"}.items():
        column = pa.array(np.full(step.table.num_rows, ended))
        table = step.table.set_column(step.table.column_names.index("ended"), "ended", column)
        told = type(step)(2, table, step.trajectories)
        assert {OUTCOMES[place] for place in outcomes(told)} == {name}
        assert step_statistics(told)[name] == len(step.trajectories)
        assert not has_contrast(told).any()


def test_another_players_trajectory_gives_no_contrast(step):
    """In self-play a seat of the past has a return of its own, and no credit."""
    advantage, reward = step.values("advantage").copy(), np.zeros(step.table.num_rows)
    other = step.trajectories.ids == 1
    advantage[other], reward[other] = np.nan, 5.0
    table = step.table
    for name, values in (("advantage", advantage), ("reward", reward)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values, from_pandas=True))
    told = type(step)(2, table, step.trajectories)
    assert not has_contrast(told).any()
    table = table.set_column(table.column_names.index("advantage"), "advantage", pa.nulls(len(other), pa.float64()))
    assert has_contrast(type(step)(2, table, step.trajectories)).tolist() == [True, False, False]


def test_turns_of_unknown_tokens_were_played(step):
    column = pa.nulls(step.table.num_rows, pa.list_(pa.int32()))
    table = step.table.set_column(step.table.column_names.index("response_ids"), "response_ids", column)
    imported = type(step)(2, table, step.trajectories)
    assert all(turns_table(imported, {}, invalid_penalty=PENALTY)["played"].to_pylist())
    played = turns_table(step, {}, invalid_penalty=PENALTY)["played"].to_pylist()
    assert played == [row["failure"] is None for row in step.table.to_pylist()]  # lost before its first turn


def test_chunks_hold_what_was_recorded(run, config, tmp_path):
    ReportData([run], tmp_path, ["gigpo"]).update()
    recorded = pq.read_table(run / "rollouts" / "step-000003.parquet")
    chunk = table_in(tmp_path / "run0" / "step-000003.js")
    for name in ("group", "trajectory", "turn", "task", "observation", "response", "reward", "valid", "state_key"):
        assert chunk[name].to_pylist() == recorded[name].to_pylist()
    np.testing.assert_allclose(chunk["advantage"].to_numpy(), recorded["advantage"].to_numpy(), rtol=1e-6)
    assert chunk["tokens"].to_pylist() == recorded["response_ids"].to_pylist()
    assert "as:gigpo" in chunk.column_names
    assert table_in(tmp_path / "run0" / "index.js").num_rows == 4 * 12
    pieces = taken(tmp_path / "run0" / "pieces.js")
    assert {text.strip() for text in pieces.values()} == set(WORDS)


def test_an_update_reads_new_steps_only_and_a_rewound_run_again(tmp_path):
    run = write_run(tmp_path / "run", steps=3)
    last = run / "rollouts" / "step-000003.parquet"
    kept = last.read_bytes()
    last.unlink()
    data = ReportData([run], tmp_path / "page", ["grpo"])
    told: list[tuple[int, int]] = []
    update = lambda: (told.clear(), data.update(lambda done, total: told.append((done, total))))[1]  # noqa: E731
    assert update()
    assert told[-1] == (2, 2)
    assert not update()
    last.write_bytes(kept)
    assert update()
    assert told == [(0, 1), (1, 1)]
    last.unlink()
    assert update()
    assert told[-1] == (2, 2)
    assert taken(tmp_path / "page" / "summary.js")["runs"][0]["steps"]["step"] == [1, 2]


def test_runs_of_the_same_name_keep_apart(tmp_path):
    runs = [write_run(tmp_path / place / "same", steps=1) for place in "ab"]
    data = ReportData([*runs, runs[0]], tmp_path / "page", ["grpo"])
    data.update()
    assert [run["label"] for run in taken(tmp_path / "page" / "summary.js")["runs"]] == [str(run) for run in runs]


def test_a_damaged_rollout_file_is_one_line(run, tmp_path):
    path = tmp_path / "step-000001.parquet"
    path.write_bytes(b"PAR1 cut off")
    with pytest.raises(DataError, match=r"^cannot read .*step-000001.parquet: [^\n]+$"):
        read_step(path)
    pq.write_table(pq.read_table(run / "rollouts" / "step-000001.parquet").drop(["task"]), path)
    with pytest.raises(DataError, match="no column 'task'"):
        read_step(path)


def test_a_report_replaces_an_older_one_and_nothing_else(run, tmp_path):
    output = tmp_path / "report"
    page = write_report([run], output, ["grpo"])
    first = page.read_text()
    assert write_report([run], output, ["grpo"]).read_text() != first
    (folder,) = output.glob("files-*")
    assert sorted(set(re.findall(r"files-\w+", page.read_text()))) == [folder.name]
    for source in re.findall(r'(?:src|href)="(files-[^"]+)"', page.read_text()):
        assert (output / source).is_file()
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(RunError, match="exists and is not a report of turnwise"):
        write_report([run], other, ["grpo"])
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


def test_a_report_that_fails_leaves_the_older_one(tmp_path):
    run = write_run(tmp_path / "run", steps=2)
    output = tmp_path / "report"
    page = write_report([run], output, ["grpo"])
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    (run / "metrics.jsonl").write_text("garbage\n")
    with pytest.raises(RunError, match="line 1, is damaged"):
        write_report([run], output, ["grpo"])
    after = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert {k: v for k, v in after.items() if k != output and k.is_file()} == {
        k: v for k, v in before.items() if k.is_file()
    }
    assert page.is_file()
