"""Run one harness function in a separate process: `python -m turnwise.extensions.gateway.child module:function`.

The task and the endpoint come pickled on standard input, and the reward is the only output: what the function prints,
or what it starts, goes to standard error.
"""

import dataclasses
import json
import os
import pickle
import sys

from turnwise.base.imports import import_named
from turnwise.extensions.gateway.harness import call_function
from turnwise.extensions.gateway.outcome import as_outcome

if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:  # no process that is started inherits it
        os.dup2(2, 1)
        task, endpoint = pickle.load(sys.stdin.buffer)
        result = call_function(import_named(sys.argv[1]), task, endpoint)
        if result is not None:
            answers.write(json.dumps(dataclasses.asdict(as_outcome(result)), default=str))
