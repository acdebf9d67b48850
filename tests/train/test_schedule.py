"""The learning rate of a step, and the weight decay."""

import pytest
from tests.toys import color_policy

from turnwise.models.critic import Critic
from turnwise.models.settings import CriticConfig
from turnwise.objective.settings import UpdateConfig
from turnwise.train.parts import make_optimizer
from turnwise.train.schedule import learning_rate


def test_the_learning_rate_rises_over_the_warm_up_and_stays() -> None:
    update = UpdateConfig(learning_rate=1e-3, warmup_steps=4)
    assert [learning_rate(update, step, 10) for step in (1, 2, 4, 5, 10)] == pytest.approx(
        [2.5e-4, 5e-4, 1e-3, 1e-3, 1e-3]
    )


def test_with_decay_it_falls_linearly_and_the_last_step_still_counts() -> None:
    update = UpdateConfig(learning_rate=1.0, warmup_steps=0, decay=True)
    assert [learning_rate(update, step, 4) for step in (1, 2, 3, 4)] == pytest.approx([1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.3}], ids=["default", "set"])
def test_policy_and_critic_have_their_weight_decay(decay) -> None:
    critic = Critic(color_policy(), CriticConfig(**decay), ("value",), seed=0)
    for optimizer in (make_optimizer(color_policy(), UpdateConfig(**decay)), critic.optimizer):
        assert [group["weight_decay"] for group in optimizer.param_groups] == [decay.get("weight_decay", 0.0)]
