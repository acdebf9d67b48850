"""SRGPO: compare verifiable step rewards within random groups of steps."""

from typing import Literal

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method, mix
from turnwise.credit.transforms import standardize_in_random_groups, take_column

Convention = Literal["turnwise", "release"]


@method(
    "SeeNav-Agent: Enhancing Vision-Language Navigation with Visual Prompt and Step-Level Policy Optimization (SRGPO)",
    arxiv="2512.02631",
)
def srgpo(
    *, weight: float = 0.5, group_size: int = 16, seed: int = 0, convention: Convention = "turnwise"
) -> Transform:
    """Add to GRPO's advantage the step's reward, standardised within random groups of steps of the batch.

        A_it = A_episode_i + weight * (s_it - mean_random(s)) / (std_random(s) + 1e-6)

    `s_it` is the column `step_reward`, a verifiable reward of the single response (0 or 1 in the paper), and A_episode
    is `grpo()`. All responses of the batch are shuffled and split into groups of `group_size`, regardless of task and
    turn; the last group may be smaller. Neither term is discounted.

    Args:
        weight: omega in the paper.
        group_size: Responses per random group.
        seed: Seed of the shuffle, which depends only on it and on the batch.
        convention: "release": A_episode counts responses, and in both terms a single one keeps its value. (The
            release's option to stay within a task has no effect and is not offered.)

    Expected gradient: biased: it follows the step rewards as well, and divides by deviations.
    Use it when: the environment can verify every single step, on the same scale in all tasks.
    Reference: Wang et al., SeeNav-Agent, arXiv 2512.02631; its verl-agent/srgpo/core_srgpo.py.
    """
    release = convention == "release"
    return mix(
        grpo(convention="verl-agent" if release else "turnwise"),
        chain(
            take_column(column="step_reward"),
            standardize_in_random_groups(size=group_size, seed=seed, lone="keep" if release else "zero"),
            name="step",
        ),
        weights=(1.0, weight),
        name="srgpo",
        gradient=Gradient("biased", reason="follows the step rewards as well, and divides by deviations"),
    )
