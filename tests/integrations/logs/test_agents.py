"""ATIF, episodes of verifiers, rollouts of NeMo Gym, and logs of requests, in the forms that their projects write."""

import json
from typing import Any

import pytest
from tests.integrations.logs.test_faults import read, said
from tests.integrations.logs.test_formats import CALL, TURNS, chat, lines, turns

from turnwise.base.errors import DataError
from turnwise.integrations.logs.formats import READ, WRITTEN, read_log
from turnwise.integrations.logs.logged import continues


def atif(reward: Any = 1.0, **more: Any) -> dict[str, Any]:
    """The conversation of `chat`, with tokens of the first response, as Harbor's agents write it."""
    tokens = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5], "logprobs": [-0.5, -0.25]}
    call = {"tool_call_id": "c1", "function_name": "add", "arguments": {"x": 1}, "extra": {"timeout": 3}}
    steps = [
        {"source": "system", "message": "Be brief."},
        {"source": "user", "message": "1 + 1?", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "source": "agent",
            "message": "Let me see.",
            "model_name": "m",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c1", "content": "2", "extra": {"score": 1}}]},
            "metrics": {"prompt_tokens": 3, "cost_usd": 0.5, **tokens, "extra": {"reasoning_tokens": 1}},
        },
        {"source": "agent", "message": "The sum is 2"},
    ]
    extra = {} if reward is None else {"extra": {"reward": reward}}
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    agent = {"name": "a", "version": "1", "model_name": "m"}
    return {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": numbered, **extra, **more}


def test_atif(tmp_path):
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(atif(), indent=2))
    ((found,), missing) = read(path)
    assert turns(found) == TURNS
    assert (found.reward, missing) == (1.0, [])
    first, second = found.turns
    assert (first.prompt_ids, first.response_ids, first.behavior_logprobs) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
    assert (second.prompt_ids, second.response_ids) == ([], [])


def test_tokens_that_go_on_are_a_delta_and_others_begin_anew(tmp_path):
    for whole, fresh in ([1, 2, 3, 4, 5, 6], False), ([1, 2, 9], True):
        document = atif()
        document["steps"][3]["metrics"] = {"prompt_token_ids": whole, "completion_token_ids": [7]}
        ((found,), _) = read(lines(tmp_path / "a.jsonl", document))
        second = found.turns[1]
        assert (second.prompt_ids, second.fresh) == (whole if fresh else [6], fresh)


def test_what_was_copied_or_dispatched_is_not_a_response(tmp_path):
    document = atif()
    document["steps"][3:3] = [
        {"source": "agent", "message": "copied", "is_copied_context": True},
        {"source": "agent", "message": "dispatched", "llm_call_count": 0},
    ]
    ((found,), _) = read(lines(tmp_path / "a.jsonl", document))
    assert said([found]) == [[CALL, "The sum is 2"]]


def test_a_sub_agent_is_part_of_its_parent(tmp_path):
    document, sub = atif(), {**atif(), "trajectory_id": "sub", "agent": {"name": "helper", "version": "1"}}
    sub["steps"] = [{"source": "user", "message": "help"}, {"source": "agent", "message": "use add"}]
    document["subagent_trajectories"] = [sub]
    document["steps"][2]["observation"]["results"].append({"subagent_trajectory_ref": [{"trajectory_id": "sub"}]})
    ((found,), _) = read(lines(tmp_path / "a.jsonl", document))
    assert [(turn.response, turn.extras.get("actor", ""), turn.fresh) for turn in found.turns] == [
        (CALL, "", True),
        ("use add", "helper", True),
        ("The sum is 2", "", True),
    ]


def test_rewards_of_a_folder_of_harbor_are_its_verifiers(tmp_path):
    for number, reward in enumerate((1.0, 0.0, None)):
        trial = tmp_path / "job" / f"task__{number}"
        (trial / "agent").mkdir(parents=True)
        (trial / "agent" / "trajectory.json").write_text(json.dumps(atif(None)))
        result: dict[str, Any] = {"task_name": "task", "trial_name": f"task__{number}"}
        result["verifier_result"] = None if reward is None else {"rewards": {"reward": reward}}
        result["exception_info"] = {"exception_message": "timeout"} if reward is None else None
        (trial / "result.json").write_text(json.dumps(result))
    (tmp_path / "job" / "task__0" / "agent" / "trajectory.cont-1.json").write_text("{")
    found, missing = read(tmp_path / "job")
    assert [(each.task, each.group, each.reward, each.failure) for each in found] == [
        ("task", 0, 1.0, None),
        ("task", 0, 0.0, None),
        ("task", 0, 0.0, "log: timeout"),
    ]
    assert missing[0].startswith("1 records are left out: ")


TWO_OF_ONE = {"completion_token_ids": [1], "logprobs": [1, 2]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"steps": 3}, "line 1: steps is 3, expected a list"),
        (
            {"steps": [{"source": "robot", "message": ""}]},
            "steps[0]: source is 'robot', expected system, user or agent",
        ),
        ({"schema_version": "2"}, 'line 1: schema_version is "2", expected'),
        (
            {
                "steps": [
                    {"source": "agent", "message": "", "metrics": {"completion_token_ids": [1], "logprobs": [1, 2]}}
                ]
            },
            "steps[0]: 2 log-probabilities of 1 tokens, expected one for each",
        ),
        (
            {"steps": [{"source": "agent", "message": "", "metrics": {"completion_token_ids": [-1]}}]},
            "steps[0]: the token id -1 is not one",
        ),
        ({"schema_version": "1.1"}, 'schema_version is "1.1", expected a version of ATIF, such as ATIF-v1.8'),
    ],
)
def test_what_is_wrong_with_a_document_is_said(tmp_path, change, expected):
    with pytest.raises(DataError) as raised:
        read(lines(tmp_path / "a.jsonl", {**atif(), **change}))
    assert expected in str(raised.value)


def nodes() -> list[dict[str, Any]]:
    given = chat()["messages"]
    call = {"id": "1", "name": "add", "arguments": '{"x": 1}'}
    made: list[dict[str, Any]] = [{"message": message} for message in given]
    for number, node in enumerate(made):
        node |= {"parent": number - 1 if number else None, "token_ids": [number], "mask": [False], "timestamp": 1.0}
    made[2] |= {"message": {**given[2], "tool_calls": [call]}, "sampled": True}
    made[2] |= {"token_ids": [9, 10, 11], "mask": [False, True, True], "logprobs": [-1.0, -2.0]}
    made[4] |= {"sampled": True, "token_ids": [12, 13], "mask": [False, True], "logprobs": [-3.0]}
    return made


def episode(identity: str = "e", score: Any = 0.5, **more: Any) -> dict[str, Any]:
    task = {"type": "Sum", "data": {"idx": 3}, "key": "sum-3"}
    rewards = {"right": {"score": score, "weight": 2.0}, "form": {"score": 0.25, "weight": 1.0}}
    trace = {"id": identity, "task": task, "agent": {"name": "agent"}, "nodes": nodes(), "rewards": rewards, **more}
    return {"id": identity, "env": {"id": "sums"}, "task": task, "group": {"id": "g"}, "ok": True, "traces": [trace]}


def test_episodes_of_verifiers(tmp_path):
    path = lines(tmp_path / "traces.jsonl", episode("a"), episode("b", 0.0), episode("c", None), episode("a"))
    found, missing = read(path)
    assert [turns(each) for each in found] == [TURNS] * 3
    assert [(each.task, each.group, each.reward) for each in found][:2] == [("sum-3", 0, 1.25), ("sum-3", 0, 0.25)]
    assert [each.usable for each in found] == [True, True, False]
    first, second = found[0].turns
    assert (first.prompt_ids, first.response_ids, first.behavior_logprobs) == ([0, 1, 9], [10, 11], [-1.0, -2.0])
    assert (second.prompt_ids, second.response_ids) == ([3, 12], [13])
    assert "1 that were there before, and count once" in missing


def test_a_judge_that_is_not_trained_is_counted_and_left_out(tmp_path):
    told = episode()
    told["traces"].append({**told["traces"][0], "id": "j", "agent": {"name": "judge", "trainable": False}})
    found, missing = read(lines(tmp_path / "traces.jsonl", told))
    assert len(found) == 1
    assert missing == ["1 traces of agents that are not trained"]


def rollout(number: int, reward: float) -> dict[str, Any]:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"x": 1}', **tokens},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "The sum is 2"}]},
    ]
    asked = {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}], "tools": []}
    told = {"_ng_task_index": 0, "_ng_rollout_index": number, "reward": reward}
    return {"responses_create_params": asked, "response": {"output": output, "model": "m"}, **told}


def test_rollouts_of_nemo_gym(tmp_path):
    found, missing = read(lines(tmp_path / "rollouts.jsonl", rollout(0, 1.0), rollout(1, 0.0), rollout(1, 0.0)))
    assert [turns(each) for each in found] == [[("1 + 1?", f"<think>\nhm\n</think>\n\n{CALL}", True), TURNS[1]]] * 2
    assert [(each.group, each.reward) for each in found] == [(0, 1.0), (0, 0.0)]
    assert (found[0].turns[0].prompt_ids, found[0].turns[0].response_ids) == ([1, 2], [3])
    assert missing == ["1 that were there before, and count once"]


def pair(messages: list[Any], answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": answer}
    return {"request": {"model": "m", "messages": messages}, "response": {"choices": [choice]}, **more}


def test_calls_that_go_on_from_earlier_ones_are_a_trajectory(tmp_path):
    messages = chat()["messages"]
    first, other = pair(messages[:2], messages[2]), pair(messages[:2], {"role": "assistant", "content": "3"}, reward=0)
    path = lines(tmp_path / "calls.jsonl", first, other, pair(messages[:4], messages[4], reward=1, task="sum"))
    found, _ = read(path)
    assert [(turns(each), each.reward) for each in found] == [(TURNS, 1.0), ([("1 + 1?", "3", True)], 0.0)]


def test_calls_with_an_id_are_a_trajectory_and_repeated_and_failed_ones_are_said(tmp_path):
    ask = [{"role": "user", "content": "q"}]
    one = pair(ask, {"role": "assistant", "content": "a"}, session_id="s", reward=1)
    one["response"]["id"] = "r"
    other = pair([{"role": "user", "content": "p"}], {"role": "assistant", "content": "b"})
    other["request"]["metadata"] = {"session_id": "s"}
    lost = {"request": {"messages": ask}, "response": {"status_code": 500, "body": {"error": {"message": "busy"}}}}
    found, missing = read(lines(tmp_path / "calls.jsonl", one, other, one, lost))
    assert said(found) == [["a", "b"], []]
    assert found[1].failure == 'log: its last call failed: "busy"'
    assert "1 that were there before, and count once" in missing
    with pytest.raises(DataError, match="no record has the key 'rewards'"):
        read_log(tmp_path / "calls.jsonl", reward="rewards")


def test_requests_of_anthropic_and_of_the_responses_api(tmp_path):
    use = {"type": "tool_use", "id": "t", "name": "add", "input": {"x": 1}}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me see."}, use]
    asked = [{"role": "user", "content": "1 + 1?"}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "2"}]}
    tool = {"name": "add", "input_schema": {"type": "object"}}
    begin = {"model": "m", "system": "Be brief.", "tools": [tool]}
    sent = [{"role": "assistant", "content": blocks[1:]}]  # without the reasoning
    calls = [
        {"request": {**begin, "messages": asked}, "response": {"content": blocks, "stop_reason": "tool_use"}},
        {
            "request": {**begin, "messages": [*asked, *sent, result]},
            "response": {"content": [{"type": "text", "text": "The sum is 2"}], "stop_reason": "max_tokens"},
            "reward": 1,
        },
    ]
    ((found,), _) = read(lines(tmp_path / "anthropic.jsonl", *calls))
    assert turns(found) == [("1 + 1?", f"<think>\nhm\n</think>\n\n{CALL}", True), TURNS[1]]
    assert [turn.truncated for turn in found.turns] == [False, True]
    output = rollout(0, 1.0)["response"]["output"]
    answers = [{"type": "function_call_output", "call_id": "c", "output": "2"}]
    calls = [
        {"request": {"input": "1 + 1?", "instructions": "Be brief."}, "response": {"id": "r1", "output": output[:3]}},
        {
            "request": {"input": answers, "instructions": "Be brief.", "previous_response_id": "r1"},
            "response": {"id": "r2", "output": output[4:]},
            "reward": 1,
        },
    ]
    ((found,), _) = read(lines(tmp_path / "responses.jsonl", *calls))
    assert turns(found) == [("1 + 1?", f"<think>\nhm\n</think>\n\n{CALL}", True), TURNS[1]]


def test_a_conversation_of_anthropics_blocks_is_one_of_chat(tmp_path):
    use = {"type": "tool_use", "id": "t", "name": "add", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "2"}]}
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "The sum is 2"},
    ]
    ((logged,), _) = read_log(lines(tmp_path / "log.jsonl", {"system": "Be brief.", "messages": messages, "reward": 1}))
    ((found,), _) = read(tmp_path / "log.jsonl")
    assert turns(found) == TURNS
    assert logged.responses[0].history[0] == {"role": "system", "content": "Be brief."}
    assert continues(*logged.responses)


def test_the_command_names_the_formats_of_the_table():
    from turnwise.commands import import_log

    assert import_log.KINDS == READ
    assert import_log.WRITTEN == WRITTEN


def test_a_repeated_call_may_bring_the_reward_and_another_of_its_id_counts(tmp_path):
    calls = [pair([{"role": "user", "content": "q"}], {"role": "assistant", "content": each}) for each in "ab"]
    for each in calls:
        each["response"]["id"] = "chatcmpl-7"
    found, missing = read(lines(tmp_path / "calls.jsonl", calls[0], {**calls[0], "reward": 0.5}, calls[1]))
    assert said(found) == [["a"], ["b"]]
    assert found[0].reward == 0.5
    assert "1 that were there before, and count once" in missing
