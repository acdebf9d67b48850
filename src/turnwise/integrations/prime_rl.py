"""Use turnwise methods in prime-rl, as the function of its `custom` advantage.

    [orchestrator.advantage]
    type = "custom"
    import_path = "turnwise.integrations.prime_rl.advantages"
    kwargs = { method = "trloo", options = { discount = 0.95 } }

prime-rl calls it once per group and trains with the advantages of tokens that it returns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.credit.batch import Batch
from turnwise.credit.methods.build import build_method
from turnwise.integrations.trainers import TRAINERS


def advantages(
    inputs: Any,
    *,
    method: str = "grpo",
    options: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    return_is_success: bool = False,
) -> list[list[float]]:
    """Return the advantage of every completion token of a group, one list per rollout.

    A step of a rollout is a response; its advantage stands at its own tokens, 0 at tokens of the environment. A step
    earns its own `reward` if all steps of the group have one, else the rollout's reward is paid for the last step.

    Args:
        inputs: `rollouts`, verifiers' outputs with `reward` and `trajectory` (steps with `tokens`), and
            `completion_lengths`, the number of tokens to return for each.
        method: Name of a method, such as "gigpo" or "gigpo+empg".
        options: Its options.
        columns: Column to the key of a step's `extras` that holds it, such as `{state_key = "state"}`.
        return_is_success: Let the reward of a rollout, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: A column is missing, or steps do not fill the completion: the rollout was cut into several
            training samples, whose places this function is not told.
        ConfigError: The method keeps state, or does not exist.
    """
    assign = build_method(method, options or {})
    given = {*(columns or {}), *(["success"] if return_is_success else [])}
    TRAINERS["prime-rl"].check(assign, given)
    groups = [[_responses(rollout, columns or {}, return_is_success) for rollout in inputs.rollouts]]
    paid = all("reward" in response for rollout in groups[0] for response in rollout)
    for rollout, responses in zip(inputs.rollouts, groups[0], strict=True):
        for response in responses if not paid else []:
            response["reward"] = float(rollout["reward"]) if response is responses[-1] else 0.0
    batch = Batch.from_trajectories(groups)
    trace, _ = assign.trace(batch)
    assert batch.tokens is not None
    own = iter(np.split(trace.advantage_T(batch.tokens), batch.tokens.offsets[1:-1]))
    return [
        _placed(rollout["trajectory"], length, own)
        for rollout, length in zip(inputs.rollouts, inputs.completion_lengths, strict=True)
    ]


def _responses(rollout: Mapping[str, Any], columns: Mapping[str, str], return_is_success: bool) -> list[dict[str, Any]]:
    made = []
    for step in rollout["trajectory"]:
        logprobs = [float(x) for x in step["tokens"]["completion_logprobs"]]
        response: dict[str, Any] = {
            "num_tokens": len(step["tokens"]["completion_ids"]),
            "logprob": float(np.mean(logprobs)),
            "rare_logprob": float(np.mean(sorted(logprobs)[: max(1, len(logprobs) // 5)])),
        }
        if step.get("reward") is not None:
            response["reward"] = float(step["reward"])
        response |= {name: (step.get("extras") or {})[key] for name, key in columns.items()}
        if return_is_success:
            response["success"] = float(rollout["reward"])
        made.append(response)
    return made


def _placed(steps: Sequence[Mapping[str, Any]], length: int, own: Any) -> list[float]:
    """Put each step's advantages at its tokens: what a later prompt adds to the conversation lies between them."""
    stream: list[float] = []
    begin = len(steps[0]["tokens"]["prompt_ids"]) if steps else 0
    known: list[int] = []
    for step in steps:
        prompt = list(step["tokens"]["prompt_ids"])
        gap = len(prompt) - begin - len(stream)
        if prompt[: len(known)] != known:
            raise IntegrationError(
                "a step's prompt does not extend the conversation before it, so prime-rl cuts the rollout into several "
                "training samples; use environments that keep the whole conversation"
            )
        stream += [0.0] * gap + next(own).tolist()
        known = prompt + list(step["tokens"]["completion_ids"])
    if len(stream) != length:
        raise IntegrationError(f"the steps of a rollout have {len(stream)} completion tokens, prime-rl counts {length}")
    return stream
