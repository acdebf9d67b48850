"""`python -m benchmarks.gpu` in small, on a CPU: all checks give figures, failures are recorded, parts are joined."""

import json
import sys
import time
import zipfile

import pytest
import torch
from benchmarks import gpu, gpu_checks, gpu_share


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    assert gpu.main(["--small", "--out", str(path)]) == 0
    return json.loads(path.read_text())["checks"]


def test_every_check_gives_figures(results):
    assert list(results) == list(gpu_checks.CHECKS)
    assert not [name for name, figures in results.items() if "error" in figures or "skipped" in figures]
    assert results["parity"]["tokens"] == 2 * 2 * 8
    assert 0 < results["parity"]["mean"] < 0.1  # bfloat16, and not the same numbers twice
    assert results["scoring"]["turnwise_s"] > 0
    assert results["rollout"]["tokens_per_s_2"] > 0
    assert results["shapes"]["tiny"]["update_s"] > 0
    expected = {"tokens": 4 * 128, "halved_at": None, "cut_by_the_deadline": False, "peak_mb": None}
    assert results["largest_batch"] == expected | {"seconds": results["largest_batch"]["seconds"]}
    assert results["waiting"]["speedup"] == results["waiting"]["lag_0_s"] / results["waiting"]["lag_2_s"]
    assert results["recipe"]["steps"] == results["recipe"]["of"] == 1
    assert [each["step"] for each in results["recipe"]["evaluations"]] == [0, 1]


def test_a_check_that_fails_is_recorded_and_the_time_is_kept(tmp_path, monkeypatch):
    def broken(setting):
        raise RuntimeError("CUDA error: an illegal\nmemory access")

    monkeypatch.setattr(gpu, "CHECKS", {"broken": broken, "fine": lambda setting: {"answer": 42}})
    path = tmp_path / "gpu.json"
    assert gpu.main(["--small", "--out", str(path)]) == 1
    checks = json.loads(path.read_text())["checks"]
    assert checks["broken"]["error"] == "RuntimeError: CUDA error: an illegal memory access"
    assert checks["fine"]["answer"] == 42
    assert gpu.main(["--small", "--out", str(path), "--minutes", "0"]) == 0
    assert json.loads(path.read_text())["checks"]["fine"] == {"skipped": "no time left"}


def test_the_largest_batch_says_when_time_ended_before_memory(tmp_path, monkeypatch):
    late = gpu_checks.Setting(torch.device("cpu"), True, tmp_path, 0.0)
    left = iter([-1.0, 1.0, -1.0])
    monkeypatch.setattr(gpu_checks.Setting, "left_s", property(lambda _: next(left)))
    assert gpu_checks.largest_batch(late) == {"skipped": "no time left"}
    tried = {"tokens": 2 * 128, "halved_at": None, "cut_by_the_deadline": True, "peak_mb": None}
    assert gpu_checks.largest_batch(late) == tried


def test_a_wheel_in_parts_is_put_together(tmp_path, monkeypatch):
    whole = tmp_path / "whole.whl"
    with zipfile.ZipFile(whole, "w") as wheel:
        wheel.writestr("a_model_in_parts/__init__.py", "ANSWER = 42\n" + "#" * 5000)
    data = whole.read_bytes()
    parts = [tmp_path / "1", tmp_path / "2"]
    for part, piece in zip(parts, (data[:100], data[100:]), strict=True):
        part.write_bytes(piece)
    monkeypatch.setattr(sys, "path", list(sys.path))
    gpu.join_wheel(parts, tmp_path)
    assert __import__("a_model_in_parts").ANSWER == 42
    with pytest.raises(SystemExit, match="not the parts of a wheel, in order"):
        gpu.join_wheel(parts[::-1], tmp_path / ".")


def test_without_a_gpu_the_script_says_so(monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--small"):
        gpu.main([])


def test_a_process_waits_for_the_moment_at_which_all_begin(monkeypatch):
    waited = []
    monkeypatch.setattr(gpu_share.time, "sleep", waited.append)
    found = gpu_share.generate(time.time() + 1000, 2, 1, "cpu")
    assert waited[0] == pytest.approx(1000, abs=100)
    assert found["late"] == 0.0 < found["seconds"]
    assert gpu_share.generate(time.time() - 5, 2, 1, "cpu")["late"] > 5


@pytest.mark.parametrize(("late", "rate"), [(0.5, "-"), (0.0, "48")])
def test_processes_that_are_late_have_no_rate(capsys, monkeypatch, late, rate):
    measured = [{"seconds": 1.0, "late": 0.0}, {"seconds": 2.0, "late": late}]
    monkeypatch.setattr(gpu_share, "share", lambda processes, options: measured)
    assert shared(capsys, monkeypatch, "--rows", "3", "--turns", "2") == ["2", "1.00 to 2.00", rate, str(late)]


@pytest.mark.slow
def test_processes_of_their_own_that_are_late_have_no_rate(capsys, monkeypatch):
    small = ("--no-graphs", "--device", "cpu", "--rows", "2", "--turns", "1", "--setup-s", "0")
    processes, _, rate, late = shared(capsys, monkeypatch, *small)
    assert (processes, rate) == ("2", "-")
    assert float(late) > 0


def shared(capsys, monkeypatch, *options: str) -> list[str]:
    """The last row of what `benchmarks.gpu_share` prints for two processes."""
    monkeypatch.setattr(sys, "argv", ["gpu_share", "--processes", "2", *options])
    gpu_share.main()
    return [text.strip() for text in capsys.readouterr().out.splitlines()[-1].split("|")[1:-1]]
