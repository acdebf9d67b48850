"""The leaderboard: built by one command, resumed where it was, and its pages from the kept data alone."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.report.browser import Opened, chromium

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "studies" / "leaderboard.py"

PLAN = """
methods = ["grpo", "rloo", "grpo+aem"]
groups = 6
continuations = 6
settings = ["method=grpo", "run.steps=2", "run.threads=1", "warmstart.steps=0", "rollout.groups=2", "evaluate.every=0",
  "evaluate.final_episodes=4", "model.hidden_size=16", "model.num_layers=1", "model.num_heads=2",
  "environment.options.num_train=50", "environment.options.turns=3", "environment.options.critical=1",
  "rollout.max_new_tokens=2"]

[environments]
"walk" = { recipe = "crossroads-tiny-aem", settings = ["environment.options.delay=0"] }
"later" = { recipe = "crossroads-tiny-aem", settings = [] }
"""


@pytest.fixture(scope="module")
def leaderboard():
    spec = importlib.util.spec_from_file_location("leaderboard", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))  # as for a script
        patch.setitem(sys.modules, "leaderboard", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def page(leaderboard):
    return sys.modules["leaderboard_page"]


def numbers(folder: Path) -> dict:
    """What table.html has its rows from."""
    text = (folder / "table.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def made(leaderboard, tmp_path_factory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("board")
    (folder / "plan.toml").write_text(PLAN)
    options = ["--plan", str(folder / "plan.toml"), "--folder", str(folder), "--runs", str(folder / "runs")]
    assert leaderboard.main([*options, "--only", "walk"]) == 0
    return folder, options


def test_one_command_plays_and_writes_the_page(made, leaderboard, page):
    folder, _ = made
    found = {path.stem: json.loads(path.read_text()) for path in (folder / "data").iterdir()}
    assert set(found) == {"walk-start", "walk-middle", "walk-end"}
    assert [found[f"walk-{when}"]["step"] for when in leaderboard.WHENS] == [0, 1, 2]
    text = (folder / "README.md").read_text()
    assert (folder / "counts.csv").read_text().startswith("method,above grpo,below grpo,gradient above,")
    drift = found["walk-end"]["drift"]["drift"]["rloo"]
    assert "Not measured yet: later." in " ".join(text.split())
    took = sum(of["hours"] for of in found.values())
    assert f"All of it took {took:.2g} processor hours." in " ".join(text.split())
    assert 0 < found["walk-start"]["hours"] < 1
    shown = numbers(folder)["cells"]
    assert [(cell["environment"], cell["when"]) for cell in shown] == [("walk", when) for when in leaderboard.WHENS]
    of = shown[2]["methods"]["rloo"]
    fidelity = found["walk-end"]["fidelity"]["rloo"]
    assert of["fidelity"] == [round(fidelity[key], page.DIGITS) for key in ("value", "low", "high")]
    assert of["drift"] == [round(drift[key], page.DIGITS) for key in ("value", "low", "high")]
    assert 0 < of["time"][1] <= of["time"][0] <= of["time"][2]
    assert of["tokens"] == 0
    assert max(path.stat().st_size for path in (folder / "data").iterdir()) < 20_000
    audit = found["walk-end"]["audit"]
    assert set(audit["auroc"]) == {*found["walk-end"]["fidelity"], "uncertainty: entropy", "uncertainty: surprisal"}
    assert 0 <= audit["at_least"]["value"] <= audit["shown"]["value"] <= audit["nonzero"]["value"] <= 1
    assert all(0 <= one["low"] <= one["value"] <= 1 for one in audit["effective"].values())


def test_it_resumes_and_rebuilds_the_page_from_data_alone(made, leaderboard, monkeypatch, capsys):
    folder, options = made
    pages = [folder / name for name in ("README.md", "table.html", "counts.csv", "audit.csv")]
    page = [path.read_text() for path in pages]
    monkeypatch.setattr(leaderboard, "train", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(leaderboard, "measure_run", lambda *_, **__: pytest.fail("measured again"))
    for further in (["--only", "walk"], ["--page"]):
        for path in pages:
            path.unlink()
        assert leaderboard.main([*options, *further]) == 0
        assert [path.read_text() for path in pages] == page
    assert leaderboard.main([*options, "--only", "wlak"]) == 2
    assert "the plan has no environment 'wlak'. Did you mean 'walk'?" in capsys.readouterr().err


def test_a_run_killed_in_its_last_evaluation_is_resumed(made, leaderboard, tmp_path, monkeypatch):
    shutil.copytree(made[0] / "runs", tmp_path, dirs_exist_ok=True)
    plan, resumed = leaderboard.read_plan(made[0] / "plan.toml"), []
    monkeypatch.setattr(leaderboard, "train", lambda config, resume: resumed.append(resume))
    leaderboard.trained(plan, "walk", tmp_path)
    assert resumed == []
    shutil.rmtree(tmp_path / "walk" / "checkpoints" / "step-000002")
    leaderboard.trained(plan, "walk", tmp_path)
    assert resumed == [tmp_path / "walk"]


def test_a_method_that_needs_options_is_refused_before_anything_is_played(leaderboard, made, tmp_path, capsys):
    _, options = made
    (tmp_path / "plan.toml").write_text(PLAN.replace('"rloo"', '"mica"'))
    assert leaderboard.main([*options, "--plan", str(tmp_path / "plan.toml"), "--folder", str(tmp_path)]) == 2
    assert "leaderboard: method 'mica' needs the option 'discount'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_plan_like_another_changes_what_it_names(leaderboard, made, tmp_path, capsys):
    """What a page says of itself is not taken over."""
    folder, options = made
    other = tmp_path / "other.toml"
    told = 'title = "Its own"\nabout = "Its [own](own.md)."\ncommand = "its own"\nlimits = ["Walks are short."]\n'
    (tmp_path / "base.toml").write_text(told + (folder / "plan.toml").read_text())
    plan = f'like = "{tmp_path}/base.toml"\nmethods = ["rloo", "grpo"]\nenvironments = ["walk"]\n'
    other.write_text(plan)
    found, base = leaderboard.read_plan(other), leaderboard.read_plan(folder / "plan.toml")
    assert found == {**base, "methods": ["rloo", "grpo"], "environments": {"walk": base["environments"]["walk"]}}
    shutil.copytree(folder / "data", tmp_path / "data")
    assert leaderboard.main([*options, "--plan", str(other), "--page", "--folder", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "## Against rloo" in page
    assert "Walks are short." not in page
    assert f"`python studies/leaderboard.py --plan {other} --folder {tmp_path}`" in " ".join(page.split())
    assert max(map(len, (tmp_path / "table.html").read_text().splitlines()[:150])) <= 120
    assert leaderboard.main([*options, "--plan", str(tmp_path / "base.toml"), "--page", "--folder", str(tmp_path)]) == 0
    for made_of_base in ("README.md", "table.html"):
        assert "Walks are short." in " ".join((tmp_path / made_of_base).read_text().split())
    assert "Its [own](own.md)." in (tmp_path / "README.md").read_text()
    assert "Its own." in (tmp_path / "table.html").read_text()
    other.write_text(plan.replace('["walk"]', '["wlak"]'))
    assert leaderboard.main([*options, "--plan", str(other)]) == 2
    assert "the plan has no environment 'wlak'. Did you mean 'walk'?" in capsys.readouterr().err


def test_without_data_there_is_no_page(leaderboard, made, tmp_path, capsys):
    _, options = made
    assert leaderboard.main([*options, "--folder", str(tmp_path), "--page"]) == 2
    assert "has no data; run without --page to make it" in capsys.readouterr().err


def test_cells_told_apart_are_counted(page):
    interval = lambda low, high: {"value": (low + high) / 2, "low": low, "high": high, "p": 0.1}  # noqa: E731
    cells = [
        page.Cell("a", "start", {"minus_first": {"b": interval(*ends)}, "gradient": None})
        for ends in ((0.1, 0.2), (-0.1, 0.2), (-0.3, -0.1), (0.0, 0.1), (0.01, 0.1))
    ]
    rows = page.told_apart({"methods": ["a", "b"]}, cells)
    assert rows[1] == ("b", "2", "1", "0", "0", "0", "0", "5")


def test_a_method_without_credit_has_no_numbers_that_look_measured(page):
    nothing, some = (
        {"value": value, "low": value - reach, "high": value + reach, "p": 1.0} for value, reach in ((0, 0), (0.2, 0.1))
    )
    noise = {"a": {"signal": 0.1, "error": 0.05, "noise": 1.0}, "b": {"signal": 0.0, "error": 0.0, "noise": 1.0}}
    cell = page.Cell(
        "walk",
        "start",
        {
            "fidelity": {"a": some, "b": nothing},
            "minus_first": {"b": some},
            "gradient": {"fidelity": {"a": some, "b": nothing}, "noise": noise},
        },
    )
    shown = {method: {key for key in page.INTERVALS if cell.interval(method, *page.INTERVALS[key])} for method in "ab"}
    assert shown == {"a": {"fidelity", "gradient"}, "b": {"fidelity"}}
    assert cell.has_credit("a")
    assert not cell.has_credit("b"), "table.html then leaves out its fidelity too"
    assert cell.signal("a").share_text() == "0.0909 +- 0.0455"
    assert cell.signal("b") is None


def test_a_plan_with_seeds_has_a_policy_per_seed(leaderboard, tmp_path):
    (tmp_path / "plan.toml").write_text("seeds = [3, 5]\n" + PLAN)
    found = leaderboard.read_plan(tmp_path / "plan.toml")["environments"]
    assert list(found) == ["walk-3", "walk-5", "later-3", "later-5"], "an environment is whole early"
    assert found["walk-5"]["settings"] == ["environment.options.delay=0", "run.seed=5"]
    (tmp_path / "other.toml").write_text('like = "plan.toml"\nenvironments = ["walk"]\n')
    assert list(leaderboard.read_plan(tmp_path / "other.toml")["environments"]) == ["walk-3", "walk-5"]
    (tmp_path / "one.toml").write_text('like = "plan.toml"\nenvironments = ["walk"]\nseeds = []\n')
    one = leaderboard.read_plan(tmp_path / "one.toml")
    assert list(one["environments"]) == ["walk"]
    assert "seeds" not in one, "its page then speaks of one policy"


def test_policies_of_several_seeds_are_compared_by_their_means(leaderboard, page):
    """Differences 0.1, 0.2 and 0.3: mean 0.2, Student's t 3.464 with two degrees of freedom, p 0.0742, times 2."""
    cells = [
        page.Cell(f"a-walk-{seed}", "start", cell({"grpo": base, "rloo": base + above, "aem": base}))
        for seed, base, above in ((1, 0.1, 0.1), (2, 0.5, 0.2), (3, 0.3, 0.3))
    ]
    del cells[1].data["fidelity"]["aem"], cells[1].data["minus_first"]["aem"]
    cells.append(page.Cell("b-1", "start", cell({"grpo": 0.5})))
    head, rloo, aem = page.over_policies({"methods": ["grpo", "rloo", "aem"]}, cells)
    assert head[-1] == "p"
    assert rloo[:6] == ("a-walk", "start", "rloo", "3", "0.500", "0.300")
    value, low, high = map(float, re.findall(r"[-+]\d\.\d+", rloo[6]))
    assert (value, high + low) == pytest.approx((0.2, 0.4), abs=0.02)
    assert high - low >= 2 * 4.303 * 0.1 / 3**0.5 - 0.002
    assert rloo[7] == f"{2 * 0.0742:.3f}"
    assert aem == ("a-walk", "start", "aem", "2", "0.200", "0.200", "+0.000 [no interval]", "-")


def test_figures_of_several_policies_are_means_with_intervals_over_them(page):
    """Values 0.1, 0.2 and 0.6: mean 0.3, standard error 0.1528, Student's t 4.303 with two degrees of freedom."""
    audits = [
        {"auroc": {"grpo": interval(value), "entropy": interval(0.5)}, "defined": value} for value in (0.1, 0.2, 0.6)
    ]
    noise = [{"grpo": {"signal": signal, "error": 9.0, "noise": 2.0}} for signal in (1.0, 2.0, 3.0)]
    equal = [["grpo", "rloo", "aem"]], [["grpo", "rloo"], ["aem"]], [["aem"], ["rloo", "grpo"]]
    cells = [
        page.Cell(
            f"a-walk-{seed}",
            "start",
            cell({"grpo": one["defined"], "rloo": 0.0, "aem": 0.5}, audit=one, milliseconds={"grpo": [seed, 2.0]})
            | {"equal": same, "importance": [{"kind": "valid"}], "gradient": {"noise": loud}},
        )
        for seed, (one, same, loud) in enumerate(zip(audits, equal, noise, strict=True))
    ]
    cells[0].data["fidelity"]["rare"] = interval(0.3)
    for each in cells:
        each.data["fidelity"]["rloo"] = {"value": 0.0, "low": 0.0, "high": 0.0}
    alone = page.Cell("b-0", "start", cell({"grpo": 0.5}))
    (found,) = page.over_seeds([*cells, alone])
    assert (found.environment, found.when, found.data["policies"]) == ("a-walk", "start", 3)
    of = found.interval("grpo", "fidelity")
    assert of.value == pytest.approx(0.3)
    assert of.high - of.value >= 4.303 * 0.1528 - 1e-3 <= of.value - of.low
    assert (found.interval("rare", "fidelity"), found.has_credit("rloo")) == (None, False)
    assert found.interval("aem", "fidelity").low == 0.5, "the same in all policies"
    assert found.interval("grpo", "audit", "auroc").value == pytest.approx(0.3)
    assert found.data["audit"]["defined"] == pytest.approx(0.3)
    assert found.milliseconds("grpo") == [1.0, 1.0, 2.0]
    assert found.signal("grpo").signal == 2.0
    assert found.signal("grpo").error == pytest.approx(1 / 3**0.5)
    assert found.rows(["grpo", "rloo", "aem"]) == {"grpo": "grpo = rloo", "aem": "aem", "entropy": "entropy"}
    assert "importance" not in found.data


def test_a_plan_may_leave_out_times_and_show_one_method(leaderboard, made, tmp_path, monkeypatch):
    folder, options = made
    plan = 'whens = ["start"]\nshow = "grpo+aem"\n' + PLAN
    (tmp_path / "plan.toml").write_text(plan)
    monkeypatch.setattr(leaderboard, "train", lambda *_, **__: pytest.fail("trained again"))
    own = ["--plan", str(tmp_path / "plan.toml"), "--folder", str(tmp_path), "--only", "walk"]
    assert leaderboard.main([*options, *own]) == 0
    assert [path.stem for path in (tmp_path / "data").iterdir()] == ["walk-start"]
    assert "[grpo+aem minus grpo in every cell](differences.csv)" in (tmp_path / "README.md").read_text()
    text = (tmp_path / "differences.csv").read_text()
    assert text.startswith("environment,time,success,fidelity,of the gradient,transfer\nwalk,start,")
    one = json.loads((folder / "data" / "walk-start.json").read_text())["minus_first"]["grpo+aem"]
    shown = f"{one['value']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"
    assert shown in text


def test_methods_that_are_told_apart_equally_often_share_a_row(page):
    rows = [("method", "above a", "below a", "gradient above"), ("b", "2", "1", "0"), ("c", "1", "1", "0")]
    assert page.joined([*rows, ("d", "2", "1", "1")])[1:] == [("`b`, `d`", "2", "1"), ("`c`", "1", "1")]


@pytest.mark.parametrize("name", ["leaderboard", "results/aem-map", "results/visits-fidelity-again"])
def test_the_page_of_the_repository_is_that_of_its_data(leaderboard, tmp_path, name):
    kept = ROOT / "docs" / name
    (tmp_path / "data").mkdir()
    for path in (kept / "data").iterdir():
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    assert leaderboard.main(["--page", "--folder", str(tmp_path), "--plan", str(kept / "plan.toml")]) == 0
    for page in {path.name for path in tmp_path.iterdir() if path.is_file()}:
        assert (tmp_path / page).read_text() == (kept / page).read_text(), (
            f"docs/{name}/{page} is out of date; run python studies/leaderboard.py --page"
        )
    assert "(table.html)" in (kept / "README.md").read_text()
    assert len((kept / "README.md").read_text().split()) <= 800
    sizes = [path.stat().st_size for path in (kept / "data").iterdir()]
    assert sum(sizes) < 60_000 * len(sizes)  # bytes of a cell: the repository keeps them


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.25, "high": value + 0.25, "p": 0.1}


def cell(fidelity: dict[str, float], **further) -> dict:
    above = {name: interval(value - fidelity["grpo"]) for name, value in fidelity.items() if name != "grpo"}
    about = {"groups": 3, "step": 1, "success": 0.5, "histories": 9, "continuations": 4, "gradient": None}
    return {
        **about,
        "fidelity": {name: interval(one) for name, one in fidelity.items()},
        "minus_first": above,
        **further,
    }


@pytest.fixture(scope="module")
def drawn(leaderboard, tmp_path_factory) -> Path:
    """An old cell without drift and times, and a new one."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "data").mkdir()
    new = cell(
        {"grpo": 0.4, "rloo": 0.7, "grpo+aem": -0.1},
        drift={
            "drift": {"grpo": interval(-0.5), "rloo": interval(0.125), "grpo+aem": interval(-0.75)},
            "minus_first": {"rloo": interval(0.625), "grpo+aem": interval(-0.25)},
        },
        milliseconds={"grpo": [2.0, 1.0], "rloo": [3.0, 3.0], "grpo+aem": [1.0, 4.0]},
        extra_tokens={"grpo": 0, "rloo": 12.345, "grpo+aem": 100.0},
        gradient={
            "fidelity": {"grpo": interval(0.875)},
            "minus_first": {},
            "noise": {
                "grpo": {"signal": 1.0, "error": 0.5, "noise": 3.0},
                "rloo": {"signal": 0, "error": 0, "noise": 0},
            },
        },
    )
    (folder / "data" / "walk-end.json").write_text(json.dumps(new))
    (folder / "data" / "later-start.json").write_text(json.dumps(cell({"grpo": 0.5, "rloo": 0.3})))
    assert leaderboard.main(["--page", "--plan", str(folder / "plan.toml"), "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser, drawn):
    page = Opened(browser, (drawn / "table.html").as_uri())
    yield page
    page.context.close()
    assert not page.said, "the page said something on the console, or asked the network for something"


def column(page: Opened, title: str) -> list[list[str]]:
    """The lines of each cell of a column."""
    place = page.page.locator("#head th").all_inner_texts().index(title) + 1
    cells = page.page.locator(f"#rows td:nth-child({place})").all_inner_texts()
    return [text.split() for text in cells]


def firsts(page: Opened, title: str) -> list[str]:
    return [words[0] for words in column(page, title)]


def test_every_number_of_the_table_has_its_interval_and_what_is_missing_a_dash(opened):
    assert firsts(opened, "method") == ["rloo", "grpo", "grpo", "rloo", "grpo+aem"], "by fidelity, best first"
    assert column(opened, "fidelity")[0] == ["0.700", "[0.450,", "0.950]"]
    assert column(opened, "fidelity minus grpo")[0] == ["+0.300", "[+0.050,", "+0.550]"]
    assert column(opened, "entropy drift")[0] == ["+0.125", "[-0.125,", "+0.375]"]
    assert column(opened, "entropy drift minus grpo")[0] == ["+0.625", "[+0.375,", "+0.875]"]
    assert column(opened, "time / grpo")[0] == ["3.00", "[1.50,", "3.00]"], "best by best, rounds in brackets"
    assert column(opened, "ms")[:2] == [["3.00", "[3.00,", "3.00]"], ["-"]]
    assert column(opened, "ms")[4] == ["1.00", "[1.00,", "4.00]"], "the best round, the best and the worst"
    assert column(opened, "gradient fidelity")[2] == ["0.875", "[0.625,", "1.125]"]
    assert column(opened, "signal of one group")[2] == ["0.2500", "\N{PLUS-MINUS SIGN}", "0.1250"]
    assert firsts(opened, "entropy drift") == ["+0.125", "-", "-0.500", "-", "-0.750"]
    assert firsts(opened, "time / grpo")[1] == "-"
    assert firsts(opened, "extra tokens") == ["12.3", "0", "0", "0", "100"], "those of old data follow from the method"
    coloured = opened.page.locator("#rows td.above, #rows td.below")
    assert [text.split()[0] for text in coloured.all_inner_texts()] == [
        "+0.300",
        "+0.625",
        "-0.500",
        "-0.500",
        "-0.750",
    ]
    assert "nothing here was trained with any method but GRPO" in opened.text("main")


def test_a_click_on_a_column_sorts_by_it_and_dashes_stay_last(opened):
    page = opened.page

    def click(key: str) -> str | None:
        head = page.locator(f"#head th[data-key={key}]")
        head.locator("button").click()
        return head.get_attribute("aria-sort")

    assert click("drift") == "descending"
    assert firsts(opened, "entropy drift") == ["+0.125", "-0.500", "-0.750", "-", "-"]
    assert click("drift") == "ascending"
    assert firsts(opened, "entropy drift") == ["-0.750", "-0.500", "+0.125", "-", "-"]
    assert click("method") == "ascending"
    assert firsts(opened, "method") == ["grpo", "grpo", "grpo+aem", "rloo", "rloo"]
    assert click("when") == "ascending"
    assert firsts(opened, "time") == ["start", "start", "end", "end", "end"], "in the order of training"


def test_filters_choose_rows_and_the_address_keeps_them(opened):
    page = opened.page
    assert opened.text("#count") == "5 of 5 rows"
    page.select_option("#environment", "walk")
    assert set(firsts(opened, "environment")) == {"walk"}
    page.fill("#method", "AEM loo")
    assert firsts(opened, "method") == ["rloo", "grpo+aem"]
    assert opened.text("#count") == "2 of 5 rows"
    page.click("#head th[data-key=fidelity] button")
    assert firsts(opened, "method") == ["grpo+aem", "rloo"]
    page.reload()
    page.wait_for_selector("body[data-ready=yes]")
    assert firsts(opened, "method") == ["grpo+aem", "rloo"]
    assert page.input_value("#method") == "AEM loo"
    page.select_option("#when", "start")
    assert page.locator("#none").is_visible()
    page.click("button[type=reset]")
    assert opened.text("#count") == "5 of 5 rows"
    page.select_option("#when", "start")
    assert firsts(opened, "environment") == ["later", "later"]


def test_a_damaged_address_changes_nothing(browser, drawn):
    page = Opened(browser, (drawn / "table.html").as_uri() + "#environment=nowhere&by=__proto__&when=never")
    assert page.text("#count") == "5 of 5 rows"
    assert firsts(page, "fidelity")[0] == "0.700"
    page.context.close()
    assert not page.said


def test_the_table_of_the_repository_opens(browser):
    page = Opened(browser, (ROOT / "docs" / "leaderboard" / "table.html").as_uri())
    methods = [len(one["methods"]) for one in numbers(ROOT / "docs" / "leaderboard")["cells"]]
    assert page.page.locator("#rows tr").count() == sum(methods) > 700
    page.context.close()
    assert not page.said
