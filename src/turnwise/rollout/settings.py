"""Define the `[rollout]` and `[engine]` sections of a recipe."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from turnwise.base.errors import ConfigError
from turnwise.base.facets import Facet, Part, for_all
from turnwise.base.section import Named, Section
from turnwise.credit.options import check_names
from turnwise.rollout.facets import collector_parts
from turnwise.rollout.selection import build_selector

Model = TypeVar("Model", bound=pydantic.BaseModel)

EARLIER = "samples from earlier weights"
BETWEEN = "changes the weights between responses"
CORRECTS = "relates ratios to the probabilities that the engine reports"


class SelectConfig(Named):
    """Task selection: a name and its options (see `turnwise.rollout.selection`)."""

    name: str = "epochs"


class CollectorConfig(Named):
    """How a group is played: a name and its options."""

    name: str = "independent"


class TurnBudgetConfig(Section):
    """Configure a limit on turns below that of the environment."""

    name: Literal["fixed", "quantile"]
    """"fixed": the same limit always. "quantile": a quantile of the turns of past training trajectories."""
    turns: int | None = pydantic.Field(default=None, ge=1)
    """Turns of "fixed"."""
    quantile: float = pydantic.Field(default=0.75, gt=0, le=1)
    """Share of past trajectories that have at most as many turns as the limit."""
    extend: int = pydantic.Field(default=0, ge=0)
    """Turns by which a trajectory goes on at its limit, again and again, if one of its last `extend` turns earned a
    reward or reached a new state; 0: none."""
    history: int = pydantic.Field(default=512, ge=16)
    """Trajectories of which the quantile is taken, the latest ones."""
    free_every: int = pydantic.Field(default=8, ge=1)
    """One training trajectory of this many has no limit, and only these count. With limited ones among them, the
    limit could fall but never rise."""

    def parts(self) -> Iterator[Part]:
        """Return what the budget breaks and needs; see `turnwise.base.facets`."""
        needs = for_all("limits the turns of trajectories", Facet.TURNS, Facet.ANSWERS, Facet.SINGLE)
        needs[Facet.START] = "counts turns from the start of a task"
        breaks = {}
        if self.name == "quantile":
            needs[Facet.SEPARATE] = "lets some trajectories of a group go on without a limit"
            breaks = {Facet.REPLAY: "lifts the limit for some trajectories, which a replay would not"}
        yield Part(f"rollout.turn_budget.name={self.name!r}", breaks, needs)

    @pydantic.model_validator(mode="after")
    def _fixed_has_turns(self) -> "TurnBudgetConfig":
        if (self.name == "fixed") != (self.turns is not None):
            raise ValueError(
                f"rollout.turn_budget.turns={self.turns} with name={self.name!r}: set turns for 'fixed', and only there"
            )
        return self


class TokenTemperatureConfig(Section):
    """Configure a temperature per token, which follows the token's entropy."""

    name: Literal["hapo"]
    """"hapo": higher for tokens of high entropy, lower for those of low entropy (arXiv 2509.16591, its part A)."""
    strength: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Largest relative change of the temperature: 0.1 in the paper, 0.05 in its code."""
    quantile: float = pydantic.Field(default=0.8, ge=0, le=1)
    """Quantile of the last batch's entropies at which the temperature does not change."""
    sign: Literal["paper", "release"] = "paper"
    """"release": raise it at low entropies too, as the released code does."""

    def parts(self) -> Iterator[Part]:
        """Return what the temperatures need; see `turnwise.base.facets`."""
        needs = {
            Facet.ENGINE: "changes the temperature from token to token",
            Facet.SCORED: "has the engine sample at temperatures that are not the policy's",
        }
        yield Part(f"rollout.token_temperature.name={self.name!r}", needs=needs)


class StepBudgetConfig(Section):
    """Configure the budget that ends the rollout of a step."""

    tokens: int | None = pydantic.Field(default=None, ge=1)
    """Generated tokens per step."""
    turns: int | None = pydantic.Field(default=None, ge=1)
    """Turns per step."""
    in_progress: int | None = pydantic.Field(default=None, ge=2)
    """Groups in progress at a time, more than `rollout.groups`. Default: twice as many."""

    learn: Literal["complete", "played"] = "complete"
    """What a step learns from. "complete": whole groups, once they have ended. "played": the tokens that the step has
    played, also those of half-played trajectories (T-PPO), for methods that value these by a critic. `rollout.groups`
    groups are then in progress, and a budget of tokens may end inside a response."""

    @pydantic.model_validator(mode="after")
    def _counts_one_of_them(self) -> "StepBudgetConfig":
        if (self.tokens is None) == (self.turns is None):
            raise ValueError(
                f"rollout.step_budget has tokens={self.tokens} and turns={self.turns}; set exactly one of them"
            )
        return self

    def parts(self) -> Iterator[Part]:
        """Return what the budget breaks and needs; see `turnwise.base.facets`."""
        breaks = {
            Facet.OUTCOMES: "carries half-played groups from step to step",
            Facet.WEIGHTS: EARLIER,
            Facet.FREE: "lets trajectories wait",
        }
        needs = {
            Facet.TURNS: "lets trajectories wait, where an agent would keep its place",
            Facet.ROOM: BETWEEN,
            Facet.DISTRIBUTION: CORRECTS,
        }
        yield Part(self.setting, breaks, needs)
        if self.learn == "played":
            breaks = {
                Facet.WHOLE: "learns from half-played trajectories",
                Facet.COLLECTED: "looks into trajectories while they are played",
                Facet.OUTCOMES: "learns before a group has its outcome",
            }
            needs = {Facet.TURNS: "looks into trajectories while they are played"}
            mend = "set rollout.step_budget.learn='complete'"
            yield Part("rollout.step_budget.learn='played'", breaks, needs, mend=mend)

    @property
    def setting(self) -> str:
        """The budget as a recipe says it, for messages."""
        return f"rollout.step_budget.{'tokens' if self.tokens else 'turns'}={self.amount}"

    @property
    def amount(self) -> int:
        """Tokens or turns per step."""
        return self.tokens or self.turns or 0


class RolloutConfig(Section):
    """Settings of the rollouts."""

    groups: int = pydantic.Field(default=8, ge=1)
    """Groups per step, one task each."""
    group_size: int = pydantic.Field(default=8, ge=1)
    """Trajectories per task; with self-play, seats of its matches."""
    collector: CollectorConfig = CollectorConfig()
    """"independent": all trajectories of a group separately from the start. {name = "branching", rule = ...}:
    trajectories that fork from each other, by a rule such as "tree_grpo" (docs/how-to/branch.md). "arrol":
    trajectories that are pruned while they are generated (docs/how-to/branch.md). {name = "v0", least = ...,
    most = ..., sharpness = ...}: more of them for tasks that are predicted to teach more (docs/how-to/branch.md).
    "self_play": matches of the policy against itself and others (docs/how-to/games.md)."""
    select: SelectConfig = SelectConfig()
    """"epochs": all tasks in turn, in an order drawn anew each epoch. {name = "vade", observed_decay = ...,
    unobserved_decay = ...}: tasks that the policy sometimes solves."""
    filter: Literal["none", "mixed", "not-all-correct"] = "none"
    """Groups to learn from: "none", all; "mixed", those with a success and a failure (DAPO); "not-all-correct", those
    with a failure (NGRPO). Further tasks are played to replace dropped groups."""
    filter_from: int = pydantic.Field(default=1, ge=1)
    """First step that filters; those before learn from every group. SAMPO lets a policy learn 15 steps first."""
    keep_spread: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Learn from the groups whose rewards differ most, until they make up this share of all groups' standard
    deviations; groups whose trajectories all earn the same are dropped (RAGEN-2, which has 0.9). Dropped groups are not
    replaced. Default: all that pass `filter`."""
    max_batches: int = pydantic.Field(default=10, ge=1)
    """Largest number of batches of `groups` tasks that a step plays to fill the filter."""
    turn_budget: TurnBudgetConfig | None = None
    """Limit on turns: {name = "fixed", turns = 6} or {name = "quantile", extend = 2} (docs/how-to/turn-budgets.md)."""
    step_budget: StepBudgetConfig | None = None
    """End the rollout of a step after {turns = N} or {tokens = N} over all trajectories, once `groups` groups are
    complete. Half-played trajectories go on in the next step, on its weights (docs/how-to/play-ahead.md). Default: play
    every trajectory to its end."""
    max_lag: int = pydantic.Field(default=0, ge=0)
    """Steps by which rollouts may run ahead of the update, on the weights there are; 0 plays each step's tasks inside
    the step. See docs/how-to/play-ahead.md."""
    order: Literal["started", "finished"] = "started"
    """Which groups a step learns from. "started": those that were started first, whichever are done first, so that
    steps do not depend on how fast episodes are. "finished": those that are done first, which is faster where episodes
    differ, but prefers short ones and does not repeat."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Sampling temperature. Entropies and the loss are computed at it too; 1 leaves the policy as it is."""
    token_temperature: TokenTemperatureConfig | None = None
    """Temperature per token on top of `temperature`: {name = "hapo"}. Training only. The loss is still that of the
    policy at `temperature`; `update.mismatch_cap` or `update.old_policy = "behavior"` corrects for the difference."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Probability mass of the likeliest tokens to sample from; 1 keeps all, so that every token can be sampled."""
    max_new_tokens: int = pydantic.Field(default=16, ge=1)
    """Longest response (tokens)."""
    stop: tuple[str, ...] = ()
    """Texts that end a response, in addition to the model's own stop token, such as "</action>"."""
    context: Literal["append", "window"] = "append"
    """"append": the whole conversation, one growing sequence per trajectory. "window": the first observation, the last
    `window` observations and responses, and the latest observation, one sequence per response."""
    window: int = pydantic.Field(default=2, ge=0)
    """Observations and responses that context = "window" repeats."""

    @property
    def remembered(self) -> int | None:
        """Size of the window; None for the whole conversation."""
        return self.window if self.context == "window" else None

    @pydantic.model_validator(mode="after")
    def _groups_can_be_chosen(self) -> "RolloutConfig":
        build_selector(self.select.name, self.select.model_extra or {}, num_tasks=1, seed=0)
        if self.filter == "mixed" and self.group_size == 1:
            raise ValueError("rollout.filter='mixed' needs a rollout.group_size above 1: one trajectory is never mixed")
        if self.filter_from > 1 and self.filter == "none":
            raise ValueError(f"rollout.filter_from={self.filter_from} needs a filter; set rollout.filter=mixed")
        return self

    @pydantic.model_validator(mode="after")
    def _a_step_budget_has_room(self) -> "RolloutConfig":
        if self.step_budget is None:
            return self
        places = self.groups * self.group_size
        if self.learns_played and self.step_budget.in_progress is not None:
            raise ValueError(
                f"rollout.step_budget.learn='played' has rollout.groups={self.groups} groups in progress; remove "
                "in_progress"
            )
        if self.learns_played and self.step_budget.amount < places:
            raise ValueError(
                "rollout.step_budget.learn='played' needs a budget of one or more for each of the "
                f"{places} trajectories in progress, got {self.samples_earlier}; raise it"
            )
        if not self.learns_played and self.in_progress <= self.groups:
            raise ValueError(
                f"rollout.step_budget.in_progress={self.in_progress}: expected more than rollout.groups={self.groups}, "
                "else each step waits for all of them"
            )
        return self

    def parts(self) -> Iterator[Part]:
        """Return what the rollouts break and need; see `turnwise.base.facets`."""
        yield from collector_parts(self.collector.name, self.collector.model_extra or {})
        yield from super().parts()
        if self.filter != "none":
            drops = {Facet.GROUPS: "drops groups by their outcomes"}
            needs = {Facet.WHOLE: "drops groups by their outcomes"}
            yield Part(f"rollout.filter={self.filter!r}", drops, needs)
        if self.keep_spread is not None:
            compares = "compares the rewards of groups"
            needs = {Facet.WHOLE: compares, Facet.ANSWERS: compares}
            yield Part(
                f"rollout.keep_spread={self.keep_spread}", {Facet.GROUPS: "drops groups by their rewards"}, needs
            )
        if self.max_lag:
            breaks = {Facet.OUTCOMES: "plays ahead of the update", Facet.WEIGHTS: EARLIER}
            needs = {
                Facet.WHOLE: "plays whole groups of later steps",
                Facet.ROOM: BETWEEN,
                Facet.DISTRIBUTION: CORRECTS,
            }
            yield Part(f"rollout.max_lag={self.max_lag}", breaks, needs)
        if self.top_p < 1:
            breaks = {Facet.DISTRIBUTION: "samples from a truncated distribution"}
            yield Part(f"rollout.top_p={self.top_p:g}", breaks, mend="set rollout.top_p=1")
        if self.context != "append":
            yield Part(f"rollout.context={self.context!r}", needs={Facet.TURNS: "makes prompts of the last turns"})

    @property
    def learns_played(self) -> bool:
        """Whether steps learn from what they have played, also of half-played trajectories."""
        return self.step_budget is not None and self.step_budget.learn == "played"

    @property
    def in_progress(self) -> int:
        """Groups in progress at a time with a step budget."""
        if self.learns_played:
            return self.groups
        given = self.step_budget and self.step_budget.in_progress
        return 2 * self.groups if given is None else given

    @property
    def samples_earlier(self) -> str:
        """The setting with which steps learn from turns that earlier weights sampled, for messages; empty if none."""
        if self.step_budget:
            return self.step_budget.setting
        return f"rollout.max_lag={self.max_lag}" if self.max_lag else ""

    def filter_at(self, step: int) -> Literal["none", "mixed", "not-all-correct"]:
        """Return the filter of groups at a step, counted from 1."""
        return self.filter if step >= self.filter_from else "none"


class ContinuationsConfig(Section):
    """Configure continuations: the policy plays on from the turns of each trajectory, for values by Monte Carlo."""

    number: int = pydantic.Field(default=9, ge=1)
    """Continuations per state; 9 in VinePPO, 9 or 4 in SPO. A state that trajectories share is continued once."""
    turns: int | None = pydantic.Field(default=None, ge=1)
    """Continue from the first turns only, which bounds the cost of long trajectories (VinePPO: 20). Default: all."""
    cut_every: int = pydantic.Field(default=5, ge=1)
    """Cut a trajectory before the first token that was unlikely and every N-th after it, for methods that value states
    inside responses (`spo_chain`): 5 in SPO for short answers, 40 for long ones."""
    cut_below: float = pydantic.Field(default=0.9, gt=0, le=1)
    """Probability below which a token counts as unlikely."""
    at_once: int | None = pydantic.Field(default=None, ge=1)
    """Continuations played concurrently. Default: as many as a step has trajectories, which fit into memory."""

    def parts(self) -> Iterator[Part]:
        """Return what continuations need; see `turnwise.base.facets`."""
        needs = {
            Facet.REPLAY: "plays on from turns, as the policy would",
            Facet.WHOLE: "plays on from whole trajectories",
        }
        yield Part("[continuations]", needs=needs)


class EngineConfig(Section):
    """Settings of the engine that generates the responses."""

    name: Literal["local", "server"] = "local"
    """"local": transformers in this process. "server": vLLM over HTTP, see docs/how-to/vllm.md."""
    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Conversations that the local engine holds at a time, which bounds its memory; further ones wait. Default: all.
    The fields below are only for the server."""
    url: str = pydantic.Field(default="http://127.0.0.1:8000", pattern=r"^https?://[^/]")
    """Address of the server."""
    max_concurrent: int = pydantic.Field(default=256, ge=1)
    """Concurrent requests to the server; further ones wait."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Longest time for one answer of the server (seconds)."""
    patience_s: float = pydantic.Field(default=600.0, ge=0)
    """Time for which a failed request is retried (seconds); then the run ends, and can be resumed."""
    sync_folder: Path | None = None
    """Folder for new weights that trainer and server both see under this path. Default: a temporary folder."""

    def parts(self) -> Iterator[Part]:
        """Return what the engine breaks; see `turnwise.base.facets`."""
        if self.name == "server":
            breaks = {Facet.ENGINE: "serves one version of the weights without entropies"}
            yield Part("engine.name='server'", breaks, mend="set engine.name=local")
        if self.max_rows is not None:
            breaks = {Facet.ROOM: "lets responses wait for whole trajectories"}
            yield Part(f"engine.max_rows={self.max_rows}", breaks, mend="remove engine.max_rows")


def checked_options(collector: str, kind: type[Model], options: Mapping[str, Any]) -> Model:
    """Return the options of a collector as its model of them, whose required fields have no published values.

    Raises:
        ConfigError: An option is unknown, missing or impossible.
    """
    check_names(f"rollout.collector={collector!r}", options, kind.model_fields)
    try:
        return kind.model_validate(options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        if first["type"] == "missing":
            raise ConfigError(
                f"rollout.collector={collector!r} needs the option {name!r}; no value is published, choose one"
            ) from None
        raise ConfigError(f"rollout.collector.{name}={options[str(name)]!r}: {first['msg']}") from None
