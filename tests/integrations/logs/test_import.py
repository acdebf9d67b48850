"""A log becomes a run folder: report, recredit and compare work on it, and what is missing is said."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.rollout import chat_models
from transformers import AutoModelForCausalLM

from turnwise.commands.cli import main
from turnwise.integrations.logs import trajectories
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.write import import_log
from turnwise.rollout.record import read_rollouts
from turnwise.train.recorded import read_step

ASK = {"role": "user", "content": "say red"}
AGAIN = {"role": "user", "content": "say green"}


def line(*answers: str, reward: float | None, task: str = "colors") -> dict:
    messages = []
    for question, answer in zip((ASK, AGAIN), answers, strict=False):
        messages += [question, {"role": "assistant", "content": answer}]
    return {"messages": messages, "task": task, **({} if reward is None else {"reward": reward})}


LINES = [
    line("red", "green", reward=1.0),
    line("blue", reward=0.0),
    line("red", "blue", reward=0.0, task="other"),
    line("red", reward=None, task="other"),
]


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "log.jsonl", LINES)


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return path


def said(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_report_and_recredit_work_without_ids_and_say_what_is_missing(log, capsys):
    assert main(["import", "log.jsonl"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("runs/log: trajectories: 4, responses: 6, groups: 2 (rewards differ in 1), format: chat")
    assert [entry for entry in told.err.splitlines() if entry.startswith("note: missing: ")] == [
        "note: missing: entropies, log-probabilities and token ids: "
        "--score MODEL computes them for methods such as empg",
        "note: missing: the reward of 1 of 4 trajectories: they get no credit",
    ]
    played, columns = read_rollouts(Path("runs/log/rollouts/step-000001.parquet"))
    assert [len(trajectory.turns) for trajectory in played] == [2, 1, 2, 1]
    assert [turn.prompt_ids for turn in played[0].turns] == [[], []]
    # GRPO by hand: (reward - mean) / std, sample standard deviation of (1, 0) is 0.7071
    assert columns["advantage"][:3].round(4).tolist() == [0.7071, 0.7071, -0.7071]
    assert main(["recredit", "runs/log", "--method", "gigpo"]) == 0
    capsys.readouterr()
    assert main(["recredit", "runs/log", "--method", "grpo+aem"]) == 2
    (refusal,) = said(capsys)
    assert "needs the column 'entropy', which step 1 of runs/log does not have" in refusal
    assert "--score MODEL" in refusal
    assert main(["report", "runs/log"]) == 0
    assert any("leaves out grpo+aem, gigpo+aem, empg" in entry for entry in said(capsys))
    summary = next(Path("runs/log/report").rglob("summary.js")).read_text()
    assert '"log": "log.jsonl"' in summary
    assert "the reward of 1 of 4 trajectories" in summary


def test_two_logs_are_compared_by_task(log, capsys):
    better = [{**each, "reward": 1.0} for each in LINES]
    write(log.parent / "better.jsonl", better)
    for name in ("log.jsonl", "better.jsonl"):
        assert main(["import", name]) == 0
    assert main(["compare", "runs/better", "--", "runs/log"]) == 0
    page = capsys.readouterr().out
    assert "1.000" in page
    assert "0.250" in page  # of the two tasks, 1/2 and 0; one trajectory has no reward


def test_scores_are_those_of_the_model_on_the_whole_conversation(log, capsys):
    """The independent way: one forward pass over the text that the chat template makes of all messages."""
    folder = chat_models.chat_model("qwen2_5")
    assert main(["import", "log.jsonl", "--score", str(folder), "--out", "runs/scored", "model.max_context=512"]) == 0
    assert not any("entropies" in entry for entry in said(capsys))
    played, columns = read_rollouts(Path("runs/scored/rollouts/step-000001.parquet"))
    tokenizer, model = chat_models.tokenizer("qwen2_5"), AutoModelForCausalLM.from_pretrained(folder).eval()
    for trajectory, told in zip(played, LINES, strict=True):
        messages = told["messages"]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        logprobs = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
        end = 0
        for turn, answer in zip(trajectory.turns, messages[1::2], strict=True):
            head = "<|im_start|>assistant\n"
            tail = text.index(f"{head}{answer['content']}<|im_end|>", end) + len(head)
            begin = len(tokenizer.encode(text[:tail], add_special_tokens=False))
            end = tail + len(answer["content"])
            places = range(begin, begin + len(turn.response_ids))
            assert ids[0, places].tolist() == turn.response_ids
            expected = [logprobs[place - 1, ids[0, place]].item() for place in places]
            assert turn.behavior_logprobs == pytest.approx(expected, abs=1e-4)
            entropy = [-(logprobs[place - 1].exp() * logprobs[place - 1]).sum().item() for place in places]
            assert turn.behavior_entropies == pytest.approx(entropy, abs=1e-4)
    assert np.isfinite(columns["entropy"][:5]).all()
    assert main(["recredit", "runs/scored", "--method", "grpo+aem"]) == 0
    assert read_step(Path("runs/scored/rollouts/step-000001.parquet")).has_token_entropies


def test_a_conversation_that_is_too_long_for_the_model_is_said(log, capsys):
    folder = str(chat_models.chat_model("qwen2_5"))
    assert main(["import", "log.jsonl", "--score", folder, "model.max_context=20"]) == 2
    (refusal,) = said(capsys)
    assert "log.jsonl, line 1, response 1: the conversation has" in refusal
    assert "model.max_context=20" in refusal
    assert not Path("runs/log").exists()


def test_steps_of_a_log_are_batches(log):
    write(log, [{**each, "step": 1 + (number > 1)} for number, each in enumerate(LINES)])
    import_log(log, Path("runs/steps"))
    first, second = (read_rollouts(Path(f"runs/steps/rollouts/step-00000{step}.parquet"))[0] for step in (1, 2))
    assert [trajectory.task for trajectory in (*first, *second)] == ["colors", "colors", "other", "other"]
    assert [trajectory.group for trajectory in second] == [0, 0]


def test_mistakes_are_one_line(log, capsys):
    for arguments, expected in [
        (["none.jsonl"], "cannot read none.jsonl: No such file"),
        (["log.jsonl", "model.max_context=9"], "overrides are for the model of --score"),
        (["log.jsonl", "--format", "inspct"], "Did you mean 'inspect'"),
        (["log.jsonl", "--format", "verifiers"], "log.jsonl, line 1: it looks like chat; choose it with --format chat"),
    ]:
        try:
            code = main(["import", *arguments])
        except SystemExit as ended:
            code = ended.code
        assert code == 2
        (refusal,) = said(capsys)
        assert expected in refusal
    assert main(["import", "log.jsonl"]) == 0
    assert main(["import", "log.jsonl"]) == 2
    assert "exists and is never overwritten; choose another name with --out FOLDER" in said(capsys)[-1]


def test_an_imported_run_says_that_it_cannot_be_played(log, capsys):
    assert main(["import", "log.jsonl"]) == 0
    said(capsys)
    for command in ("eval runs/log", "train --resume runs/log", "play runs/log"):
        assert main(command.split()) == 2
        (refusal,) = said(capsys)
        assert "the run was imported from a log" in refusal
    assert main(["gateway", "runs/log"]) == 2
    assert "Imported and recorded runs have no weights." in said(capsys)[-1]


def test_trajectories_without_responses_are_counted_and_a_log_of_nothing_else_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    silent = {"messages": [ASK], "task": "colors", "reward": 1.0}
    write(tmp_path / "log.jsonl", [LINES[0], silent])
    assert main(["import", "log.jsonl"]) == 0
    assert "note: missing: responses of 1 of 2 trajectories: they get no credit" in said(capsys)
    write(tmp_path / "silent.jsonl", [silent, silent])
    assert main(["import", "silent.jsonl"]) == 2
    assert "holds no response of a model, in 2 trajectories" in said(capsys)[-1]
    assert not Path("runs/silent").exists()


def test_a_trajectory_is_made_once(log, monkeypatch):
    made = []
    make = trajectories._trajectory
    monkeypatch.setattr(trajectories, "_trajectory", lambda *given: made.append(1) or make(*given))
    import_log(log, Path("runs/log"))
    assert len(made) == len(LINES)
    first, second = (trajectories.make_trajectories(read_log(log)[0]) for _ in range(2))
    assert first == second
    found, _ = read_log(log)
    once, again = trajectories.make_trajectories(found), trajectories.make_trajectories(found)
    assert once == again == first
    assert not any(one is other for one, other in zip(once, again, strict=True))  # who gets one may change it
