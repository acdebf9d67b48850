"""How many groups a step needs before its gradient is more signal than noise, by method of credit.

With g_k the policy gradient of prompt group k (the sum over its responses of advantage times the gradient of their log-probability) and G its
expectation, a step over B groups has signal B^2 |G|^2 and noise B tr(Cov g): they are equal at

    B* = tr(Cov g) / |G|^2            the simple noise scale of McCandlish et al. (arXiv 1812.06162), in groups

Both are estimated without bias from groups played by one policy: |G|^2 as the mean of g_k . g_l over pairs of groups, which have other prompts and
other draws, so that it counts only what one prompt teaches about another; tr(Cov g) as the mean of |g_k|^2 less that. B* depends on scale, baseline
and choice of responses, not on the size of the advantages.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from turnwise.config import Config, parse_config
from turnwise.environments.suites import make_suite
from turnwise.errors import ConfigError, RunError
from turnwise.methods.build import split_name
from turnwise.policy import Policy, autocast, choose_trainable, freeze_but_norms, trainable
from turnwise.rollout.collect import blocking
from turnwise.rollout.engines import make_engine
from turnwise.rollout.record import Trajectory
from turnwise.rollout.workers import make_worlds
from turnwise.tokens import generated_logprobs
from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
from turnwise.train.credit import make_credit
from turnwise.train.experience import play
from turnwise.train.folder import RunFolder
from turnwise.train.step import score_trajectories

SKETCH = 2**17
"""Numbers that stand for a gradient. Inner products of the random projection are right on average, and off by about |g||h| / sqrt(SKETCH)."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """The gradient of one method, in units that only the method's own rows share.

    Attributes:
        signal: |G|^2; below 0 where it is lost in the noise.
        error: Its standard error, by the jackknife over groups: up to sqrt(2) times too large where there is little signal.
        noise: tr(Cov g) of one group.
    """

    signal: float
    error: float
    noise: float

    @property
    def groups(self) -> float:
        """B*, groups for as much signal as noise; infinite where no signal was seen."""
        return self.noise / self.signal if self.signal > 0 else np.inf

    @property
    def least_groups(self) -> float:
        """What B* is at least, at the upper end of the signal's 95 % interval."""
        most = self.signal + 1.959964 * self.error
        return self.noise / most if most > 0 else np.inf


def measure_noise(
    folder: RunFolder,
    config: Config,
    methods: Sequence[str],
    *,
    step: int | None = None,
    groups: int = 32,
    seed: int = 0,
    device: torch.device | None = None,
    on_trajectory: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Noise]:
    """Play groups of training tasks with a checkpoint's policy, and compare methods on the same responses.

    Args:
        folder: Of the run.
        config: Of the run; what learns, and the temperature, are its own.
        methods: Names such as "grpo" or "gigpo+aem", with their default options.
        step: Whose checkpoint; default: the last.
        groups: How many, of `rollout.group_size` trajectories each, every one of another task.
        seed: Of the tasks, the draws and the projection.
        device: Where the policy computes; default: the CPU.
        on_trajectory: Called with the trajectories done and all of them.

    Raises:
        TurnwiseError: A method is unknown or cannot be fed, there is no such checkpoint, or fewer than three groups could be played.
    """
    if groups < 3:
        raise ConfigError(f"groups={groups}: to tell signal from noise takes three or more")
    credits = {name: make_credit(named(config, name)) for name in methods}
    _, policy, _ = load_checkpoint(checkpoint_at(folder, step), to_play=True)
    model = policy.model
    model.to(device)  # pyright: ignore[reportArgumentType]
    choose_trainable(model, config.model)
    if config.update.only_norms:
        freeze_but_norms(model)
    played = _play(policy, config, groups, seed)
    scored = score_trajectories(model, played, config)
    batch, sequences = scored.batch, scored.sequences
    if batch.num_groups < 3:
        raise RunError(
            f"{batch.num_groups} of {groups} groups could be played; to tell signal from noise takes three or more"
        )
    assert batch.tokens is not None, "the trainer's batches have them"
    credit_T = {
        name: torch.from_numpy(
            batch.tokens.broadcast(credit.update(batch.reward_R, credit.init and credit.init(), batch)[0])
        )
        for name, credit in credits.items()
    }
    weights, generator = trainable(model), torch.Generator().manual_seed(seed)
    signs = [torch.randint(2, weight.shape, generator=generator, dtype=torch.int8) * 2 - 1 for weight in weights]
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


def named(config: Config, method: str) -> Config:
    """The run with another method, such as "gigpo" or "gigpo+aem", under that method's own options."""
    base, with_aem = split_name(method)
    return parse_config(config.model_dump(mode="json") | {"method": {"name": base}, "aem": with_aem})


def sketch(gradient: Sequence[torch.Tensor], signs: Sequence[torch.Tensor]) -> torch.Tensor:
    """`[SKETCH]` a random projection: every number with a sign of its own into one of the places, round and round."""
    result, start = torch.zeros(SKETCH), 0
    for part, sign in zip(gradient, signs, strict=True):
        signed = torch.nn.functional.pad((part.cpu() * sign).flatten().float(), (start, 0))
        start = len(signed) % SKETCH
        result += torch.nn.functional.pad(signed, (0, -len(signed) % SKETCH)).view(-1, SKETCH).sum(0)
    return result


def noise_of(gradient_G: np.ndarray) -> Noise:
    """Signal and noise of groups' gradients, `[groups, size]`."""
    products = gradient_G @ gradient_G.T
    size = len(products)
    squares = np.diagonal(products)
    crossed = products.sum() - squares.sum()
    signal = crossed / (size * (size - 1))
    without = (crossed - 2 * (products.sum(1) - squares)) / ((size - 1) * (size - 2))  # each group left out once
    error = np.sqrt((size - 1) / size * ((without - without.mean()) ** 2).sum())
    return Noise(float(signal), float(error), float(squares.mean() - signal))


def noise_table(found: Mapping[str, Noise], groups: int) -> list[tuple[str, ...]]:
    """A row a method: what share of one group's gradient is signal, and how many groups make as much signal as noise."""
    rows: list[tuple[str, ...]] = [
        ("method", "signal of one group", "groups for signal = noise", "95 %: at least", "in this run's step")
    ]
    for name, one in found.items():
        share, error = (value / (one.noise + one.signal) for value in (one.signal, one.error))
        needed = "not seen" if np.isinf(one.groups) else f"{one.groups:.1f}"
        ratio = "-" if np.isinf(one.groups) else f"{groups / one.groups:.2f}"
        rows.append((name, f"{share:.4f} +- {error:.4f}", needed, f"{one.least_groups:.1f}", ratio))
    return rows


def _play(policy: Policy, config: Config, groups: int, seed: int) -> list[Trajectory]:
    suite = make_suite(config.environment)
    engine, worlds = make_engine(config, policy), make_worlds(suite, config.environment)
    blocking(engine.update_weights())
    tasks = suite.tasks(config.environment.train_split)
    chosen = np.random.default_rng([seed, 5]).permutation(len(tasks))[:groups].tolist()
    played = play(engine, policy, suite, [tasks[number] for number in chosen], worlds, config, seed)
    blocking(worlds.aclose())
    return [trajectory for trajectory in played if trajectory.usable]
