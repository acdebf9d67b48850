"""Warm-start a policy by supervised learning on expert demonstrations of the training tasks, and on corrections."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from turnwise.base.cache import cache_folder, check_writable, made_aside
from turnwise.base.checksums import check_manifest, write_manifest
from turnwise.base.errors import ConfigError, DataError, RunError
from turnwise.base.register import CONVERSATIONS, find
from turnwise.base.streams import Stream
from turnwise.config import Config, ModelConfig
from turnwise.environments.suites import CorrectingSuite, Suite, TeachingSuite
from turnwise.models.adapters import begin_alike, roles_of, use_adapter
from turnwise.models.logits import logit_factor
from turnwise.models.policy import Policy, autocast, choose_trainable, load_policy, trainable, trainable_norms
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.remote import RemoteModel
from turnwise.models.settings import TINY, PromptConfig
from turnwise.models.tiny import tiny_policy
from turnwise.models.tiny_chat import tiny_chat_policy
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import chunked_logprobs
from turnwise.train.dagger import corrections
from turnwise.train.demonstrate import Demonstration, Teaching, demonstrations, of_conversations

FORMAT_VERSION = 2
"""Part of the cache key. Increase it when the same demonstrations would give different weights."""

Progress = Callable[[int, int, float], None]


def warm_policy(
    config: Config,
    suite: Suite,
    *,
    device: torch.device | None = None,
    texts: Sequence[str] = (),
    on_demonstration: Callable[[int, int], None] | None = None,
    on_step: Progress | None = None,
    on_turn: Callable[[int, int], None] | None = None,
) -> tuple[Policy, bool]:
    """Make the policy that reinforcement learning starts from; also returns whether it came from the cache.

    `texts` are what prompts contain in addition to the environment's texts. `on_demonstration(done, total)`,
    `on_step(done, total, loss)` and `on_turn(live, total)` report progress.

    Raises:
        ConfigError: The environment has no words or no expert.
    """
    recorded = config.warmstart.demonstrations and find(CONVERSATIONS["read"])(config.warmstart.demonstrations)
    if config.model.name == "tiny-chat" and not recorded:
        raise ConfigError("model.name='tiny-chat' has the vocabulary of warmstart.demonstrations; set it to a file")
    rounds, expert = config.warmstart.dagger_rounds, config.warmstart.steps and not recorded
    needed = {"words": config.model.name == "tiny", "demonstrate": expert, "correct": expert and rounds}
    for name in (name for name, asked in needed.items() if asked and not hasattr(suite, name)):
        other = {"words": "model.name=smollm2", "correct": "warmstart.dagger_rounds=0"}.get(name, "warmstart.steps=0")
        add = "add it (CorrectingSuite in turnwise.environments.suites)"
        if config.most_turns is None and name == "demonstrate":  # an agent's conversations can be recorded
            add = "set warmstart.demonstrations to a file of conversations"
        raise ConfigError(f"environment {config.environment.name!r} has no {name}(): {add}, or set {other}")
    teaching = cast(CorrectingSuite, suite)
    remote = config.engine.remote()
    policy = _new_policy(config.model, config.prompt, config.run.seed, teaching, recorded or [], texts, remote)
    if remote:
        remote.connect(config.engine, policy.max_context)
    choose_trainable(policy.model, config.model)
    if config.update.only_norms:
        trainable_norms(policy.model)  # raises before the warm start, which takes long
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    if not config.warmstart.steps:
        return policy, False
    how = Teaching.of(config)
    if recorded:
        demos = of_conversations(how, policy, recorded, on_demonstration=on_demonstration)
    else:
        demos = demonstrations(how, policy, teaching, on_demonstration=on_demonstration)
    if remote:  # the server may not be there when a cache is read
        return _on_server(policy, demos, how, teaching, on_demonstration, on_step, on_turn), False
    folders = [cache_folder() / "warmstart" / key for key in _keys(how, policy, demos)]
    if (kept := _cached(folders[-1], config.model, device)) is not None:
        return kept, True
    check_writable(folders[0].parent, mend="; set TURNWISE_CACHE to a folder for what is kept")
    for number, folder in enumerate(folders):
        if number:
            demos += corrections(how, policy, teaching, number, on_demonstration=on_demonstration, on_turn=on_turn)
        if (kept := _cached(folder, config.model, device)) is not None:
            policy = kept
            continue
        imitate(policy, demos, how, number=number, on_step=on_step)
        with made_aside(folder) as aside:
            policy.save(aside)
            write_manifest(aside)
    return policy, False


def _new_policy(
    model: ModelConfig,
    prompt: PromptConfig,
    seed: int,
    suite: TeachingSuite,
    recorded: Sequence[Any],
    texts: Sequence[str],
    remote: RemoteModel | None = None,
) -> Policy:
    """Make the policy that the warm start begins with.

    `texts` are what its store shows it; `remote` represents weights on a server.
    """
    if remote and model.name in TINY:
        stand_in: Any = remote
        return dataclasses.replace(_new_policy(model, prompt, seed, suite, recorded, texts), model=stand_in)
    if model.name == "tiny":
        return tiny_policy(suite.words(), model, seed=seed, plan=prompt.plan, texts=texts)
    if model.name == "tiny-chat":
        return tiny_chat_policy([*texts, *(text for each in recorded for text in each.texts)], model, prompt, seed=seed)
    return pretrained_policy(model, prompt, seed=seed, remote=remote)


def _on_server(
    policy: Policy, demos: list[Demonstration], how: Teaching, suite: CorrectingSuite, *reports: Any
) -> Policy:
    """Imitate demonstrations, and corrections of every round of DAgger, on the server that has the weights."""
    on_demonstration, on_step, on_turn = reports
    for number in range(1 + how.settings.dagger_rounds):
        if number:
            demos += corrections(how, policy, suite, number, on_demonstration=on_demonstration, on_turn=on_turn)
        imitate(policy, demos, how, number=number, on_step=on_step)
    return policy


def _cached(folder: Path, settings: ModelConfig, device: torch.device | None) -> Policy | None:
    """Load the policy of an earlier warm start, if there is one."""
    if not (folder / "config.json").exists():
        return None
    try:
        check_manifest(folder)
        policy = load_policy(folder)
    except DataError as error:
        raise DataError(f"{error}. Delete this cache folder; it will be recreated") from error
    choose_trainable(policy.model, settings)
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    return policy


def _keys(how: Teaching, policy: Policy, demos: Sequence[Demonstration]) -> list[str]:
    """Hash what the weights depend on, for the imitation and then for each round of DAgger."""
    parts: dict[str, Any] = {
        "model": how.model.model_dump(mode="json"),
        "warmstart": how.settings.model_dump(mode="json", exclude={"dagger_rounds", "dagger_steps", "demonstrations"}),
    }
    parts["weights"] = [float(weight.detach().double().sum()) for weight in policy.model.parameters()]
    parts |= {"seed": how.seed, "words": policy.tokenizer.get_vocab(), "version": FORMAT_VERSION}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for ids, weights in demos:
        key.update(ids.tobytes() + weights.tobytes())
    keys = [key.hexdigest()[:16]]
    world = how.world.model_dump(mode="json", include={"name", "max_steps", "options", "direction"})
    played = [how.rollout.remembered, how.rollout.max_new_tokens, how.rollout.stop]
    rounds = json.dumps([how.settings.dagger_steps, *played, world], sort_keys=True)
    for _ in range(how.settings.dagger_rounds):
        keys.append(hashlib.sha256(f"{keys[-1]} {rounds}".encode()).hexdigest()[:16])
    return keys


def imitate(
    policy: Policy,
    demos: Sequence[Demonstration],
    how: Teaching,
    *,
    number: int = 0,
    on_step: Progress | None = None,
) -> None:
    """Train on demonstrations by weighted next-token cross-entropy.

    Args:
        policy: The policy, whose weights change.
        demos: The demonstrations.
        how: Settings.
        number: 0 for the imitation, or the number of the round of DAgger.
        on_step: Called with the number of updates done, of all of the warm start, and with the loss.

    Raises:
        RunError: The loss or its gradient is not finite, or one demonstration exhausts memory.
    """
    settings, model = how.settings, policy.model
    lengths = [settings.steps, *[settings.dagger_steps] * settings.dagger_rounds]
    steps, before, total = lengths[number], sum(lengths[:number]), sum(lengths)
    budget = Budget.on(model.device, how.max_tokens)
    generator = np.random.default_rng([how.seed, Stream.WARM_START_BATCHES, number])
    if isinstance(model, RemoteModel):
        for step, batch in enumerate(_by_length_batches(demos, settings.batch_size, steps, generator)):
            loss = model.imitate([demos[i] for i in batch], settings.learning_rate * _schedule(step / steps))
            if on_step:
                on_step(before + step + 1, total, loss)
        return
    if roles := roles_of(model):
        use_adapter(model, roles[0])
    optimizer = torch.optim.AdamW(trainable(model), lr=settings.learning_rate, weight_decay=0.01)
    model.train()
    for step, batch in enumerate(_by_length_batches(demos, settings.batch_size, steps, generator)):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step / steps)
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
                f"the warm start diverged after {before + step} of {total} updates; lower "
                f"warmstart.learning_rate={settings.learning_rate:g}"
            )
        optimizer.step()
        if on_step:
            on_step(before + step + 1, total, loss)
    optimizer.zero_grad()
    model.eval()
    begin_alike(model)


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
    logprob, _ = chunked_logprobs(hidden[counted], output_layer, ids[:, 1:][counted], 1 / logit_factor(model))
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
