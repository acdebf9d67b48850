"""Matches of self-play, as tests play them."""

from typing import Any

from tests.toys import small_config

from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.models.settings import ModelConfig
from turnwise.models.tiny import tiny_policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.worlds.seats.suite import Seats

MODEL = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_context=256)


def suite(game: str = "kuhn", **options: Any) -> Seats:
    config = EnvironmentConfig(name="seats", max_steps=21, success_reward=1.0)
    return Seats(config, game=game, opponent="random", **options)


KUHN = suite()
POLICY = tiny_policy(KUHN.words(), MODEL, seed=3)


def collector(size: int = 8, made: Seats = KUHN, **options: Any):
    settings = RolloutConfig.model_validate(
        {"collector": {"name": "self_play", **options}, "group_size": size, "max_new_tokens": 2}
    )
    return make_collector(settings, InProcessEnvironments(made.environment), made.task_name)


def models(engine: Any = None) -> Models:
    made = Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model)))
    made.publish()
    return made


def play(num_tasks: int = 3, *, size: int = 8, seed: int = 0, made: Seats = KUHN, engine: Any = None, **options: Any):
    tasks = [made.tasks("train")[number] for number in range(num_tasks)]
    return play_tasks(collector(size, made, **options), models(engine), tasks, seed=seed)


def run_config(folder, **further: Any):
    sections: dict[str, Any] = {
        "environment": {
            "name": "seats",
            "max_steps": 8,
            "success_reward": 1.0,
            "options": {"game": "kuhn", "opponent": "random"},
        },
        "model": {"max_context": 256},
        "rollout": {"groups": 6, "group_size": 8, "max_new_tokens": 2, "collector": {"name": "self_play"}},
        "evaluate": {"every": 0, "episodes": 4, "final_episodes": 4, "temperature": 1.0},
        "checkpoint": {"every": 1, "keep": 9},
        "method": "grpo",
    }
    for name, section in further.items():
        both = isinstance(section, dict) and isinstance(sections.get(name), dict)
        sections[name] = {**sections[name], **section} if both else section
    return small_config(folder, **sections)
