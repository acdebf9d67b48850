"""What is exported holds what the run or the log had; what a format cannot hold is listed once."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.integrations.logs.test_agents import atif, pair, rollout
from tests.integrations.logs.test_formats import CALL, chat, lines
from tests.needs import needs

from turnwise.base.checksums import KEY
from turnwise.commands.cli import main
from turnwise.config import parse_config
from turnwise.extensions.gateway.taught import read_conversations
from turnwise.integrations.logs.export import export
from turnwise.integrations.logs.formats import FORMATS, read_log
from turnwise.integrations.logs.trajectories import make_trajectories
from turnwise.integrations.logs.write import import_log
from turnwise.integrations.recorded import RecordedRun
from turnwise.models.settings import REASON
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory, Turn


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SFT = (f"sft does not hold {FORMATS['sft'].lacks}",) if FORMATS["sft"].lacks else ()


def objects(path: str | Path) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def ask(answer: str, reward: float | None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
    return {"task": "t", "messages": messages, **({} if reward is None else {"reward": reward}), **more}


def played(reward: float, *, first: str = "a") -> Trajectory:
    """Two turns that go on and one of a sub-agent, with tokens, as a run records them."""
    turns = [
        Turn("q", "s0", [1, 2], [3, 4], [-0.5, -0.25], first, False, behavior_entropies=[0.1, 0.2], version=3),
        Turn("o", "s1", [5], [6], [-1.0], CALL, True, reward=0.25, valid=False, behavior_entropies=[0.3]),
        Turn("p", "s2", [7], [8], [-2.0], "c", False, reward=reward, fresh=True, behavior_entropies=[0.4]).put(
            actor="helper"
        ),
    ]
    return Trajectory(0, "t", turns, success=reward > 0, ended="terminated", info={"score": reward})


@pytest.fixture
def run(folder) -> Path:
    config = {"environment": {"name": "household", "invalid_penalty": 0.0}, "model": {"name": "tiny"}}
    recorded = RecordedRun(folder / "runs" / "r", parse_config(config))
    recorded.add([played(1.0), played(0.0, first="b")])
    failed = Trajectory(1, "u", [], ended="failed", failure="lost")
    recorded.add([played(1.0), played(0.5), failed])
    recorded.evaluate([played(1.0)])
    return recorded.folder.path


def steps_of(path: Path) -> list[tuple[list[Trajectory], dict[str, np.ndarray]]]:
    return [read_rollouts(each) for each in sorted((path / "rollouts").iterdir())]


def test_a_run_comes_back_from_atif_as_it_was(run):
    """Ids, log-probabilities, entropies, rewards, states, actors and versions, and what cannot be learned from."""
    made = export(run, Path("out"), "atif")
    assert (made.trajectories, made.written) == (5, 5)
    assert sorted(path.name for path in Path("out").iterdir())[0] == "trajectory-000001.json"
    import_log(Path("out"), Path("runs/again"))
    for (found, columns), (expected, credit) in zip(steps_of(Path("runs/again")), steps_of(run), strict=True):
        for one, other in zip(found, expected, strict=True):
            other.failure = other.failure and f"log: {other.failure}"
            other.last_key = one.last_key
            assert one == other
        assert np.array_equal(columns["advantage"], credit["advantage"], equal_nan=True)


def test_advantages_are_written_with_the_name_of_their_method(run):
    export(run, Path("out.jsonl"), "atif")
    step = objects("out.jsonl")[0]["steps"][1]
    _, columns = steps_of(run)[0]
    assert (step["extra"]["turnwise.advantage"], step["extra"]["turnwise.method"]) == (columns["advantage"][0], "grpo")
    export(run, Path("chat.jsonl"), "chat", method="rloo", step=2)
    first, *_ = objects("chat.jsonl")
    assert first["turnwise.method"] == "rloo"
    # the other trajectory's return is 0.75, this one's 1.25
    assert first["turnwise.advantage"] == pytest.approx([0.5, 0.5])
    assert [line["return"] for line in objects("chat.jsonl")] == [1.25, 1.25, 0.75, 0.75]


def test_a_run_comes_back_from_chat_but_for_its_tokens(run):
    export(run, Path("out.jsonl.gz"), "chat")
    assert gzip.decompress(Path("out.jsonl.gz").read_bytes()).startswith(b'{"task": "t"')
    found, source = read_log(Path("out.jsonl.gz"))
    assert source.left_out == []
    expected = [each for step, _ in steps_of(run) for each in step if each.turns]
    for one, other in zip(make_trajectories(found), expected, strict=True):
        assert (one.reward, one.success, one.info) == (other.reward, other.success, other.info)
        told = [
            [
                (t.observation, t.response, t.reward, t.valid, t.truncated, t.extras.get("actor"), t.state_key, t.fresh)
                for t in each.turns
            ]
            for each in (one, other)
        ]
        assert told[0] == told[1]


CALLED = pair(chat()["messages"][:2], chat()["messages"][2], reward=1)


@pytest.mark.parametrize("to", ["atif", "chat", "opentelemetry"])
@pytest.mark.parametrize("record", [chat(success=True), atif(), rollout(0, 1.0), CALLED])
def test_what_a_log_says_comes_back_from_every_format(to, record):
    """Messages, calls, reasoning and rewards, from formats that are read to those that are written."""
    path = lines(Path("log.jsonl"), record)
    export(path, Path("out.jsonl"), to)
    (one,), (other,) = (make_trajectories(read_log(each)[0]) for each in (path, Path("out.jsonl")))
    assert one.reward == other.reward
    told = [[(turn.observation, turn.response, turn.fresh) for turn in each.turns] for each in (one, other)]
    assert told[0] == told[1]


def stripped(value: Any) -> Any:
    """Leave out what we add."""
    if isinstance(value, dict):
        kept = {key: stripped(each) for key, each in value.items() if not key.startswith("turnwise.")}
        return {key: each for key, each in kept.items() if not (key == "extra" and each == {})}
    return [stripped(each) for each in value] if isinstance(value, list) else value


def test_a_document_of_atif_comes_back_whole():
    document = atif(final_metrics={"total_cost_usd": 0.5}, notes="n", trajectory_id="a")
    document["steps"][2]["metrics"]["completion_tokens"] = 2
    document["steps"][2]["reasoning_content"] = "hm"
    document["steps"].append({"step_id": 5, "source": "user", "message": [{"type": "text", "text": "thanks"}]})
    export(lines(Path("log.jsonl"), document), Path("out.json"), "atif")
    assert stripped(json.loads(Path("out.json").read_text())) == document


@needs("atif")
@pytest.mark.parametrize("version", ["ATIF-v1.7", "ATIF-v1.8"])
def test_documents_are_valid_for_the_package_of_the_format(run, version):
    from atif import Trajectory as Document  # pyright: ignore[reportMissingImports]

    document = Document.model_validate({**atif(), "schema_version": version}).to_json_dict()
    export(lines(Path("log.jsonl"), document), Path("log.json"), "atif")
    again = Document.model_validate(json.loads(Path("log.json").read_text()))
    assert stripped(again.to_json_dict())["steps"][2]["metrics"] == {
        **document["steps"][2]["metrics"],
        "completion_tokens": 2,
    }
    export(run, Path("run.jsonl"), "atif")
    for each in objects("run.jsonl"):
        Document.model_validate(each)
    for name, record in {"chat": chat(), "nemo": rollout(0, 1.0)}.items():
        export(lines(Path(f"{name}.jsonl"), record), Path(f"{name}.json"), "atif")
        Document.model_validate(json.loads(Path(f"{name}.json").read_text()))


def test_successes_and_returns_above_a_bound_are_conversations_to_imitate():
    path = lines(Path("log.jsonl"), chat(1.0), ask("a", 0.0), ask("b", 0.5), ask("c", None), ask("d", 1.0, failure="x"))
    export(path, Path("a.jsonl"), "sft")
    first, second = objects("a.jsonl")
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    call = first["messages"][2]["tool_calls"][0]
    assert call == {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    assert first["messages"][3] == {"role": "tool", "content": "2", "tool_call_id": "1"}
    assert (second["messages"][-1]["content"], second["return"]) == ("b", 0.5)
    export(path, Path("b.jsonl"), "sft", least=0.75)
    assert [line["return"] for line in objects("b.jsonl")] == [1.0]


def test_responses_with_credit_are_prompts_and_completions():
    path = lines(Path("log.jsonl"), ask("a", 0.0), ask("b", 1.0))
    export(path, Path("a.jsonl"), "sft", by="advantage")
    (line,) = objects("a.jsonl")
    assert line["prompt"] == [{"role": "user", "content": "q"}]
    assert line["completion"] == [{"role": "assistant", "content": "b"}]
    assert line["turnwise.method"] == "grpo"
    assert line["turnwise.advantage"] == pytest.approx([0.7071], abs=1e-4)  # 0.5 / 0.7071
    export(path, Path("b.jsonl"), "sft", by="advantage", least=-1.0)
    assert len(objects("b.jsonl")) == 2


def test_pairs_are_the_best_and_the_worst_of_a_group():
    records = [chat(0.5), chat(1.0), chat(0.0), ask("a", 1.0), ask("b", 1.0), ask("c", float("nan"))]
    records[1]["messages"][-1] = {"role": "assistant", "content": "2!"}
    export(lines(Path("log.jsonl"), *records), Path("a.jsonl"), "dpo", method="grpo")
    (line,) = objects("a.jsonl")
    assert [message["role"] for message in line["prompt"]] == ["system", "user"]
    assert line["chosen"][-1]["content"] == "2!"
    assert line["rejected"][-1]["content"] == "The sum is 2"
    assert (line["chosen_value"], line["rejected_value"]) == (1.0, 0.0)
    assert [len(line["turnwise.advantage"][name]) for name in ("chosen", "rejected")] == [2, 2]


def test_pairs_are_two_responses_to_the_same_messages():
    other = chat(0.0)
    other["messages"][2] = {"role": "assistant", "content": "3"}
    other["messages"] = other["messages"][:3]
    export(lines(Path("log.jsonl"), chat(1.0), chat(0.5), other), Path("a.jsonl"), "dpo", by="state")
    (line,) = objects("a.jsonl")
    assert [message["role"] for message in line["prompt"]] == ["system", "user"]
    assert line["chosen"][0]["tool_calls"]
    assert line["rejected"] == [{"role": "assistant", "content": "3"}]
    assert line["chosen_value"] > line["rejected_value"]


def test_returns_that_rounding_tells_apart_are_no_pair(capsys):
    lines(Path("log.jsonl"), ask("a", 0.3), ask("b", 0.1 + 0.2))
    assert main(["export", "log.jsonl", "--to", "dpo"]) == 2
    said = capsys.readouterr().err
    assert (
        "nothing to write as dpo: 2 of 2 trajectories have a reward and a response, and no group has two values" in said
    )
    assert not Path("log.dpo.jsonl").exists()


def test_the_command_says_once_what_is_not_held(run, capsys):
    assert main(["export", "runs/r", "--to", "chat"]) == 0
    told = capsys.readouterr()
    assert told.out == "r.chat.jsonl: 8 written from 5 trajectories, format chat\n"
    assert [line for line in told.err.splitlines() if "note" in line] == [
        "note: missing: chat does not hold token ids, log-probabilities, trajectories without a response, and the "
        "order of turns of agents that alternate",
    ]


def settings_of(run: Path, **changed: Any) -> None:
    """Rewrite the settings of a recorded run, as if it had been recorded with these."""
    data = json.loads((run / "config.json").read_text())
    for section, values in changed.items():
        data["config"].setdefault(section, {}).update(values)
    data.pop(KEY, None)
    (run / "config.json").write_text(json.dumps(data))


def test_prompts_of_our_own_games_have_their_system_message(run):
    settings_of(run, model={"name": "some/chat"}, prompt={"system": "You play.", "think": True})
    assert export(run, Path("a.jsonl"), "sft", by="advantage", step=1).missing == SFT
    said = [each["prompt"][0] for each in objects("a.jsonl")]
    assert said == [{"role": "system", "content": f"You play.\n\n{REASON}"}] * len(said)


def test_what_a_prompt_has_besides_is_said(run):
    settings_of(run, model={"name": "some/chat"}, prompt={"admissible": True}, rollout={"context": "window"})
    assert export(run, Path("a.jsonl"), "sft").missing == (
        *SFT,
        "a run records observations: lists of admissible actions and the turns that a window repeats are in its token "
        "ids alone",
    )


def test_the_penalty_that_no_format_holds_is_said(run):
    settings_of(run, environment={"invalid_penalty": 0.1})
    assert "environment.invalid_penalty" in export(run, Path("a.jsonl"), "atif").missing[-1]


def test_runs_of_earlier_versions_say_that_requests_are_missing(run):
    for path in (run / "rollouts").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["request"]).replace_schema_metadata(None), path)
    *_, said = export(run, Path("a.jsonl"), "sft").missing
    assert said == "an earlier turnwise recorded this run: of what agents sent it kept the last message alone"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["runs/r", "--to", "dpo", "--by", "reward"], "--by reward: dpo is chosen by group or state"),
        (["runs/r", "--to", "chat", "--least", "1"], "--least is for sft, not for chat"),
        (["runs/r", "--to", "sft", "--step", "9"], "--step 9: "),
        (["runs/r", "--to", "sft", "--method", "grop"], "Did you mean"),
        (["runs/r", "--to", "sft", "--least", "9"], "none is at or above the bound"),
        (["runs/r", "--to", "atf"], "Did you mean 'atif'"),
        (["none.jsonl", "--to", "sft"], "cannot read none.jsonl: No such file"),
        (["log.jsonl", "--to", "sft", "--step", "1"], "--step is for runs, and log.jsonl is a log"),
        (["log.jsonl", "--to", "chat", "--method", "grpo+aem"], "'entropy', which step 1 of log.jsonl does not have"),
        (["log.jsonl", "--to", "chat", "--out", "log.jsonl"], "exists, and nothing is overwritten"),
    ],
)
def test_mistakes_are_one_line(run, capsys, given, expected):
    lines(Path("log.jsonl"), ask("a", 0.0), ask("b", 1.0))
    try:
        code = main(["export", *given])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert expected in said


REASONED = {**chat()["messages"][2], "reasoning_content": "Add them."}
AGAIN = pair([*chat()["messages"][:2], *chat()["messages"][2:4]], chat()["messages"][4], reward=1)


@pytest.mark.parametrize("to", ["atif", "chat", "sft", "dpo"])
def test_reasoning_that_an_agent_does_not_send_again_is_written(to):
    """The second request has the first response without it, as most clients send it."""
    worse = pair(chat()["messages"][:2], {"role": "assistant", "content": "3"}, reward=0)
    records = [pair(chat()["messages"][:2], REASONED), AGAIN, worse]
    export(lines(Path("log.jsonl"), *records), Path("out.jsonl"), to)
    assert "Add them." in Path("out.jsonl").read_text()
    if to in ("atif", "chat"):
        found = make_trajectories(read_log(Path("out.jsonl"))[0])
        assert "<think>\nAdd them.\n</think>" in found[0].turns[0].response


def test_atif_holds_calls_of_users_and_results_without_calls():
    """As in conversations whose simulated user has tools of its own, and of agents that write their calls as text."""
    call = {"id": "9", "type": "function", "function": {"name": "mode", "arguments": '{"on": true}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "look"},
        {"role": "tool", "content": "out", "tool_call_id": "7"},
        {"role": "assistant", "content": "do it"},
        {"role": "user", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "on", "tool_call_id": "9"},
        {"role": "assistant", "content": "a"},
    ]
    export(lines(Path("log.jsonl"), {"messages": messages, "reward": 1}), Path("out.jsonl"), "atif")
    (document,) = objects("out.jsonl")
    assert all("tool_calls" not in step for step in document["steps"])
    (one,), (other,) = (read_log(Path(each))[0] for each in ("log.jsonl", "out.jsonl"))
    told = [
        [{key: each for key, each in message.items() if key != "extra"} for message in logged.responses[-1].history]
        for logged in (one, other)
    ]
    assert told[0] == told[1]


def test_a_sub_agent_has_its_own_tools_in_atif():
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    first = pair([{"role": "user", "content": "q"}], {"role": "assistant", "content": "a"}, trajectory="x")
    first["request"]["tools"] = [tool]
    second = pair(
        [{"role": "user", "content": "other"}], {"role": "assistant", "content": "b"}, trajectory="x", reward=1
    )
    export(lines(Path("log.jsonl"), first, second), Path("out.jsonl"), "atif")
    (found,), _ = read_log(Path("out.jsonl"))
    assert [(response.tools, response.actor) for response in found.responses] == [([tool], ""), ([], "")]


def test_groups_come_back_from_spans(run):
    export(run, Path("out.jsonl"), "opentelemetry")
    assert [each.group for each in read_log(Path("out.jsonl"))[0]] == [
        *["step 1, group 0"] * 2,
        *["step 2, group 0"] * 2,
    ]


def test_what_is_not_written_is_said():
    thanks = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "t"}]
    path = lines(Path("log.jsonl"), {"messages": thanks, "reward": 1}, {"messages": thanks[:1], "reward": 1})
    assert "trajectories without a response" in export(path, Path("a.jsonl"), "chat").missing[0]
    (said, *_) = export(path, Path("b.jsonl"), "opentelemetry").missing
    assert "trajectories without a response" in said
    assert "messages after the last response" in said


def test_what_the_model_did_not_say_is_not_imitated_from_an_export():
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "WRONG", "weight": 0},
        {"role": "user", "content": "p"},
        {"role": "assistant", "content": "own"},
    ]
    for kind in ("sft", "chat"):
        export(lines(Path("log.jsonl"), {"messages": messages, "reward": 1.0}), Path(f"{kind}.jsonl"), kind)
        (read,) = read_conversations(f"{kind}.jsonl")
        assert [read.messages[place]["content"] for place in read.imitated] == ["own"], kind


def test_spans_keep_failures_states_and_validity():
    told = ask("a", 1.0, failure="sandbox died")
    told["messages"][1] |= {"state_key": "room", "valid": False}
    export(lines(Path("log.jsonl"), told), Path("spans.jsonl"), "opentelemetry")
    ((found,), _) = read_log(Path("spans.jsonl"))
    (turn,) = make_trajectories([found])[0].turns
    assert (found.failure, turn.state_key, turn.valid) == ("sandbox died", "room", False)
