"""Name everything outside the core: environments, and extensions of a recipe. Nothing else in the core names one.

A part is a place, `module:attribute` below the package. It is imported when a recipe asks for it.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any


class Register(Mapping[str, Any]):
    """Look parts up by name; the values are imported when they are asked for."""

    def __init__(self, places: Mapping[str, str]):
        self.places = dict(places)

    def __getitem__(self, name: str) -> Any:
        return find(self.places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def find(place: str) -> Any:
    """Import what stands at a place."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(f"turnwise.{module}"), attribute)


@dataclasses.dataclass(frozen=True)
class Entry:
    """An extension that a section of a recipe adds."""

    settings: str  # class of the section. Its module does not import torch.
    extension: str  # class of what it adds to a run, a `turnwise.train.extension.Extension`
    about: str  # what the section is for, in the reference of settings
    noun: str = ""  # what measures ask, in words; empty if they do not ask it
    example: str = ""  # A setting that asks for it
    repeats: bool = False  # whether it needs environments that repeat
    term: str = ""  # class of the loss term that a section of `[update]` adds
    loss: str = ""  # name of a loss term that it adds


EXTENSIONS: dict[str, Entry] = {
    "harness": Entry(
        "extensions.gateway.settings:HarnessConfig",
        "extensions.gateway.agents:PlayedByAgents",
        "Your own agent, which plays the trajectories instead of turnwise's loop of observation and response.",
    ),
    "reward_model": Entry(
        "extensions.reward_model.settings:RewardModelConfig",
        "extensions.reward_model.model:Implicit",
        "A second model whose log-probabilities reward responses, for the method `istar`. Default: none.",
        noun="a reward model",
        example="reward_model.learning_rate=NUMBER",
    ),
    "teacher": Entry(
        "extensions.teacher.settings:TeacherConfig",
        "extensions.teacher.extension:TeacherExtension",
        "The policy of another run, which scores each token, for the method `opd`. Default: none.",
        noun="a teacher",
        example="teacher.run=runs/NAME",
    ),
    "judge": Entry(
        "extensions.judge.settings:JudgeConfig",
        "extensions.judge.judge:Judging",
        "A judge of trajectories, for methods that need its verdicts. Default: none.",
        noun="a judge",
        example="judge.model=NAME or judge.run=module:function",
    ),
    "continuations": Entry(
        "extensions.continuations.settings:ContinuationsConfig",
        "extensions.continuations.play:Continued",
        "Continuations from every turn, for methods that need values, instead of a critic. Default: none.",
        noun="continuations",
        example="continuations.number=9",
        repeats=True,
    ),
    "store": Entry(
        "extensions.stores.settings:StoreConfig",
        "extensions.stores.extension:Stored",
        "Store of the run's own trajectories, which later steps use again. Default: none.",
    ),
    "demonstrations": Entry(
        "extensions.demonstrations.settings:DemonstrationsConfig",
        "extensions.demonstrations.extension:DemonstrationsExtension",
        "Demonstrations that teach tasks during training. Default: none.",
        loss="imitation",
    ),
    "monitor": Entry(
        "extensions.monitor.settings:MonitorConfig",
        "extensions.monitor.monitor:Monitored",
        "Monitor of the mutual information between responses and their contexts. Default: none.",
    ),
    "rollout.turn_budget": Entry(
        "extensions.turn_budget.settings:TurnBudgetConfig",
        "extensions.turn_budget.budget:TurnBudgetExtension",
        'Limit on turns: {name = "fixed", turns = 6} or {name = "quantile", extend = 2} '
        "(docs/how-to/other-ways-to-learn.md).",
    ),
    "rollout.token_temperature": Entry(
        "extensions.token_temperature.settings:TokenTemperatureConfig",
        "extensions.token_temperature.tempering:PerToken",
        'Temperature per token on top of `temperature`: {name = "hapo"}. Training only. The loss is still that of the '
        'policy at `temperature`; `update.mismatch_cap` or `update.old_policy = "behavior"` corrects for the '
        "difference.",
    ),
    "update.preference": Entry(
        "extensions.preference.settings:PreferenceConfig",
        "train.extension:Extension",
        'Loss on pairs from a group: {name = "simpo"} or {name = "dpo"}.',
        term="extensions.preference.term:PreferenceTerm",
        loss="preference",
    ),
    "update.passes": Entry(
        "extensions.passes.settings:PassesConfig",
        "extensions.passes.passes:ByTurns",
        'Passes over the turns, each a separate update: {name = "seeupo"}.',
    ),
}
"""Extensions by the key of their section, in the order in which they wrap each other."""

ENGINES = Register(
    {
        "local": "engines.settings:LocalEngineConfig",
        "server": "engines.settings:ServerEngineConfig",
        "tinker": "extensions.tinker.settings:TinkerEngineConfig",
    }
)
"""Engines by the name that `engine.name` takes: settings, whose `make` makes the engine."""

SELECTORS = Register({"epochs": "rollout.selection:Epochs", "vade": "extensions.vade.selector:Vade"})
"""Selectors of tasks by the name that `rollout.select` takes."""

TAKES = Register({"complete": "rollout.take:WholeGroups", "played": "extensions.played.take:PlayedTokens"})
"""What steps learn from, by the name that `rollout.step_budget.learn` takes."""

METER = "extensions.step_budget.line:Meter"
"""Divides the budget of `rollout.step_budget` among the trajectories in flight."""

COLLECTORS = Register(
    {
        "independent": "rollout.collectors:Independent",
        "branching": "extensions.branching.collector:make_branching",
        "arrol": "extensions.arrol.collector:Pruning",
        "v0": "extensions.v0.collector:make_allotted",
        "self_play": "extensions.self_play.collector:SelfPlay",
    }
)
"""Collectors by the name that `rollout.collector` takes."""
COLLECTOR_PARTS = Register({name: f"extensions.{name}.facets:parts" for name in COLLECTORS if name != "independent"})
"""Functions that return the parts that a collector adds to a recipe, by its name; see `turnwise.base.facets`."""

MEASURES = Register(
    {
        "continued": "extensions.continuations.measures:continued",
        "continued_cuts": "extensions.continuations.measures:continued_cuts",
        "rank": "extensions.judge.measures:rank",
        "progress": "extensions.judge.measures:progress",
        "rubric": "extensions.judge.measures:rubric",
        "implicit": "extensions.reward_model.measures:implicit",
        "teacher": "extensions.teacher.measures:teacher",
    }
)
"""Measures of extensions by name."""

TERMS = {entry.loss: key for key, entry in EXTENSIONS.items() if entry.loss}
"""Loss terms of extensions, and the settings that add them."""

TOKEN_RULES = Register(
    {
        "clip_cov": "extensions.token_rules.covariance:clip_cov",
        "kl_cov": "extensions.token_rules.covariance:kl_cov",
        "steer": "extensions.token_rules.steer:steer",
        "spo_mask": "extensions.token_rules.masks:spo_mask",
        "d3s_mask": "extensions.token_rules.masks:d3s_mask",
        "hapo": "extensions.token_rules.hapo:hapo",
        "flexible_clip": "extensions.token_rules.flexible:flexible_clip",
        "repo": "extensions.token_rules.repo:repo",
        "adapo": "extensions.token_rules.adapo:adapo",
        "gain_clip": "extensions.token_rules.gain_clip:gain_clip",
    }
)
"""Token rules by the name that `update.tokens` takes."""
ENTROPY_RULES = Register({"epo": "extensions.token_rules.epo:epo"})
"""Entropy rules by the name that `update.entropy` takes."""

ENVIRONMENTS: dict[str, tuple[str, str]] = {
    "household": ("worlds.alfworld.suite:Household", "worlds.alfworld.generate:generate_game"),
    "alfworld": ("worlds.alfworld.suite:Alfworld", "worlds.alfworld.files:find_games"),
    "webshop": ("worlds.webshop.suite:Webshop", "worlds.webshop.shop:load_shop"),
    "search_qa": ("worlds.search_qa.suite:SearchQa", ""),
    "swe": ("worlds.swe.suite:Swe", ""),
    "gymnasium": ("worlds.adapters.gymnasium:Gymnasium", ""),
    "openenv": ("worlds.adapters.openenv:OpenEnv", ""),
    "verifiers": ("worlds.adapters.verifiers:Verifiers", ""),
    "harbor": ("worlds.harbor.suite:Harbor", ""),
    "mcp": ("worlds.adapters.mcp:Mcp", ""),
    "crossroads": ("worlds.crossroads.suite:Crossroads", "worlds.crossroads.knobs:Knobs"),
    "seats": ("worlds.seats.suite:Seats", ""),
    "helpdesk": ("worlds.helpdesk.suite:Helpdesk", ""),
    "frozen_lake": ("worlds.grids.frozen_lake:FrozenLake", ""),
    "sokoban": ("worlds.grids.sokoban:Sokoban", "worlds.grids.sokoban:random_room"),
    "scienceworld": ("worlds.scienceworld.suite:Scienceworld", ""),
    "textworld": ("worlds.adapters.textworld:Textworld", ""),
    "textarena": ("worlds.adapters.textarena:Textarena", ""),
}
"""Environments by name: the suite, and the function that takes its further options."""
CONVERSATIONS = {
    "read": "extensions.gateway.taught:read_conversations",
    "encoder": "extensions.gateway.taught:encoder",
}
"""Read recorded conversations for `warmstart.demonstrations`, and tokenise them."""
PANELS = "worlds.panels:PANELS"
"""Named evaluation panels."""
GIVEN_BY = {"gold": "search_qa", "role": "seats"}
"""Environments that give keys of `Step.info` that measures read."""
DIRECTIONS = "worlds.directions:DirectedSuite"
"""Pays one of several rewards, for `environment.direction`."""
