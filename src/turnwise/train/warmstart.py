"""Warm-start a policy by supervised learning on expert demonstrations of the training tasks."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from turnwise.cache import cache_folder, check_writable, made_aside
from turnwise.checksums import check_manifest, write_manifest
from turnwise.config import Config, ModelConfig, WarmStartConfig
from turnwise.environments.base import Demonstrated, Task
from turnwise.environments.suites import Suite, TeachingSuite
from turnwise.errors import ConfigError, DataError, RunError
from turnwise.models.policy import Policy, autocast, choose_trainable, load_policy, trainable, trainable_norms
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.tiny import tiny_policy
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import chunked_logprobs
from turnwise.rollout.blocking import blocking
from turnwise.rollout.context import make_context
from turnwise.rollout.environments import Environments, InProcessEnvironments
from turnwise.rollout.stores.build import texts_of
from turnwise.streams import Stream

FORMAT_VERSION = 2
"""Part of the cache key. Increase it when the same demonstrations give other weights."""

Progress = Callable[[int, int, float], None]
Demonstration = tuple[np.ndarray, np.ndarray]
"""Token ids and loss weights, `[tokens]` each."""


@dataclasses.dataclass(frozen=True)
class Teaching:
    """Configure how demonstrations are made and imitated.

    Attributes:
        settings: Section `[warmstart]` of the recipe.
        model: Section `[model]` of the recipe.
        split: Split of the demonstrated tasks.
        seed: Seed of the run.
        window: Number of earlier turns that a prompt repeats; None: the whole conversation.
        max_tokens: Padded tokens per micro-batch.
    """

    settings: WarmStartConfig
    model: ModelConfig
    split: str
    seed: int
    window: int | None
    max_tokens: int

    @classmethod
    def of(cls, config: Config) -> "Teaching":
        """Take the settings from a configuration."""
        return cls(
            config.warmstart,
            config.model,
            config.environment.train_split,
            config.run.seed,
            config.rollout.remembered,
            config.update.max_tokens,
        )


def warm_policy(
    config: Config,
    suite: Suite,
    *,
    device: torch.device | None = None,
    on_demonstration: Callable[[int, int], None] | None = None,
    on_step: Progress | None = None,
) -> tuple[Policy, bool]:
    """Make the policy that reinforcement learning starts from.

    `on_demonstration(done, total)` and `on_step(done, total, loss)` report progress.

    Returns:
        The policy, and whether it came from the cache.

    Raises:
        ConfigError: The environment has no words or no expert.
    """
    teaching = cast(TeachingSuite, suite)
    tiny = config.model.name == "tiny"
    for needed in ["words"] * tiny + ["demonstrate"] * bool(config.warmstart.steps):
        if not hasattr(suite, needed):
            raise ConfigError(
                f"environment {config.environment.name!r} has no {needed}(); see TeachingSuite in "
                "turnwise.environments.suites"
            )
    if tiny:
        texts = texts_of(config.store)
        policy = tiny_policy(teaching.words(), config.model, seed=config.run.seed, plan=config.prompt.plan, texts=texts)
    else:
        policy = pretrained_policy(config.model, config.prompt, seed=config.run.seed)
    choose_trainable(policy.model, config.model)
    if config.update.only_norms:
        trainable_norms(policy.model)  # raises before the warm start, which takes long
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    if not config.warmstart.steps:
        return policy, False
    how = Teaching.of(config)
    demos = demonstrations(how, policy, teaching, on_demonstration=on_demonstration)
    cached = cache_folder() / "warmstart" / _key(how, policy, demos)
    if (cached / "config.json").exists():
        try:
            check_manifest(cached)
            policy = load_policy(cached)
            choose_trainable(policy.model, config.model)
            policy.model.to(device)  # pyright: ignore[reportArgumentType]
            return policy, True
        except DataError as error:
            raise DataError(f"{error}. Delete this cache folder; it will be made again") from error
    check_writable(cached.parent, mend="; set TURNWISE_CACHE to a folder for what is kept")
    imitate(policy, demos, how, on_step=on_step)
    with made_aside(cached) as folder:
        policy.save(folder)
        write_manifest(folder)
    return policy, False


def _key(how: Teaching, policy: Policy, demos: Sequence[Demonstration]) -> str:
    """Hash everything that the weights depend on: words, demonstrations, and settings."""
    parts: dict[str, Any] = {
        "model": how.model.model_dump(mode="json"),
        "warmstart": how.settings.model_dump(mode="json"),
    }
    parts["weights"] = [float(weight.detach().double().sum()) for weight in policy.model.parameters()]
    parts |= {"seed": how.seed, "words": policy.tokenizer.get_vocab(), "version": FORMAT_VERSION}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for ids, weights in demos:
        key.update(ids.tobytes() + weights.tobytes())
    return key.hexdigest()[:16]


def demonstrations(
    how: Teaching,
    policy: Policy,
    suite: TeachingSuite,
    *,
    on_demonstration: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """Make token sequences with loss weights: 1 on imitated responses, less on observations.

    As in a rollout, there is one sequence per task, or with `rollout.context = "window"` one per response.
    """
    return blocking(_demonstrations(how, policy, suite, on_demonstration or (lambda done, total: None)))


async def _demonstrations(
    how: Teaching, policy: Policy, suite: TeachingSuite, on_demonstration: Callable[[int, int], None]
) -> list[Demonstration]:
    settings = how.settings
    environments = InProcessEnvironments(suite.environment)
    tasks = suite.tasks(how.split)
    chosen = np.random.default_rng([how.seed, Stream.WARM_START_TASKS]).permutation(len(tasks))[: settings.games]
    chosen = np.tile(chosen, settings.rounds)
    result: list[Demonstration] = []
    for number, index in enumerate(chosen.tolist()):
        task = tasks[index]
        turns = suite.demonstrate(task, noise=settings.noise, seed=how.seed * 1_000_003 + number)
        on_demonstration(number + 1, len(chosen))
        if turns:
            played = await _played(how, policy, environments, task, turns)
            result += played if all(len(ids) <= policy.max_context for ids, _ in played) else []
    if not result:
        raise ConfigError(
            f"no demonstration of {len(chosen)} games fits into model.max_context={policy.max_context} tokens"
        )
    return result


async def _played(
    how: Teaching, policy: Policy, environments: Environments, task: Task, turns: Sequence[Demonstrated]
) -> list[Demonstration]:
    """Build the sequences of a demonstration, without the observation after the last response.

    Raises:
        ConfigError: The policy plans, and a turn has no subgoal.
    """
    fmt, settings = policy.format, how.settings
    if fmt.plan and not all(turn.subgoal for turn in turns):
        raise ConfigError(
            "prompt.plan needs demonstrations with a subgoal per turn, which the environment does not give; return "
            "Demonstrated(response, imitate, subgoal) from its demonstrate(), or set warmstart.steps=0"
        )
    context = make_context(fmt, 0, window=how.window, stride=1)
    sequences: list[tuple[list[int], list[float]]] = []
    for number, turn in enumerate(turns):
        step = await environments.step(0, turns[number - 1].response) if number else await environments.start(0, task)
        switch = not number or turn.subgoal != turns[number - 1].subgoal
        prompt = context.observe(step)
        response = fmt.response_ids(turn.response, subgoal=turn.subgoal, switch=switch)
        context.respond(response)
        if context.fresh:
            sequences.append(([], []))
        ids, weights = sequences[-1]
        ids += prompt + response
        weights += [settings.observation_weight] * len(prompt)
        weights += [float(turn.imitate or settings.imitate_noise)] * len(response)
    environments.close(0)
    return [(np.array(ids), np.array(weights, dtype=np.float32)) for ids, weights in sequences]


def imitate(
    policy: Policy,
    demos: Sequence[Demonstration],
    how: Teaching,
    *,
    on_step: Progress | None = None,
) -> None:
    """Train on demonstrations by weighted next-token cross-entropy.

    Raises:
        RunError: The loss or its gradient is not finite, or one demonstration exhausts memory.
    """
    settings, model = how.settings, policy.model
    budget = Budget(how.max_tokens)
    generator = np.random.default_rng([how.seed, Stream.WARM_START_BATCHES])
    optimizer = torch.optim.AdamW(trainable(model), lr=settings.learning_rate, weight_decay=0.01)
    model.train()
    for step, batch in enumerate(_by_length_batches(demos, settings.batch_size, settings.steps, generator)):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step / settings.steps)
        chosen = [demos[i] for i in batch]

        def accumulate(max_tokens: int, chosen: list[Demonstration] = chosen) -> float:
            """Compute the gradient of a batch and return the loss."""
            optimizer.zero_grad()
            total_weight, total_loss = sum(float(weights[1:].sum()) for _, weights in chosen), 0.0
            for part in _micro_batches(chosen, max_tokens):
                with autocast(model, how.model):
                    loss = _cross_entropy(model, part) / total_weight
                loss.backward()
                total_loss += loss.item()
            return total_loss

        loss = budget.spend(accumulate, shortest=min(len(ids) for ids, _ in chosen))
        norm = torch.nn.utils.clip_grad_norm_(trainable(model), 1.0)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(
                f"the warm start diverged after {step} of {settings.steps} updates; lower "
                f"warmstart.learning_rate={settings.learning_rate:g}"
            )
        optimizer.step()
        if on_step:
            on_step(step + 1, settings.steps, loss)
    optimizer.zero_grad()
    model.eval()


def _micro_batches(demos: Sequence[Demonstration], max_tokens: int) -> Iterator[list[Demonstration]]:
    """Split a batch into parts of at most `max_tokens` padded tokens, or one demonstration."""
    waiting = sorted(demos, key=lambda demo: -len(demo[0]))
    while waiting:
        count = max(1, max_tokens // len(waiting[0][0]))
        yield waiting[:count]
        waiting = waiting[count:]


def _cross_entropy(model: PreTrainedModel, demos: Sequence[Demonstration]) -> torch.Tensor:
    """Return the weighted sum of `-log p(token | earlier tokens)`."""
    ids = pad_sequence([torch.from_numpy(ids) for ids, _ in demos], batch_first=True).to(model.device)
    weights = pad_sequence([torch.from_numpy(weights) for _, weights in demos], batch_first=True).to(model.device)
    # No mask, as in tokens.generated_logprobs, because padding is on the right.
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    counted = weights[:, 1:] > 0
    output_layer = model.get_output_embeddings()
    assert output_layer is not None
    logprob, _ = chunked_logprobs(hidden[counted], output_layer, ids[:, 1:][counted])
    return -(logprob * weights[:, 1:][counted]).sum()


def _by_length_batches(
    demos: Sequence[Demonstration], batch_size: int, steps: int, generator: np.random.Generator
) -> list[list[int]]:
    """Batch demonstrations of similar length, reshuffled every epoch."""
    batches: list[list[int]] = []
    lengths = np.array([len(ids) for ids, _ in demos])
    while len(batches) < steps:
        order = np.argsort(lengths + generator.uniform(0, 0.2 * lengths.mean(), len(demos)), kind="stable")
        epoch = [order[start : start + batch_size].tolist() for start in range(0, len(demos), batch_size)]
        generator.shuffle(epoch)
        batches += epoch
    return batches[:steps]


def _schedule(progress: float) -> float:
    return progress / 0.05 if progress < 0.05 else 0.5 * (1 + math.cos(math.pi * (progress - 0.05) / 0.95))
