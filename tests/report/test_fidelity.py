"""The section of true advantages in a real browser, from the file that the analysis leaves in the run."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.report.synthetic import write_run
from tests.toys import trajectory

from turnwise.lab.diagnostics.fidelity_record import NAME, responses_table, write_responses
from turnwise.lab.diagnostics.values import Truth
from turnwise.lab.report.build import AUDIT
from turnwise.lab.report.write import write_report

TRUE_R = np.array([0.0, 0.1, 2.5, -1.25, np.nan, 0.5])
CREDIT = {"grpo": np.array([1.0, 1.0, 1.0, -1.0, -1.0, 0.0]), "gigpo+aem": np.arange(6.0) - 2.5}


def write_analysis(run, step: int = 3, credit=CREDIT) -> None:
    """Two groups: one of a trajectory of two turns, one of three trajectories."""
    turns = ([1], [5])
    played = [
        trajectory(0, turns, turns),
        *(trajectory(1, turns) for _ in range(2)),
        trajectory(1, turns, turns),
    ]
    for number, turn in enumerate(turn for one in played for turn in one.turns):
        turn.response = f"<b>go {number}</b>"
    (run / "analyses").mkdir(exist_ok=True)
    write_responses(run / "analyses", responses_table(played, credit, Truth(TRUE_R, np.full(6, 0.04)), step))


@pytest.fixture(scope="module")
def runs(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    paths = [write_run(folder / name, steps=2) for name in ("analysed", "plain")]
    write_analysis(paths[0])
    return paths


@pytest.fixture(scope="module")
def page_url(runs) -> str:
    return write_report(runs, runs[0].parent / "report", ["grpo"]).as_uri()


def cells(page, row: int) -> list[str]:
    line = page.page.locator("#fidelity-table tbody tr").nth(row)
    return [text.replace("\N{MINUS SIGN}", "-") for text in line.locator("td").all_inner_texts()]


def test_true_advantages_stand_beside_every_credit(opened):
    page = opened("#run=analysed")
    assert [text.split("\n")[0] for text in page.page.locator("#fidelity-table th").all_inner_texts()] == [
        *("trajectory", "turn", "response", "A*", "grpo", "gigpo+aem")
    ]
    assert "Step 3" in page.text("#fidelity-about")
    # the group where most is decided opens first
    assert page.page.locator("#fidelity-group option").all_inner_texts() == ["0: 0", "1: 1"]
    assert page.page.input_value("#fidelity-group") == "1"
    assert cells(page, 0) == ["1: return 0.0", "1", "<b>go 2</b>", "+2.50 ± 0.20", "+1.00", "-0.50"]
    assert cells(page, 3)[1:] == ["2", "<b>go 5</b>", "+0.50 ± 0.20", "0.00", "+2.50"]
    assert cells(page, 2)[3] == "\N{EN DASH}", "an advantage whose continuations failed is unknown"
    shades = page.page.locator("#fidelity-table tbody tr td:nth-child(4)")
    colours = [shades.nth(row).evaluate("one => getComputedStyle(one).backgroundColor") for row in (0, 1)]
    assert len(set(colours)) == 2, "credit and blame have different colours"
    page.page.select_option("#fidelity-group", "0")
    assert cells(page, 1)[2:4] == ["<b>go 1</b>", "+0.10 ± 0.20"]


def test_runs_without_an_analysis_have_no_such_section(opened):
    page = opened("#run=plain")
    page.page.select_option("#run", label="plain")
    page.page.wait_for_function("document.querySelector('#fidelity').hidden")
    assert page.page.locator("nav a[href='#fidelity']").is_hidden()
    page.page.select_option("#run", label="analysed")
    page.page.wait_for_function("!document.querySelector('#fidelity').hidden")
    assert page.page.locator("nav a[href='#fidelity']").is_visible()


def test_a_new_analysis_replaces_the_old_one_and_a_damaged_one_is_named(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    write_analysis(run)
    write_report([run], tmp_path / "report", ["grpo"])
    (files,) = (tmp_path / "report").glob("files-*")

    def step() -> int | None:
        text = next((tmp_path / "report").glob("files-*/summary.js")).read_text()
        found = json.loads(text[text.index("{") : text.rindex(")")])["runs"][0]["fidelity"]
        return found and found["step"]

    assert step() == 3
    assert (files / "run0" / "fidelity.js").exists()
    write_analysis(run, step=7)
    write_report([run], tmp_path / "report", ["grpo"])
    assert step() == 7
    table = pq.read_table(run / "analyses" / NAME)
    pq.write_table(table.drop(["true"]), run / "analyses" / NAME)
    told: list[str] = []
    write_report([run], tmp_path / "report", ["grpo"], on_problem=told.append)
    assert step() is None
    assert "run `turnwise analyse fidelity` again. The page leaves it out" in told[-1]


def test_the_method_of_the_run_is_among_the_first_columns(opened, tmp_path):
    run = write_run(tmp_path / "run", steps=2)
    noise = np.random.default_rng(0)
    better = {f"m{number}": np.nan_to_num(TRUE_R) + 0.1 * noise.normal(size=6) for number in range(8)}
    write_analysis(run, credit={**better, "grpo": -np.nan_to_num(TRUE_R)})
    page = opened(url=write_report([run], tmp_path / "report", ["grpo"]).as_uri())
    names = [text.split("\n")[0] for text in page.page.locator("#fidelity-table th").all_inner_texts()][4:]
    assert len(names) == 7
    assert names[-1] == "grpo", "the run's own, though it is the worst of nine"
    page.page.click("#fidelity-columns summary")
    page.page.uncheck("#fidelity-columns label:has-text('grpo') >> input")
    assert page.page.locator("#fidelity-table th").count() == 4 + 6


@pytest.mark.parametrize(("step", "shown"), [(3, {"grpo": 0.61}), (4, {})])
def test_an_audit_is_shown_beside_the_fidelity_of_the_same_policy(step, shown, tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    write_analysis(run)
    audit = {"step": step, "found": {"grpo": {"auroc": {"value": 0.61}}}}
    (run / "analyses" / AUDIT).write_text(json.dumps(audit))
    write_report([run], tmp_path / "report", ["grpo"])
    text = next((tmp_path / "report").glob("files-*/summary.js")).read_text()
    found = json.loads(text[text.index("{") : text.rindex(")")])["runs"][0]["fidelity"]
    assert found["audit"] == shown
