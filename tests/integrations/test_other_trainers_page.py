"""The lines of examples/other-trainers.md for trainers that do not install here, on stand-ins for what they pass.

This holds our side of the lines; that theirs is so was read in their sources, not run. Adapters have their own tests.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import turnwise as tw
from turnwise.integrations.padded import padded_advantages

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / name).read_text() for name in ("examples/other-trainers.md", "docs/how-to/other-trainers.md"))


def lines(heading: str, number: int = 0, **names) -> dict:
    """Run a block of the page's section, and return what it defines."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    namespace = {
        "np": np,
        "torch": torch,
        "tw": tw,
        "padded_advantages": padded_advantages,
        "pad_sequence": pad_sequence,
        **names,
    }
    exec(re.findall(r"```py\n(.*?)```", section, re.DOTALL)[number], namespace)
    return namespace


def expected(method, *trajectories):
    """Advantages of one group's responses, from the rewards of its trajectories' turns."""
    return method(tw.Batch.from_trajectories([[[{"reward": r} for r in turns] for turns in trajectories]]))


def test_verl_agent_copies_and_shuffled_rows():
    tensors = {"response_mask": torch.tensor([[1, 1], [1, 0], [1, 0], [1, 1]])}
    columns = {
        "uid": "q",
        "traj_uid": ["a", "b", "b", "a"],
        "turn": [1, 0, 0, 0],
        "rewards": [1.0, 0.0, 0.0, 0.0],
        "anchor_obs": ["y", "x", "x", "x"],
    }
    extra = {
        name: np.array(list(column) * (4 if column == "q" else 1), dtype=object) for name, column in columns.items()
    }
    lines("verl-agent", 1, data=SimpleNamespace(batch=tensors, non_tensor_batch=extra))
    batch = tw.Batch.from_trajectories(
        [
            [
                [{"reward": 0.0, "state_key": "x"}, {"reward": 1.0, "state_key": "y"}],
                [{"reward": 0.0, "state_key": "x"}],
            ]
        ]
    )
    a0, a1, b0 = torch.tensor(tw.gigpo()(batch), dtype=torch.float32)
    torch.testing.assert_close(
        tensors["advantages"], torch.stack([a1, a1, b0, b0 * 0, b0, b0 * 0, a0, a0]).reshape(4, 2)
    )


def test_rllm_writes_the_steps():
    trajectories = [[SimpleNamespace(response_ids=[0] * n) for n in turns] for turns in ((2, 1), (3,))]
    group = SimpleNamespace(trajectories=[SimpleNamespace(steps=steps) for steps in trajectories])
    credit = lines("rLLM", register_adv_estimator=lambda _: lambda function: function)["credit"]
    credit([np.array([1.0, 0.25])], algorithm_config=None, traj_groups=[group])
    a, b, c = expected(tw.trloo(), [0.0, 1.0], [0.25])
    assert [step.advantage for steps in trajectories for step in steps] == [[a] * 2, [b], [c] * 3]
    assert credit.writes_step_advantages


def test_openrlhf_micro_batches_of_their_own_lengths():
    class RemoteExperienceMaker:
        args = SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=2))

        def compute_advantages_and_returns(self, experiences):
            return experiences

    first = SimpleNamespace(action_mask=torch.tensor([[1, 0, 1, 0]]).bool(), rewards=torch.tensor([1.0]), index=[1])
    second = SimpleNamespace(action_mask=torch.tensor([[1, 1]]).bool(), rewards=torch.tensor([0.25]), index=[0])
    lines("OpenRLHF", RemoteExperienceMaker=RemoteExperienceMaker)["Credit"]().compute_advantages_and_returns(
        [first, second]
    )
    a, b, c = expected(tw.trloo(), [0.0, 1.0], [0.25])
    np.testing.assert_allclose(first.advantages, [[a, 0, b, 0]], rtol=1e-6)
    np.testing.assert_allclose(second.advantages, [[c, c]], rtol=1e-6)
