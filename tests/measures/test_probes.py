"""Probes give what a plain pass over the same tokens gives, and compute a context once."""

import copy
import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.rollout.chat_models import chat_model
from tests.rollout.playing import FORMAT, POLICY, STOP, Passes, word
from tests.toys import small_config, trajectory

from turnwise.errors import ConfigError
from turnwise.measures import Played
from turnwise.measures.edited import PLACEHOLDER, hindsight, information, latest_observation, prompt
from turnwise.measures.gold import answer_ids, answers, gold
from turnwise.measures.hidden_rank import effective_ranks, rank_metrics, ranks
from turnwise.measures.plan import plan_measures
from turnwise.measures.planned import subgoals
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.subgoals import Planned
from turnwise.objective import contexts as contexts_module
from turnwise.objective import prober as prober_module
from turnwise.objective.contexts import Contexts
from turnwise.objective.gradient import Budget
from turnwise.objective.probe import Probe
from turnwise.objective.prober import Prober
from turnwise.objective.scorer import Scorer
from turnwise.objective.tokens import Sequences
from turnwise.rollout.local import LocalEngine
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.loop import train

TEMPERATURE = 0.7
RED, BLUE = word("red"), word("blue")


def conversation(group: int, *turns: tuple[str, str], last: str = "say pink", fresh: bool = False) -> Trajectory:
    """A trajectory of (observation, response) as the policy reads it."""
    made = Trajectory(group, str(group), ended="terminated", last_observation=last, info={"gold": "red blue"})
    for number, (observation, response) in enumerate(turns):
        read = FORMAT.prompt_ids(observation, first=not number)
        said = FORMAT.response_ids(response)
        made.turns.append(Turn(observation, observation, read, said, [-1.0] * len(said), response, False, fresh=fresh))
    return made


PLAYED = [
    conversation(0, ("say red", "red"), ("say green green", "pink"), ("say blue", "blue red")),
    conversation(0, ("say red", "pink"), last="say green"),
    conversation(1, ("say blue pink", "blue"), ("say", "red")),
]


def prober(trajectories=PLAYED, *, budget: int = 10_000, policy=POLICY) -> Prober:
    sequences = Sequences.from_trajectories(trajectories)
    engine = LocalEngine(policy.model)
    return Prober(policy, sequences, ModelConfig(), TEMPERATURE, Budget(budget), engine)


def step(trajectories=PLAYED, **more) -> Played:
    return Played(trajectories, probe=prober(trajectories, **more))


@torch.no_grad()
def plain(ids: list[int], places: list[int], targets: list[int] | None = None, policy=POLICY):
    """Log-probabilities and entropies at some places of one sequence, from a plain pass of the model."""
    logits = policy.model(torch.tensor([ids])).logits[0].double() / TEMPERATURE
    told = torch.log_softmax(logits, -1)
    at = [place - 1 for place in places]
    targets = [ids[place] for place in places] if targets is None else targets
    return told[at, targets].numpy(), -(told.exp() * told).sum(-1)[at].numpy()


def mean_of_end(context: list[int], text: list[int], num: int | None = None) -> float:
    """Mean log-probability of the last `num` tokens of `text` after `context`."""
    ids = [*context, *text]
    return plain(ids, list(range(len(ids) - (num or len(text)), len(ids))))[0].mean()


def context(which: Trajectory, turn: int) -> list[int]:
    """All tokens before a response, of a conversation that grows."""
    before = [[*each.prompt_ids, *each.response_ids] for each in which.turns[:turn]]
    return [*itertools.chain(*before), *which.turns[turn].prompt_ids]


@pytest.mark.parametrize("budget", [10_000, 1])
def test_a_probe_scores_as_a_plain_pass(budget):
    probes = [
        Probe(0, 5, [*RED, *BLUE]),
        Probe(1, 4, BLUE * 3, first=1, stop=2),
        Probe(0, 2, [*RED, *RED, *BLUE], first=1, targets=[*BLUE, *RED]),
        Probe(0, 9, BLUE),
        Probe(2, 1, [*RED, STOP]),
    ]
    asked = prober(budget=budget)
    scores = asked.score(probes)
    assert scores.tokens.lengths.tolist() == [2, 1, 2, 1, 2]
    expected = []
    for probe in probes:
        ids = [*asked.sequences.token_ids[probe.sequence][: probe.cut].tolist(), *probe.ids]
        places = [probe.cut + place for place in probe.places]
        expected.append(plain(ids, places, list(probe.targets) if probe.targets else None))
    for got, index in ((scores.logprob, 0), (scores.entropy, 1)):
        np.testing.assert_allclose(got, np.concatenate([each[index] for each in expected]), atol=2e-6)
    assert np.ptp(scores.logprob) > 0.5


def test_a_context_is_computed_once_for_all_its_probes():
    seen = []
    hook = POLICY.model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].numel()), with_kwargs=True
    )
    try:
        asked = prober([PLAYED[0]])
        length = len(asked.sequences.token_ids[0])
        asked.score([Probe(0, cut, RED) for cut in range(1, length + 1)])
    finally:
        hook.remove()
    assert seen == [length, length]  # the context, and one token for each probe; apart it would be length² / 2
    assert asked.num_tokens == 2 * length
    asked.score([Probe(0, 3, RED), Probe(0, 2, BLUE)])
    assert asked.num_tokens == 2 * length + 5  # of the context only as much as is needed


MANY = [
    Probe(sequence, cut, [*RED, *BLUE, STOP] * (1 + cut % 3), first=cut % 2)
    for sequence, most in enumerate((20, 7, 12))
    for cut in range(1, most)
]


def after_scoring(*, budget: int = 10_000, policy=POLICY) -> Prober:
    """A prober that goes on from what the scoring pass has kept."""
    sequences, contexts = Sequences.from_trajectories(PLAYED), Contexts(policy.model)
    Scorer(sequences, ModelConfig(), TEMPERATURE, Budget(budget), contexts=contexts)(policy.model)
    return Prober(policy, sequences, ModelConfig(), TEMPERATURE, Budget(budget), contexts=contexts)


@pytest.mark.parametrize("budget", [10_000, 40, 1])
@pytest.mark.parametrize("side_by_side", [1, 5, 10_000])
def test_probes_go_on_from_what_the_scoring_pass_has_kept(monkeypatch, budget, side_by_side):
    monkeypatch.setattr(prober_module, "SIDE_BY_SIDE", side_by_side)
    asked, fed = after_scoring(budget=budget), []
    hook = POLICY.model.get_decoder().register_forward_pre_hook(
        lambda _, __, given: fed.append(given["input_ids"]), with_kwargs=True
    )
    try:
        scores = asked.score(MANY)
    finally:
        hook.remove()
    num_probed = sum(len(probe.ids) for probe in MANY)
    assert asked.num_tokens == num_probed
    assert num_probed <= sum(ids.numel() for ids in fed)
    if side_by_side == budget == 1:  # then nothing is padded, and no token of a context is computed again
        assert num_probed == sum(ids.numel() for ids in fed)
    expected = prober().score(MANY)
    np.testing.assert_allclose(scores.logprob, expected.logprob, atol=2e-6)
    np.testing.assert_allclose(scores.entropy, expected.entropy, atol=2e-6)
    again = asked.score(MANY[:9])  # what was kept is as it was
    np.testing.assert_allclose(again.logprob, expected.logprob[: len(again.logprob)], atol=2e-6)


def test_what_does_not_fit_is_computed_again(monkeypatch):
    one = after_scoring(budget=1)  # a micro-batch for each sequence
    first = next(iter(one._contexts))
    monkeypatch.setattr(contexts_module, "MOST_BYTES", first.num_bytes)
    asked = after_scoring(budget=1)
    assert asked._contexts.sequences == set(first.sequences.tolist())
    np.testing.assert_allclose(asked.score(MANY).logprob, prober().score(MANY).logprob, atol=2e-6)
    again = [
        len(ids) for number, ids in enumerate(asked.sequences.token_ids) if number not in asked._contexts.sequences
    ]
    assert asked.num_tokens > sum(len(probe.ids) for probe in MANY) + sum(again) / 2


def test_what_was_kept_makes_room_when_memory_runs_out(monkeypatch):
    asked, expected, passes = after_scoring(), prober().score(MANY), []
    whole = Prober._pass

    def short(self, rows, tokens, max_tokens):
        passes.append(len(self._contexts.sequences))
        if len(passes) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, rows, tokens, max_tokens)

    monkeypatch.setattr(Prober, "_pass", short)
    np.testing.assert_allclose(asked.score(MANY).logprob, expected.logprob, atol=2e-6)
    assert passes == [3, 0]


def test_only_a_pass_of_the_same_model_is_kept():
    sequences, contexts = Sequences.from_trajectories(PLAYED), Contexts(POLICY.model)
    scorer = Scorer(sequences, ModelConfig(), TEMPERATURE, Budget(10_000), contexts=contexts)
    scorer(copy.deepcopy(POLICY.model))
    assert not contexts.sequences
    scorer(POLICY.model)
    scorer(POLICY.model)  # each once
    assert sorted(number for each in contexts for number in each.sequences) == [0, 1, 2]


def test_the_scoring_pass_comes_before_the_probes():
    plan = plan_measures({"method 'hcapo'": ("hindsight_logprob", "logprob")})
    names = [each.name for each in plan.measures]
    assert names.index("scores") < names.index("hindsight")
    assert names[0] == "scores"


def test_ranks_are_read_from_what_was_kept():
    passes = Passes(POLICY)
    asked = after_scoring()
    count = passes.count
    kept = ranks.run(Played(PLAYED, probe=asked), {})
    assert passes.count == count
    for name, values in ranks.run(step(), {}).items():
        np.testing.assert_allclose(kept[name], values, atol=2e-4, err_msg=name)


def test_probes_of_several_trajectories_share_a_pass():
    passes = Passes(POLICY)
    prober().score([Probe(sequence, 3, RED) for sequence in range(3)])
    assert passes.count == 2


def test_the_gold_answer_is_scored_before_each_response():
    got = gold.run(step(), {})["gold_logprob"]
    whole, first, stop = answer_ids(FORMAT, "red blue", "{gold}")
    assert (first, stop) == (0, 2)
    assert list(whole) == [*RED, *BLUE, STOP]
    expected = [mean_of_end(context(each, turn), [*RED, *BLUE]) for each in PLAYED for turn in range(len(each.turns))]
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert len(set(got.round(4))) > 3


@pytest.mark.parametrize(
    ("text", "form", "scored"),
    [
        ("red", "say {gold} pink", ["red"]),
        ("say", "say {gold}", ["say"]),
        ("red blue", "{gold} blue", ["red", "blue"]),
    ],
)
def test_only_the_answer_itself_is_scored(text, form, scored):
    whole, first, stop = answer_ids(FORMAT, text, form)
    assert FORMAT.text(whole[first:stop]).split() == scored


def test_a_task_without_an_answer_is_refused_in_one_line():
    bare = dataclasses.replace(PLAYED[1], info={})
    with pytest.raises(ConfigError, match=r"task '0' ended with info\['gold'\] = None .*expected the right answer"):
        gold.run(step([bare]), {})


def test_an_environment_without_answers_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(ConfigError, match=r"reads info\['gold'\], which environment 'tests.toys:Colors' does not give"):
        train(small_config(tmp_path, method="igpo", aem=False))
    assert not (tmp_path / "run").exists()


def test_sampled_answers_are_scored_place_by_place(monkeypatch):
    asked = step(PLAYED[:1])
    said = [[*RED, STOP], [*BLUE], [*BLUE, *BLUE, *RED], [*RED, *RED], [*RED, *BLUE]] * 3
    monkeypatch.setattr(asked.probe, "sample", lambda *_, **__: said)
    got = answers.run(asked, {})
    likely, sure = [], []
    for turn in range(3):
        before = context(PLAYED[0], turn)
        each = []
        for ids in said[:5]:
            start, right = len(before), [*RED, *BLUE]
            places = list(range(start, start + len(ids)))
            shared = min(len(ids), 2)
            told = plain([*before, *ids], places[:shared], right[:shared])[0]
            each.append((np.exp(told).sum() / 2, np.exp(-plain([*before, *ids], places)[1].mean())))
        likely.append(np.mean([a for a, _ in each]))
        sure.append(np.mean([b for _, b in each]))
    np.testing.assert_allclose(got["accuracy"], [likely[1], likely[2], likely[2]], atol=1e-6)
    np.testing.assert_allclose(got["confidence"], [sure[1], sure[2], sure[2]], atol=1e-6)


def test_sampled_answers_repeat_and_depend_on_the_context():
    one, again = (answers.run(step(), {}) for _ in range(2))
    np.testing.assert_array_equal(one["confidence"], again["confidence"])
    assert len(set(one["confidence"].tolist())) > 3
    assert (one["accuracy"] > 0).all()
    assert (one["accuracy"] < 1).all()


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


def test_a_response_without_a_subgoal_does_not_change_it():
    said = [Planned(True, "a", (0, 0)), Planned(False, None, (0, 0)), Planned(False, "b", (0, 0))]
    played = SimpleNamespace(
        trajectories=[SimpleNamespace(turns=[SimpleNamespace(response_ids=n) for n in range(3)])],
        probe=SimpleNamespace(format=SimpleNamespace(planned=said.__getitem__)),
    )
    made = subgoals.run(played, {})
    assert made["switch"] == [1.0, 0.0, 0.0]
    assert made["subgoal_changed"] == [0.0, 0.0, 1.0]


def test_probes_of_a_run_are_metrics(tmp_path):
    config = small_config(
        tmp_path,
        method="infopo",
        aem=False,
        measures=["prompt"],
        rollout={"context": "window", "window": 1},
        environment={"name": "tests.train.test_every_method_trains:Stairs"},
    )
    record = next(line for line in train(config).metrics() if "measure/information_tokens" in line)
    assert record["time/measure_information_s"] > 0
    assert record["measure/information_tokens"] > record["measure/prompt_tokens"] > 0
