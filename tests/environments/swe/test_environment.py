"""The tools, their budgets, and the suite around them."""

import asyncio
import json

import pytest
from tests.environments.swe.conftest import RIGHT, called, suite, task, write

from turnwise.base.errors import ConfigError, DataError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.swe.make.packages import PACKAGES
from turnwise.worlds.swe.plans import lay_out
from turnwise.worlds.swe.suite import Swe

MODULE = "shapes/__init__.py"


@pytest.fixture
def play(sandboxed, data):
    """Start a session; returns a function that plays a call and gives the observation."""

    def begin(**options):
        session = suite(data, **options).session(task())
        session.begun = session.start()
        return session

    return begin


def test_an_agent_repairs_with_the_tools(play):
    session = play()
    assert session.begun.observation.endswith("square(3) is 6, expected 9.")
    assert "edit(path, new, [old], [line])" in session.begun.observation
    assert session.step(called("search", text="side + side")).observation == f"{MODULE}:5:    return side + side"
    seen = session.step(called("view", path=MODULE, start=4, end=5)).observation
    assert seen == "4: def square(side):\n5:     return side + side\n[lines 4 to 5 of 16]"
    assert (
        session.step(called("edit", path=MODULE, old="side + side", new="side * side")).observation
        == f"{MODULE} was edited."
    )
    assert session.step(called("edit", path=MODULE, old="-5", new="0", line=14)).valid
    assert (
        session.step(called("run", command="python3 -c 'import shapes; print(shapes.ring(3, 1))'")).observation
        == "8\n[exit status 0]"
    )
    last = session.step(called("submit"))
    assert (last.observation, last.reward, last.terminated) == ("The repair works.", 10.0, True)
    assert last.info == {"success": True, "reason": "", "tier": 1, "passed_frac": 1.0}
    with pytest.raises(EnvironmentFault, match="after the end"):
        session.step(called("submit"))


def test_a_line_is_replaced_and_keeps_its_indentation(play):
    session = play()
    assert session.step(called("edit", path=MODULE, line=5, new="return side * side")).valid
    seen = session.step(called("view", path=MODULE, start=4, end=6)).observation
    assert seen == "4: def square(side):\n5:     return side * side\n6: \n[lines 4 to 6 of 16]"
    assert session.step(called("edit", path=MODULE, line=6, new="# squared\n")).valid  # an empty line has none
    seen = session.step(called("view", path=MODULE, start=5, end=8)).observation
    assert seen.startswith("5:     return side * side\n6: # squared\n7: \n8: ")


def test_the_grading_tests_and_the_history_are_not_there(play):
    session = play()
    seen = session.step(called("run", command="ls -a . tests; pip list; ls -a / | head -50")).observation
    assert "test_other.py" in seen
    assert "test_shapes.py" not in seen
    assert ".git" not in seen


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("I would look at the file.", "No tool call was found. Each turn, one call: <tool_call>"),
        (called("submit") + called("submit"), "2 tool calls were found; make one a turn"),
        ('<tool_call>{"name": "view"', "not valid JSON"),
        (called("veiw", path="x"), "There is no tool 'veiw'. Did you mean 'view'?"),
        (called("view", paht="x"), "view takes no argument 'paht'. Did you mean 'path'?"),
        (called("view"), "view needs the argument 'path'."),
        (called("view", path="x", start="1"), "view: start must be a whole number."),
        (called("view", path="x", start=True), "view: start must be a whole number."),
        (called("view", path=3), "view: path must be a text."),
        (called("view", path="nowhere.py"), "nowhere.py cannot be read"),
        (called("view", path="shapes"), "shapes cannot be read"),
        (called("view", path=MODULE, start=99), f"{MODULE} has 16 lines."),
        (called("view", path="a\0b"), "holds a zero byte"),
        (called("view", path="a\udcff.py"), "view: path holds half a surrogate pair"),
        (called("edit", path=MODULE, line=1, new="\ud83d"), "edit: new holds half a surrogate pair"),
        ("<tool_call>" + "[" * 2000, "not valid JSON"),
        ('<tool_call>{"name": "run", "arguments": {"command": ' + "[" * 300 + "]" * 300 + "}}", "not valid JSON"),
        (called("run", command="echo " + "a" * 140_000), "makes a command of 140005 bytes; it may have 120000"),
        (called("search", text="'" * 40_000), "it may have 120000"),
        (called("edit", path=MODULE, old="side", new="x"), f"The old text stands 8 times in {MODULE}"),
        (called("edit", path=MODULE, old="side", new="x", line=1), f"stands 0 times in {MODULE} at line 1"),
        (called("edit", path=MODULE, old="nothing", new="x"), f"The old text stands 0 times in {MODULE}"),
        (called("edit", path=MODULE, new="x"), "edit needs the argument 'old' or 'line'."),
        (called("edit", path=MODULE, new="x", line=0), f"{MODULE} has 16 lines, so there is no line 0."),
        (called("edit", path=MODULE, old="", new="x"), f"{MODULE} cannot be made; does it exist?"),
        (called("edit", path="/usr/x.py", old="", new="x"), "/usr/x.py cannot be made"),
    ],
)
def test_what_is_no_call_is_said_and_changes_nothing(play, response, said):
    session = play()
    step = session.step(response)
    assert said in step.observation
    assert (step.valid, step.ended, session.changes()) == (False, False, {})


def test_names_of_files_are_only_names(play):
    session = play()
    for path in ("$(touch gotcha)", "; touch gotcha", "-rf", "a'b\"c`touch gotcha`"):
        assert session.step(called("edit", path=path, old="", new="x\n")).observation == f"{path} was made."
        assert session.step(called("view", path=path)).observation == "1: x\n[lines 1 to 1 of 1]"
    session.step(called("search", text="'; touch gotcha; '"))
    assert "gotcha" not in session.changes()


def test_view_search_and_edit_count_the_same_lines(play):
    session = play()
    odd = "a = 1\r\n\f\nb = '\u2028'\nc = 3\n"
    assert session.step(called("edit", path="odd.py", old="", new=odd)).valid
    seen = session.step(called("view", path="odd.py")).observation
    assert seen.startswith("1: a = 1\n2: \f\n3: b = '")
    assert session.step(called("search", text="b =", path="odd.py")).observation.startswith("odd.py:3:b = '")
    session.step(called("edit", path="odd.py", new="c = 4", line=4))
    assert session.changes()["odd.py"] == odd.replace("c = 3", "c = 4").encode()
    assert session.step(called("edit", path="none", old="", new="")).valid
    assert session.step(called("view", path="none")).observation == "none has 0 lines."


def test_a_search_in_one_file_is_in_its_order_and_says_when_it_was_stopped(play):
    session = play(search_lines=3, command_s=0.5)
    session.step(called("run", command="seq 1 120 > numbers"))
    seen = session.step(called("search", text="1", path="numbers")).observation
    assert seen == "numbers:1:1\nnumbers:10:10\nnumbers:11:11\n[40 lines found, 3 shown]"
    session.step(called("run", command="mkfifo pipe"))
    assert "[stopped: it took too much time" in session.step(called("search", text="1", path="pipe")).observation


MARKS = """
import os
for folder, _, names in os.walk("."):
    for place, name in enumerate(names):
        path = os.path.join(folder, name)
        s = os.lstat(path)
        print(path, s.st_ino, s.st_dev, s.st_mtime_ns)
"""


def test_no_order_time_or_device_tells_where_the_bug_is(sandboxed, data, tmp_path, monkeypatch):
    """Inodes and times of birth named the file on 12 of 12 tasks (S5): it was written after all others."""
    number, rounds, found = 12, 24, {"first inode": 0, "last inode": 0, "first changed": 0, "last changed": 0}
    files = {f"shapes/m{place}.py": f"x = {place + 10}\n" for place in range(number)}
    snapshot = write(tmp_path / "clean", files)
    for turn in range(rounds):
        bug = f"shapes/m{turn % number}.py"
        lay_out(snapshot, {bug: b"x = 99\n"}, target := tmp_path / f"laid{turn}")
        stats = {path: (target / path).lstat() for path in files}
        assert (target / bug).read_text() == "x = 99\n"
        assert len({(stat.st_dev, stat.st_mtime_ns, stat.st_mode, stat.st_nlink) for stat in stats.values()}) == 1
        inodes = sorted(stats, key=lambda path: stats[path].st_ino)
        changed = sorted(stats, key=lambda path: stats[path].st_ctime_ns)
        guesses = {"first inode": inodes[0], "last inode": inodes[-1]}
        guesses |= {"first changed": changed[0], "last changed": changed[-1]}
        for guess, path in guesses.items():
            found[guess] += path == bug
    assert max(found.values()) <= 9, found  # by chance 2 of 24; more than 9 happens once in 10,000 times


def test_a_session_shows_one_kind_of_file(play):
    session = play()
    seen = session.step(called("run", command=f"python3 - <<'E'\n{MARKS}E")).observation.splitlines()[:-1]
    assert len(seen) >= 3
    devices, written = ({line.split()[place] for line in seen} for place in (2, 3))
    assert (len(devices), len(written)) == (1, 1)
    assert session.changes() == {}
    hidden = session.step(called("run", command="ls tests")).observation
    assert "test_shapes" not in hidden


COPIES = """
import os, re
own = re.compile(r".*/python3\\.[0-9]+/(test|urllib|lib2to3)(/.*)?")
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys")]
    for name in (*names, *folders):
        low = name.lower()
        if not own.fullmatch(folder) and (low.endswith((".whl", ".egg")) or name in NAMES):
            print("FOUND", os.path.join(folder, name))
print("searched")
"""


def test_no_copy_of_a_package_lies_outside_the_workspace(workspace):
    """A wheel under /usr/share held an undamaged copy (S6), and so does software that bundles packages."""
    names = [found for name in PACKAGES for found in (name, f"{name}.py", f"{name}.zip")]
    searched = workspace.run("python3 -", stdin=f"NAMES = {names}\n{COPIES}".encode(), seconds=60)
    assert searched.output == b"searched\n"
    for program in (
        "git --version",
        "perl -v",
        "awk 1 /dev/null",
        "tar --version",
        "grep -V",
        "sed --version",
        "find .",
    ):
        assert workspace.run(program).code == 0, program
    zone = "import zoneinfo; print(zoneinfo.ZoneInfo('Europe/Berlin'))"
    assert workspace.run(f'python3 -c "{zone}"').output == b"Europe/Berlin\n"


def test_long_answers_are_cut_in_sight(play):
    session = play(output_chars=200, view_lines=3, search_lines=2, statement_chars=10)
    assert "[... 17 characters left out ...]" in session.begun.observation
    long = session.step(called("run", command="seq 1000")).observation
    assert 180 < len(long) <= 200
    assert long.startswith("1\n2\n")
    assert "characters left out" in long
    assert long.endswith("1000\n[exit status 0]")
    assert session.step(called("view", path=MODULE)).observation.endswith("[lines 1 to 3 of 16]")
    assert session.step(called("search", text="side")).observation.endswith("[6 lines found, 2 shown]")
    assert session.step(called("search", text="nowhere at all")).observation == "Nothing was found."


def test_turns_and_seconds_are_limited(play):
    session = play(max_steps=2)
    assert not session.step("look").ended
    last = session.step(called("run", command="ls"))
    assert (last.truncated, last.terminated, last.reward, last.info["success"]) == (True, False, 0.0, False)
    session = play(command_s=0.5)
    assert session.step(called("run", command="sleep 60")).observation == "[stopped: it took too much time]"
    session = play(tools_s=0.3)
    session.step(called("edit", path=MODULE, old="side + side", new="side * side"))
    late = session.step(called("run", command="sleep 0.4")) if not session._ended else None
    assert late is None or (late.terminated and late.observation == "The time is up. The repair does not work.")


def test_a_file_that_is_as_in_the_snapshot_again_is_a_change(play):
    session = play()
    session.step(called("edit", path=MODULE, old="side + side", new="side * side"))
    session.step(called("edit", path=MODULE, old="-5", new="0"))
    assert session.changes() == {MODULE: RIGHT.encode()}


def test_the_suite_is_sound(sandboxed, data):
    made = make_suite(EnvironmentConfig(name="swe", max_steps=8, options={"data": str(data)}))
    assert isinstance(made, Swe)
    assert [problem for problem in check_environment(made, split="all") if problem.severe] == []


def test_trajectories_run_side_by_side_in_one_event_loop(sandboxed, data):
    made = suite(data)

    async def play(number: int) -> tuple[str, float]:
        environment = made.environment(task())
        await environment.start()
        await environment.step(called("run", command=f"echo {number} > mine; sleep 0.2"))
        said = (await environment.step(called("run", command="cat mine"))).observation
        return said, (await environment.step(called("submit"))).reward

    async def all_of_them() -> list:
        return await asyncio.gather(*map(play, range(4)))

    assert asyncio.run(all_of_them()) == [(f"{number}\n[exit status 0]", 0.0) for number in range(4)]


def test_the_scripted_repairer_succeeds(sandboxed, data):
    made = suite(data)
    for noise in (0.0, 0.9):
        turns = made.demonstrate(task(), noise=noise, seed=3)
        assert any(not turn.imitate for turn in turns) == (noise > 0)
        session = made.session(task())
        session.start()
        steps = [session.step(turn.response) for turn in turns]
        assert steps[-1].info["success"]
        assert all(step.valid for step, turn in zip(steps, turns, strict=True) if turn.imitate)
    assert suite(data, max_steps=2).demonstrate(task(), noise=0.0, seed=0) is None
    assert made.demonstrate(task(patch=""), noise=0.0, seed=0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sandbox": "podman"}, r"environment.options.sandbox='podman': no such choice"),
        ({"tiers": [4]}, "environment.options.tiers has 4"),
        ({"memory_mb": 0}, "environment.options.memory_mb=0: expected more than 0"),
        ({"tier": [1]}, "has no option 'tier'. Did you mean 'tiers'"),
    ],
)
def test_wrong_options_are_said(options, message):
    with pytest.raises(ConfigError, match=message):
        make_suite(EnvironmentConfig(name="swe", options=options))


def test_missing_data_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("SWE_DATA", raising=False)
    with pytest.raises(DataError, match="make tasks with `turnwise make-swe-tasks`"):
        make_suite(EnvironmentConfig(name="swe")).tasks("all")
    with pytest.raises(DataError, match=r"tasks.jsonl is not a file of tasks"):
        suite(tmp_path).tasks("all")
    with pytest.raises(ConfigError, match="needs a language model"):
        suite(tmp_path).words()
    (tmp_path / "environments" / "default").mkdir(parents=True)
    with pytest.raises(DataError, match=r"shapes__1' needs .*snapshots/shapes/1.0 or a mirror"):
        suite(tmp_path).workspace(task())


def test_tasks_of_a_tier(data):
    assert [found.instance_id for found in suite(data, tiers=[1]).tasks("all")] == ["shapes__1"]
    with pytest.raises(DataError, match=r"split 'all' of tiers \[2\] is empty"):
        suite(data, tiers=[2]).tasks("all")
    assert json.dumps(task().problem_statement)
