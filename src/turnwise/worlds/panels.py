"""List the evaluation panels by name. A panel never changes: other tasks get another name."""

from typing import Any

from turnwise.environments.panels import Panel
from turnwise.worlds.alfworld.game import TASK_TYPES


def _household(size: str, *, max_steps: int, digest: str, **options: Any) -> Panel:
    options |= {"size": size, "num_valid": 256, "task_types": list(TASK_TYPES)}
    return Panel(
        environment="household", split="valid", episodes=256, max_steps=max_steps, options=options, digest=digest
    )


_FEAST = {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True, "drop": True}

PANELS: dict[str, Panel] = {
    "household-compact-valid-256": _household(
        "tiny",
        num_receptacles=[2, 3],
        num_objects=[2, 3],
        max_steps=10,
        digest="f3a326a309a614cc",
    ),
    "household-tiny-valid-256": _household("tiny", max_steps=12, digest="4d5db54d043a090f"),
    "household-medium-valid-256": _household("medium", max_steps=30, digest="8f251d0eee543e77"),
    "alfworld-valid_seen-140": Panel(
        environment="alfworld",
        split="valid_seen",
        episodes=140,
        max_steps=50,
        seeds=(0, 1, 2),
        options={"task_types": list(TASK_TYPES)},
        keeps=("data",),
        digest="ef35bea9156a6c9b",
        needs="ALFWORLD_DATA",
    ),
    "alfworld-valid_unseen-134": Panel(
        environment="alfworld",
        split="valid_unseen",
        episodes=134,
        max_steps=50,
        seeds=(0, 1, 2),
        options={"task_types": list(TASK_TYPES)},
        keeps=("data",),
        needs="ALFWORLD_DATA",
    ),
    "webshop-test-500": Panel(
        environment="webshop",
        split="test",
        episodes=500,
        max_steps=15,
        options={
            "splits": "papers",
            "catalogue": "small",
            "goals": "synthetic",
            "num_products": 0,
            "seed": 0,
            "noun_model": "",
        },
        keeps=("data", "observation", "attributes_page"),
        digest="aef9c378910312da",
        needs="WEBSHOP_DATA",
    ),
    "search_qa-test": Panel(
        environment="search_qa",
        split="test",
        episodes=None,
        max_steps=4,
        keeps=("corpus", "questions"),
        needs="SEARCH_QA_DATA",
        options={"max_searches": 3, "num_passages": 3, "passage_words": 150},
    ),
    "frozen_lake-4x4-valid-256": Panel(
        environment="frozen_lake",
        split="valid",
        episodes=256,
        max_steps=12,
        digest="c922c65edc2781fe",
        needs="gymnasium",
        options={"size": 4, "frozen_frac": 0.7, "slippery": False, "num_valid": 256},
    ),
    "sokoban-6x6-valid-256": Panel(
        environment="sokoban",
        split="valid",
        episodes=256,
        max_steps=50,
        digest="ac716d7c9aa157e2",
        options={"size": 6, "num_boxes": 1, "num_walls": 2, "min_moves": 5, "num_valid": 256},
    ),
    "scienceworld-test-271": Panel(
        environment="scienceworld",
        split="test",
        episodes=271,
        max_steps=100,
        digest="9a7e656f57c649c4",
        needs="scienceworld",
        options={"tasks": [], "simplifications": [], "variations_per_task": 10},
        keeps=("admissible", "heap_mb"),
    ),
    "textworld-cooking-valid-100": Panel(
        environment="textworld",
        split="valid",
        episodes=100,
        max_steps=50,
        needs="textworld",
        keeps=("admissible",),
        options={"challenge": "cooking", "num_valid": 100, "settings": _FEAST},
    ),
}
"""All panels by name."""
