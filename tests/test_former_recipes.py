"""Recipes, overrides and run folders of versions up to 0.2, in which the key `aem` put AEM around the method."""

import json
from pathlib import Path

import pytest

from tests.toys import small_config
from turnwise.base.checksums import KEY
from turnwise.base.errors import ConfigError, FormerWarning
from turnwise.commands.cli import main
from turnwise.config import load_config, override_config, parse_config
from turnwise.integrations.verl_estimator import configured
from turnwise.train.folder import RunFolder

ON_GIGPO = {"name": "aem", "base": {"name": "gigpo", "discount": 0.5}, "temperature": 2.0}
FORMER = {
    "GRPO by default": ({"aem": True}, {"name": "aem", "base": {"name": "grpo"}}, '"grpo+aem"'),
    "none": ({"aem": False}, {"name": "grpo"}, '"grpo"'),
    "by name": ({"method": "gigpo", "aem": True}, {"name": "aem", "base": {"name": "gigpo"}}, '"gigpo+aem"'),
    "not by name": ({"method": "gigpo", "aem": False}, {"name": "gigpo"}, '"gigpo"'),
    "options of both": (
        {"method": {"name": "gigpo", "temperature": 2.0, "discount": 0.5}, "aem": True},
        ON_GIGPO,
        '{ name = "gigpo+aem", ... }',
    ),
    "no name, options": (
        {"method": {"temperature": 2.0}, "aem": True},
        {"name": "aem", "base": {"name": "grpo"}, "temperature": 2.0},
        '{ name = "grpo+aem", ... }',
    ),
    "the name said it": ({"method": ON_GIGPO, "aem": True}, ON_GIGPO, '{ name = "gigpo+aem", ... }'),
    "the name said it, the key did not": ({"method": "aem", "aem": False}, {"name": "aem"}, '"aem"'),
    "on a mix": (
        {"method": {"name": "mix", "parts": ["grpo"]}, "aem": True},
        {"name": "aem", "base": {"name": "mix", "parts": ["grpo"]}},
        '{ name = "mix+aem", ... }',
    ),
    "as a word": ({"method": "rloo", "aem": "off"}, {"name": "rloo"}, '"rloo"'),
    "on top of a new recipe": ({"method": "gigpo+aem", "aem": True}, {"name": "aem", "base": {"name": "gigpo"}}, '"gi'),
    "off a new recipe": ({"method": "gigpo+aem", "aem": False}, {"name": "gigpo"}, '"gigpo"'),
}


@pytest.mark.parametrize("case", FORMER)
def test_the_key_is_read_as_it_was_meant_and_the_line_says_how_to_write_it(case):
    data, method, written = FORMER[case]
    with pytest.warns(FormerWarning) as caught:
        config = parse_config(data)
    assert config.method.model_dump() == method
    assert len(caught) == 1
    assert f"it means method = {written}" in str(caught[0].message)


@pytest.mark.parametrize("case", FORMER)
def test_what_the_line_says_to_write_trains_the_same(case):
    data = FORMER[case][0]
    with pytest.warns(FormerWarning):
        config = parse_config(data)
    assert parse_config({"method": config.method.written}).method == config.method


def test_a_recipe_without_a_method_is_grpo(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[run]\nsteps = 3\n")
    assert load_config(recipe).label == "grpo"
    assert parse_config({}).label == "grpo"


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["aem=false"], "grpo"),
        (["aem=true"], "grpo + aem"),
        (["method=gigpo", "aem=false"], "gigpo"),
        (["aem=true", "method=gigpo"], "gigpo + aem"),
    ],
)
def test_old_commands_on_recipes_of_today_train_what_they_trained(overrides, label):
    with pytest.warns(FormerWarning):
        assert load_config(Path("household-tiny-aem"), overrides).label == label
    with pytest.warns(FormerWarning):
        assert override_config(load_config(Path("household-tiny-aem")), overrides).label == label


def test_an_old_recipe_that_extends_one_of_today_trains_what_it_trained(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "household-tiny-aem"\naem = false\n')
    with pytest.warns(FormerWarning):
        assert load_config(recipe).label == "grpo"


@pytest.mark.parametrize("overrides", [["method=gigpo+aem", "aem=false"], ["aem = false", "method.name='gigpo+aem'"]])
def test_a_contradiction_is_refused(overrides):
    with pytest.raises(ConfigError, match=r"method=gigpo\+aem includes AEM, but aem=false removes it; remove one"):
        load_config(None, overrides)


def test_an_option_of_aem_without_it_is_an_error_as_it_was():
    with pytest.raises(ConfigError, match="method 'grpo' has no option 'temperature'"), pytest.warns(FormerWarning):
        parse_config({"method": {"temperature": 2.0}, "aem": False})


def test_a_run_folder_is_read_without_a_word(tmp_path):
    made = RunFolder.create(small_config(tmp_path, method="gigpo+aem")).path / "config.json"
    record = json.loads(made.read_text())
    assert record["config"]["method"] == {"name": "aem", "base": {"name": "gigpo"}}, "as versions up to 0.2 wrote it"
    del record[KEY]
    for aem, label in ((True, "rloo + aem"), (False, "rloo")):  # of version 0.1
        record["config"] |= {"method": {"name": "rloo"}, "aem": aem}
        made.write_text(json.dumps(record))
        assert RunFolder.open(made.parent)[1].label == label  # a warning would be an error here


def test_verls_configuration_is_read_too():
    with pytest.warns(FormerWarning, match='it means method = "gigpo\\+aem"'):
        former = configured({"method": "gigpo", "aem": True, "options": {"temperature": 0.5, "discount": 0.9}})
    assert former.name == configured({"method": "gigpo+aem", "options": {"temperature": 0.5, "discount": 0.9}}).name
    with pytest.warns(FormerWarning):
        assert configured({"aem": True}, "rloo").name == configured({"method": "rloo+aem"}, "rloo").name
    with pytest.raises(ConfigError, match=r"names 'rloo', but algorithm.turnwise.method='gigpo\+aem'"):
        configured({"method": "gigpo+aem"}, "rloo")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    small = small_config(tmp_path).model_dump(mode="json")
    del small["method"]
    sections = {name: section for name, section in small.items() if isinstance(section, dict)}

    def train(config, display, **_):
        display.count("demonstrations", 1, 1)
        return RunFolder(config.run_folder)

    monkeypatch.setattr("turnwise.train.loop.train", train)
    lines = [f"{name} = {as_toml(section)}" for name, section in sections.items()]
    (tmp_path / "mine.toml").write_text("\n".join(lines) + "\n")
    return tmp_path


def as_toml(value) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{name} = {as_toml(each)}" for name, each in value.items() if each is not None)
        return f"{{ {inner} }}"
    return json.dumps(value)


def notes(capsys) -> list[str]:
    """The notes but for the one that every run begins with: what a step costs."""
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    return [line for line in told if not line.startswith("note: each step plays ")]


def test_the_command_line_prints_one_note(here, capsys):
    assert main(["train", "mine.toml", "aem=true", "method=gigpo"]) == 0
    [note] = notes(capsys)
    assert note == (
        'note: aem = true is how versions up to 0.2 wrote it: it means method = "gigpo+aem"; write that, without aem'
    )
    assert main(["train", "mine.toml", "aem=perhaps"]) == 2
    assert capsys.readouterr().err == 'turnwise: aem: expected true or false, got "perhaps"\n'


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["mine.toml"], "grpo"),
        (["mine.toml", "method=gigpo"], "gigpo"),
        (["household-tiny-aem", "method.name=gigpo"], "gigpo"),
    ],
)
def test_training_says_that_aem_is_no_longer_added(arguments, name, here, capsys):
    assert main(["train", *arguments]) == 0
    [note] = notes(capsys)
    assert note == (
        f"note: method {name!r} is trained as named; up to version 0.2 AEM was added to it unless the recipe said "
        f'aem = false. For that, write method = "{name}+aem"'
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine.toml", "method=grpo+aem"],
        ["mine.toml", "method=empg"],
        ["household-tiny-aem"],
        ["household-tiny-turn-ppo"],
    ],
)
def test_training_says_nothing_where_nothing_changed(arguments, here, capsys):
    assert main(["train", *arguments]) == 0
    assert notes(capsys) == []
