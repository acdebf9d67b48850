"""Two steps of verl's own trainer on a processor, on local Ray and its TransferQueue: only the servers that generate
are replaced.

    python two_steps.py FOLDER MODEL [override ...]

FOLDER gets `step1.pt` and `step2.pt`, what the trainer had at hand when it computed advantages and what it wrote, and
`metrics.json`, a line when a step ends. `plain` among the overrides: verl's GRPO in verl's trainer, without `step*.pt`.
MODEL is the folder of a small chat model. Run by test_two_steps.py and test_lives.py.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "cpu_platform", "VERL_PLATFORM": "cpu", "TOKENIZERS_PARALLELISM": "false"}
HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
for patience in ("agent_register_timeout_ms", "worker_register_timeout_seconds", "raylet_start_wait_time_s"):
    os.environ.setdefault(f"RAY_{patience}", "600000" if patience.endswith("ms") else "600")
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import ray  # noqa: E402
import torch  # noqa: E402
import transfer_queue as tq  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput  # noqa: E402

from turnwise.integrations import verl_agent_loop  # noqa: E402

LOOP = {
    "name": "turnwise",
    "_target_": "turnwise.integrations.verl_agent_loop.TurnwiseAgentLoop",
    "environment": {"name": "tests.toys:Colors", "options": {"turns": 3}},
    "max_new_tokens": 24,
}


class Server:
    """In place of verl's servers: says colors at random, as token ids."""

    def __init__(self, commands):
        self.commands = commands

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        said = random.choice(self.commands)[: sampling_params["max_tokens"]]
        return TokenOutput(token_ids=said, extra_fields={"min_global_steps": 0, "max_global_steps": 0})


RolloutReplicaRegistry.register("vllm", lambda: RolloutReplica)  # asked for, never made: vLLM need not be installed


def settings(folder: Path, model: str, overrides: list[str]):
    window = [text for text in overrides if text.startswith("window=")]
    loop = LOOP | ({"window": int(window[0].split("=")[1])} if window else {})
    (folder / "loop.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create([loop])))
    verl_agent_loop.main([str(folder / "loop.yaml"), str(folder / "train.parquet"), "--limit", "8"])
    given = {
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "train.parquet",
        "data.train_batch_size": 4,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 1024,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.use_remove_padding": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.nnodes": 1,
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": folder / "loop.yaml",
        "reward.num_workers": 1,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.total_training_steps": 2,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": folder,
        "trainer.v1.trainer_mode": "sync" if "plain" in overrides else "turnwise_sync",
        "transfer_queue.enable": True,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "algorithm.adv_estimator": "grpo" if "plain" in overrides else "turnwise",
    }
    with initialize_config_module("verl.trainer.config", version_base=None):
        own = [text for text in overrides if text not in (*window, "plain")]
        return compose("ppo_trainer", overrides=[f"{k}={v}" for k, v in given.items()] + own)


def watching(theirs, folder: Path, server: Server):
    """The registered trainer, without verl's servers, that leaves behind what it saw."""

    class Watched(theirs):
        _enable_hybrid_replicas = False  # verl's own switch: no server on the trainer's devices

        def get_llm_client(self):
            return server

        def _setup(self):
            super()._setup()
            self.checkpoint_manager.update_weights = lambda *_, **__: None

        def _compute_advantage(self, batch, metrics):
            batch = super()._compute_advantage(batch, metrics)
            if self.config.algorithm.adv_estimator == "grpo":
                return batch
            fields = [
                "input_ids",
                "prompts",
                "responses",
                "response_mask",
                "rm_scores",
                "entropy",
                "extra_fields",
                "uid",
                "advantages",
            ]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            rows = {
                key: {name: getattr(value, "data", value) for name, value in zip(fields, values, strict=True)}
                for key, *values in zip(batch.keys, *(_each(data[name]) for name in fields), strict=True)
            }
            torch.save(rows, folder / f"step{self.global_steps}.pt")
            return batch

        def _update_actor(self, batch, metrics):
            batch = super()._update_actor(batch, metrics)
            kept = {k: float(v) for k, v in metrics.items() if k.startswith(("actor/", "credit/"))}
            with (folder / "metrics.json").open("a") as lines:
                lines.write(json.dumps(kept | {"step": self.global_steps, "at": time.time()}) + "\n")
            return batch

    return Watched


def _each(column):
    return [value.clone() for value in column.unbind()] if isinstance(column, torch.Tensor) else list(column)


def main() -> None:
    folder, model, *overrides = sys.argv[1:]
    config = settings(Path(folder), model, overrides)
    OmegaConf.resolve(config)
    gpus = config.trainer.n_gpus_per_node  # so verl calls its workers' devices, whatever they are
    own = {"num_cpus": 32, "num_gpus": gpus, "include_dashboard": False, "object_store_memory": 300 * 1024 * 1024}
    ray.init(
        **({} if "RAY_ADDRESS" in os.environ else {"address": "local", **own})
    )  # a cluster's processes must know VERL_PLATFORM
    try:
        tq.init(config.transfer_queue)
        from transformers import AutoTokenizer

        words = AutoTokenizer.from_pretrained(model)
        stop = words.convert_tokens_to_ids("<|im_end|>")
        said = ["red", "green", "blue", "say nothing"]
        server = Server([[*words.encode(text, add_special_tokens=False), stop] for text in said])
        trainer = watching(get_trainer_cls(config.trainer.v1.trainer_mode), Path(folder), server)(config=config)
        trainer.init()
        trainer.fit(
            AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=None,
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
        )
        tq.close()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
