"""Self-play: seats as trajectories, past selves, fixed opponents, and what steps learn from."""

import asyncio
import gc
import shutil

import numpy as np
import pytest
import torch
from tests.rollout.matches import KUHN, MODEL, POLICY, collector, models, play, run_config, suite
from tests.toys import ScriptedEngine, small_config
from tests.train.test_every_method_trains import metrics_of, weights

import turnwise as tw
from turnwise.base.errors import ConfigError, EngineFault
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.models.tiny import tiny_policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.record import read_rollouts, write_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.credit import make_transform
from turnwise.train.evaluation.assess import assess
from turnwise.train.loop import train
from turnwise.train.recorded import read_step, recorded_batch
from turnwise.worlds.seats.base import POLICY as BY_POLICY
from turnwise.worlds.seats.base import Deal
from turnwise.worlds.seats.suite import Seats

POLICY_OF_BOARDS = tiny_policy(suite("tictactoe").words(), MODEL, seed=3)
with torch.no_grad():
    POLICY.model.get_output_embeddings().weight.mul_(20.0)  # a policy with preferences


def responses(trajectories: list[Trajectory]) -> list[list[str]]:
    return [[turn.response for turn in trajectory.turns] for trajectory in trajectories]


# -- matches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", ["kuhn", "tictactoe"])
def test_each_seat_of_a_match_is_a_trajectory_of_the_group(game):
    made = suite(game)
    played = play(2, size=6, made=made)
    assert [one.group for one in played] == [0] * 6 + [1] * 6
    assert [one.info["role"] for one in played] == ["first", "second"] * 6
    for first, second in zip(played[::2], played[1::2], strict=True):
        assert first.usable
        assert second.usable
        assert first.info["moves"] == second.info["moves"]
        assert first.reward == -second.reward
        cards = first.info["moves"][:2] if game == "kuhn" else []
        assert len(first.info["moves"]) == len(cards) + len(first.turns) + len(second.turns)
        for one in (first, second):
            mine = one.info["moves"][len(cards) :][one is second :: 2]
            given = [turn.response for turn in one.turns]
            assert all(move == said for move, said, turn in zip(mine, given, one.turns, strict=True) if turn.valid)
    if game == "kuhn":
        for group in (played[:6], played[6:]):
            assert len({tuple(one.info["moves"][:2]) for one in group}) == 1, "a group shares the deal"


def test_the_seed_alone_decides():
    once = play()
    assert responses(once) == responses(play())
    assert responses(once) != responses(play(seed=1))


def test_a_seat_sees_what_the_other_said():
    asked: list[str] = []

    class Watched(InProcessEnvironments):
        async def step(self, key, response):
            asked.append(response)
            return await super().step(key, response)

    words = {"check": POLICY.format.response_ids("check"), "bet": POLICY.format.response_ids("bet")}
    engine = ScriptedEngine(lambda number, turn: words["check" if number % 2 == 0 else "bet"])
    settings = RolloutConfig.model_validate({"collector": {"name": "self_play"}, "group_size": 2, "max_new_tokens": 2})
    played = play_tasks(
        make_collector(settings, Watched(KUHN.environment), str), models(engine), [KUHN.tasks("train")[0]], seed=0
    )
    assert asked[:2] == ["check", "bet"]
    assert played[1].turns[0].observation.endswith(": check")
    assert played[0].turns[1].observation.endswith(": check bet")


def test_a_seat_that_is_lost_ends_the_match_for_the_other_and_no_other_match():
    class Faulty(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            if sampling.draws == 2:
                await asyncio.sleep(0)
                raise EngineFault("the server is gone")
            return await super().generate(conversation, prompt_ids, sampling)

    played = play(1, engine=Faulty(lambda number, turn: POLICY.format.response_ids("bet")))
    assert [one.usable for one in played] == [True, True, False, False, True, True, True, True]
    assert "the server is gone" in (played[2].failure or "")
    assert "the first seat left the match" in (played[3].failure or "")


def test_a_seat_whose_match_ends_before_it_acts_is_no_failure(tmp_path):
    made = suite("tictactoe")
    won = Deal(seed=3, players=(BY_POLICY, BY_POLICY), opening=("1", "4", "2", "5"))  # x wins by 3
    words = POLICY_OF_BOARDS.format.response_ids("3")
    own = Models(policy=NamedModel(POLICY_OF_BOARDS, ScriptedEngine(lambda number, turn: words)))
    own.publish()
    played = play_tasks(collector(2, made), own, [won], seed=0)
    assert [one.failure for one in played] == [None, None]
    assert [one.usable for one in played] == [True, False]
    assert rollout_metrics(played)["failed_frac"] == 0
    assert [one.success for one in played] == [True, False]
    assert [one.info["result"] for one in played] == ["win", "loss"]
    assert played[1].turns == []
    write_rollouts(tmp_path / "step-000001.parquet", played, {})
    again, _ = read_rollouts(tmp_path / "step-000001.parquet")
    assert [len(one.turns) for one in again] == [1, 0]
    assert [one.failure for one in again] == [None, None]


@pytest.mark.parametrize("shares", [{}, {"random": 0.5, "expert": 0.5}])
def test_no_match_fails_however_long_its_opening(shares):
    made = suite("tictactoe", opening=5)
    own = Models(policy=NamedModel(POLICY_OF_BOARDS, LocalEngine(POLICY_OF_BOARDS.model)))
    own.publish()
    tasks = [made.tasks("train")[number] for number in range(40)]
    played = play_tasks(collector(8, made, **shares), own, tasks, seed=0)
    assert {one.failure for one in played} == {None}
    assert any(not one.turns for one in played), "no match tests what ends before a seat acts"
    assert rollout_metrics(played)["failed_frac"] == 0


# -- players -----------------------------------------------------------------------------------------------------------


def test_shares_of_opponents_and_the_seat_of_the_policy():
    played = play(20, random=0.5)
    spread = 4 * np.sqrt(80 / 4)  # four standard deviations of the matches against the fixed opponent
    assert abs(len(played) - 120) < spread, "a match against a fixed opponent is one trajectory"
    assert all(one.learns and one.info["actor"] == "policy" for one in played)
    alone = play(20, random=1.0)
    assert len(alone) == 80
    assert [one.info["role"] for one in alone[:4]] in (["first", "second"] * 2, ["second", "first"] * 2)


def test_only_the_seats_that_train_are_learned_from():
    played = play(2, train=["second"])
    assert [one.learns for one in played] == [False, True] * 8
    assert [one.usable for one in played] == [False, True] * 8
    metrics = rollout_metrics(played)
    assert metrics["failed_frac"] == 0
    assert metrics["reward"] == pytest.approx(np.mean([one.reward for one in played[1::2]]))
    assert metrics["env_steps"] == sum(len(one.turns) for one in played)


def test_past_selves_play_with_their_weights_and_are_kept_in_bounds():
    made, own = collector(past=1.0, keep=2, every=2), models()
    tasks = [KUHN.tasks("train")[number] for number in range(4)]
    before = {name: each.detach().clone() for name, each in POLICY.model.named_parameters()}
    try:
        first = play_tasks(made, own, tasks, seed=0)
        assert {one.info["actor"] for one in first} == {"policy", "step 0"}
        assert [one.learns for one in first] == [one.info["actor"] == "policy" for one in first]
        for version in (1, 2, 3, 4):
            with torch.no_grad():
                POLICY.model.get_output_embeddings().weight.mul_(-1.0)
            own.publish(version)
            played = play_tasks(made, own, tasks, seed=version)
        assert [version for version, _ in made.state_dict()["selves"]] == [2, 4]
        (actor,) = {one.info["actor"] for one in played if not one.learns}
        version = int(actor.removeprefix("step "))
        assert {turn.version for one in played if not one.learns for turn in one.turns} == {version}
        assert {turn.version for one in played if one.learns for turn in one.turns} == {4}
    finally:
        POLICY.model.load_state_dict(before, strict=False)


def first_logprob(turn: Turn) -> float:
    """Log-probability of a response's first token under the policy as it is now."""
    with torch.no_grad():
        logits = POLICY.model(torch.tensor([turn.prompt_ids])).logits[0, -1]
    return torch.log_softmax(logits, -1)[turn.response_ids[0]].item()


def test_a_past_self_plays_with_the_weights_of_its_step():
    made, own = collector(past=1.0, every=100), models()
    tasks = [KUHN.tasks("train")[number] for number in range(3)]
    play_tasks(made, own, tasks[:1], seed=0)
    layer = POLICY.model.get_output_embeddings().weight
    with torch.no_grad():
        layer.mul_(-1.0)  # the policy of today prefers what it avoided
    try:
        own.publish(1)
        played = play_tasks(made, own, tasks, seed=1)
        today = [first_logprob(one.turns[0]) for one in played]
    finally:
        with torch.no_grad():
            layer.mul_(-1.0)
    for one, now in zip(played, today, strict=True):
        then, sampled = first_logprob(one.turns[0]), one.turns[0].behavior_logprobs[0]
        assert sampled == pytest.approx(now if one.learns else then, abs=1e-3)
        assert sampled != pytest.approx(then if one.learns else now, abs=1e-3)
    assert {one.learns for one in played} == {True, False}


def test_groups_that_start_alone_train_every_role():
    """As those do that replace dropped ones: one match each, of which the policy plays one role."""
    deal, made = KUHN.tasks("train")[0], collector(size=2, random=1.0)
    rng = np.random.default_rng(0)

    def role(group: int, begin: int) -> str:
        return deal.roles[made._places(group, deal, rng, begin)[0].seat.seat]

    roles = [role(0, begin) for begin in range(6)]
    assert roles[:2] == roles[2:4] == roles[4:]
    assert len({*roles}) == 2
    assert [role(group, 0) for group in range(4)] == roles[:4], "within a batch they take turns"
    begun = set()
    for seed in range(8):
        played = play(1, size=2, seed=seed, random=1.0)
        begun.add(played[0].info["role"])
    assert len(begun) == 2


def test_a_group_that_replaces_another_leaves_the_past_selves_that_play_as_they_are():
    """One model for all of them would give the first engine the weights of the second."""
    made, own = collector(past=1.0, every=1, keep=5), models()
    layer = POLICY.model.get_output_embeddings().weight
    engines = []
    for version in range(3):
        made._remember(own, version)
        with torch.no_grad():
            layer.mul_(-1.0)
    for version, kept in made._selves[:2]:
        engines.append(made._past_engine(own, version, kept))
    heads = [engine.model.get_output_embeddings().weight for engine in engines]
    assert torch.equal(heads[0], -heads[1])
    again = made._past_engine(own, *made._selves[0])
    assert again.model is engines[0].model
    idle = engines[1].model
    del engines[1:]
    gc.collect()
    assert made._past_engine(own, *made._selves[2]).model is idle
    with torch.no_grad():
        layer.mul_(-1.0)  # as it was


# -- trained -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mars", "rae"])
def test_self_play_trains_and_resumes_bit_equal_with_its_past_selves(method, tmp_path):
    past = {"name": "self_play", "past": 0.5, "random": 0.2, "every": 1, "keep": 2}
    config = run_config(tmp_path, method=method, rollout={"collector": past}, run={"steps": 3})
    folder = train(config)
    expected, after = metrics_of(folder, 3), weights(folder, 3)
    assert expected["update/grad_norm"] > 0
    shutil.rmtree(folder.checkpoints / "step-000003")
    shutil.rmtree(folder.checkpoints / "step-000002")
    train(config, resume=folder.path)
    assert metrics_of(folder, 3) == expected
    assert torch.equal(weights(folder, 3), after)
    trajectories, further = read_rollouts(folder.rollouts / "step-000003.parquet")
    actor = [one.info["actor"] for one in trajectories for _ in one.turns]
    assert {"policy"} < set(actor) <= {"policy", "step 1", "step 2"}
    learned = ~np.isnan(further["advantage"])
    assert learned.tolist() == [each == "policy" for each in actor], (
        "the past self's turns are recorded, and not learned"
    )


def test_credit_compares_within_the_seats_that_were_played(tmp_path):
    """Fails with a constant role, or without the comparison by role."""
    config = run_config(tmp_path, method="mars", run={"steps": 1})
    folder = train(config)
    recorded = read_step(folder.rollouts / "step-000001.parquet")
    batch = recorded_batch(recorded, invalid_penalty=config.environment.invalid_penalty)
    role_R = batch.column("role", needed_by="the test")
    assert len(set(role_R.tolist())) == 2
    assert set(batch.column("player", needed_by="the test")) == {"kuhn first", "kuhn second"}
    advantage_R = recorded.values("advantage")
    np.testing.assert_allclose(advantage_R, make_transform(config.method)(batch), atol=1e-12)
    returns_R = batch.trajectories.suffix_sum(batch.reward_R)
    for group in range(6):
        for role in (0, 1):
            here = (batch.group_responses.ids == group) & (role_R == role)
            by_hand = returns_R[here] - returns_R[here].mean() + batch.column("penalty", needed_by="the test")[here]
            np.testing.assert_allclose(advantage_R[here], by_hand, atol=1e-12)
    assert np.abs(advantage_R - make_transform(run_config(tmp_path, method="grpo").method)(batch)).max() > 0.1
    one_pot = tw.chain(tw.mars(by_role=False), tw.add_penalty())(batch)
    assert np.abs(advantage_R - one_pot).max() > 0.1


def test_seats_play_in_worker_processes_too(tmp_path):
    played = []
    for name, workers in (("apart", 1), ("here", 0)):
        config = run_config(tmp_path, method="mars", run={"steps": 1, "name": name}, environment={"workers": workers})
        played.append(read_rollouts(train(config).rollouts / "step-000001.parquet")[0])
    assert responses(played[0]) == responses(played[1])
    assert [one.info for one in played[0]] == [one.info for one in played[1]]


def test_a_method_by_role_is_refused_where_nobody_tells_the_role(tmp_path):
    config = small_config(tmp_path, method="mars")
    with pytest.raises(ConfigError, match=r"reads info\['role'\].*choose environment.name=seats"):
        train(config)


# -- measured ----------------------------------------------------------------------------------------------------------


def test_probabilities_of_all_situations_are_the_models():
    seen: list[np.ndarray] = []

    class Told(Seats):
        def assess(self, chances):
            seen.extend(chances)
            return super().assess(chances)

    made = Told(EnvironmentConfig(name="seats", max_steps=8, success_reward=1.0), game="kuhn", opponent="random")
    measured = assess(made, models(), MODEL, RolloutConfig(max_new_tokens=2), 0.7)
    fmt = POLICY.format
    for (steps, responses), chances in zip(made.situations(), seen, strict=True):
        prompt = fmt.prompt_ids(steps[0].observation, first=True)
        for response, step in zip(responses, steps[1:], strict=True):
            prompt += fmt.response_ids(response) + fmt.prompt_ids(step.observation, first=False)
        for action, chance in zip(steps[-1].admissible or (), chances, strict=True):
            ids = [*prompt, *fmt.response_ids(action)]
            with torch.no_grad():
                likely = torch.softmax(POLICY.model(torch.tensor([ids])).logits[0] / 0.7, -1)
            by_hand = [likely[place - 1, ids[place]].item() for place in range(len(prompt), len(ids))]
            assert chance == pytest.approx(np.prod(by_hand), rel=1e-4)
    assert measured["unplayable_frac"] == pytest.approx(1 - np.mean([chances.sum() for chances in seen]))
    assert made.assess([np.full(2, 0.5)] * 12)["exploitability"] == pytest.approx(11 / 24)
    assert made.assess([np.zeros(2)] * 12)["exploitability"] == pytest.approx(11 / 24), "invalid: drawn at random"


def test_a_game_too_large_and_a_policy_that_reasons_are_not_assessed():
    assert assess(suite("tictactoe"), models(), MODEL, RolloutConfig(), 1.0) == {}
    assert assess(object(), models(), MODEL, RolloutConfig(), 1.0) == {}


def test_evaluations_record_exploitability_and_results(tmp_path):
    folder = train(run_config(tmp_path, method="rae", run={"steps": 1}))
    (first, last) = [line for line in folder.metrics() if "eval/success" in line]
    assert 0 < first["eval/exploitability"] < 2
    assert first["eval/exploitability"] != last["eval/exploitability"]
    shares = [value for name, value in last.items() if name.startswith("eval/result/")]
    assert sum(shares) == pytest.approx(1)


def test_a_critic_that_sees_peers_would_see_the_own_match(tmp_path):
    sections = {
        "environment": {"name": "seats", "options": {"game": "kuhn"}, "max_steps": 8},
        "rollout": {"collector": {"name": "self_play"}, "group_size": 8},
        "critic": {"kind": "ridge", "peers": True},
    }
    with pytest.raises(ConfigError, match=r"critic.peers=true reads the returns of others .* set critic.peers=false"):
        small_config(tmp_path, method="turn_ppo", **sections)
