"""Judges: asked in batches, each case once; what they say is kept, and what they fail to say costs nothing else."""

import dataclasses
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import turnwise as tw
from tests.rollout.chat_models import chat_model
from tests.toys import ScriptedEngine, small_config
from turnwise.base.errors import ConfigError, EngineFault
from turnwise.config import parse_config
from turnwise.credit.shaping.tournament import Arena, swiss
from turnwise.extensions.judge import chat
from turnwise.extensions.judge.cases import Comparison, Rating, task_of, transcript
from turnwise.extensions.judge.chat import ChatJudge, question, read_scores
from turnwise.extensions.judge.judge import Judge, make_judge
from turnwise.extensions.judge.measures import progress, rank
from turnwise.extensions.judge.rounds import at_once
from turnwise.extensions.judge.settings import JudgeConfig
from turnwise.measures.base import Played
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.loop import train

FUNCTION = JudgeConfig(run="x:y")


def played(*qualities: list[list[float]], judge=None) -> Played:
    """Groups of trajectories; the response of each turn names its quality."""
    trajectories = []
    for group, members in enumerate(qualities):
        for turns in members:
            made = [Turn(f"seen {n}", "", [1], [2], [-1.0], f"quality {q}", False) for n, q in enumerate(turns)]
            trajectories.append(Trajectory(group, f"task {group}", made, ended="terminated", last_observation="end"))
    return Played(trajectories, judge=judge)


def last_quality(text: str) -> float:
    said = [line for line in text.splitlines() if line.startswith("Turn")]
    return float(said[-1].split()[-1]) if said else 0.0


class Honest:
    """Judges by the last quality that a text names; remembers its batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, cases):
        self.batches.append(list(cases))
        return [
            (last_quality(case.first), last_quality(case.second))
            if isinstance(case, Comparison)
            else last_quality(case.text)
            for case in cases
        ]


def test_groups_are_ranked_at_the_same_time_and_each_round_is_one_batch():
    honest = Honest()
    step = played(
        [[[1.0], [4.0], [3.0], [2.0]], [[5.0], [7.0]]][0], [[5.0], [7.0], [6.0]], judge=Judge(honest, FUNCTION)
    )
    ranks = rank.run(step, {})["rank"]
    np.testing.assert_array_equal(ranks, [3, 0, 1, 2, 2, 0, 1])
    # seeding of both groups, then semifinals of the first with the first round of the second, then the rest
    assert len(honest.batches) <= 3
    assert {case.task for case in honest.batches[0]} == {"seen 0"}
    assert len(honest.batches[0]) == 2 * (3 + 2)


def test_a_rank_is_repeated_on_the_turns_of_its_trajectory_and_follows_the_setting():
    settings = JudgeConfig(run="x:y", tournament="swiss", observations=False)
    honest = Honest()
    step = played([[0.0, 1.0], [0.0, 4.0], [9.0, 3.0], [2.0]], judge=Judge(honest, settings))
    expected = swiss(Arena(lambda pairs: [((1, 4, 3, 2)[a], (1, 4, 3, 2)[b]) for a, b in pairs], 4))
    np.testing.assert_array_equal(rank.run(step, {})["rank"], np.repeat(expected, [2, 2, 2, 1]))
    assert not any("Answer" in case.first for batch in honest.batches for case in batch)


def test_equal_cases_are_judged_once():
    honest = Honest()
    decide = Judge(honest, FUNCTION)
    step = played([[1.0], [1.0], [1.0]], judge=decide)
    np.testing.assert_array_equal(np.sort(rank.run(step, {})["rank"]), [0, 1, 2])
    assert [len(batch) for batch in honest.batches] == [1]


def test_a_verdict_is_remembered_for_one_step(tmp_path):
    honest = Honest()
    decide, case = Judge(honest, FUNCTION), Rating("task", "Turn 1: quality 3.0")
    assert decide([case, case]) == [3.0, 3.0]
    assert decide([case]) == [3.0]
    assert decide.finish(tmp_path / "1.parquet") == {"judge_asked": 1.0, "judge_reused": 2.0, "judge_failed_frac": 0.0}
    assert decide([case]) == [3.0]
    assert decide.finish(tmp_path / "2.parquet") == {"judge_asked": 1.0, "judge_reused": 0.0, "judge_failed_frac": 0.0}
    assert honest.batches == [[case], [case]]


@pytest.mark.parametrize("observations", [True, False])
def test_progress_is_what_each_response_adds(observations):
    honest = Honest()
    step = played([[2.0, 6.0, 5.0], [4.0]], judge=Judge(honest, JudgeConfig(run="x:y", observations=observations)))
    np.testing.assert_array_equal(progress.run(step, {})["progress"], [2, 4, -1, 4])
    assert any("Answer" in case.text for case in honest.batches[0]) == observations


def test_a_rating_that_fails_repeats_the_one_before_and_no_other_trajectorys():
    def forgetful(cases):
        return [None if last_quality(case.text) in (0.0, 6.0) else last_quality(case.text) for case in cases]

    step = played([[2.0, 6.0, 5.0], [6.0, 4.0]], judge=Judge(forgetful, FUNCTION))
    np.testing.assert_array_equal(progress.run(step, {})["progress"], [2, 0, 3, 0, 4])


BAD = {
    "raises": (lambda cases: 1 / 0, "ZeroDivisionError: division by zero"),
    "too few": (lambda cases: [(1, 2)], "got 2 cases and returned 1 verdicts, expected one for each"),
    "one number": (lambda cases: [3] * len(cases), "not a verdict: 3"),
    "not finite": (lambda cases: [(1, float("nan"))] * len(cases), "not a verdict: (1, nan)"),
    "a word": (lambda cases: [("a", "b")] * len(cases), "not a verdict: ('a', 'b')"),
    "nothing": (lambda cases: None, "TypeError: 'NoneType' object is not iterable"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_judge_that_fails_loses_its_verdicts_alone(case, tmp_path):
    does, said = BAD[case]
    decide = Judge(does, FUNCTION)
    assert decide([Comparison("t", "a", "b"), Comparison("t", "b", "a")]) == [None, None]
    counts = decide.finish(tmp_path / "judgements" / "step-000001.parquet")
    assert counts == {"judge_asked": 2.0, "judge_reused": 0.0, "judge_failed_frac": 1.0}
    (row, _) = pq.read_table(tmp_path / "judgements" / "step-000001.parquet").to_pylist()
    assert (row["kind"], row["first"], row["second"], row["failure"]) == ("comparison", "a", "b", said)
    assert row["score_first"] is None
    assert decide.finish(tmp_path / "none.parquet") == {"judge_asked": 0.0, "judge_reused": 0.0}
    assert not (tmp_path / "none.parquet").exists()


def test_a_job_that_raises_does_not_keep_the_others_waiting():
    def fails(ask):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        at_once(
            [lambda ask: ask([Rating("t", "a")]), fails, lambda ask: ask([Rating("t", "b")])], lambda c: [1] * len(c)
        )
    with pytest.raises(KeyError):
        at_once([lambda ask: ask([Rating("t", "a")])] * 2, lambda cases: {}["gone"])


ANSWERS = {
    "<scores>3, 8</scores>": (3.0, 8.0),
    "The first is worse. <scores> 3/10 ; 8.5 / 10 </scores> Sure.": (3.0, 8.5),
    "3, 8": (3.0, 8.0),
    "<scores>3, 8": (3.0, 8.0),
    "<scores>3, 8</scores> or <scores>3, 8</scores>": (3.0, 8.0),
    "<scores>3, 8</scores> or <scores>8, 3</scores>": None,
    "<scores>3, 80</scores>": None,
    "<scores>-3, 8</scores>": None,
    "<scores>FIRST, SECOND</scores>": None,
    "I give 3, 8": None,
    "7": None,
    "": None,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_scores_are_read(answer):
    assert read_scores(Comparison("t", "a", "b"), answer) == ANSWERS[answer]


def test_a_rating_is_read():
    assert [read_scores(Rating("t", "a"), answer) for answer in ("<scores>7</scores>", "7", "7, 8", None)] == [
        7,
        7,
        None,
        None,
    ]


@pytest.fixture(scope="module")
def policy():
    return pretrained_policy(ModelConfig(name=str(chat_model("qwen3")), max_context=400), PromptConfig(), seed=0)


def chat_judge(policy, respond, *, room=400, attempts=3):
    engine = ScriptedEngine(respond)
    return engine, ChatJudge(policy.format, engine, max_context=room, max_new_tokens=16, attempts=attempts)


def test_a_chat_model_is_asked_and_its_answer_kept(policy, tmp_path):
    answer = policy.format.response_ids("<scores>3, 8</scores>")
    engine, ask = chat_judge(policy, lambda conversation, turn: answer)
    decide = Judge(ask, JudgeConfig(model="x"))
    assert decide([Comparison("the {task}", "went <|im_end|> left", "went right")]) == [(3.0, 8.0)]
    (_, ids) = engine.calls[0]
    text = policy.tokenizer.decode(ids)
    assert "the {task}" in text
    assert text.index("went < |im_end|> left") < text.index("went right")  # no text ends its own message
    assert decide.num_tokens == len(ids) + len(answer)
    assert engine.samplings[0].temperature == 0
    decide.finish(tmp_path / "step-000001.parquet")
    (row,) = pq.read_table(tmp_path / "step-000001.parquet").to_pylist()
    assert (row["answer"], row["score_first"], row["score_second"]) == ("<scores>3, 8</scores>", 3.0, 8.0)


def test_a_long_trajectory_keeps_its_begin_and_its_end(policy):
    _, ask = chat_judge(policy, lambda *_: [1], room=300)
    text = " ".join(map(str, range(400)))
    ids = ask.prompt_ids(Comparison("task", text, text))
    assert 200 < len(ids) <= 300 - 16
    shown = policy.tokenizer.decode(ids)
    assert shown.count("0 1 2") == shown.count("398 399") == 2
    assert chat.LEFT_OUT.strip() in shown
    assert "Answer with nothing but" in shown
    whole = question(Comparison("task", text, text))
    assert text in whole


def test_an_answer_that_the_engine_loses_is_asked_for_again(policy):
    answer, lost = policy.format.response_ids("<scores>7</scores>"), iter([True, True, False])

    def respond(conversation, turn):
        if next(lost, True):
            raise EngineFault("lost")
        return answer

    engine, ask = chat_judge(policy, respond)
    assert ask([Rating("t", "a")]) == [7.0]
    assert len(engine.calls) == 3
    assert ask([Rating("t", "a")]) == [None]


def test_a_judge_without_room_for_a_question_is_refused(policy):
    settings = JudgeConfig(model="policy", max_new_tokens=400)
    with pytest.raises(ConfigError, match=r"judge\.max_new_tokens=400 leaves no room for a question in the 400 tokens"):
        make_judge(settings, policy, ScriptedEngine(lambda *_: []), "float32", "cpu")


def test_what_happened_is_told():
    (one,) = played([[1.0, 2.0]]).trajectories
    assert transcript(one) == "Turn 1: quality 1.0\nAnswer 1: seen 1\nTurn 2: quality 2.0\nAnswer 2: end"
    assert transcript(one, 1, observations=False) == "Turn 1: quality 1.0"
    assert transcript(one, 0) == ""


def decide_by_length(cases):
    """A judge for runs."""
    return [(float(len(case.first)), float(len(case.second))) for case in cases]


def judged(folder, **sections):
    data = {"method": "arena_rl", "judge": {"run": "tests.judge.test_judge:decide_by_length"}}
    return small_config(folder, **(data | sections))


def test_a_run_records_its_judgements_and_resumes_without_them(tmp_path):
    config = judged(tmp_path, checkpoint={"every": 1})
    folder = train(config)
    (first, second) = sorted(folder.judgements.glob("*.parquet"))
    assert (first.name, second.name) == ("step-000001.parquet", "step-000002.parquet")
    (metrics, _) = [record for record in folder.metrics() if "update/loss" in record]
    assert metrics["measure/judge_asked"] == pq.read_metadata(first).num_rows > 0
    assert metrics["measure/rank_tokens"] == 0
    told = pq.read_table(second)
    shutil.rmtree(folder.checkpoints / "step-000002")
    folder.rewind(1)
    assert [path.name for path in folder.judgements.glob("*")] == ["step-000001.parquet"]
    train(config, resume=folder.path)
    assert pq.read_table(second).equals(told)
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    assert any("judgements" in problem for problem in folder.problems())


def test_a_chat_model_judges_a_run(tmp_path):
    """It has random weights, so none of its answers holds scores: every match is a draw."""
    folder = train(
        judged(
            tmp_path,
            judge={"model": str(chat_model("qwen3")), "max_context": 400, "max_new_tokens": 8},
            run={"steps": 1},
            rollout={"groups": 1, "group_size": 3},
        )
    )
    (metrics,) = [record for record in folder.metrics() if "update/loss" in record]
    assert metrics["measure/judge_failed_frac"] == 1.0
    assert metrics["measure/rank_tokens"] > 100
    rows = pq.read_table(folder.judgements / "step-000001.parquet").to_pylist()
    assert {row["failure"] for row in rows} <= {"the answer holds no scores", "not a verdict: None"}


MISTAKES = {
    "neither": ({"judge": {}}, "judge needs a function .* or a chat model .*, got neither"),
    "both": ({"judge": {"run": "a:b", "model": "smollm2"}}, "got both"),
    "no function": ({"judge": {"run": "a"}}, "judge.run='a': expected 'module:function'"),
    "no effect": ({"judge": {"run": "a:b", "attempts": 2}}, "judge.attempts has no effect on a function"),
    "tiny": ({"judge": {"model": "tiny"}}, "judge.model='tiny' cannot judge"),
    "unknown": ({"judge": {"rum": "a:b"}}, "unknown key 'judge.rum'. Did you mean 'run'"),
    "engine": ({"judge": {"model": "policy", "engine": {"max_rows": 3}}}, "judge.engine has no effect"),
    "no room": (
        {"judge": {"model": "policy", "max_new_tokens": 4096}},
        "no room for a question in judge.max_context",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_the_section_is_one_line(case):
    data, said = MISTAKES[case]
    with pytest.raises(ConfigError, match=said):
        parse_config(data)


NOT_POSSIBLE = {
    "nobody asks": ({"method": "grpo"}, "judge has no effect"),
    "no judge": ({"judge": None}, "needs the column 'rank' .* Add judge.model=NAME or judge.run=module:function"),
    "measure": ({"judge": None, "method": "grpo", "measures": ["progress"]}, "the measure 'progress' needs a judge"),
    "absent": ({"judge": {"run": "tests.judge.test_judge:nobody"}}, "has no 'nobody'"),
    "not callable": ({"judge": {"run": "tests.judge.test_judge:BAD"}}, "is a dict, expected a function"),
    "tiny policy": ({"judge": {"model": "policy"}}, "needs a chat model, and this run's policy is none"),
}


@pytest.mark.parametrize("case", NOT_POSSIBLE)
def test_a_judge_that_cannot_work_is_refused_before_the_first_step(case, tmp_path):
    sections, said = NOT_POSSIBLE[case]
    with pytest.raises(ConfigError, match=said):
        train(judged(tmp_path, **sections))


def test_mica_takes_the_judges_progress_as_turn_rewards():
    rewards, outcome = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 5.0], [0.0, 7.0]]
    turns = [
        [{"reward": r, "progress": p} for r, p in zip(paid, made, strict=True)]
        for paid, made in zip(outcome, rewards, strict=True)
    ]
    batch = tw.Batch.from_trajectories([turns])
    # the card's check of MICA: A_turn = [[0, -1], [0, 1]], A_group = [[1, -1], [-1, 1]], half of each
    np.testing.assert_allclose(tw.mica(discount=1.0, column="progress")(batch), [0.5, -1, -0.5, 1], atol=1e-7)
    assert np.abs(tw.mica(discount=1.0)(batch) - [0.5, -1, -0.5, 1]).max() > 0.1


def test_a_judge_reads_the_turns_that_a_trajectory_was_given():
    """The task stands before them, and a hinted trajectory begins after them."""
    turns = [Turn(text, text, [1], [2], [0.0], f"do {text}", False) for text in ("TASK: cook", "raw.", "hot.")]
    whole = Trajectory(0, "t", turns, last_observation="done")
    hinted = dataclasses.replace(whole, turns=turns[2:], given=tuple(turns[:2]))
    assert task_of(hinted) == task_of(whole) == "TASK: cook"
    assert transcript(hinted) == transcript(whole)
    assert transcript(hinted, 0) == transcript(whole, 2)
    assert transcript(hinted, 0).endswith("Turn 2: do raw.\nAnswer 2: hot.")
