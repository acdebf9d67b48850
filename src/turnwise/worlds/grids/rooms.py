"""Generate Sokoban rooms, by playing backwards from a solved one, so that each is solvable.

    # # # # # #      walls
    # - - - . #      floor, a goal
    # - $ - - #      a box
    # @ - - * #      the player, a box on a goal; + is the player on a goal
    # # # # # #

The goal is to push every box onto a goal. The letters are Sokoban's usual notation, with - for the floor. Moves are up,
down, left and right; walking into a box pushes it.
"""

import functools
import random
from typing import NamedTuple

from turnwise.base.errors import ConfigError
from turnwise.worlds.grids.base import OFFSETS, Place, shortest_plan


class State(NamedTuple):
    """Places of the player and the boxes."""

    player: Place
    boxes: frozenset[Place]


class Room(NamedTuple):
    """The static part of a map."""

    floor: frozenset[Place]
    goals: frozenset[Place]
    size: int

    def move(self, state: State, move: str) -> State:
        """Return the state after a move; unchanged if a wall or a second box is in the way."""
        (down, right), (r, c) = OFFSETS[move], state.player
        reached, behind = (r + down, c + right), (r + 2 * down, c + 2 * right)
        if reached not in self.floor:
            return state
        if reached not in state.boxes:
            return State(reached, state.boxes)
        if behind not in self.floor or behind in state.boxes:
            return state
        return State(reached, state.boxes - {reached} | {behind})

    def successors(self, state: State) -> dict[str, State]:
        """Return the moves that change the state, with their resulting states."""
        reached = {move: self.move(state, move) for move in OFFSETS}
        return {move: following for move, following in reached.items() if following != state}

    def solved(self, state: State) -> bool:
        """Return whether every box is on a goal."""
        return state.boxes == self.goals

    def draw(self, state: State) -> tuple[str, ...]:
        """Render the lines of the map."""
        return tuple("".join(self._letter(state, (r, c)) for c in range(self.size)) for r in range(self.size))

    def _letter(self, state: State, place: Place) -> str:
        if place not in self.floor:
            return "#"
        return ("@+" if place == state.player else "$*" if place in state.boxes else "-.")[place in self.goals]


@functools.lru_cache(maxsize=4096)
def read_map(lines: tuple[str, ...]) -> tuple[Room, State]:
    """Parse a map, the inverse of `Room.draw`."""
    letters = {(r, c): letter for r, line in enumerate(lines) for c, letter in enumerate(line)}
    of = lambda which: frozenset(place for place, letter in letters.items() if letter in which)  # noqa: E731
    return Room(of("-.$*@+"), of(".*+"), len(lines)), State(next(iter(of("@+"))), of("$*"))


def random_room(
    seed: int, *, size: int = 6, num_boxes: int = 1, num_walls: int = 2, min_moves: int = 5
) -> tuple[str, ...]:
    """Generate a map: boxes start on their goals, and a randomly walking player pulls them away.

    Args:
        seed: Seed of the draw.
        size: Rows and columns, with the outer walls.
        num_boxes: Number of boxes, and of goals.
        num_walls: Number of inner walls.
        min_moves: Minimum number of moves of the shortest solution.
    """
    rng = random.Random(seed)
    inside = [(r, c) for r in range(1, size - 1) for c in range(1, size - 1)]
    given = f"size={size}, num_boxes={num_boxes}, num_walls={num_walls}, min_moves={min_moves}"
    if num_boxes < 1 or num_walls < 0 or len(inside) < num_walls + 2 * num_boxes + 1:
        raise ConfigError(f"sokoban has no rooms with {given}; set a larger size, or fewer boxes and walls")
    for _ in range(300):
        drawn = rng.sample(inside, num_walls + num_boxes + 1)
        goals, player = frozenset(drawn[num_walls:-1]), drawn[-1]
        room, state = Room(frozenset(inside) - set(drawn[:num_walls]), goals, size), State(player, goals)
        for _ in range(20 * num_boxes + 4 * min_moves):
            (r, c), (down, right) = state.player, rng.choice(list(OFFSETS.values()))
            reached, pulled = (r + down, c + right), (r - down, c - right)
            if reached in room.floor and reached not in state.boxes:
                pull = pulled in state.boxes and rng.random() < 0.8
                state = State(reached, state.boxes - {pulled} | {(r, c)} if pull else state.boxes)
        if not state.boxes & goals and len(shortest_plan(state, room.successors, room.solved) or ()) >= min_moves:
            return room.draw(state)
    raise ConfigError(f"found no sokoban room with {given}; set a larger size, or fewer boxes, walls and moves")
