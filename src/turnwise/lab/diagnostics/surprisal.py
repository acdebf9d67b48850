"""Run analysis A of AEM's paper: how well the coefficient alpha predicts the surprisal of a response.

The paper reports r = 0.63 between alpha - 1 and the relative surprisal, and the same sign in 55 of 64 states, with 64
responses per state. Alpha falls with surprisal, so alpha - 1 agrees with H - S, the opposite of the theorem's S - H.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError, RunError
from turnwise.config import Config
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.transforms import entropy_coefficient
from turnwise.engines.base import Engine, Generation, Sampling
from turnwise.engines.build import make_engine
from turnwise.lab.diagnostics.recredit import Recorded, read_recorded, recorded_steps, same_sign
from turnwise.rollout.collectors import make_sampling
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.checkpoint import checkpoint_at, checkpoints, load_checkpoint
from turnwise.train.folder import RunFolder

PAPER = {"correlation": "0.63", "same sign": "55 of 64"}
AT_ONCE = 1024
"""Largest number of parallel conversations in the engine."""


@dataclasses.dataclass(frozen=True)
class SurprisalOfStates:
    """Hold one recorded response per state, with statistics of fresh responses in the same state.

    Attributes:
        alpha_R: AEM's coefficient of the recorded response, at temperature 1 in its group.
        surprisal_R: Surprisal S = -log pi(response) of the recorded response (nats).
        entropy_R: Mean surprisal of the fresh responses, the Monte-Carlo estimate of the response entropy H (nats).
        length_R: Number of tokens of the recorded response.
        rate_R: Surprisal per token of the recorded response (nats).
        rate_entropy_R: Mean surprisal per token of the fresh responses (nats).
        step: Step of the rollouts.
        responses: Number of fresh responses per state.
    """

    alpha_R: np.ndarray
    surprisal_R: np.ndarray
    entropy_R: np.ndarray
    length_R: np.ndarray
    rate_R: np.ndarray
    rate_entropy_R: np.ndarray
    step: int
    responses: int

    @property
    def relative_R(self) -> np.ndarray:
        """`H - S`; above 0, the response was less surprising than average in its state."""
        return self.entropy_R - self.surprisal_R

    @property
    def relative_rate_R(self) -> np.ndarray:
        """`H - S` per token, which long responses do not dominate."""
        return self.rate_entropy_R - self.rate_R

    def measures(self, *, draws: int = 2000, seed: int = 0) -> list[tuple[str, float, float, float]]:
        """Compute measures of agreement: name, value, and a 95 % bootstrap interval over states."""
        excess, total, rate = self.alpha_R - 1.0, self.relative_R, self.relative_rate_R
        named = {
            "correlation": lambda i: correlation(excess[i], total[i]),
            "same sign": lambda i: same_sign(excess[i], total[i]),
            "partial correlation given length": lambda i: partial(excess[i], total[i], self.length_R[i]),
            "correlation, per token": lambda i: correlation(excess[i], rate[i]),
            "same sign, per token": lambda i: same_sign(excess[i], rate[i]),
        }
        everything = np.arange(len(excess))
        generator = np.random.default_rng(seed)
        resampled = generator.integers(len(excess), size=(draws, len(excess)))
        result = []
        for name, measure in named.items():
            low, high = np.nanquantile([measure(row) for row in resampled], [0.025, 0.975])
            result.append((name, measure(everything), float(low), float(high)))
        return result


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Pearson's correlation; NaN if either is constant."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else np.nan


def partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Compute the partial correlation of `x` and `y` given `given`."""
    design = np.stack([np.ones(len(x)), given.astype(np.float64)], axis=1)
    rest = [column - design @ np.linalg.lstsq(design, column, rcond=None)[0] for column in (x, y)]
    scale = [np.abs(column).max(initial=0.0) for column in (x, y)]
    if any(np.abs(part).max(initial=0.0) <= 1e-12 * max(1.0, size) for part, size in zip(rest, scale, strict=True)):
        return np.nan
    return correlation(rest[0], rest[1])


def measure_surprisal(
    folder: RunFolder,
    config: Config,
    *,
    states: int = 64,
    responses: int = 64,
    step: int | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    on_response: Callable[[int, int], None] = lambda done, total: None,
) -> SurprisalOfStates:
    """Compare AEM's coefficients of recorded responses with the surprisal of fresh responses in their states.

    Args:
        folder: Folder of the run.
        config: Configuration of the run.
        states: Number of recorded responses, drawn from those whose coefficient is not fixed at 1.
        responses: Number of fresh responses per state.
        step: Step of the rollouts; default: the last that follows a kept checkpoint.
        seed: Seed of the choice and of the fresh responses.
        device: Device of the policy; default: the CPU.
        on_response: Called with the number of fresh responses generated and of all.

    Raises:
        ConfigError: There are too few states.
        RunError: No recorded step has the checkpoint before it, or no group's entropies differ enough for AEM to act.
    """
    if states < 3:
        raise ConfigError(f"states={states}: expected 3 or more, since correlations are over states")
    step = _step(folder, step)
    recorded = read_recorded(folder, step, invalid_penalty=config.environment.invalid_penalty)
    if recorded is None:
        raise RunError(f"step {step} of {folder.path} learned nothing; choose another with --step")
    alpha_R, open_R = _coefficients(recorded)
    candidates = np.flatnonzero(open_R)
    if len(candidates) < 3:
        raise RunError(
            f"in step {step} of {folder.path} entropies differ by 0.1 nats or more in the groups of {len(candidates)} "
            "responses, expected 3 or more; every other coefficient is 1. Choose another with --step"
        )
    chosen = np.sort(np.random.default_rng(seed).permutation(candidates)[:states])
    prompts = _prompts(read_rollouts(folder.rollouts / f"step-{step:06d}.parquet")[0], recorded.row_R[chosen])
    _, policy, _ = load_checkpoint(checkpoint_at(folder, step - 1), to_play=True)
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    engine = make_engine(config.engine, config.model.precision, policy)
    blocking(engine.update_weights())
    asked = [prompt for prompt, _ in prompts for _ in range(responses)]
    fresh = blocking(_continue(engine, asked, make_sampling(config.rollout, policy, seed=seed), on_response))
    surprisal = -np.array([sum(generation.logprobs) for generation in fresh]).reshape(len(chosen), responses)
    length = np.array([len(generation.token_ids) for generation in fresh]).reshape(len(chosen), responses)
    own, own_length = -np.array([sum(each) for _, each in prompts]), np.array([len(each) for _, each in prompts])
    return SurprisalOfStates(
        alpha_R[chosen],
        own,
        surprisal.mean(axis=1),
        own_length,
        own / own_length,
        (surprisal / length).mean(axis=1),
        step,
        responses,
    )


def _step(folder: RunFolder, step: int | None) -> int:
    """Choose a recorded step whose policy, the checkpoint of the step before, exists."""
    policies = {int(path.name.removeprefix("step-")) for path in checkpoints(folder)}
    possible = sorted(policies & {recorded - 1 for recorded in recorded_steps(folder)})
    if not possible or (step is not None and step - 1 not in possible):
        known = ", ".join(str(before + 1) for before in possible) or "none"
        raise RunError(
            f"the analysis needs rollouts of a step and the checkpoint before it; in {folder.path} these steps have "
            f"both: {known}. Train with checkpoint.every=1 checkpoint.keep=1000 to keep all"
        )
    return possible[-1] + 1 if step is None else step


def _coefficients(recorded: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Compute AEM's published coefficients, and where they can differ from 1."""
    batch: Batch = recorded.batch
    alpha_R = entropy_coefficient(batch)
    group = batch.group_responses
    return alpha_R, group.broadcast(group.max(alpha_R) > group.min(alpha_R))


def _prompts(trajectories: Sequence[Trajectory], rows: np.ndarray) -> list[tuple[list[int], list[float]]]:
    """Return the prompts of the responses in these rows of the file, and the log-probabilities of their tokens."""
    segments = Segments.from_lengths([max(1, len(trajectory.turns)) for trajectory in trajectories])
    result = []
    for row in rows.tolist():
        number = int(segments.ids[row])
        context: list[int] = []
        place = row - int(segments.offsets[number])
        for index, turn in enumerate(trajectories[number].turns[: place + 1]):
            context = [] if turn.fresh and index else context
            context += turn.prompt_ids
            if index < place:
                context += turn.response_ids
        result.append((context, trajectories[number].turns[place].behavior_logprobs))
    return result


async def _continue(
    engine: Engine, prompts: Sequence[list[int]], sampling: Sampling, on_response: Callable[[int, int], None]
) -> list[Generation]:
    """Generate a response to each prompt, in parts."""
    result: list[Generation] = []
    ended = itertools.count(1)

    async def respond(number: int) -> Generation:
        generation = await engine.generate(number, prompts[number], sampling)
        on_response(next(ended), len(prompts))
        return generation

    for numbers in _parts(len(prompts), AT_ONCE):
        result += await asyncio.gather(*(respond(number) for number in numbers))
        engine.close(list(numbers))
    await engine.aclose()
    return result


def _parts(total: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, total)) for start in range(0, total, size))


def surprisal_table(found: SurprisalOfStates) -> list[tuple[str, ...]]:
    """Tabulate the measures next to the paper's."""
    n = len(found.alpha_R)
    lines: list[tuple[str, ...]] = [("alpha - 1 against H - S", "this run", "95 % over states", "paper")]
    for name, value, low, high in found.measures():
        shown = f"{round(value * n)} of {n}" if name.startswith("same sign") else f"{value:.2f}"
        lines.append((name, shown, f"{low:.2f} to {high:.2f}", PAPER.get(name, "-")))
    return lines


def surprisal_figure(found: SurprisalOfStates) -> Figure:
    """Plot coefficients against relative surprisal, per response and per token, one dot per state."""
    made = Figure(figsize=(9.6, 4.2), layout="constrained")
    excess = found.alpha_R - 1
    panels = {"of the response": found.relative_R, "per token": found.relative_rate_R}
    for axes, (what, relative) in zip(made.subplots(1, 2, sharey=True), panels.items(), strict=True):
        axes.axhline(0, color="#999999", linewidth=1)
        axes.axvline(0, color="#999999", linewidth=1)
        dots = axes.scatter(relative, excess, c=found.length_R, cmap="viridis", s=18)
        same = round(same_sign(excess, relative) * len(excess))
        axes.set(
            xlabel=f"H - S {what} (nats), Monte Carlo",
            title=f"r = {correlation(excess, relative):.2f}, same sign {same} of {len(excess)}",
        )
    made.axes[0].set_ylabel("alpha - 1")
    ticks = MaxNLocator(integer=True)
    made.colorbar(dots, ax=made.axes, label="tokens", ticks=ticks)  # pyright: ignore[reportPossiblyUnboundVariable]
    made.suptitle(f"step {found.step} (paper: r = {PAPER['correlation']}, same sign {PAPER['same sign']})", fontsize=10)
    return made
