"""How often a test repeats what it repeats: a little in `make test`, more in `make test-slow`, as often as asked."""

import os

import pytest


def doses(few: int, many: int, variable: str) -> list:
    """Parameters of a test: few repetitions always, and many, or as an environment variable says, if slow tests run."""
    return [few, pytest.param(int(os.environ.get(variable, many)), marks=pytest.mark.slow)]
