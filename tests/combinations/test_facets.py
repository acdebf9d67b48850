"""Facets: a conflict is explained in the words of two settings, and no part names another one."""

import re
from collections import defaultdict

import pytest

from tests.combinations.table import FEATURES, config_of, data_of
from turnwise.base.errors import ConfigError
from turnwise.base.facets import Conflict, Facet, Part, refuse_conflicts
from turnwise.base.recipes import shipped_recipes
from turnwise.base.register import COLLECTOR_PARTS, COLLECTORS
from turnwise.config import Config, load_config, parse_config
from turnwise.extensions.branching.growth import RULES

AHEAD = Part("ahead=1", {Facet.OUTCOMES: "plays ahead"}, {Facet.OUTCOMES: "starts the groups of each step"})
FURTHER = [
    {"model": {"name": "x", "train": "lora", "adapters": ["a"]}, "harness": {"run": "a:b"}},
    {"rollout": {"top_p": 0.9}},
    {"engine": {"name": "server"}, "update": {"scoring": "trainer"}},
    {"engine": {"name": "tinker"}},
    {"update": {"old_policy": "start"}},
    {"update": {"old_policy": "behavior"}},
    {"rollout": {"collector": {"name": "self_play", "past": 0.5}}},
    {"rollout": {"collector": {"name": "branching", "rule": "arpo"}}},
    {"rollout": {"collector": {"name": "branching", "rule": "v05"}}},
    {"model": {"name": "somebody/chat"}, "prompt": {"think": True}, "update": {"only_norms": True}},
    {"model": {"name": "somebody/chat", "train": "lora"}},
    {
        "method": "spo_tree",
        "rollout": {"collector": {"name": "branching", "rule": "spo_tree", "branching": [2, 2]}, "group_size": 4},
    },
]
"""Settings of parts that are no feature of the table."""


def all_parts() -> list[Part]:
    """The parts of every feature, of further settings, and of the recipes that come with the package."""
    configs = [config_of([name]) for name in FEATURES]
    configs += [parse_config(more) for more in FURTHER]
    configs += [load_config(path) for path in shipped_recipes().values()]
    return [part for config in configs for part in config.parts()]


def test_a_part_that_breaks_what_another_needs_is_explained():
    follows = Part("follows=2", needs={Facet.OUTCOMES: "follows the batch before"})
    with pytest.raises(Conflict) as caught:
        refuse_conflicts([follows, AHEAD])
    assert str(caught.value) == "ahead=1 plays ahead, and follows=2 follows the batch before; remove one of them"
    assert (caught.value.breaking, caught.value.needing) == (AHEAD, follows)


def test_what_mends_a_conflict_is_said_of_both_parts_and_once():
    part = Part("follows=2", needs={Facet.OUTCOMES: "follows"}, mend="set follows=0")
    with pytest.raises(Conflict, match=r"follows; set follows=0$"):
        refuse_conflicts([AHEAD, part])
    other = Part("ahead=2", AHEAD.breaks, mend="set ahead=0")
    with pytest.raises(Conflict, match=r"follows; set follows=0, or set ahead=0$"):
        refuse_conflicts([other, part])


def test_a_part_does_not_conflict_with_itself_and_two_that_break_only_do_not_either():
    refuse_conflicts([AHEAD])
    refuse_conflicts([Part("a", AHEAD.breaks), Part("b", AHEAD.breaks)])
    with pytest.raises(Conflict):
        refuse_conflicts([AHEAD, Part("again", AHEAD.breaks)])


def test_every_assumption_is_broken_by_some_part_and_needed_by_another():
    broken, needed = defaultdict(set), defaultdict(set)
    for part in all_parts():
        for facet in part.breaks:
            broken[facet].add(part.setting)
        for facet in part.needs:
            needed[facet].add(part.setting)
    for facet in Facet:
        assert any(one != other for one in broken[facet] for other in needed[facet]), f"{facet} explains no conflict"


def test_no_part_names_another():
    """A reason says what its own part does; a mend may name other values of the part's own section."""
    sections = "|".join(name for name in Config.model_fields)
    for part in all_parts():
        for reason in (*part.breaks.values(), *part.needs.values()):
            assert not re.search(rf"\[|\b({sections})\.\w|=", reason), f"{part.setting} {reason}"
            assert reason[0].islower()
            assert reason[-1] != "."


def test_every_collector_and_no_other_has_facets():
    assert {"independent", *COLLECTOR_PARTS} == {*COLLECTORS}
    for rule in RULES:
        parts = parse_config({"rollout": {"collector": {"name": "branching", "rule": rule}}}).parts()
        assert any(part.setting == "rollout.collector='branching'" for part in parts)


def test_a_recipe_of_many_features_names_the_first_conflict_only():
    with pytest.raises(ConfigError) as caught:
        parse_config(data_of(["harness", "window", "plan", "pivot_rl"]))
    assert str(caught.value).count(";") == 1
