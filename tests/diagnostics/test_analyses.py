"""The analyses of AEM's paper, on toy runs and against exact answers."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.diagnostics.made import made_run
from tests.toys import color_policy, small_config

import turnwise as tw
from turnwise.base.errors import RunError
from turnwise.commands.cli import main
from turnwise.engines.local import LocalEngine
from turnwise.lab.diagnostics.dynamics import aem_seconds, by_label, curve, dynamics_table, erupted, masked_table
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.surprisal import (
    SurprisalOfStates,
    correlation,
    measure_surprisal,
    partial,
    surprisal_table,
)
from turnwise.models.policy import Policy, load_policy
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Turn
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLog:
    """Two turns, of a policy that prefers some words, so that entropies differ; its checkpoints are kept."""
    config = small_config(
        tmp_path_factory.mktemp("runs"),
        environment={"options": {"turns": 2}},
        run={"steps": 3},
        rollout={"groups": 6, "group_size": 6},
        checkpoint={"every": 1, "keep": 100},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.train.prepare.warm_policy", lambda *_, **__: (color_policy(spread=30.0), False))
        return RunLog(*RunFolder.open(train(config).path))


# -- A -----------------------------------------------------------------------------------------------------------------


def test_the_policy_that_draws_is_the_one_that_played(run):
    """The recorded surprisals are those under the checkpoint before the step, with the context as it was read."""
    trajectories, _ = read_rollouts(run.folder.rollouts / "step-000002.parquet")
    policy = load_policy(run.folder.checkpoints / "step-000001")
    logprob_T, _ = score(policy.model, Sequences.from_trajectories(trajectories))
    recorded = np.concatenate([turn.behavior_logprobs for t in trajectories for turn in t.turns])
    np.testing.assert_allclose(recorded, logprob_T, atol=1e-4)


def test_states_and_their_fresh_responses(run, monkeypatch):
    """Every trajectory has two turns; the mean surprisal is held against the exact entropy."""
    fresh, told, generate = {}, [], LocalEngine.generate

    async def watched(self, number, prompt_ids, sampling):
        made = await generate(self, number, prompt_ids, sampling)
        fresh[number] = list(prompt_ids), -sum(made.logprobs), len(made.token_ids)
        return made

    monkeypatch.setattr(LocalEngine, "generate", watched)
    made = measure_surprisal(
        run.folder, run.config, states=8, responses=400, step=2, on_response=lambda *counts: told.append(counts)
    )
    assert told == [(done, 3200) for done in range(1, 3201)]
    path = run.folder.rollouts / "step-000002.parquet"
    states = [
        (context, turn)
        for played in read_rollouts(path)[0]
        for context, turn in zip(contexts(*played.turns), played.turns, strict=True)
    ]
    chosen = np.sort(np.random.default_rng(0).permutation(len(states))[:8])
    np.testing.assert_allclose(made.alpha_R, pq.read_table(path).column("alpha").to_numpy()[chosen])
    assert np.ptp(made.alpha_R) > 0.1
    policy = load_policy(run.folder.checkpoints / "step-000001")
    for number, row in enumerate(chosen):
        context, turn = states[row]
        own, tokens = -sum(turn.behavior_logprobs), len(turn.response_ids)
        assert (made.surprisal_R[number], made.length_R[number]) == (pytest.approx(own), tokens)
        assert (made.rate_R[number], made.relative_R[number]) == pytest.approx(
            (own / tokens, made.entropy_R[number] - own)
        )
        prompts, surprisal, tokens = zip(*(fresh[400 * number + again] for again in range(400)), strict=True)
        assert set(map(tuple, prompts)) == {tuple(context)}
        assert made.entropy_R[number] == pytest.approx(np.mean(surprisal))
        assert made.rate_entropy_R[number] == pytest.approx(np.mean(np.divide(surprisal, tokens)))
        exact = surprisals(policy, context, run.config.rollout.max_new_tokens)
        entropy, square = np.exp(-exact) @ exact, np.exp(-exact) @ exact**2
        assert abs(made.entropy_R[number] - entropy) < 4 * ((square - entropy**2) / 400) ** 0.5
    assert np.ptp(made.entropy_R) > 0.1, "states that differ"


def contexts(first: Turn, second: Turn) -> tuple[list[int], list[int]]:
    return first.prompt_ids, [*first.prompt_ids, *first.response_ids, *second.prompt_ids]


def surprisals(policy: Policy, context: list[int], longest: int) -> np.ndarray:
    """Surprisals of all responses of up to so many tokens."""
    ended, going = [], [(context, 0.0)]
    for length in range(1, longest + 1):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids for ids, _ in going])).logits[:, -1].double()
        rows, before, going = torch.log_softmax(logits, -1).tolist(), going, []
        for (ids, surprisal), row in zip(before, rows, strict=True):
            for token, logprob in enumerate(row):
                if token == policy.format.stop_id or length == longest:
                    ended.append(surprisal - logprob)
                else:
                    going.append(([*ids, token], surprisal - logprob))
    assert np.exp(-np.array(ended)).sum() == pytest.approx(1.0)
    return np.array(ended)


def test_correlation_given_length():
    generator = np.random.default_rng(0)
    length = generator.integers(1, 9, 500)
    x, y = length + generator.normal(0, 0.5, 500), -length + generator.normal(0, 0.5, 500)
    assert correlation(x, y) < -0.9
    assert abs(partial(x, y, length)) < 0.12, "length is all they share"
    shared = generator.normal(0, 1, 500)
    assert partial(shared + length, shared - length, length) > 0.99
    assert np.isnan(partial(length * 2.0, y, length))
    assert np.isnan(correlation(np.ones(3), np.arange(3)))


def test_the_table_stands_beside_the_papers():
    generator = np.random.default_rng(0)
    relative = generator.normal(0, 1, 64)
    alpha = 1 + 0.2 * relative + generator.normal(0, 0.05, 64)
    made = SurprisalOfStates(alpha, -relative, np.zeros(64), np.full(64, 4), -relative / 4, np.zeros(64), 1, 64)
    lines = {line[0]: line for line in surprisal_table(made)}
    assert lines["correlation"][1:] == (f"{np.corrcoef(alpha, relative)[0, 1]:.2f}", lines["correlation"][2], "0.63")
    same = int(np.sum(np.sign(alpha - 1) == np.sign(relative)))
    assert lines["same sign"][1] == f"{same} of 64"
    assert lines["same sign"][3] == "55 of 64"


def test_what_length_hides_is_seen_per_token():
    generator = np.random.default_rng(1)
    rate, length = generator.normal(0, 1, 400), generator.integers(1, 100, 400)
    typical = np.full(400, 80.0)  # nats of a response that is as long as its state's are
    made = SurprisalOfStates(1 + 0.2 * rate, (2 - rate) * length, typical, length, 2 - rate, np.full(400, 2.0), 1, 64)
    value = {name: value for name, value, *_ in made.measures(draws=10)}
    assert abs(value["correlation"]) < 0.6
    assert value["correlation, per token"] > 0.999
    assert value["same sign, per token"] == 1.0 > value["same sign"]


def test_a_step_without_its_policy_is_refused(run, tmp_path, capsys):
    with pytest.raises(RunError, match="these steps have both: 1, 2, 3"):
        measure_surprisal(run.folder, run.config, step=7)
    assert main(["analyse", "surprisal", str(run.folder.path), "--step", "9", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x").exists()


# -- B -----------------------------------------------------------------------------------------------------------------


def test_the_mask_keeps_one_sign():
    batch, _ = tw.Batch.from_arrays(
        group=list("aaaabb"),
        trajectory=list("uvwxyz"),
        reward=[1, 0, 0, 1, 1, 0],
        columns={"entropy": [0.1, 0.2, 0.9, 0.8, 0.5, 0.55]},
    )
    whole_R = tw.aem(tw.grpo())(batch)
    positive_R = tw.aem(tw.grpo(), keep="positive")(batch)
    negative_R = tw.aem(tw.grpo(), keep="negative")(batch)
    alpha_R = tw.entropy_coefficient(batch)
    np.testing.assert_array_equal(positive_R, np.where(whole_R * (alpha_R - 1) > 0, whole_R, 0.0))
    np.testing.assert_array_equal(negative_R, np.where(whole_R * (alpha_R - 1) < 0, whole_R, 0.0))
    # u: sure and right, w: hesitant and wrong; both let entropy fall. In group b the entropies are alike: nothing is
    # kept
    assert np.flatnonzero(positive_R).tolist() == [0, 2]
    assert np.flatnonzero(negative_R).tolist() == [1, 3]
    with pytest.raises(tw.ConfigError, match="set shuffle=False"):
        tw.aem(keep="positive", shuffle=True)


def test_masks_move_entropy_in_the_theorems_direction():
    """The drift of the exact policy, D = A (S - H), over many groups: the kept responses push where the table says."""
    generator = np.random.default_rng(0)
    push = {"positive": 0.0, "negative": 0.0}
    for _ in range(50):
        probability = generator.dirichlet(np.ones(6))
        said = generator.choice(6, size=8, p=probability)
        surprisal = -np.log(probability[said])
        batch, order = tw.Batch.from_arrays(
            group=["g"] * 8,
            trajectory=range(8),
            reward=(generator.random(8) < 0.5).astype(float),
            columns={"entropy": surprisal},  # as if the proxy were exact
        )
        expected = -(probability * np.log(probability)).sum()
        for keep in push:
            advantage_R = tw.aem(tw.grpo(), keep=keep)(batch)
            push[keep] += float(np.sum(advantage_R * (surprisal[order] - expected)))
    assert push["positive"] < 0 < push["negative"]


def entropies(folder, seeds, values, **sections):
    made = []
    for seed in seeds:
        one = made_run(folder, seed, [True, False], steps=len(values), more={"credit/positive_frac": 0.5}, **sections)
        lines = one.folder.metrics()
        for record in lines:
            if "rollout/success" in record:
                record["credit/entropy"] = values[record["step"] - 1] + 0.001 * seed * record["step"]
        one.folder.metrics_path.unlink()
        for record in lines:
            one.folder.log(record)
        made.append(RunLog(*RunFolder.open(one.folder.path)))
    return made


def test_masked_runs_are_held_against_the_theorem(tmp_path):
    falls = entropies(
        tmp_path / "p", range(3), [0.5, 0.4, 0.3, 0.2, 0.1, 0.1], method={"name": "grpo+aem", "keep": "positive"}
    )
    wrong = entropies(
        tmp_path / "n", range(3), [0.5, 0.5, 0.4, 0.4, 0.3, 0.3], method={"name": "grpo+aem", "keep": "negative"}
    )
    table = {line[0]: line for line in masked_table([*falls, *wrong, *entropies(tmp_path / "a", range(2), [0.5] * 6)])}
    assert table["positive"][-2:] == ("falls", "yes")
    assert table["negative"][-2:] == ("rises", "no")
    assert table["all"][-2:] == ("-", "-")
    with pytest.raises(RunError, match="masked its gradients"):
        masked_table(entropies(tmp_path / "b", range(2), [0.5] * 6))
    begun = entropies(tmp_path / "c", range(1), [0.5] * 2, method={"name": "grpo+aem", "keep": "positive"})
    with pytest.raises(RunError, match="2 common steps, expected 3 or more"):
        masked_table([*falls, *begun])


# -- C and D -----------------------------------------------------------------------------------------------------------


def test_entropy_that_rises_by_half_erupts_and_a_single_step_does_not():
    falls = [0.9, 0.6, 0.5, 0.4, 0.3, 0.2]
    erupts = [0.9, 0.3, 0.3, 0.3, 0.6, 0.6]
    a_single_step = [0.3, 0.3, 0.3, 0.7, 0.3, 0.3]
    begins_high = [0.9, 0.9, 0.9, 0.3, 0.3, 0.3]
    assert erupted(np.array([falls, erupts, a_single_step, begins_high])).tolist() == [False, True, False, False]


def test_dynamics_by_hand(tmp_path):
    runs = entropies(tmp_path / "a", range(3), [0.6, 0.6, 0.4, 0.4, 0.2, 0.2])
    arms = by_label(runs)
    assert list(arms) == ["grpo + aem"]
    steps, values = curve(runs, "credit/entropy")
    assert steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert values[0] == pytest.approx([0.6, 0.6, 0.4, 0.4, 0.2, 0.2])
    line = next(line for line in dynamics_table(arms) if line[2].startswith("mean token entropy"))
    assert [float(cell) for cell in line[3:6]] == pytest.approx([0.6015, 0.4035, 0.2055], abs=6e-4)


def test_arms_are_told_apart_over_the_steps_that_all_have(tmp_path):
    whole = entropies(tmp_path / "a", range(3), [0.6, 0.6, 0.4, 0.4, 0.2, 0.2])
    begun = entropies(tmp_path / "b", range(3), [0.6, 0.6, 0.4], method="grpo+aem")
    told = [line for line in dynamics_table({"whole": whole, "begun": begun}) if line[2].startswith("mean token")]
    assert told[0][3:6] == told[1][3:6]


def test_the_commands_write_table_and_figure(run, tmp_path, capsys):
    out = tmp_path / "analyses"
    path = str(run.folder.path)
    commands = (["surprisal", path, "--states", "5", "--responses", "8"], ["dynamics", path], ["cost", path])
    for command in commands:
        assert main(["analyse", *command, "--out", str(out)]) == 0
        assert (out / f"{command[0]}.png").stat().st_size > 3000
        assert (out / f"{command[0]}.md").read_text().startswith(f"# {command[0]}")
    printed = capsys.readouterr().out
    for part in ("0.63", "55 of 64", "1.1 %", "AEM alone, in credit", "rollout"):
        assert part in printed
    assert aem_seconds(run) > 0.0
    (out / "dynamics.md").write_text("mine")
    for command in commands:
        assert main(["analyse", *command, "--out", str(out)]) == 2
        assert f"{command[0]}.md exists, and nothing is overwritten; name another" in capsys.readouterr().err
    assert (out / "dynamics.md").read_text() == "mine"


def test_too_few_states_are_refused(run, capsys):
    assert main(["analyse", "surprisal", str(run.folder.path), "--states", "2"]) == 2
    assert "states=2: expected 3 or more" in capsys.readouterr().err
    assert not (run.folder.path / "analyses").exists()
