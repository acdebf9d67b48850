"""From a configuration, or from the folder of a run to go on with, to a training that is ready for its next step."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from turnwise.cache import check_writable
from turnwise.config import Config
from turnwise.environments.base import Task
from turnwise.environments.suites import Suite, make_suite
from turnwise.errors import ConfigError, RunError
from turnwise.policy import Policy, choose_trainable, freeze_but_norms, trainable
from turnwise.rollout.collect import blocking
from turnwise.rollout.engines import check_engine, make_engine
from turnwise.rollout.workers import make_worlds
from turnwise.train.checkpoint import checkpoint_at, checkpoints, latest_checkpoint, load_checkpoint, remove_old
from turnwise.train.credit import make_credit
from turnwise.train.display import Display
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.gradient import Budget
from turnwise.train.selection import build_selector
from turnwise.train.trackers import check_trackers, open_trackers
from turnwise.train.training import Training
from turnwise.train.warmstart import warm_policy


def prepare(config: Config, *, resume: Path | None, display: Display, held: ExitStack) -> Training:
    """Make all parts of a run; what a user may have got wrong is found before the minutes of a warm start.

    A new run gets its folder, its first checkpoint and its first evaluation; `held` keeps other trainings out of the folder.

    Raises:
        TurnwiseError: The run cannot be done as asked; nothing that exists was changed.
    """
    check_engine(config)
    if config.engine.name == "server" and config.update.scoring == "engine":
        raise ConfigError("update.scoring='engine' needs an engine that measures entropies, which engine.name='server' does not: "
                          "add update.scoring=trainer")  # fmt: skip
    check_trackers(config)
    if resume is None:
        RunFolder.refuse_existing(config.run_folder)
        check_writable(config.run_folder.parent)
    device = use_device(config)
    suite = make_suite(config.environment)
    tasks = _tasks(suite, config, config.environment.train_split)
    _tasks(suite, config, config.environment.eval_split)  # missing data should fail before the training, not after it
    credit = make_credit(config)
    select = config.rollout.select
    selector = build_selector(select.name, select.model_extra or {}, num_tasks=len(tasks), seed=config.run.seed)

    if resume is None:
        step, policy, state = _warm_start(config, suite, device, display)
        folder = held.enter_context(RunFolder.create(config).locked())
    else:
        folder = held.enter_context(RunFolder(resume).locked())
        _refuse_what_would_lose(folder, config)
        step, policy, state = _last_state(folder, config) or _warm_start(config, suite, device, display)
        folder.set_config(config)
    if config.update.only_norms:
        freeze_but_norms(policy.model)
    folder.trackers = open_trackers(config, folder.path, start=step)
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
    training = Training(
        config=config,
        folder=folder,
        display=display,
        device=device,
        suite=suite,
        tasks=tasks,
        worlds=make_worlds(suite, config.environment),
        policy=policy,
        engine=make_engine(config, policy),
        optimizer=optimizer,
        budget=Budget(config.update.max_tokens),
        credit=credit,
        selector=selector,
        step=step,
        method_state=state.get("method", credit.init() if credit.init else None),
        objective_state=state.get("objective"),
    )
    blocking(training.engine.update_weights())
    if not checkpoints(folder):
        training.save()
    if not folder.metrics():  # a new run, or one that was killed during its first evaluation
        training.evaluate()
    if config.update.kl or "ref_logprob" in credit.needs:
        training.reference = _reference(folder, device)
    return training


def _refuse_what_would_lose(folder: RunFolder, config: Config) -> None:
    """Going on drops what was recorded after the last checkpoint; here is said when that would be a run's result."""
    if (done := max(by_step(folder.checkpoints), default=0)) > config.run.steps:
        raise RunError(
            f"{folder.path} has done {done} steps, run.steps={config.run.steps} is less: nothing was changed"
        )
    recorded = {record["step"] for record in folder.metrics() if "rollout/success" in record}
    if recorded or by_step(folder.rollouts, ".parquet"):
        latest_checkpoint(folder)  # raises where there is none
    if lost := sorted(set(range(1, done + 1)) - recorded):
        raise RunError(f"{folder.metrics_path} lacks {len(lost)} of the {done} steps before the last checkpoint, {lost[0]} for one; put it back, or "
                       "start anew under another run.name. Nothing was changed")  # fmt: skip


def _warm_start(
    config: Config, suite: Suite, device: torch.device, display: Display
) -> tuple[int, Policy, dict[str, Any]]:
    policy, _ = warm_policy(
        config, suite, device=device, on_demonstration=display.demonstration, on_step=display.warm_start
    )
    return 0, policy, {}


def _last_state(folder: RunFolder, config: Config) -> tuple[int, Policy, dict[str, Any]] | None:
    """Step, policy and states of the last checkpoint, with the folder as it was then; None for a run that was killed before its first."""
    if not checkpoints(folder):
        return None
    step, policy, state = load_checkpoint(latest_checkpoint(folder))
    folder.rewind(step)
    remove_old(folder, keep=config.checkpoint.keep)
    choose_trainable(policy.model, config.model)
    return step, policy, state


def _reference(folder: RunFolder, device: torch.device) -> Any:
    """The policy after the warm start, for the KL term and for methods that compare with it."""
    model = load_checkpoint(checkpoint_at(folder, 0), to_play=True)[1].model
    return model.to(device).requires_grad_(False)  # pyright: ignore[reportArgumentType]


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
        cause = "expected auto, cpu, cuda or mps" if "Expected one of" in str(error) else str(error).splitlines()[0]
        raise ConfigError(f"run.device={name!r} cannot be used: {cause}") from None


def _tasks(suite: Suite, config: Config, split: str) -> Sequence[Task]:
    tasks = suite.tasks(split)
    if not len(tasks):
        raise ConfigError(f"split {split!r} of environment {config.environment.name!r} has no tasks")
    return tasks
