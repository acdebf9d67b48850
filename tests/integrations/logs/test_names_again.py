"""Names that a log uses again, parts of a trajectory in several records and files, and what contradicts itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.logs.test_agents import atif, pair
from tests.integrations.logs.test_export import ask, objects
from tests.integrations.logs.test_formats import lines

from turnwise.commands.cli import main
from turnwise.integrations.logs.export import export
from turnwise.integrations.logs.formats import read_log
from turnwise.integrations.logs.logged import CONTRADICTING, Names
from turnwise.integrations.logs.write import not_kept
from turnwise.rollout.record import read_rollouts


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(path: Path) -> list[tuple[str, str, float | None]]:
    return [(each.task, each.responses[0].message["content"], each.outcome and each.outcome.reward)
            for each in read_log(path)[0]]  # fmt: skip


EXPECTED = [("a", "a0", 0.0), ("a", "a1", 1.0), ("b", "b0", 1.0), ("b", "b1", 0.0)]


def test_a_number_that_begins_anew_with_each_task_is_another_trajectory():
    told_twice = [ask(said, reward, task=task, trajectory=said[1]) for task, said, reward in EXPECTED]
    assert told(lines(Path("chat.jsonl"), *told_twice)) == EXPECTED
    calls = [
        pair([{"role": "user", "content": "q"}], {"role": "assistant", "content": said}, reward=reward,
             trajectory=said[1], task=task)
        for task, said, reward in EXPECTED
    ]  # fmt: skip
    assert told(lines(Path("calls.jsonl"), *calls)) == EXPECTED
    export(Path("chat.jsonl"), Path("spans.jsonl"), "opentelemetry")
    assert told(Path("spans.jsonl")) == EXPECTED


@pytest.mark.parametrize("key", ["step", "group"])
def test_batches_and_groups_may_use_names_again(key):
    given = [ask(said, reward, trajectory="x", **{key: number}) for number, (_, said, reward) in enumerate(EXPECTED, 1)]
    path = lines(Path("chat.jsonl"), *given)
    assert [each[1:] for each in told(path)] == [each[1:] for each in EXPECTED]
    export(path, Path("spans.jsonl"), "opentelemetry")
    assert [each[1:] for each in told(Path("spans.jsonl"))] == [each[1:] for each in EXPECTED]


def test_records_that_leave_out_what_the_first_one_says_belong_to_it():
    names = Names()
    first, second = {"task": "a", "group": ""}, {"task": "b"}
    assert [names.number("0", facts) for facts in (first, {}, second, {"task": "b"}, {"task": "a"}, {})] == [
        0, 0, 1, 1, 0, 1,
    ]  # fmt: skip
    assert names.number("1", {}) == names.number("1", {"task": "c"}) == 0


@pytest.mark.parametrize(("rewards", "counted"), [((0, 1), 1), ((1, 1), 0), ((None, 1), 0), ((1, None), 0)])
def test_of_rewards_that_contradict_each_other_the_last_one_counts_and_is_said(rewards, counted):
    chats = [ask(f"a{place}", reward, trajectory="x") for place, reward in enumerate(rewards)]
    calls = [
        pair([{"role": "user", "content": "q"}], {"role": "assistant", "content": f"a{place}"}, trajectory="x",
             **({} if reward is None else {"reward": reward}))
        for place, reward in enumerate(rewards)
    ]  # fmt: skip
    for path in (lines(Path("chat.jsonl"), *chats), lines(Path("calls.jsonl"), *calls)):
        (found,), source = read_log(path)
        assert found.outcome is not None
        assert found.outcome.reward == 1
        assert source.lacks[CONTRADICTING] == counted
        assert any(CONTRADICTING in line for line in not_kept(source)) == bool(counted)


def test_false_is_no_failure_and_a_score_that_is_no_number_takes_no_reward():
    path = lines(Path("log.jsonl"), ask("a", 1.0, failure=False, info={"score": "good", "x": 1}), ask("b", 0.0))
    first, _ = read_log(path)[0]
    assert (first.failure, first.outcome and (first.outcome.reward, first.outcome.info)) == (None, (1.0, {"x": 1}))


def test_graded_rewards_without_success_are_said(capsys):
    graded = [ask(str(reward), reward) for reward in (0.0, 0.1, 0.9, 1.0)]
    lines(Path("graded.jsonl"), *graded)
    assert main(["import", "graded.jsonl"]) == 0
    said = "the success of 4 trajectories: a positive reward, as 3 have, counts as success"
    assert said in capsys.readouterr().err
    lines(Path("told.jsonl"), *({**each, "success": each["reward"] == 1} for each in graded))
    assert main(["import", "told.jsonl"]) == 0
    assert "counts as success" not in capsys.readouterr().err


# -- Harbor's folders --------------------------------------------------------------------------------------------------


def document(*said: str, **more: Any) -> dict[str, Any]:
    first = atif()
    steps = [{"step_id": 1, "source": "user", "message": "fix it"}]
    steps += [{"step_id": place, "source": "agent", "message": text} for place, text in enumerate(said, 2)]
    return {"schema_version": "ATIF-v1.7", "agent": first["agent"], "steps": steps, **more}


@pytest.mark.parametrize("referred", [True, False])
def test_a_trial_is_one_trajectory_whatever_files_it_has(referred, capsys):
    whole = document("b1")
    if referred:
        whole["continued_trajectory_ref"] = "trajectory.cont-1.json"
        reference = [{"session_id": "s", "trajectory_path": "trajectory.summarization-1-summary.json"}]
        whole["steps"].append({"step_id": 3, "source": "system", "message": "summarised",
                               "observation": {"results": [{"subagent_trajectory_ref": reference}]}})  # fmt: skip
    files = {
        "A": {"trajectory.json": document("a1", "a2")},
        "B": {
            "trajectory.json": whole,
            "trajectory.cont-1.json": document("b3"),
            "trajectory.summarization-1-summary.json": document("b2"),
        },
    }
    for name, reward in (("A", 1.0), ("B", 0.0)):
        agent = Path("job") / f"fix__{name}" / "agent"
        agent.mkdir(parents=True)
        result = {"task_name": "fix", "trial_name": f"fix__{name}", "verifier_result": {"rewards": {"reward": reward}}}
        (agent.parent / "result.json").write_text(json.dumps(result))
        for file, content in files[name].items():
            (agent / file).write_text(json.dumps(content))
    assert main(["import", "job"]) == 0
    assert "trajectories: 2, responses: 5, groups: 1 (rewards differ in 1)" in capsys.readouterr().out
    played, columns = read_rollouts(Path("runs/job/rollouts/step-000001.parquet"))
    order = ["b1", "b2", "b3"] if referred else ["b1", "b3", "b2"]
    assert [[turn.response for turn in each.turns] for each in played] == [["a1", "a2"], order]
    assert [turn.fresh for turn in played[1].turns] == [True] * 3
    assert columns["advantage"].round(4).tolist() == [0.7071] * 2 + [-0.7071] * 3
    export(Path("job"), Path("again.jsonl"), "atif")
    assert not any("continued_trajectory_ref" in each for each in objects("again.jsonl")[1:])
    assert [len(each.responses) for each in read_log(Path("again.jsonl"))[0]] == [2, 3]


def test_a_part_that_cannot_be_read_costs_only_itself():
    agent = Path("job/fix/agent")
    agent.mkdir(parents=True)
    (agent / "trajectory.json").write_text(json.dumps(document("a", extra={"reward": 1.0})))
    (agent / "trajectory.cont-1.json").write_text("{")
    (found,), source = read_log(Path("job"))
    assert (len(found.responses), len(source.left_out)) == (1, 1)


# -- two logs ----------------------------------------------------------------------------------------------------------


def attempts(name: str, successes: dict[str, list[int]]) -> str:
    rows = [ask(f"{task}{place}", won, task=task) for task, each in successes.items() for place, won in enumerate(each)]
    lines(Path(f"{name}.jsonl"), *rows)
    assert main(["import", f"{name}.jsonl"]) == 0
    return f"runs/{name}"


def test_all_attempts_of_two_logs_count_in_whatever_order_they_are(capsys):
    one = attempts("one", {f"t{task}": [0, 0, 0, 0, 1, 1, 1, 1] for task in range(8)} | {"alone": [1]})
    other = attempts("other", {f"t{task}": [0, 1] for task in range(8)})
    assert main(["compare", one, "--", other]) == 0
    said = capsys.readouterr().out
    assert "Not shown" in said
    assert "1 task that only one log has left out" in said
    assert "A has 64 attempts at the common tasks and B 16; every task counts once" in said
    assert "0.500  0.500" in " ".join(said.split()).replace("0.500 0.500", "0.500  0.500")


def test_logs_without_a_common_task_are_refused_however_few_attempts_they_have(capsys):
    one, other = attempts("one", {"q": [1]}), attempts("other", {"t": [0, 1]})
    assert main(["compare", one, "--", other]) == 2
    assert "have no task in common" in capsys.readouterr().err


def test_a_log_of_which_no_two_trajectories_can_be_compared_is_said(capsys):
    lines(Path("alone.jsonl"), *(ask("a", 1.0, task=f"t{number}") for number in range(3)))
    assert main(["import", "alone.jsonl"]) == 0
    assert "every trajectory is its own, so comparisons give no credit" in capsys.readouterr().err
