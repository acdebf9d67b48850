"""Run tests inside the sandbox and report which passed; a standalone program for Python and pytest.

python -I runner.py < request; the request is JSON: {"root", "scratch", "path" (of pytest), "sources" (folders of
the repository to import from), "tests" (what to hand to pytest), "secret"}.
The report is the last thing that it writes, between two lines with the secret.

Tests that must fail run in addition to the requested ones. If one of them passes, something in the code under test has
changed what "to pass" means, and no report can be trusted.
"""

import json
import os
import sys

_CANARIES = """
import unittest
import pytest

def test_equal():
    assert 1 + 1 == 3

def test_raises():
    with pytest.raises(ZeroDivisionError):
        1 / 1

def test_fails():
    pytest.fail("as it must")

def test_error():
    raise RuntimeError("as it must")

class TestCase(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(1, 2)

    def test_true(self):
        self.assertTrue(0)

    def test_raises(self):
        with self.assertRaises(KeyError):
            {1: 1}[1]
"""
NUM_CANARIES = 7


def main():
    """Run what standard input asks for."""
    request = json.load(sys.stdin)
    secret, root = request["secret"], request["root"]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path[:0] = request["path"]
    import pytest  # before the repository's folders are looked into

    folder = f"{request['scratch']}/{secret[:12]}"
    os.mkdir(folder)
    canaries = f"{folder}/test_{secret[12:20]}.py"
    with open(canaries, "w") as file:
        file.write(_CANARIES)
    outcomes, reasons, sung, broken = {}, {}, {}, {}

    class Listener:
        @staticmethod
        def pytest_runtest_logreport(report):
            name = report.nodeid
            here = sung if secret[12:20] in report.location[0] else outcomes
            if report.when != "call" and report.passed:
                return
            expected = report.skipped and hasattr(report, "wasxfail")  # a failure that its author knows of
            here[name] = bool(report.passed or expected) and here.get(name, True)
            if report.failed and here is outcomes:
                crash = getattr(report.longrepr, "reprcrash", None)
                reasons[name] = str(crash or report.longrepr or "")[-600:]

        @staticmethod
        def pytest_collectreport(report):
            if report.failed:
                broken[report.nodeid] = str(report.longrepr)[-400:]

    sys.path[:0] = request["sources"]
    os.chdir(root)
    options = ["-p", "no:cacheprovider", "-q", "--rootdir", root, "-o", "addopts=", "--tb=short", "--no-header"]
    options += ["--continue-on-collection-errors"]  # else nothing would run, what must fail included
    pytest.main([*options, *request["tests"], canaries], plugins=[Listener()])
    passed = [name for name, good in outcomes.items() if good]
    failed = {name: reasons.get(name, "") for name, good in outcomes.items() if not good}
    fooled = sum(sung.values())
    report = {"passed": passed, "failed": failed, "broken": broken, "canaries": len(sung), "fooled": fooled}
    out.write(f"\n{secret}\n{json.dumps(report)}\n{secret}\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
