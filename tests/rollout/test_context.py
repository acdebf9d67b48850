"""Prompts: nothing is re-encoded differently, and exactly the generated tokens are learned from."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest
import torch
from tests.rollout.chat_models import FAMILIES, chat_model
from tests.toys import Colors, ScriptedEngine, color_policy

from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.models.policy import Policy
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play as play_starts
from turnwise.rollout.context import Append, Window, make_context
from turnwise.rollout.starts import make_starts
from turnwise.rollout.trajectory import Trajectory

POLICIES = {
    "tiny": lambda prompt: color_policy(context=512),
    **{
        family: lambda prompt, family=family: pretrained_policy(
            ModelConfig(name=str(chat_model(family)), max_context=1000), prompt, seed=0
        )
        for family in FAMILIES
    },
}
PROMPTS = {
    "plain": PromptConfig(),
    "reasoning": PromptConfig(think=True),
    "admissible": PromptConfig(admissible=True, system="Play."),
}
CASES = [("tiny", "plain"), *((family, prompt) for family in FAMILIES for prompt in PROMPTS)]


class Long(Colors):
    """Says the same kind of thing for six turns, and lists actions."""

    def __init__(self, seed: int):
        super().__init__(seed, turns=6)

    def step(self, response: str) -> Step:
        return dataclasses.replace(super().step(response), admissible=["red", "green", "blue"])


def play(policy, *, window=None, seed=0, engine=None, temperature=1.0):
    sampling = Sampling(max_new_tokens=5, stop_ids=(policy.format.stop_id,), temperature=temperature, seed=seed)
    return asyncio.run(
        play_starts(
            make_starts([0, 1, 2], 3),
            Request(
                engine=engine or LocalEngine(policy.model),
                environments=InProcessEnvironments(Long),
                fmt=policy.format,
                sampling=sampling,
                max_context=policy.max_context,
                window=window,
            ),
        )
    )


@functools.cache
def policy_of(name: str, prompt: str) -> Policy:
    return POLICIES[name](PROMPTS[prompt])


@functools.cache
def played(name: str, prompt: str, window: int | None) -> list[Trajectory]:
    """Trajectories that several tests read."""
    return play(policy_of(name, prompt), window=window)


@pytest.mark.parametrize("window", [None, 0, 1, 2])
@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_the_loss_covers_exactly_what_was_generated_and_sees_what_the_engine_saw(name, prompt, window):
    policy, trajectories = policy_of(name, prompt), played(name, prompt, window)
    sequences = Sequences.from_trajectories(trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert len(sequences) == (len(trajectories) if window is None else len(turns))
    covered = [ids[where] for ids, where in zip(sequences.token_ids, sequences.generated, strict=True)]
    np.testing.assert_array_equal(np.concatenate(covered), np.concatenate([turn.response_ids for turn in turns]))
    logprob_T, entropy_T = score(policy.model, sequences, max_tokens=700)
    behavior_T = np.concatenate([turn.behavior_logprobs for turn in turns])
    np.testing.assert_allclose(logprob_T, behavior_T, atol=2e-4)
    np.testing.assert_allclose(entropy_T, np.concatenate([turn.behavior_entropies for turn in turns]), atol=2e-4)


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_the_first_turn_is_the_same_in_every_mode(name, prompt):
    modes = [played(name, prompt, window) for window in (None, 0, 2)]
    for others in modes[1:]:
        for one, other in zip(modes[0], others, strict=True):
            assert one.turns[0].prompt_ids == other.turns[0].prompt_ids
            assert one.turns[0].response_ids == other.turns[0].response_ids
            np.testing.assert_allclose(one.turns[0].behavior_logprobs, other.turns[0].behavior_logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny", *FAMILIES])
def test_a_wide_window_is_the_whole_conversation(name):
    """Without reasoning and lists of actions nothing in an earlier turn is read otherwise than when it was new."""
    fmt = POLICIES[name](PromptConfig()).format
    whole, wide = Append(fmt, 0), Window(fmt, 0, size=99, stride=1)
    for text, answer in zip(("say red", "you said red", "say blue"), ("red", "green blue", "blue"), strict=True):
        for context in (whole, wide):
            context.observe(Step(observation=text))
        assert whole.ids == wide.ids
        cut = fmt.response_ids(answer)[: 1 if answer == "blue" else None]
        for context in (whole, wide):
            context.respond(cut)


def test_a_window_holds_the_first_observation_and_the_latest_exchanges():
    policy = POLICIES["tiny"](PromptConfig())
    fmt = policy.format
    window = Window(fmt, 3, size=2, stride=10)
    piece = lambda text, first=False: fmt.prompt_ids(text, first=first)  # noqa: E731
    answers = [fmt.response_ids(text) for text in ("red", "green", "blue", "red green")]
    prompts, numbers = [], []
    for text, answer in zip(("say red", "you said red", "say blue", "you said blue"), answers, strict=True):
        prompts.append(window.observe(Step(observation=text)))
        numbers.append(window.conversation)
        assert window.fresh
        assert window.ids == prompts[-1]
        window.respond(answer)
    say, red, blue, last = piece("say red", True), piece("you said red"), piece("say blue"), piece("you said blue")
    assert prompts[0] == say
    assert prompts[1] == say + answers[0] + red
    assert prompts[2] == say + answers[0] + red + answers[1] + blue
    assert prompts[3] == say + [fmt.stop_id] + red + answers[1] + blue + answers[2] + last
    assert numbers == [3, 13, 23, 33]


def test_a_window_forgets_reasoning_and_old_lists_of_actions():
    policy = POLICIES["qwen3"](PromptConfig(think=True, admissible=True))
    fmt = policy.format
    window = Window(fmt, 0, size=2, stride=1)
    window.observe(Step(observation="a", admissible=["red"]))
    window.respond(fmt.response_ids("red", "because"))
    text = fmt.tokenizer.decode(window.observe(Step(observation="b", admissible=["blue"])))
    assert "because" not in text
    assert "<action>red</action><|im_end|>" in text
    assert "Admissible actions: blue" in text
    assert "Admissible actions: red" not in text


@pytest.mark.parametrize("window", [None, 2])
def test_a_response_that_was_cut_off_is_closed_before_the_next_observation(window):
    policy = POLICIES["smollm2"](PromptConfig())
    fmt = policy.format
    context = make_context(fmt, 0, window=window, stride=1)
    first = context.observe(Step(observation="say red"))
    cut = fmt.response_ids("red")[:-1]
    context.respond(cut)
    context.observe(Step(observation="say blue"))
    following = fmt.prompt_ids("say blue", first=False)
    assert context.ids == first + cut + [fmt.stop_id] + following


def test_conversations_of_a_window_are_closed_as_soon_as_they_are_not_read_any_more():
    policy = POLICIES["tiny"](PromptConfig())
    engine = ScriptedEngine(lambda conversation, turn: policy.format.response_ids("red"))
    play(policy, window=1, engine=engine)
    opened = {conversation for conversation, _ in engine.calls}
    assert len(opened) == 9 * 6
    closed = {number for numbers in engine.closed if numbers for number in numbers}
    assert opened <= closed


def test_an_append_conversation_never_changes_what_it_has_said():
    policy = POLICIES["qwen2_5"](PromptConfig())
    context = Append(policy.format, 0)
    before: list[int] = []
    for text in ("say red", "say blue", "say green"):
        context.observe(Step(observation=text))
        assert context.ids[: len(before)] == before
        context.respond(policy.format.response_ids("red"))
        before = list(context.ids)


@pytest.mark.parametrize("whole", [False, True])
def test_micro_batches_of_a_window_hold_every_sequence_once(whole):
    policy = POLICIES["tiny"](PromptConfig())
    sequences = Sequences.from_trajectories(play(policy, window=1))
    only = np.array([0, 2, 5, 8])
    batches = list(
        sequences.micro_batches(120, only=only, unit_N=np.arange(sequences.trajectory.max() + 1) if whole else None)
    )
    used = np.flatnonzero(np.isin(sequences.trajectory, only))
    assert sorted(np.concatenate(batches).tolist()) == used.tolist()
    for batch in batches:
        longest = max(len(sequences.token_ids[i]) for i in batch)
        owners = np.unique(sequences.trajectory[batch])
        assert len(batch) * longest <= 120 or len(owners if whole else batch) == 1
        if whole:
            assert np.isin(sequences.trajectory, owners).sum() == len(batch)


def test_the_loss_of_a_window_does_not_depend_on_the_cut_into_micro_batches():
    policy = POLICIES["qwen3"](PromptConfig())
    sequences = Sequences.from_trajectories(play(policy, window=1))
    whole, _ = score(policy.model, sequences, max_tokens=10**6)
    cut, _ = score(policy.model, sequences, max_tokens=1)
    np.testing.assert_allclose(whole, cut, atol=1e-5)
    assert torch.is_grad_enabled()
