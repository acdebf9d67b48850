"""The main path: collect, score, credit, update, again. Everything else in turnwise serves these lines."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turnwise.config import Config
from turnwise.environments.base import Task
from turnwise.environments.suites import Suite, make_suite
from turnwise.errors import ConfigError, RunError
from turnwise.policy import Policy, choose_trainable, freeze_but_norms, trainable
from turnwise.rollout.collect import blocking
from turnwise.rollout.engine import Engine
from turnwise.rollout.engines import check_engine, make_engine
from turnwise.rollout.record import write_rollouts
from turnwise.rollout.workers import make_worlds
from turnwise.rollout.worlds import Worlds
from turnwise.train.checkpoint import (
    checkpoint_at,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    remove_old,
    save_checkpoint,
)
from turnwise.train.clock import Clock
from turnwise.train.columns import SCORED
from turnwise.train.credit import coefficients, make_credit
from turnwise.train.display import Display
from turnwise.train.evaluate import evaluate
from turnwise.train.experience import Experience, gather
from turnwise.train.folder import RunFolder
from turnwise.train.gradient import Budget, Diverged, some
from turnwise.train.outcomes import write_outcomes
from turnwise.train.selection import build_selector
from turnwise.train.step import credit_metrics, score_trajectories, update_policy
from turnwise.train.trackers import check_trackers, open_trackers
from turnwise.train.warmstart import warm_policy

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
        return _train(config, resume, display or Display(), held)


def _train(config: Config, resume: Path | None, display: Display, held: ExitStack) -> RunFolder:
    check_engine(config)
    check_trackers(config)
    if resume is None:
        RunFolder.refuse_existing(config.run_folder)  # before minutes of warm start, not after
    device = use_device(config)
    suite = make_suite(config.environment)
    tasks = _tasks(suite, config, config.environment.train_split)
    _tasks(suite, config, config.environment.eval_split)  # missing data should fail before the training, not after it
    credit = make_credit(config)
    select = config.rollout.select
    selector = build_selector(select.name, select.model_extra or {}, num_tasks=len(tasks), seed=config.run.seed)

    folder = None
    if resume is not None:
        folder = held.enter_context(RunFolder(resume).locked())
    if folder is not None and checkpoints(folder):
        start, policy, state = load_checkpoint(latest_checkpoint(folder))
        folder.rewind(start)
        remove_old(folder, keep=config.checkpoint.keep)
        choose_trainable(policy.model, config.model)
    else:  # a new run, or one that was killed before its first checkpoint
        policy, _ = warm_policy(
            config, suite, device=device, on_demonstration=display.demonstration, on_step=display.warm_start
        )
        folder = folder or held.enter_context(RunFolder.create(config).locked())
        start, state = 0, {}
    if config.update.only_norms:
        freeze_but_norms(policy.model)
    folder.trackers = open_trackers(config, folder.path, start=start)
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(
        trainable(policy.model),
        lr=config.update.learning_rate,
        weight_decay=config.update.weight_decay,
        fused=device.type == "cuda",
    )
    if state:
        optimizer.load_state_dict(state["optimizer"])
        selector.state = state["selector"]
    method_state = state.get("method", credit.init() if credit.init else None)
    objective_state = state.get("objective")
    engine, worlds = make_engine(config, policy), make_worlds(suite, config.environment)
    blocking(engine.update_weights())
    if not checkpoints(folder):
        states = {"method": method_state, "selector": selector.state, "objective": objective_state}
        save_checkpoint(folder, 0, policy, optimizer, states, keep=config.checkpoint.keep)
    if not folder.metrics():  # a new run, or one that was killed during its first evaluation
        _evaluate(folder, policy, engine, suite, worlds, config, 0, display)
    reference = _reference(folder, device) if config.update.kl or "ref_logprob" in credit.needs else None

    budget = Budget(config.update.max_tokens)
    empty_steps = 0
    for step in range(start + 1, config.run.steps + 1):
        clock = Clock(device)
        with clock("rollout"):
            experience = gather(
                engine, policy, suite, tasks, selector, config, step=step, worlds=worlds, on_turn=display.turn
            )
        metrics = {f"rollout/{name}": value for name, value in experience.metrics.items()}
        if experience.used:
            with clock("score"):
                scored = score_trajectories(policy.model, experience.used, config, reference=reference, budget=budget)
            with clock("credit"):
                advantage_R, method_state = credit.update(scored.batch.reward_R, method_state, scored.batch)
                alpha_R = coefficients(scored.batch, config)
            with clock("update"), _kept_for_inspection(folder, step, experience):
                updated, objective_state = update_policy(
                    policy.model,
                    optimizer,
                    scored,
                    advantage_R,
                    config,
                    step=step,
                    state=objective_state,
                    budget=budget,
                )
            with clock("weights"):
                blocking(engine.update_weights())
            metrics |= {f"credit/{name}": value for name, value in credit_metrics(scored, advantage_R, alpha_R).items()}
            metrics |= {f"update/{name}": value for name, value in updated.items()}
            metrics["update/memory_halvings"] = float(budget.halvings)
            credit_columns = {name: scored.batch.columns[name] for name in SCORED if name in scored.batch.columns}
            credit_columns |= {"alpha": alpha_R, "advantage": advantage_R}
        else:
            credit_columns = {}
        write_rollouts(
            folder.rollouts / f"step-{step:06d}.parquet", experience.trajectories, experience.recorded(credit_columns)
        )
        metrics |= clock.metrics
        folder.log({"step": step, **metrics})
        display.step(step, config.run.steps, metrics)
        empty_steps = 0 if experience.usable else empty_steps + 1
        last, stuck = step == config.run.steps, empty_steps == MAX_EMPTY_STEPS
        if not stuck and (last or (config.evaluate.every and step % config.evaluate.every == 0)):
            _evaluate(folder, policy, engine, suite, worlds, config, step, display)
        if last or stuck or step % config.checkpoint.every == 0:
            states = {"method": method_state, "selector": selector.state, "objective": objective_state}
            save_checkpoint(folder, step, policy, optimizer, states, keep=config.checkpoint.keep)
        if stuck:
            cause = experience.trajectories[-1].failure or (
                f"model.max_context={policy.max_context} has no room for the first observation and a response of "
                f"rollout.max_new_tokens={config.rollout.max_new_tokens}"
            )
            raise RunError(
                f"no usable trajectory in {empty_steps} steps in a row; the last one failed with: {cause}. When that is mended, "
                f"go on with `turnwise train --resume {folder.path}`"
            )
    blocking(worlds.aclose())  # what an error leaves open closes with the last reference to it
    for tracker in folder.trackers:
        tracker.close()
    display.finish(folder, config)
    return folder


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


def use_device(config: Config) -> torch.device:
    """Set torch up as the configuration asks and return the device to use."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    name = config.run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise ConfigError(f"run.device={name!r} cannot be used: {str(error).splitlines()[0]}") from None


def _tasks(suite: Suite, config: Config, split: str) -> Sequence[Task]:
    tasks = suite.tasks(split)
    if not len(tasks):
        raise ConfigError(f"split {split!r} of environment {config.environment.name!r} has no tasks")
    return tasks


def _evaluate(
    folder: RunFolder,
    policy: Policy,
    engine: Engine,
    suite: Suite,
    worlds: Worlds,
    config: Config,
    step: int,
    display: Display,
) -> None:
    settings = config.evaluate
    start = time.perf_counter()
    metrics, trajectories = evaluate(
        policy,
        engine,
        suite,
        split=config.environment.eval_split,
        episodes=settings.final_episodes if step in (0, config.run.steps) else settings.episodes,
        temperature=settings.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
        stop=config.rollout.stop,
        window=config.rollout.remembered,
        worlds=worlds,
        on_turn=display.turn,
    )
    write_outcomes(folder.evaluations / f"step-{step:06d}.parquet", trajectories)
    folder.log(
        {
            "step": step,
            **{f"eval/{name}": value for name, value in metrics.items()},
            "time/eval_s": time.perf_counter() - start,
        }
    )
    display.evaluation(step, metrics)


def _reference(folder: RunFolder, device: torch.device) -> Any:
    """The policy after the warm start, for the KL term and for methods that compare with it."""
    model = load_checkpoint(checkpoint_at(folder, 0))[1].model
    return model.to(device).requires_grad_(False)  # pyright: ignore[reportArgumentType]
