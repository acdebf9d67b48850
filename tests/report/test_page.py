"""The page in a real browser: it loads fast, says nothing on the console, and can be used by keyboard and by link."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.report.synthetic import write_run
from tests.report.test_fidelity import write_analysis

from turnwise.lab.report.build import ReportData
from turnwise.lab.report.write import install, write_index, write_report
from turnwise.rollout.record import SCHEMA

METHODS = ["grpo", "gigpo+aem"]


@pytest.fixture(scope="module")
def page_url(browser, tmp_path_factory) -> str:
    """A report of two runs; after `browser`, so that nothing is made where there is none."""
    runs = tmp_path_factory.mktemp("runs")
    paths = [write_run(runs / "first", group_size=8), write_run(runs / "second", steps=3)]
    return write_report(paths, runs / "report", METHODS).as_uri()


POINT_AT_EVERYTHING = """() => [...document.querySelectorAll(".canvas")].filter(({ chart }) => chart).map((canvas) => {
    canvas.chart.show();
    const { drawing, series } = canvas.chart;
    (series ?? []).forEach(({ data }, seriesIndex) =>
        data.forEach((_, dataIndex) => drawing.dispatchAction({ type: "showTip", seriesIndex, dataIndex })));
    return canvas.textContent;
})"""
"""Show the tooltip of every point of every chart, and return the last of each chart."""


def test_names_that_worlds_and_users_choose_are_text(opened, tmp_path):
    hostile = "<img src=x onerror=console.log('run')>"
    run = write_run(tmp_path / hostile, steps=2)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record |= {f"eval/success/{hostile}": 0.5} if "eval/success" in record else {f"rollout/{hostile}": 0.5}
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for path in (run / "rollouts").iterdir():
        table = pq.read_table(path)
        for name in ("task", "observation", "failure"):
            known = pc.is_valid(table.column(name))
            told = pc.if_else(known, f"{name} {hostile}", None)
            table = table.set_column(table.schema.get_field_index(name), name, told)
        pq.write_table(table, path)
    other = write_run(tmp_path / "other", steps=2)
    page = opened("#step=2&rollout=11", url=write_report([run, other], tmp_path / "report", METHODS).as_uri())
    page.unfold()
    assert f"rollout/{hostile}" in page.page.text_content("#metrics")
    assert hostile in page.page.text_content("#settings")
    assert f"failure {hostile}" in page.page.text_content("#causes")
    assert f"task {hostile}" in page.page.text_content("#table")
    assert f"observation {hostile}" in page.page.text_content("#rollouts")
    assert f"failure {hostile}" in page.page.text_content("#rollouts")
    tooltips = page.page.evaluate(POINT_AT_EVERYTHING)
    assert sum(hostile in tooltip for tooltip in tooltips) >= 2
    assert page.page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("steps", "trajectories"), [(50, "6,800"), pytest.param(150, "20,400", marks=pytest.mark.slow)]
)
def test_a_large_run_loads_within_two_seconds(opened, tmp_path, steps, trajectories):
    run = write_run(tmp_path / "large", steps=steps, groups=17, group_size=8, turns=12)
    url = write_report([run], tmp_path / "report", METHODS).as_uri()
    seconds = []
    while not seconds or (min(seconds) >= 2.0 and len(seconds) < 5):
        page = opened(url=url)
        assert f"{trajectories} of {trajectories} trajectories" in page.text("#found")
        # of the page's thread; a neighbour on the same core still slows it, so the best of some loads counts
        seconds.append(page.processor_seconds())
    assert min(seconds) < 2.0


def test_charts_are_drawn_and_described(opened):
    page = opened().page
    page.wait_for_selector("#learning canvas")
    labels = page.eval_on_selector_all("#learning .canvas", "all => all.map((one) => one.getAttribute('aria-label'))")
    assert "first: from 30 % to 70 %" in labels[0]
    painted = page.evaluate(
        "(() => "
        "{ const c = document.querySelector('#learning canvas'); "
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return new Set(new Uint32Array(d.buffer)).size })()"
    )
    assert painted > 20


def test_a_link_opens_its_turn_with_its_numbers(opened):
    page = opened("#run=first&step=3&rollout=12&turn=2&as=gigpo%2Baem")
    card = page.page.locator(".turn.here")
    assert (card.get_attribute("data-trajectory"), card.get_attribute("data-turn")) == ("12", "1")
    assert "step 3, group 1" in page.text(".group-head")
    assert page.page.locator(".rollout-head").count() == 8
    names = card.locator("dt").all_inner_texts()
    assert names == ["H", "\N{GREEK SMALL LETTER ALPHA}", "base", "A", "gigpo+aem"]
    alpha, base, final = (
        card.locator("dd").nth(place).inner_text().replace("\N{MINUS SIGN}", "-") for place in (1, 2, 3)
    )
    valid = card.locator(".flag").count() == 0
    assert float(final) == pytest.approx(float(alpha) * float(base) - (0 if valid else 0.1), abs=0.03)
    assert card.locator(".response span[title*=nats]").count() >= 3


def test_a_link_that_leads_nowhere_says_so(opened):
    assert "has no rollout 4 in step 9999" in opened("#run=first&step=9999&rollout=4").text("#rollouts")


def test_the_keyboard_moves_between_turns_rollouts_and_groups(opened):
    page = opened("#run=first&step=4&rollout=8&turn=1")
    assert page.here() == ("8", "0")
    page.press("ArrowDown", "ArrowRight")
    assert page.here() == ("9", "1")
    assert page.page.evaluate("location.hash") == "#run=first&step=4&rollout=9&turn=2"
    assert page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Home", "ArrowLeft")
    assert page.here() == ("8", "0")
    page.press("Enter")
    assert "whole" in page.page.locator(".turn.here").get_attribute("class")
    page.press("n")
    page.page.wait_for_function("location.hash.includes('rollout=16')")
    assert page.here() == ("16", "0")


def test_the_table_filters_sorts_and_opens_by_keyboard(opened):
    page = opened()
    page.page.check("input[value=failed]", force=True)
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('4 of')")
    page.page.check("input[value=won]", force=True)
    page.page.select_option("#sort", "alpha")
    page.page.wait_for_function("!document.querySelector('#found').textContent.startsWith('4 of')")
    alphas = page.page.eval_on_selector_all(
        "#table .tabulator-cell[tabulator-field=alpha]", "all => all.map((one) => Number(one.textContent))"
    )
    assert alphas == sorted(alphas, reverse=True)
    assert set(page.page.locator("#table .tabulator-cell[tabulator-field=outcome]").all_inner_texts()) == {"won"}
    page.page.focus("#table .tabulator-tableholder")
    page.press("ArrowDown", "Enter")
    page.page.wait_for_selector(".turn.here")
    assert page.page.locator("#table .tabulator-row.open").count() == 1


def test_text_is_searched_in_a_step(opened):
    page = opened()
    page.page.select_option("#step", "2")
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('24 of')")
    page.page.fill("#text", "You are in ROOM 3")
    page.press("Enter")
    page.page.wait_for_function("!/^(24 of|searched)/.test(document.querySelector('#found').textContent)")
    found = int(page.text("#found").split()[0])
    assert 0 < found < 24
    page.page.select_option("#step", "3")  # what was found in another step says nothing of this one
    page.page.wait_for_function("!/^(0 of|searched)/.test(document.querySelector('#found').textContent)")
    assert 0 < int(page.text("#found").split()[0]) < 24


def test_a_run_without_rollouts_says_so(opened, tmp_path):
    run = write_run(tmp_path / "run", steps=4)
    shutil.rmtree(run / "rollouts")
    page = opened(url=write_report([run], tmp_path / "report", METHODS).as_uri())
    source = page.text("#answers td:nth-child(3)")
    assert source.startswith("48 trajectories")  # 4 steps of 3 groups of 4
    assert "Rollouts were not kept." in source
    assert "No rollouts were recorded." in page.text("#causes")


def test_turns_of_unknown_tokens_and_credit_are_shown(opened, tmp_path):
    run = write_run(tmp_path / "log", steps=1)
    path = run / "rollouts" / "step-000001.parquet"
    table = pq.read_table(path)
    credit = [name for name in table.column_names if name not in SCHEMA.names]
    of_group = pc.equal(table["group"], 0)
    for name in credit:  # left out of the update
        column = pc.if_else(of_group, pa.scalar(None, pa.float64()), table[name])
        table = table.set_column(table.column_names.index(name), name, column)
    for name in ("response_ids", "behavior_logprobs"):  # unknown, as in an imported log
        column = pa.nulls(table.num_rows, table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, path)
    page = opened("#run=log&step=1&rollout=0", write_report([run], tmp_path / "report", METHODS).as_uri())
    rows = [row for row in table.to_pylist() if row["group"] == 0]
    assert page.page.locator(".turn .response").all_inner_texts() == [row["response"] for row in rows]
    assert page.page.locator(".no-contrast", has_text="no return to compare").count() == 0
    alpha = page.page.locator(".turn .credit > div:nth-child(2)").first
    assert alpha.inner_text().split() == ["\N{GREEK SMALL LETTER ALPHA}", "\N{EN DASH}"]
    assert alpha.evaluate("one => getComputedStyle(one).backgroundColor").endswith(" / 0)")


def test_the_run_that_was_chosen_last_is_shown(opened):
    page = opened()
    shown = page.page.evaluate(
        """async () => {
          const { table } = turnwise;
          let release;
          const held = new Promise((resolve) => { release = resolve; });
          turnwise.table = async (name) => { if (name === 'run1/index') await held; return table(name); };
          const overtaken = turnwise.chooseRun('run1');
          await new Promise((resolve) => setTimeout(resolve));
          await turnwise.chooseRun('run0');
          release();
          await overtaken;
          return [turnwise.run().name, Tabulator.findTable('#table')[0].getData().length];
        }"""
    )
    assert shown == ["run0", 4 * 24]


def live_page(opened, serve, run: Path, folder: Path):
    """Open a live page of a run as it is served; returns its data, to update, and the page."""
    data = ReportData([run], folder / "files", METHODS)
    install(folder / "files")
    data.update()
    write_index(folder, "files", live=True)
    return data, opened(url=serve(folder) + "/index.html")


def test_a_live_page_keeps_what_the_reader_uses_and_searches_new_steps(opened, serve, tmp_path):
    run = write_run(tmp_path / "run", steps=30)
    write_analysis(run)
    records = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = run / "rollouts" / "step-000030.parquet"
    (run / "metrics.jsonl").write_text("".join(records[:-1]))
    kept = last.read_bytes()
    last.unlink()
    data, page = live_page(opened, serve, run, tmp_path / "page")
    page.unfold()
    page.page.fill("#settings .tabulator-header-filter input", "learning_rate")
    page.page.fill("#text", "you are in")
    page.press("Enter")
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('348 of 348')")
    page.page.select_option("#fidelity-group", "0")
    scrolled = "document.querySelector('#metrics .tabulator-tableholder').scrollTop"
    page.page.evaluate(f"{scrolled} = 100")
    last.write_bytes(kept)
    (run / "metrics.jsonl").write_text("".join(records))
    data.update()
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('360 of 360')")
    assert "30" in page.page.evaluate("Tabulator.findTable('#metrics')[0].getData().map((row) => String(row.step))")
    assert page.page.evaluate(scrolled) == 100
    assert page.page.input_value("#fidelity-group") == "0"
    assert page.page.input_value("#settings .tabulator-header-filter input") == "learning_rate"
    names = page.page.locator("#settings .tabulator-cell[tabulator-field=name]").all_inner_texts()
    assert names
    assert all("learning_rate" in name for name in names)


def test_a_live_page_searches_steps_again_that_were_recorded_anew(opened, serve, tmp_path):
    run, other = write_run(tmp_path / "run", steps=2), write_run(tmp_path / "other", steps=2, seed=1)
    data, page = live_page(opened, serve, run, tmp_path / "page")
    page.page.fill("#text", "room 3")
    page.press("Enter")
    found = "Tabulator.findTable('#table')[0].getData('active').map((row) => row.key)"
    searched = f"(keys) => {found}.sort().join() === keys.join()"
    page.page.wait_for_function(searched, arg=with_text(run, "room 3"))
    shutil.copy(other / "rollouts" / "step-000002.parquet", run / "rollouts")  # as after a resume
    data.update()
    page.page.wait_for_function(searched, arg=with_text(run, "room 3"))


def with_text(run: Path, text: str) -> list[str]:
    """Keys of the trajectories whose observations have a text."""
    steps = [(number, pq.read_table(run / "rollouts" / f"step-{number:06d}.parquet")) for number in (1, 2)]
    rows = [(number, row) for number, table in steps for row in table.to_pylist()]
    return sorted({f"{number}/{row['trajectory']}" for number, row in rows if text in row["observation"]})


def test_runs_can_be_switched_and_fit_a_phone_in_the_dark(opened):
    page = opened(color_scheme="dark", reduced_motion="reduce")
    page.page.set_viewport_size({"width": 375, "height": 780})
    page.page.select_option("#run", label="second")
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('36 of 36')")
    page.fits(375)
    colour = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in colour.strip("rgb()").split(",")) < 60


def test_text_has_the_contrast_that_wcag_asks_for(opened):
    for scheme in ("light", "dark"):
        page = opened("#run=second&step=2&rollout=0", color_scheme=scheme)
        worst = page.page.evaluate(Path(__file__).with_name("contrast.js").read_text())
        assert worst["ratio"] >= 4.5, f"{scheme}: {worst}"


def test_a_run_without_rollouts_does_not_show_another_ones(opened, tmp_path):
    paths = [write_run(tmp_path / name, steps=2) for name in ("first", "bare")]
    shutil.rmtree(paths[1] / "rollouts")
    page = opened(url=write_report(paths, tmp_path / "report", METHODS).as_uri())
    assert "rollout" in page.text("#rollouts .rollouts")
    page.page.select_option("#run", label="bare")
    page.page.wait_for_function("() => document.querySelector('#rollouts').innerText === 'No rollouts were recorded.'")


def test_the_next_step_opens_its_first_rollout_where_the_number_is_missing(opened, tmp_path):
    run = write_run(tmp_path / "uneven", steps=2, groups=3, group_size=4)
    path = run / "rollouts" / "step-000002.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.less(table["trajectory"], 4)), path)
    page = opened("#step=1&rollout=9", url=write_report([run], tmp_path / "report", METHODS).as_uri())
    page.page.click("button[aria-label='next step']")
    page.page.wait_for_function("() => document.querySelector('.group-head').innerText.includes('step 2, group 0')")


def test_a_click_on_tokens_opens_that_step_whatever_the_other_charts_count(opened, tmp_path):
    run = write_run(tmp_path / "long", steps=8)
    page = opened(url=write_report([run], tmp_path / "report", METHODS).as_uri())
    page.page.select_option("#axis", "trajectories")
    box = page.page.evaluate(
        """() => {
            const tokens = [...document.querySelectorAll("#cost figure")]
                .find((figure) => figure.innerText.startsWith("Generated tokens")).querySelector(".canvas");
            tokens.scrollIntoView();
            tokens.chart.show();
            const { drawing, series } = tokens.chart;
            const row = series[0].data.findIndex(([step]) => step === 6);
            const [x, y] = drawing.convertToPixel({ seriesIndex: 0 }, series[0].data[row]);
            const { left, top } = tokens.getBoundingClientRect();
            return { x: left + x, y: top + y };
        }"""
    )
    page.page.mouse.click(box["x"], box["y"])
    page.page.wait_for_function("() => document.querySelector('#step').value === '6'")


def test_small_numbers_are_shown_and_sorted_as_numbers(opened, tmp_path):
    run = write_run(tmp_path / "small", steps=3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, kl in zip([line for line in lines if "rollout/success" in line], (3e-5, 0.5, 12000.0), strict=True):
        line["update/kl_old"] = kl
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = opened(url=write_report([run], tmp_path / "report", METHODS).as_uri())
    page.unfold()
    assert "0.0000300" in page.page.text_content("#metrics")
    order = page.page.evaluate(
        """() => {
            const table = Tabulator.findTable("#metrics")[0];
            table.setSort("update/kl_old", "asc");
            return table.getData("active").map((row) => row["update/kl_old"] ?? null);
        }"""
    )
    assert order == [3e-5, 0.5, 12000.0, None]
