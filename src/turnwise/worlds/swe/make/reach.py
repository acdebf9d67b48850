"""Run tests inside the sandbox and report which functions they enter; a standalone program for Python and pytest.

python -I reach.py < request; the request is JSON: {"root", "path" (of pytest), "sources" (folders to import from),
"tests" (what to hand to pytest)}. It writes JSON: {"entered": {file of tests: [[path, first line, last line], ...]},
"seconds" (of the processor)}. What is entered while modules are imported is left out.
"""

import json
import os
import sys
import threading
import time


def main():
    """Run what standard input asks for."""
    request = json.load(sys.stdin)
    root = f"{request['root']}/"
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path[:0] = request["path"]
    import pytest

    entered = {}
    here = None

    class CallListener:
        @staticmethod
        def pytest_runtest_logstart(nodeid):
            nonlocal here
            here = entered.setdefault(nodeid.partition("::")[0], {})

        @staticmethod
        def pytest_runtest_logfinish():
            nonlocal here
            here = None

    def enter(frame, event, _):
        code = frame.f_code
        if event == "call" and here is not None and code.co_filename.startswith(root):
            here[id(code)] = code

    sys.path[:0] = request["sources"]
    os.chdir(request["root"])
    options = ["-p", "no:cacheprovider", "-q", "-o", "addopts=", "--continue-on-collection-errors", "--rootdir"]
    threading.settrace(enter)
    sys.settrace(enter)
    pytest.main([*options, request["root"], *request["tests"]], plugins=[CallListener()])
    sys.settrace(None)
    spans = {file: sorted({_span(code, root) for code in codes.values()}) for file, codes in entered.items()}
    json.dump({"entered": spans, "seconds": time.process_time()}, out)
    out.flush()
    os._exit(0)


def _span(code, root):
    lines = [line for *_, line in code.co_lines() if line]
    return code.co_filename.removeprefix(root), code.co_firstlineno, max([code.co_firstlineno, *lines])


if __name__ == "__main__":
    main()
