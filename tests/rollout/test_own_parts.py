"""Engines and collectors of the user's own, by `module:function`."""

import pytest
from tests.toys import small_config

from turnwise.base.errors import ConfigError
from turnwise.config import load_config, override_config
from turnwise.engines.settings import EngineConfig, LocalEngineConfig
from turnwise.train.loop import train

ENGINE = """
from turnwise.engines.build import make_engine
from turnwise.engines.settings import LocalEngineConfig

calls = []

def local(policy, *, note):
    calls.append(note)
    return LocalEngineConfig().make(policy)
"""
COLLECTOR = """
from turnwise.rollout.collectors import Independent

played = []

class Noting(Independent):
    def __init__(self, environments, settings, task_name=str, *, mark):
        super().__init__(environments, settings, task_name)
        self.mark = mark

    async def play(self, group):
        played.append(self.mark)
        return await super().play(group)

nothing = 3
"""


def results(config):
    metrics = train(config).metrics()
    return [{k: v for k, v in each.items() if not k.startswith(("time/", "memory/"))} for each in metrics]


def test_parts_of_your_own_play_as_those_that_they_use(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_engine.py").write_text(ENGINE)
    (tmp_path / "own_collector.py").write_text(COLLECTOR)
    plain = small_config(tmp_path)
    engine = override_config(plain, ["run.name=engine", "engine.name=own_engine:local", "engine.options.note=7"])
    collector = override_config(
        plain, ["run.name=collector", 'rollout.collector={name="own_collector:Noting",mark="x"}']
    )
    expected = results(plain)
    assert results(engine) == expected
    assert results(collector) == expected
    import own_collector
    import own_engine

    assert own_engine.calls == [7]
    assert set(own_collector.played) == {"x"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.collector=own_collector:nothing"], "is a int, expected a class or a function"),
        (["rollout.collector=own_collector:Noting"], "needs the option 'mark'"),
        (
            ['rollout.collector={name="own_collector:Noting",mark=1,marks=2}'],
            "has no option 'marks'. Did you mean 'mark'",
        ),
        (["rollout.collector=own_collector:Notin"], "has no 'Notin'. Did you mean 'Noting'"),
        (["rollout.collector=branchin"], "Did you mean 'branching'\\? Your own is 'module:function'"),
        (["engine.name=own_collector:nothing"], "is a int, expected a class or a function"),
        (["engine.name=own_collector:Noting", "engine.options.mork=3"], "has no option 'mork'"),
        (["engine.name=own_engines:local"], "cannot import 'own_engines'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, overrides, message):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_collector.py").write_text(COLLECTOR)
    with pytest.raises(ConfigError, match=message):
        train(override_config(small_config(tmp_path), overrides))


def test_an_engine_that_is_misspelt_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown engine\.name 'loca'\. Did you mean 'local'"):
        load_config(None, ["engine.name=loca"])


def test_one_override_changes_the_engine():
    assert load_config(None, ["engine.max_rows=4", "engine.name=server"]).engine == EngineConfig(name="server")
    assert EngineConfig() == LocalEngineConfig()
