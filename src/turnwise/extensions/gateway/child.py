"""Run one harness function in a separate process: `python -m turnwise.extensions.gateway.child module:function`.

The task and the endpoint come pickled on standard input, and the reward is the only output: what the function prints,
or what it starts, goes to standard error.
"""

import atexit
import dataclasses
import json
import os
import pickle
import sys

from turnwise.base.imports import import_named
from turnwise.environments.isolation import hide_this_process
from turnwise.extensions.gateway.harness import call_function
from turnwise.extensions.gateway.outcome import as_outcome

if __name__ == "__main__":
    hide_this_process()  # what the policy runs must not write to the pipe of the reward
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:  # no process that is started inherits it
        os.dup2(2, 1)
        task, endpoint = pickle.load(sys.stdin.buffer)
        result = call_function(import_named(sys.argv[1]), task, endpoint)
        if result is not None:
            answers.write(json.dumps(dataclasses.asdict(as_outcome(result)), default=str))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread that the function left behind must not keep the trajectory waiting
