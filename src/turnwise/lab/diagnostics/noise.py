"""Estimate how many groups make a step's gradient more signal than noise, by method.

Let g_k be the policy gradient of group k: the sum over its responses of advantage times gradient of the
log-probability. Let G be its expectation. A step over B groups has signal B^2 |G|^2 and noise B tr(Cov g), equal at

    B* = tr(Cov g) / |G|^2            the simple noise scale of McCandlish et al. (arXiv 1812.06162), in groups

Both estimates are unbiased. |G|^2 is the mean of g_k . g_l over pairs of groups, which have different prompts and
draws, so it counts only what prompts teach about each other. tr(Cov g) is the mean of |g_k|^2 minus that. B* does not
depend on the size of the advantages.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from turnwise.base.errors import ConfigError, RunError
from turnwise.lab.diagnostics.stage import Stage
from turnwise.models.policy import autocast, trainable
from turnwise.objective.tokens import generated_logprobs
from turnwise.rollout.groups import OnTurn
from turnwise.train.credit import named_transform
from turnwise.train.folder import RunFolder

SKETCH = 2**17
"""Size of the random projection of a gradient. Its inner products are unbiased, with error |g||h| / sqrt(SKETCH)."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Hold signal and noise of one method's gradient, in units of this method.

    Attributes:
        signal: |G|^2; its estimate can be below 0.
        error: Standard error of the signal, by the jackknife over groups; up to sqrt(2) times too large at low signal.
        noise: tr(Cov g) of one group.
    """

    signal: float
    error: float
    noise: float

    @property
    def groups(self) -> float:
        """B*, number of groups for equal signal and noise; infinite without signal."""
        return self.noise / self.signal if self.signal > 0 else np.inf

    @property
    def least_groups(self) -> float:
        """Lower bound of B*, at the upper end of the signal's 95 % interval."""
        most = self.signal + 1.959964 * self.error
        return self.noise / most if most > 0 else np.inf

    @property
    def share(self) -> tuple[float, float]:
        """Share of signal in the squared gradient of one group, and its standard error."""
        return self.signal / (self.noise + self.signal), self.error / (self.noise + self.signal)

    def share_text(self) -> str:
        """Write the share of signal; "-" if fewer than two groups have a gradient."""
        return "{:.4f} +- {:.4f}".format(*self.share) if self.error else "-"


def measure_noise(
    folder: RunFolder,
    methods: Sequence[str],
    *,
    step: int | None = None,
    groups: int = 32,
    seed: int = 0,
    device: torch.device | None = None,
    on_turn: OnTurn = None,
    on_trajectory: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Noise]:
    """Play groups of training tasks with a checkpoint's policy, and compare methods on the same responses.

    Args:
        folder: Folder of the run.
        methods: Names such as "grpo" or "gigpo+empg", with their default options.
        step: Step of the checkpoint; default: the last.
        groups: Number of groups of `rollout.group_size` trajectories, each on another task.
        seed: Seed of tasks, draws and projection.
        device: Device of the policy; default: the CPU.
        on_turn: Called after every turn of the groups, with the number of live episodes and of all.
        on_trajectory: Called with the number of trajectories done and of all.

    Raises:
        TurnwiseError: A method is unknown or needs a missing column, there is no such checkpoint, or fewer than three
            groups could be played.
    """
    if groups < 3:
        raise ConfigError(f"groups={groups}, expected 3 or more to separate signal from noise")
    transforms = {name: named_transform(name) for name in methods}
    needs = {f"method {name!r}": transform.needs for name, transform in transforms.items()}
    with contextlib.closing(Stage.open(folder, step, device, on_turn=on_turn)) as stage:
        plan = stage.plan(needs | {"this analysis": ("logprob_T",)})
        trajectories, _ = stage.play_groups(groups, seed)
    model, config = stage.policy.model, stage.config
    batch, sequences, _ = stage.measure(plan, trajectories)
    if batch.num_groups < 3:
        raise RunError(
            f"only {batch.num_groups} of {groups} groups could be played, expected 3 or more; raise --groups"
        )
    assert batch.tokens is not None, "the trainer's batches have tokens"
    credit_T = {
        name: torch.from_numpy(transform.trace(batch)[0].advantage_T(batch.tokens))
        for name, transform in transforms.items()
    }
    weights = trainable(model)
    signs = draw_signs(weights, seed)
    sums = {name: torch.zeros(batch.num_groups, SKETCH) for name in methods}
    for number in range(len(sequences)):
        index = np.array([number])
        tokens, group = sequences.token_index(index), batch.groups.ids[sequences.trajectory[number]]
        with autocast(model, config.model):
            logprob, _ = generated_logprobs(model, sequences, index, temperature=config.rollout.temperature)
        waiting = [name for name in methods if credit_T[name][tokens].any()]
        while waiting:
            name = waiting.pop()
            total = (credit_T[name][tokens].to(logprob) * logprob).sum()
            gradient = torch.autograd.grad(total, weights, retain_graph=bool(waiting))
            sums[name][group] += sketch(gradient, signs)
        on_trajectory(number + 1, len(sequences))
    return {name: noise_of(table.double().numpy()) for name, table in sums.items()}


def draw_signs(weights: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Draw a random sign for every entry of a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, weight.shape, generator=generator, dtype=torch.int8) * 2 - 1 for weight in weights]


def sketch(gradient: Sequence[torch.Tensor], signs: Sequence[torch.Tensor], size: int = SKETCH) -> torch.Tensor:
    """Project a gradient to `[size]` numbers: each entry, with a random sign, is added at its index modulo `size`."""
    result, start = torch.zeros(size), 0
    for part, sign in zip(gradient, signs, strict=True):
        signed = torch.nn.functional.pad((part.cpu() * sign).flatten().float(), (start, 0))
        start = len(signed) % size
        result += torch.nn.functional.pad(signed, (0, -len(signed) % size)).view(-1, size).sum(0)
    return result


def noise_of(gradient_G: np.ndarray) -> Noise:
    """Estimate signal and noise of the groups' gradients, `[groups, size]`."""
    products = gradient_G @ gradient_G.T
    size = len(products)
    squares = np.diagonal(products)
    crossed = products.sum() - squares.sum()
    signal = crossed / (size * (size - 1))
    without = (crossed - 2 * (products.sum(1) - squares)) / ((size - 1) * (size - 2))  # each group left out once
    error = np.sqrt((size - 1) / size * ((without - without.mean()) ** 2).sum())
    return Noise(float(signal), float(error), float(squares.mean() - signal))


def noise_table(found: Mapping[str, Noise], groups: int) -> list[tuple[str, ...]]:
    """Tabulate by method the share of signal in one group's gradient, and the groups for equal signal and noise."""
    rows: list[tuple[str, ...]] = [
        ("method", "signal of one group", "groups for signal = noise", "95 %: at least", "in this run's step")
    ]
    for name, one in found.items():
        needed = "not seen" if np.isinf(one.groups) else f"{one.groups:.1f}"
        ratio = "-" if np.isinf(one.groups) else f"{groups / one.groups:.2f}"
        rows.append((name, one.share_text(), needed, f"{one.least_groups:.1f}", ratio))
    return rows
