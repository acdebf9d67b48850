"""The card of a response in a real browser: its sum, where base comes from, the legend, and groups without contrast."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.report.synthetic import PENALTY, write_run

import turnwise as tw
from turnwise.lab.report.write import write_report

METHODS = ["grpo"]
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
TIMES = "\N{MULTIPLICATION SIGN}"
NUMBER = r"[+-]?\d+\.\d+"
SUM = re.compile(
    rf"({NUMBER}) base(?: {TIMES} ({NUMBER}) {ALPHA})?(, masked → 0)?(?: - ({NUMBER}) penalty)?(?: = ({NUMBER}))?"
)


@pytest.fixture(scope="module")
def page_url(browser, tmp_path_factory) -> str:
    """Runs of AEM, AEM with a mask, a mix, EMPG, and a run of version 0.1. Their first groups have no contrast."""
    runs = tmp_path_factory.mktemp("runs")
    made = {
        "aem": None,
        "masked": tw.aem(keep="positive"),
        "mix": tw.mix(tw.grpo(), tw.aem(tw.rloo()), weights=[0.5, 2.0]),
        "empg": tw.empg(),
        "old": None,
    }
    paths = [write_run(runs / name, steps=2, level=True, method=method) for name, method in made.items()]
    for path in (runs / "old" / "rollouts").iterdir():
        table = pq.read_table(path)
        pq.write_table(
            table.drop([name for name in table.column_names if name == "base" or name.startswith("trace.")]), path
        )
    return write_report(paths, runs / "report", METHODS).as_uri()


def recorded(page_url: str, run: str, trajectory: int, step: int = 1) -> list[dict]:
    """What the run's file says of the responses of a trajectory."""
    runs = Path(page_url.removeprefix("file://")).parents[1]
    rows = pq.read_table(runs / run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()
    return [row for row in rows if row["trajectory"] == trajectory]


def texts(page, selector: str) -> list[str]:
    return [text.replace("\N{MINUS SIGN}", "-") for text in page.page.locator(selector).all_inner_texts()]


def sums(page, run: str, page_url: str) -> list[tuple[dict, re.Match | None, str]]:
    """Recorded row, sum in its parts and sum as text, for each response that is shown."""
    found = []
    for card in page.page.locator(".turn").all():
        trajectory, turn = int(card.get_attribute("data-trajectory")), int(card.get_attribute("data-turn"))
        row = recorded(page_url, run, trajectory)[turn]
        text = card.locator(".sum").inner_text().replace("\N{MINUS SIGN}", "-")
        found.append((row, SUM.fullmatch(text), text))
    assert found
    return found


@pytest.mark.parametrize("run", ["aem", "old"])
def test_a_card_shows_the_sum_of_its_credit(opened, page_url, run):
    page = opened(f"#run={run}&step=1&rollout=4")
    seen = set()
    for row, match, text in sums(page, run, page_url):
        assert match, text
        base, alpha, masked, penalty, total = match.groups()
        value = float(base) * float(alpha or 1) - float(penalty or 0)
        assert value == pytest.approx(row["advantage"], abs=0.02)
        assert float(total) == pytest.approx(row["advantage"], abs=0.005)
        assert float(alpha) == pytest.approx(row["alpha"], abs=0.005)
        assert (float(penalty) == PENALTY) if not row["valid"] else (penalty is None)
        assert not masked
        seen.add(row["valid"])
    assert True in seen


def test_an_invalid_response_shows_its_penalty_and_a_spoken_sum(opened, page_url):
    rows = [row for trajectory in range(4, 8) for row in recorded(page_url, "aem", trajectory, 2) if not row["valid"]]
    page = opened(f"#run=aem&step=2&rollout={rows[0]['trajectory']}&turn={rows[0]['turn'] + 1}")
    (text,) = texts(page, ".turn.here .sum")
    assert f" - {PENALTY:.2f} penalty = {rows[0]['advantage']:+.2f}" in text
    spoken = page.page.locator(".turn.here").get_attribute("aria-label").replace("\N{MINUS SIGN}", "-")
    assert f"credit: {text.replace(ALPHA, 'alpha')}" in spoken


def test_a_masked_response_says_so(opened, page_url):
    kinds = set()
    for row, match, text in sums(opened("#run=masked&step=1&rollout=4"), "masked", page_url):
        assert match, text
        base, alpha, masked, penalty, total = match.groups()
        zero = (row["base"] * (row["alpha"] - 1)) <= 0
        assert bool(masked) == zero
        assert (float(base), float(alpha)) == pytest.approx((row["base"], row["alpha"]), abs=0.006)
        assert (total is None) == (zero and row["valid"])
        assert (penalty is None) == row["valid"]
        kinds.add(zero)
    assert kinds == {True, False}


def test_a_mix_and_untraced_blocks_have_terms_of_their_own(opened):
    page = opened("#run=mix&step=1&rollout=4")
    assert all(re.search(rf"base {TIMES} {NUMBER} mix", text) for text in texts(page, ".sum"))
    assert "modulate_by_entropy" in page.page.locator(".sum span", has_text="mix").first.get_attribute("title")
    page = opened("#run=empg&step=1&rollout=4")
    assert any(re.search(rf"{ALPHA} [+-] {NUMBER} other", text) for text in texts(page, ".sum"))


def test_a_card_says_where_base_comes_from(opened, page_url):
    page = opened("#run=aem&step=1&rollout=4")
    returns = [sum(row["reward"] for row in recorded(page_url, "aem", trajectory)) for trajectory in range(4, 8)]
    mean = sum(returns) / 4
    std = (sum((value - mean) ** 2 for value in returns) / 3) ** 0.5
    brief = lambda value: f"{value:.2f}" if value % 1 else f"{value:.0f}"  # noqa: E731
    for trajectory, value in zip(range(4, 8), returns, strict=True):
        shown = texts(page, f".rollout-head:has(a:text-is('rollout {trajectory}')) .origin")
        difference = f"return {brief(value)} - group mean {brief(mean)}"
        assert set(shown) == {f"base = ({difference}) / std {brief(std)}"}
    # a sum of two methods is no such equation of the returns alone
    mixed = texts(opened("#run=mix&step=1&rollout=4"), ".origin")
    assert any(text.endswith(f"group mean {brief(mean)}, std {brief(std)}") for text in mixed)


def test_the_legend_and_the_tooltips_explain_the_four_numbers(opened):
    page = opened("#run=aem&step=1&rollout=4")
    page.page.click(".legend summary")
    assert texts(page, ".meaning dt") == ["H", ALPHA, "base", "A"]
    meaning = texts(page, ".meaning dd")
    titles = page.page.eval_on_selector_all(".turn.here .credit div", "all => all.map((one) => one.title)")
    assert titles == meaning
    assert all(page.page.eval_on_selector_all(".turn.here .sum span", "all => all.map((one) => one.title)"))


def test_a_group_without_contrast_says_so_and_does_not_open_first(opened, page_url):
    page = opened()
    assert page.page.evaluate("[location.hash, scrollY, document.activeElement.tagName]") == ["", 0, "BODY"]
    assert "step 2, group 1" in page.text(".group-head")
    assert page.page.locator(".no-contrast").count() == 0
    assert page.page.locator("#table .tabulator-row.open").count() == 1
    page = opened("#run=aem&step=1&rollout=0")
    penalties = any(not row["valid"] for trajectory in range(4) for row in recorded(page_url, "aem", trajectory))
    assert page.text(".no-contrast") == "no contrast: all 4 failed the task (return 0), so no credit" + (
        " but penalties" * penalties
    )
    valid = page.page.locator(".turn:not(:has(.flag)) .sum").all_inner_texts()
    assert set(valid) == {"0.00 base = 0.00"}


def test_another_run_opens_its_own_first_group(opened):
    page = opened()
    page.page.select_option("#run", label="mix")
    page.page.wait_for_function("document.querySelector('.sum').textContent.includes('mix')")
    assert page.page.evaluate("[location.hash, turnwise.place.run === turnwise.run().name]") == ["#run=mix", True]
    page = opened("#run=aem&step=2&rollout=4")
    page.page.select_option("#run", label="mix")
    page.page.wait_for_function("location.hash.startsWith('#run=mix&step=2')")


def test_without_any_contrast_the_first_group_opens(opened, tmp_path):
    run = write_run(tmp_path / "run", steps=1, groups=1, failed=False, level=True)
    page = opened(url=write_report([run], tmp_path / "report", METHODS).as_uri())
    assert "group 0: 0 of 4 won" in page.text(".group-head")
    assert page.page.locator(".no-contrast").count() == 1
    page.page.check("#contrast")
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('0 of 4')")


def test_groups_with_contrast_can_be_filtered(opened, page_url):
    page = opened()
    everything = page.text("#found")
    assert everything.startswith("24 of 24")
    expected = 0
    for step in (1, 2):
        for group in range(3):
            own = [recorded(page_url, "aem", 4 * group + member, step) for member in range(4)]
            usable = [rows for rows in own if rows[0]["failure"] is None]
            expected += 4 * (len({sum(row["reward"] for row in rows) for rows in usable}) > 1)
    assert 0 < expected < 24
    page.page.check("#contrast")
    page.page.wait_for_function(f"document.querySelector('#found').textContent.startsWith('{expected} of 24')")
    page.page.check("input[value=won]", force=True)
    page.page.wait_for_function(f"!document.querySelector('#found').textContent.startsWith('{expected} of')")
    page.page.uncheck("#contrast")
    page.page.check("input[value=all]", force=True)
    page.page.wait_for_function("document.querySelector('#found').textContent.startsWith('24 of 24')")
