"""Run the command line in a process that ends with its parent (on Linux).

Usage: `python -m turnwise.commands.study_child PARENT ARGUMENTS`
"""

import ctypes
import os
import signal
import sys

from turnwise.commands.cli import main

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before the line above
        sys.exit(1)
    sys.exit(main(sys.argv[2:]))
