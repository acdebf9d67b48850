"""Panels: a name stands for the same tasks for ever."""

import hashlib
from typing import Any

import pytest
from tests.needs import skip_without

from turnwise.base.errors import ConfigError, DataError
from turnwise.config import load_config
from turnwise.environments.suites import make_suite
from turnwise.train.evaluation.panels import PANELS, check_tasks, find_panel, on_panel, task_digest

OPENINGS = {
    "household-compact-valid-256": "d1f4f5daf08fa337",
    "household-tiny-valid-256": "b28ca9ae9f9a1133",
    "household-medium-valid-256": "e20198ce9d0d3767",
    "frozen_lake-4x4-valid-256": "aae614562c7c6366",
    "sokoban-6x6-valid-256": "7b4efce50d7e1097",
}
"""Digest of the first observations. If a generator change alters one, rename the panel: old results differ."""


def games(name: str):
    """The suite of a panel and its tasks, as `turnwise eval` finds them."""
    panel, config = find_panel(name), on_panel(load_config(None), name)
    suite = make_suite(config.environment)
    tasks = suite.tasks(panel.split)
    wanted = panel.episodes or len(tasks)
    return suite, [tasks[index * len(tasks) // wanted] for index in range(wanted)]


@pytest.mark.parametrize("name", OPENINGS)
def test_generated_panels_are_the_games_they_were(name):
    if what := find_panel(name).needs:
        skip_without(what)
    suite, tasks = games(name)
    check_tasks(name, [suite.task_name(task) for task in tasks])
    starts: list[Any] = [suite.environment(task).start() for task in tasks]
    texts = [step.observation for step in starts]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == OPENINGS[name]


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, panel in PANELS.items() if panel.needs.endswith("_DATA")])
def test_panels_of_files_are_the_tasks_they_were(name):
    variable = find_panel(name).needs
    skip_without(variable)
    try:
        suite, tasks = games(name)
    except DataError as error:
        pytest.skip(f"{variable} has no such split: {error}")
    check_tasks(name, [suite.task_name(task) for task in tasks])
    if find_panel(name).episodes:
        with pytest.raises(DataError, match=f"{variable} is complete"):
            check_tasks(name, [suite.task_name(task) for task in tasks[1:]])


def test_every_panel_says_what_it_is():
    for name, panel in PANELS.items():
        assert name.startswith(f"{panel.environment}-")
        assert panel.episodes is None or str(panel.episodes) in name
        assert not set(panel.options) & set(panel.keeps)
        assert len(panel.seeds) == len(set(panel.seeds)) >= 1


def test_a_panel_replaces_the_environment_and_keeps_the_way_to_read_it():
    overrides = [
        "environment.name=webshop",
        "environment.options.observation=text_rich",
        "environment.options.goals=human",
    ]
    overrides += [
        "environment.options.seed=5",
        "environment.max_steps=3",
        "environment.workers=2",
        "evaluate.temperature=0.7",
    ]
    config = on_panel(load_config(None, overrides), "webshop-test-500", ["environment.options.attributes_page=true"])
    environment = config.environment
    assert (environment.name, environment.eval_split, environment.max_steps, environment.workers) == (
        "webshop",
        "test",
        15,
        2,
    )
    assert environment.options["observation"] == "text_rich"
    assert environment.options["attributes_page"] is True
    assert (environment.options["goals"], environment.options["seed"]) == ("synthetic", 0)
    assert config.evaluate.temperature == 0.7


def test_options_of_another_environment_are_not_carried_over():
    config = on_panel(
        load_config(None, ["environment.options.size=large", "environment.options.num_objects=[9, 9]"]),
        "household-tiny-valid-256",
    )
    assert config.environment.options == dict(PANELS["household-tiny-valid-256"].options)
    other = load_config(None, ["environment.name=gymnasium", "environment.options.id=FrozenLake-v1"])
    assert "id" not in on_panel(other, "frozen_lake-4x4-valid-256").environment.options


@pytest.mark.parametrize(
    "override",
    [
        "environment.name=household",
        "environment.max_steps=99",
        "environment.eval_split=train",
        "environment.options={}",
        "environment.options.size=small",
        " environment.options.rooms=['kitchen']",
    ],
)
def test_what_a_panel_fixes_cannot_be_overridden(override):
    with pytest.raises(ConfigError, match="the panel 'household-tiny-valid-256' fixes environment"):
        on_panel(load_config(None), "household-tiny-valid-256", [override])


def test_an_unknown_panel_names_a_known_one():
    with pytest.raises(ConfigError, match=r"no panel 'webshop-test-50'. Did you mean 'webshop-test-500'\?"):
        find_panel("webshop-test-50")


def test_other_tasks_are_refused():
    suite, tasks = games("sokoban-6x6-valid-256")
    names = [suite.task_name(task) for task in tasks]
    assert task_digest(names) == PANELS["sokoban-6x6-valid-256"].digest
    with pytest.raises(DataError, match="has 256 tasks, but 255 were found"):
        check_tasks("sokoban-6x6-valid-256", [*names[:-1], names[0]])
    with pytest.raises(DataError, match="have the digest ac716d7c9aa157e2, but those found have"):
        check_tasks("sokoban-6x6-valid-256", [*names[:-1], "another"])
    with pytest.raises(DataError, match="those found have"):
        check_tasks("sokoban-6x6-valid-256", names[::-1])
