"""Studies: every run of the grid once, whatever happens in between."""

import dataclasses
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from filelock import FileLock
from rich.console import Console
from tests.toys import small_config

from turnwise.base import heartbeat
from turnwise.base.cache import held
from turnwise.base.errors import ConfigError, RunError
from turnwise.base.terminal import make_console
from turnwise.commands.cli import main
from turnwise.config import load_config
from turnwise.lab.diagnostics import runner as runner_module
from turnwise.lab.diagnostics.arms import arm_table
from turnwise.lab.diagnostics.runner import Runner, log_of
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.show import results
from turnwise.lab.diagnostics.study import Job, load_study, state
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train

ROOT = Path(__file__).parents[2]
STUDY = """
recipes = ["toy.toml"]
seeds = 2
compare = [["grpo + aem", "grpo"]]
notes = "What others report."

[methods]
"grpo" = ["method=grpo"]
"grpo + aem" = ["method=grpo+aem"]
"""


def write_study(folder: Path) -> None:
    """Write a recipe of a toy run and a study of it."""
    lines = []
    for name, section in small_config(folder).model_dump(mode="json").items():
        if isinstance(section, dict):
            own = ("name", "folder") if name == "run" else ()
            told = {k: v for k, v in section.items() if v is not None and v != {} and k not in own}
            lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in told.items())]
    (folder / "toy.toml").write_text("\n".join(lines))
    (folder / "small.toml").write_text(STUDY)


PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""PYTHONPATH of the runs, which are processes of their own and need tests.toys."""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory with a recipe of a toy run and a study of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", PATHS)
    write_study(tmp_path)
    return tmp_path


@dataclasses.dataclass(frozen=True)
class Done:
    """A study that came to its end: its working directory, and what it printed."""

    folder: Path
    out: str
    err: str


def ends_well(job: Job) -> subprocess.Popen:
    """Stands for `start` where nothing is left to do."""
    return subprocess.Popen([sys.executable, "-S", "-c", ""])


def trained_here(job: Job) -> subprocess.Popen:
    """Stands for `start`, whose processes each load torch: trains in this one, which has it."""
    train(job.config)
    return ends_well(job)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Done:
    folder, out, err = tmp_path_factory.mktemp("study"), io.StringIO(), io.StringIO()
    write_study(folder)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(runner_module, "start", trained_here)
        code = main(["study", "small.toml", "--jobs", "2"])
    assert code == 0, err.getvalue()
    return Done(folder, out.getvalue(), err.getvalue())


@pytest.fixture
def finished(here, done) -> Path:
    """`here` with the runs of the study."""
    shutil.copytree(done.folder / "runs", here / "runs")
    return here


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def run(study) -> list:
    return Runner(study, 2, Console(file=sys.stderr)).run()


def test_a_study_runs_compares_and_does_nothing_twice(finished, done, capsys):
    here, out, err = finished, done.out, done.err
    assert "grpo + aem against grpo" in out
    assert "4/4" in err
    folder = here / "runs" / "small"
    found = sorted(p.parent.relative_to(folder).as_posix() for p in folder.glob("*/*/*/config.json"))
    assert found == [f"toy/{arm}/seed-0{seed}" for arm in ("grpo+aem", "grpo") for seed in (0, 1)]
    assert (folder / "study.png").stat().st_size > 3000
    assert "grpo + aem  2 " in out  # each arm by itself
    assert "| grpo + aem | 2 | " in (folder / "study.md").read_text()
    assert "|" not in out
    assert err.splitlines()[-1].startswith(f"next: turnwise report {folder.relative_to(here)}/toy/grpo")
    assert out.endswith("\n\nWhat others report.\n")
    assert main(["study", "small.toml", "--report", "--markdown"]) == 0
    assert "| grpo + aem | 2 | " in capsys.readouterr().out
    assert len(list((folder / "comparisons").glob("*.md"))) == 1
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("metrics.jsonl")}
    assert main(["study", "small.toml"]) == 0
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("metrics.jsonl")} == before
    (_, made) = results(load_study(Path("small.toml")))[0]
    assert (made.unit, made.runs) == ("seeds, paired", (2, 2))
    # a run under other settings is not taken for one of the study's
    assert main(["study", "small.toml", "update.learning_rate=0.5"]) == 2
    err = capsys.readouterr().err
    assert "was made with other settings than the study's: update.learning_rate is " in err
    assert " there and 0.5 here. Use the overrides that it was made with" in err


@pytest.mark.parametrize(("settings", "left_out"), [("[]", True), ('["update.dose_by=scale"]', False)])
def test_all_arms_of_a_study_get_the_same_dose(here, settings, left_out):
    (here / "small.toml").write_text(f"dose = 0.25\nsettings = {settings}\n" + STUDY)
    study = load_study(Path("small.toml"), ("run.steps=1",))
    assert {job.config.update.dose for job in study.jobs} == {0.25}
    job = study.jobs[0]
    train(job.config)
    (record,) = [each for each in RunFolder(job.path).metrics() if "credit/effective_frac" in each]
    assert (0 < record["credit/effective_frac"] <= 0.25) == left_out
    assert ("credit/kept_frac" in record) == left_out
    head, row = arm_table({job.arm: [RunLog(*RunFolder.open(job.path))]})
    assert row[head.index("effective sample")] == f"{record['credit/effective_frac']:.3f}"


@pytest.mark.parametrize(
    ("number", "said"),
    [pytest.param(signal.SIGTERM, "SIGTERM", marks=pytest.mark.slow), (signal.SIGINT, "interrupted")],
)
def test_a_killed_study_takes_its_runs_with_it_and_goes_on(here, capsys, number, said):
    (here / "small.toml").write_text(STUDY.replace("seeds = 2", "seeds = 1"))
    arguments = [sys.executable, "-m", "turnwise.commands.cli", "study", "small.toml", "--jobs", "2", "run.steps=16"]
    study = load_study(Path("small.toml"), ("run.steps=16",))

    def ended_at(step: int, number: int) -> tuple[int, str]:
        process = subprocess.Popen(
            arguments, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        deadline = time.monotonic() + 240
        while not any((job.path / "rollouts" / f"step-{step:06d}.parquet").exists() for job in study.jobs):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        told = process.communicate()[1]
        return process.returncode, told

    code, told = ended_at(3, number)  # its runs save what they have done
    assert (code, told.splitlines()[-1]) == (128 + number, f"turnwise: {said}; run the same command again to resume")
    begun = [RunFolder(job.path) for job in study.jobs if (job.path / "rollouts").exists()]
    for folder in begun:
        done = max((r["step"] for r in folder.metrics() if "rollout/success" in r), default=0)
        assert max(by_step(folder.checkpoints)) == done
    assert begun
    assert ended_at(max(max(by_step(f.checkpoints)) for f in begun) + 2, signal.SIGKILL)[0] == -signal.SIGKILL
    for lock in sorted((here / "runs").rglob(".lock")):
        with FileLock(lock, timeout=5):  # each run holds one while it lives
            pass
    sizes = {p: p.stat().st_size for p in (here / "runs").rglob("metrics.jsonl")}
    time.sleep(0.5)
    assert {p: p.stat().st_size for p in (here / "runs").rglob("metrics.jsonl")} == sizes, "a run outlived its study"
    assert any(state(job) != "done" for job in study.jobs)
    assert run(study) == []
    for job in study.jobs:
        records = RunFolder(job.path).metrics()
        assert [r["step"] for r in records if "rollout/success" in r] == list(range(1, 17))


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_with_the_metrics_of_an_undisturbed_one(here):
    from tests.train.kills import whole

    kills, moments = int(os.environ.get("TURNWISE_KILLS", "4")), random.Random(0)
    own, overrides = Path("runs/small"), ("run.steps=30", "checkpoint.every=5", "evaluate.every=10")
    command = [sys.executable, "-m", "turnwise.commands.cli", "study", "small.toml", "--jobs", "2", *overrides]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    begun = time.monotonic()
    assert subprocess.run(command, check=False, **quiet).returncode == 0
    lasts, undisturbed = time.monotonic() - begun, own.rename(here / "undisturbed")
    killed = ended = 0
    while killed < kills or not ended:
        process = subprocess.Popen(command, **quiet)
        if killed < kills:
            time.sleep(moments.uniform(0.2, 0.6) * lasts)
            process.kill()
        code = process.wait()
        killed += code == -signal.SIGKILL
        if code >= 0:
            assert code == 0
            ended += 1
            for job in load_study(Path("small.toml"), overrides).jobs:
                there = undisturbed / job.path.relative_to(own)
                expected, found = whole(there.parent, there.name), whole(job.path.parent, job.path.name)
                assert found == expected
            shutil.rmtree(own)
    print(f"{killed} kills, {ended} studies came to their end")


@pytest.mark.parametrize(("keep", "folders"), [("policies", {"checkpoints"}), ("results", set())])
def test_finished_runs_keep_what_the_study_says_and_stay_finished_elsewhere(finished, monkeypatch, keep, folders):
    here = finished
    monkeypatch.setattr(runner_module, "start", trained_here)
    (here / "small.toml").write_text(f'keep = "{keep}"\n' + STUDY)
    study = load_study(Path("small.toml"))
    shutil.rmtree(study.jobs[-1].path)  # one is trained here, the others were there
    assert run(study) == []
    kept = {"config.json", "metrics.jsonl", "evaluations", "figure.png"} | folders
    for job in study.jobs:
        assert {p.name for p in job.path.iterdir()} - {".lock"} == kept
    ((_, before),) = results(study)
    (here / "runs").rename(here / "taken")
    shutil.copytree(here / "taken", here / "runs")
    # killed while it removed one: the name that is looked at is gone at once; and before it drew
    (study.jobs[0].path / ".rollouts").mkdir()
    (study.jobs[0].path / "figure.png").unlink()
    assert [state(job) for job in study.jobs] == ["done"] * 4
    assert run(study) == []
    assert not (study.jobs[0].path / ".rollouts").exists()
    assert (study.jobs[0].path / "figure.png").exists()
    ((_, after),) = results(study)
    was, now = ((each.success, each.difference, each.by_type) for each in (before, after))
    assert repr(now) == repr(was)  # a p is nan, which from Python 3.13 on differs from itself


def test_a_study_like_another_asks_the_same_of_other_recipes(here):
    (here / "more.toml").write_text('like = "small.toml"\nrecipes = ["toy.toml"]\nseeds = 3')
    more, small = load_study(Path("more.toml")).config, load_study(Path("small.toml")).config
    assert (more.methods, more.compare, more.seeds) == (small.methods, small.compare, 3)
    (here / "more.toml").write_text('like = "smal.toml"\nrecipes = ["toy.toml"]\nseeds = 3')
    with pytest.raises(ConfigError, match=r"Did you mean 'small.toml'\?"):
        load_study(Path("more.toml"))


def test_mistakes_are_said_of_the_study_that_has_them(here):
    (here / "more.toml").write_text('like = "small.toml"')
    (here / "small.toml").write_text(STUDY.replace("seeds", "seds"))
    with pytest.raises(ConfigError, match=r"^\S*small.toml: unknown key 'seds'. Did you mean 'seeds'"):
        load_study(here / "more.toml")
    (here / "pyproject.toml").write_text("")
    (here / "studies").mkdir()
    (here / "studies" / "large.toml").write_text(STUDY)
    with pytest.raises(ConfigError, match=r"cannot read the study .*Did you mean '\S*studies/large.toml'\?"):
        load_study(here / "large")
    with pytest.raises(ConfigError, match=r"cannot read the study .*Known: more.toml, small.toml") as caught:
        load_study(here / "qqqqq")
    assert "pyproject" not in str(caught.value)


def test_a_study_takes_from_the_one_that_it_is_like_what_it_leaves_out(here):
    (here / "later").mkdir()
    (here / "later" / "again.toml").write_text('like = "../small.toml"\nfirst_seed = 7')
    (here / "more.toml").write_text('like = "later/again.toml"\nseeds = 1')  # through two, from another folder
    small, more = load_study(Path("small.toml")), load_study(Path("more.toml"))
    assert more.config.notes == small.config.notes != ""
    assert [job.seed for job in more.jobs] == [7, 7]
    assert [job.recipe.resolve() for job in more.jobs] == [job.recipe.resolve() for job in small.jobs[:2]]
    (here / "later" / "again.toml").write_text('like = "../more.toml"')
    with pytest.raises(ConfigError, match=r"more.toml is `like` itself, through again.toml"):
        load_study(Path("more.toml"))


def test_a_run_that_fails_is_named_and_tried_again(finished, capsys):
    study = load_study(Path("small.toml"))
    shutil.rmtree(study.jobs[0].path)
    study.jobs[0].path.write_text("in the way")
    assert main(["study", "small.toml"]) == 2
    err = capsys.readouterr().err
    assert "1 run failed" in err
    assert "never overwritten" in log_of(study.jobs[0]).read_text()
    study.jobs[0].path.unlink()
    assert main(["study", "small.toml"]) == 0


def test_a_run_that_is_damaged_while_it_runs_fails_alone(here, done, monkeypatch, capsys):
    runner = Runner(load_study(Path("small.toml")), 2, Console(file=sys.stderr))
    shutil.copytree(done.folder / "runs", here / "runs")  # what its runs would write
    monkeypatch.setattr(runner_module, "start", ends_well)
    runner._start()
    broken, other = runner.running
    for process in runner.running.values():
        assert process.wait(240) == 0
    metrics = broken.path / "metrics.jsonl"
    metrics.write_text("no record\n" + metrics.read_text())
    assert "(metrics.jsonl is damaged)" in next(iter(runner.table().columns[3].cells))
    runner._reap()
    assert (runner.failed, runner.done) == ([broken], [other])
    assert f"FAILED: {metrics}, line 1, is damaged" in capsys.readouterr().err


def test_two_studies_do_not_share_a_folder(here):
    study = load_study(Path("small.toml"))
    with held(study.folder, ""), pytest.raises(RunError, match="another `turnwise study` is running"):
        run(study)


BAD = {
    "missing": (None, "cannot read the study"),
    "no TOML": ("[", "is not valid TOML"),
    "unknown key": (STUDY.replace("seeds", "seds"), "Did you mean 'seeds'?"),
    "unknown arm": (STUDY.replace('"grpo"]]', '"gro"]]'), "which is not a method of this study. Did you mean 'grpo'?"),
    "bad override": (STUDY.replace("method=grpo+aem", "methot=grpo"), "unknown key 'methot'. Did you mean 'method'?"),
    "bad method": (STUDY.replace("method=grpo", "method=grp"), "unknown method 'grp'"),
    "missing recipe": (STUDY.replace("toy.toml", "tow.toml"), "Did you mean 'toy.toml'?"),
    "no seeds": (STUDY.replace("seeds = 2", "seeds = 0"), "seeds: "),
    "an arm's mistake names it": (
        STUDY.replace("method=grpo", "method=grp"),
        "small.toml: 'grpo' on toy.toml: unknown method",
    ),
    "itself": (STUDY.replace('["grpo + aem", "grpo"]', '["grpo", "grpo"]'), "compare lists 'grpo' against itself"),
    "one recipe twice": (
        STUDY.replace('["toy.toml"]', '["toy.toml", "x/toy.toml"]'),
        "two recipes would share the folder 'toy'",
    ),
    "what the study says": (STUDY + '"c" = ["run.seed=3"]\n', "'run.seed=3' is set by the study; remove it, and use"),
    "threads": (STUDY + '"c" = ["run.threads=1"]\n', "'run.threads=1' is set by the study; remove it: each run has"),
    "one arm twice": (
        STUDY.replace("method=grpo+aem", "method=grpo"),
        "small.toml: 'grpo' and 'grpo + aem' have the same settings on toy.toml; remove one of them",
    ),
    "compared across environments": (
        STUDY.replace('"method=grpo+aem"', '"method=grpo+aem", "environment.max_steps=7"'),
        "compare lists 'grpo + aem' against 'grpo', which are evaluated in different environments on toy.toml: "
        "max_steps is 7 and ",
    ),
    "one folder": (
        STUDY + '"grpo aem" = ["method=grpo+aem"]\n"grpo/aem" = ["method=grpo+aem"]\n',
        "would share the folder",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_before_anything_runs(case, here, capsys):
    text, expected = BAD[case]
    (here / "small.toml").write_text(text) if text is not None else (here / "small.toml").unlink()
    assert main(["study", "small.toml"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert expected in err
    assert not (here / "runs").exists()


def test_an_override_that_makes_two_arms_the_same_is_refused(here):
    with pytest.raises(ConfigError, match="'grpo' and 'grpo \\+ aem' have the same settings"):
        load_study(Path("small.toml"), ("method=grpo+aem",))


def test_nothing_finished_is_said(here, capsys):
    assert main(["study", "small.toml", "--report"]) == 2
    assert "no run of small is finished yet" in capsys.readouterr().err


def test_a_study_without_comparisons_has_a_line_an_arm(finished, capsys):
    here = finished
    (here / "small.toml").write_text("\n".join(line for line in STUDY.splitlines() if not line.startswith("compare")))
    (here / "runs" / "small" / "study.png").unlink()
    assert main(["study", "small.toml", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "\ntoy\n" in out
    assert "grpo + aem  2 " in out
    assert "P(A beats B)" not in out
    assert (here / "runs" / "small" / "study.png").stat().st_size > 3000


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_studies_are_sound(path):
    study = load_study(path)
    assert bool(study.config.compare) == (len(study.config.methods) > 1)


def test_aem_household_is_what_the_question_needs():
    study = load_study(ROOT / "studies" / "aem-household.toml")
    assert study.config.seeds >= 30
    assert len(study.config.methods) == 9
    recipe = load_config(ROOT / "recipes" / "household-tiny-aem.toml")
    job = study.of_arm(study.jobs[0].recipe, "grpo + aem")[0]
    changed = job.config.model_dump(exclude={"run": True}) == recipe.model_dump(exclude={"run": True})
    assert changed, "the default recipe itself is among the arms"


def test_a_study_file_of_a_wrong_kind_is_refused(here):
    (here / "small.toml").write_text("recipes = 3")
    with pytest.raises(ConfigError, match="recipes: "):
        load_study(Path("small.toml"))


def test_a_log_is_told_what_runs_while_nothing_ends(here, monkeypatch):
    file = io.StringIO()
    assert heartbeat.EVERY_S == 30
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    runner = Runner(load_study(Path("small.toml")), 1, make_console(file))
    monkeypatch.setattr(runner, "_reap", lambda: time.sleep(0.5) or runner.pending.clear() or runner.running.clear())
    monkeypatch.setattr("turnwise.lab.diagnostics.runner.start", lambda job: None)
    runner.run()
    lines = file.getvalue().splitlines()
    assert lines
    assert set(lines) == {"0/4  running: grpo, seed 0 (warm start)"}
