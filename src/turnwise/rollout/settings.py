"""Define the `[rollout]` section of a recipe."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import pydantic

from turnwise.base.errors import ConfigError
from turnwise.base.facets import Facet, Part
from turnwise.base.section import Named, Section, extensible
from turnwise.credit.options import check_names
from turnwise.rollout.facets import collector_parts
from turnwise.rollout.selection import build_selector

Model = TypeVar("Model", bound=pydantic.BaseModel)

EARLIER = "samples from earlier weights"
CORRECTS = "relates ratios to the probabilities that the engine reports"


class SelectConfig(Named):
    """Task selection: a name and its options (see `turnwise.rollout.selection`)."""

    name: str = "epochs"


class CollectorConfig(Named):
    """How a group is played: a name and its options."""

    name: str = "independent"


class StepBudgetConfig(Section):
    """Configure the budget that ends a step's rollout."""

    tokens: int | None = pydantic.Field(default=None, ge=1)
    """Generated tokens per step."""
    turns: int | None = pydantic.Field(default=None, ge=1)
    """Turns per step."""
    in_progress: int | None = pydantic.Field(default=None, ge=2)
    """Groups in progress at a time, more than `rollout.groups`. Default: twice as many."""

    learn: Literal["complete", "played"] = "complete"
    """What a step learns from. "complete": whole groups, once they have ended. "played": the tokens that the step has
    played, including those of half-played trajectories (T-PPO), for methods that value these by a critic.
    `rollout.groups` groups are then in progress, and a budget of tokens may end inside a response."""

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
        }
        needs = {
            Facet.TURNS: "lets trajectories wait, where an agent would keep its place",
            Facet.DISTRIBUTION: CORRECTS,
        }
        yield Part(self.setting, breaks, needs)
        if self.learn == "played":
            breaks = {
                Facet.WHOLE: "learns from half-played trajectories",
                Facet.CLOSED: "looks into trajectories while they are played",
                Facet.OUTCOMES: "learns before a group has its outcome",
            }
            needs = {Facet.TURNS: "looks into trajectories while they are played"}
            mend = "set rollout.step_budget.learn='complete'"
            yield Part("rollout.step_budget.learn='played'", breaks, needs, mend=mend)

    @property
    def setting(self) -> str:
        """The budget as a recipe writes it, for messages."""
        return f"rollout.step_budget.{'tokens' if self.tokens else 'turns'}={self.amount}"

    @property
    def amount(self) -> int:
        """Tokens or turns per step."""
        return self.tokens or self.turns or 0


@extensible("rollout")
class RolloutConfig(Section):
    """Settings of the rollouts."""

    works_with: ClassVar = {"window": ("context", ["window"])}

    groups: int = pydantic.Field(default=8, ge=1)
    """Groups per step, one task each."""
    group_size: int = pydantic.Field(default=8, ge=1)
    """Trajectories per task; with self-play, seats in its matches."""
    collector: CollectorConfig = CollectorConfig()
    """"independent": all trajectories of a group separately from the start. {name = "branching", rule = ...}:
    trajectories that fork from each other, by a rule such as "tree_grpo" (docs/how-to/branch.md). "arrol": trajectories
    that are pruned during generation (docs/how-to/branch.md). {name = "v0", least = ..., most = ..., sharpness = ...}:
    more of them for tasks predicted to teach more (docs/how-to/branch.md). "self_play": matches of the policy against
    itself and others (docs/how-to/games.md). Or your own as "module:function" (docs/how-to/extend.md)."""
    select: SelectConfig = SelectConfig()
    """"epochs": all tasks in turn, in a new random order each epoch. {name = "vade", observed_decay = ...,
    unobserved_decay = ...}: tasks that the policy sometimes solves."""
    filter: Literal["none", "mixed", "not-all-correct"] = "none"
    """Groups to learn from. "none": all; "mixed": those with a success and a failure (DAPO); "not-all-correct": those
    with a failure (NGRPO). More tasks are played to replace dropped groups."""
    filter_from: int = pydantic.Field(default=1, ge=1)
    """First step that filters; earlier steps learn from every group. SAMPO lets a policy learn for 15 steps first."""
    keep_spread: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Learn from the groups whose rewards differ most, until they make up this share of all groups' standard
    deviations; groups whose trajectories all earn the same are dropped (RAGEN-2, with 0.9). Dropped groups are not
    replaced. Default: all that pass `filter`."""
    max_batches: int = pydantic.Field(default=10, ge=1)
    """Largest number of batches of `groups` tasks that a step plays to find enough groups."""
    step_budget: StepBudgetConfig | None = None
    """End the rollout of a step after {turns = N} or {tokens = N} over all trajectories, once `groups` groups are
    complete. Half-played trajectories continue in the next step, on its weights (docs/how-to/play-ahead.md). Default:
    play every trajectory to its end."""
    max_lag: int = pydantic.Field(default=0, ge=0)
    """Steps by which rollouts may run ahead of the update, on the current weights; 0 plays each step's tasks inside the
    step. See docs/how-to/play-ahead.md."""
    order: Literal["started", "finished"] = "started"
    """Which groups a step learns from. "started": those that started first, whichever finish first, so steps do not
    depend on how fast episodes are. "finished": those that finish first, which is faster if episodes differ, but
    favours short ones and is not reproducible. A group is taken at most max_lag steps later than in the order of
    start. With `step_budget`, the oldest complete ones."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Sampling temperature, also for entropies and the loss; 1 leaves the policy unchanged."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Probability mass of the most likely tokens to sample from; 1 lets every token be sampled."""
    max_new_tokens: int = pydantic.Field(default=16, ge=1)
    """Maximum response length (tokens)."""
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
        if self.keep_spread is not None and self.group_size == 1:
            raise ValueError("rollout.keep_spread needs a rollout.group_size above 1: one reward has no spread")
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
            needs = {Facet.WHOLE: "drops groups by their outcomes"}
            yield Part(f"rollout.filter={self.filter!r}", needs=needs)
        if self.keep_spread is not None:
            needs = {Facet.WHOLE: "compares the rewards of groups"}
            yield Part(f"rollout.keep_spread={self.keep_spread}", needs=needs)
        if self.max_lag:
            breaks = {Facet.OUTCOMES: "plays ahead of the update", Facet.WEIGHTS: EARLIER}
            needs = {
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
        """The setting that makes steps learn from turns of earlier weights, for messages; empty if none."""
        if self.step_budget:
            return self.step_budget.setting
        return f"rollout.max_lag={self.max_lag}" if self.max_lag else ""

    def filter_at(self, step: int) -> Literal["none", "mixed", "not-all-correct"]:
        """Return the filter of groups at a step, counted from 1."""
        return self.filter if step >= self.filter_from else "none"


def checked_options(collector: str, kind: type[Model], options: Mapping[str, Any]) -> Model:
    """Return a collector's options as its own model, whose required fields have no published values.

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
