"""Trees of turns for tests: made up, or unpacked into separate trajectories."""

import copy

import numpy as np

from turnwise.rollout.trajectory import Trajectory, Turn


def some_turn(generator: np.random.Generator, words: int, *, prompt: int, response: int, reward: float = 0.0) -> Turn:
    """A turn of random tokens."""
    ids = generator.integers(5, words, prompt + response).tolist()
    logprobs = (-generator.integers(0, 100, response) / 64).tolist()
    return Turn("saw", "key", ids[:prompt], ids[prompt:], logprobs, "said", False, reward)


def binary_tree(
    *,
    words: int,
    turns: int = 20,
    forks: tuple[int, ...] = (5, 10, 15),
    prompt: int = 3,
    response: int = 2,
    seed: int = 0,
) -> list[Trajectory]:
    """All paths of a tree in which every path parts in two after some turns."""
    generator = np.random.default_rng(seed)
    new = lambda: some_turn(generator, words, prompt=prompt, response=response)  # noqa: E731
    paths: list[list[Turn]] = [[]]
    for number in range(turns):
        if number in forks:
            paths = [list(path) for path in paths for _ in range(2)]
        for place, path in enumerate(paths):
            path.append(new())
            path[-1].prompt_ids[0] = 5 + place % 2  # so that siblings part with their first token
    result = []
    for path in paths:
        last = copy.copy(path[-1])
        last.reward = float(generator.integers(0, 2))
        result.append(Trajectory(0, "task", [*path[:-1], last], success=bool(last.reward), ended="terminated"))
    return result


def unpacked(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The same paths without a turn in common."""
    return [copy.deepcopy(trajectory) for trajectory in trajectories]
