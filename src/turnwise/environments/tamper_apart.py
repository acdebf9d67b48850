"""Attack an environment in separate processes, so that an attack that hangs or kills it is reported."""

import os
import pickle
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from turnwise.base.errors import ConfigError, TurnwiseError, text_of
from turnwise.environments.apart import Reporter, interpreter
from turnwise.environments.isolation import how_ended
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite, refuse_agents_suite
from turnwise.environments.tamper import Finding, Tamper, score
from turnwise.environments.wire import Message, ProtocolError, Text


class _Report(Message):
    """A report of the process: a call that begins (None: ended), an attack that begins, its finding, or the end."""

    kind: Literal["call", "attack", "finding", "refused", "end"]
    text: Text | None = None
    family: Text = ""
    name: Text = ""


def tamper(config: EnvironmentConfig) -> list[Finding]:
    """Attack a configured environment; `config.step_timeout_s` limits each of its calls.

    Raises:
        ConfigError: The environment cannot be made, or fails without any attack.
    """
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="turnwise-tamper-") as folder:
        while True:
            ended = _run(config, Path(folder), findings)
            if ended is None:
                return findings
            findings.append(ended)


def _run(config: EnvironmentConfig, folder: Path, findings: list[Finding]) -> Finding | None:
    """Run the attacks without a finding; return that of one that ended the process, None after the last."""
    attack, call = None, None
    with interpreter((config, str(folder), len(findings)), config, 0, __name__) as (process, reports):
        while True:
            try:
                answer = reports.next(config.step_timeout_s if call else None)
                report = None if answer is None else _Report.read(answer)
            except ProtocolError as error:
                return _ended(attack, f"the environment wrote into the channel of this test ({error})")
            except EOFError:
                return _ended(attack, f"the environment's process ended ({how_ended(process.wait())})")
            if report is None:
                return _ended(attack, f"no answer within step_timeout_s={config.step_timeout_s:g}")
            if report.kind == "call":
                call = report.text
            elif report.kind == "attack":
                attack = report.family, report.name
            elif report.kind == "finding":
                findings.append(Finding(report.family, report.name, report.text))
            elif report.kind == "refused":
                raise ConfigError(report.text or "")
            else:
                return None


def _ended(attack: tuple[str, str] | None, how: str) -> Finding:
    if attack is None:
        raise ConfigError(f"the environment fails without any attack: {how}; run check-env without --tamper first")
    return Finding(*attack, how)


def main(descriptor: int) -> None:
    """Attack the environment whose configuration is on the standard input."""
    config, folder, done = pickle.load(sys.stdin.buffer)
    send = Reporter(descriptor).send
    try:
        suite = make_suite(config)
        refuse_agents_suite(suite, config.name)
        suite.tasks(config.train_split)  # before the folder changes, since data may be named by relative paths
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.chdir(folder)
        checks = Tamper(
            suite,
            Path(folder),
            split=config.train_split,
            max_observation_chars=config.max_observation_chars,
            on_call=lambda call: send(_Report(kind="call", text=call)),
        )
        names = [(attack.family, attack.name) for attack in checks.attacks]
        for number, check in enumerate(checks.checks[done:], start=done):
            family, name = names[number] if number < len(names) else ("state shared", check.__name__)
            send(_Report(kind="attack", family=family, name=name))
            found = check()
            send(_Report(kind="finding", family=found.family, name=found.name, text=found.succeeded))
        send(_Report(kind="end"))
    except TurnwiseError as error:
        send(_Report(kind="refused", text=str(error)))
    except Exception as error:  # the user's suite may raise anything
        send(_Report(kind="refused", text=f"loading the environment raised {type(error).__name__}: {text_of(error)}"))


def report(name: str, findings: list[Finding]) -> str:
    """Format the findings as text: every attack that succeeded, and a count by family."""
    lines = [f"{name}: withstood {sum(f.succeeded is None for f in findings)} of {len(findings)} attacks"]
    for family, total in Counter(finding.family for finding in findings).items():
        mine = [finding for finding in findings if finding.family == family]
        lines.append(f"  {family}: {sum(finding.succeeded is None for finding in mine)} of {total}")
        lines += [f"    SUCCEEDED: {finding.name}: {finding.succeeded}" for finding in mine if finding.succeeded]
    return "\n".join(lines)


def as_json(name: str, findings: list[Finding]) -> dict[str, Any]:
    """Return the findings as plain data."""
    attacks = [{"family": f.family, "name": f.name, "succeeded": f.succeeded} for f in findings]
    return {"environment": name, "score": score(findings), "attacks": attacks}
