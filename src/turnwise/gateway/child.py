"""Run one harness function in a process of its own: `python -m turnwise.gateway.child module:function`.

The task and the endpoint come pickled on standard input; the last line of output is the reward.
"""

import dataclasses
import json
import pickle
import sys

from turnwise.gateway.harness import call_function
from turnwise.gateway.outcome import as_outcome
from turnwise.imports import import_named

if __name__ == "__main__":
    task, endpoint = pickle.load(sys.stdin.buffer)
    result = call_function(import_named(sys.argv[1]), task, endpoint)
    if result is not None:
        print(f"\n{json.dumps(dataclasses.asdict(as_outcome(result)), default=str)}")
