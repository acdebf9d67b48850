"""Turn what a log says into trajectories, with token ids, log-probabilities and entropies if a model is at hand."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import DataError
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import added_to, history_keys, last_message, next_key
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.extensions.gateway.said import Said
from turnwise.integrations.logs.logged import Logged, continues
from turnwise.integrations.logs.messages import text_of
from turnwise.rollout.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from turnwise.models.policy import Policy

NAME_CHARS = 80
"""Characters of a prompt that name its task."""
UNREWARDED = "the log gives no reward"
"""Failure of a trajectory whose log does not say how it ended."""


def in_groups(logged: Sequence[Logged]) -> list[Logged]:
    """Return the trajectories of a batch with those of a group adjacent, in the order in which groups appear."""
    return [each for _, each in sorted(_numbered(logged), key=lambda pair: pair[0])]


def make_trajectories(logged: Sequence[Logged]) -> list[Trajectory]:
    """Return trajectories without token ids; groups are numbered from 0 as they appear."""
    made = []
    for group, each in _numbered(logged):
        made.append(each.made or _trajectory(each))
        made[-1].group, each.made = group, None
    return made


def prepare(logged: Logged) -> None:
    """Make the trajectory, so that what cannot be one is found while its record is read."""
    _group(logged)
    logged.made = _trajectory(logged)


def _numbered(logged: Sequence[Logged]) -> list[tuple[int, Logged]]:
    """Return each trajectory after the number of its group."""
    names = list(map(_group, logged))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [(numbers[name], each) for name, each in zip(names, logged, strict=True)]


def _group(logged: Logged) -> str:
    return logged.group or logged.task or _prompt(logged)


def _prompt(logged: Logged) -> str:
    history = logged.responses[0].history if logged.responses else []
    return history_keys(history)[-1].hex() if history else ""


def _name(prompt: str) -> str:
    """Name a task by its prompt; what begins like others, as with a template, has a digest of the whole."""
    text = " ".join(prompt.split())
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return (text if len(text) <= NAME_CHARS else f"{text[:NAME_CHARS]}... {digest}") or "unknown"


def _trajectory(logged: Logged) -> Trajectory:
    outcome, failure = logged.outcome, logged.failure
    first = last_message(logged.responses[0].history) if logged.responses else ""
    trajectory = Trajectory(0, logged.task or _name(first))
    whole: list[int] | None = None  # tokens up to the end of the last response, if they are known
    for index, response in enumerate(logged.responses):
        observation, ids = last_message(response.history), response.prompt_ids
        fresh = not index or not continues(logged.responses[index - 1], response)
        fresh = fresh or (bool(ids) and (whole is None or ids[: len(whole)] != whole))
        trajectory.turns.append(
            Turn(
                observation,
                observation if response.state_key is None else response.state_key,
                ids if fresh else ids[len(whole or ()) :],
                list(response.response_ids),
                list(response.logprobs),
                text_of(response.message),
                response.truncated,
                reward=response.reward or 0.0,
                valid=response.valid,
                fresh=fresh,
                behavior_entropies=response.entropies,
                version=response.version,
            )
        )
        _put_request(logged, index, trajectory.turns[-1])
        if response.actor:
            trajectory.turns[-1].put(actor=response.actor)
        whole = [*ids, *response.response_ids] if ids else None
    trajectory.last_observation = last_message(logged.after)
    failure = failure or None  # an empty text tells of none
    if failure is None and not logged.rewarded:
        failure = UNREWARDED
    if failure is None and not trajectory.turns:
        failure = "the log has no response"
    if outcome is not None and trajectory.turns:
        trajectory.turns[-1].reward += outcome.reward
        trajectory.success, trajectory.info = outcome.success, dict(outcome.info)
    elif trajectory.turns:
        trajectory.success = trajectory.reward > 0
    trajectory.failure = failure and f"log: {failure}"
    trajectory.ended = "failed" if failure else "truncated" if logged.truncated else "terminated"
    return trajectory


def _put_request(logged: Logged, index: int, turn: Turn) -> None:
    """Keep what the agent sent, without the conversation that the response goes on with."""
    response, before = logged.responses[index], 0 if turn.fresh else len(logged.responses[index - 1].history) + 1
    turn.put(request=added_to(response.history, response.tools, before))


def score(logged: Sequence[Logged], trajectories: Sequence[Trajectory], policy: "Policy", settings: Any) -> None:
    """Fill in token ids, log-probabilities and entropies under a model, as if it had given the responses.

    Args:
        logged: What the log says about them, in the same order.
        trajectories: Trajectories to fill in.
        policy: The model, with its conversation format.
        settings: Configuration with `model` and `update.max_tokens`.

    Raises:
        DataError: A conversation is too long for the model, or its chat template refuses it.
    """
    from turnwise.objective.gradient import Budget
    from turnwise.objective.scorer import Scorer
    from turnwise.objective.tokens import Sequences

    prompter = Prompter(policy.format)
    for each, trajectory in zip(logged, trajectories, strict=True):
        _encode(each, trajectory, prompter, policy)
    played = [trajectory for trajectory in trajectories if trajectory.turns]
    sequences = Sequences.from_trajectories(played)
    scorer = Scorer(sequences, settings.model, 1.0, Budget.on(policy.model.device, settings.update.max_tokens))
    logprob_T, entropy_T = scorer(policy.model)
    end = 0
    for turn in (turn for trajectory in played for turn in trajectory.turns):
        begin, end = end, end + len(turn.response_ids)
        turn.behavior_logprobs, turn.behavior_entropies = logprob_T[begin:end].tolist(), entropy_T[begin:end].tolist()


def _encode(logged: Logged, trajectory: Trajectory, prompter: Prompter, policy: "Policy") -> None:
    """Fill in the tokens that the policy reads; those of the log are kept where its prompt is what the policy reads."""
    fmt, whole, said = policy.format, list[int](), Said()
    ends: dict[bytes, list[int]] = {}  # all ids up to the end of a response, by the history up to it
    for index, (response, turn) in enumerate(zip(logged.responses, trajectory.turns, strict=True)):
        turn.fresh = not index or not continues(logged.responses[index - 1], response)
        _put_request(logged, index, turn)
        keys = history_keys(response.history, response.tools)
        known = said.sampled(response.actor, response.history)
        sampled = {
            place: known.get(place) or [*fmt.text_ids(text_of(message)), fmt.stop_id]
            for place, message in enumerate(response.history)
            if message["role"] == "assistant"
        }
        begun = None if turn.fresh else (len(logged.responses[index - 1].history), whole)
        if turn.fresh:  # a conversation that goes on after that of a sub-agent
            begun = next(((place, ends[key]) for place, key in reversed([*enumerate(keys)]) if key in ends), None)
        try:
            ids = prompter.prompt_ids(response.history, response.tools, sampled, begun)
        except BadRequest as error:
            raise DataError(f"{logged.where}, response {index + 1}: {error.message}") from None
        turn.prompt_ids = ids if turn.fresh else ids[len(whole) :]
        if not response.response_ids or response.prompt_ids != ids:
            turn.response_ids = [*fmt.text_ids(turn.response), *([] if turn.truncated else [fmt.stop_id])]
        whole = [*ids, *turn.response_ids]
        if response.history:
            said.add(response.actor, response.history[-1], response.message, turn.response_ids)
            ends.setdefault(next_key(keys[-1], response.message), whole)
        if len(whole) > policy.max_context:
            raise DataError(
                f"{logged.where}, response {index + 1}: the conversation has {len(whole)} tokens, more than "
                f"model.max_context={policy.max_context}; raise it if the model reads as many, or leave out --score"
            )
