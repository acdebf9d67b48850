"""Trains recipes of the covering array, kills each once, and lets it go on: `python -m tests.combinations.lives FOLDER
NUMBER ...`; prints one line of JSON per recipe: its number, what went wrong, and what differs after the kill.

Lives are forks of one process that has trained once, so that the packages are loaded once.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from tests.combinations.covering import array
from tests.combinations.table import config_of
from tests.train.kills import trained, whole
from turnwise.train.display import Display
from turnwise.train.loop import train

PATIENCE_S = 120
STEPS = 2
TIMED = {"lag", "workers"}
"""Features with which time decides which weights play, or which responses are computed together: sums differ in their
last bits without a kill too, and only the tasks of a run are the same."""
CHOOSES = {"order_finished", "filter", "vade", "v0", "rlep", "prefix_sampling", "r3", "adhint"}
"""Features with which outcomes or times decide what is played next. With lag, these depend on time, so only steps,
evaluations and files of a run are the same."""

# tqdm's own lock is shared by forks, and stays taken when one is killed that holds it; its thread would take it too.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0


class Killed(Display):
    """Kills the process at the end of a step, before anything of it is saved."""

    def step(self, step: int, steps: int, metrics: Any) -> None:
        if step == STEPS:
            os.kill(os.getpid(), signal.SIGKILL)


def live(config: Any, told: Path, *, resume: Path | None = None, killed: bool = False) -> int:
    """Train in a fork of this process; returns its status. A mistake is written to `told`."""
    if process := os.fork():
        return os.waitpid(process, 0)[1]
    signal.alarm(PATIENCE_S)
    code = 1
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            train(config, resume=resume, display=Killed() if killed else None)
        code = 0
    except BaseException:
        told.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def outcome(features: list[str], folder: Path) -> str:
    """What goes wrong with a recipe; empty if nothing does, and the killed run ends as the other one."""
    told, runs = folder / "told.txt", []
    sections: dict[str, Any] = {"harness": {"concurrent": 1}} if "harness" in features else {}  # sums in a fixed order
    for name in ("whole", "killed"):
        runs.append(config_of(features, run={"folder": str(folder), "name": name, "steps": STEPS}, **sections))
    if (status := live(runs[0], told)) != 0:
        return f"does not train ({status}): {told.read_text() if told.exists() else ''}"
    if live(runs[1], told, killed=True) != signal.SIGKILL:
        return f"did not come to its last step: {told.read_text() if told.exists() else ''}"
    if (status := live(runs[1], told, resume=runs[1].run_folder)) != 0:
        return f"does not resume ({status}): {told.read_text() if told.exists() else ''}"
    left = trained if TIMED & {*features} else whole
    expected, found = (left(each.run_folder.parent, each.run.name) for each in runs)
    # which is done first, workers decide: of four whole runs of that row of the array, two had other tasks
    timed = "lag" in features or {"workers", "order_finished"} <= {*features}
    skipped = {"tasks"} if timed and CHOOSES & {*features} else set()
    return ", ".join(name for name in expected if found[name] != expected[name] and name not in skipped)


def main(folder: Path, numbers: list[int]) -> None:
    """Try recipes by their place in the array."""
    train(config_of(["aem"], run={"folder": str(folder), "name": "warm"}))  # what a first run imports, lives inherit
    for number in numbers:
        features = array()[number]
        own = folder / str(number)
        own.mkdir()
        print(json.dumps({"number": number, "features": features, "wrong": outcome(features, own)}), flush=True)
        shutil.rmtree(own)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
