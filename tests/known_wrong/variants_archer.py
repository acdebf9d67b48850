"""Bugs in a critic that bootstraps (ArCHer), with the checks that reject them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.known_wrong.checks import Check
from tests.known_wrong.known import Known, column, known, worked
from tests.known_wrong.variants import Variant
from tests.properties.strategies import Rows
from tests.toys import trajectory

from turnwise.credit.segments import Segments
from turnwise.models.critic import Critic
from turnwise.models.settings import CriticConfig, ModelConfig
from turnwise.objective.tokens import Sequences
from turnwise.objective.transitions import Turns
from turnwise.train.critic import from_differences

OLD, FRESH = "0", "1"
"""Groups: the turns of an earlier step, and those of this one."""


class OneHot(torch.nn.Module):
    """A model whose hidden state is another unit vector after each text, so that linear heads are tables."""

    def __init__(self, size: int = 32):
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=size))
        self.device = torch.device("cpu")
        self.number: dict[tuple[int, ...], int] = {}

    def get_decoder(self):
        return self

    def forward(self, input_ids, use_cache=False):
        rows = [[tuple(row[: n + 1]) for n in range(len(row))] for row in input_ids.tolist()]
        number = torch.tensor([[self.number.setdefault(text, len(self.number)) for text in row] for row in rows])
        size = self.config.get_text_config().hidden_size
        return SimpleNamespace(last_hidden_state=torch.nn.functional.one_hot(number, size).float())

    def row(self, *text: int) -> int:
        """Place of a text in the tables."""
        return self.number.setdefault(text, len(self.number))


def table_critic(**settings: Any) -> tuple[Critic, OneHot]:
    """A critic whose heads are tables without a bias; each optimiser step goes half way to the mean target."""
    model = OneHot()
    policy: Any = SimpleNamespace(model=model, format=None)
    critic = Critic(policy, CriticConfig(max_grad_norm=1e9, **settings), ("value", "value_action"), seed=0)
    weights = [weight for name, weight in critic.network.named_parameters() if name.endswith("weight")]
    for network in (critic.network, critic.slow):
        for name, weight in network.named_parameters():
            weight.requires_grad_(network is critic.network and name.endswith("weight"))
            torch.nn.init.zeros_(weight)
    critic.optimizer = torch.optim.SGD(weights, lr=0.5)
    return critic, model


def turns_of(*paths: tuple[list[int], list[float]]) -> Turns:
    """Turns of trajectories, each of prompts and responses of one token in turn, and the rewards of the responses."""
    played = [trajectory(0, *[([a], [b]) for a, b in zip(ids[::2], ids[1::2], strict=True)]) for ids, _ in paths]
    rewards = [reward for _, paid in paths for reward in paid]
    lengths = [len(paid) for _, paid in paths]
    ones = Segments.from_lengths([1] * len(rewards))
    return Turns(Sequences.from_trajectories(played), Segments.from_lengths(lengths), ones, np.array(rewards))


# prompt 1, answered by 2 in the earlier step and by 6 in this one; then prompt 4, answered by 3 and by 5
PATHS = {OLD: [1, 2, 4, 3], FRESH: [1, 6, 4, 5]}
TABLES = {
    "q_1": [4, 2, 5, 1], "q_2": [0, 6, 3, 2], "v_1": [1, 0, 1, 2], "v_2": [3, 4, 3, 0],
    "slow_q_1": [8, 0, 3, 6], "slow_q_2": [8, 0, 1, 2], "slow_v_1": [9, 2, 9, 7], "slow_v_2": [9, 6, 9, 5],
}  # fmt: skip
ONE, TWO = (known([[[1, 4]], [[0, 2]]], **TABLES, steps=[steps] * 4) for steps in (1, 2))
SUITES: dict[str, list[Check]] = {
    "archer": [
        # Q: (4, 0) half way to 1 + (2, 6) / 2, and (2, 6) half way to 4; V: (1, 3) to (3, 1), and (2, 0) to (6, 2)
        worked("each_goes_half_way_to_the_slow_copy_of_the_other", ONE, [2 - 2, 3 - 0, 3 - 2, 1 - 1]),
        # slow V of the old second state (1, 5), slow Q of the fresh responses (4, 2) and (7/2, 2)
        worked("the_slow_copy_goes_half_way_too", TWO, [2.25 - 2, 3.5 - 0, 3 - 2, 1 - 1.5]),
    ]
}


def real(rows: Rows) -> np.ndarray:
    """Optimiser steps of the critic on tables, then the advantages."""
    assert isinstance(rows, Known)
    critic, model = table_critic(discount=0.5, target_rate=0.5)
    texts = [PATHS[group][: 2 * turn + 1] for group in (OLD, FRESH) for turn in range(2)]
    places = [
        (model.row(*text), model.row(*text, response)) for text, response in zip(texts, [2, 3, 6, 5], strict=True)
    ]
    with torch.no_grad():
        for prefix, network in (("", critic.network), ("slow_", critic.slow)):
            for head, heads in enumerate((network.heads, network.twins), 1):
                value, action = (heads[name].get_parameter("0.weight")[0] for name in ("value", "value_action"))
                for k, (state, response) in enumerate(places):
                    value[state] = column(rows, f"{prefix}v_{head}")[k]
                    action[response] = column(rows, f"{prefix}q_{head}")[k]
    old, fresh = (
        turns_of((PATHS[group], rows.reward[np.array(rows.group) == group].tolist())) for group in (OLD, FRESH)
    )
    for _ in range(int(column(rows, "steps")[0])):
        from_differences(critic, fresh, old, ModelConfig(), np.arange(1), 64)
        critic.step()
    unit = torch.eye(model.config.get_text_config().hidden_size)
    states, responses = map(list, zip(*places, strict=True))
    return (critic.measure("value_action", unit[responses]) - critic.measure("value", unit[states])).numpy()


REAL = {"archer": real}


def tables(
    rows: Rows, *, copies=True, least=min, least_target=False, through=False, stored=False, discount=0.5, rate=0.5,
    replay=True,
) -> np.ndarray:  # fmt: skip
    """The critic in plain loops over two trajectories of two turns, with bugs to choose from."""
    q, v, slow_q, slow_v = (
        [list(pair) for pair in zip(column(rows, f"{name}_1"), column(rows, f"{name}_2"), strict=True)]
        for name in ("q", "v", "slow_q", "slow_v")
    )
    for _ in range(int(column(rows, "steps")[0])):
        from_v, from_q = (slow_v, slow_q) if copies else ([*map(list, v)], [*map(list, q)])
        new_q, new_v = [*map(list, q)], [*map(list, v)]
        for i in range(2):
            for row in (0, 1) if replay else (2, 3):
                after = from_v[row + 1] if row % 2 == 0 else from_v[(row + 1) % 4] if through else [0.0, 0.0]
                target = rows.reward[row] + discount * (min(after) if least_target else after[i])
                new_q[row][i] = (q[row][i] + target) / 2
            for row in (0, 1) if stored else (2, 3):
                new_v[row][i] = (v[row][i] + from_q[row][i]) / 2
        new_v[0 if not stored else 2] = list(new_v[2 if not stored else 0])  # the two first states are one
        q, v = new_q, new_v
        for slow, fast in ((slow_q, q), (slow_v, v)):
            for row in range(4):
                slow[row] = [(1 - rate) * a + rate * b for a, b in zip(slow[row], fast[row], strict=True)]
    return np.array([least(a) - least(b) for a, b in zip(q, v, strict=True)])


def variant(rejected_by: str, source: str, **bug: Any) -> Variant:
    return Variant("archer", lambda rows: tables(rows, **bug), source, (rejected_by,))


HALF_WAY = "each_goes_half_way_to_the_slow_copy_of_the_other"
VARIANTS: dict[str, Variant] = {
    "Q and V learn from themselves": variant(HALF_WAY, "targets from the network that is updated", copies=False),
    "the advantage of the first heads": variant(
        HALF_WAY, "arXiv 2402.19446: min over the twins in the actor", least=lambda pair: pair[0]
    ),
    "the advantage of the mean of the heads": variant(
        HALF_WAY, "a mean over heads where the least is asked for", least=lambda pair: sum(pair) / 2
    ),
    "the least of the twins as the target": variant(
        HALF_WAY, "ArCHer released code: matching heads in targets, where SAC takes the least", least_target=True
    ),
    "bootstrapping through the end of a trajectory": variant(
        HALF_WAY, "the factor 1 - done left out: the next row of the batch follows the last response", through=True
    ),
    "V learns from the stored responses": variant(
        HALF_WAY, "arXiv 2402.19446: the response at a state must be fresh, else V is the old policy's", stored=True
    ),
    "Q learns from the step alone": variant(HALF_WAY, "an off-policy critic without its old turns", replay=False),
    "nothing is discounted": variant(HALF_WAY, "a discount that never reaches the target", discount=1.0),
    "the copy jumps to the critic": variant(
        "the_slow_copy_goes_half_way_too", "tau read as the share that stays, or a copy renewed at once", rate=1.0
    ),
}
