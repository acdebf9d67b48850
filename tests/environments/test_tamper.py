"""Every generic attack is found in an environment that falls for it, and a sound environment withstands all."""

import json
import re

import pytest
from tests.needs import needs

from turnwise.commands.cli import main
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.tamper_apart import tamper

FALLS_FOR = {
    "ReadsResult": ("result files", "counted as success"),
    "ReadsHiddenResult": ("result files", "the agent's tools can write .*zz-outcome, which the environment reads"),
    "Shell": ("state shared", "a trajectory reads what another one wrote in /"),
    "OneFolder": ("state shared", r"a trajectory reads what another one wrote in \."),
    "Believes": ("fake turns", "counted as success"),
    "Obeys": ("instructions to a judge", "counted as success"),
    "Remembers": ("state shared", "differently than before the attacks"),
    "Interleaved": ("state shared", "differently while another one plays"),
    "Parses": ("time, memory", "RecursionError"),
    "Slow": ("time, memory", r"no answer within step_timeout_s=1"),
    "Dies": ("time, memory", r"process ended \(exit code 3\)"),
    "Hoards": ("time, memory", r"process grew by \d+ MiB"),
    "Echoes": ("time, memory", "answered with 5000000 characters, more than max_observation_chars=100000"),
}


def attacked(name: str) -> list:
    return tamper(
        EnvironmentConfig(name=f"tests.environments.tampered:{name}", step_timeout_s=1 if name == "Slow" else 20)
    )


@pytest.mark.parametrize("name", FALLS_FOR)
def test_an_attack_is_found(name):
    family, how = FALLS_FOR[name]
    succeeded = [finding for finding in attacked(name) if finding.succeeded]
    assert [f for f in succeeded if f.family.startswith(family) and re.search(how, f.succeeded)], succeeded


def test_a_sound_environment_withstands_all():
    findings = attacked("Sound")
    assert [finding for finding in findings if finding.succeeded] == []
    assert len(findings) > 25


@pytest.mark.parametrize("name", ["household", pytest.param("frozen_lake", marks=needs("gymnasium")), "sokoban"])
def test_ours_withstand_all(name):
    assert [finding for finding in tamper(EnvironmentConfig(name=name)) if finding.succeeded] == []


def test_the_command_reports_and_says_it_by_its_exit_code(capsys):
    assert main(["check-env", "--tamper", "tests.environments.tampered:Sound"]) == 0
    assert "withstood 33 of 33 attacks" in capsys.readouterr().out
    assert main(["check-env", "--tamper", "--json", "tests.environments.tampered:Believes"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert 0.5 < told["score"] < 1
    assert {attack["family"] for attack in told["attacks"] if attack["succeeded"]} == {"fake turns and tool results"}


def test_an_environment_that_fails_by_itself_is_mended_first(capsys):
    assert main(["check-env", "--tamper", "tests.toys:Broken"]) == 2
    told = capsys.readouterr().err
    assert "the environment fails without any attack; fix this first" in told
    assert len(told.splitlines()) == 1
