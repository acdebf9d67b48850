"""What a person sees while a run goes on."""

import io
import re
import time

import pytest
from rich.console import Console
from tests.toys import small_config

from turnwise.commands.cli import main
from turnwise.config import EvaluateConfig
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.cost import cost_note
from turnwise.train.display import LIVE_ROWS, ConsoleDisplay, Display, duration, glance, warnings
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

STEP = {
    "rollout/success": 0.625,
    "rollout/turns": 7.25,
    "rollout/invalid_frac": 0.125,
    "rollout/tokens": 3000.0,
    "rollout/batches": 1.0,
    "rollout/kept_frac": 1.0,
    "rollout/filled_frac": 1.0,
    "rollout/failed_frac": 0.0,
    "credit/entropy": 0.3125,
    "time/rollout_s": 2.0,
    "time/update_s": 1.5,
    "time/eval_s": 100.0,
}
HELD_OUT = {
    "success": 0.5,
    "success_low": 0.4,
    "success_high": 0.6,
    "turns": 6.0,
    "invalid_frac": 0.1,
    "episodes": 64.0,
    "failed": 0.0,
}


def shown(*, terminal: bool, steps: int, width: int = 100, **other: float) -> str:
    """What a display has written when it is left; at a terminal that is the last picture."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, force_interactive=terminal, width=width, height=40, no_color=True
    )
    with ConsoleDisplay(console) as display:
        display.warm_start(3, 3, 0.5)
        for step in range(1, steps + 1):
            display.step(step, 20, STEP | other)
        display.evaluation(steps, HELD_OUT)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()) if terminal else file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_run_costs_is_said_before_its_first_episode(terminal):
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file, force_terminal=terminal, width=100), notes=["it costs 3"]) as display:
        display.turn(2, 2)
        assert "note: it costs 3" in file.getvalue()


def test_a_terminal_shows_the_last_steps_as_a_table_over_the_bars():
    last = shown(terminal=True, steps=12).rsplit("step", 1)[1]
    rows = [line.split() for line in last.splitlines()]
    assert rows[0] == ["success", "invalid", "turns", "entropy", "tokens/s", "seconds"]
    numbers = [row for row in rows if row and row[0].isdigit()]
    assert [row[0] for row in numbers] == [str(step) for step in range(12 - LIVE_ROWS + 1, 13)]
    assert numbers[-1] == ["12", "0.62", "0.12", "7.2", "0.312", "1,500", "3.5"], (
        "the evaluation's time is not the step's"
    )
    assert any(row[0] == "training" and "12/20" in row for row in rows if row)


def test_a_log_has_a_line_per_step_and_no_table():
    lines = shown(terminal=False, steps=12).splitlines()
    assert lines[0] == "warm start 3/3  loss 0.500"
    assert lines[-1].startswith("held-out after step 12: success 0.500 [0.400, 0.600]")
    numbers = "success 0.62  turns 7.2  invalid 0.12  entropy 0.312"
    steps = [line for line in lines[1:-1] if not line.startswith("note: ")]
    assert steps == [f"training {step}/20  {numbers}" for step in range(1, 13)]
    assert "\x1b" not in shown(terminal=False, steps=20)


@pytest.mark.parametrize(("total", "lines"), [(1500, 10), (10, 10), (4, 4), (13, 10), (1, 1)])
def test_long_work_has_a_line_per_tenth_in_a_log(total, lines):
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file)) as display:
        for done in range(1, total + 1):
            display.warm_start(done, total, 0.5)
    told = file.getvalue().splitlines()
    assert len(told) == lines
    assert told[-1] == f"warm start {total}/{total}  loss 0.500"


def test_an_evaluation_names_the_cause_of_failures():
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file)) as display:
        display.evaluation(3, HELD_OUT | {"failed": 2.0}, "2 x environment: it is gone")
        display.evaluation(3, HELD_OUT)
    first, second = file.getvalue().splitlines()
    assert first.endswith("64 episodes, 2 FAILED (2 x environment: it is gone)")
    assert second.endswith("64 episodes")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_gets_no_line_that_is_too_long(width):
    lines = [
        line
        for line in shown(terminal=True, steps=3, width=width).splitlines()
        if not line.startswith(("held-out", "note: "))
    ]
    assert max(map(len, lines)) <= width
    assert any(line.split()[:2] == ["step", "success"] for line in lines), "numbers whose name is cut say nothing"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, ""),
        ({"rollout/batches": 3.0, "rollout/kept_frac": 0.25}, "kept 0.25 of 3 batches"),
        ({"rollout/failed_frac": 0.25}, "FAILED 25% of the trajectories"),
        ({"rollout/filled_frac": 0.5}, "ONLY 50% of rollout.groups to learn from"),
        ({"rollout/filled_frac": 0.0}, "SKIPPED: no group to learn from"),
        ({"rollout/filled_frac": 0.0, "update/grad_norm": 0.5}, "ONLY 0% of rollout.groups to learn from"),
    ],
)
def test_what_went_otherwise_is_said_in_both(other, told):
    assert warnings(STEP | other) == told
    assert told in shown(terminal=True, steps=1, width=140, **other)
    assert told in shown(terminal=False, steps=20, **other)


def lines_of_a_log(tell, *, silent_s: float = 60.0) -> list[str]:
    """What a display without a terminal prints while `tell` tells it something."""
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file), silent_s=silent_s) as display:
        tell(display)
    return file.getvalue().splitlines()


def test_rewards_that_do_not_differ_are_explained_once():
    def tell(display):
        for step, share in enumerate([0.5, 0.0, 0.0, 0.5, 0.0], start=1):
            display.step(step, 5, STEP | {"credit/signal_frac": share})

    lines = lines_of_a_log(tell)
    begins = [line.split()[0] for line in lines]
    assert begins == ["training", "note:", "training", "note:", "training", "training", "training"]
    assert "all trajectories of a group earned the same" in lines[3]
    assert all(
        word in lines[3] for word in ("easier tasks", "warmstart.demonstrations", "a stronger model", "docs/how-to")
    )


def test_the_first_step_tells_how_long_all_will_take():
    told = [line for line in lines_of_a_log(lambda display: display.step(1, 61, STEP)) if line.startswith("note: ")]
    assert told == ["note: this step took 4 s; the other 60 will take about 4 min"]
    quick = STEP | {"time/rollout_s": 0.1, "time/update_s": 0.1}
    assert lines_of_a_log(lambda display: display.step(1, 61, quick))[1:] == []


def test_a_log_is_never_silent_for_long():
    def tell(display):
        display.watch(lambda: "success 1 of the last 2")
        display.turn(4, 4)
        time.sleep(0.15)
        display.turn(2, 4)
        time.sleep(0.15)
        display.turn(0, 4)
        time.sleep(0.15)

    lines = lines_of_a_log(tell, silent_s=0.1)
    assert [*dict.fromkeys(lines)] == [  # a machine that is slow makes it twice
        "episodes 0/4  0 s  success 1 of the last 2",
        "episodes 2/4  0 s, about 0 s to go  success 1 of the last 2",
        "all 4 episodes are done; still working",
    ]


def test_what_is_printed_anyway_takes_the_place_of_a_sign_of_life():
    def tell(display):
        for step in range(1, 9):
            time.sleep(0.05)
            display.note(f"{step}")

    assert lines_of_a_log(tell, silent_s=0.3) == [f"note: {step}" for step in range(1, 9)]


@pytest.mark.parametrize(("seconds", "told"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_lengths_of_time_are_told_in_their_unit(seconds, told):
    assert duration(seconds) == told


def test_evaluations_can_be_off(tmp_path):
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file)) as display:
        settings = {"evaluate": {"every": 1, "episodes": 0, "final_episodes": 0}}
        folder = train(small_config(tmp_path, **settings), display=display)
    assert [record["step"] for record in folder.metrics()] == [1, 2]
    assert not any(key.startswith("eval/") for record in folder.metrics() for key in record)
    assert "held-out" not in file.getvalue()
    assert "95 % interval" not in file.getvalue()
    assert main(["report", str(folder.path)]) == 0


def test_a_run_says_at_first_what_a_step_costs_at_most():
    rollout = RolloutConfig(groups=8, group_size=4, max_new_tokens=16)
    assert cost_note(rollout, EvaluateConfig(every=0, final_episodes=9), 256, 50) == (
        "each step plays 32 trajectories, each with at most 50 calls of at most 16 tokens: in all at most 1,600 calls "
        "and 8,192 tokens; evaluations play 9 before the first step and after the last"
    )
    assert cost_note(rollout, EvaluateConfig(), 256, None) == (
        "each step plays 32 trajectories, each with as many calls as the agent makes, of at most 16 tokens: in all at "
        "most 8,192 tokens if no agent begins a second conversation; evaluations play 256 before the first step and "
        "after the last and 128 every 20 steps"
    )
    off = cost_note(RolloutConfig(context="window"), EvaluateConfig(episodes=0, final_episodes=0), 64, 10)
    assert off.endswith("in all at most 640 calls and 10,240 tokens; evaluations are off")


def test_a_step_that_learned_nothing_has_no_entropy():
    skipped = {name: value for name, value in STEP.items() if name != "credit/entropy"}
    assert "entropy" not in glance(skipped)
    with ConsoleDisplay(Console(file=io.StringIO(), force_terminal=True)) as display:
        display.step(1, 2, skipped)


@pytest.mark.parametrize("signals", [(0.0, 0.0), (0.0, 0.5), ()], ids=str)
def test_the_end_has_a_table_of_evaluations_and_says_when_there_was_no_signal(tmp_path, signals):
    folder = RunFolder.create(small_config(tmp_path))
    folder.log({"step": 0, **{f"eval/{name}": value for name, value in HELD_OUT.items()}})
    for step, signal in enumerate(signals, start=1):
        folder.log({"step": step, **STEP, "credit/signal_frac": signal})
    file = io.StringIO()
    with ConsoleDisplay(Console(file=file)) as display:
        display.finish(folder, "grpo")
    told = file.getvalue()
    assert f"{folder.path}: grpo" in told
    rows = [re.split("  +", line.strip()) for line in told.splitlines()]
    assert ["step", "success", "95 % interval", "turns", "invalid", "episodes"] in rows
    assert ["0", "0.500", "0.400 to 0.600", "6.0", "0.100", "64"] in rows
    assert ("did not differ in any of 2 steps" in told) == (signals == (0.0, 0.0))
    assert ("no signal in 1 of 2 steps" in told) == (signals == (0.0, 0.5))
    assert told.endswith(f"figure: {folder.figure}\n")
    assert folder.figure.exists()


class Listening(Display):
    """Remember what was told about trajectories whenever a turn was played."""

    def __init__(self):
        self.heard = []

    def watch(self, tally):
        self._tally = tally

    def turn(self, live, total):
        self.heard.append(self._tally())


@pytest.mark.parametrize("name", ["independent", "branching"])
def test_success_so_far_is_known_while_episodes_are_played(tmp_path, name):
    display = Listening()
    how = {"run": {"steps": 1}, "evaluate": {"episodes": 0, "final_episodes": 0}}
    folder = train(
        small_config(tmp_path, rollout={"collector": {"name": name}, "group_size": 6}, **how), display=display
    )
    trajectories, _ = read_rollouts(folder.rollouts / "step-000001.parquet")
    won = sum(each.success for each in trajectories)
    assert display.heard[0] == ""
    assert display.heard[-1] == f"success {won} of the last {len(trajectories)}"
    assert len(set(display.heard)) > 2, "it is told before all have ended"
