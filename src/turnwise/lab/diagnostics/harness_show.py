"""Show on one screen how far a harness repeats, what it costs, and which methods and analyses that allows."""

import dataclasses
from typing import Any

from turnwise.base.tables import Table
from turnwise.lab.diagnostics.harness_check import KINDS, HarnessReport
from turnwise.rollout.replays import MOST
from turnwise.train.evaluation.intervals import wilson_interval

REPLAYS = (
    "analyse fidelity",
    "[continuations]: vine_ppo, tp_grpo, spo_chain",
    "branching collectors: tree_grpo, arpo, treerl, ...",
    "prefix_sampling",
)
"""What begins with given turns."""


def page(name: str, checked: HarnessReport, policy: str, of: int) -> list[str | Table]:
    """Make the page."""
    head = (
        f"{name}: {checked.tasks} of {of} tasks, each played by {policy}, and once more with the answers of that play."
    )
    first = [str(each) for each in checked.differences[:1]]
    return [
        head,
        [("found", ""), *_facts(checked)],
        *(f"First difference: {each}" for each in first),
        [("what that allows", ""), *allowed(checked)],
    ]


def _facts(checked: HarnessReport) -> list[tuple[str, str]]:
    low, high = wilson_interval(checked.successes, checked.played)
    rewards = checked.rewards
    varies = ", ".join(f"{KINDS[kind]} ({count}x)" for kind, count in checked.varies.items())
    failed = [("failed", f"{checked.failed} of {checked.tasks}; most often: {checked.cause}")] if checked.failed else []
    tools = "; no call follows an answer, so no tool is tested" if checked.prompts == checked.played else ""
    return [
        *failed,
        (
            "repeats",
            f"{checked.repeated} of {checked.played} trajectories ({checked.rate:.0%}), {checked.prompts_again} of "
            f"{checked.prompts} prompts word for word{tools}",
        ),
        ("varies", varies or "nothing"),
        ("rewards agree", f"in {checked.rewards_agree} of {checked.played} trajectories"),
        (
            "costs",
            f"{checked.prompts / checked.played:.1f} calls, {checked.read:,.0f} tokens read and {checked.written:,.0f} "
            f"written, {checked.seconds:.2f} s per trajectory, {checked.seconds_alone:.2f} s of them without the model",
        ),
        (
            "first success",
            f"{checked.successes} of {checked.played} ({checked.successes / checked.played:.2f}, 95 %: {low:.2f} to "
            f"{high:.2f}); rewards from {min(rewards):g} to {max(rewards):g}",
        ),
    ]


def allowed(checked: HarnessReport) -> list[tuple[str, str]]:
    """List what needs what, and whether this harness allows it."""
    equal = min(checked.rewards) == max(checked.rewards)
    learns = "yes"
    if equal:
        learns = (
            f"they run, but all rewards are {checked.rewards[0]:g}: nothing to learn yet. Try easier tasks, "
            "demonstrations or a stronger model"
        )
    keys = checked.states / checked.prompts
    states = f"yes: {keys:.0%} of the state keys came again"
    if keys < MOST:
        states = f"no: {keys:.0%} of the state keys came again; name states by harness.state_key"
    replays = "yes"
    if checked.rate < 1 - MOST:
        replays = f"no: {checked.rate:.0%} of the trajectories repeat, at least {1 - MOST:.0%} must"
    elif checked.rate < 1:
        replays = f"yes, but {1 - checked.rate:.0%} of the replays are lost, which may bias values"
    return [
        ("methods that compare trajectories: grpo, rloo, trloo, ...", learns),
        ("methods that compare states: gigpo, hgpo, proxmo, ...", states),
        *((each, replays) for each in REPLAYS),
        ("analyse noise, turns, pass-at-k; report, recredit", "yes"),
    ]


def as_json(name: str, checked: HarnessReport) -> dict[str, Any]:
    """Return the same as plain data."""
    fields = dataclasses.asdict(checked)
    fields |= {"played": checked.played, "rate": checked.rate, "varies": checked.varies}
    return {"harness": name, **fields, "allowed": dict(allowed(checked))}
