"""Rewards of zero, batches without credit, prompts of a template, calls made at once: logs that were read wrongly."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integrations.logs.test_agents import pair
from tests.integrations.logs.test_export import ask, objects
from tests.integrations.logs.test_formats import export as spans_of
from tests.integrations.logs.test_formats import lines, read, span, text
from tests.rollout.chat_models import tokenizer

from turnwise.commands.cli import main
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.integrations.logs.export import _logged, export
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.logged import CONTRADICTING, Names
from turnwise.integrations.logs.trajectories import _encode, _trajectory
from turnwise.integrations.logs.write import import_log, not_kept
from turnwise.lab.report.chunks import _sent
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig
from turnwise.rollout.record import read_rollouts


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def agent(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def paid(name: str, *rewards: float | None) -> dict[str, Any]:
    """A line whose messages have rewards of their own."""
    given = [{} if reward is None else {"reward": reward} for reward in rewards]
    turns = [[agent(f"{name}{number}", **each), user("go on")] for number, each in enumerate(given)]
    return {"task": "q", "messages": [user("q"), *(message for turn in turns for message in turn)]}


def returns(path: Path) -> list[float | None]:
    return [None if each.failure else each.reward for each in read(path)]


def test_a_message_whose_reward_is_zero_has_a_reward():
    path = lines(
        Path("log.jsonl"), paid("a", 0.0, 1.0), paid("b", 0.0, 0.0), paid("c", None, 0.0), paid("d", None, None)
    )
    assert returns(path) == [1.0, 0.0, 0.0, None]
    for to in ("chat", "atif", "opentelemetry"):
        export(path, Path(f"{to}.jsonl"), to)
        assert returns(Path(f"{to}.jsonl")) == [1.0, 0.0, 0.0, None]
    export(path, Path("dpo.jsonl"), "dpo")
    assert objects("dpo.jsonl")


def test_a_batch_in_which_nothing_is_learned_takes_no_credit_of_others():
    told = [("x1", 1, None), ("y1", 2, 1.0), ("y2", 2, 0.0), ("y3", 2, 0.0)]
    export(
        lines(Path("log.jsonl"), *(ask(said, reward, step=step) for said, step, reward in told)),
        Path("out.jsonl"), "chat", method="grpo",
    )  # fmt: skip
    credit = [line.get("turnwise.advantage") for line in objects("out.jsonl")]
    assert credit == [None, *([pytest.approx(value, abs=1e-3)] for value in (1.155, -0.577, -0.577))]


def test_prompts_that_begin_alike_are_other_tasks():
    template = "Follow these rules to the letter. " * 5
    log = [{"messages": [user(template + task), agent("a")], "reward": 1.0} for task in ("one", "two", "one")]
    found = [each.task for each in read(lines(Path("log.jsonl"), *log))]
    assert found[0] == found[1] != found[2]  # in groups
    assert all(name.startswith(template[:80]) for name in found)


def test_calls_made_at_once_that_begin_alike_stay_apart():
    begun = [pair([user("q")], agent(said)) for said in ("look", "look", "go")]
    after = [
        pair([user("q"), agent(said), user(seen)], agent(done), reward=reward)
        for said, seen, done, reward in (("look", "key", "take key", 1.0), ("look", "lamp", "take lamp", 0.5),
                                         ("go", "wall", "stop", 0.0))
    ]  # fmt: skip
    one_by_one = [each for both in zip(begun, after, strict=True) for each in both]
    for told in ([*begun, *after], one_by_one):
        found = read(lines(Path("calls.jsonl"), *told))
        assert [([turn.response for turn in each.turns], each.reward) for each in found] == [
            (["look", "take key"], 1.0), (["look", "take lamp"], 0.5), (["go", "stop"], 0.0)
        ]  # fmt: skip


def test_every_batch_of_a_log_can_be_compared(capsys):
    for name, wins in (("A", [1, 1, 1]), ("B", [0, 0, 1])):
        told = [ask("a", float(won), task=f"t{number}", step=1 + number // 2) for number, won in enumerate(wins)]
        import_log(lines(Path(f"{name}.jsonl"), *told), Path("runs") / name)
    assert main(["compare", "runs/A", "--", "runs/B"]) == 0
    said = capsys.readouterr()
    assert "one batch of a log of 2 is compared; --step chooses it" in said.out + said.err
    assert main(["compare", "--step", "1", "runs/A", "--", "runs/B"]) == 0
    assert "+1.000" in capsys.readouterr().out


def test_logs_with_common_tasks_are_compared_whichever_attempts_they_have(capsys):
    for name, rewards in (("A", [None, 1.0]), ("B", [0.0])):
        import_log(lines(Path(f"{name}.jsonl"), *(ask("a", each) for each in rewards)), Path("runs") / name)
    assert main(["compare", "runs/A", "--", "runs/B"]) == 0
    assert "+1.000" in capsys.readouterr().out


def test_spans_keep_how_a_trajectory_ended():
    path = lines(Path("log.jsonl"), ask("a", 1.0, truncated=True, info={"task_type": "find"}))
    export(path, Path("spans.jsonl"), "opentelemetry")
    (found,) = read(Path("spans.jsonl"))
    assert (found.ended, found.info["task_type"]) == ("truncated", "find")


def test_evaluations_that_contradict_each_other_are_counted():
    evaluated = [
        {"name": "gen_ai.evaluation.result",
         "attributes": [{"key": "gen_ai.evaluation.name", "value": {"stringValue": "quality"}},
                        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": value}}]}
        for value in (1.0, 0.0)
    ]  # fmt: skip
    one = {**span(1, [text("user", "q")], [text("assistant", "a")]), "events": evaluated}
    logged, source = read_log(lines(Path("spans.jsonl"), spans_of(one)))
    assert logged[0].total == 0.0
    assert any(CONTRADICTING in each for each in not_kept(source))


def tokens(said: str, ids: list[int], reward: float, logprob: float) -> dict[str, Any]:
    metrics = {"prompt_token_ids": [1], "completion_token_ids": ids, "logprobs": [logprob] * len(ids)}
    steps = [{"source": "user", "message": "q"}, {"source": "agent", "message": said, "metrics": metrics}]
    return {"schema_version": "ATIF-v1.5", "agent": {"name": "a"}, "steps": steps, "extra": {"reward": reward}}


def test_log_probabilities_are_recorded_without_entropies():
    told = [tokens("a", [2, 3], 1.0, -0.5), tokens("b", [4], 0.0, -0.25)]
    import_log(lines(Path("log.jsonl"), *told), Path("runs/r"))
    _, columns = read_rollouts(Path("runs/r/rollouts/step-000001.parquet"))
    assert columns["logprob"].tolist() == [-0.5, -0.25]
    assert columns["rare_logprob"].tolist() == [-0.5, -0.25]
    assert main(["recredit", "runs/r", "--method", "blup"]) == 0


def test_a_record_that_says_less_belongs_to_the_latest_trajectory_of_its_name():
    names = Names()
    told = [{"step": 1, "task": "A"}, {"step": 1}, {"step": 1, "task": "B"}, {"step": 1}, {"step": 1, "task": "A"}]
    assert [names.number("0", facts) for facts in told] == [0, 0, 1, 1, 0]


def test_what_was_sent_is_that_of_the_tokens_that_a_score_reads():
    tokens_of = {"prompt_ids": [1, 2, 3], "response_ids": [4, 5], "logprobs": [-0.1, -0.1]}
    log = {"messages": [user("q1"), agent("r1"), user("q2"), agent("r2")], "reward": 1.0}
    (logged,) = read_log(lines(Path("log.jsonl"), log))[0]
    for response, ids in zip(logged.responses, ([1, 2, 3], [1, 2, 9]), strict=True):
        response.prompt_ids, response.response_ids, response.logprobs = ids, tokens_of["response_ids"], [-0.1, -0.1]
    trajectory = _trajectory(logged)
    assert trajectory.turns[1].fresh  # the ids do not go on
    fmt = chat_format(tokenizer("smollm2"), PromptConfig())
    _encode(logged, trajectory, Prompter(fmt), SimpleNamespace(format=fmt, max_context=10**6))  # pyright: ignore
    assert not trajectory.turns[1].fresh
    again = _logged(trajectory, "n", 1, [], "")
    assert [message["content"] for message in again.responses[1].history] == ["q1", "r1", "q2"]


@pytest.mark.parametrize("tool", [{"function": "search"}, {"name": "search"}, {"function": {"name": "search"}}])
def test_tools_of_any_form_are_named_in_the_report(tool):
    assert _sent({"tools": [tool], "messages": []}) == ["tools: search"]


def test_another_file_beside_a_trial_is_left_out_and_named(capsys):
    trial = Path("harbor/t1")
    trial.mkdir(parents=True)
    (trial / "trajectory.json").write_text(json.dumps(tokens("a", [2], 1.0, -0.5)))
    (trial / "trajectory.stats.json").write_text(json.dumps({"note": "of another tool"}))
    assert main(["import", "harbor"]) == 0
    said = capsys.readouterr()
    assert "trajectories: 1" in said.out
    assert "trajectory.stats.json: no key 'schema_version'" in said.err
