"""The main path: collect, score, credit, update, again. Everything else in turnwise serves these lines."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from turnwise.config import Config
from turnwise.errors import RunError
from turnwise.rollout.collect import blocking
from turnwise.rollout.record import write_rollouts
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.clock import Clock
from turnwise.train.columns import SCORED
from turnwise.train.credit import coefficients
from turnwise.train.display import Display
from turnwise.train.experience import Experience, gather
from turnwise.train.folder import RunFolder
from turnwise.train.gradient import Diverged, some
from turnwise.train.prepare import prepare
from turnwise.train.step import credit_metrics, score_trajectories, update_policy
from turnwise.train.training import Training

MAX_EMPTY_STEPS = 10
"""Steps in a row without one usable trajectory after which a run stops."""


def train(config: Config, *, resume: Path | None = None, display: Display | None = None) -> RunFolder:
    """Train a policy; returns the run's folder.

    Args:
        config: What to do; with `resume`, the configuration of that run.
        resume: The folder of a run to go on with, from its last checkpoint.
        display: Where to show progress.

    Raises:
        TurnwiseError: The run cannot be done as asked; nothing that exists was changed.
    """
    with ExitStack() as held:
        run = prepare(config, resume=resume, display=display or Display(), held=held)
        while run.step < config.run.steps:
            _take_step(run)
        run.close()
        run.display.finish(run.folder, config)
    return run.folder


def _take_step(run: Training) -> None:
    """Play, learn, and record both; evaluate and save when it is time."""
    config, step = run.config, run.step + 1
    clock = Clock(run.device)
    with clock("rollout"):
        experience = gather(
            run.engine, run.policy, run.suite, run.tasks, run.selector, config,
            step=step, worlds=run.worlds, on_turn=run.display.turn,
        )  # fmt: skip
    metrics = {f"rollout/{name}": value for name, value in experience.metrics.items()}
    credit_columns: dict[str, np.ndarray] = {}
    if experience.used:
        learned, credit_columns = _learn(run, step, experience, clock)
        metrics |= learned
    rollouts = run.folder.rollouts / f"step-{step:06d}.parquet"
    write_rollouts(rollouts, experience.trajectories, experience.recorded(credit_columns))
    metrics |= clock.metrics
    run.folder.log({"step": step, **metrics})
    run.display.step(step, config.run.steps, metrics)
    run.step = step

    run.empty_steps = 0 if experience.usable else run.empty_steps + 1
    last, stuck = step == config.run.steps, run.empty_steps == MAX_EMPTY_STEPS
    if not stuck and (last or (config.evaluate.every and step % config.evaluate.every == 0)):
        run.evaluate()
    if last or stuck or step % config.checkpoint.every == 0:
        run.save()
    if stuck:
        cause = experience.trajectories[-1].failure or (
            f"model.max_context={run.policy.max_context} has no room for the first observation and a response of "
            f"rollout.max_new_tokens={config.rollout.max_new_tokens}"
        )
        raise RunError(
            f"no usable trajectory in {run.empty_steps} steps in a row; the last one failed with: {cause}. When that is mended, "
            f"go on with `turnwise train --resume {run.folder.path}`"
        )


def _learn(
    run: Training, step: int, experience: Experience, clock: Clock
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Update the policy and the engine; returns metrics, and the credit of every response that was used, by column."""
    config, model = run.config, run.policy.model
    with clock("score"):
        scored = score_trajectories(model, experience.used, config, reference=run.reference, budget=run.budget)
    batch = scored.batch
    with clock("credit"):
        advantage_R, run.method_state = run.credit.update(batch.reward_R, run.method_state, batch)
        alpha_R = coefficients(batch, config)
    with clock("update"), _kept_for_inspection(run.folder, step, experience):
        updated, run.objective_state = update_policy(
            model, run.optimizer, scored, advantage_R, config, step=step, state=run.objective_state, budget=run.budget
        )
    run.optimizer.zero_grad()  # or the gradient would take its memory through the next rollout
    with clock("weights"):
        blocking(run.engine.update_weights())
    credited = credit_metrics(scored, advantage_R, alpha_R)
    metrics = {f"credit/{name}": value for name, value in credited.items()}
    metrics |= {f"update/{name}": value for name, value in updated.items()}
    metrics["update/memory_halvings"] = float(run.budget.halvings)
    columns = {name: batch.columns[name] for name in SCORED if name in batch.columns}
    return metrics, columns | {"alpha": alpha_R, "advantage": advantage_R}


@contextmanager
def _kept_for_inspection(folder: RunFolder, step: int, experience: Experience) -> Iterator[None]:
    """Keep the rollouts that give no finite gradient, and say which they are."""
    try:
        yield
    except Diverged as error:
        path = folder.rollouts / f"diverged-{step:06d}.parquet"
        write_rollouts(path, experience.trajectories, {})
        numbers = np.flatnonzero(experience.used_N)[error.trajectories].tolist()
        tasks = sorted({experience.trajectories[number].task for number in numbers})
        raise RunError(
            f"step {step}: the {'gradient' if error.finite else 'loss'} of trajectories {some(numbers)} (tasks {some(tasks)}) is not finite. They are kept "
            f"in {path}; the update was not made, and {latest_checkpoint(folder)} is good. Start anew with a lower update.learning_rate"
        ) from error  # fmt: skip
