"""The collector `branching`: where published rules fork, what a wave costs, and what a lost branch loses."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.rollout.playing import POLICY, always
from tests.toys import Colors, small_config

from turnwise.base.errors import ConfigError
from turnwise.config import parse_config
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.branching.growth import Fork, ForkGroup, arpo, at2po, carl, tree_grpo
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn, distinct_turns
from turnwise.train.loop import train


class Long(Colors):
    def __init__(self, seed: int):
        super().__init__(seed, turns=4)


class Moody(Long):
    """Observes something else in its second turn each time it is played, in the game of task 1."""

    plays = 0

    def step(self, response: str) -> Step:
        step = super().step(response)
        if self.seed == 1 and self.played == 1:
            Moody.plays += 1
            return dataclasses.replace(step, observation=f"mood {Moody.plays}")
        return step


def settings(size: int = 6, window: bool = False, **collector) -> RolloutConfig:
    return RolloutConfig.model_validate(
        {
            "group_size": size,
            "max_new_tokens": 3,
            "collector": {"name": "branching", **collector},
            "context": "window" if window else "append",
            "window": 1,
        }
    )


def models(engine=None) -> Models:
    return Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model)))


def play(environment: type = Long, engine=None, tasks=(0, 1, 2), seed=0, **options) -> list[Trajectory]:
    collector = make_collector(settings(**options), InProcessEnvironments(environment), str)
    return play_tasks(collector, models(engine), list(tasks), seed=seed)


# -- the rules, alone --------------------------------------------------------------------------------------------------


def path(entropies: list[float], *, shared: int = 0, tree: int = 0) -> Trajectory:
    """A trajectory whose responses have one token each, of these entropies."""
    turns = [Turn("", "", [1], [2], [-0.5], "", False, behavior_entropies=[value]) for value in entropies]
    return Trajectory(0, "task", turns, ended="terminated", shared=shared, tree=tree)


class Fixed:
    """Uniform draws in a given order."""

    def __init__(self, *draws: float):
        self.draws = list(draws)

    def random(self) -> float:
        return self.draws.pop(0)


def group(size: int, *draws: float) -> ForkGroup:
    return ForkGroup(size, vocabulary=3, generator=Fixed(*draws))  # type: ignore[arg-type]


def test_arpo_forks_where_the_draw_less_the_rise_is_at_most_a_half():
    """By hand: H is the entropy over log 3, and a fork needs u - 0.2 (H_t - H_0) <= 0.5."""
    rise = math.log(3) * 1.5  # lowers the draw by 0.3
    growth = arpo(group(4, 0.51, 0.5, 0.81, 0.79), initial=2)
    assert next(growth) == [None, None]
    first = [path([0.0, rise, rise, 0.0]), path([0.0, rise, rise, 0.0])]
    # round 1: nothing has risen, 0.51 is above a half and 0.5 is not; round 2 goes over three trajectories
    assert list(growth.send(first)) == [Fork(1, 1)]
    # the new one: its first response is its own start, so nothing has risen for it; 0.81 - 0.3 > 0.5 >= 0.79 - 0.3
    assert list(growth.send([*first, path([0.0, rise, rise, 0.0], shared=1)])) == [Fork(1, 2)]
    with pytest.raises(StopIteration):
        growth.send([*first, path([0.0] * 4, shared=1), path([0.0] * 4, shared=2)])


def test_arpo_sums_the_first_tokens_of_a_response():
    """A mean, or all tokens, would decide otherwise."""
    one = path([0.0, 0.0, 0.0])
    one.turns[0].behavior_entropies, one.turns[1].behavior_entropies = [0.0] * 4, [math.log(3)] * 3 + [9.0]
    for first_tokens, forks in ((2, False), (3, True)):
        growth = arpo(group(2, 0.9, 1.05), initial=1, first_tokens=first_tokens)
        next(growth)
        # 1.05 - 0.2 * 3 <= 0.5 < 1.05 - 0.2 * 2
        assert list(growth.send([one])) == ([Fork(0, 2)] if forks else [None])


def test_arpo_starts_one_trajectory_whenever_none_is_unfinished():
    growth = arpo(group(3), initial=1)
    next(growth)
    lone = path([1.0])
    assert list(growth.send([lone])) == [None]
    assert list(growth.send([lone, lone])) == [None]
    with pytest.raises(StopIteration):
        growth.send([lone] * 3)


def test_arpo_does_not_fork_a_lost_trajectory_after_its_last_response():
    lost = dataclasses.replace(path([1.0, 1.0]), ended="failed", failure="gone")
    growth = arpo(group(3, 0.0, 0.0), initial=1)
    next(growth)
    assert list(growth.send([lost])) == [Fork(0, 1)]


def test_tree_grpo_draws_from_the_root_and_from_responses_that_do_not_end():
    """Frequencies of forks over many draws: uniform over the four nodes of each tree, none at a leaf."""
    generator = np.random.default_rng(0)
    roots = [path([1.0] * 4, tree=0), path([1.0] * 4, tree=1)]
    drawn = []
    for _ in range(500):
        growth = tree_grpo(ForkGroup(6, generator=generator))
        assert next(growth) == [None, None]
        wanted = list(growth.send(roots))
        assert [fork.parent for fork in wanted if fork] == [0, 0, 1, 1]
        drawn += [fork.turn for fork in wanted if fork]
    count = np.bincount(drawn)
    assert len(count) == 4
    assert (abs(count - 500) < 4 * np.sqrt(2000 * 0.25 * 0.75)).all()


def test_a_later_round_of_tree_grpo_counts_a_shared_response_once():
    """The tree has a root and three responses that do not end it: two of the first path, and one of its fork."""
    growth = tree_grpo(ForkGroup(801, generator=np.random.default_rng(1)), trees=1, expand=400, rounds=2)
    next(growth)
    growth.send([path([1.0] * 3)])
    wanted = growth.send([path([1.0] * 3), path([1.0] * 4, shared=2)])
    assert {(fork.parent, fork.turn) for fork in wanted if fork} == {(0, 0), (0, 1), (0, 2), (1, 3)}


def surprised(*values: float, shared: Sequence[Turn] = (), failure: str | None = None) -> Trajectory:
    """A trajectory whose own responses have these surprises (nats)."""
    own = [Turn("", "", [1], [2, 3], [-value - 0.1, 0.1 - value], "", False) for value in values]
    return Trajectory(0, "task", [*shared, *own], ended="terminated", shared=len(shared), failure=failure)


def test_carl_forks_where_the_policy_is_unsure_and_has_tried_little():
    """By hand; h / n of a state is the mean surprise there over the number of tries."""
    growth = carl(ForkGroup(6), starts=2)
    assert next(growth) == [None, None]
    paths = [surprised(1.0, 0.5, 0.8), surprised(1.4, 0.7)]
    # the prompt was tried twice: 1.2 / 2; the states after first and second responses once: 0.5, 0.8, 0.7
    assert list(growth.send(list(paths))) == [Fork(0, 2)]
    paths.append(surprised(0.4, shared=paths[0].turns[:2]))
    # that state is now worth (0.8 + 0.4) / 2 / 2 = 0.3
    assert list(growth.send(list(paths))) == [Fork(1, 1)]
    paths.append(surprised(shared=paths[1].turns[:1], failure="environment: gone"))
    # a fork that was lost counts as a try: 0.7 / 2; the prompt leads with 1.2 / 2
    assert list(growth.send(list(paths))) == [Fork(0, 0)]
    paths.append(surprised(0.3, 9.0))
    # the prompt has (1.0 + 1.4 + 0.3) / 3 / 3 = 0.3; a new state after the fork has 9
    assert list(growth.send(list(paths))) == [Fork(4, 1)]
    with pytest.raises(StopIteration):
        growth.send([*paths, surprised(1.0, shared=paths[4].turns[:1])])


def test_carl_ends_where_nothing_can_be_forked():
    growth = carl(ForkGroup(4), starts=1)
    next(growth)
    with pytest.raises(StopIteration):
        growth.send([surprised(1.0, failure="environment: gone")])


def test_at2po_samples_the_most_surprising_responses_again_and_spares_those_with_siblings():
    """By hand, in nats; each path is of the surprises of its responses, the first of which are siblings."""
    growth = at2po(ForkGroup(6), rounds=2, expand=2, sibling_cost=0.3)
    assert next(growth) == [None, None]
    first = [surprised(1.0, 0.5, 0.9, 9.0), surprised(1.25, 0.2)]
    # first responses are two siblings: 1.0 - 0.3 and 1.25 - 0.3; the best are 0.95 (second path) and 0.9; 9.0 is a leaf
    assert list(growth.send(first)) == [Fork(1, 0), Fork(0, 2)]
    second = [*first, surprised(0.1, 9.0), surprised(0.8, 9.0, shared=first[0].turns[:2])]
    # now 1.25 - 0.6, 1.0 - 0.6, 0.9 - 0.3, 0.8 - 0.3, and 0.5 as before
    assert list(growth.send(second)) == [Fork(1, 0), Fork(0, 2)]
    with pytest.raises(StopIteration):
        growth.send(second)


def test_at2po_completes_the_group_where_few_responses_can_be_sampled_again():
    """A leaf is a sibling that counts, and is not sampled again."""
    growth = at2po(ForkGroup(7), rounds=2, expand=3, sibling_cost=0.3)
    assert next(growth) == [None]
    assert list(growth.send([surprised(1.0)])) == [None, None, None]
    paths = [surprised(1.0), surprised(0.5, 2.0), surprised(0.2, 0.4, 2.0), surprised(failure="environment: gone")]
    # 0.5 - 2 x 0.3, 0.2 - 2 x 0.3, 0.4, and the prompt with 0 - 2 x 0.3
    assert list(growth.send(paths)) == [Fork(2, 1), Fork(1, 0), Fork(2, 0)]
    with pytest.raises(StopIteration):
        growth.send(paths)
    growth = at2po(ForkGroup(5), rounds=1, expand=4)
    next(growth)
    assert list(growth.send([surprised(0.5, 0.4, 2.0)])) == [Fork(0, 0), Fork(0, 1), None, Fork(0, 0)]


# -- played ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "arpo", "initial": 2},
        {"rule": "tree_grpo"},
        {"rule": "at2po", "expand": 2},
        {"rule": "carl", "starts": 2},
    ],
)
def test_a_group_is_complete_and_its_forks_share_turns(rule, window):
    played = play(window=window, **rule)
    assert [one.group for one in played] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(one.usable and len(one.turns) == 4 for one in played)
    forks = [one for one in played if one.shared]
    assert len(forks) >= 6
    for one in forks:
        parents = [
            other for other in played if other is not one and other.turns[: one.shared] == one.turns[: one.shared]
        ]
        assert any(
            all(a is b for a, b in zip(one.turns[: one.shared], other.turns, strict=False)) and other.tree == one.tree
            for other in parents
        )
    assert len(distinct_turns(played)) == sum(4 - one.shared for one in played)
    metrics = rollout_metrics(played)
    assert metrics["env_steps"] == 18 * 4
    assert metrics["tokens"] == sum(len(turn.response_ids) for one in played for turn in one.turns[one.shared :])


def test_the_seed_alone_decides_the_trees():
    def facts(played: list[Trajectory]) -> list[tuple[int | None, int, list[list[int]]]]:
        return [(one.tree, one.shared, [turn.response_ids for turn in one.turns]) for one in played]

    once = facts(play(rule="arpo"))
    assert once == facts(play(rule="arpo"))
    assert once != facts(play(rule="arpo", seed=1))
    alone = facts(play(rule="arpo", tasks=[0]))
    assert [(tree, shared) for tree, shared, _ in alone] == [(tree, shared) for tree, shared, _ in once[:6]]


def test_siblings_draw_for_themselves():
    played = play(rule="tree_grpo")
    forks = [one for one in played if one.shared and one.turns[one.shared].response_ids]
    parents = [next(other for other in played if other.turns[: one.shared] == one.turns[: one.shared]) for one in forks]
    new = [
        one.turns[one.shared].response_ids != other.turns[one.shared].response_ids
        for one, other in zip(forks, parents, strict=True)
    ]
    assert any(new)


def test_the_engine_computes_the_prefix_of_a_fork_from_its_cache():
    fed = []
    hook = POLICY.model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["position_ids"]), with_kwargs=True
    )
    try:
        play(rule="tree_grpo", tasks=[0])
    finally:
        hook.remove()
    begins = [positions.min().item() for positions in fed if positions.shape[1] > 1]
    assert begins.count(0) == 1, "the prompt of the first wave; a fork goes on where its parent's tokens are cached"


def test_a_replay_that_disagrees_loses_its_branch_only():
    Moody.plays = 0
    played = play(Moody, always("red"), tasks=[0, 1], rule="tree_grpo", size=10, expand=4)
    lost = [one for one in played if one.failure]
    assert lost
    assert {one.group for one in lost} == {1}
    assert all(one.shared for one in lost)
    assert all("before turn 2, expected 'mood" in (one.failure or "") for one in lost)
    assert sum(one.usable for one in played) == len(played) - len(lost)
    assert all(one.usable for one in played if not one.shared)


def test_a_group_stops_once_its_budget_is_spent():
    whole = play(rule="tree_grpo", tasks=[0])
    budgets: list[dict[str, Any]] = [{"max_tokens": 12}, {"max_env_steps": 8}]
    for budget in budgets:
        played = play(rule="tree_grpo", tasks=[0], **budget)
        assert len(played) == 2, "the first wave spends it"
        assert [one.turns for one in played] == [one.turns for one in whole[:2]]
    assert len(play(rule="tree_grpo", tasks=[0], max_env_steps=9)) == 6


def test_an_evaluation_has_no_forks():
    collector = make_collector(settings(rule="tree_grpo"), InProcessEnvironments(Long), str)
    played = play_tasks(collector, models(), [0, 1], seed=0, group_size=3, temperature=0.0)
    assert len(played) == 6
    assert not any(one.shared for one in played)


# -- refused at the start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collector", "size", "message"),
    [
        ({"rule": "apro"}, 6, r"unknown rollout.collector.rule 'apro'. Did you mean 'arpo'"),
        ({"rule": 5}, 6, "rule=5: expected the name of a rule"),
        ({"rule": ["arpo"]}, 6, r"rule=\['arpo'\]: expected the name of a rule"),
        ({"rule": "arpo", "initail": 2}, 6, "has no option 'initail'. Did you mean 'initial'"),
        ({"rule": "arpo", "initial": 7}, 6, "initial=7: expected 1 to rollout.group_size=6"),
        ({"rule": "arpo", "initial": "two"}, 6, "initial='two': Input should be a valid integer"),
        ({"rule": "tree_grpo"}, 8, r"trees \* \(1 \+ expand \* rounds\) = 6 .* set rollout.group_size=6"),
        ({"rule": "tree_grpo", "trees": 0}, 6, "must be 1 or more"),
        ({"rule": "at2po"}, 12, r"rounds \* expand = 12 times; set rollout.group_size=13 or more, or lower expand"),
        ({"rule": "at2po", "expand": 0}, 6, "rounds=2 and expand=0 must be 1 or more"),
        ({"rule": "carl"}, 8, r"starts=8: expected 1 to 7, since rule 'carl' forks .* set rollout.group_size=24"),
        ({"rule": "carl", "starts": 0}, 6, "starts=0: expected 1 to 5"),
        ({"rule": "tree_grpo", "max_tokens": 0}, 6, "max_tokens=0: expected a whole number of 1 or more"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(collector, size, message):
    with pytest.raises(ConfigError, match=message):
        make_collector(settings(size, **collector), InProcessEnvironments(Long), str)


def test_independent_has_no_options():
    wrong = RolloutConfig.model_validate({"collector": {"name": "independent", "rule": "arpo"}})
    with pytest.raises(ConfigError, match="'independent' has no option 'rule'"):
        make_collector(wrong, InProcessEnvironments(Long), str)
    assert RolloutConfig().collector.name == "independent"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 59}, "max_tokens=59 is too small for one trajectory of environment.max_steps=20 .*=60 or more"),
        ({"max_env_steps": 19}, "max_env_steps=19 is too small for one trajectory"),
    ],
)
def test_a_budget_too_small_for_one_trajectory_is_refused(options, message):
    collector = {"name": "branching", "rule": "tree_grpo", **options}
    rollout = {"max_new_tokens": 3, "group_size": 6, "collector": collector}
    with pytest.raises(ConfigError, match=message):
        parse_config({"environment": {"max_steps": 20}, "rollout": rollout})
    enough = {name: value + 1 for name, value in options.items()}
    parse_config({"environment": {"max_steps": 20}, "rollout": {**rollout, "collector": collector | enough}})
    parse_config({"harness": {"run": "a:b"}, "environment": {"max_steps": 20}, "rollout": rollout})  # no limit holds


def test_arpo_is_refused_with_an_engine_that_reports_no_entropies():
    with pytest.raises(
        ConfigError, match=r"engine\.name='server' .*, and .*'arpo' needs the entropies of sampled tokens"
    ):
        parse_config({"engine": {"name": "server"}, "rollout": {"collector": {"name": "branching", "rule": "arpo"}}})


# -- trained -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "options"), [("arpo", {}), ("tree_grpo", {}), ("at2po", {"rounds": 1, "expand": 3})], ids=lambda each: each
)
def test_a_run_with_forks_trains_and_records_shared_turns_once(rule, options, tmp_path):
    config = small_config(
        tmp_path,
        method=f"{rule}+aem",
        environment={"name": "tests.trees.test_branching:Long", "max_steps": 6},
        rollout={"groups": 3, "group_size": 6, "collector": {"name": "branching", "rule": rule, **options}},
    )
    folder = train(config)
    steps = [line for line in folder.metrics() if "update/loss" in line]
    assert len(steps) == 2
    assert all(line["update/grad_norm"] > 0 for line in steps)
    assert all(line["rollout/env_steps"] == 72 for line in steps)
    trajectories, further = read_rollouts(folder.rollouts / "step-000002.parquet")
    assert len(distinct_turns(trajectories)) < 72
    assert np.isfinite(further["advantage"]).all()
    assert len({(one.group, one.tree) for one in trajectories}) >= 6
    assert steps[1]["rollout/tokens"] == sum(len(turn.response_ids) for turn in distinct_turns(trajectories))
