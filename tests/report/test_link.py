"""Links restore what was shown, clicks on charts lead to trajectories, and the page prints."""

import contextlib

import pytest
from tests.report.synthetic import write_run

from turnwise.lab.report.write import write_report

LINK = "#run=second&only_step=2&only_group=1&show=won&contrast=1&sort=alpha&task=task&text=room&axis=minutes&smooth=5"
FIELDS = "#run", "#step", "#group", "#sort", "#task", "#text", "#axis", "#smooth"


@pytest.fixture(scope="module")
def page_url(browser, tmp_path_factory) -> str:
    runs = tmp_path_factory.mktemp("runs")
    paths = [write_run(runs / "first", steps=6, level=True), write_run(runs / "second", steps=3, level=True)]
    return write_report(paths, runs / "report", ["grpo"]).as_uri()


def values(page) -> list[str]:
    return [page.page.input_value(field) for field in FIELDS]


def shown(page) -> list[list]:
    """Step and number of the trajectories that the table holds."""
    page.page.wait_for_function("!/searched/.test(document.querySelector('#found').textContent)")
    return page.page.evaluate(
        "Tabulator.findTable('#table')[0].getData('active').map((row) => [row.step, row.trajectory])"
    )


def open_first_rollout(page):
    """Click on the first row, and wait until its rollout is loaded."""
    click = page.page.locator("#table .tabulator-row").first.click
    click_until(page, click, "location.hash.includes('&rollout=')")
    page.page.wait_for_selector(".turn.here")


def click_until(page, click, condition: str):
    """Click until a condition holds: a part of the page that is drawn anew meanwhile loses the click."""
    from playwright.sync_api import TimeoutError

    for _ in range(120):
        click()
        with contextlib.suppress(TimeoutError):
            page.page.wait_for_function(condition, timeout=1500)
            return
    page.page.wait_for_function(condition)


def test_a_link_restores_filters_order_and_view(opened):
    page = opened(LINK)
    assert values(page) == ["run1", "2", "1", "alpha", "task", "room", "minutes", "5"]
    assert page.page.is_checked("#contrast")
    assert page.page.is_checked("input[value=won]")
    rows = shown(page)
    assert rows
    assert {(step, trajectory // 4) for step, trajectory in rows} == {(2, 1)}
    open_first_rollout(page)
    page.page.click("nav a[href='#credit']")
    link = page.page.evaluate("location.hash")
    assert "section=credit" in link
    again = opened(link)
    assert values(again) == values(page)
    assert shown(again) == rows
    here = "Object.values(document.querySelector('.turn.here').dataset).join()"
    assert again.page.evaluate(here) == page.page.evaluate(here)
    assert again.page.evaluate("turnwise.address(turnwise.place)") == link


def test_a_filter_of_ones_own_is_in_the_address_and_a_fresh_page_has_none(opened):
    page = opened()
    assert page.page.evaluate("location.hash") == ""
    page.page.check("#contrast")
    assert page.page.evaluate("location.hash") == "#run=first&contrast=1"
    page.page.uncheck("#contrast")
    assert page.page.evaluate("location.hash") == "#run=first"


@pytest.mark.parametrize("axis", ["step", "trajectories"])
def test_a_click_on_a_curve_shows_the_trajectories_of_its_step(opened, axis):
    page = opened()
    page.page.select_option("#axis", axis)
    canvas = page.page.locator("#learning .canvas").first
    place = page.page.evaluate(
        """() => {
          const { drawing, series } = document.querySelector('#learning .canvas').chart;
          const index = series.findIndex((one) => one.run === 'run0' && one.data.length === 6);
          return drawing.convertToPixel({ seriesIndex: index }, series[index].data[4].slice(0, 2));
        }"""
    )
    position = {"x": place[0] + 2, "y": place[1] + 1}
    click_until(page, lambda: canvas.click(position=position), "document.querySelector('#step').value === '5'")
    assert {step for step, _ in shown(page)} == {5}
    page.page.wait_for_function("turnwise.place.step === 5")
    assert "step 5, group 1" in page.text(".group-head")  # the first with contrast
    assert "only_step=5" in page.page.evaluate("location.hash")


def test_paper_is_light_and_shows_every_chart(opened):
    page = opened(color_scheme="dark")
    background = "getComputedStyle(document.body).getPropertyValue('--card').trim()"
    dark = page.page.evaluate(background)
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.page.evaluate(background) == "#ffffff" != dark
    blank = page.page.evaluate(
        """() => [...document.querySelectorAll('figure:not([hidden]) .canvas')].filter((one) => {
          const drawn = one.querySelector('canvas');
          const { data } = drawn.getContext('2d').getImageData(0, 0, drawn.width, drawn.height);
          const fits = drawn.clientWidth <= one.clientWidth && one.getBoundingClientRect().right < 720;
          return !fits || new Set(new Uint32Array(data.buffer)).size < 20;
        }).map((one) => one.getAttribute('aria-label'))"""
    )
    assert blank == []
    assert page.page.locator("nav.bar").is_hidden()
    last = page.page.locator("#causes .tabulator-cell").last.bounding_box()
    assert last["x"] + last["width"] < 720
    page.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.page.evaluate(background) == dark
    assert page.page.pdf(format="A4").startswith(b"%PDF")
