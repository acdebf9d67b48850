"""Names that become folders stay inside the folder that they are given for."""

import json
from importlib.metadata import distributions

import pytest

from tests.command_line.outcomes import refused
from tests.toys import small_config
from turnwise import __version__
from turnwise.base.checksums import KEY
from turnwise.base.errors import DISTRIBUTION, ConfigError
from turnwise.commands.cli import main
from turnwise.lab.diagnostics.study import load_study, slug
from turnwise.train.folder import RunFolder


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "a\\b", "..", ".", "", " ", "a\0b", "a\nb", "a\x1bb", "x/", "./x"]
)
def test_a_name_of_a_run_that_is_not_one_folder_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=r"run\.name"):
        small_config(tmp_path, run={"name": name})


@pytest.mark.parametrize("name", ["a", "a.b", "gigpo + aem", "äö", ".hidden", "a..b", "seed-01"])
def test_other_names_are_fine(name, tmp_path):
    assert small_config(tmp_path, run={"name": name}).run_folder == tmp_path / name


@pytest.mark.parametrize("folder", ["a\0b", "a\nb"])
def test_a_folder_that_no_system_takes_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"run\.folder"):
        small_config(tmp_path, run={"folder": folder})


def test_the_command_says_so_in_one_line(here, capsys):
    said = refused(capsys, "train", "tiny.toml", "run.name=../x")
    assert "run.name='../x' is not the name of one folder" in said
    assert "run.folder" in said


@pytest.mark.parametrize("arm", ["../x", "/tmp/x", "..", ".", "", "a\0b", "a\nb", "a/b"])
def test_arms_of_a_study_stay_in_its_folder(arm):
    assert slug(arm) not in ("", ".", "..")
    assert not {"/", "\\", "\0", "\n"} & set(slug(arm))


def test_a_run_of_an_earlier_version_with_a_path_as_its_name_still_opens(tmp_path):
    folder = RunFolder.create(small_config(tmp_path))
    path = folder.path / "config.json"
    record = json.loads(path.read_text())
    record.pop(KEY)
    record["config"]["run"] |= {"folder": str(tmp_path), "name": "sub/mine"}
    path.write_text(json.dumps(record))
    assert RunFolder.open(folder.path)[1].run_folder == tmp_path / "sub" / "mine"


def test_a_study_with_a_folder_that_no_system_takes_is_refused(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text('recipes = ["household-tiny-aem"]\nseeds = 1\nfolder = "a\\u0000b"\n[methods]\n"a" = []\n')
    with pytest.raises(ConfigError, match="folder"):
        load_study(study)


@pytest.mark.parametrize("name", ["...toml", " .toml", "a\x1bb.toml"])
def test_a_study_or_recipe_whose_file_names_no_folder_is_refused(name, tmp_path):
    content = '[environment]\noptions = { size = "tiny" }\n'
    (tmp_path / "tiny.toml").write_text(content)
    study = 'recipes = ["RECIPE"]\nseeds = 1\n[methods]\n"a" = []\n'
    (tmp_path / name).write_text(study.replace("RECIPE", "tiny.toml"))
    with pytest.raises(ConfigError, match="is not the name of one folder"):
        load_study(tmp_path / name)
    (tmp_path / name).write_text(content)
    (tmp_path / "study.toml").write_text(study.replace("RECIPE", name.replace("\x1b", "\\u001b")))
    with pytest.raises(ConfigError, match="is not the name of one folder"):
        load_study(tmp_path / "study.toml")


@pytest.mark.parametrize("name", [".jsonl", "..jsonl", ".", ".."])
def test_a_log_whose_name_names_no_run_asks_for_one(name, here, capsys):
    if name.endswith("l"):
        (here / name).write_text('{"messages": [], "reward": 1}\n')
    said = refused(capsys, "import", name)
    assert "--out FOLDER" in said
    assert not (here / "runs").exists()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", ".."])
def test_a_panel_is_a_name(name, capsys):
    assert f"there is no panel {name!r}" in refused(capsys, "compare", "a", "--panel", name, "--", "b")


def test_a_second_distribution_that_owns_the_module_is_named(tmp_path, monkeypatch, capsys):
    def versions() -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        assert ended.value.code == 0
        return capsys.readouterr()

    out, err = versions()
    assert out.startswith(f"turnwise {__version__}, Python ")
    assert bool(err) == any(distributions(name="turnwise"))
    for name, version in (("turnwise", "9.8.7"), ("turnwise_other", "1")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    again, told = versions()
    assert again == out
    assert told.startswith("turnwise: a distribution 'turnwise' 9.8.7 is installed here too, ")
    assert told.endswith(f"pip uninstall turnwise, and install {DISTRIBUTION} again\n")
    assert told.count("\n") == 1
