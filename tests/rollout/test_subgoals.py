"""Plan-and-act responses: their parts in tokens, the subgoal in force, demonstrations, and where values are read."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.toys import Colors, small_config, trajectory

from turnwise.base.errors import ConfigError
from turnwise.credit.segments import Segments
from turnwise.environments.base import Demonstrated, Step
from turnwise.environments.suites import make_suite
from turnwise.measures.base import Played
from turnwise.measures.planned import parts
from turnwise.models.settings import CriticConfig, ModelConfig
from turnwise.models.subgoals import read, write
from turnwise.models.tiny import tiny_policy
from turnwise.objective.values import places_of
from turnwise.rollout.context import make_context
from turnwise.train.warmstart import warm_policy
from turnwise.worlds.alfworld.suite import with_subgoals

FORMAT = tiny_policy(
    Colors.words(), ModelConfig(hidden_size=8, num_layers=1, num_heads=2, max_context=64), seed=0, plan=True
).format


def pieces(*texts: str):
    """A tokenizer of these pieces: ids and their decoder."""
    return range(len(texts)), lambda ids: "".join(texts[i] for i in ids)


def test_parts_meet_where_their_tags_end_also_inside_a_token():
    planned = read(
        *pieces("<swi", "tch>SWITCH</switch", "><sub", "goal>find", " a mug</subgoal", "> <action>go", "</action>", "")
    )
    assert (planned.switch, planned.subgoal, planned.cuts) == (True, "find a mug", (3, 6))
    exact = read(*pieces("<switch>KEEP</switch>", "<subgoal>x</subgoal>", "<action>go</action>"))
    assert (exact.switch, exact.subgoal, exact.cuts) == (False, "x", (1, 2))


@pytest.mark.parametrize(
    ("texts", "switch", "subgoal", "cuts"),
    [
        (["go ", "north"], False, None, (0, 0)),
        (["<switch> switch </switch>", "<action>go</action>"], True, None, (1, 1)),
        (["<switch></switch>", "go"], False, None, (1, 1)),
        (["<switch> </switch>", "go"], False, None, (1, 1)),
        (["<switch>keep </switch>", "go"], False, None, (1, 1)),
        (["<switch>maybe</switch>", "go"], True, None, (1, 1)),  # anything but KEEP
        (["<subgoal>x</subgoal>", "<switch>SWITCH</switch>", "go"], True, None, (2, 2)),  # in this order only
        (["<switch>SWITCH</switch>", "<subgoal>x</subgoal>"], True, "x", (1, 1)),  # cut short: the last token acts
    ],
)
def test_an_empty_decision_keeps_the_subgoal_and_what_is_left_acts(texts, switch, subgoal, cuts):
    planned = read(*pieces(*texts))
    assert (planned.switch, planned.subgoal, planned.cuts) == (switch, subgoal, cuts)


@pytest.mark.parametrize(
    ("texts", "acts"),
    [
        (["<switch>KEEP</switch>", "<action>go</action>"], True),
        (["<action></action>"], True),
        (["<switch>KEEP</switch>", "go"], False),
        (["<switch>KEEP</switch>", "<action>go"], False),  # cut short
        (["</action>", "<action>"], False),
    ],
)
def test_an_action_has_both_tags(texts, acts):
    assert read(*pieces(*texts)).acts == acts


def test_a_response_without_an_action_is_action_as_a_whole():
    """Three tokens of the decision, three of the subgoal, and the rest; the second lacks the tag that closes."""
    ids = FORMAT.response_ids("red", subgoal="pink", switch=False)
    cut = ids[:-2]
    told = trajectory(0, ([1], ids), ([1], cut), ([1], cut[6:]))
    part_T = parts.run(Played([told], probe=SimpleNamespace(format=FORMAT)), {})["part_T"]
    assert part_T.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 2, 2, 2, 2]


def test_a_tiny_policy_has_a_token_per_tag():
    ids = FORMAT.response_ids("red", subgoal="blue pink", switch=False)
    assert len(ids) == 3 + 4 + 3 + 1
    planned = FORMAT.planned(ids)
    assert (planned.switch, planned.subgoal, planned.cuts) == (False, "blue pink", (3, 7))
    assert FORMAT.action(FORMAT.text(ids)) == ("red", True)
    assert FORMAT.action("red") == ("red", False)


@pytest.mark.parametrize("window", [None, 1])
def test_the_prompt_shows_the_subgoal_in_force(window):
    context = make_context(FORMAT, 0, window=window, stride=1)
    shown = []
    for subgoal, switch in (("red", False), ("blue", False), ("pink", True)):
        prompt = context.observe(Step(observation="say"))
        shown.append(FORMAT.text(prompt).rpartition("say")[2].split())
        context.respond(FORMAT.response_ids("green", subgoal=subgoal, switch=switch))
    context.observe(Step(observation="say"))
    last = FORMAT.text(context.ids).rpartition("say")[2].split()
    # the first stated one counts though it does not switch; the second is kept out; the third switches
    assert [each[-1:] for each in shown] == [[], ["red"], ["red"]]
    assert last[-1] == "pink"


def test_demonstrations_of_commands_get_the_deed_ahead():
    commands = [
        "go to desk 1",
        "take mug 1 from desk 1",
        "open fridge 1",
        "take pen 1 from desk 1",
        "move mug 1 to shelf 2",
        "look",
    ]
    turns = with_subgoals([Demonstrated(command, "pen" not in command) for command in commands])
    assert [turn.subgoal for turn in turns] == ["take mug", "take mug", *["move mug to shelf"] * 3, "look"]


def test_a_warm_start_needs_subgoals(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    config = small_config(tmp_path, prompt={"plan": True}, warmstart={"steps": 1, "games": 2})
    with pytest.raises(ConfigError, match=r"needs demonstrations with a subgoal per turn.*warmstart\.steps=0"):
        warm_policy(config, make_suite(config.environment))


def test_reasoning_and_planning_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match=r"prompt\.think and prompt\.plan ask for different responses"):
        small_config(tmp_path, prompt={"plan": True, "think": True})


def test_values_of_subgoals_are_read_before_the_decision_and_before_the_action():
    responses, settings = Segments.from_lengths([4, 2]), CriticConfig(read="after")
    action_R = np.array([3, 0])
    for column, expected in (("value_high", [0, 4]), ("value_switch", [0, 4]), ("value_low", [3, 4])):
        places = places_of(column, responses, settings, action_R)
        assert not places.after
        np.testing.assert_array_equal(places.tokens, expected)


def test_what_is_written_is_read():
    text = write("go north", "leave", switch=True)
    assert read(*pieces(*text)).subgoal == "leave"
