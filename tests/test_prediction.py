"""Whether fidelity predicts learning: the statistics of studies/prediction.py, on data whose answer is known."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from turnwise.base.errors import RunError
from turnwise.base.tables import page_as_markdown
from turnwise.lab.diagnostics.study import load_study
from turnwise.train.folder import RunFolder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def prediction():
    spec = importlib.util.spec_from_file_location("prediction", ROOT / "studies" / "prediction.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prediction"] = module
    spec.loader.exec_module(module)
    return module


def reached(size: int, seeds: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What methods reach, in the order of what predicts it, with noise."""
    draw = np.random.default_rng(seed)
    value_M = draw.normal(size=size)
    return value_M, value_M[:, None] + noise * draw.normal(size=(size, seeds))


def test_what_decides_is_found_and_what_does_not_is_not(prediction):
    value_M, reached_MS = reached(14, 10, 0.1)
    found = prediction.rank_correlation(value_M, reached_MS)
    assert found["value"] > 0.95
    assert 0.8 < found["low"] <= found["high"] <= 1.0
    assert found["p"] < 0.01
    other_M = np.random.default_rng(1).normal(size=14)
    p = prediction.rank_correlation(other_M, reached_MS)["p"]
    assert p > 0.1
    assert prediction.rank_correlation(-other_M, reached_MS)["p"] == pytest.approx(p, abs=0.01)


def test_the_p_value_is_uniform_without_a_relation(prediction, monkeypatch):
    draw = np.random.default_rng(2)
    monkeypatch.setattr(prediction, "RESAMPLES", 100)
    found = [prediction.rank_correlation(draw.normal(size=9), draw.normal(size=(9, 3)))["p"] for _ in range(400)]
    assert 0.06 <= np.mean(np.array(found) < 0.1) <= 0.15


def test_a_method_that_is_left_out_is_predicted_by_the_others(prediction):
    value_M, reached_MS = reached(14, 10, 0.1)
    other_M = np.random.default_rng(3).normal(size=14)
    good = prediction.left_out([value_M], reached_MS)
    assert good["value"] > 0.9
    assert 0.7 < good["low"] <= good["value"] <= good["high"]
    assert prediction.left_out([other_M, value_M], reached_MS)["value"] > 0.85
    assert prediction.left_out([other_M], reached_MS)["high"] < 0.5


def test_a_left_out_method_is_predicted_by_a_regression_of_ranks(prediction):
    """With the ranks 1, 2, 3 and reached 1, 3, 2: the lines through two points guess 4, 1.5 and 5: ranks 2, 1, 3."""
    found = prediction.left_out([np.array([1.0, 2.0, 3.0])], np.array([[1.0], [3.0], [2.0]]))
    assert found == pytest.approx({"value": -0.5, "low": -0.5, "high": -0.5})


def test_the_page_says_what_was_found(prediction, tmp_path):
    value_M, reached_MS = reached(5, 3, 0.1)
    names = [f"method {number}" for number in range(5)]
    learned = prediction.Learned(names, [3, 4, 5], reached_MS, -reached_MS)
    results = {"walk": prediction.judge(learned, {"fidelity": value_M, "gradient": -value_M, "transfer": value_M})}
    area = results["walk"]["area"]
    assert [kind for kind in area if "holm" in area[kind]] == ["fidelity", "gradient"]
    assert area["fidelity"]["holm"] == pytest.approx(2 * area["fidelity"]["p"])
    assert results["walk"]["area"]["fidelity"]["value"] == -results["walk"]["area"]["gradient"]["value"] > 0.8
    assert results["walk"]["final"]["fidelity"]["value"] < -0.8
    assert results["walk"]["few"]["methods"] == 5
    text = page_as_markdown(prediction.page(json.loads(json.dumps(results))))
    assert "Planned and not run: household, crossroads-hesitant, crossroads-confident." in " ".join(text.split())
    best = names[int(np.argmax(reached_MS.mean(1)))]
    assert text.index(best) < min(text.index(name) for name in names if name != best)
    prediction.plot(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_few_methods_that_differ_are_also_left_out(prediction):
    """Here these few alone carry the correlation."""
    reached_MS = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0, 0], [9, 9, 9], [8, 8, 8]])
    names = ["grpo", "gigpo", "hgpo", "rtmc", "empg", "a_grae"]
    found = prediction.judge(
        prediction.Learned(names, [0, 1, 2], reached_MS, reached_MS), {"fidelity": np.array([2, 1, 4, 3, 6, 5])}
    )
    assert found["few"]["methods"] == 4
    assert found["area"]["fidelity"]["value"] > 0.7
    assert found["few"]["area"]["fidelity"]["value"] == 0


def test_what_predicts_is_read_from_the_leaderboard(prediction):
    found = prediction.predictors("household", ["grpo", "rtmc"], prediction.BEFORE, prediction.LATER)
    kept = json.loads((prediction.BEFORE / "household-start.json").read_text())
    assert found["fidelity"].tolist() == [kept["fidelity"][name]["value"] for name in ("grpo", "rtmc")]
    assert 0 < abs(found["signal"][0]) < 1
    assert found["fidelity anew"].tolist() != found["fidelity"].tolist()


def test_two_measurements_agree_as_far_as_they_rank_methods_alike(prediction, tmp_path):
    shutil.copy(prediction.BEFORE / "household-start.json", tmp_path)
    methods = ["grpo", "gigpo", "rtmc", "graph_gpo"]
    found = prediction.agreement("household", methods, prediction.BEFORE, tmp_path)
    assert found["fidelity"] == {"correlation": 1.0, "shown": 4, "shown anew": 4}
    assert found["signal"]["shown"] == 0, "12 groups tell no gradient's signal from zero"
    assert prediction.agreement("household", methods, prediction.BEFORE, prediction.LATER)["signal"]["correlation"] < 1
    assert prediction.agreement("household", methods, prediction.BEFORE, tmp_path / "none") == {}


def test_what_differs_by_rounding_alone_is_a_tie(prediction):
    """A method in other units has the same share of signal but for its last digits."""
    value_M = np.array([0.1, 0.1 + 1e-12, 0.1 - 1e-12, 0.3])
    reached_MS = np.array([[1.0], [3.0], [2.0], [4.0]])
    assert prediction.rank_correlation(value_M, reached_MS)["value"] == pytest.approx(np.sqrt(0.6))


def test_the_page_is_what_its_data_give(prediction):
    folder = ROOT / "docs" / "results" / "prediction"
    results = json.loads((folder / "data.json").read_text())
    assert page_as_markdown(prediction.page(results)) == (folder / "README.md").read_text()


METHODS = ["grpo", "grpo + aem", "gigpo"]
STUDY = """
recipes = ["household-tiny-aem"]
seeds = 3
settings = ["run.steps=2", "warmstart.steps=0"]
folder = "{folder}"

[methods]
"grpo" = ["method=grpo"]
"grpo + aem" = ["method=grpo+aem"]
"gigpo" = ["method=gigpo"]
"""


@pytest.fixture
def study(tmp_path) -> Path:
    """A study whose last run is not finished.

    Method m reached (m + seed) / 10 over training, and a tenth of it at the end.
    """
    path = tmp_path / "studies" / "fidelity-toy.toml"
    path.parent.mkdir()
    path.write_text(STUDY.format(folder=tmp_path / "runs"))
    for job in load_study(path).jobs:
        folder, success = RunFolder.create(job.config), (METHODS.index(job.arm) + job.seed) / 10
        folder.log({"step": 0, "eval/success": 0.0})
        folder.log({"step": 1, "rollout/success": success - 0.1, "rollout/trajectories": 1.0})
        folder.log({"step": 2, "rollout/success": success + 0.1, "rollout/trajectories": 1.0})
        if (job.arm, job.seed) != ("gigpo", 2):
            folder.log({"step": 2, "eval/success": success / 10})
    return path


def test_a_study_is_read_over_the_seeds_that_all_methods_have_finished(prediction, study):
    learned = prediction.read_study(study)
    assert learned.methods == ["grpo", "grpo+aem", "gigpo"]
    assert learned.seeds == [0, 1]
    np.testing.assert_allclose(learned.area, [[0.0, 0.1], [0.1, 0.2], [0.2, 0.3]], atol=1e-12)
    np.testing.assert_allclose(learned.final, learned.area / 10)
    shutil.rmtree(next(study.parents[1].glob("runs/*/*/gigpo/seed-01")))
    with pytest.raises(RunError, match="fidelity-toy: 1 seeds are finished for all methods, expected 2 or more"):
        prediction.read_study(study)


def test_the_page_is_written_from_the_runs_that_there_are(prediction, study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prediction, "RESAMPLES", 50)
    monkeypatch.setattr(prediction, "ROOT", tmp_path)
    monkeypatch.setattr(prediction, "STUDIES", {"toy": "household"})
    folder, later = tmp_path / "page", prediction.LATER
    asked = ["--folder", str(folder), "--later", str(later)]
    assert prediction.main(asked) == 0
    results = json.loads((folder / "data.json").read_text())
    methods = results["household"]["methods"]
    assert [one["area"] for one in methods.values()] == pytest.approx([0.05, 0.15, 0.25])
    expected = prediction.predictors("household", list(methods), prediction.BEFORE, later)["gradient"]
    assert [one["gradient"] for one in methods.values()] == pytest.approx(expected)
    assert (folder / "README.md").read_text() == page_as_markdown(prediction.page(results))
    assert (folder / "prediction.png").stat().st_size > 5000
    shutil.rmtree(tmp_path / "runs")
    assert prediction.main(asked) == 2
    assert "prediction: no study has runs" in capsys.readouterr().err
