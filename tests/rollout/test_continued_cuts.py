"""Values at cuts inside responses: where trajectories are cut, and what continuations from there say."""

from types import SimpleNamespace

import numpy as np
from tests.rollout.playing import FORMAT, POLICY
from tests.rollout.playing import play as play_tasks
from tests.rollout.test_continuations import service
from tests.rollout.test_starts import Long
from tests.toys import Colors, trajectory
from tests.train.test_every_method_trains import batches, config_of, weights  # noqa: F401

from turnwise.config import override_config
from turnwise.engines.local import LocalEngine
from turnwise.extensions.continuations.measures import continued_cuts
from turnwise.extensions.continuations.play import Histories
from turnwise.measures import Played
from turnwise.rollout.record import read_table
from turnwise.train.loop import train


def played(kind=Colors, size: int = 100):
    return play_tasks(LocalEngine(POLICY.model), [1], kind, group_size=size, seed=3)


def test_after_the_first_word_the_outcome_is_decided(tmp_path):
    """The environment pays the first word, so continuations from behind it all return what the trajectory got."""
    responses = ((one, one.turns[0].response_ids) for one in played())
    trajectories = [one for one, ids in responses if len(ids) == 3 and FORMAT.text(ids[:1])]
    assert len({one.reward for one in trajectories}) == 2
    asked = service(Colors, number=4)
    cuts = [[0, 1, 2]] * len(trajectories)
    return_CK = asked(trajectories, [1], cuts)
    assert return_CK.shape == (3 * len(trajectories), 4)
    begun = return_CK.reshape(-1, 3, 4)
    own = np.array([one.reward for one in trajectories])
    np.testing.assert_array_equal(begun[:, 1:], np.broadcast_to(own[:, None, None], (len(own), 2, 4)))
    assert len(np.unique(service(Colors, number=64)(trajectories, [1]))) == 2, "at the prompt nothing is decided"
    assert asked(trajectories, [1], [[0, 1, 2]] * len(trajectories)) is return_CK
    assert asked(trajectories, [1]).shape == (len(trajectories), 4), "other cuts are another question"
    asked.finish(tmp_path / "step-000001.parquet")
    rows = read_table(tmp_path / "step-000001.parquet", ()).to_pylist()
    assert {row["token"] for row in rows} == {0, 1, 2}
    assert all(row["tokens"] <= 3 - row["token"] for row in rows), "what a continuation was given is not counted"
    assert sum(row["tokens"] for row in rows) == asked.num_tokens


def test_a_state_inside_a_response_is_no_state_after_it():
    """The same tokens, once cut and once complete, are two histories; shared beginnings are one."""
    one, two = (trajectory(0, ([1], [5, 6]), ([2], [7])), trajectory(0, ([1], [5, 8]), ([2], [7])))
    found = Histories.of([one, two], ["x"], [[0, 1], [0], [0, 1], []])
    assert found.before_R.tolist() == [0, 1, 2, 0, 1]
    assert found.after_R.tolist() == [1, 2, -1, 1, -1]
    assert [(len(start.turns), start.token) for start in found.starts] == [(0, 0), (0, 1), (1, 0)]


class Answers:
    """Continuations that answer with given returns, and remember what they were asked."""

    def __init__(self, returns, *, every: int, below: float = 0.9):
        self.settings = SimpleNamespace(cut_every=every, cut_below=below)
        self.returns, self.cuts = np.array(returns, dtype=np.float64), None

    def __call__(self, trajectories, tasks, cuts):
        self.cuts = cuts
        return self.returns


def paid(*rewards: float, tokens: int):
    one = trajectory(0, *[([1], [5] * tokens)] * len(rewards))
    for turn, reward in zip(one.turns, rewards, strict=True):
        turn.reward = reward
    return one


LIKELY, RARE = np.log(0.95), np.log(0.5)


def test_the_first_unlikely_token_and_every_second_after_it_are_cut_along_the_trajectory():
    """Unlikely tokens are counted over responses; the prompt is valued too, and is a cut if the first token is one."""
    logprob_T = np.array([RARE, LIKELY, RARE, RARE, LIKELY, RARE] + [LIKELY] * 5 + [RARE])
    asked = Answers([[1, 3], [4, 4], [5, 7], [1, 1]], every=2)
    step = Played([paid(0.5, 1, tokens=3), paid(0, 2, tokens=3)], continuations=asked)
    columns = continued_cuts.run(step, {"logprob_T": logprob_T})
    assert asked.cuts == [[0], [0], [0], [2]]
    assert columns["cut_T"].tolist() == [1, 0, 0, 1, 0, 0] + [0] * 5 + [1]
    assert columns["cut_value_T"].tolist() == [2, 2, 2, 4, 4, 4] + [6] * 5 + [1]


def test_the_threshold_decides_what_is_unlikely():
    asked = Answers([[1, 1], [2, 2]], every=1, below=0.6)
    continued_cuts.run(Played([paid(1, tokens=3)], continuations=asked), {"logprob_T": np.log([0.7, 0.5, 0.61])})
    assert asked.cuts == [[0, 1]]


def test_a_cut_without_a_value_is_no_cut_and_a_prompt_without_one_gives_no_credit():
    nothing = [np.nan, np.nan]
    asked = Answers([nothing, nothing, [3, 5]], every=1)
    logprob_T = np.array([LIKELY, RARE, LIKELY, LIKELY, RARE, LIKELY])
    columns = continued_cuts.run(Played([paid(0.5, 1, tokens=3)], continuations=asked), {"logprob_T": logprob_T})
    assert asked.cuts == [[0, 1], [1]]
    assert columns["cut_T"].tolist() == [0, 0, 0, 0, 1, 0]
    assert columns["cut_value_T"].tolist() == [4.5] * 4 + [4.0] * 2, "1/2 was earned before the cut"
    asked = Answers([nothing], every=1, below=0.1)
    columns = continued_cuts.run(Played([paid(0.5, 1, tokens=3)], continuations=asked), {"logprob_T": logprob_T})
    assert columns["cut_value_T"].tolist() == [1.5] * 6


def test_every_history_is_played_as_often_as_asked():
    trajectories = play_tasks(LocalEngine(POLICY.model), [0, 1], Long, group_size=2, seed=3)
    asked = service(number=2, cut_every=2)
    logprob_T = np.full(sum(len(turn.response_ids) for one in trajectories for turn in one.turns), RARE)
    columns = continued_cuts.run(Played(trajectories, continuations=asked, tasks=[0, 1]), {"logprob_T": logprob_T})
    num_N = np.array([sum(len(turn.response_ids) for turn in one.turns) for one in trajectories])
    assert columns["cut_T"].sum() == (-(-num_N // 2)).sum()
    assert asked.num_tokens > 0


def test_a_run_cuts_inside_responses(tmp_path, batches):  # noqa: F811
    rule = {"tokens": {"name": "spo_mask", "whiten": True}}
    config = override_config(config_of("spo_chain", tmp_path, update=rule), ["continuations.cut_every=2"])
    folder = train(config)
    batch = batches[-1]
    cut_T, tokens = batch.column("cut_T", needed_by="the test"), batch.tokens
    assert cut_T[tokens.positions > 0].any(), "inside a response"
    rows = read_table(folder.continuations / "step-000002.parquet", ()).to_pylist()
    assert {row["token"] for row in rows} > {0}
    assert folder.metrics()[-2]["measure/continued_cuts_tokens"] == sum(row["tokens"] for row in rows)
    assert (weights(folder, 0) - weights(folder, 2)).abs().max() > 1e-4
