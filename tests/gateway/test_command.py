"""`turnwise gateway`: serve a trained policy, record sessions, and look at the record with the usual commands."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

from tests.gateway.asking import ask, post, user
from tests.toys import small_config
from turnwise.base.recipes import FOLDER
from turnwise.commands.cli import main
from turnwise.commands.policies import is_missing_run
from turnwise.config import load_config
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.integrations.recorded import RecordedRun
from turnwise.models.settings import is_missing_folder
from turnwise.rollout.record import read_rollouts
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


def address_of(server: subprocess.Popen) -> str:
    assert server.stderr is not None
    line = server.stderr.readline()
    found = re.search(r"at (http://127\.0\.0\.1:\d+)/s/NAME/v1", line)
    assert found, line + server.stderr.read()
    return found[1]


def test_sessions_are_recorded_and_can_be_looked_at(tmp_path, capsys):
    run, out = train(small_config(tmp_path, run={"steps": 0}, evaluate={"final_episodes": 1})), tmp_path / "seen"
    command = [sys.executable, "-m", "turnwise", "gateway", str(run.path), "--out", str(out), "--port", "0"]
    command += ["--reward-timeout", "1", "--batch", "3"]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    try:
        address = address_of(server)
        for number in range(3):
            endpoint = Endpoint(f"{address}/s/try-{number}/v1", "any", "policy")
            headers = {"X-Turnwise-Task": "colors"}
            body = {"messages": [user("say red")], "temperature": 0.7, "max_tokens": 2}
            message = post(endpoint, "chat/completions", body, **headers)["choices"][0]["message"]
            ask(endpoint, [user("say red"), message, user("say green")])
            if number < 2:
                post(endpoint, "reward", {"reward": float(number)})
        deadline = time.monotonic() + 20
        while not (out / "rollouts" / "step-000001.parquet").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(urllib.error.HTTPError) as raised:
            post(endpoint, "reward", 1.0)  # too late
        raised.value.close()
        ask(Endpoint(f"{address}/s/late/v1", "any", "policy"), [user("say blue")])
    finally:
        server.send_signal(signal.SIGINT)
        said = server.communicate(timeout=20)[1]
    assert server.returncode == 0, said
    assert "recorded: " in said
    played, columns = read_rollouts(out / "rollouts" / "step-000001.parquet")
    assert [(each.group, each.task, each.reward, each.failure) for each in played] == [
        (0, "colors", 0.0, None),
        (0, "colors", 1.0, None),
        (0, "colors", 0.0, "harness: no reward came within 1 s of the last call"),
    ]
    assert [turn.fresh for turn in played[0].turns] == [True, False]
    assert all(turn.behavior_entropies for turn in played[0].turns)
    assert columns["advantage"][:4].round(2).tolist() == [-0.71, -0.71, 0.71, 0.71]
    last, _ = read_rollouts(out / "rollouts" / "step-000002.parquet")
    assert last[0].failure == "harness: the gateway ended before a reward came"
    assert main(["recredit", str(out), "--method", "grpo+aem"]) == 0
    assert main(["report", str(out), "--output", str(tmp_path / "page")]) == 0
    capsys.readouterr()
    assert main(["gateway", str(run.path), "--out", str(out)]) == 2
    assert "exists and is never overwritten; choose another name with --out FOLDER" in capsys.readouterr().err


def test_a_model_that_does_not_exist_is_one_line(capsys):
    assert main(["gateway", "no/such/model"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "no/such/model" in said


def test_the_metrics_of_a_record_are_those_of_its_rollouts(tmp_path):
    from turnwise.integrations.recorded import RecordedRun
    from turnwise.rollout.trajectory import Trajectory, Turn

    made = RecordedRun(tmp_path / "a", small_config(tmp_path))
    for reward in (0.0, 1.0):
        turns = [Turn("o", "o", [1], [2, 3], [-1.0, -1.0], "r", False, reward=reward, fresh=True)]
        made.add([Trajectory(0, "t", turns, success=bool(reward), ended="terminated")])
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["rollout/success"]) for line in lines] == [(1, 0.0), (2, 1.0)]


def test_a_misspelt_run_is_not_asked_of_the_hub(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)  # any attempt to load fails
    RunFolder.create(small_config(tmp_path / "runs", run={"name": "mine"})).log({"step": 0, "eval/success": 0.5})
    (tmp_path / "log.jsonl").write_text("{}\n")
    for command in (["gateway", "runs/mien"], ["import", "log.jsonl", "--score", "runs/mien"]):
        assert main(command) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "runs/mien is not a run folder" in said
        assert "Did you mean 'mine'?" in said
    assert main(["train", "model.name=./mien"]) == 2
    assert "model.name='./mien': there is no such folder" in capsys.readouterr().err
    monkeypatch.undo()
    (tmp_path / "Owner" / "Other").mkdir(parents=True)  # as a model that was downloaded beside the runs
    assert not is_missing_run(Path("Owner/Model"))
    assert is_missing_folder("no/such/model")
    assert not is_missing_folder("Owner/Model")


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    for module in ("gateway", "serve_model"):
        monkeypatch.setattr(f"turnwise.commands.{module}.load_libraries", lambda: pytest.fail("it loads"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["gateway", "runs/mine", "--out"], ["serve-model", "household-tiny-aem", "--folder"]):
            assert main([*command, str(tmp_path / "seen"), "--port", port]) == 2
            assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize("recipe", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_what_any_recipe_trains_can_be_served_and_recorded(recipe, tmp_path):
    """Whatever its method goes with, the record has the credit of GRPO."""
    RecordedRun(tmp_path / "seen", load_config(Path(recipe)))
