"""`TurnwiseGRPOTrainer` in real training runs of a tiny random chat model (see benchmarks/requirements-trl.txt).

PYTHONPATH=src <python with trl> -m pytest tests/crosscheck/trl/test_trainer.py -m crosscheck
"""

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import turnwise as tw
from turnwise.config import EnvironmentConfig
from turnwise.errors import IntegrationError

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

torch = pytest.importorskip("torch", reason="TRL needs torch; see benchmarks/requirements-trl.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    trl = pytest.importorskip("trl", reason="TRL is not installed; see benchmarks/requirements-trl.txt")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from turnwise.integrations.trl import TurnwiseGRPOTrainer

from tests.rollout.chat_models import chat_model  # noqa: E402

from turnwise.integrations.trl_worlds import World, rows, world_factory  # noqa: E402

SIZE, GROUPS = 4, 2  # trajectories of a prompt, prompts of a batch
OBSERVED = " you said"  # what the world of `play_turns` answers
HOUSE = EnvironmentConfig(name="household", max_steps=4, options={"size": "tiny", "num_train": 4})


def rewards_of(completion_ids, **_):
    """Differs within a group, and not by much."""
    return [(sum(ids) % 11) / 4 for ids in completion_ids]


def play_turns(prompts, trainer):
    """A rollout function: one to three turns that the model generates itself, an observation between them."""
    model, words = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    observed = words.encode(OBSERVED)
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": []}
    for number, prompt in enumerate(prompts):
        start = words.encode(prompt[0]["content"])
        ids, mask = list(start), []
        for turn in range(1 + number % 3):
            if turn:
                ids, mask = ids + observed, mask + [0] * len(observed)
            new = model.generate(torch.tensor([ids]), max_new_tokens=2 + turn, min_new_tokens=2 + turn, do_sample=True)
            new = new[0, len(ids) :].tolist()
            ids, mask = ids + new, mask + [1] * len(new)
        result["prompt_ids"].append(start)
        result["completion_ids"].append(ids[len(start) :])
        result["env_mask"].append(mask)
    return result


def distribution(trainer, batch, state):
    """What a policy of these weights samples from at each token of a batch's completions, computed apart from TRL."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    position = (attention.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        # a patched model hands out entropies in place of logits; the class itself computes them
        model = AutoModelForCausalLM.from_pretrained(trainer.model.name_or_path)
        model.load_state_dict(state)
        logits = model(input_ids=ids, attention_mask=attention, position_ids=position).logits
    return torch.distributions.Categorical(logits=logits[:, -length - 1 : -1] / trainer.temperature)


class Recording:
    """Keeps what a trainer made of each batch, and the entropies and weights of the policy then."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        policy = self.accelerator.unwrap_model(self.model)
        state = {name: weight.clone() for name, weight in policy.state_dict().items()}
        entropies = distribution(self, output, state).entropy()
        self.batches = [*getattr(self, "batches", []), {**output, "entropies": entropies}]
        self.states = [*getattr(self, "states", []), state]
        return output


class Ours(Recording, TurnwiseGRPOTrainer):
    pass


class Theirs(Recording, trl.GRPOTrainer):
    pass


class Scripted(Ours):
    """Says what a scripted player would: tool calls that a random model never makes, with one mistake and one farewell."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        said = []
        for number in range(len(prompt_ids)):
            command = ["go to drawer 1", "look", "inventory", "go to nowhere"][(self.calls + number) % 4]
            argument = "wrong" if number == 1 and self.calls % 3 == 2 else "command"
            call = json.dumps({"name": "play", "arguments": {argument: command}})
            text = "good bye" if self.calls % 3 == 0 else f"<tool_call>\n{call}\n</tool_call>"
            said.append(self.processing_class.encode(text + "<|im_end|>"))
        return said, None


def make(
    kind,
    folder,
    *,
    prompts=None,
    reward_funcs=rewards_of,
    method=None,
    rollout_func=None,
    worlds=None,
    tools=None,
    eval_dataset=None,
    model=None,
    **options,
):
    model = model or chat_model("qwen2_5")
    arguments = trl.GRPOConfig(
        **{
            "output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "num_generations": SIZE, "seed": 0,
            "per_device_train_batch_size": SIZE * GROUPS, "max_completion_length": 8, "max_steps": 2, "logging_steps": 1,
            "learning_rate": 1e-2, "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False, **options,
        }
    )  # fmt: skip
    prompts = prompts or [
        {"prompt": [{"role": "user", "content": text}]} for text in ("say red", "say blue", "go", "look")
    ]
    own = {} if method is None else {"method": method}
    return kind(
        model=AutoModelForCausalLM.from_pretrained(
            model, max_position_embeddings=4096
        ),  # a tool's schema is long in bytes
        reward_funcs=reward_funcs,
        args=arguments,
        train_dataset=Dataset.from_list(prompts),
        eval_dataset=eval_dataset,
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout_func,
        environment_factory=worlds,
        tools=tools,
        **own,
    )


def weights(trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def gradient(trainer, batch):
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, {name: value for name, value in batch.items() if name != "entropies"})
    return torch.autograd.grad(loss, list(trainer.model.parameters()))


def by_hand(method, batch, reward, *, states=None, paid=None):
    """The method on a batch of nested lists, built token by token, `[rows, length]`."""
    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
    places, groups = [], []
    for row, entropy in enumerate(batch["entropies"]):
        if row % SIZE == 0:
            groups.append([])
        turns = []
        for at in range(mask.shape[1]):
            if mask[row, at]:
                if at == 0 or not mask[row, at - 1]:
                    turns.append([])
                turns[-1].append(at)
        places.append(turns)
        trajectory = [{"reward": 0.0, "entropy": entropy[turn].mean().item()} for turn in turns]
        trajectory[-1]["reward"] = float(reward[row])
        for n, response in enumerate(trajectory):
            if states is not None:
                response["state_key"], response["reward"] = states[row][n], paid[row][n]
        groups[-1].append(trajectory)
    advantage_R = method(tw.Batch.from_trajectories(groups))
    table, flat = np.zeros(mask.shape), iter(advantage_R)
    for row, turns in enumerate(places):
        for turn in turns:
            table[row, turn] = next(flat)
    return table


MODES = {"plain": {}, "rollout_func": {"rollout_func": play_turns}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_trls_own_convention_trains_as_trl_does(mode, loss_type, tmp_path):
    ours = make(Ours, tmp_path, method=tw.grpo(convention="trl"), loss_type=loss_type, **MODES[mode])
    theirs = make(Theirs, tmp_path, loss_type=loss_type, **MODES[mode])
    before = weights(ours)
    for trainer in (ours, theirs):
        torch.manual_seed(1)
        trainer.train()
    one, other = ours.batches[0], theirs.batches[0]
    assert torch.equal(one["completion_ids"], other["completion_ids"])
    assert one["advantages"].shape == one["completion_ids"].shape, "ours are one a token"
    assert other["advantages"].std() > 0.1
    for mine, its in zip(gradient(ours, one), gradient(ours, {**one, "advantages": other["advantages"]}), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)
    for (name, mine), its in zip(weights(ours).items(), weights(theirs).values(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert any(not torch.equal(before[name], weight) for name, weight in weights(ours).items()), "nothing was learned"


@pytest.mark.parametrize(
    "misaligned", [False, True]
)  # TRL then keeps log-probabilities, whose pass has the entropies, too
@pytest.mark.parametrize("mode", MODES)
def test_aems_advantages_are_the_librarys(mode, misaligned, tmp_path):
    options = {"num_iterations": 2, "beta": 0.1} if misaligned else {"beta": 0.1}
    trainer = make(Ours, tmp_path, method=tw.aem(tw.grpo(convention="trl"), min_range=0.0), **options, **MODES[mode])
    trainer.train()
    assert len(trainer.batches) == (1 if misaligned else 2)
    for batch in trainer.batches:
        ids = [
            row[keep.bool()].tolist()
            for row, keep in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
        ]
        expected = by_hand(trainer.method, batch, rewards_of(ids))
        np.testing.assert_allclose(batch["advantages"].numpy(), expected, rtol=2e-4, atol=1e-5)
        assert ("old_per_token_logps" in batch) == misaligned


def test_turns_are_the_runs_that_were_generated(tmp_path):
    trainer = make(Ours, tmp_path, method=tw.aem(), rollout_func=play_turns, max_steps=1, log_completions=True)
    trainer.train()
    assert [len(turns) for turns in trainer._logs["extra"]["turn_entropy"]] == [1, 2, 3, 1, 2, 3, 1, 2]
    logs = trainer.state.log_history[0]
    assert logs["credit/turns_mean"] == pytest.approx(15 / 8)
    assert logs["credit/alpha_min"] < 1 < logs["credit/alpha_max"]
    assert {"credit/entropy_mean", "credit/advantage_turn_0", "credit/advantage_turn_2"} <= set(logs)
    assert "credit/advantage_turn_3" not in logs
    table = next((tmp_path / "completions").glob("*.parquet"))
    import pandas

    assert len(pandas.read_parquet(table)["turn_alpha"][2]) == 3


def play(command: str) -> str:
    """Play a command.

    Args:
        command: What to do.

    Returns:
        What happens.
    """
    return f"you did: {command}"


def test_tools_alone_make_turns(tmp_path):
    method = tw.aem(tw.grpo(convention="trl"), min_range=0.0)
    trainer = make(
        Scripted, tmp_path, method=method, tools=[play], reward_funcs=[lottery], max_completion_length=400, max_steps=1
    )
    trainer.train()
    batch = trainer.batches[-1]
    generated = (batch["completion_mask"] * batch["tool_mask"]).bool()
    said = [
        trainer.processing_class.decode(ids[mine]) for ids, mine in zip(batch["completion_ids"], generated, strict=True)
    ]
    assert not any("you did" in text for text in said), "what the tool answers is not the policy's"
    assert all("you did" in trainer.processing_class.decode(ids) for ids in batch["completion_ids"])
    assert [text.count("<|im_end|>") for text in said] == [3] * len(said)
    rewards = [0.5 * (n % 3) for n in range(SIZE * GROUPS)]
    np.testing.assert_allclose(batch["advantages"].numpy(), by_hand(method, batch, rewards), rtol=2e-4, atol=1e-5)


def test_worlds_are_played_as_tools(tmp_path):
    method = tw.aem(tw.gigpo(), min_range=0.0)
    factory = world_factory(HOUSE)
    trainer = make(
        Scripted, tmp_path, method=method, worlds=factory, prompts=rows(HOUSE), reward_funcs=[lottery], max_completion_length=400, max_steps=1
    )  # fmt: skip
    trainer.train()
    assert trainer.reward_func_names[-1] == World.__name__
    batch = trainer.batches[-1]
    generated = batch["completion_mask"] * batch["tool_mask"]
    for row, world in enumerate(trainer.environments):
        text = trainer.processing_class.decode(batch["completion_ids"][row])
        assert all(step.observation in text for step in world._steps[1:]), "what the world said is in the row"
        said = trainer.processing_class.decode(batch["completion_ids"][row][generated[row].bool()])
        assert "tool_response" not in said
        assert said.count("<|im_end|>") == 3
    rewards = [0.5 * (n % 3) for n in range(SIZE * GROUPS)]
    states = [[world._key(at) for at in (0, 1, len(world._steps) - 1)] for world in trainer.environments]
    assert len(trainer.environments[0]._steps) == 3
    assert len(trainer.environments[1]._steps) == 2, "one call was wrong, and no command"
    expected = by_hand(method, batch, rewards, states=states, paid=[[0.0, 0.0, reward] for reward in rewards])
    np.testing.assert_allclose(batch["advantages"].numpy(), expected, rtol=2e-4, atol=1e-5)
    assert abs(expected).max() > 0.1


def lottery(completions, **_):
    return [0.5 * (n % 3) for n in range(len(completions))]


def test_a_world_that_breaks_is_not_trained_on(tmp_path, monkeypatch):
    broken = []

    def broke(world, command):
        if not broken:
            broken.append(world)
        if world is broken[0]:
            return world._broke(RuntimeError("boom"))
        return play(world, command)

    play = World.play
    monkeypatch.setattr(World, "play", broke)
    broke.__name__, broke.__doc__, broke.__annotations__ = (
        "play",
        play.__doc__,
        play.__annotations__,
    )  # TRL calls it by its name
    trainer = make(
        Scripted, tmp_path, method=tw.grpo(), worlds=world_factory(HOUSE), prompts=rows(HOUSE), reward_funcs=[lottery],
        max_completion_length=400, max_steps=1,
    )  # fmt: skip
    trainer.train()
    assert len(broken) == 1
    assert trainer._rewards.isnan().all(1).sum() == 1
    row = trainer._rewards.isnan().all(1).nonzero().item()
    assert trainer.environments[row] is broken[0]
    assert not trainer.batches[0]["advantages"][row].any()
    assert trainer.batches[0]["advantages"].any()


def test_unscorable_trajectories_change_nothing(tmp_path):
    def some(completion_ids, **_):
        return [None if n == 1 else reward for n, reward in enumerate(rewards_of(completion_ids))]

    ours = make(Ours, tmp_path, method=tw.grpo(convention="trl"), reward_funcs=some, max_steps=1)
    theirs = make(Theirs, tmp_path, reward_funcs=some, max_steps=1)
    for trainer in (ours, theirs):
        torch.manual_seed(1)
        trainer.train()
    expected = theirs.batches[0]["advantages"][:, None] * theirs.batches[0]["completion_mask"]
    torch.testing.assert_close(ours.batches[0]["advantages"], expected, rtol=1e-5, atol=1e-6)
    assert expected[1].abs().max() == 0 < expected[0].abs().max()


def test_evaluation_has_groups_of_its_own_size(tmp_path):
    prompts = [{"prompt": [{"role": "user", "content": text}]} for text in ("go", "look")]
    options = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    ours = make(Ours, tmp_path, method=tw.grpo(convention="trl"), eval_dataset=Dataset.from_list(prompts), **options)
    theirs = make(Theirs, tmp_path, eval_dataset=Dataset.from_list(prompts), **options)
    for trainer in (ours, theirs):
        torch.manual_seed(1)
        metrics = trainer.evaluate()
    expected = theirs.batches[0]["advantages"][:, None] * theirs.batches[0]["completion_mask"]
    torch.testing.assert_close(ours.batches[0]["advantages"], expected, rtol=1e-5, atol=1e-6)
    assert expected.shape[0] == 4
    assert expected.any()
    assert "eval_credit/entropy_mean" in ours.state.log_history[-1]
    assert "eval_reward" in metrics


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    script = Path(__file__).with_name("two_processes.py")
    found = {}
    for processes in (1, 2):
        out = tmp_path / f"{processes}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [*command, str(script), str(out)], capture_output=True, text=True, env=environment, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[processes] = json.loads(out.read_text())
    one, two = found[1], found[2]
    assert one["completion"] == two["completion"]
    np.testing.assert_allclose(np.concatenate(one["advantage"]), np.concatenate(two["advantage"]), rtol=1e-4, atol=1e-5)
    assert len({len(row) for row in one["advantage"]}) > 1
    for (name, mine), its in zip(one["weights"].items(), two["weights"].values(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-5, err_msg=name)


PRIVATE = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy", "compute_aux_loss",
        "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
        "token_type_ids", "mm_token_type_ids", "image_position_ids",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_trls_private_methods_are_as_we_know_them(name):
    assert list(inspect.signature(getattr(trl.GRPOTrainer, name)).parameters) == PRIVATE[name]


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(
        IntegrationError, match=r"gigpo.* needs column 'state_key', which this trainer does not have.*trl_worlds"
    ):
        make(Ours, tmp_path, method=tw.gigpo())
    with pytest.raises(IntegrationError, match="normalize_then_sum"):
        make(Ours, tmp_path, method=tw.grpo(), multi_objective_aggregation="normalize_then_sum")
