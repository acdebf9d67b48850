"""Run tests inside the sandbox and report their outcomes; a standalone program for Python and pytest.

The request is JSON on standard input: {"root", "path" (folders of pytest), "sources" (folders of the repository to
import from), "tests" (files for pytest), "mark"}. The report comes after a line with the mark, one line per test:
outcome (P passed, X failed as its author expects, S skipped, F failed, B file not collected), seconds, name, reason.

This process also runs the agent's code, which can write any report. So nothing here is a verdict: only the trainer
knows which of the tests must fail.
"""

import importlib.metadata
import json
import os
import sys

_ORDER = "PXSF"
"""Outcomes from good to bad: the worst of a test's phases counts."""


def main():
    """Run what standard input asks for."""
    request = json.loads(sys.stdin.buffer.read())
    root = request["root"]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path[:0] = request["path"]
    import pytest  # before the repository's folders are looked into

    plugins = _installed_plugins()
    outcomes, seconds, reasons, broken = {}, {}, {}, {}

    class OutcomeListener:
        @staticmethod
        def pytest_runtest_logreport(report):
            name = report.nodeid
            seconds[name] = seconds.get(name, 0.0) + report.duration
            if report.when != "call" and report.passed:
                return
            expected = report.skipped and hasattr(report, "wasxfail")
            outcome = "P" if report.passed else "X" if expected else "S" if report.skipped else "F"
            outcomes[name] = max(outcome, outcomes.get(name, "P"), key=_ORDER.index)
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                reasons[name] = str(crash or report.longrepr or "")[-600:]

        @staticmethod
        def pytest_collectreport(report):
            if report.failed:
                broken[report.nodeid] = str(report.longrepr)[-400:]

    sys.path[:0] = request["sources"]
    os.chdir(root)
    options = ["-p", "no:cacheprovider", "-q", "--rootdir", root, "-o", "addopts=", "--tb=native", "--no-header"]
    options += ["--continue-on-collection-errors"]  # otherwise nothing would run, not even what must fail
    pytest.main([*options, *request["tests"]], plugins=[*plugins, OutcomeListener()])
    lines = [(outcome, seconds[name], name, reasons.get(name, "")) for name, outcome in outcomes.items()]
    lines += [("B", 0.0, name, reason) for name, reason in broken.items()]
    out.write(f"\n{request['mark']}\n")
    for outcome, took, name, reason in lines:
        out.write("\t".join([outcome, f"{took:.6f}", _one_line(name), _one_line(reason)]) + "\n")
    out.write(f"{request['mark']}\n")
    out.flush()
    os._exit(0)


def _installed_plugins():
    """Load pytest's installed plugins; a plugin that metadata in the repository names is never loaded."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    found = {}
    for distribution in importlib.metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "pytest11" and entry.name not in found:
                found[entry.name] = entry.load()
    return list(found.values())


def _one_line(text):
    return " ".join(text.replace("\t", " ").split("\n"))


if __name__ == "__main__":
    main()
