"""Assign credit to a padded batch `[rows, length]`, as most trainers hold it.

    python examples/padded_tensors.py

Row layouts differ between trainers; docs/how-to/other-trainers.md has the lines for nine of them.
"""

import torch

import turnwise as tw
from turnwise.integrations.padded import padded_advantages

MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
ENTROPY = torch.tensor([[0.3, 0.1, 0.0], [0.9, 0.9, 0.9], [0.4, 0.0, 0.0], [0.2, 0.4, 0.0], [0.0, 0.0, 0.0]])


def one_row_per_turn() -> None:
    """Rows are turns: two trajectories of one prompt, and a row of padding."""
    tokens, rows = padded_advantages(
        tw.aem(tw.grpo()),
        row="turn",
        rewards=torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]),  # of each turn
        response_mask=MASK,
        group=["q", "q", "q", "q", None],
        trajectory=["a", "a", "b", "b", None],
        turn=[0, 1, 0, 1, 0],
        entropies=ENTROPY,
    )
    print(rows.numpy().round(2))  # [ 0.95  0.35 -0.71 -0.82  0.  ]
    print(tuple(tokens.shape), bool((tokens[MASK == 0] == 0).all()))  # (5, 3) True


def one_row_per_trajectory() -> None:
    """Rows are trajectories: each run of ones in the mask is a response, zeros between them are observations."""
    mask = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1]])
    tokens, _ = padded_advantages(
        tw.trloo(),
        row="trajectory",
        rewards=torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0] * 6]),  # at the last token
        response_mask=mask,
        group=["q", "q"],
    )
    print(tokens.tolist())  # [[1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [-1.0, 0.0, 0.0, -1.0, -1.0, -1.0]]


if __name__ == "__main__":
    one_row_per_turn()
    one_row_per_trajectory()
