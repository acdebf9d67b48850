"""Which measures a run takes: those that somebody needs, in an order in which each finds its columns."""

import numpy as np
import pytest
from tests.toys import small_config, trajectory

from turnwise.base.errors import ConfigError
from turnwise.config import load_config, parse_config
from turnwise.measures import MEASURES, Measure, Played, measure
from turnwise.measures.plan import plan_measures, recorded_columns
from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train


@measure(provides=("longest_word",), needs=("entropy",))
def longest_word(step: Played, columns):
    """A measure of one's own, on top of another."""
    assert len(columns["entropy"]) == len(step.turns)
    return {"longest_word": [float(max(map(len, turn.response.split()), default=0)) for turn in step.turns]}


@measure(provides=("odd",), needs=("even",))
def odd(step, columns):
    return {"odd": columns["even"]}


@measure(provides=("even",), needs=("odd",))
def even(step, columns):
    return {"even": columns["odd"]}


def names(plan) -> list[str]:
    return [each.name for each in plan.measures]


def test_a_measure_comes_after_those_that_it_needs():
    plan = plan_measures({"x": ("ref_logprob", "mismatch")})
    order = names(plan)
    assert order.index("reference") < order.index("reference_mean")
    assert order.index("scores") < order.index("mismatch")
    assert plan.models == {"policy", "reference"}


def test_a_pass_is_made_only_where_somebody_needs_it():
    assert "reference" not in names(plan_measures({"x": ("entropy",)}))
    assert "scores" not in names(plan_measures({"x": ("penalty",)}))
    assert {"played", "sampled"} <= set(names(plan_measures({"x": ("penalty",)})))


def test_scoring_chooses_between_two_that_provide_the_same():
    assert "engine_scores" not in names(plan_measures({"x": ("entropy",)}))
    plan = plan_measures({"x": ("entropy",)}, scoring="engine")
    assert "scores" not in names(plan)
    assert plan.models == set()


def test_every_measure_is_named_after_its_function_and_has_one_level():
    for name, each in MEASURES.items():
        assert each.name == name
        assert {column.endswith("_T") for column in each.provides} == {each.level == "token"}
        assert each.run.__doc__
    with pytest.raises(ConfigError, match="columns of one level"):
        measure(provides=("a", "b_T"))


@pytest.mark.parametrize(
    ("needs", "options", "message"),
    [
        ({"method 'm'": ("valu",)}, {}, r"method 'm' needs the column 'valu' \(unknown to turnwise"),
        ({"method 'm'": ("entrop",)}, {}, r"Did you mean 'entropy'\?"),
        ({"method 'gae'": ("value",)}, {}, r"estimated return.*no measure of this run provides"),
        ({}, {"further": ("rare_token",)}, r"unknown measure 'rare_token'. Did you mean 'rare_tokens'\?"),
        ({}, {"further": ("tests.toys:Colors",)}, r"is a type, expected a Measure"),
        (
            {},
            {"further": ("tests.measures.test_plan:odd", "tests.measures.test_plan:even")},
            "need each other's columns",
        ),
        ({"x": ("entropy",)}, {"scoring": "engine", "engine_reports": ()}, "needs an engine that reports entropies"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(needs, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        plan_measures(needs, **options)
    assert "\n" not in str(caught.value)


def test_a_run_refuses_it_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown measure 'entropi'. Did you mean 'entropy'\?"):
        train(small_config(tmp_path, measures=["entropi"]))
    with pytest.raises(ConfigError, match=r"unknown rollout.collector 'independant'. Did you mean 'independent'\?"):
        train(small_config(tmp_path, rollout={"collector": "independant"}))
    with pytest.raises(ConfigError, match=r"unknown loss term 'entropi'. Did you mean 'entropy'\?"):
        train(small_config(tmp_path, update={"terms": ["entropi"]}))
    with pytest.raises(ConfigError, match=r"'kl' is set by update.kl"):
        train(small_config(tmp_path, update={"terms": ["kl"]}))
    assert not list(tmp_path.iterdir())


def test_a_measure_of_ones_own_is_taken_and_recorded(tmp_path):
    folder = train(small_config(tmp_path, measures=["tests.measures.test_plan:longest_word"]))
    trajectories, columns = read_rollouts(folder.rollouts / "step-000001.parquet")
    words = [max(map(len, turn.response.split()), default=0) for each in trajectories for turn in each.turns]
    np.testing.assert_array_equal(columns["longest_word"], words)
    record = next(record for record in folder.metrics() if record["step"] == 1)
    assert record["time/measure_longest_word_s"] > 0
    assert record["measure/scores_tokens"] > 0 == record["measure/longest_word_tokens"]


def test_the_record_keeps_what_only_the_steps_models_can_tell():
    kept = recorded_columns(MEASURES.values())
    of_policy = {"entropy", "logprob", "rare_logprob", "peak_entropy", "mismatch", "mismatch_min"}
    of_probes = {column for each in MEASURES.values() if each.model == "probe" for column in each.provides}
    assert {"gold_logprob", "info_gain", "hindsight_logprob"} < of_probes
    assert set(kept) == of_policy | of_probes | {
        "implicit_reward",
        "ref_logprob",
        "value",
        "value_action",
        "value_next",
        "value_after",
        "value_low",
        "value_high",
        "value_switch",
        "switch",
        "subgoal_changed",
        "rank",
        "progress",
        "step_reward",
        "checks",
    }
    assert isinstance(longest_word, Measure)


def test_a_modifier_is_a_method_around_another():
    assert load_config(None).method.model_dump() == {"name": "grpo"}
    assert load_config(None, ["method=grpo+aem"]).method.model_dump() == {"name": "aem", "base": {"name": "grpo"}}
    given = load_config(None, ["method=gigpo+aem", "method.temperature=2.0", "method.discount=0.5"])
    assert given.method.model_dump() == {"name": "aem", "base": {"name": "gigpo", "discount": 0.5}, "temperature": 2.0}
    assert given.label == "gigpo + aem"
    assert parse_config(given.model_dump(mode="json")) == given
    table = parse_config({"method": {"name": "gigpo+aem", "temperature": 2.0, "discount": 0.5}})
    assert table == given


def test_played_knows_its_tokens():
    played = Played([trajectory(0, ([1], [5, 6]), ([1], [7]))])
    assert played.tokens.lengths.tolist() == [2, 1]
    with pytest.raises(AssertionError):
        played.scored("policy")


@measure(provides=("sum_of_three",), needs=("length", "turn", "reward"))
def sum_of_three(step: Played, columns):
    return {"sum_of_three": columns["length"] + columns["turn"] + columns["reward"]}


@measure(provides=("promised",))
def forgetful(step: Played, columns):
    return {"promissed": [0.0] * len(step.turns)}


def test_a_measure_gets_what_the_batch_knows_by_itself_and_must_return_what_it_provides():
    played = Played([trajectory(0, ([1], [5, 6]), ([1], [7]))], 0.0, {}, None)
    played.trajectories[0].turns[1].reward = 0.5
    batch, _ = plan_measures({}, further=[f"{__name__}:sum_of_three"]).take(played)
    assert batch.columns["sum_of_three"].tolist() == [2.0, 2.5]
    assert "reward" not in batch.columns
    with pytest.raises(ConfigError, match="the measure 'forgetful' did not return 'promised', which it provides"):
        plan_measures({}, further=[f"{__name__}:forgetful"]).take(played)
