"""`TurnwiseGRPOTrainer` against TRL's own in real training runs of a tiny random chat model (see
benchmarks/requirements-trl.txt).

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
from turnwise.base.errors import IntegrationError

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

torch = pytest.importorskip("torch", reason="TRL needs torch; see benchmarks/requirements-trl.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    trl = pytest.importorskip("trl", reason="TRL is not installed; see benchmarks/requirements-trl.txt")
    from datasets import Dataset

from tests.crosscheck.trl.trainers import Ours, Theirs, by_hand, make, play_turns, rewards_of  # noqa: E402


def weights(trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def gradient(trainer, batch):
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, {name: value for name, value in batch.items() if name != "entropies"})
    return torch.autograd.grad(loss, list(trainer.model.parameters()))


MODES = {"plain": {}, "rollout_func": {"rollout_func": play_turns}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_trls_own_convention_trains_as_trl_does(mode, loss_type, tmp_path):
    # by plain gradient descent: Adam divides by the size of a gradient, and where that is next to nothing, its last
    # bits decide
    options = {"loss_type": loss_type, "optim": "sgd", "learning_rate": 0.1, **MODES[mode]}
    ours = make(Ours, tmp_path, method=tw.grpo(convention="trl"), **options)
    theirs = make(Theirs, tmp_path, **options)
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
    assert "eval_credit/entropy" in ours.state.log_history[-1]
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
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ],
}


@pytest.mark.parametrize("name", PRIVATE)
def test_trls_private_methods_are_as_we_know_them(name):
    assert list(inspect.signature(getattr(trl.GRPOTrainer, name)).parameters) == PRIVATE[name]


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(
        IntegrationError, match=r"gigpo.* needs column 'state_key', which this run does not have.*trl_environments"
    ):
        make(Ours, tmp_path, method=tw.gigpo())
    with pytest.raises(IntegrationError, match=r"needs column 'value_T', which TRL does not have"):
        make(Ours, tmp_path, method=tw.METHODS["ppo"]())
    with pytest.raises(IntegrationError, match=r"needs column 'ref_logprob', which this run does not have; set beta"):
        make(Ours, tmp_path, method=tw.METHODS["ace"](weight=1.0))
    with pytest.raises(IntegrationError, match=r"needs column 'success', .* return_is_success=True"):
        make(Ours, tmp_path, method=tw.METHODS["ngrpo"]())
    with pytest.raises(IntegrationError, match="normalize_then_sum"):
        make(Ours, tmp_path, method=tw.grpo(), multi_objective_aggregation="normalize_then_sum")
