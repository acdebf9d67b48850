"""Batches of several turns, drawn at random."""

import numpy as np
from tests.methods.batches import batch_of

import turnwise as tw


def drawn(seed: int = 0) -> tw.Batch:
    """Three prompts, trajectories of 1 to 6 turns, three states, two roles, rewards on the way."""
    generator = np.random.default_rng(seed)
    lengths = [generator.integers(1, 7, size=num).tolist() for num in (4, 3, 5)]
    num = sum(map(sum, lengths))
    return batch_of(
        lengths,
        generator.integers(-8, 9, num) / 8,
        state_key=generator.integers(0, 3, num),
        role=generator.integers(0, 2, num),
        length=generator.integers(1, 9, num),
        step_reward=generator.integers(0, 2, num),
        success=np.repeat(generator.integers(0, 2, 12), [turns for group in lengths for turns in group]),
        state_text=[f"state {['one', 'two', 'three'][k]}" for k in generator.integers(0, 3, num)],
    )


def step_term(scale: bool, discount: float = 0.95) -> tw.Transform:
    """GiGPO's second part, with HGPO's deviation."""
    same = {"over": "responses", "same": "state_key"}
    blocks = [tw.discounted_return(discount=discount), tw.center_by_group(**same)]
    return tw.chain(*blocks, *([tw.scale_by_group_std(**same, ddof=0)] if scale else []))
