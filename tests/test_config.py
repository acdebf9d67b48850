"""The configuration: what is wrong is said in one line, with what may have been meant."""

import json
from pathlib import Path

import pytest

from turnwise.base.errors import ConfigError
from turnwise.config import Config, load_config, override_config, parse_config
from turnwise.train.credit import make_transform

RECIPES = sorted(Path(__file__).parents[1].glob("recipes/*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(recipe):
    config = load_config(recipe)
    assert config.run.name == recipe.stem
    assert parse_config(json.loads(config.model_dump_json())) == config


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('method = "grpo"\n[run]\nsteps = 7\n[environment]\noptions = { size = "tiny" }\n')
    return path


def test_a_run_is_named_after_its_recipe_unless_it_has_a_name(recipe):
    assert load_config(recipe).run_folder == Path("runs/mine")
    assert load_config(recipe, ["run.name=other", "run.folder=/data"]).run_folder == Path("/data/other")


def test_overrides_win_in_their_order(recipe):
    config = load_config(recipe, ["run.steps=8", "run.steps=9", "environment.options.num_train=5", "update.kl=1e-3"])
    assert (config.run.steps, config.update.kl) == (9, 0.001)
    assert config.environment.options == {"size": "tiny", "num_train": 5}


def test_texts_and_paths_need_no_quotes():
    server = ["engine.name=server", "engine.sync_folder=/x"]
    config = load_config(None, ["run.name=1e3", "run.folder=007", "log.wandb=true", *server, "run.steps=3"])
    assert (config.run.name, config.run.folder, config.run.steps) == ("1e3", Path("007"), 3)
    assert (config.log.wandb, config.engine.sync_folder) == ("true", Path("/x"))
    assert load_config(None, ['run.name="0"']).run.name == "0"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("environment.name=household", "household"),
        ("environment.name='household'", "household"),
        ("environment.name = household", "household"),
        ("environment.name=module:factory", "module:factory"),
        ("environment.name=a=b", "a=b"),
        ("environment.name=", ""),
    ],
)
def test_bare_words_are_texts(override, value):
    assert load_config(None, [override]).environment.name == value


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("rune.steps=3", r"unknown key 'rune'. Did you mean 'run'\?"),
        ("run.stepz=3", r"unknown key 'run.stepz'. Did you mean 'steps'\?"),
        ("zzz=red", r"unknown key 'zzz'. Known: checkpoint, "),
        ("run.steps=many", r'run.steps: expected a whole number, got "many"'),
        ("run.steps=2.5", r"run.steps: expected a whole number, got 2.5"),
        ("run.steps=-1", r"run.steps: .*greater than or equal to 0, got -1"),
        ("run.seed=-1", r"run.seed: .*greater than or equal to 0, got -1"),
        ("rollout.top_p=1.5", r"rollout.top_p: .*less than or equal to 1, got 1.5"),
        ("update.learning_rate=0", r"update.learning_rate: .*greater than 0, got 0"),
        ("update.learning_rate=nan", r"update.learning_rate: .*finite number"),
        ("update.entropy_bonus=inf", r"update.entropy_bonus: .*finite number"),
        ("update.aggregate=mean", r"update.aggregate: .*'token-mean'.*, got \"mean\""),
        ("aem=perhaps", r'aem: expected true or false, got "perhaps"'),
        ("run=3", r"run: .*, got 3"),
        ("environment.options=3", r"environment.options: .*, got 3"),
        ("run.steps.more=3", "steps is a value, not a section"),
        ("environment.options.size.x=3", "size is a value, not a section"),
        ("model.hidden_size=20", r"hidden_size=20 must be a multiple of 2 \* num_heads=8"),
        ("method=gippo", r"unknown method 'gippo'. Did you mean 'gigpo'\?"),
        ("method=3", r"method: .*, got 3"),
        ("method.discount=0.5", r"method 'grpo' has no option 'discount'"),
        ("method={name='grpo+aem', temperature='hot'}", r"method option aem.temperature='hot': expected float"),
        ("method={name='grpo+aem', temperature=true}", r"method option aem.temperature=True: expected float"),
        ("run.steps", "override 'run.steps' does not have the form section.key=value"),
        ("=3", "does not have the form section.key=value"),
        (".=3", "does not have the form section.key=value"),
        (".steps=5", "does not have the form section.key=value"),
        ("run..steps=5", "does not have the form section.key=value"),
        ("method=GRPO", r"unknown method 'GRPO'. Did you mean 'grpo'\?"),
        ('method={"name":"grpo"}', 'is not a value of TOML; write tables as {name = "grpo"}'),
        ("measures=[entropy]", r'lists as \["a", "b"\], in quotes'),
        ("method={name='grpo+aem', temperature=nan}", "method option aem.temperature=nan: expected a finite number"),
        ("method={name='grpo+aem', temperature=inf}", "method option aem.temperature=inf: expected a finite number"),
        ("run.seed=100000000000000000000000000", "run.seed: Input should be less than 4294967296"),
        ("rollout.max_new_tokens=1024", "leaves no room for an observation in model.max_context=1024 tokens"),
    ],
)
def test_what_is_wrong_is_one_clear_line(recipe, override, where):
    with pytest.raises(ConfigError, match=where) as caught:
        load_config(recipe, [override])
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("run = ", "mine.toml is not valid TOML: "),
        ("run = 3", "run: .*, got 3"),
        ("steps = 3", r"unknown key 'steps'"),
        ("[run]\nstep = 3", r"unknown key 'run.step'. Did you mean 'steps'\?"),
        ("\xff", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_is_one_clear_line(recipe, text, where):
    recipe.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=where) as caught:
        load_config(recipe)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_names_one_that_is_there(recipe):
    with pytest.raises(
        ConfigError, match=r"cannot read the recipe .*/mime.toml: No such file .* Did you mean 'mine.toml'\?"
    ):
        load_config(recipe.with_name("mime.toml"))
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        load_config(recipe.parent / "nowhere" / "mine.toml")
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*: Is a directory"):
        load_config(recipe.parent)


def test_a_run_in_place_of_a_recipe_is_told_how_to_go_on(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is a run, not a recipe; resume it with `turnwise train --resume .*`"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "grpo(convention='turnwise')"),
        (
            ["method=grpo+aem"],
            "aem(grpo(convention='turnwise'), temperature=1.0, scope='group', min_range=0.1, shuffle=False, seed=0, "
            "keep='all')",
        ),
        (
            ["method=gigpo"],
            "gigpo(discount=0.95, weight=1.0, scale=True, similarity=None, convention='turnwise')",
        ),
        (
            ["method=gigpo", "method.discount=0.5"],
            "gigpo(discount=0.5, weight=1.0, scale=True, similarity=None, convention='turnwise')",
        ),
        (["method.name=rloo"], "rloo(convention='turnwise')"),
        (
            ["method=grpo+aem", "method.temperature=0.5"],
            "aem(grpo(convention='turnwise'), temperature=0.5, scope='group', min_range=0.1, shuffle=False, seed=0, "
            "keep='all')",
        ),
        (
            ["method=rloo+aem", "method.scope=batch"],
            "aem(rloo(convention='turnwise'), temperature=1.0, scope='batch', min_range=0.1, shuffle=False, seed=0, "
            "keep='all')",
        ),
        (
            ["method=aem"],
            "aem(temperature=1.0, scope='group', min_range=0.1, shuffle=False, seed=0, keep='all')",
        ),
        (
            ["method.name=reinforce+aem", "method.temperature=2.0"],
            "aem(reinforce(discount=1.0), temperature=2.0, scope='group', min_range=0.1, shuffle=False, seed=0, "
            "keep='all')",
        ),
    ],
)
def test_overrides_of_the_method_do_what_they_say(recipe, overrides, name):
    assert make_transform(load_config(recipe, overrides).method).name == f"chain({name}, add_penalty(weight=1.0))"


def test_an_option_of_a_modifier_without_it_is_said_so(recipe):
    with pytest.raises(
        ConfigError,
        match=r"method 'grpo' has no option 'temperature'; aem, empg and hcapo have it, as in method = .grpo\+aem.",
    ):
        load_config(recipe, ["method=grpo", "method.temperature=0.5"])


@pytest.mark.parametrize("base", ["gigpo", "turn_ppo", "rtmc", "grpo+aem"])
def test_a_modifier_of_whole_trajectories_is_refused_around_credit_that_varies_within_them(base):
    """Fails if the first to try them is a run, after its warm start and its first rollout."""
    method = {"name": f"{base}+d3s", "kept_frac": 0.5}
    expected = r"different credit, and keep_extremes in it compares .*; set method.over='responses', choose .* grpo, or"
    with pytest.raises(ConfigError, match=expected):
        parse_config({"method": method})
    parse_config({"method": {**method, "over": "responses"}})
    parse_config({"method": method, "environment": {"max_steps": 1}})
    parse_config({"method": {**method, "name": "grpo+d3s"}})


def test_a_configuration_is_frozen_and_survives_its_own_dump():
    config = load_config(None, ["method=gigpo", "method.discount=0.5", "run.folder=/data"])
    assert parse_config(config.model_dump(mode="json")) == config
    with pytest.raises(ValueError, match="frozen"):
        config.run.steps = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_overriding_a_configuration_leaves_it_alone():
    config = Config()
    assert override_config(config, ["run.steps=3"]).run.steps == 3
    assert config.run.steps == 60
    assert override_config(config, []) == config


def test_false_leaves_out_an_optional_section(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "household-tiny-visits"\ncritic = false\nmethod = "grpo"\n')
    extended, without = load_config(Path("household-tiny-visits")), load_config(own)
    assert extended.critic is not None
    assert without.critic is None
    assert without == load_config(Path("household-tiny-visits"), ["critic=false", "method=grpo", "run.name=own"])
    assert load_config(own, ["critic.kind=ridge", "critic.target=return"]).critic is not None
    assert override_config(extended, ["critic=false", "method=grpo"]).critic is None
    with pytest.raises(ConfigError, match="update: expected a table, got false"):
        load_config(own, ["update=false"])


def test_false_leaves_out_what_a_section_may_lack(tmp_path):
    """Within sections too; but where `false` is a value, it stays one."""
    passes = load_config(Path("household-tiny-seeupo"))
    assert passes.update.passes is not None
    without = load_config(Path("household-tiny-seeupo"), ["update.passes=false", "update.dual_clip=false"])
    assert without.update == passes.update.model_copy(update={"passes": None})
    again = load_config(Path("household-tiny-seeupo"), ["update.passes=false", "update.passes.name=seeupo"])
    assert again.update == passes.update
    store = "store={name='slea_rl', extract='rule', actions=2, capacity=8, evaluate=false}"
    slea = load_config(Path("household-tiny-aem"), [store, "method=grpo"])
    assert slea.store is not None
    assert slea.store.evaluate is False
    for setting in ("log.wandb", "engine.sync_folder"):
        assert override_config(passes, [f"{setting}=mine", f"{setting}=false"]) == passes
    assert override_config(passes, ["log.wandb='false'"]).log.wandb == "false"
    assert override_config(passes, ["run.name=false"]).run.name == "false"
    with pytest.raises(ConfigError, match=r"update\.epochs: .*, got false"):
        load_config(None, ["update.epochs=false"])
    with pytest.raises(ConfigError, match=r"'update\.kl=0\.1': update is a value, not a section"):
        load_config(None, ["update=false", "update.kl=0.1"])


@pytest.mark.parametrize("name", ["old_policy", "mismatch_cap"])
def test_false_is_no_correction_of_ratios(name):
    plain = load_config(None, ["rollout.max_lag=1"])
    assert plain.update.old_policy == "behavior"
    assert load_config(None, ["rollout.max_lag=1", f"update.{name}=false"]) == plain


RLEP = {"name": "rlep", "capacity": 4, "replays": 2}


def test_a_section_of_several_kinds_has_the_fields_of_its_kind():
    config = parse_config({"store": RLEP, "critic": {}, "method": "gae"})
    assert set(config.model_dump()["store"]) == {*RLEP, "per_task", "max_age", "start", "damaged"}
    assert "memory" not in config.model_dump()["critic"]
    assert parse_config(config.model_dump(mode="json")) == config


def test_what_earlier_versions_recorded_is_read_as_one_kind():
    """They wrote the options of every kind, with their defaults."""
    others = {"tau": None, "transcript": None, "cap": 30, "adaptive": True, "evaluate": None, "least": 10}
    critic = {
        "kind": "ridge",
        "learning_rate": 1e-3,
        "clip": None,
        "name": "policy",
        "transitions": 100_000,
        "memory": 3,
    }
    now = {"store": RLEP, "critic": {"kind": "ridge", "memory": 3}, "method": "gae"}
    assert parse_config({**now, "store": {**RLEP, **others}, "critic": critic | {"memory": 3}}) == parse_config(now)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ({"name": "rlepp", "capacity": 4}, r"unknown store\.name 'rlepp'\. Did you mean 'rlep'\?"),
        ({"capacity": 4}, r"store\.name needs a value\. Known: prefix_sampling, r3, rlep, slea_rl"),
        ({"name": "rlep", "replays": 3}, r"store\.capacity needs a value"),
        (
            {"name": "rlep", "capacity": 4, "replays": 1, "cap": 3},
            "store.cap is an option of store.name='prefix_sampling'",
        ),
        (
            {"name": "rlep", "capacity": 4, "replays": 1, "capac": 3},
            "unknown key 'store.capac'. Did you mean 'capacity'",
        ),
        ("rlep", 'store is a section, got "rlep"; write store.KEY=VALUE, such as store.name=rlep'),
    ],
)
def test_a_mistake_in_a_section_of_several_kinds_is_one_line(store, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"store": store})
