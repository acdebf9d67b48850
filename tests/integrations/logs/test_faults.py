"""Faults in files that people write cost the records that have them; what the model said is kept."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.logs.test_formats import chat, export, lines, sample, span, text, traced, verifiers

from turnwise.base.errors import DataError
from turnwise.commands.cli import main
from turnwise.config import load_config
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.trajectories import make_trajectories
from turnwise.integrations.logs.write import import_log, not_kept
from turnwise.rollout.trajectory import Trajectory

CASES = Path(__file__).parents[3].parent / "shared" / "cases"


def read(path: Path, **more: Any) -> tuple[list[Trajectory], list[str]]:
    """Return the trajectories, and what of the log is not kept, in texts without the path."""
    found, source = read_log(path, **more)
    return make_trajectories(found), [each.replace(str(path), path.name) for each in not_kept(source)]


def said(found: list[Trajectory]) -> list[list[str]]:
    return [[turn.response for turn in each.turns] for each in found]


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


ASK = [{"role": "user", "content": "q"}]


def line(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"task": "s", "messages": [*ASK, {"role": "assistant", **message}], "reward": 1, **more}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "b", "reasoning_content": "deep"}, "<think>\ndeep\n</think>\n\nb"),
        ({"content": "b", "reasoning": "deep"}, "<think>\ndeep\n</think>\n\nb"),
        (
            {"content": "b", "reasoning_details": [{"type": "reasoning.text", "text": "deep"}]},
            "<think>\ndeep\n</think>\n\nb",
        ),
        ({"content": [{"type": "thinking", "thinking": "deep"}]}, "<think>\ndeep\n</think>\n\n"),
        (
            {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        ),
        (
            {"content": [{"type": "mcp_tool_use", "id": "1", "name": "f", "server_name": "s", "input": {}}]},
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        ),
        ({"content": [{"type": "compaction", "content": "so far"}]}, "so far"),
        ({"content": None, "refusal": "I cannot"}, "I cannot"),
        ({"content": [{"type": "refusal", "refusal": "I cannot"}]}, "I cannot"),
        ({"content": None, "audio": {"transcript": "hello"}}, "hello"),
        (
            {
                "content": [
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
                ]
            },
            'b\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        ),
        (
            {"content": "", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "raw"}}]},
            '<tool_call>\n{"name": "f", "arguments": "raw"}\n</tool_call>',
        ),
    ],
)
def test_all_that_the_model_said_is_kept(tmp_path, message, expected):
    """E: reasoning, calls of the former form, refusals and transcripts."""
    found, missing = read(lines(tmp_path / "log.jsonl", line(message)))
    assert said(found) == [[expected]]
    assert missing == []


def test_what_is_not_text_leaves_a_mark_that_tells_states_apart(tmp_path):
    """H: an image costs nothing, and is counted."""

    def shown(url: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": url}}
        return {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}, image]},
                line({"content": "b"})["messages"][1],
            ]
        }

    found, missing = read(lines(tmp_path / "log.jsonl", shown("a"), shown("a"), shown("b")))
    keys = [each.turns[0].state_key for each in found]
    assert keys[0] == keys[1] != keys[2]
    assert str(keys[0]).startswith("x[image_url ")
    assert missing == ["3 parts of the type image_url: a mark with their checksum stands in their place"]


def test_a_span_counts_once(tmp_path):
    """F: one span exported twice, and one call that an outer library tells as well."""
    first, second, agent = traced()
    first, second = {**first, "spanId": "1"}, {**second, "spanId": "2"}
    path = lines(tmp_path / "spans.jsonl", *(export(one) for one in (first, second, first, agent, second)))
    found, missing = read(path)
    assert [len(each.turns) for each in found] == [2]
    assert missing[-1] == "2 that were there before, and count once"
    outer = {**second, "spanId": "3"}
    inner = {**second, "parentSpanId": "4"}
    between = {"traceId": "t", "spanId": "4", "parentSpanId": "3", "name": "http", "startTimeUnixNano": "10"}
    found, missing = read(lines(tmp_path / "nested.jsonl", export(outer, between, inner, first, agent)))
    assert [len(each.turns) for each in found] == [2]
    assert missing[-1] == "1 that were there before, and count once"


def test_a_circle_of_spans_is_read(tmp_path):
    first = {**traced()[0], "spanId": "1", "parentSpanId": "2"}
    second = {"traceId": "t", "spanId": "2", "parentSpanId": "1", "name": "x", "startTimeUnixNano": "1"}
    assert [len(each.turns) for each in read(lines(tmp_path / "spans.jsonl", export(first, second)))[0]] == [1]


def test_missing_fields_of_spans(tmp_path):
    """G: no trace, a date for a time, a status as text, a span that is null."""
    asked = [text("user", "q")]
    own = [{**span(1, asked, [text("assistant", each)], **{"turnwise.reward": each}), "spanId": each} for each in "01"]
    for each in own:
        del each["traceId"]
        each["attributes"][-1]["value"] = {"doubleValue": float(each["spanId"])}
    found, _ = read(lines(tmp_path / "no_trace.jsonl", export(*own)))
    assert sorted(each.reward for each in found) == [0.0, 1.0]
    dated = [{**span(0, asked, [text("assistant", "late")]), "startTimeUnixNano": "2026-01-01T00:00:01Z"}]
    dated += [{**span(0, asked, [text("assistant", "early")]), "startTimeUnixNano": "2026-01-01T00:00:00Z"}]
    assert said(read(lines(tmp_path / "iso.jsonl", export(*dated)))[0]) == [["early", "late"]]
    failed = {**span(1, asked, [text("assistant", "x")]), "status": "ERROR"}
    assert (
        read(lines(tmp_path / "status.jsonl", export(failed)))[0][0].failure == "log: its last call of the model failed"
    )
    found, missing = read(
        lines(tmp_path / "null.jsonl", {"resourceSpans": [{"scopeSpans": [{"spans": [None, *traced()]}]}]})
    )
    assert len(found) == 1
    assert missing[0] == "1 records are left out: null.jsonl, line 1, span 1 is null, expected an object"


def test_a_cut_attribute_costs_its_trajectory(tmp_path):
    cut = span(1, [], [], trace="u", **{"gen_ai.input.messages": '[{"role": "us', "gen_ai.output.messages": "[{}]"})
    found, missing = read(lines(tmp_path / "spans.jsonl", export(*traced(), cut)))
    assert len(found) == 1
    assert "gen_ai.input.messages is not valid JSON" in missing[0]


@pytest.mark.parametrize("value", [float("nan"), None, "maybe", float("inf"), 10**400, {"a": {}}])
def test_a_score_that_is_none_gives_no_credit(tmp_path, value):
    """H: NaN, null, what is no grade."""
    samples = [sample(scores={"m": {"value": value}}), sample(epoch=2, scores={"m": {"value": "C"}})]
    path = write(tmp_path / "log.json", {"eval": {"task": "t"}, "samples": samples})
    found, missing = read(path)
    assert [each.usable for each in found] == [False, True]
    assert "1 rewards are none: log.json, line 1, samples[0]: the score" in missing[0]


def test_an_invalidated_sample_gives_no_credit(tmp_path):
    """I."""
    samples = [sample(invalidation={"author": "x", "reason": "sandbox"}), sample(epoch=2)]
    found, _ = read(write(tmp_path / "log.json", {"eval": {"task": "t"}, "samples": samples}))
    assert [each.failure for each in found] == ["log: it was invalidated: sandbox", None]


def test_samples_and_results_that_are_there_twice_count_once(tmp_path):
    path = write(tmp_path / "log.json", {"eval": {}, "samples": [sample(), sample(), sample(epoch=2)]})
    found, missing = read(path)
    assert len(found) == 2
    assert missing == ["1 that were there before, and count once"]
    twice = verifiers(trajectory_id="a")
    assert len(read(lines(tmp_path / "results.jsonl", twice, twice, verifiers()))[0]) == 2


def test_lines_of_a_trajectory_are_joined_wherever_they_are_and_count_once(tmp_path):
    """A later step may name its trajectories as an earlier one did."""
    first, second = (line({"content": each}, trajectory=1) for each in "ab")
    other, later = line({"content": "c"}, trajectory=2), line({"content": "d"}, trajectory=1, step=2)
    found, missing = read(lines(tmp_path / "log.jsonl", first, first, other, second, first, later))
    assert said(found) == [["a", "b"], ["c"], ["d"]]
    assert missing == ["2 that were there before, and count once"]


def test_a_reward_of_a_message_that_is_none_gives_no_credit(tmp_path):
    bad = line({"content": "a", "reward": float("nan")})
    found, missing = read(lines(tmp_path / "log.jsonl", bad, line({"content": "a", "reward": 0.5})))
    assert [each.usable for each in found] == [False, True]
    assert found[1].reward == 1.5
    assert missing[0].startswith("1 rewards are none: log.jsonl, line 1: found the reward nan")


def test_returns_that_rounding_tells_apart_are_equal(tmp_path, capsys, monkeypatch):
    """M: in the summary of an import, and in the share of groups with signal that recredit takes."""
    monkeypatch.chdir(tmp_path)
    steps = [line({"content": "a", "reward": 0.1}, reward=each) for each in (0.2, 0.2 + 1e-16 * 2)]
    lines(tmp_path / "log.jsonl", *steps)
    assert main(["import", "log.jsonl"]) == 0
    assert "rewards differ in 0" in capsys.readouterr().out
    assert main(["recredit", "runs/log"]) == 0
    assert "no signal: returns are equal within every group" in capsys.readouterr().err


def test_the_first_three_are_named_and_all_counted(tmp_path):
    bad = [{"messages": number} for number in range(5)]
    found, (missing,) = read(lines(tmp_path / "log.jsonl", chat(), *bad))
    assert len(found) == 1
    assert missing == (
        "5 records are left out: log.jsonl, line 2: messages is 0, expected a list; log.jsonl, line 3: messages is 1, "
        "expected a list; log.jsonl, line 4: messages is 2, expected a list; and 2 more"
    )


@pytest.mark.parametrize("record", [chat(), verifiers(), export(*traced())], ids=["chat", "verifiers", "spans"])
@pytest.mark.parametrize("bad", [None, 1.5, "id", ["id"], True])
def test_a_line_that_is_no_object_is_left_out(tmp_path, record, bad):
    found, missing = read(lines(tmp_path / "log.jsonl", record, bad))
    assert len(found) == 1
    assert missing[0].startswith("1 records are left out: log.jsonl, line 2")


def test_a_file_that_changes_its_format_is_read_to_there(tmp_path):
    found, (missing,) = read(lines(tmp_path / "log.jsonl", chat(), chat(0.0), verifiers(), chat(), verifiers()))
    assert len(found) == 2
    assert missing == (
        "3 records are left out: log.jsonl, line 3: the format changes to verifiers here; none is read from here on"
    )


def test_a_file_of_no_known_format_lists_them_and_shows_its_first_record(tmp_path):
    with pytest.raises(
        DataError, match=r"no known format: \{steps: 3, note: \"hi\"\}\. Known formats: chat: .*; atif: "
    ):
        read_log(lines(tmp_path / "log.jsonl", {"steps": 3, "note": "hi"}))


@pytest.mark.parametrize("form", ["list", "list in lines", "one object", "gz", "bom"])
def test_lists_and_single_objects_and_compressed_files_are_read(tmp_path, form):
    records = [chat(), chat(0.0)]
    data = "".join(json.dumps(each) + "\n" for each in records).encode()
    if form.startswith("list"):
        data = json.dumps(records, indent=2 if form.endswith("lines") else None).encode()
    data = json.dumps(records[0], indent=2).encode() if form == "one object" else data
    data = gzip.compress(data) if form == "gz" else b"\xef\xbb\xbf" + data if form == "bom" else data
    path = tmp_path / ("log.json.gz" if form == "gz" else "log.json")
    path.write_bytes(data)
    assert [each.reward for each in read(path)[0]] == [1.0, 0.0][: 1 if form == "one object" else 2]


@pytest.mark.parametrize("cut", ["list", "gz"])
def test_a_file_that_is_cut_off_is_read_to_there(tmp_path, cut):
    many = [chat(number=number, info={"noise": [number * 7919 % 1000] * 500}) for number in range(200)]
    if cut == "list":
        data = json.dumps(many, indent=1).encode()[:-30_000]
    else:
        data = gzip.compress("".join(json.dumps(each) + "\n" for each in many).encode())[:-50]
    path = tmp_path / ("log.json" if cut == "list" else "log.jsonl.gz")
    path.write_bytes(data)
    found, (missing,) = read(path)
    assert 0 < len(found) < 200
    assert missing.startswith("1 records are left out: log.json")


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    """D: editors on Windows write one."""
    path = tmp_path / "bom.toml"
    path.write_bytes(b'\xef\xbb\xbf[run]\nname = "x"\n')
    assert load_config(path, []).run.name == "x"


KEPT = {
    "04-bom/bom.jsonl": ([1.0, 0.0], 2, 0),
    "04-bom/v.jsonl": ([1.0], 1, 0),
    "05-gz/log.jsonl.gz": ([1.0, 0.0], 2, 0),
    "06-reasoning-dropped/chat.jsonl": ([1.0, 0.0, 0.0], 3, 0),
    "06-reasoning-dropped/inspect.json": ([1.0, 0.0], 2, 0),
    "07-duplicate-spans/same_id.jsonl": ([1.0, 0.0], 2, 1),
    "08-otel-missing-fields/iso.jsonl": ([1.0, 0.0], 2, 0),
    "08-otel-missing-fields/no_trace.jsonl": ([1.0, 0.0], 2, 0),
    "08-otel-missing-fields/null_span.jsonl": ([1.0, 0.0], 2, 1),
    "08-otel-missing-fields/status.jsonl": ([1.0, 0.0], 1, 0),
    "09-unscored-nan/nan.json": ([0.0, 1.0, 0.0], 2, 1),
    "09-unscored-nan/nanroot.json": ([1.0, 0.0, 0.0], 2, 1),
    "09-unscored-nan/null.json": ([0.0, 1.0, 0.0], 2, 1),
    "10-invalidated-sample/log.json": ([1.0, 0.0, 0.0], 2, 0),
    "14-one-bad-record/image.jsonl": ([1.0, 0.0, 1.0], 3, 1),
    "14-one-bad-record/trunc.jsonl": ([1.0], 1, 1),
}
"""Rewards, trajectories with credit, and notes, of each case."""


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the cases beside the checkout")
@pytest.mark.parametrize("case", KEPT)
def test_cases_that_people_met(case):
    found, missing = read(CASES / case)
    rewards, usable, notes = KEPT[case]
    assert [each.reward for each in found] == rewards
    assert sum(each.usable for each in found) == usable
    assert len(missing) == notes
    assert all(turn.response for each in found for turn in each.turns)


def test_records_that_share_an_id_by_chance_are_all_read(tmp_path):
    """Servers draw ids from 999 numbers, and evaluations number the samples of each task from 1."""
    samples = [sample(), sample(target="other", messages=[{"role": "user", "content": "p"}, *sample()["messages"][1:]])]
    assert len(read(write(tmp_path / "log.json", {"eval": {}, "samples": samples}))[0]) == 2
    results = [verifiers(trajectory_id="a"), verifiers(trajectory_id="a", reward=0.25)]
    assert len(read(lines(tmp_path / "results.jsonl", *results))[0]) == 2


def test_failed_trajectories_are_named(tmp_path):
    told = [line({"content": "a"}), line({"content": "b"}, failure="sandbox died")]
    out = tmp_path / "run"
    found = import_log(lines(tmp_path / "log.jsonl", *told), out)
    assert "credit of 1 of 2 trajectories, which failed: sandbox died" in found.missing
