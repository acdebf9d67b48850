"""Gains of observations, hindsight and ranks, on numbers."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.measures.probed import PLAYED, RED, context, conversation, mean_of_end, step
from tests.measures.rank_reference import rank_metrics
from tests.rollout.chat_models import chat_model
from tests.rollout.playing import FORMAT, POLICY, STOP
from tests.toys import small_config, trajectory

import turnwise as tw
from turnwise.measures.edited import DELETED, PLACEHOLDER, hindsight, information, latest_observation, left_out, prompt
from turnwise.measures.gold import answer_ids
from turnwise.measures.hidden_rank import effective_ranks, ranks
from turnwise.measures.planned import subgoals
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.subgoals import Planned
from turnwise.objective.tokens import Sequences
from turnwise.train.loop import train


def logprobs(trajectories) -> np.ndarray:
    """Mean log-probability of each response in its own context."""
    return np.array(
        [mean_of_end(context(each, t), turn.response_ids) for each in trajectories for t, turn in enumerate(each.turns)]
    )


def test_the_gain_of_an_observation_is_the_fall_without_it():
    known = logprobs(PLAYED)
    got = information.run(step(), {"logprob": known})["info_gain"]
    blank = FORMAT.text_ids(PLACEHOLDER)
    expected = np.zeros(6)
    for row, each, turn in ((0, PLAYED[0], 1), (1, PLAYED[0], 2), (4, PLAYED[2], 1)):
        before, after = FORMAT.frame(first=False)
        seen = each.turns[turn].prompt_ids
        length = len(seen) - len(before) - len(after)
        hidden = [*before, *(blank + blank[-1:] * length)[:length], *after]
        assert len(hidden) == len(seen)  # positions do not move
        head, said = context(each, turn)[: -len(seen)], each.turns[turn].response_ids
        expected[row] = mean_of_end(context(each, turn), said) - mean_of_end([*head, *hidden], said, len(said))
    np.testing.assert_allclose(got, expected, atol=5e-6)
    assert got[[2, 3, 5]].tolist() == [0.0, 0.0, 0.0]  # nothing follows
    assert np.abs(got[[0, 1, 4]]).min() > 1e-3


def test_an_observation_that_equals_the_placeholder_gains_exactly_nothing():
    one = conversation(0, ("say red", "red"), ("say", "blue"))
    before, after = FORMAT.frame(first=False)
    one.turns[1].prompt_ids = [*before, *FORMAT.text_ids(PLACEHOLDER)[:1], *after]
    assert information.run(step([one]), {"logprob": np.array([-0.1, -0.2])})["info_gain"].tolist() == [0.0, 0.0]


def test_what_the_answer_loses_without_a_turn():
    """With its response and the observation after it deleted, all later turns stay; PLAYED ends in 3, 1 and 2 turns."""
    got = left_out.run(step(), {})["turn_drop"]
    whole, first, stop = answer_ids(FORMAT, "red blue", "{gold}")
    before, after = FORMAT.frame(first=False)
    gone = [*FORMAT.response_ids(DELETED), *before, *FORMAT.text_ids(DELETED), *after]

    def scored(ids):
        return mean_of_end(ids, whole[:stop], stop - first)

    three, two = PLAYED[0], PLAYED[2]
    rest = [*three.turns[1].response_ids, *three.turns[2].prompt_ids]
    without = [[*context(three, 0), *gone, *rest], [*context(three, 1), *gone], [*context(two, 0), *gone]]
    full = [scored(context(three, 2)), scored(context(three, 2)), scored(context(two, 1))]
    expected = [a - scored(ids) for a, ids in zip(full, without, strict=True)]
    np.testing.assert_allclose(got[[0, 1, 4]], expected, atol=5e-6)
    assert got[[2, 3, 5]].tolist() == [0.0, 0.0, 0.0], "the last response is the answer's place"
    assert np.abs(got[[0, 1, 4]]).min() > 1e-3


def test_a_turn_that_the_context_lost_is_not_left_out():
    """The third prompt begins anew, so that only what follows it can be left out."""
    again = conversation(0, ("say red", "red"), ("say green", "pink"), ("say blue", "blue"), ("say red", "red"))
    again.turns[2].fresh = True
    again.turns[2].prompt_ids = FORMAT.prompt_ids("say blue", first=True)
    got = left_out.run(step([again]), {})["turn_drop"]
    assert got[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    assert abs(got[2]) > 1e-3


def test_hindsight_is_the_end_noted_in_the_prompt():
    got = hindsight.run(step(), {})["hindsight_logprob"]
    _, after = FORMAT.frame(first=False)
    expected = []
    for each in PLAYED:
        note = FORMAT.text_ids(f"\nThe episode ends with: {each.last_observation}")
        for number, turn in enumerate(each.turns):
            head = context(each, number)[: -len(after)]
            expected.append(mean_of_end([*head, *note, *after], turn.response_ids))
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert np.abs(got - logprobs(PLAYED)).min() > 1e-4


def test_a_prompt_is_scored_once_per_group():
    asked = step()
    got = prompt.run(asked, {})["prompt_logprob"]
    first, second = PLAYED[0].turns[0].prompt_ids, PLAYED[2].turns[0].prompt_ids
    expected = [mean_of_end(ids[:1], ids[1:]) for ids in (first, second)]
    np.testing.assert_allclose(got, [expected[0]] * 4 + [expected[1]] * 2, atol=2e-6)
    assert asked.probe.num_tokens == len(first) + len(second)


@pytest.mark.parametrize("budget", [10_000, 1])
def test_ranks_are_those_of_the_hidden_states(budget):
    rng = np.random.default_rng(0)
    lengths = (130, 1, 90, 2, 45)
    made = [
        trajectory(number, *(([3, 4], rng.integers(1, 9, length).tolist()) for length in part))
        for number, part in enumerate((lengths[:2], lengths[2:]))
    ]
    got = ranks.run(step(made, budget=budget), {})
    expected, sequences = [], Sequences.from_trajectories(made)
    for ids, places, each in zip(sequences.token_ids, sequences.generated, made, strict=True):
        with torch.no_grad():
            hidden = POLICY.model.get_decoder()(torch.from_numpy(ids)[None]).last_hidden_state[0].numpy()
        starts = np.cumsum([0, *(len(turn.response_ids) for turn in each.turns)])
        expected += [rank_metrics(hidden[places[a:b]]) for a, b in itertools.pairwise(starts)]
    for name, values in zip(ranks.provides, np.transpose(expected), strict=True):
        np.testing.assert_allclose(got[name], values, atol=2e-4, err_msg=name)
    assert np.count_nonzero(got["rank_velocity"]) == 2
    assert np.count_nonzero(got["rank_acceleration"]) == 1


def test_the_rank_of_the_cards_example():
    hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, 5.0], [5.0, 5.0]])
    got = effective_ranks(hidden, np.array([0, 3, 0]), np.array([3, 5, 1]))
    np.testing.assert_allclose(got, [1.9286, 0.0, 0.0], atol=1e-4)


def test_the_latest_observation_is_found_in_a_window_and_in_a_chat_model():
    before, after = FORMAT.frame(first=False)
    old, new = FORMAT.prompt_ids("say red", first=True), FORMAT.prompt_ids("say green green", first=False)
    ids = [*old, *RED, STOP, *new]
    first, stop = latest_observation(ids, before, after)
    assert FORMAT.text(ids[first:stop]) == "say green green"
    policy = pretrained_policy(ModelConfig(name=str(chat_model("qwen3")), max_context=400), PromptConfig(), seed=0)
    fmt = policy.format
    for text in ("go to cabinet 1", "\nsay red\n"):
        ids = [*fmt.prompt_ids("say", first=True), *fmt.prompt_ids(text, first=False)]
        first, stop = latest_observation(ids, *fmt.frame(first=False))
        assert fmt.tokenizer.decode(ids[first:stop]) == text


def test_a_merge_at_the_latest_observation_does_not_lead_to_an_earlier_one():
    """The end of the template, 9, is merged with the observation into 8; an earlier place has it whole."""
    before, after = [9, 1, 2, 9], [3]
    ids = [9, 1, 2, 9, 50, 3, 60, 9, 1, 2, 8, 51, 3]
    assert latest_observation(ids, before, after) == (10, 12)
    assert latest_observation([9, 1, 2, 9, 50, 3], before, after) == (4, 5)
    assert latest_observation([1, 50, 3], [1], after) == (1, 2)


def told_of(*said: Planned) -> dict:
    """What the measure tells of one trajectory with these responses."""
    played = SimpleNamespace(
        trajectories=[SimpleNamespace(turns=[SimpleNamespace(response_ids=n) for n in range(len(said))])],
        probe=SimpleNamespace(format=SimpleNamespace(planned=said.__getitem__)),
    )
    return dict(subgoals.run(played, {}))


def test_a_subgoal_is_compared_with_that_of_the_turn_before():
    def kept(subgoal: str | None) -> Planned:
        return Planned(False, subgoal, (0, 0))

    made = told_of(Planned(True, "a", (0, 0)), kept(None), kept("b"), kept("c"), kept("c"), Planned(True, "d", (0, 0)))
    assert made["switch"] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert made["subgoal_changed"] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_a_first_response_that_keeps_is_fined_and_begins_a_segment():
    made = told_of(*[Planned(False, None, (0, 0))] * 2)
    columns = {"switch": made["switch"], "value_high": [1.0, 9.0]}
    batch = tw.Batch(tw.Segments([0, 1]), tw.Segments([0, 2]), [0.0, 0.0], columns)
    np.testing.assert_allclose(tw.penalize_keeping(penalty=-0.3)(batch), [-0.15, -0.15])
    assert tw.credit_subgoals(standardize=False)(batch).tolist() == [-1.0, 0.0], "one segment, from turn 0 on"


def test_probes_of_a_run_are_metrics(tmp_path):
    config = small_config(
        tmp_path,
        method="infopo",
        measures=["prompt"],
        rollout={"context": "window", "window": 1},
        environment={"name": "tests.train.test_every_method_trains:Stairs"},
    )
    record = next(line for line in train(config).metrics() if "measure/information_tokens" in line)
    assert record["time/measure_information_s"] > 0
    assert record["measure/information_tokens"] > record["measure/prompt_tokens"] > 0
