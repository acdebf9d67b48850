"""Use turnwise methods in TRL's `GRPOTrainer`.

    trainer = TurnwiseGRPOTrainer(
        model, reward_funcs=..., args=GRPOConfig(...), train_dataset=..., method=tw.empg(tw.grpo())
    )

Only the advantages change. Generation, environments, losses, logs and processes stay TRL's.
"""

import importlib.metadata
from typing import Any

import torch

from turnwise.base.errors import IntegrationError, install
from turnwise.credit.options import check_transforms
from turnwise.credit.transform import Transform
from turnwise.integrations.token_tables import tables_for
from turnwise.integrations.trainers import TRAINERS, check_version
from turnwise.integrations.trl_turns import credit

SUPPORTED = (1, 16), (1, 17)
"""Versions of TRL: the first supported one, and the first untested one."""
TABLES = {"ref_per_token_logps": "ref_logprob_T", "sampling_per_token_logps": "behavior_logprob_T"}
"""TRL's tables of tokens that some runs have, and our names."""
FORWARD = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""Inputs of vision models in addition to tokens."""


try:
    check_version("TRL", importlib.metadata.version("trl"), SUPPORTED)
except importlib.metadata.PackageNotFoundError:
    raise IntegrationError(
        f"turnwise.integrations.trl: TRL is not installed; install torch, then: {install('trl')}"
    ) from None

from accelerate.utils import gather_object  # noqa: E402  # pyright: ignore[reportMissingImports]
from trl import GRPOTrainer  # noqa: E402  # pyright: ignore[reportMissingImports]
from trl.models.utils import disable_gradient_checkpointing  # noqa: E402  # pyright: ignore[reportMissingImports]


class TurnwiseGRPOTrainer(GRPOTrainer):
    """Train with TRL's trainer and the advantages of a turnwise method.

    `scale_rewards` has no effect, since a method does its own scaling. Trajectories that `mask_truncated_completions`
    masks are left out of their group, while TRL would count their reward.

    Args:
        args, kwargs: Arguments of `trl.GRPOTrainer`.
        method: Stateless method whose columns the run has: entropies and log-probabilities; with `beta` above 0 those
            of the reference model; with vLLM the mismatch; with environments of turnwise `state_key`.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: The method keeps state or needs a missing column.
    """

    def __init__(self, *args: Any, method: Transform, return_is_success: bool = False, **kwargs: Any):
        check_transforms("TurnwiseGRPOTrainer", {"method": method}, Transform)
        super().__init__(*args, **kwargs)
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise IntegrationError(
                f"multi_objective_aggregation={self.multi_objective_aggregation!r}: a method gets one reward per "
                "trajectory; use 'sum_then_normalize'"
            )
        self._check(method, return_is_success)
        self.return_is_success = return_is_success
        self.method = method
        self._rewards: torch.Tensor | None = None  # [all rows, functions], of the current batch
        self._played: list[Any] | None = None  # [all rows]
        self._first_pass: list[tuple[torch.Tensor, torch.Tensor]] | None = None  # None: not scoring

    def _check(self, method: Transform, return_is_success: bool) -> None:
        own = self._environment_columns() | ({"success"} if return_is_success else set())
        TRAINERS["TRL"].check(method, own)
        conditions = {
            "ref_logprob": (self.beta > 0, "set beta above 0, so that TRL asks the reference model"),
            "mismatch": (self.use_vllm, "set use_vllm=True"),
            "mismatch_min": (self.use_vllm, "set use_vllm=True"),
            "state_key": (False, "use environments of turnwise.integrations.trl_environments"),
            "success": (False, "set return_is_success=True if the reward is the success, 0 to 1"),
        }
        for name in (name for name in method.needs if name in conditions and name not in own):
            met, how = conditions[name]
            if not met:
                raise IntegrationError(f"{method} needs column {name!r}, which this run does not have; {how}")

    def _environment_columns(self) -> set[str]:
        pools = getattr(self, "_environment_pool", {}).values()
        own = [set(getattr(pool[0], "_columns", ())) for pool in pools]
        return set.intersection(*own) if own else set()

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards, self._played = rewards, None
        if self.environments:
            pairs = zip(self.environments, completions, strict=True)
            self._played = gather_object(
                [environment._record(said) if hasattr(environment, "_record") else None for environment, said in pairs]
            )
            broken = gather_object([getattr(environment, "_fault", False) for environment in self.environments])
            rewards[torch.tensor(broken, device=rewards.device)] = torch.nan  # overrides other reward functions
        return rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        # entropies are needed only from the policy, not from a reference model
        if self._first_pass is None or self._first_pass or model is not self.model:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        result = super()._get_per_token_logps_and_entropies(model, *args, **{**kwargs, "compute_entropy": True})
        self._first_pass.append(result[:2])
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._first_pass = []
        try:
            output = super()._generate_and_score_completions(inputs)
            first = self._first_pass
        finally:
            self._first_pass = None
        # TRL's first pass is the sampling policy's if it kept the log-probabilities, else none or one without an
        # adapter
        logprob, entropy = first[0] if "old_per_token_logps" in output else self._score(output)
        self._replace_advantages(output, logprob, entropy)
        return output

    def _score(self, output: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of the sampling policy, `[rows, length]` each (nats)."""
        training = self.model.training
        size = self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size
        images = {name: output[name] for name in FORWARD if name in output}
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            return self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                output["completion_ids"].size(1),
                batch_size=size,
                compute_entropy=True,
                **images,
            )[:2]

    def _replace_advantages(self, output: dict[str, Any], logprob: torch.Tensor, entropy: torch.Tensor) -> None:
        mode = "train" if self.model.training else "eval"
        assert self._rewards is not None
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        num_rows, length = mask.shape
        wanted = tables_for(self.method.needs)
        tables = {ours: output[theirs] for theirs, ours in TABLES.items() if ours in wanted and theirs in output}
        everywhere = [
            self.accelerator.gather(self.accelerator.pad_across_processes(part.contiguous(), dim=1))
            .float()
            .cpu()
            .numpy()
            for part in (mask, entropy, logprob, *tables.values())
        ]  # rows of a group may be in several processes with different widths
        weighted = self._rewards * self.reward_weights.to(self._rewards.device)
        reward = weighted.nansum(dim=1).masked_fill(self._rewards.isnan().all(dim=1), torch.nan)
        credited = credit(
            self.method,
            mask=everywhere[0] > 0,
            entropy=everywhere[1],
            logprob=everywhere[2],
            reward=reward.double().cpu().numpy(),
            group_size=self.num_generations if mode == "train" else self.num_generations_eval,
            played=self._played,
            token_tables=dict(zip(tables, everywhere[3:], strict=True)),
            return_is_success=self.return_is_success,
        )
        first = self.accelerator.process_index * num_rows
        own = torch.from_numpy(credited.advantage[first : first + num_rows, :length])
        output["advantages"] = own.to(output["advantages"])

        for name, value in credited.metrics.items():
            self._metrics[mode][name].append(value)
        for name, rows in credited.turns.items():
            self._logs["extra"][name].extend(rows)
        logged = self._logs["advantages"]  # TRL logged its own advantages, one per row
        ours = credited.advantage.sum(axis=1) / everywhere[0].sum(axis=1).clip(min=1)
        for _ in range(min(len(logged), len(ours))):
            logged.pop()
        logged.extend(ours.tolist())
