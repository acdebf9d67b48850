"""Train a few steps of many recipes with this checkout, and compare metrics, records and weights with an earlier one.

    OMP_NUM_THREADS=1 python -m benchmarks.same_numbers --out before      # in the earlier checkout
    OMP_NUM_THREADS=1 python -m benchmarks.same_numbers --out after --compare before

Numbers are those of one machine and one version of torch. Times, memory and identities are left out. A case whose
recipe an earlier checkout does not have is skipped there.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

FROZEN_LAKE = "frozen-lake-tiny-grpo"
SMALL = ["rollout.groups=4", "rollout.group_size=6"]
EARLIER = "update.old_policy=behavior"
CASES: dict[str, tuple[str, list[str]]] = {
    "default": ("household-tiny-aem", []),
    "frozen-lake": ("frozen-lake-tiny-aem", []),
    "smollm2": (
        "household-smollm2-aem",
        ["run.steps=1", "rollout.groups=2", "rollout.group_size=2", "warmstart.games=32", "warmstart.steps=4"],
    ),
    "grpo": (FROZEN_LAKE, []),
    "tree_grpo": (FROZEN_LAKE, [*SMALL, 'rollout.collector={name="branching",rule="tree_grpo"}']),
    "arpo": (FROZEN_LAKE, [*SMALL, 'rollout.collector={name="branching",rule="arpo"}']),
    "v05": (FROZEN_LAKE, [*SMALL, 'rollout.collector={name="branching",rule="v05"}']),
    "treerl": (FROZEN_LAKE, [*SMALL, 'rollout.collector={name="branching",rule="treerl",starts=2,tokens=1}']),
    "arrol": (FROZEN_LAKE, [*SMALL, 'rollout.collector={name="arrol",tokens=6,warmup=0,explore=0.1,memory=64}']),
    "v0": ("frozen-lake-tiny-v0", []),
    "self_play": ("kuhn-tiny-mars", []),
    "rlep": ("frozen-lake-tiny-rlep", []),
    "prefix_sampling": ("frozen-lake-tiny-prefix-sampling", []),
    "r3": ("frozen-lake-tiny-r3", []),
    "slea_rl": ("frozen-lake-tiny-slea-rl", []),
    "adhint": ("frozen-lake-tiny-adhint", []),
    "hpt": ("frozen-lake-tiny-hpt", []),
    "pivot_rl": ("frozen-lake-tiny-pivot-rl", []),
    "turn_budget": ("frozen-lake-tiny-turn-budget", []),
    "step_budget_turns": (FROZEN_LAKE, ["rollout.step_budget={turns=300}", EARLIER]),
    "step_budget_tokens": (FROZEN_LAKE, ["rollout.step_budget={tokens=2000}", EARLIER]),
    "critic": ("household-tiny-turn-ppo", []),
    "vade": ("frozen-lake-tiny-vade", []),
    "vine_ppo": (FROZEN_LAKE, [*SMALL, "method=vine_ppo", "continuations={number=3}"]),
    "token_temperature": (FROZEN_LAKE, ['rollout.token_temperature={name="hapo"}', "update.mismatch_cap=2"]),
    "filter": (FROZEN_LAKE, ["rollout.filter=mixed"]),
    "window": (FROZEN_LAKE, ["rollout.context=window"]),
}
COMMON = ["run.steps=3", "evaluate.every=0", "evaluate.final_episodes=4", "checkpoint.every=1", "run.seed=7"]
LEFT_OUT = ("time/", "memory/", "crc32", "run_id")


def digest(folder: Path) -> dict[str, Any]:
    """Return the numbers of a run: metrics as they are, tables and weights as checksums."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in line.items() if not name.startswith(LEFT_OUT)} for line in lines]
    found: dict[str, Any] = {f"metrics {line['step']}, line {place}": line for place, line in enumerate(metrics)}
    for path in sorted(folder.glob("rollouts/*.parquet")):
        table = pq.read_table(path)
        found[path.name] = {
            name: checksum(json.dumps(table[name].to_pylist(), default=str)) for name in table.schema.names
        }
    for path in sorted(folder.glob("checkpoints/*/*.safetensors")):
        found[f"{path.parent.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return found


def checksum(text: str) -> str:
    """Return the first digits of a checksum."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say in which of the things that both have they differ."""
    told = []
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if isinstance(one, dict):
            told += [f"{name}: {key}" for key in one if key in other and one[key] != other[key]]
        elif one != other:
            told.append(name)
    return sorted(told)


def main() -> None:
    """Train the cases, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the numbers")
    parser.add_argument("--compare", type=Path, help="numbers of an earlier checkout")
    parser.add_argument("cases", nargs="*", help=f"default: all of {', '.join(CASES)}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.cases or CASES:
        recipe, overrides = CASES[name]
        runs = options.out / "runs"
        shutil.rmtree(runs / name, ignore_errors=True)
        command = [sys.executable, "-m", "turnwise", "train", recipe, f"run.name={name}", f"run.folder={runs}"]
        done = subprocess.run([*command, *COMMON, *overrides], capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}", flush=True)
            continue
        found = digest(runs / name)
        (options.out / f"{name}.json").write_text(json.dumps(found))
        if options.compare and (options.compare / f"{name}.json").exists():
            told = differences(json.loads((options.compare / f"{name}.json").read_text()), found)
            print(f"{name}: {f'{len(told)} differ: ' + ', '.join(told[:4]) if told else 'the same'}", flush=True)
        else:
            print(f"{name}: recorded", flush=True)


if __name__ == "__main__":
    main()
