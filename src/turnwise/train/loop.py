"""Run the training loop: play, measure, assign credit, update, repeat."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from turnwise.base.errors import RunError
from turnwise.base.stopping import Stop, Stopped, stoppable
from turnwise.config import Config
from turnwise.credit.metrics import credit_metrics
from turnwise.credit.trace import Trace
from turnwise.models.adapters import roles_of
from turnwise.rollout.experience import Experience
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.record import write_rollouts
from turnwise.train.clock import Clock
from turnwise.train.display import Display
from turnwise.train.diverged import kept_for_inspection, refuse_diverged
from turnwise.train.folder import RunFolder
from turnwise.train.held_out import evaluate_held_out
from turnwise.train.prepare import prepare
from turnwise.train.roles import by_role
from turnwise.train.run import Run
from turnwise.train.update import Measured

MAX_EMPTY_STEPS = 10
"""Consecutive steps without a usable trajectory after which a run stops."""


def train(
    config: Config, *, resume: Path | None = None, display: Display | None = None, stop: Stop | None = None
) -> RunFolder:
    """Train a policy and return the run folder.

    Args:
        config: Configuration of the run; with `resume`, that of the resumed run.
        resume: Folder of a run to resume from its last checkpoint.
        display: Display that shows progress.
        stop: Signals that end the run early, with a checkpoint of its last completed step; default: Ctrl-C, SIGTERM
            and SIGHUP, if this is the main thread.

    Raises:
        TurnwiseError: The run cannot start as configured. Nothing that exists was changed.
        Stopped: A signal ended the run. Resuming continues it as if there had been none.
    """
    with ExitStack() as held:
        stop = stop or held.enter_context(stoppable())
        run = prepare(config, resume=resume, display=display or Display(), stop=stop, held=held)
        if resume and run.step == config.run.steps:
            run.display.note(f"{run.folder.path} has done all its {run.step} steps; run.steps=N trains on to step N")
        try:
            with stop.deferred():
                while run.step < config.run.steps:
                    take_step(run)
        except Stopped:
            run.save_at_signal()
            raise
        run.folder.close_trackers()
        run.folder.check_evaluated(run.step, run.unevaluated)
        run.display.finish(run.folder, config.label)
    return run.folder


def take_step(run: Run) -> None:
    """Play and learn for one step, and record both; evaluate and save when due."""
    step, clock = run.step + 1, Clock(run.device)
    run.stop.why_late = f"step {step} ends first, then its checkpoint is saved; a second signal ends the run at once"
    columns: dict[str, np.ndarray] = {}
    with run.stop.open():
        with clock("rollout"):
            experience = run.source.next(run.collector, run.models, step, run.display.turn)
        refuse_diverged(run.folder, step, [each.failure for each in experience.trajectories])
        metrics = {f"rollout/{name}": value for name, value in experience.metrics.items()}
        if experience.used:
            learned_from, order = by_role(experience, roles_of(run.models.policy.policy.model))
            with clock("measure"):
                measured = run.measure(learned_from.used, learned_from.tasks)
            with clock("credit"):
                credit = run.method.update(measured.batch)
            with clock("update"), kept_for_inspection(run.folder, step, learned_from, run.models.weights):
                learned = _update(run, measured, credit, step)
            metrics |= _learned_metrics(measured, credit, learned, run.learner.budget.halvings)
            columns = {name: measured.batch.columns[name] for name in run.measures.recorded} | credit.columns
            columns = {name: values[order] for name, values in columns.items()}
    with clock("weights"):
        run.models.publish(step)  # even without an update, since a resumed run has the version of its checkpoint
    write_rollouts(run.folder.table("rollouts", step), experience.trajectories, experience.recorded(columns))
    _finish_step(run, step, experience, metrics | clock.metrics)


def _update(run: Run, measured: Measured, credit: Trace, step: int) -> dict[str, float]:
    policy, learner = run.models.policy, run.learner
    metrics = learner.update(
        policy.policy.model, policy.optimizer, measured, credit, step, before_change=run.last_step.before_change
    )
    for each in run.extensions:
        metrics |= each.update(measured, learner, step)
    return metrics


def _learned_metrics(measured: Measured, credit: Trace, learned: dict[str, float], halvings: int) -> dict[str, float]:
    metrics = {f"credit/{name}": value for name, value in credit_metrics(measured.batch, credit).items()}
    metrics |= {
        f"time/measure_{name}" if name.endswith("_s") else f"measure/{name}": value
        for name, value in measured.metrics.items()
    }
    metrics |= {f"update/{name}": value for name, value in learned.items()}
    return metrics | {"update/memory_halvings": float(halvings)}


def _finish_step(run: Run, step: int, experience: Experience, metrics: dict[str, float]) -> None:
    """Log the step; evaluate and save when due.

    Raises:
        RunError: Too many consecutive steps gave no usable trajectory.
    """
    config = run.config
    run.folder.log({"step": step, **metrics})
    if config.log.traces:
        run.folder.show(step, experience.trajectories)
    run.display.step(step, config.run.steps, metrics)
    run.complete(step)
    run.empty_steps = 0 if experience.usable else run.empty_steps + 1
    last = step == config.run.steps
    vain = last and bool(run.empty_steps) and run.folder.only_failures()
    stuck = run.empty_steps == MAX_EMPTY_STEPS or vain
    if not stuck and run.evaluation_is_due:
        evaluate_held_out(run)
    if not vain and (last or stuck or step % config.checkpoint.every == 0):  # else a resumed run would be at its end
        run.save()
    if stuck:
        cause = placed_failure(experience.trajectories[-1]) or (
            f"model.max_context={run.models.policy.policy.max_context} has no room for the first observation and a "
            f"response of rollout.max_new_tokens={config.rollout.max_new_tokens}"
        )
        raise RunError(
            f"no usable trajectory in {run.empty_steps} consecutive steps; the last one failed with: {cause}. Fix "
            f"this, then resume with `{run.folder.resuming}`"
        )
