"""The sections of a recipe: frozen, typed, and free of torch, so that they print and check at once."""

from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.token_rules.build import build_entropy_rule, build_token_rule


class Section(pydantic.BaseModel):
    """What all sections of a recipe have in common."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RunConfig(Section):
    """Where the run lives and how long it is."""

    name: str = pydantic.Field(default="run", min_length=1)
    """Folder of the run below `folder`."""
    folder: Path = Path("runs")
    """Parent of run folders."""
    seed: int = pydantic.Field(default=0, ge=0)
    """Seed of everything that is drawn."""
    steps: int = pydantic.Field(default=60, ge=0)
    """Training steps."""
    threads: int = pydantic.Field(default=0, ge=0)
    """CPU threads of torch; 0 leaves its default."""
    device: str = "auto"
    """"cpu", "cuda", or "auto": cuda where there is one."""


class EnvironmentConfig(Section):
    """The world."""

    name: str = "household"
    """"household" (generated games), "alfworld" (ALFWORLD_DATA), "webshop" (WEBSHOP_DATA), "search_qa" (SEARCH_QA_DATA), "swe" (SWE_DATA), "frozen_lake",
    "sokoban", "scienceworld", "textworld", "gymnasium", "openenv" (a server), "verifiers", or your own as "module:factory"."""
    train_split: str = "train"
    """Games to train on."""
    eval_split: str = "valid"
    """Held-out games."""
    max_steps: int = pydantic.Field(default=50, ge=1)
    """Turns after which an episode is cut off."""
    success_reward: float = 10.0
    """Reward of success; failure gets 0."""
    invalid_penalty: float = pydantic.Field(default=0.1, ge=0)
    """Taken off the advantage of an invalid response, as a term of its own."""
    options: dict[str, Any] = {}
    """Options of the environment itself, such as size or task_types."""
    workers: int = pydantic.Field(default=0, ge=0)
    """Processes to play in, so that a world that crashes or hangs harms no other; 0: in the trainer itself, without the limits below."""
    step_timeout_s: float = pydantic.Field(default=60.0, gt=0)
    """Longest time for one answer of a world, that of its first one with what it loads."""
    episode_timeout_s: float | None = pydantic.Field(default=None, gt=0)
    """Longest time that a world may compute in all."""
    memory_mb: int | None = pydantic.Field(default=None, ge=1)
    """Memory that each process may take beside what it begins with (MiB, Linux only)."""
    max_observation_chars: int = pydantic.Field(default=100_000, ge=1)
    """Longest observation."""


class ModelConfig(Section):
    """The policy: a causal LM."""

    name: str = "tiny"
    """"tiny": a small Llama made from scratch, with one token a word. "smollm2": SmolLM2-135M-Instruct from turnwise[smollm2]. Else the folder
    of a chat model, or its name on Hugging Face's hub."""
    max_context: int = pydantic.Field(default=1024, ge=16)
    """Longest conversation (tokens)."""
    train: Literal["full", "top", "lora"] = "full"
    """What learns: all weights, the upper layers, or low-rank adapters of all linear layers."""
    top_layers: int = pydantic.Field(default=10, ge=1)
    """Layers that learn with train = "top"; embeddings do not."""
    lora_rank: int = pydantic.Field(default=16, ge=1)
    """Rank of the adapters of train = "lora"."""
    lora_alpha: int = pydantic.Field(default=32, ge=1)
    """Adapters are scaled by lora_alpha / lora_rank."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """"bf16": scoring and updates under autocast, rollouts with weights rounded to bfloat16; the optimiser keeps float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    hidden_size: int = pydantic.Field(default=64, ge=8)
    """Of the tiny model, like all that follows."""
    num_layers: int = pydantic.Field(default=2, ge=1)
    num_heads: int = pydantic.Field(default=4, ge=1)
    tie_embeddings: bool = False

    @pydantic.model_validator(mode="after")
    def _tiny_is_possible(self) -> "ModelConfig":
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of 2 * num_heads={2 * self.num_heads}")
        if self.name == "tiny" and self.train == "lora":
            raise ValueError("model.train='lora' is of pretrained models; of model.name='tiny' learn 'full' or 'top'")
        for name in ("hidden_size", "num_layers", "num_heads", "tie_embeddings"):
            if self.name != "tiny" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"model.{name} is of model.name='tiny' only, got name={self.name!r}")
        return self


class PromptConfig(Section):
    """What a chat model reads beside the observations, and what it writes beside the actions."""

    system: str = ""
    """System message; without one the chat template's own."""
    admissible: bool = False
    """List the actions that the world would accept now, where it can tell."""
    think: bool = False
    """Responses reason first: <think>...</think><action>...</action>. Else a response is the action alone."""


class WarmStartConfig(Section):
    """Supervised learning on expert demonstrations of the training games, before reinforcement. Cached."""

    games: int = pydantic.Field(default=400, ge=0)
    """Demonstrated games."""
    steps: int = pydantic.Field(default=300, ge=0)
    """Updates; 0 switches the warm start off."""
    batch_size: int = pydantic.Field(default=16, ge=1)
    """Demonstrations an update."""
    learning_rate: float = pydantic.Field(default=3e-3, gt=0)
    """Peak; warms up for 5 % of the steps and falls to 0 by a cosine."""
    noise: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of stumbles in the demonstrations: other admissible actions, and misspoken ones."""
    imitate_noise: bool = False
    """Imitate the stumbles too, as one must with a fallible demonstrator; otherwise they are played only."""
    observation_weight: float = pydantic.Field(default=0.3, ge=0)
    """Weight of the language-model loss on observation tokens."""


class _Named(pydantic.BaseModel):
    """A name and the options of what it names, as a table or, where there are none, as the bare name."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SelectConfig(_Named):
    """How tasks are chosen: a name and options (see `turnwise.train.selection`)."""

    name: str = "epochs"


class RolloutConfig(Section):
    """How experience is collected."""

    groups: int = pydantic.Field(default=8, ge=1)
    """Tasks a step learns from."""
    group_size: int = pydantic.Field(default=8, ge=1)
    """Trajectories a task."""
    select: SelectConfig = SelectConfig()
    """"epochs": all tasks in turn, in an order drawn anew each epoch. {name = "vade", observed_decay = ..., unobserved_decay = ...}:
    those that the policy now and then solves."""
    filter: Literal["none", "mixed", "not-all-correct"] = "none"
    """Groups to learn from: all; "mixed", those with a success and a failure (DAPO); "not-all-correct", those with a failure
    (NGRPO). Further tasks are played for the groups that are left out."""
    max_batches: int = pydantic.Field(default=10, ge=1)
    """Batches of `groups` tasks that a step plays at most to find enough groups that pass the filter."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    max_new_tokens: int = pydantic.Field(default=16, ge=1)
    """Longest response."""
    stop: tuple[str, ...] = ()
    """Texts that end a response beside the model's own stop token, such as "</action>"."""
    context: Literal["append", "window"] = "append"
    """"append": the whole conversation, one growing sequence a trajectory. "window": the first observation, the last `window` observations
    and responses, and the latest observation: a sequence a response."""
    window: int = pydantic.Field(default=2, ge=0)
    """Observations and responses that context = "window" remembers."""

    @property
    def remembered(self) -> int | None:
        """Size of the window; None for the whole conversation."""
        return self.window if self.context == "window" else None

    @pydantic.model_validator(mode="after")
    def _selector_exists(self) -> "RolloutConfig":
        from turnwise.train.selection import build_selector

        build_selector(self.select.name, self.select.model_extra or {}, num_tasks=1, seed=0)
        if self.filter == "mixed" and self.group_size == 1:
            raise ValueError("rollout.filter='mixed' needs a rollout.group_size above 1: one trajectory is never mixed")
        return self


class MethodConfig(_Named):
    """Credit assignment: a name in `turnwise methods` and its options, AEM's among them (see `turnwise.methods.build`)."""

    name: str = "grpo"


class RuleConfig(_Named):
    """A rule of `turnwise.token_rules`: its name and options."""


class EngineConfig(Section):
    """What generates the responses."""

    name: Literal["local", "server"] = "local"
    """"local": transformers in this process. "server": vLLM over HTTP, see docs/how-to/vllm.md."""
    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Conversations that the local engine holds at one time, which bounds its memory; further ones wait. Default: all. The rest of the section is
    about the server."""
    url: str = pydantic.Field(default="http://127.0.0.1:8000", pattern=r"^https?://[^/]")
    """Where the server is."""
    max_concurrent: int = pydantic.Field(default=256, ge=1)
    """Requests to the server at one time; further ones wait."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Longest time for one answer of the server."""
    patience_s: float = pydantic.Field(default=600.0, ge=0)
    """For so long a request that fails is made again; then the run ends, and can be resumed."""
    sync_folder: Path | None = None
    """Where the server finds new weights: a folder that trainer and server both see, under this name. Default: a temporary one."""


class UpdateConfig(Section):
    """The policy update."""

    learning_rate: float = pydantic.Field(default=3e-4, gt=0)
    warmup_steps: int = pydantic.Field(default=5, ge=0)
    """Steps over which the learning rate rises: Adam's first steps move every weight, however noisy its gradient."""
    decay: bool = False
    """Let the learning rate fall linearly to 0 at run.steps."""
    only_norms: bool = False
    """Of the weights that model.train names, move the gains of normalisation layers alone, as in arXiv 2312.11420: some thousand numbers, whose
    gradient has less noise; they take a far higher learning rate. The warm start is not concerned."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    max_grad_norm: float = pydantic.Field(default=1.0, gt=0)
    importance: Literal["token", "response", "trajectory"] = "token"
    """Which tokens share a ratio, the geometric mean of theirs: none, those of a response (a turn), those of a trajectory (GSPO)."""
    clip: Literal["ppo", "cispo", "none"] = "ppo"
    """"ppo": no gradient where the ratio has left the room of clip_low and clip_high; "cispo": the ratio as a bounded factor."""
    clip_low: float = pydantic.Field(default=0.2, gt=0)
    clip_high: float = pydantic.Field(default=0.2, gt=0)
    dual_clip: float | None = pydantic.Field(default=None, gt=1)
    """Largest ratio of a token with a negative advantage: above it, such a token has no gradient (with "cispo": no larger one)."""
    tokens: RuleConfig | None = None
    """How much each token counts: {name = "steer"}, {name = "clip_cov", frac = 2e-4} and others in `turnwise.token_rules`."""
    epochs: int = pydantic.Field(default=1, ge=1)
    """Passes over a step's trajectories."""
    mini_batches: int = pydantic.Field(default=1, ge=1)
    """Optimiser steps a pass."""
    aggregate: Literal["token-mean", "response-mean", "trajectory-mean", "nested-mean", "constant"] = "token-mean"
    """What the loss averages over."""
    kl: float = pydantic.Field(default=0.0, ge=0)
    """Weight of the KL term to the policy after the warm start."""
    entropy_bonus: float = 0.0
    """Weight of the mean token entropy; off by default."""
    entropy: RuleConfig | None = None
    """A published entropy term: {name = "epo", beta_decay = ...}."""
    mismatch_cap: float | None = pydantic.Field(default=None, gt=0)
    """Correct for an engine whose probabilities differ from the trainer's: weigh each token by pi_trainer / pi_engine, at most this."""
    mismatch_level: Literal["token", "trajectory"] = "token"
    """Whose probability `mismatch_cap` means: that of the token, or of the whole trajectory."""
    scoring: Literal["trainer", "engine"] = "trainer"
    """Whose log-probabilities and entropies a step begins with: those of a pass of its own, or those that the engine sampled with, which
    spares the pass and is what PPO calls the old policy; only an engine that measures entropies can."""
    max_tokens: int = pydantic.Field(default=16384, ge=1)
    """Padded tokens of a micro-batch; memory only, the gradient does not depend on it."""

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> "UpdateConfig":
        if self.mismatch_level == "trajectory" and self.mismatch_cap is None:
            raise ValueError(
                "update.mismatch_level='trajectory' says whose ratio is capped, so it needs update.mismatch_cap"
            )
        if self.tokens:
            build_token_rule(self.tokens.name, self.tokens.model_extra or {})
        if self.entropy:
            build_entropy_rule(self.entropy.name, self.entropy.model_extra or {})
        return self


class EvaluateConfig(Section):
    """Held-out evaluation on a fixed panel of tasks."""

    every: int = pydantic.Field(default=20, ge=0)
    """Steps between evaluations; 0: only before and after training."""
    episodes: int = pydantic.Field(default=128, ge=1)
    """Panel during training."""
    final_episodes: int = pydantic.Field(default=256, ge=1)
    """Panel before and after training."""
    temperature: float = pydantic.Field(default=0.4, ge=0)
    """Sampling temperature; 0 is greedy."""


class LogConfig(Section):
    """Trackers that get a copy of metrics.jsonl, each through its own library."""

    tensorboard: bool = False
    """Event files in the run's folder, below tensorboard."""
    wandb: str | None = None
    """Project on Weights & Biases; WANDB_MODE=offline keeps it on this machine."""
    trackio: str | None = None
    """Project of trackio."""


class CheckpointConfig(Section):
    """What is kept to resume from."""

    every: int = pydantic.Field(default=20, ge=1)
    """Steps between checkpoints; the last step always leaves one."""
    keep: int = pydantic.Field(default=2, ge=1)
    """Latest checkpoints kept."""
