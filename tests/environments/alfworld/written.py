"""Write games as game.tw-pddl files that ALFWorld and TextWorld can play."""

import json
import re
from pathlib import Path

from turnwise.base.errors import DataError
from turnwise.worlds.alfworld.game import TABLES, GameData

BLANKS = {"OBJECT": "object_type", "RECEPTACLE": "receptacle_type", "TOGGLE": "toggle_type"}


def problem_to_pddl(game: GameData) -> str:
    """Format a game as a PDDL problem of ALFWorld's domain."""
    locations = {game.agent_location, *(receptacle.location for receptacle in game.receptacles)}
    locations.update(*(thing.locations for thing in game.things))
    # The rules name these types, so they have to be declared even in a game without them.
    object_types = {"Knife", "ButterKnife", "Sink", *(thing.type for thing in game.things)}
    receptacle_types = {"Microwave", "Fridge", "SinkBasin", *(receptacle.type for receptacle in game.receptacles)}
    for receptacle_type, object_type in game.can_contain:
        receptacle_types.add(receptacle_type)
        object_types.add(object_type)
    goal = {blank: getattr(game.goal, field) for blank, field in BLANKS.items() if getattr(game.goal, field)}
    object_types.update(goal[blank] for blank in ("OBJECT", "TOGGLE") if blank in goal)
    receptacle_types.update(goal[blank] for blank in ("RECEPTACLE",) if blank in goal)

    declared = {
        "agent": ["agent1"],
        "location": locations,
        "receptacle": [receptacle.id for receptacle in game.receptacles],
        "object": [thing.id for thing in game.things],
        "otype": [f"{name}Type" for name in object_types if name],
        "rtype": [f"{name}Type" for name in receptacle_types],
    }
    facts = [f"atLocation agent1 {game.agent_location}"]
    for receptacle in game.receptacles:
        facts.append(f"receptacleType {receptacle.id} {receptacle.type}Type")
        facts.append(f"receptacleAtLocation {receptacle.id} {receptacle.location}")
        facts.extend(f"{name} {receptacle.id}" for name in ("openable", "opened") if getattr(receptacle, name))
    for thing in game.things:
        if thing.type:
            facts.append(f"objectType {thing.id} {thing.type}Type")
        facts.extend(f"objectAtLocation {thing.id} {location}" for location in thing.locations)
        facts.extend(f"inReceptacle {thing.id} {receptacle}" for receptacle in thing.receptacles)
        facts.extend(f"inReceptacleObject {thing.id} {outer}" for outer in thing.inside)
        facts.extend(f"{name} {thing.id}" for name in sorted(thing.properties))
    facts.extend(f"canContain {receptacle}Type {thing}Type" for receptacle, thing in sorted(game.can_contain))

    objects = "\n".join(f"  {id} - {kind}" for kind, ids in declared.items() for id in sorted(ids))
    init = "\n".join(f"  ({fact})" for fact in facts)
    goal_text = re.sub(
        "|".join(BLANKS), lambda blank: f"{goal[blank[0]]}Type", TABLES["tasks"][game.goal.task_type]["goal"]
    )
    return f"""(define (problem {game.name})
(:domain alfred)
(:objects
{objects}
)
(:init
{init}
)
(:goal {goal_text})
)
"""


def save_game(game: GameData, path: str | Path, *, domain: str, grammar: str, solvable: bool = True) -> None:
    """Save a game.tw-pddl file that TextWorld can play.

    Args:
        game: The game.
        path: The file to write; its folder must exist.
        domain: Text of the alfworld package's alfred.pddl.
        grammar: Text of the alfworld package's alfred.twl2; the game's task sentence replaces its own.
        solvable: Value recorded in the file; the official loader skips games that are not solvable.
    """
    sentence = f"Your task is to: {game.task}."
    grammar, count = re.subn(r'Your task is to: [^"]*', lambda _: sentence, grammar)
    if count != 1:
        raise DataError(f"expected one sentence 'Your task is to: ...' in the grammar, found {count}.")
    content = {
        "pddl_domain": domain,
        "grammar": grammar,
        "pddl_problem": problem_to_pddl(game),
        "solvable": solvable,
        "walkthrough": list(game.walkthrough),
    }
    Path(path).write_text(json.dumps(content), encoding="utf-8")
