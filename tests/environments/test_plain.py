"""`info` and state keys of environments become plain data within bounds, at every level of isolation alike."""

import json
import math
from types import MappingProxyType

import numpy as np
import pytest

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import OURS, SeatStep, Step, checked_info, checked_key, checked_step
from turnwise.environments.plain import MAX_DEPTH, plain_mapping
from turnwise.environments.wire import PlainStep, ProtocolError, key_as_json, key_from_json
from turnwise.extensions.stores.recall import ADVICE
from turnwise.extensions.stores.reminded import RECALLED
from turnwise.rollout.metrics import CUT, PREDICTED, objectives_of
from turnwise.rollout.trajectory import Trajectory, Turn


class Silent:
    def __str__(self):
        raise ValueError("nothing to say")


def nested(depth, made=list):
    value = 1
    for _ in range(depth):
        value = [value] if made is list else {"in": value}
    return value


def test_values_of_other_types_become_plain():
    info = {
        ("a", 1): np.float32(0.5),
        "array": np.arange(3),
        "set": {1},
        "tuple": (True, None, "x\ud83d"),
        "nan": float("nan"),
        "mapping": MappingProxyType({2: "two"}),
    }
    plain = plain_mapping(info, "info")
    assert plain == {
        "('a', 1)": 0.5,
        "array": [0, 1, 2],
        "set": "{1}",
        "tuple": [True, None, "x?"],
        "nan": "nan",
        "mapping": {"2": "two"},
    }
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain_mapping(plain, "info") == plain


LOOP: dict = {}
LOOP["itself"] = LOOP


@pytest.mark.parametrize(
    ("info", "cause"),
    [
        ({"n": 10**5000}, r"info\['n'\] is an integer of 16610 bits"),
        ({"n": {"m": -(2**63)}}, r"info\['n'\]\['m'\] is an integer of 64 bits"),
        ({"n": Silent()}, r"info\['n'\] is of type Silent, whose text cannot be made \(ValueError\)"),
        ({Silent(): 1}, "a key of info is of type Silent"),
        ({10**5000: 1}, "a key of info is of type int"),
        ({"n": nested(20_000)}, f"info is nested more than {MAX_DEPTH} levels"),
        ({"n": nested(20_000, dict)}, f"info is nested more than {MAX_DEPTH} levels"),
        (LOOP, "nested more than"),
        ({"n": "x" * (17 << 20)}, "info has more than 16,777,216 characters"),
        ({"n": [0] * (17 << 20)}, "info has more than 16,777,216 characters"),
        ({"score": None}, r'a score of None in info\["score"\], expected a finite number'),
        ({"score": float("nan")}, r'a score of nan in info\["score"\], expected a finite number'),
    ],
)
def test_a_value_that_cannot_be_written_fails_its_step_with_its_key(info, cause):
    with pytest.raises(EnvironmentFault, match=cause) as fault:
        checked_step(Step(observation="", info=info))
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(("reward", "advice"), [(None, False), (float("nan"), False), ("1", False), (1e9, True)])
def test_advice_fits_the_reward(reward, advice):
    with pytest.raises(EnvironmentFault, match="expected a finite number") as fault:
        checked_step(Step(observation="", reward=reward))
    assert ("scale its rewards" in str(fault.value)) is advice
    with pytest.raises(EnvironmentFault, match=r"a reward of .* in rewards\['goal'\]"):
        checked_step(Step(observation="", rewards={"goal": reward}))


KEYS = [
    None,
    "a",
    "",
    3,
    10**100,
    -0.5,
    True,
    float("inf"),
    b"\0\xff",
    ("a", (1, None)),
    frozenset({"b", ("c", 2)}),
    (),
]


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_a_state_key_arrives_as_it_was(key):
    step = checked_step(Step(observation="seen", state_key=key))
    again = PlainStep.read(PlainStep.of(step).framed()[8:]).step(100)
    assert again == step
    assert type(again.state_key) is type(key)
    assert key_from_json(json.loads(json.dumps(key_as_json(key)))) == key


def test_a_state_key_is_of_plain_types_only():
    assert checked_key((np.int64(3), np.str_("a"))) == (3, "a")
    assert [type(part) for part in checked_key((np.int64(3), np.str_("a")))] == [int, str]
    with pytest.raises(EnvironmentFault, match="a object, expected text"):
        checked_key(object())


@pytest.mark.parametrize("record", [{}, {"set": 1}, {"a": 1, "b": 2}, {"bytes": "x"}, {"float": []}, {"set": [{}]}])
def test_a_forged_key_is_refused(record):
    with pytest.raises(ProtocolError, match="state_key"):
        key_from_json(record)


def test_a_step_of_a_seat_arrives_with_the_last_steps_of_all():
    last = (Step(observation="won", reward=1.0, terminated=True), Step(observation="lost", terminated=True))
    step = SeatStep(observation="your turn", seat=1, ends=last)
    assert PlainStep.read(PlainStep.of(step).framed()[8:]).step(100) == step


def test_a_name_of_the_trainers_means_what_the_trainer_writes():
    """Each would have ended the run, or changed what is learned from."""
    info = {name: ["find the key"] for name in (*OURS, "objectives")} | {"success": True, "actor": "me"}
    checked = checked_info(info)
    assert checked == {
        **{f"environment.{name}": ["find the key"] for name in (*OURS, "objectives")},
        "success": True,
        "actor": "me",
    }
    assert {ADVICE, CUT, PREDICTED, RECALLED, "replayed"} == OURS
    for objectives in ({"goal": 1, "steps": np.float32(0.5)}, {}):
        assert checked_info({"objectives": objectives}) == {"objectives": objectives}
    for objectives in ({"goal": "much"}, {"goal": math.inf}, {"goal": True}, "goal", [1.0]):
        assert list(checked_info({"objectives": objectives})) == ["environment.objectives"]


def test_objectives_are_averaged_where_they_are_told():
    played = [
        Trajectory(0, "t", [Turn("", "", [1], [2], [0.0], "", True)], ended="terminated", info={"objectives": told})
        for told in ({"a": 1.0}, {"a": 0.0, "b": 0.5}, {})
    ]
    assert objectives_of(played) == {"objective/a": 0.5, "objective/b": 0.5}
