"""A rubric is answered criterion by criterion; what applies to nothing and what fails is left out."""

import numpy as np
import pytest

import turnwise as tw
from tests.judge.test_judge import chat_judge, played
from turnwise.base.errors import ConfigError
from turnwise.extensions.judge.cases import Question
from turnwise.extensions.judge.chat import question, read_scores
from turnwise.extensions.judge.judge import Judge
from turnwise.extensions.judge.measures import rubric, score
from turnwise.extensions.judge.rubric import Criterion, read_rubric
from turnwise.extensions.judge.settings import JudgeConfig

RUBRIC = """
[[criteria]]
text = "high"
weight = 3.0
per = "turn"

[[criteria]]
text = "even"
per = "turn"

[[criteria]]
text = "rises"
"""
ASKED = Question("task", "Turn 1: a", "high", "the last turn")


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "rubric.toml").write_text(RUBRIC)
    return {"run": "x:y", "rubric": str(tmp_path / "rubric.toml")}


def numbers(text: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith("Turn")]


def decide(cases):
    said = []
    for case in cases:
        told = numbers(case.text)
        rises = "yes" if told[0] < told[-1] else "No "
        even = "n/a" if told[-1] < 3 else told[-1] % 2 == 0
        said.append({"high": told[-1] > 5, "even": even, "rises": rises}[case.criterion])
    return said


def test_criteria_of_turns_and_of_the_whole_trajectory_are_one_column(settings):
    step = played([[2.0, 6.0], [8.0]], [[4.0, 7.0, 3.0]], judge=Judge(decide, JudgeConfig(**settings)))
    # 2: not high; 6: high, even, rises; 8: high, even; 4: even; 7: high; 3: nothing
    expected = [0, 1 + 1, 1, 1 / 4, 3 / 4, 0]
    np.testing.assert_allclose(rubric.run(step, {})["rubric"], expected)


def test_methods_read_the_column_as_rewards_of_turns():
    groups = [[{"reward": 0.0, "rubric": r} for r in turns] for turns in ([1.0, 0.0], [0.0, 0.0])]
    found = tw.mica(discount=1.0, column="rubric")(tw.Batch.from_trajectories([groups]))
    assert found[0] > 0 > found[2]


def test_repeats_are_asked_anew_and_their_agreement_is_told(settings, tmp_path):
    seen = []

    def uneven(cases):
        seen.extend(cases)
        return [case.repeat < 2 if case.criterion == "high" else "yes" for case in cases]

    judge = Judge(uneven, JudgeConfig(**settings, repeats=3))
    step = played([[1.0]], judge=judge)
    # high: two of three, with weight 3; even: all; the trajectory rises
    np.testing.assert_allclose(rubric.run(step, {})["rubric"], [(3 * 2 / 3 + 1) / 4 + 1])
    assert len(seen) == 9
    counts = judge.finish(tmp_path / "step.parquet")
    assert counts["judge_agreement"] == pytest.approx(8 / 9)
    assert counts["judge_asked"] == 9


def test_what_a_judge_fails_to_answer_is_left_out(settings):
    def partly(cases):
        return [case.criterion == "high" or 7 for case in cases]

    step = played([[1.0]], judge=Judge(partly, JudgeConfig(**settings)))
    np.testing.assert_allclose(rubric.run(step, {})["rubric"], [1.0])


def test_weights_below_0_count_against():
    criteria = [Criterion(text="a", weight=2.0), Criterion(text="b", weight=-1.0)]
    assert score([[1.0], [1.0]], criteria) == 0.5
    assert score([[1.0], [0.0]], criteria) == 1.0
    assert score([[-1.0], [-1.0]], criteria) == 0.0
    assert score([[], [1.0]], criteria) == -1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<answer>yes</answer>", 1.0),
        ("<think>no</think><answer> No. </answer>", 0.0),
        ("Not applicable", -1.0),
        ("<answer>yes</answer> <answer>no</answer>", None),
        ("maybe", None),
        ("I say yes", None),
        (None, None),
    ],
)
def test_answers_of_a_chat_model_are_read(answer, expected):
    assert read_scores(ASKED, answer) == expected


def test_a_chat_model_is_asked_and_repeats_are_sampled(policy):
    _, ask = chat_judge(policy, lambda conversation, turn: policy.format.response_ids("<answer>yes</answer>"))
    again = Question("task", "Turn 1: a", "high", "the last turn", 1)
    assert ask([ASKED, again]) == [1.0, 1.0]
    assert "A criterion about the last turn: high" in question(ASKED)


@pytest.fixture(scope="module")
def policy():
    from tests.rollout.chat_models import chat_model
    from turnwise.models.pretrained import pretrained_policy
    from turnwise.models.settings import ModelConfig, PromptConfig

    return pretrained_policy(ModelConfig(name=str(chat_model("qwen3")), max_context=400), PromptConfig(), seed=0)


LISTED = [{"text": "a"}, Criterion(text="b", weight=2.0, per="turn")]


def test_a_rubric_may_be_a_list_in_python():
    assert [(each.text, each.weight, each.per) for each in read_rubric(f"{__name__}:LISTED")] == [
        ("a", 1.0, "trajectory"),
        ("b", 2.0, "turn"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[criteria]]\ntext = 3", "criteria.0.text: Input should be a valid string, got '3'"),
        ("[[criteria]]\ntext = 'a'\nwieght = 1", "criteria.0.wieght: Extra inputs are not permitted"),
        ("[[criteria]]\ntext = 'a'\nweight = inf", "criteria.0.weight"),
        ("[[criteria]]\ntext = 'a'\nweight = true", "criteria.0.weight: Input should be a valid number, got 'True'"),
        ("[[criteria]]\ntext = 'a'\nweight = '2'", "criteria.0.weight: Input should be a valid number"),
        ("[[criteria]]\ntext = ' '", "criteria.0.text: String should have at least 1 character"),
        ("criteria = []", "criteria: List should have at least 1 item"),
        ("[[", "is not valid TOML"),
        (None, "cannot read"),
    ],
)
def test_a_rubric_that_is_wrong_is_said(tmp_path, text, said):
    path = tmp_path / "rubric.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_rubric(str(path))
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["tests.judge.test_rubric:NONE", "no_such_module:RUBRIC"])
def test_a_list_that_cannot_be_imported_is_not_taken_for_toml(name):
    with pytest.raises(ConfigError) as raised:
        read_rubric(name)
    assert f"judge.rubric={name!r}: " in str(raised.value)
    assert "TOML" not in str(raised.value)


def test_the_measure_without_a_rubric_says_what_is_missing():
    with pytest.raises(ConfigError, match=r"needs judge\.rubric"):
        rubric.run(played([[1.0]], judge=Judge(decide, JudgeConfig(run="x:y"))), {})
