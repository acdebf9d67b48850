"""Self-play: evaluations, and settings that cannot work."""

import pytest
from tests.rollout.matches import KUHN, collector, models, play, run_config
from tests.toys import small_config

from turnwise.base.errors import ConfigError
from turnwise.config import parse_config
from turnwise.rollout.plays import play_tasks
from turnwise.train.loop import train
from turnwise.worlds.seats.base import ROLES


def test_an_evaluation_is_played_as_its_tasks_say():
    tasks = [KUHN.tasks("valid")[number] for number in range(6)]
    played = play_tasks(collector(), models(), tasks, seed=0, group_size=1)
    assert [one.info["role"] for one in played] == [ROLES[task.players.index("policy")] for task in tasks]
    assert all("actor" not in one.info for one in played)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ["frist"]}, r"there is no seat 'frist'. Did you mean 'first'\?"),
        ({"train": "first"}, "train='first': expected a list of different seats"),
        ({"train": []}, "expected a list of different seats"),
        ({"past": 1.5}, "past=1.5: expected a share from 0 to 1"),
        ({"past": 0.6, "random": 0.6}, "exceed 1"),
        ({"pasts": 0.2}, r"'self_play' has no option 'pasts'. Did you mean 'past'\?"),
        ({"every": 0}, "every=0: expected a whole number of 1 or more"),
        ({"keep": 2.5}, "keep=2.5: expected a whole number"),
        ({"size": 7}, "rollout.group_size=7 counts the seats of whole matches, expected a multiple of 2"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        play(1, **options)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"group_size": 7}, "rollout.group_size=7 counts the seats of whole matches, expected a multiple of 2"),
        ({"collector": {"name": "self_play", "train": ["frist"]}}, r"there is no seat 'frist'. Did you mean 'first'\?"),
        ({"collector": {"name": "self_play", "train": 5}}, "train=5: expected a list of different seats"),
    ],
)
def test_seats_that_the_game_has_not_are_refused_before_anything_is_made(rollout, message, tmp_path):
    config = run_config(tmp_path, method="mars", rollout=rollout)
    with pytest.raises(ConfigError, match=message):
        train(config)
    assert not config.run_folder.exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"name": "server"}, "collector": {"past": 0.5}}, "'server' serves one version"),
    ],
)
def test_settings_with_which_players_cannot_meet_are_refused(sections, message):
    rollout = {"collector": {"name": "self_play", **sections.pop("collector", {})}}
    with pytest.raises(ConfigError, match=message):
        parse_config({"environment": {"name": "seats"}, "rollout": rollout, **sections})


def test_rollouts_ahead_cannot_copy_weights():
    settings = {"collector": {"name": "self_play", "past": 0.5}, "max_lag": 1}
    with pytest.raises(ConfigError, match=r"rollout.max_lag=1 .*, and rollout.collector.past=0.5 copies weights"):
        parse_config({"environment": {"name": "seats"}, "rollout": settings})


def test_an_environment_without_seats_is_refused_before_anything_is_made(tmp_path):
    config = small_config(tmp_path, rollout={"collector": {"name": "self_play"}})
    with pytest.raises(ConfigError, match=r"needs an environment with seats, and 'tests\.toys:Colors' has none"):
        train(config)
    assert not config.run_folder.exists()
