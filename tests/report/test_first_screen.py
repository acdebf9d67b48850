"""The first screen answers what was trained, whether it learned, from what and at what cost."""

import json
from pathlib import Path

import pytest
from tests.report.synthetic import write_run

from turnwise.lab.report.build import ReportData
from turnwise.lab.report.write import install, write_index, write_report


def write_evaluations(run: Path, *intervals: tuple[float, float, float]) -> Path:
    """Replace the evaluations of a run: low, success and high of each, one per step from 0 on."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ("eval/success_low", "eval/success", "eval/success_high")
    evaluations = [
        {"step": step, **dict(zip(names, interval, strict=True)), "eval/episodes": 512.0, "time/eval_s": 9.0}
        for step, interval in enumerate(intervals)
    ]
    records = [*evaluations, *(record for record in steps if "rollout/success" in record)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


@pytest.fixture(scope="module")
def page_url(browser, tmp_path_factory) -> str:
    """Runs that rose, fell, did neither, were evaluated once, and never."""
    runs = tmp_path_factory.mktemp("runs")
    made = {
        "rose": [(0.35, 0.4, 0.45), (0.55, 0.6, 0.65)],
        "fell": [(0.55, 0.6, 0.65), (0.35, 0.4, 0.45)],
        "neither": [(0.35, 0.4, 0.45), (0.42, 0.47, 0.52)],
        "once": [(0.35, 0.4, 0.45)],
        "never": [],
    }
    paths = [write_evaluations(write_run(runs / name, steps=2, level=True), *given) for name, given in made.items()]
    return write_report(paths, runs / "report", ["grpo"]).as_uri()


def test_the_answers_stand_first(opened):
    page = opened()
    answers = {
        row.locator("b").first.inner_text(): [cell.inner_text() for cell in row.locator("td").all()]
        for row in page.page.locator("#answers tbody tr").all()
    }
    learned = {name: cells[1].split("\n")[0] for name, cells in answers.items()}
    assert learned == {
        "rose": "Yes: 0.40 → 0.60",
        "fell": "No: 0.60 → 0.40",
        "neither": "Not shown: 0.40 → 0.47",
        "once": "Not known yet: 0.40",
        "never": "Not evaluated yet",
    }
    trained, rose, source, cost = answers["rose"]
    assert "method grpo trains all weights of the model tiny on the environment household" in trained
    assert "0.40 [0.35, 0.45] after step 0 (512 episodes), 0.60 [0.55, 0.65] after step 1" in rose
    assert "0.40 [0.35, 0.45] after step 0" in answers["once"][1]
    groups, contrast = page.page.evaluate(
        "['groups', 'contrast'].map((name) => turnwise.summary.runs[0].steps[name].reduce((a, b) => a + b))"
    )
    assert groups == 6
    assert source.startswith(f"{100 * contrast / groups:.0f} % of 6 groups had contrast")
    assert "24 trajectories: " in source
    assert "2 failed" in source
    assert cost.startswith("24 seconds")  # two steps of 3 s, two evaluations of 9 s
    assert "eval 75 %" in cost
    assert "generated tokens in 2 of 2 steps" in cost
    page.page.locator("#learning").scroll_into_view_if_needed()
    page.page.wait_for_selector("#learning canvas")
    whiskers = page.page.evaluate(
        "[...document.querySelectorAll('#learning .canvas')][0].chart.series"
        ".filter((series) => series.markLine).map(({ run, markLine }) => [run, markLine.data.length])"
    )
    assert whiskers == [["run0", 2], ["run1", 2], ["run2", 2], ["run3", 1]]
    page.page.set_viewport_size({"width": 375, "height": 780})
    page.fits(375)


def test_only_turns_of_environments_have_a_limit(opened, tmp_path):
    for player, limit in ((None, ", with at most 50 turns"), ({"run": "agent:play"}, "")):
        run = write_run(tmp_path / f"agent {bool(player)}", steps=1)
        recorded = json.loads((run / "config.json").read_text())
        recorded["config"]["harness"] = player
        (run / "config.json").write_text(json.dumps(recorded))
        page = opened(url=write_report([run], run / "page", ["grpo"]).as_uri()).page
        assert page.locator("#answers tbody td").first.inner_text().endswith(f"4 times{limit}.")


def test_a_report_waits_for_a_run_that_has_not_begun(opened, serve, tmp_path):
    folder = tmp_path / "page"
    data = ReportData([tmp_path / "late"], folder / "files", ["grpo"], wait=True)
    install(folder / "files")
    assert data.update()
    assert not data.update()
    write_index(folder, "files", live=True)
    page = opened(url=serve(folder) + "/index.html")
    assert page.text("#title") == "Waiting for late to begin"
    assert not page.page.is_visible("main")
    write_run(tmp_path / "late", steps=1)
    assert data.update()
    # The page loads itself anew, so for a moment it has no title.
    page.page.wait_for_function("document.querySelector('#title')?.textContent === 'late'")
    page.page.wait_for_selector("body[data-ready=yes] #answers td")


def test_outcomes_are_of_the_recorded_trajectories(opened, tmp_path):
    run = write_run(tmp_path / "some", steps=2)
    (run / "rollouts" / "step-000002.parquet").unlink()
    page = opened(url=write_report([run], tmp_path / "report", ["grpo"]).as_uri())
    text = page.text("#answers")
    assert "12 of 24 trajectories are recorded: " in text
    recorded = page.page.evaluate("turnwise.summary.endings.map((name) => turnwise.summary.runs[0].steps[name][0])")
    assert sum(recorded) == 12
