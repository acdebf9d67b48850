"""What the reader meets where: trajectories first, numbers folded, all charts drawn, nothing cut on a phone."""

import json
import re

import numpy as np
import pytest
from tests.report.synthetic import write_run
from tests.report.test_fidelity import write_analysis

from turnwise.integrations.logs.write import import_log
from turnwise.lab.report.build import AUDIT
from turnwise.lab.report.write import write_report

CREDIT = {
    "grpo": np.array([1.0, 1.0, 1.0, -1.0, -1.0, 0.0]),
    "rloo": np.array([0.0, 0.1, 2.4, -1.2, 0.0, 0.6]),
    "dr_grpo": np.array([0.0, 0.1, 2.4, -1.2, 0.0, 0.6]),
    "gigpo": np.arange(6.0) - 2.5,
}


@pytest.fixture(scope="module")
def page_url(browser, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "run", steps=6, groups=2, group_size=8, turns=6, failed=False)
    write_analysis(run, credit=CREDIT)
    found = {"grpo": {"auroc": {"value": 0.61}}, "gigpo": {"auroc": {"value": None}}}
    (run / "analyses" / AUDIT).write_text(json.dumps({"step": 3, "found": found}))
    return write_report([run], folder / "report", ["grpo"]).as_uri()


def drawn(page) -> None:
    page.page.wait_for_selector("body[data-drawn=yes]")


def test_trajectories_come_first_and_the_latest_step_first_of_them(opened):
    page = opened()
    order = page.page.evaluate("[...document.querySelectorAll('main > section')].map((section) => section.id)")
    assert order == ["trajectories", "fidelity", "learning", "credit", "endings", "cost", "numbers"]
    steps = page.page.evaluate("Tabulator.findTable('#table')[0].getData('active').map((row) => row.step)")
    assert steps == sorted(steps, reverse=True)
    assert page.text(".group-head p").startswith("step 6, ")
    assert page.page.locator("#metrics").is_hidden()
    assert page.page.locator("#settings").is_hidden()
    page.page.click("nav a[href='#numbers']")
    page.page.wait_for_selector("#metrics .tabulator-row")
    page.page.wait_for_selector("#settings .tabulator-row")


def test_the_task_stands_in_the_heading_and_above_its_rollouts(opened, tmp_path):
    page = opened(url=write_report([logged(tmp_path)], tmp_path / "report", ["grpo"]).as_uri())
    assert page.text(".task-text") == "You have a calculator.\n\nYour task is to: add 1 and 1."
    assert page.text(".group-head h3").endswith("Your task is to: add 1 and 1.")
    assert page.page.locator(".observation", has_text="Your task is to").count() == 0, "it stands there once"
    box, head = (page.page.locator(one).first.bounding_box() for one in (".task-text", ".rollout-head"))
    assert box["y"] + box["height"] <= head["y"]


def logged(folder):
    """A log of two groups, without tokens, times and evaluations."""
    asked = {"role": "user", "content": "You have a calculator.\n\nYour task is to: add 1 and 1."}
    lines = [
        {"task": task, "reward": float(answer == "2"), "messages": [asked, {"role": "assistant", "content": answer}]}
        for task in ("a", "b")
        for answer in ("2", "3", "11")
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    import_log(folder / "log.jsonl", folder / "log", kind=None, reward=None, scoring=None)
    return folder / "log"


def test_a_log_opens_on_its_trajectories_and_asks_nothing_that_it_cannot_answer(opened, tmp_path):
    page = opened(url=write_report([logged(tmp_path)], tmp_path / "report", ["grpo"]).as_uri())
    drawn(page)
    assert page.page.locator("#answers th").all_inner_texts() == ["What is this?", "Did it succeed?", "From what?"]
    assert page.page.locator("main > section:visible").first.get_attribute("id") == "trajectories"
    assert page.page.locator(".turn").count() == 3
    for section in page.page.locator("main > section:visible:has(.charts)").all():
        assert section.locator("figure:visible").count() > 0, "a section without charts is left out"
    assert page.page.locator("nav a[href='#cost']").is_hidden()


def test_eight_rollouts_fit_on_a_screen_as_rows(opened):
    page = opened()
    page.page.click("#view")
    rows = page.page.locator(".rollouts.compact .row")
    assert rows.count() == 8
    first, last = rows.first.bounding_box(), rows.last.bounding_box()
    assert last["y"] + last["height"] - first["y"] < 620, "with the task and its heading above it, on 900 pixels"
    assert "view=rows" in page.page.evaluate("location.hash")
    cell = page.page.locator(".row").nth(2).locator(".cell").nth(1)
    cell.click()
    assert cell.inner_text().split("\n")[0] == page.page.locator(".detail dd").nth(3).inner_text()
    page.press("ArrowDown")
    assert page.page.locator(".row").nth(2).locator(".cell").nth(2).evaluate("one => one.classList.contains('here')")
    again = opened(page.page.evaluate("location.hash"))
    assert again.page.locator(".row").count() == 8
    page.page.click("#view")
    assert page.page.locator(".row").count() == 0
    assert "view=" not in page.page.evaluate("location.hash")


def test_a_formula_stands_once_per_rollout(opened):
    page = opened()
    heads = page.page.locator(".rollout-head .origin").all_inner_texts()
    assert len(heads) == 8
    assert all(re.search("base = .*group mean", text) for text in heads)
    assert page.page.locator(".turn .origin").count() == 0


def test_every_chart_is_drawn_without_scrolling(opened):
    page = opened()
    drawn(page)
    assert page.page.evaluate("scrollY") == 0
    colours = page.page.evaluate(
        """() => [...document.querySelectorAll('figure:not([hidden]) .canvas')].map((one) => {
          const drawn = one.querySelector('canvas');
          const { data } = drawn.getContext('2d').getImageData(0, 0, drawn.width, drawn.height);
          return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert len(colours) > 8
    assert min(colours) >= 20


CUT = """() => {
  const labels = 'h1, h2, h3, label, button:not(.cell), summary, nav a, th, dt, figcaption *, .badge,'
    + ' .choice span, .tabulator-col-title, .group-head p, .row-head *, .answers *, .origin, .sum';
  const scrolled = '.rollouts:not(.compact), .compared, .tabulator .tabulator-header';
  return [...document.querySelectorAll(labels)].filter((one) => one.checkVisibility() && one.textContent.trim())
    .filter((one) => {
      const { left, right } = one.getBoundingClientRect();
      const out = !one.closest(scrolled) && (left < 0 || right > innerWidth + 0.5);
      return out || (getComputedStyle(one).overflow !== 'visible' && one.scrollWidth > one.clientWidth + 1);
    }).map((one) => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 60)}`);
}"""


@pytest.mark.parametrize("hash_", ["", "#view=rows"])
@pytest.mark.parametrize("width", [390, 1300])
def test_no_label_is_cut(opened, width, hash_):
    page = opened(hash_)
    page.page.set_viewport_size({"width": width, "height": 844})
    page.page.click("nav a[href='#numbers']")
    drawn(page)
    page.fits(width)
    assert page.page.evaluate(CUT) == []
    badges = page.page.locator("#table .badge").all()
    assert badges
    for badge in badges:
        cell = badge.locator("xpath=..").bounding_box()
        box = badge.bounding_box()
        assert box["x"] + box["width"] <= min(cell["x"] + cell["width"], width)
    legends = page.page.evaluate(
        """[...document.querySelectorAll('.canvas')].filter((one) => one.chart.drawing).map((one) => {
          const [legend] = one.chart.drawing.getOption().legend ?? [];
          return legend?.type;
        })"""
    )
    assert "scroll" not in legends


def test_the_fidelity_of_the_run_stands_in_the_header_and_sorts_the_columns(opened):
    page = opened()
    answer = page.page.locator("#answers td", has_text="Fidelity").inner_text()
    assert re.search(r"Fidelity 0\.\d\d, AUROC 0\.61", answer)
    assert "Best measured: rloo = dr_grpo " in answer
    heads = page.page.locator("#fidelity-table th").all_inner_texts()[4:]
    names = [head.split("\n")[0] for head in heads]
    assert names == ["rloo = dr_grpo", "grpo", "gigpo"]
    values = [float(head.split("\n")[1].split(",")[0].replace("\N{MINUS SIGN}", "-")) for head in heads]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(1, abs=0.02)
    page.page.click("#fidelity-columns summary")
    page.page.uncheck("#fidelity-columns label:has-text('grpo') >> nth=1 >> input")
    assert [head.split("\n")[0] for head in page.page.locator("#fidelity-table th").all_inner_texts()[4:]] == [
        "rloo = dr_grpo",
        "gigpo",
    ]
