"""Define the sections `[model]`, `[prompt]` and `[critic]` of a recipe."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pydantic

from turnwise.base.facets import Facet, Part, broken
from turnwise.base.section import Kinds, Section
from turnwise.models import subgoals

TINY = ("tiny", "tiny-chat")
"""Models made from scratch."""
ONLY_TINY = ("hidden_size", "num_layers", "num_heads", "tie_embeddings")
"""Settings of the tiny model's architecture."""
REASON = "Reason between <think> and </think>, then say one action between <action> and </action>."
"""What the system message ends with if `prompt.think`."""
ADAPTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Name of an adapter, which also names its folder."""
PRETRAINED_RECIPE = "household-qwen2.5-1.5b-aem"
"""Recipe that loads a model from the hub or a folder, for messages."""


def is_missing_folder(name: str) -> bool:
    """Return whether a model's name can only mean a folder, and there is none.

    Names on the hub are NAME or OWNER/NAME.
    """
    path = Path(name)
    return not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1)


class ModelConfig(Section):
    """Configure the policy, a causal LM."""

    works_with: ClassVar = {
        "top_layers": ("train", ["top"]),
        "lora_rank": ("train", ["lora"]),
        "lora_alpha": ("train", ["lora"]),
    }

    name: str = "tiny"
    """Model to train. "tiny": a small Llama with random weights, one token per word. "tiny-chat": one that can call
    tools, with the vocabulary of `warmstart.demonstrations`.
    "smollm2": SmolLM2-135M-Instruct; `turnwise get-model smollm2` fetches it, the extra `smollm2` has the packages that
    load it. Otherwise the folder of a chat model, or its name on Hugging Face's hub."""
    max_context: int = pydantic.Field(default=1024, ge=16)
    """Maximum conversation length (tokens)."""
    train: Literal["full", "top", "lora"] = "full"
    """Trainable weights: all ("full"), the upper layers ("top"), or low-rank adapters of all linear layers ("lora")."""
    top_layers: int = pydantic.Field(default=10, ge=1)
    """Trainable layers with train = "top"; embeddings stay fixed."""
    lora_rank: int = pydantic.Field(default=16, ge=1)
    """Rank of the adapters with train = "lora"."""
    lora_alpha: int = pydantic.Field(default=32, ge=1)
    """Scale of the adapters, as lora_alpha / lora_rank."""
    adapters: tuple[str, ...] = ()
    """An adapter per role, such as ["planner", "worker"]: a call's header X-Turnwise-Actor names the role that asks.
    Each has its own gradient clip, optimiser state and credit; a warm start trains one, and copies it to all. Only with
    train = "lora" and [harness]. Default: one for all."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """"bf16" scores and updates under autocast and generates with bfloat16 weights; the optimiser keeps float32.
    "auto": "bf16" if the device is fast at it, else "fp32"."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    hidden_size: int = pydantic.Field(default=64, ge=8)
    """Hidden size (units). Only for `tiny`."""
    num_layers: int = pydantic.Field(default=2, ge=1)
    """Number of layers. Only for `tiny`."""
    num_heads: int = pydantic.Field(default=4, ge=1)
    """Number of attention heads. Only for `tiny`."""
    tie_embeddings: bool = False
    """Share weights between input and output embeddings. Only for `tiny`."""

    @pydantic.model_validator(mode="after")
    def _tiny_is_possible(self) -> "ModelConfig":
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of 2 * num_heads={2 * self.num_heads}")
        if self.name in TINY and self.train == "lora":
            raise ValueError(
                f"model.train='lora' needs a pretrained model; with model.name={self.name!r} use 'full' or 'top'"
            )
        if self.adapters and self.train != "lora":
            raise ValueError(f"model.adapters needs model.train='lora', got {self.train!r}; set it")
        if self.adapters and self.gradient_checkpointing:
            raise ValueError("model.gradient_checkpointing would compute again with another role's adapter; remove it")
        if (
            len(set(self.adapters)) < len(self.adapters)
            or not all(map(ADAPTER.fullmatch, self.adapters))
            or "default" in self.adapters  # peft's name of an adapter without a role
        ):
            raise ValueError(
                f"model.adapters={list(self.adapters)}: expected names of letters, digits, - and _, once each, not "
                "'default'"
            )
        defaults = {name: type(self).model_fields[name].default for name in ONLY_TINY}
        if self.name not in TINY and (set_ := [name for name in ONLY_TINY if getattr(self, name) != defaults[name]]):
            given = ", ".join(f"model.{name}" for name in set_)
            reset = " ".join(f"model.{name}={str(defaults[name]).lower()}" for name in set_)
            verb = "is" if len(set_) == 1 else "are"
            raise ValueError(
                f"{given} {verb} only for model.name='tiny', got name={self.name!r}; start from a recipe for a "
                f"pretrained model, such as {PRETRAINED_RECIPE}, or add {reset}"
            )
        return self

    def check_recipe(self, recipe: Any) -> None:
        """Raise a ValueError if nobody names the roles of adapters, or a critic reads the states of one model."""
        if not self.adapters:
            return
        if not broken(Facet.TURNS, recipe.parts()):
            raise ValueError("model.adapters: only an agent of your own names who asks; add its section, or remove it")
        if recipe.critic:
            raise ValueError("model.adapters: a critic would read the states of all roles; remove it or model.adapters")

    def parts(self) -> Iterator[Part]:
        """Return what the model breaks and needs; see `turnwise.base.facets`."""
        if self.name == "tiny":
            yield Part("model.name='tiny'", {Facet.CHAT: "is not a chat model"})
        if self.train == "lora":
            yield Part("model.train='lora'", {Facet.UNFROZEN: "trains adapters alone"})
        if self.adapters:
            apart = {Facet.REPLAY: "learns from the turns of each role apart", Facet.ALIKE: "has weights per role"}
            yield Part("model.adapters", apart)
        if self.train != "full":
            yield Part(f"model.train={self.train!r}", needs={Facet.HERE: "chooses among them"}, mend="set it to full")


class PromptConfig(Section):
    """Configure what a policy reads in addition to observations, and writes in addition to actions."""

    system: str = ""
    """System message; empty: the chat template's default."""
    admissible: bool = False
    """List the admissible actions in the prompt, if the environment provides them."""
    think: bool = False
    """Ask for reasoning: <think>...</think><action>...</action>. Otherwise a response is only the action."""
    plan: bool = False
    """Ask for a subgoal: <switch>KEEP or SWITCH</switch><subgoal>...</subgoal><action>...</action>. The prompt shows
    the current one. HiPER needs it. Works with `tiny` too, after a warm start."""

    @property
    def message(self) -> str:
        """Return the system message, with what it says of the form of responses; empty: the template's default."""
        form = REASON if self.think else subgoals.INSTRUCTION if self.plan else ""
        return "\n\n".join(filter(None, (self.system, form)))

    @pydantic.model_validator(mode="after")
    def _one_form(self) -> "PromptConfig":
        if self.think and self.plan:
            raise ValueError("prompt.think and prompt.plan ask for different responses; remove one of them")
        return self

    def parts(self) -> Iterator[Part]:
        """Return what each setting needs; see `turnwise.base.facets`."""
        for name in ("system", "admissible", "think"):
            if value := getattr(self, name):
                given = f"prompt.{name}={str(value).lower() if value is True else repr(value)}"
                yield Part(given, needs={Facet.CHAT: "is for chat models"}, mend=f"remove prompt.{name}")
        if self.plan:
            asks = "asks for a subgoal in each prompt"
            yield Part("prompt.plan=true", needs={Facet.TURNS: asks})


class CriticConfig(Kinds):
    """Configure the critic, which estimates returns for methods that need values."""

    named_by: ClassVar[str] = "kind"
    kind: str = "head"
    """"head": a value head on the policy's hidden states. "model": a separate model with a value head. "ridge": ridge
    regression on the policy's hidden states of the last steps, without gradient."""
    read: Literal["before", "after"] = "before"
    """Where columns per response are read: at the last token of the prompt ("before"), or at the last token of the
    response ("after"), where the value has seen the action. `value_T` is always read before every token, `value_action`
    after the response, and HiPER's `value_high` and `value_switch` before the response, `value_low` before its
    action."""
    target: Literal["method", "return"] = "method"
    """What the critic learns: the method's own target, such as advantage + value of GAE, or the discounted return.
    Methods without their own target use the return. With ArCHer, "method" means temporal differences."""
    discount: float = pydantic.Field(default=1.0, ge=0, le=1)
    """Discount per turn, with target = "return" (give it the method's discount) and for ArCHer's Q (0.95 in the
    paper)."""
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    """Initial training steps where only the critic learns."""


class LearnedCriticConfig(CriticConfig):
    """Settings of critics trained by gradient."""

    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    """Learning rate of the critic's own AdamW."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    """Weight decay of the critic's own AdamW, per unit of the learning rate."""
    max_grad_norm: float = pydantic.Field(default=1.0, gt=0)
    """Norm to which the critic's gradient is clipped, separately from the policy's."""
    extra_epochs: int = pydantic.Field(default=0, ge=0)
    """Additional passes of the critic alone over each step's trajectories, before the policy's update. With ArCHer,
    whose critic does not learn in the policy's passes, they follow its own `update.epochs` passes."""
    clip: float | None = pydantic.Field(default=None, gt=0)
    """Largest change of a value in one training step that the loss rewards, as in PPO; default no limit."""
    target_every: int = pydantic.Field(default=0, ge=0)
    """Read values from a copy of the critic, renewed every N optimiser steps; 0 reads the critic itself."""
    target_rate: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Read values from a copy that moves towards the critic by this share after every optimiser step. ArCHer reads the
    critic itself; its Q and V learn from the copy, with 0.1 if neither this nor `target_every` is set."""
    transitions: int = pydantic.Field(default=100_000, ge=1)
    """Responses of earlier steps that ArCHer's critic learns from again."""
    width: int = pydantic.Field(default=0, ge=0)
    """Units in the value head's hidden layer; 0: the head is linear."""

    @pydantic.model_validator(mode="after")
    def _one_copy(self) -> "LearnedCriticConfig":
        given = {"target_every": self.target_every, "target_rate": self.target_rate}
        both = [*(name for name, value in given.items() if value), *(["clip"] if self.clip is not None else [])]
        if len(both) > 1:
            names = " and ".join(f"critic.{name}" for name in both)
            raise ValueError(f"{names} exclude each other; choose one")
        return self


class HeadCriticConfig(LearnedCriticConfig, kind="head"):
    """Settings of "head"."""

    trunk_gradient: float = pydantic.Field(default=0.0, ge=0)
    """Weight of the value loss in the gradient of the policy's hidden layers; 0 keeps it out."""


class ModelCriticConfig(LearnedCriticConfig, kind="model"):
    """Settings of "model"."""

    name: str = "policy"
    """The critic's model. "policy": a copy of the policy after the warm start. "tiny": a small Llama with random
    weights. Otherwise the folder of a model with the policy's tokenizer, or its name on the hub."""
    hidden_size: int = pydantic.Field(default=64, ge=8)
    """Hidden size (units) of name = "tiny"."""
    num_layers: int = pydantic.Field(default=2, ge=1)
    """Number of layers of name = "tiny"."""
    num_heads: int = pydantic.Field(default=4, ge=1)
    """Number of attention heads of name = "tiny"."""

    @pydantic.model_validator(mode="after")
    def _tiny_is_possible(self) -> "ModelCriticConfig":
        for field in ("hidden_size", "num_layers", "num_heads"):
            if self.name != "tiny" and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"critic.{field} is only for name='tiny', got name={self.name!r}; remove it")
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"critic.hidden_size={self.hidden_size} must be a multiple of 2 * num_heads={2 * self.num_heads}"
            )
        return self


class RidgeCriticConfig(CriticConfig, kind="ridge"):
    """Settings of "ridge"."""

    memory: int = pydantic.Field(default=5, ge=1)
    """Number of past steps to fit."""
    penalty: float = pydantic.Field(default=1e-2, gt=0)
    """Penalty, relative to the mean variance of a hidden unit."""
    prior_groups: float | None = pydantic.Field(default=None, gt=0)
    """Instead of `penalty`: number of groups that the penalty counts as. The fewer are remembered, the closer values
    stay to the mean."""
    peers: bool = False
    """Regress also on the mean return of the group's other trajectories, which says how hard the task is, and on its
    products with the hidden states (docs/decisions/0047-a-critic-may-look-at-the-group.md)."""
    visits: bool = False
    """With `peers`, also see how the others fared from the same state on, which turn it is, and whether the trajectory
    has been in this state before (docs/decisions/0048-a-critic-may-see-visits.md)."""

    @pydantic.model_validator(mode="after")
    def _visits_are_those_of_peers(self) -> "RidgeCriticConfig":
        if self.visits and not self.peers:
            raise ValueError("critic.visits compares with critic.peers; set critic.peers=true too")
        return self

    def parts(self) -> Iterator[Part]:
        """Return what the critic needs; see `turnwise.base.facets`."""
        yield Part(
            f"critic.kind={self.kind!r}", needs={Facet.HERE: "reads their hidden states"}, mend="set critic=false"
        )
        if self.peers:
            alone = {Facet.SINGLE: "reads the returns of others in the group, which tell those of a match's players"}
            yield Part("critic.peers=true", needs=alone, mend="set critic.peers=false and critic.visits=false")
        if self.visits:
            needs = {Facet.WHOLE: "counts visits from the first turn on"}
            yield Part("critic.visits=true", needs=needs, mend="set critic.visits=false")
