"""The plug-in inside verl's own trainer code, in one process: what it registers, and what advantages verl's trainers
write.

    <python with verl and turnwise> -m pytest tests/crosscheck/verl/test_plugin.py -m crosscheck -p no:cacheprovider

verl's data transfer is a dictionary here; `test_two_steps.py` has the real one, with Ray (see
benchmarks/requirements-verl.txt).
"""

import asyncio
import types
import warnings

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import ConfigError, IntegrationError

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

torch = pytest.importorskip("torch", reason="verl needs torch; see benchmarks/requirements-verl.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl's imports
    pytest.importorskip("verl", reason="verl is not installed; see benchmarks/requirements-verl.txt")
    trainer_base = pytest.importorskip(
        "verl.trainer.ppo.v1.trainer_base", reason="verl is there, but not all that its trainers import"
    )
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, compute_gae_advantage_return
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl.workers.rollout.replica import TokenOutput

    import turnwise.integrations.verl
    from turnwise.integrations import verl_trainer
    from turnwise.integrations.verl_agent_loop import TurnwiseAgentLoop, task_rows
    from turnwise.integrations.verl_rows import RECORD

from tests.rollout.chat_models import chat_model  # noqa: E402

KEEPS_STATE = next(name for name, make in tw.METHODS.items() if not make.card.trial and make().init is not None)
FLOAT32 = {"rtol": 2e-6, "atol": 2e-6}


class Queue:
    """verl's TransferQueue, as far as computing advantages asks it."""

    def __init__(self, rows):
        self.rows = rows

    def kv_batch_get(self, keys, partition_id, select_fields):
        known = [name for name in select_fields if name in self.rows[keys[0]]]
        return list_of_dict_to_tensordict([{name: self.rows[key][name] for name in known} for key in keys])

    def kv_batch_put(self, keys, partition_id, fields):
        for name in fields.keys():  # noqa: SIM118
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value
        return Batch(keys=keys, partition_id=partition_id)


class Batch(types.SimpleNamespace):
    """verl's `KVBatchMeta`, as far as computing advantages asks it."""

    def __len__(self):
        return len(self.keys)


def played(seed: int, *, several: bool, padding: int = 2):
    """Rows as agent loops leave them, shuffled: groups of sessions of one row, or of one row per response; and what was
    played.
    """
    generator = np.random.default_rng(seed)
    rows, groups = {}, []
    for group in range(5):
        groups.append([])
        for session in range(generator.integers(2, 6)):
            score = float(generator.integers(0, 3))
            lengths = generator.integers(1, 5, generator.integers(1, 5))
            entropies = [generator.uniform(0, 2, length).astype(np.float32) for length in lengths]
            turns = [
                {"reward": 0.0, "entropy": float(part.mean(dtype=np.float64)), "num_tokens": len(part)}
                for part in entropies
            ]
            turns[-1]["reward"] = score
            groups[-1].append(turns)
            gap = np.zeros(2)
            pieces = [[part] for part in entropies] if several else [entropies]
            for index, parts in enumerate(pieces):
                mask = np.concatenate([np.append(np.ones(len(part)), gap) for part in parts])[
                    : None if index % 2 else -2
                ]
                entropy = np.concatenate([np.append(part, gap) for part in parts])[: len(mask)]
                key = f"uid{group}_{session}_{index}"
                rows[key] = row(f"uid{group}", mask, score, entropy)
                rows[key]["turns"] = [(group, session, index + n if several else n) for n in range(len(parts))]
    for number in range(padding):
        rows[f"pad_{number}_0"] = row("pad", np.zeros(1), 0.0, np.zeros(1)) | {"turns": []}
    keys = generator.permutation(list(rows)).tolist()
    return keys, rows, groups


def row(uid, mask, score, entropy):
    scores = torch.zeros(len(mask))
    scores[-1] = score
    return {
        "uid": uid,
        "response_mask": torch.tensor(mask, dtype=torch.int64),
        "rm_scores": scores,
        "entropy": torch.tensor(entropy, dtype=torch.float32),
        "extra_fields": {},
    }


def settings(estimator: str, mode: str = "turnwise_sync", **own):
    return OmegaConf.create(
        {
            "algorithm": {
                "adv_estimator": estimator,
                "gamma": 1.0,
                "lam": 1.0,
                "use_kl_in_reward": False,
                "turnwise": own,
            },
            "actor_rollout_ref": {"rollout": {"n": 4}},
            "trainer": {"v1": {"trainer_mode": mode}},
        }
    )


def advantages(config, keys, rows, monkeypatch, mode: str = "turnwise_sync"):
    """What a trainer of verl writes for each row, without padding, and its metrics."""
    queue = Queue({key: dict(value) for key, value in rows.items()})
    monkeypatch.setattr(trainer_base, "tq", queue)
    monkeypatch.setattr(verl_trainer, "tq", queue)
    trainer = object.__new__(trainer_base.get_trainer_cls(mode))
    trainer.config, metrics = config, {}
    trainer._compute_advantage(Batch(keys=keys, partition_id="train"), metrics)
    return {key: queue.rows[key]["advantages"].numpy() for key in keys}, metrics


def expected(method, keys, rows, groups):
    """The library's own credit on what was played."""
    credit = iter(method(tw.Batch.from_trajectories(groups)))
    of_turn = {
        (g, s, t): next(credit)
        for g, group in enumerate(groups)
        for s, turns in enumerate(group)
        for t in range(len(turns))
    }
    made = {}
    for key in keys:
        mask = rows[key]["response_mask"].numpy()
        starts = np.diff(mask, prepend=0) == 1
        values = [of_turn[turn] for turn in rows[key]["turns"]]
        made[key] = np.array([values[n - 1] if one else 0.0 for n, one in zip(np.cumsum(starts), mask, strict=True)])
    return made


def assert_same(actual, wanted):
    for key, values in wanted.items():
        np.testing.assert_allclose(actual[key], values, **FLOAT32, err_msg=key)


# -- what is registered ------------------------------------------------------------------------------------------------


def test_every_method_that_needs_rewards_masks_and_groups_alone_is_an_estimator():
    free = [
        name
        for name, make in tw.METHODS.items()
        if set(make(**make.card.trial).needs) <= {"turn", "length"} and make(**make.card.trial).init is None
    ]
    assert {"grpo", "dr_grpo", "rloo", "trloo", "reinforce_pp_baseline"} <= set(free)
    assert {name for name in ADV_ESTIMATOR_REGISTRY if name.startswith("turnwise")} == {
        "turnwise",
        *(f"turnwise_{name}" for name in free),
    }


def test_each_trainer_of_verl_has_one_of_ours():
    for mode in verl_trainer.MODES:
        ours, theirs = (trainer_base.get_trainer_cls(name) for name in (f"turnwise_{mode}", mode))
        assert issubclass(ours, (theirs, verl_trainer.TurnwiseTrainer))
    assert _agent_loop_registry["turnwise"]["_target_"].endswith("TurnwiseAgentLoop")


# -- advantages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True], ids=["rows of trajectories", "rows of turns"])
@pytest.mark.parametrize("mode", ["sync", "turnwise_sync"])
def test_estimators_give_what_the_library_gives_in_any_trainer(mode, several, monkeypatch):
    keys, rows, groups = played(0, several=several)
    for name in ("grpo", "trloo", "reinforce_pp_baseline"):
        actual, _ = advantages(settings(f"turnwise_{name}", mode), keys, rows, monkeypatch, mode)
        assert_same(actual, expected(tw.METHODS[name](), keys, rows, groups))


@pytest.mark.parametrize("several", [False, True], ids=["rows of trajectories", "rows of turns"])
@pytest.mark.parametrize("seed", range(3))
def test_grpo_in_verls_convention_is_verls_own(seed, several, monkeypatch):
    keys, rows, _ = played(seed, several=several)
    theirs, _ = advantages(settings("grpo", "sync"), keys, rows, monkeypatch, "sync")
    ours, _ = advantages(
        settings("turnwise_grpo", "sync", options={"convention": "verl"}), keys, rows, monkeypatch, "sync"
    )
    assert_same(ours, {key: values * rows[key]["response_mask"].numpy() for key, values in theirs.items()})


@pytest.mark.parametrize("several", [False, True], ids=["rows of trajectories", "rows of turns"])
@pytest.mark.parametrize(
    ("method", "own"),
    [
        (tw.aem(tw.grpo()), {"method": "grpo+aem"}),
        (tw.aem(tw.rloo(), temperature=0.5), {"method": "rloo+aem", "options": {"temperature": 0.5}}),
        (tw.empg(), {"method": "empg"}),
    ],
    ids=str,
)
def test_our_trainer_brings_entropies(method, own, several, monkeypatch):
    keys, rows, groups = played(1, several=several)
    actual, metrics = advantages(settings("turnwise", **own), keys, rows, monkeypatch)
    assert_same(actual, expected(method, keys, rows, groups))
    assert {"credit/entropy", "credit/alpha_max", "credit/turns"} <= set(metrics)
    every = [(turn["entropy"], turn["num_tokens"]) for group in groups for turns in group for turn in turns]
    entropies, lengths = zip(*every, strict=True)
    assert metrics["credit/entropy"] == pytest.approx(np.average(entropies, weights=lengths), rel=1e-6)


def test_what_a_loop_recorded_reaches_gigpo(monkeypatch):
    keys, rows, groups = played(2, several=True)
    for key in keys:
        for group, session, turn in rows[key]["turns"]:
            state, reward = f"s{(group + session + turn) % 2}", groups[group][session][turn]["reward"]
            groups[group][session][turn]["state_key"] = state
            rows[key]["extra_fields"] = {RECORD: {"reward": [reward], "state_key": [state]}}
    actual, _ = advantages(settings("turnwise", method="gigpo+aem"), keys, rows, monkeypatch)
    assert_same(actual, expected(tw.aem(tw.gigpo()), keys, rows, groups))


TABLES = {
    "old_log_probs": "logprob_T",
    "rollout_log_probs": "behavior_logprob_T",
    "ref_log_prob": "ref_logprob_T",
    "values": "value_T",
}


def with_tables(keys, rows, groups):
    """Add verl's tables of tokens to the rows, and their values at generated tokens to what was played."""
    generator = np.random.default_rng(7)
    for key in keys:
        mask = rows[key]["response_mask"].numpy()
        number = np.cumsum(np.diff(mask, prepend=0) == 1) - 1
        for theirs, ours in TABLES.items():
            table = generator.normal(-1.0, 0.5, len(mask)).astype(np.float32)
            rows[key][theirs] = torch.tensor(table)
            for place, (g, s, t) in enumerate(rows[key]["turns"]):
                groups[g][s][t][ours] = table[(mask == 1) & (number == place)].tolist()


def expected_tokens(method, keys, rows, groups):
    """The library's advantages and critic's targets of tokens."""
    plain = tw.Batch.from_trajectories(groups)
    means = {name: plain.tokens.mean(plain.columns[f"{name}_T"]) for name in ("logprob", "ref_logprob")}
    difference_T = plain.columns["logprob_T"] - plain.columns["behavior_logprob_T"]
    means |= {"mismatch_min": plain.tokens.min(difference_T), "value": plain.tokens.first(plain.columns["value_T"])}
    batch = tw.Batch(plain.groups, plain.trajectories, plain.reward_R, {**plain.columns, **means}, plain.tokens)
    trace, _ = method.trace(batch)
    target = trace.targets.get("value_T", plain.tokens.broadcast(trace.targets.get("value", trace.advantage_R)))
    pieces = [np.split(values, plain.tokens.offsets[1:-1]) for values in (trace.advantage_T(plain.tokens), target)]
    place = {}
    for g, group in enumerate(groups):
        for s, turns in enumerate(group):
            for t in range(len(turns)):
                place[g, s, t] = len(place)
    made = []
    for piece in pieces:
        made.append({})
        for key in keys:
            made[-1][key] = np.zeros(len(rows[key]["response_mask"]))
            own = [piece[place[turn]] for turn in rows[key]["turns"]]
            if own:
                made[-1][key][rows[key]["response_mask"].numpy() == 1] = np.concatenate(own)
    return made


def drop_far(credit_R, batch):
    """Keep the credit of responses whose tokens the engine and the trainer score alike."""
    return credit_R * (batch.column("mismatch_min", needed_by="drop_far") > -1.0)


@pytest.mark.parametrize("several", [False, True], ids=["rows of trajectories", "rows of turns"])
@pytest.mark.parametrize("mode", ["sync", "turnwise_sync"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("ppo", {}), ("bilevel_gae", {}), ("gae", {}), ("turn_ppo", {}), ("ace", {"weight": 1.0})],
)
def test_a_critic_and_log_probabilities_reach_the_method(name, options, mode, several, monkeypatch):
    keys, rows, groups = played(5, several=several)
    with_tables(keys, rows, groups)
    config = settings("turnwise", mode, method=name, options=options)
    config.critic = {"enable": True}
    actual, returns = advantages_and_returns(config, keys, rows, monkeypatch, mode)
    credit, targets = expected_tokens(tw.METHODS[name](**options), keys, rows, groups)
    for key in keys:
        np.testing.assert_allclose(actual[key], credit[key], rtol=1e-5, atol=1e-5, err_msg=key)
        if name != "ace":  # which reads no critic
            np.testing.assert_allclose(returns[key], targets[key], rtol=1e-5, atol=1e-5, err_msg=key)


def advantages_and_returns(config, keys, rows, monkeypatch, mode):
    """As `advantages`, with what verl's critic would learn."""
    queue = Queue({key: dict(value) for key, value in rows.items()})
    monkeypatch.setattr(trainer_base, "tq", queue)
    monkeypatch.setattr(verl_trainer, "tq", queue)
    trainer = object.__new__(trainer_base.get_trainer_cls(mode))
    trainer.config = config
    trainer._compute_advantage(Batch(keys=keys, partition_id="train"), {})
    return [{key: queue.rows[key][name].numpy() for key in keys} for name in ("advantages", "returns")]


def test_a_mismatch_reaches_a_block(monkeypatch):
    keys, rows, groups = played(6, several=False)
    with_tables(keys, rows, groups)
    method = tw.chain(tw.grpo(), tw.block(needs=("mismatch_min",))(drop_far)())
    monkeypatch.setattr("turnwise.integrations.verl_estimator.configured", lambda *_: method)
    actual, _ = advantages_and_returns(settings("turnwise", "sync"), keys, rows, monkeypatch, "sync")
    credit, _ = expected_tokens(method, keys, rows, groups)
    assert any((credit[key] == 0).all() for key in keys)
    for key in keys:
        np.testing.assert_allclose(actual[key], credit[key], rtol=1e-5, atol=1e-5, err_msg=key)


def test_a_critic_that_is_off_is_refused_before_anything_starts():
    config = settings("turnwise", method="ppo")
    config.critic = {"enable": False}
    with pytest.raises(ConfigError, match=r"needs a critic; set critic.enable=True"):
        trainer_base.get_trainer_cls("turnwise_sync")(config)


def test_a_table_that_verl_did_not_make_is_one_line(monkeypatch):
    keys, rows, _ = played(0, several=False)
    for name, options, how in (("ppo", {}, "critic.enable=True"), ("ace", {"weight": 1.0}, "use_kl_loss=True")):
        config = settings("turnwise", "sync", method=name, options=options)
        for key in keys:
            rows[key]["old_log_probs"] = torch.zeros(len(rows[key]["response_mask"]))
        with pytest.raises(IntegrationError, match=how):
            advantages(config, keys, rows, monkeypatch, "sync")


def test_gae_on_responses_of_one_token_is_verls():
    """verl skips observation tokens and whitens; `returns` are not whitened."""
    generator = np.random.default_rng(3)
    mask = np.tile([1.0, 0, 0, 1, 0, 1], (4, 1))
    mask[1, 3:], mask[2, 5] = 0, 0
    values, rewards = generator.normal(size=mask.shape), generator.normal(size=mask.shape) * mask
    _, returns = compute_gae_advantage_return(
        *(torch.tensor(part) for part in (rewards, values, mask)), gamma=0.9, lam=0.8
    )
    from turnwise.integrations.padded import padded_advantages

    ours = padded_advantages(
        tw.gae(discount=0.9, decay=0.8),
        row="trajectory",
        rewards=rewards,
        response_mask=mask,
        group=[0] * 4,
        columns={"value": values},
    ).tokens
    np.testing.assert_allclose(ours, (returns.numpy() - values) * mask, rtol=1e-9, atol=1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"method": "grpo+aem"}, "needs column 'entropy'.*set trainer.v1.trainer_mode=turnwise_sync"),
        ({"method": "gigpo"}, "needs column 'state_key'.*verl_agent_loop"),
    ],
)
def test_a_plain_trainer_says_why_it_cannot(own, message, monkeypatch):
    keys, rows, _ = played(0, several=True)
    with pytest.raises(IntegrationError, match=message):
        advantages(settings("turnwise", "sync", **own), keys, rows, monkeypatch, "sync")


def test_rejected_tokens_are_refused_where_the_mask_before_is_unknown(monkeypatch):
    keys, rows, _ = played(0, several=True)
    config = settings("turnwise_grpo", "sync")
    config.algorithm.rollout_correction = {"rollout_rs": "token_k1"}
    with pytest.raises(IntegrationError, match="rollout_rs removes tokens from the mask"):
        advantages(config, keys, rows, monkeypatch, "sync")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings("grpo"), "algorithm.adv_estimator='grpo' is not a method of turnwise"),
        (settings("turnwise", method="gipo"), "unknown method 'gipo'. Did you mean"),
        (settings("turnwise", methode="grpo"), "unknown key algorithm.turnwise.methode. Did you mean 'method'"),
        (settings("turnwise_grpo", method="rloo"), "remove the latter"),
        (settings("turnwise", method=KEEPS_STATE), "keeps state"),
    ],
)
def test_a_wrong_configuration_fails_before_anything_starts(config, message):
    with pytest.raises(ConfigError, match=message):
        trainer_base.get_trainer_cls("turnwise_sync")(config)


def test_entropies_that_bypass_mode_leaves_unmeasured_are_refused_at_once():
    config = settings("turnwise", method="grpo+aem")
    config.algorithm.rollout_correction = {"bypass_mode": True}
    with pytest.raises(ConfigError, match="bypass_mode=True skips them"):
        trainer_base.get_trainer_cls("turnwise_sync")(config)


# -- the agent loop ----------------------------------------------------------------------------------------------------


class Server:
    """Says one thing after another, as verl's servers do."""

    def __init__(self, says):
        self.says, self.asked = list(says), []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.asked.append((request_id, prompt_ids, sampling_params))
        ids = self.says[(len(self.asked) - 1) % len(self.says)]
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"min_global_steps": 3, "max_global_steps": 4}
        )


def play(says, **own):
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(chat_model("qwen2_5"))
    stop = words.convert_tokens_to_ids("<|im_end|>")
    server = Server([[*words.encode(text, add_special_tokens=False), stop] for text in says])
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"prompt_length": 4000, "response_length": 4000}},
            "data": {},
        }
    )
    environment = {"name": "household", "max_steps": 3, "options": {"size": "tiny", "num_train": 4}}

    async def run():
        loop = TurnwiseAgentLoop(
            DictConfigWrap(config),
            server,
            words,
            None,
            None,
            DictConfigWrap(config.data),
            environment=OmegaConf.create(environment),
            max_new_tokens=16,
            **own,
        )
        extra = {"split": "train", "task": 1}
        return await loop.run({"temperature": 1.0, "logprobs": True}, extra_info=extra, raw_prompt=[])

    return asyncio.run(run()), server, words


def test_a_trajectory_is_a_row_whose_mask_covers_what_was_generated():
    (output,), server, words = play(["look", "inventory", "go to fridge 1"])
    whole = output.prompt_ids + output.response_ids
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    for _, prompt_ids, _ in server.asked:
        assert whole[: len(prompt_ids)] == prompt_ids, "nothing is encoded twice"
    generated = [i for i, one in zip(output.response_ids, output.response_mask, strict=True) if one]
    assert words.decode(generated) == "look<|im_end|>inventory<|im_end|>go to fridge 1<|im_end|>"
    assert all((p == -0.5) == bool(one) for p, one in zip(output.response_logprobs, output.response_mask, strict=True))
    assert len({request for request, *_ in server.asked}) == 1, "one request id, so that the server finds its cache"
    assert server.asked[0][2]["max_tokens"] == 16
    record = output.extra_fields[RECORD]
    assert len(record["reward"]) == len(record["state_key"]) == 3
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)


def test_with_a_window_each_response_is_a_row_of_its_own():
    rows, server, _ = play(["look", "inventory", "dance"], window=1)
    assert [row.prompt_ids for row in rows] == [asked[1] for asked in server.asked]
    assert all(set(row.response_mask) == {1} for row in rows)
    assert [row.extra_fields[RECORD]["penalty"] for row in rows] == [[0.0], [0.0], [-0.1]]
    assert len(rows) == 3


def test_tasks_are_rows_of_a_data_set():
    from turnwise.environments.settings import EnvironmentConfig

    rows = task_rows(
        EnvironmentConfig(name="household", options={"size": "tiny", "num_train": 4}), split="train", limit=3
    )
    assert [row["extra_info"]["task"] for row in rows] == [0, 1, 2]
    assert {row["agent_name"] for row in rows} == {"turnwise"}


def test_a_misspelt_setting_of_the_loop_is_one_line():
    from turnwise.integrations.verl_agent_loop import parse_settings

    with pytest.raises(ConfigError, match="agent loop 'turnwise': windows") as caught:
        parse_settings({"windows": 2})
    assert "\n" not in str(caught.value)
