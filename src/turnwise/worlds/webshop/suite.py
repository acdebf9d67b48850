"""Suite of WebShop: tasks are goals, environments share one shop."""

import functools
import random
from collections.abc import Sequence
from typing import Any

from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.needs import check_choices
from turnwise.environments.settings import EnvironmentConfig
from turnwise.worlds.webshop.buyer import Buyer, noise_action
from turnwise.worlds.webshop.environment import CHOICES, WebshopEnvironment, understood
from turnwise.worlds.webshop.goals import split_goals
from turnwise.worlds.webshop.shop import Visit, load_shop
from turnwise.worlds.webshop.short import spaceless
from turnwise.worlds.webshop.vocabulary import words


class Webshop:
    """WebShop, found through WEBSHOP_DATA.

    Options: data, splits, observation, reward, attributes_page, state_key, and those of `load_shop`.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        data: str | None = None,
        splits: str = "papers",
        observation: str = "text",
        reward: str = "success",
        attributes_page: bool = False,
        state_key: str = "observation",
        **options: Any,
    ):
        check_choices(CHOICES, observation=observation, reward=reward, state_key=state_key)
        self._config, self._splits = config, splits
        self._options: dict[str, Any] = {"observation": observation, "reward": reward, "state_key": state_key}
        self._options["attributes_page"] = attributes_page
        self._shop = functools.cache(functools.partial(load_shop, data, **options))

    def preload(self) -> None:
        """Load the shop."""
        self._shop()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split."""
        return split_goals(self._shop()[1], split, self._splits)

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        limits = {"max_steps": self._config.max_steps, "success_reward": self._config.success_reward}
        return WebshopEnvironment(self._shop()[0], task, **limits, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return f"{task.number}-{task.asin}"

    def words(self) -> list[str]:
        """Return every word of the shop's pages and instructions."""
        shop, goals = self._shop()
        return words(shop.products.values(), goals)

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let the scripted buyer play a task."""
        return self._lead(task, seed, noise=noise)

    def correct(self, task: Task, played: Sequence[str], *, seed: int) -> list[Demonstrated] | None:
        """Let the scripted buyer go on after a policy's responses; None if it does not buy what was asked for."""
        return self._lead(task, seed, after=played)

    def _lead(
        self, task: Task, seed: int, *, noise: float = 0.0, after: Sequence[str] = ()
    ) -> list[Demonstrated] | None:
        """Play given responses, then let the buyer play; None if it does not get the full reward."""
        shop, rng = self._shop()[0], random.Random(seed)
        visit, buyer = Visit(shop, task, with_attributes=self._options["attributes_page"]), Buyer(shop, task)
        turns: list[Demonstrated] = []
        while visit.score is None and len(turns) < self._config.max_steps:
            advice = buyer.act(visit)
            if len(turns) < len(after):
                played = after[len(turns)]
            else:
                played = noise_action(visit, rng) if rng.random() < noise else advice
            turns.append(Demonstrated(played, spaceless(played) == spaceless(advice)))
            visit.act(understood(played, visit, self._options["observation"]))
        return turns if visit.score and visit.score.total == 1 else None
