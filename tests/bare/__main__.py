"""Run the tests that may depend on the machine as on one that has nothing optional: `make test-bare`.

What is missing must be a skip with a reason, or a message that a test expects; the summary says what to install.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bare.choose import chosen_files
from tests.bare.machine import ROOT, make_environment, make_variables


def main(arguments: list[str]) -> int:
    """Run pytest on a bare machine; arguments are pytest's, and name files in place of those that are chosen."""
    with tempfile.TemporaryDirectory(prefix="turnwise-bare-") as folder:
        python = make_environment(Path(folder, "venv"))
        variables = make_variables(Path(folder, "path"), os.environ)
        command = [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", "not slow", "-r", "fE"]
        named = any(argument.startswith("tests") for argument in arguments)
        command += [*arguments, *(() if named else ("-p", "tests.bare.narrow", *chosen_files()))]
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
