"""Likely mistakes with the library: each is one line that says what to write.

They run in a process of their own, without the run-time checks of array types that the tests switch on.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

import turnwise as tw

SETUP = """
import datetime, json, sys
import numpy as np
import turnwise as tw

def rows(**changes):
    given = {"group": ["q"] * 4, "trajectory": list("aabb"), "reward": [0, 1, 0, 0]}
    return tw.Batch.from_arrays(**(given | changes))

def entropy(values):
    return rows(columns={"entropy": values})

batch = rows()[0]
listing = tw.Transform("listing", lambda credit_R, state, batch: (credit_R.tolist(), state))
masked = np.ma.masked_array([0.0, 1.0, 0.0, 0.0], mask=[0, 1, 0, 0])
dates = np.array(["2026-01-01"] * 4, dtype="datetime64[s]")
"""
MISTAKES = {
    "tw.grpo()(rows())": "write `batch, order = tw.Batch.from_arrays(...)`",
    "tw.grpo()({'reward': [1]})": "grpo(convention='turnwise') needs a Batch, got dict; make one with",
    "tw.grpo().trace(rows())": "got the tuple (batch, order)",
    "tw.gae()(rows())": "needs a Batch",
    "tw.aem(tw.grpo)": "aem(): base must be a transform, got the function grpo; call it: grpo()",
    "tw.aem('grpo')": "aem(): base must be a transform, got the text 'grpo'; write tw.grpo()",
    "tw.aem(base=3)": "got 3; write a method or a block, such as tw.grpo()",
    "tw.grpo(batch)": "grpo() takes options, not a batch; build it first, then call it: grpo()(batch)",
    "tw.aem(batch)": "then call it: aem()(batch)",
    "tw.outcome_return(batch)": "then call it: outcome_return()(batch)",
    "tw.grpo('trl')": "give options by name: grpo(convention=...)",
    "tw.grpo(conventon='trl')": "grpo() has no option 'conventon'. Did you mean 'convention'?",
    "tw.rloo(eps=1)": "rloo() has no option 'eps'.",
    "tw.discounted_return(dicount=0.9)": "Did you mean 'discount'?",
    "tw.ace()": "ace() needs the option 'weight': ace(weight=...)",
    "tw.aem(temperature='hot')": "aem(temperature='hot'): expected a number",
    "tw.aem(temperature=True)": "aem(temperature=True): expected a number",
    "tw.aem(temperature=float('nan'))": "aem(temperature=nan): expected a finite number",
    "tw.aem(temperature=float('inf'))": "aem(temperature=inf): expected a finite number",
    "tw.canon(efficiency=10**400)": "expected a finite number",  # too large for a float
    "tw.reinforce(discount=None)": "reinforce(discount=None): expected a number",
    "tw.aem(seed=0.5)": "aem(seed=0.5): expected a whole number",
    "tw.modulate_by_entropy(min_range='small')": "expected a number",
    "tw.chain(tw.grpo)": "chain(): part 0 must be a transform, got the function grpo; call it: grpo()",
    "tw.chain(tw.grpo(), 'aem')": "part 1 must be a transform, got the text 'aem'",
    "tw.canon(divisor=0)": "divisor=0: expected another number",
    "tw.mix(tw.grpo(), weights=0.5)": "mix(weights=0.5): expected one number per transform",
    "tw.mix(tw.grpo(), weights=['1'])": "mix(weights=['1']): expected a number",
    "tw.bilevel_gae(turn_discount=95)": "turn_discount=95 must lie in [0, 1]",
    "tw.hiper(subgoal_decay=9.5)": "subgoal_decay=9.5 must lie in [0, 1]",
    "tw.graph_gpo(omega=-0.5)": "omega=-0.5 must lie in [0, 1]",
    "tw.canon(mu=2.0)": "mu=2.0 must lie in [0, 1]",
    "tw.hcapo(smoothing=2.0)": "smoothing=2.0 must lie in [0, 1]",
    "tw.hiper(action_decay=-1)": "action_decay=-1 must lie in [0, 1]",
    "tw.mix(tw.grpo(), tw.rloo)": "mix(): part 1 must be a transform, got the function rloo",
    "rows(reward=1.0)": "reward is a float, expected a list or an array with one entry per response",
    "rows(reward='0100')": "reward is a str, expected a list",
    "rows(reward={0: 1, 1: 2, 2: 3, 3: 4})": "reward is a dict, expected a list",
    "rows(reward=np.float64(1))": "reward is a float64, expected a list",
    "rows(reward=np.array(1.0))": "reward is the single value 1.0, expected one entry per response",
    "rows(reward=['0', '1', '0', '0'])": "reward must hold numbers, got text, such as '0'",
    "rows(reward=np.array(['0', 1, 0, 0], dtype=object))": "reward must hold numbers, got text",
    "rows(reward=dates)": "reward must hold numbers, got dates, such as '2026-01-01T00:00:00'",
    "rows(reward=dates - dates)": "reward must hold numbers, got durations",
    "rows(reward=[datetime.datetime(2026, 1, 1)] * 4)": "reward must hold numbers",
    "rows(reward=[1j, 0, 0, 0])": "reward must hold numbers, got complex numbers",
    "rows(reward=[10**400, 0, 0, 0])": "reward must hold numbers",
    "rows(reward=masked)": "reward has 1 masked entries, which a batch cannot hold",
    "entropy(masked)": "entropy has 1 masked entries",
    "entropy([[0.1, 0.2], [0.1], [0.3], [0.4]])": "name a column with one list of token values per response with",
    "rows(columns=[0.1, 0.2, 0.3, 0.4])": "columns is a list, expected names with their values, such as",
    "rows(columns={1: [0.1, 0.2, 0.3, 0.4]})": "columns has the name 1, expected text",
    "rows(group='qqqq')": "group is a str, expected a list",
    "rows(trajectory=None)": "trajectory is a NoneType, expected a list",
    "rows(num_tokens=[1.5, 1, 1, 1])": "num_tokens[0] is 1.5, expected a whole number, 1 or more",
    "rows(num_tokens=[1, -1, 1, 1])": "num_tokens[1] is -1, expected a whole number, 1 or more",
    "rows(num_tokens=[1, 1, 0, 1])": "num_tokens[2] is 0, expected a whole number, 1 or more",
    "rows(num_tokens=['1', '1', '1', '1'])": "num_tokens must hold numbers, got text",
    "rows(columns={'logprob_T': [[-1.0], [], [-1.0], [-1.0]]})": "logprob_T[1] is empty; every response has at least",
    "rows(columns={'logprob_T': [['x'], [-1.0], [-1.0], [-1.0]]})": "logprob_T[0] must hold numbers, got text",
    "rows(columns={'logprob_T': [-1.0, -1.0, -1.0, -1.0]})": "logprob_T[0] is a float, expected a list",
    "tw.Batch([1], [1], [1.0])": "groups is a list, expected Segments; write Segments.from_lengths([...])",
    "tw.Batch(tw.Segments.from_lengths([1]), [1], [1.0])": "trajectories is a list, expected Segments",
    "tw.Segments.from_lengths([1.5])": "a segment cannot have 1.5 elements",
    "tw.Batch.from_trajectories(5)": "expected responses as groups[group][trajectory][turn], lists within lists",
    "tw.Batch.from_trajectories([[5]])": "lists within lists",
    "tw.Batch.from_trajectories([[{'reward': 1.0}]])": "groups[0][0][0] is a str, expected the values of one response",
}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """Run every mistake in one process; returns the type of its error and its message."""
    program = SETUP + "found = {}\nfor code in json.load(sys.stdin):\n"
    program += "    try:\n        eval(code)\n        found[code] = ('no error', '')\n"
    program += "    except Exception as error:\n        found[code] = (type(error).__name__, str(error))\n"
    program += "print(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input=json.dumps([*MISTAKES, *FINE]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("code", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_write(code, said):
    kind, message = said[code]
    assert kind in ("BatchError", "ConfigError"), (kind, message)
    assert MISTAKES[code] in message
    assert "\n" not in message
    assert len(message) < 300


def test_tensors_of_any_precision_and_with_gradients_are_columns():
    torch = pytest.importorskip("torch")
    plain = {"group": [0, 0, 0, 0], "trajectory": [0, 0, 1, 1], "reward": [0.0, 1.0, 0.0, 0.5]}
    entropy, logprob = [0.25, 0.5, 0.75, 1.0], [[-1.0, -2.0], [-0.5], [-0.25], [-1.0]]
    expected, _ = tw.Batch.from_arrays(**plain, columns={"entropy": entropy, "logprob_T": logprob})
    given, _ = tw.Batch.from_arrays(
        group=torch.tensor(plain["group"]),
        trajectory=[torch.tensor(label) for label in plain["trajectory"]],  # equal by value, though not the same object
        reward=torch.tensor(plain["reward"], dtype=torch.bfloat16),
        columns={
            "entropy": torch.tensor(entropy, requires_grad=True),
            "logprob_T": [torch.tensor(values, dtype=torch.bfloat16, requires_grad=True) for values in logprob],
        },
    )
    assert given.trajectories.lengths.tolist() == [2, 2]
    np.testing.assert_array_equal(given.reward_R, expected.reward_R)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(given.columns[name], column)


def test_a_masked_array_without_masked_entries_is_an_array():
    batch, _ = tw.Batch.from_arrays(group=[0, 0], trajectory=[0, 1], reward=np.ma.masked_array([0.0, 1.0], mask=[0, 0]))
    assert batch.reward_R.tolist() == [0.0, 1.0]


FINE = (
    "tw.aem(temperature=np.float32(0.5), seed=np.int64(3))",
    "tw.aem(None)",
    "tw.aem(temperature=-1)",
    "tw.chain(tw.outcome_return(), listing, tw.center_by_group())(batch)",
)


@pytest.mark.parametrize("code", FINE)
def test_what_is_right_is_accepted(code, said):
    assert said[code] == ["no error", ""]
