"""verl's own configuration code accepts the recipes, and our trainer their method.

<python with verl and turnwise> -m pytest tests/crosscheck/verl/test_recipes.py -m crosscheck -p no:cacheprovider
"""

import re
import shlex
import warnings
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl's imports
    pytest.importorskip("verl.trainer.ppo.v1", reason="verl is not installed; see benchmarks/requirements-verl.txt")
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from turnwise.integrations.verl_agent_loop import parse_settings
    from turnwise.integrations.verl_estimator import configured, settings_of

FOLDER = Path(__file__).parents[3] / "recipes" / "verl"
RECIPES = sorted(FOLDER.glob("*.sh"))


def overrides_of(recipe: Path) -> list[str]:
    text = recipe.read_text().split("verl.trainer.main_ppo", 1)[1].replace("\\\n", " ").replace("$PWD", str(FOLDER))
    return [part for part in shlex.split(text) if part != "$@"]


PAPER = {
    "alfworld-qwen2.5-1.5b-aem": ("alfworld", 2, 50, 16, 150, True, {"entropy", "penalty"}),
    "alfworld-qwen2.5-7b-aem": ("alfworld", 2, 50, 16, 150, True, {"entropy", "penalty"}),
    "swe-qwen3-32b-aem": ("swe", None, 50, 64, 250, False, {"entropy"}),
}
"""World, window, turns, groups, steps, whether there is a KL term, and the columns that the method reads."""


def test_every_recipe_is_known():
    assert {recipe.stem for recipe in RECIPES} == PAPER.keys()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_verl_accepts_the_recipe(recipe, monkeypatch):
    world, window, turns, groups, steps, with_kl, needs = PAPER[recipe.stem]
    monkeypatch.setenv("SWE_TRAIN", "/r2e")
    monkeypatch.setenv("SWE_EVAL", "/verified")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides_of(recipe))
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    assert need_reference_policy(config) == with_kl
    assert not need_critic(config)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, rollout.n, config.trainer.total_training_steps) == (groups, 8, steps)
    assert actor.optim.lr == 1e-6
    assert not with_kl or actor.kl_loss_coef == 0.01
    assert actor.ppo_max_token_len_per_gpu * actor.ulysses_sequence_parallel_size >= (
        config.data.max_prompt_length + config.data.max_response_length
    ), "the longest row must fit a micro-batch"
    loops = {loop.name: loop for loop in OmegaConf.load(Path(rollout.agent.agent_loop_config_path))}
    for loop in loops.values():
        settings = parse_settings({k: v for k, v in loop.items() if k not in ("name", "_target_")})
        assert (settings.environment.name, settings.window, settings.environment.max_steps) == (world, window, turns)
        assert settings.max_new_tokens <= config.data.max_response_length
    named = re.findall(r"verl_agent_loop (\S+) \S+ --split \w+(?: --name (\w+))?", recipe.read_text())
    assert {name or "turnwise" for _, name in named} == loops.keys(), "a data set is played by each loop of the file"
    method = configured(settings_of(config.algorithm))
    assert needs == set(method.needs)
    assert "not run yet" in recipe.read_text().lower()


def test_software_repair_tries_twice_as_many_groups_and_rejects_uniform_ones():
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides_of(FOLDER / "swe-qwen3-32b-aem.sh"))
    uniform = config.algorithm.filter_groups
    assert (uniform.enable, uniform.metric, uniform.max_inflight_gen_batches) == (True, "reward", 2)
