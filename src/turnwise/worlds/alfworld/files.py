"""Load and find game.tw-pddl files, in the official package's layout.

    games = find_games("valid_seen")     # below $ALFWORLD_DATA
    game = load_game(games[0])

A file is JSON: `pddl_problem` holds the facts and the goal, `grammar` the sentence of the task, `pddl_domain` the
rules. Only the goal's six known shapes are understood.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from turnwise.base.errors import DataError, did_you_mean
from turnwise.worlds.alfworld.game import PROPERTIES, TABLES, TASK_TYPES, GameData, GameGoal, Receptacle, Thing

DATA_VARIABLE = "ALFWORLD_DATA"
GAME_FILE, TRAJECTORY_FILE = "game.tw-pddl", "traj_data.json"
"""The two files in a game's folder."""

_GOALS: dict[str, str] = {name: task["goal"] for name, task in TABLES["tasks"].items()}
_BLANKS = {"OBJECT": "object_type", "RECEPTACLE": "receptacle_type", "TOGGLE": "toggle_type"}


def _squeeze(text: str) -> str:
    """Normalise spaces: at most one between words, none at brackets."""
    return re.sub(r"\s*([()])\s*", r"\1", " ".join(text.split()))


def _pattern(template: str) -> re.Pattern[str]:
    """Convert a goal's template to a pattern with a group per blank; repeated blanks must have equal words."""
    pattern = re.escape(_squeeze(template))
    for blank, group in _BLANKS.items():
        pattern = pattern.replace(blank, rf"(?P<{group}>\w+)Type", 1).replace(blank, f"(?P={group})Type")
    return re.compile(pattern)


_GOAL_PATTERNS = {task_type: _pattern(template) for task_type, template in _GOALS.items()}


def load_game(path: str | Path) -> GameData:
    """Load a game.tw-pddl file.

    Raises:
        DataError: The file is missing or malformed, or its goal is not of the six kinds.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        problem, grammar = str(content["pddl_problem"]), str(content["grammar"])
        walkthrough = tuple(content.get("walkthrough") or ())
    except OSError as error:
        raise DataError(f"{path}: cannot read the game: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: no game.tw-pddl file: expected JSON with pddl_problem and grammar ({error!r})."
        ) from error
    try:
        return parse_problem(problem, task=_task_of(grammar), walkthrough=walkthrough)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _task_of(grammar: str) -> str:
    found = re.search(r'Your task is to: (.*?)\.?"', grammar)
    if found is None:
        raise DataError('the grammar holds no sentence "Your task is to: ...".')
    return found[1]


def parse_problem(problem: str, *, task: str, walkthrough: tuple[str, ...] = ()) -> GameData:
    """Parse a PDDL problem of ALFWorld's domain.

    Raises:
        DataError: A part is missing, or the goal is not of the six kinds.
    """
    problem = re.sub(r";.*", "", problem)
    parts = re.fullmatch(
        r"\s*\(define\s*\(problem\s+(\S+?)\s*\)(.*)\(:init(.*)\(:goal(.*)\)\s*\)\s*", problem, re.DOTALL
    )
    if parts is None:
        raise DataError("the problem is not laid out as (define (problem NAME) ... (:init ...) (:goal ...)).")
    name, _, facts, goal_text = parts.groups()
    goal = _parse_goal(goal_text)

    pairs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    properties: dict[str, set[str]] = defaultdict(set)
    contains = set[tuple[str, str]]()
    for fact in re.findall(r"\(([^()]+)\)", facts):
        predicate, *arguments = fact.split()
        if predicate == "canContain":
            contains.add((arguments[0].removesuffix("Type"), arguments[1].removesuffix("Type")))
        elif len(arguments) == 2:
            pairs[predicate][arguments[0]].append(arguments[1])
        else:
            properties[arguments[0]].add(predicate)
    try:
        return _build(name, task, goal, pairs, properties, frozenset(contains), walkthrough)
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(f"the problem {name} lacks a fact: {error!r}.") from error


def _parse_goal(text: str) -> GameGoal:
    squeezed = _squeeze(text)
    for task_type, pattern in _GOAL_PATTERNS.items():
        if match := pattern.fullmatch(squeezed):
            return GameGoal(task_type, **match.groupdict())
    raise DataError(f"the goal is none of ALFWorld's six kinds ({', '.join(TASK_TYPES)}): {squeezed[:300]}")


def _build(
    name: str,
    task: str,
    goal: GameGoal,
    pairs: dict[str, dict[str, list[str]]],
    properties: dict[str, set[str]],
    can_contain: frozenset[tuple[str, str]],
    walkthrough: tuple[str, ...],
) -> GameData:
    receptacles = tuple(
        Receptacle(
            id=id,
            type=type_names[0].removesuffix("Type"),
            location=pairs["receptacleAtLocation"][id][0],
            openable="openable" in properties[id],
            opened="opened" in properties[id],
        )
        for id, type_names in pairs["receptacleType"].items()
    )
    # Things that are declared but have no fact do not exist for TextWorld: they would shift the numbers of the others.
    known = {*pairs["objectType"], *pairs["objectAtLocation"], *pairs["inReceptacle"], *pairs["inReceptacleObject"]}
    known.update(*pairs["inReceptacleObject"].values())
    known.update(id for id, names in properties.items() if names.intersection(PROPERTIES))
    things = tuple(
        Thing(
            id=id,
            type="".join(pairs["objectType"][id]).removesuffix("Type"),
            receptacles=tuple(dict.fromkeys(pairs["inReceptacle"][id])),
            locations=tuple(dict.fromkeys(pairs["objectAtLocation"][id])),
            inside=tuple(dict.fromkeys(pairs["inReceptacleObject"][id])),
            properties=frozenset(properties[id].intersection(PROPERTIES)),
        )
        for id in sorted(known)
    )
    ((agent_location,),) = pairs["atLocation"].values()
    return GameData(name, task, goal, agent_location, receptacles, things, can_contain, walkthrough)


def find_games(split: str, data: str | Path | None = None, task_types: Collection[str] = TASK_TYPES) -> list[Path]:
    """List a split's playable games, in the order of their paths.

    The rules are the official package's. A folder counts if it holds a traj_data.json of a selected task type, and a
    game.tw-pddl marked as solvable. Tasks with movable receptacles or slicing are skipped.

    Args:
        split: "train", "valid_seen", "valid_unseen", ...: a folder of $ALFWORLD_DATA/json_2.1.1.
        data: Folder, instead of the environment variable.
        task_types: Task types to keep.

    Raises:
        DataError: The data is missing, or holds no such game.
    """
    if unknown := set(task_types).difference(TASK_TYPES):
        name = min(unknown)
        raise DataError(f"no task type is called {name!r}.{did_you_mean(name, TASK_TYPES)}")
    data = data or os.environ.get(DATA_VARIABLE)
    if not data:
        raise DataError(
            f"set {DATA_VARIABLE} to the folder that holds json_2.1.1 (alfworld-download fetches the games)."
        )
    root = Path(data).expanduser() / "json_2.1.1"
    if not root.is_dir():
        raise DataError(f"{DATA_VARIABLE}={data} holds no folder json_2.1.1; alfworld-download fetches the games.")
    splits = sorted(path.name for path in root.iterdir() if path.is_dir())
    if split not in splits:
        raise DataError(f"{root} has no split {split!r}; it has {', '.join(splits)}.{did_you_mean(split, splits)}")
    folder = root / split
    games = [path.with_name(GAME_FILE) for path in sorted(folder.rglob(TRAJECTORY_FILE))]
    games = [path for path in games if _playable(path, folder, task_types)]
    if not games:
        raise DataError(
            f"{folder} holds no playable game of the task types {', '.join(sorted(task_types))}.{_incomplete(folder)}"
        )
    return games


def _incomplete(folder: Path) -> str:
    """Describe which of a game's two files are missing below a folder, and where."""
    for there, missing in ((GAME_FILE, TRAJECTORY_FILE), (TRAJECTORY_FILE, GAME_FILE)):
        lacking = [path.parent for path in sorted(folder.rglob(there)) if not path.with_name(missing).exists()]
        if lacking:
            return (
                f" {len(lacking)} of its folders hold {there} but no {missing}, such as {lacking[0]}; "
                "a game needs both, and alfworld-download fetches both."
            )
    return ""


def _playable(path: Path, folder: Path, task_types: Collection[str]) -> bool:
    relative = str(path.relative_to(folder))
    if "movable" in relative or "Sliced" in relative or not path.exists():
        return False
    trajectory = json.loads(path.with_name(TRAJECTORY_FILE).read_text(encoding="utf-8"))
    # Thousands of files: the one key is found without parsing. Inside the JSON's strings its quotes would be escaped.
    return trajectory["task_type"] in task_types and bool(re.search(rb'[{,]\s*"solvable":\s*true', path.read_bytes()))
