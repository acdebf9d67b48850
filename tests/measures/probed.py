"""Conversations that probes are tried on."""

import itertools

import torch
from tests.rollout.playing import FORMAT, POLICY, word

from turnwise.engines.local import LocalEngine
from turnwise.measures import Played
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.prober import Prober
from turnwise.objective.tokens import Sequences
from turnwise.rollout.trajectory import Trajectory, Turn

TEMPERATURE = 0.7
RED, BLUE = word("red"), word("blue")


def conversation(group: int, *turns: tuple[str, str], last: str = "say pink", fresh: bool = False) -> Trajectory:
    """A trajectory of (observation, response) as the policy reads it."""
    made = Trajectory(group, str(group), ended="terminated", last_observation=last, info={"gold": "red blue"})
    for number, (observation, response) in enumerate(turns):
        read = FORMAT.prompt_ids(observation, first=not number)
        said = FORMAT.response_ids(response)
        made.turns.append(Turn(observation, observation, read, said, [-1.0] * len(said), response, False, fresh=fresh))
    return made


PLAYED = [
    conversation(0, ("say red", "red"), ("say green green", "pink"), ("say blue", "blue red")),
    conversation(0, ("say red", "pink"), last="say green"),
    conversation(1, ("say blue pink", "blue"), ("say", "red")),
]


def prober(trajectories=PLAYED, *, budget: int = 10_000, policy=POLICY) -> Prober:
    sequences = Sequences.from_trajectories(trajectories)
    engine = LocalEngine(policy.model)
    return Prober(policy, sequences, ModelConfig(), TEMPERATURE, Budget(budget), engine)


def step(trajectories=PLAYED, **more) -> Played:
    return Played(trajectories, probe=prober(trajectories, **more))


@torch.no_grad()
def plain(ids: list[int], places: list[int], targets: list[int] | None = None, policy=POLICY):
    """Log-probabilities and entropies at some places of one sequence, from a plain pass of the model."""
    logits = policy.model(torch.tensor([ids])).logits[0].double() / TEMPERATURE
    told = torch.log_softmax(logits, -1)
    at = [place - 1 for place in places]
    targets = [ids[place] for place in places] if targets is None else targets
    return told[at, targets].numpy(), -(told.exp() * told).sum(-1)[at].numpy()


def mean_of_end(context: list[int], text: list[int], num: int | None = None) -> float:
    """Mean log-probability of the last `num` tokens of `text` after `context`."""
    ids = [*context, *text]
    return plain(ids, list(range(len(ids) - (num or len(text)), len(ids))))[0].mean()


def context(which: Trajectory, turn: int) -> list[int]:
    """All tokens before a response, of a conversation that grows."""
    before = [[*each.prompt_ids, *each.response_ids] for each in which.turns[:turn]]
    return [*itertools.chain(*before), *which.turns[turn].prompt_ids]
