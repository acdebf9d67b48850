"""Compare fidelity through the gateway with the native one.

    PYTHONPATH=benchmarks python -m benchmarks.gateway_fidelity

One policy is trained on household games for a few steps. Its groups are then played natively, and by an agent of its
own that asks the policy over HTTP (`household_agent.py`). Both value every history by continuations. docs/log.md has
the figures.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from turnwise.config import Config, load_config, override_config
from turnwise.lab.diagnostics.fidelity_run import FidelityOfRun, measure_run
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

METHODS = ("grpo", "gigpo")


def two_runs(config: Config, harness: str) -> dict[str, RunFolder]:
    """Train a policy natively; return its run, and a copy of the run in which the harness plays."""
    native = train(config)
    copy = native.path.with_name("gateway")
    shutil.copytree(native.path, copy)
    folder, own = RunFolder.open(copy)
    folder.set_config(override_config(own, [f"harness.run={harness}"]))
    return {"native": native, "gateway": folder}


def line(found: FidelityOfRun) -> str:
    """Say what was found, in one line."""
    by_method = found.fidelities.by_method
    cells = [f"{name} {by_method[name].text()}" for name in METHODS]
    above = found.fidelities.above_first[METHODS[1]].text(sign=True)
    return (
        f"{', '.join(cells)}, {METHODS[1]} - {METHODS[0]} {above}; {found.histories} histories, {found.failed} failed"
    )


def main() -> None:
    """Print fidelity and time, natively and through the gateway, for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--groups", type=int, default=24)
    parser.add_argument("--continuations", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"run.folder={folder}", "run.name=native", f"run.steps={options.steps}", "evaluate.every=0"]
        config = load_config(Path("household-tiny-aem"), [*overrides, "evaluate.final_episodes=8", "run.threads=1"])
        runs = two_runs(config, "household_agent:play_tiny")
        for seed in options.seeds:
            for name, run in runs.items():
                begun = time.perf_counter()
                sizes = {"groups": options.groups, "continuations": options.continuations}
                found = measure_run(run, METHODS, seed=seed, **sizes)
                took = time.perf_counter() - begun
                print(f"seed {seed} {name:8}: {line(found)}; success {found.success:.2f}, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
