"""The warm start: imitation of the expert and of nothing else, and a cache that knows when it is stale."""

import numpy as np
import pytest
import torch
from tests.toys import COLORS, Colors, has_gradient, small_config

from turnwise.base.errors import ConfigError, RunError, TurnwiseError
from turnwise.environments.base import Demonstrated
from turnwise.environments.suites import Seeded, make_suite
from turnwise.models.tiny import tiny_policy
from turnwise.train import warmstart
from turnwise.train.warmstart import Teaching, cache_folder, demonstrations, warm_policy

WARM = {"steps": 3, "games": 12, "batch_size": 4}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def warm(config):
    policy, cached = warm_policy(config, make_suite(config.environment))
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()]), cached


def test_a_cache_hit_gives_identical_weights(cache, tmp_path):
    config = small_config(tmp_path, warmstart=WARM)
    first, first_cached = warm(config)
    again, again_cached = warm(config)
    assert (first_cached, again_cached) == (False, True)
    assert torch.equal(first, again)
    assert len(list((cache / "warmstart").iterdir())) == 1  # and no temporary folder


def test_a_warm_start_repeats_without_the_cache(tmp_path, monkeypatch):
    config = small_config(tmp_path, warmstart=WARM)
    first, _ = warm(config)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "other"))
    again, cached = warm(config)
    assert not cached
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"seed": 1}},
        {"model": {"hidden_size": 32}},
        {"environment": {"options": {"turns": 2}}},
        {"warmstart": {**WARM, "steps": 4}},
        {"warmstart": {**WARM, "games": 11}},
        {"warmstart": {**WARM, "rounds": 2}},
        {"warmstart": {**WARM, "noise": 0.2}},
        {"warmstart": {**WARM, "observation_weight": 0.0}},
    ],
    ids=str,
)
def test_what_matters_is_learned_anew(tmp_path, change):
    warm(small_config(tmp_path, warmstart=WARM))
    assert not warm(small_config(tmp_path, **{"warmstart": WARM, **change}))[1]


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"name": "other", "steps": 99}},
        {"environment": {"eval_split": "test", "success_reward": 3.0, "invalid_penalty": 0.5}},
        {"method": "gigpo"},
        {"rollout": {"groups": 2, "temperature": 0.5}},
        {"update": {"learning_rate": 0.5}},
        {"evaluate": {"every": 1}, "checkpoint": {"every": 3}},
    ],
    ids=str,
)
def test_what_does_not_matter_is_taken_from_the_cache(tmp_path, change):
    first, _ = warm(small_config(tmp_path, warmstart=WARM))
    again, cached = warm(small_config(tmp_path, warmstart=WARM, **change))
    assert cached
    assert torch.equal(first, again)


def test_the_seed_matters_also_where_the_demonstrations_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(Seeded, "tasks", lambda self, split: range(1))
    first, _ = warm(small_config(tmp_path, warmstart=WARM))
    other, cached = warm(small_config(tmp_path, warmstart=WARM, run={"seed": 1}))
    assert not cached
    assert not torch.equal(first, other)


def test_a_world_that_was_edited_is_learned_anew(tmp_path, monkeypatch):
    config = small_config(tmp_path, warmstart=WARM)
    warm(config)
    monkeypatch.setattr(Colors, "demonstrate", staticmethod(lambda task, **_: [COLORS[0]]))
    assert not warm(config)[1]
    monkeypatch.undo()
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    assert warm(config)[1]
    monkeypatch.setattr(Colors, "words", staticmethod(lambda **_: ["say", *COLORS, "black"]))
    assert not warm(config)[1]


def test_a_cache_that_another_process_has_made_meanwhile_stays_as_it_is(tmp_path, monkeypatch):
    config = small_config(tmp_path, warmstart=WARM)
    imitate = warmstart.imitate

    def and_lose_the_race(*args, **kwargs):
        imitate(*args, **kwargs)
        warm_elsewhere(config)

    def warm_elsewhere(config):
        monkeypatch.setattr(warmstart, "imitate", imitate)
        assert not warm(config)[1]
        (made,) = (cache_folder() / "warmstart").iterdir()
        (made / "first").touch()

    monkeypatch.setattr(warmstart, "imitate", and_lose_the_race)
    assert not warm(config)[1]
    (kept,) = (cache_folder() / "warmstart").iterdir()
    assert (kept / "first").exists()


def test_a_warm_start_that_diverges_is_said_and_not_cached(cache, tmp_path):
    config = small_config(tmp_path, warmstart={**WARM, "learning_rate": 1e30})
    with pytest.raises(
        RunError, match=r"the warm start diverged after \d of .* lower warmstart.learning_rate=1e\+30"
    ) as caught:
        warm(config)
    assert "\n" not in str(caught.value)
    assert not list(cache.rglob("model.safetensors"))


def test_a_warm_start_that_is_too_large_for_memory_takes_smaller_parts(tmp_path, monkeypatch):
    config = small_config(tmp_path, warmstart=WARM)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "one"))
    whole, _ = warm(config)
    plain, failures = warmstart._cross_entropy, []

    def limited(model, demos):
        loss = plain(model, demos)
        if len(demos) > (1 if has_gradient(model) else 2):
            failures.append(has_gradient(model))
            raise torch.OutOfMemoryError
        return loss

    monkeypatch.setattr(warmstart, "_cross_entropy", limited)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "other"))
    cut, cached = warm(config)
    assert not cached
    assert set(failures) == {False, True}, "also after some of the gradient has been accumulated"
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


def test_without_steps_nothing_is_demonstrated_or_cached(tmp_path, monkeypatch):
    monkeypatch.delattr(Colors, "demonstrate")
    config = small_config(tmp_path, warmstart={"steps": 0})
    policy, cached = warm_policy(config, make_suite(config.environment))
    assert not cached
    assert not cache_folder().exists()
    fresh = tiny_policy(Colors.words(), config.model, seed=0)
    for ours, theirs in zip(policy.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_world_without_demonstrations_says_what_to_add(tmp_path, monkeypatch):
    monkeypatch.delattr(Colors, "demonstrate")
    config = small_config(tmp_path, warmstart=WARM)
    with pytest.raises(ConfigError, match=r"tests\.toys:Colors.* demonstrate\(task, .*warmstart.steps=0"):
        warm(config)


def test_a_world_without_words_says_what_to_add(tmp_path):
    config = small_config(tmp_path, environment={"name": "tests.toys:Mute"})
    with pytest.raises(ConfigError, match=r"tests\.toys:Mute.* words\("):
        warm(config)


def test_noise_is_played_and_not_imitated(tmp_path, monkeypatch):
    def noisy(task: int, **_):
        return [Demonstrated("pink", False), (Colors.color(task, 1), True), Colors.color(task, 2)]

    monkeypatch.setattr(Colors, "demonstrate", staticmethod(noisy))
    config = small_config(
        tmp_path, environment={"options": {"turns": 3}}, warmstart={**WARM, "games": 1, "observation_weight": 0.25}
    )
    suite = make_suite(config.environment)
    policy = tiny_policy(Colors.words(), config.model, seed=0)
    [(ids, weights)] = demonstrations(Teaching.of(config), policy, suite)  # pyright: ignore[reportArgumentType]
    words = policy.tokenizer.convert_ids_to_tokens(ids.tolist())
    turn = ["<obs>", "say", None, "<act>", None, "<end>"]
    assert [word if word in turn else None for word in words] == turn * 3
    assert words[4] == "pink"
    by_turn = weights.reshape(3, 6)
    np.testing.assert_array_equal(by_turn[:, :4], 0.25)
    np.testing.assert_array_equal(by_turn[:, 4:], [[0, 0], [1, 1], [1, 1]])


def test_every_round_demonstrates_the_tasks_anew(tmp_path, monkeypatch):
    seen: list[tuple[int, int]] = []

    def demonstrate(task: int, *, noise: float, seed: int):
        seen.append((task, seed))
        return [Demonstrated(Colors.color(task, 0), True)]

    monkeypatch.setattr(Colors, "demonstrate", staticmethod(demonstrate))
    config = small_config(tmp_path, warmstart={**WARM, "games": 5, "rounds": 3})
    policy = tiny_policy(Colors.words(), config.model, seed=0)
    made = demonstrations(Teaching.of(config), policy, make_suite(config.environment))  # pyright: ignore
    assert len(made) == len(seen) == 15
    assert [task for task, _ in seen] == [task for task, _ in seen[:5]] * 3
    assert len({seed for _, seed in seen}) == 15  # so each has noise of its own


def test_a_world_of_coroutines_is_demonstrated_alike(tmp_path):
    config = small_config(tmp_path, environment={"options": {"turns": 3}}, warmstart={**WARM, "games": 3})
    suite = make_suite(config.environment)
    plain_world = suite.environment

    class Slow:
        def __init__(self, task):
            self.world = plain_world(task)

        async def start(self):
            return self.world.start()

        async def step(self, response):
            return self.world.step(response)

    policy = tiny_policy(Colors.words(), config.model, seed=0)
    plain = demonstrations(Teaching.of(config), policy, suite)  # pyright: ignore[reportArgumentType]
    suite.environment = Slow  # pyright: ignore[reportAttributeAccessIssue]
    for (ids, weights), (slow_ids, slow_weights) in zip(
        plain, demonstrations(Teaching.of(config), policy, suite), strict=True
    ):  # pyright: ignore
        np.testing.assert_array_equal(ids, slow_ids)
        np.testing.assert_array_equal(weights, slow_weights)


def test_a_warm_policy_imitates(tmp_path):
    losses = []
    config = small_config(
        tmp_path, warmstart={"steps": 60, "games": 8, "batch_size": 8, "learning_rate": 0.03}, model={"hidden_size": 32}
    )
    warm_policy(config, make_suite(config.environment), on_step=lambda step, steps, loss: losses.append(loss))
    assert len(losses) == 60
    assert losses[-1] < 0.3 * losses[0]


def test_demonstrations_that_do_not_fit_are_an_error(tmp_path):
    config = small_config(tmp_path, warmstart=WARM, environment={"options": {"turns": 5}}, model={"max_context": 16})
    with pytest.raises(ConfigError, match=r"no demonstration of 12 games fits into model.max_context=16"):
        warm(config)


def test_a_cut_off_cache_entry_says_which_to_remove(tmp_path):
    config = small_config(tmp_path, warmstart=WARM)
    warm(config)
    [entry] = (cache_folder() / "warmstart").iterdir()
    (entry / "model.safetensors").write_bytes(b"\x00" * 30)
    with pytest.raises(TurnwiseError, match=f"{entry.name}/model.safetensors is damaged: .* Delete this cache folder"):
        warm(config)


def test_household_demonstrations_follow_the_expert(tmp_path):
    config = small_config(
        tmp_path,
        environment={"name": "household", "max_steps": 20, "options": {"size": "tiny", "num_train": 4}},
        model={"max_context": 1024},
        warmstart={"games": 4, "noise": 0.5},
    )
    suite = make_suite(config.environment)
    policy = tiny_policy(suite.words(), config.model, seed=0)
    demos = demonstrations(Teaching.of(config), policy, suite)  # pyright: ignore
    assert demos
    assert any((weights == 0).any() for _, weights in demos)  # noise
    assert all((weights == 1).any() for _, weights in demos)
