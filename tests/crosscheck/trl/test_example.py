"""examples/trl_grpo.py learns with the installed TRL.

PYTHONPATH=src <python with trl> -m pytest tests/crosscheck/trl/test_example.py -m crosscheck
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crosscheck
pytest.importorskip("trl", reason="TRL is not installed; see benchmarks/requirements-trl.txt")

EXAMPLE = Path(__file__).parents[3] / "examples" / "trl_grpo.py"


def test_the_example_learns(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
    assert "credit/alpha_max" in done.stdout
