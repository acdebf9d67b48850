"""Figures: every colour has a legend, steps are whole numbers, and an arm keeps its colour from figure to figure."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator
from PIL import Image
from tests.diagnostics.made import made_run

from turnwise.base.figures import DARK, FURTHER, LIGHT, NAMED, arm_colors
from turnwise.lab.diagnostics.compare import compare
from turnwise.lab.diagnostics.dynamics import dynamics_figure
from turnwise.lab.diagnostics.show import curves, figure, forest
from turnwise.train.figure import run_figure

STUDY = ("grpo", "grpo + aem", "aem reversed", "aem shuffled", "aem in trajectory", "aem in batch", "gigpo")
ZERO_LINE = "#999999"
RECORDS = [
    {"step": 0, "eval/success": 0.3, "eval/success_low": 0.2, "eval/success_high": 0.4},
    *({"step": step, "rollout/success": 0.3, "credit/entropy": 0.2} for step in (1, 2, 3)),
]


@pytest.fixture
def arms(tmp_path):
    made = {"grpo + aem": True, "grpo": False}
    return {
        name: [
            made_run(tmp_path / str(more), seed, [True] * (seed + more) + [False] * 8, method=name.replace(" ", ""))
            for seed in (0, 1, 2)
        ]
        for name, more in made.items()
    }


def drawn(axes) -> dict[str, str]:
    """Colours of the lines by their labels, without the number of runs."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label().split(" (")[0]: to_hex(line.get_color()) for line in lines}


def legends(made) -> set[str]:
    """Colours that a legend explains."""
    found = [*made.legends, *(axes.get_legend() for axes in made.axes if axes.get_legend())]
    return {to_hex(handle.get_color()) for legend in found for handle in legend.get_lines()}


def test_an_arm_keeps_its_colour(arms):
    pair = compare(arms["grpo + aem"], arms["grpo"], names=("grpo + aem", "grpo"))
    turned = compare(arms["grpo"], arms["grpo + aem"], names=("grpo", "grpo + aem"))
    for made in (figure(pair), figure(turned), curves({Path("recipe"): arms}), dynamics_figure(arms)):
        colors = drawn(made.axes[0])
        assert {name: colors[name] for name in ("grpo", "grpo + aem")} == arm_colors(STUDY[:2])
    of_study = arm_colors(STUDY)
    assert len(set(of_study.values())) == len(STUDY)
    assert of_study == arm_colors(reversed(STUDY))
    assert (of_study["grpo"], of_study["grpo + aem"]) == NAMED["grpo"]
    given = figure(compare(arms["grpo"], arms["grpo + aem"], names=("aem in batch", "aem shuffled")), of_study)
    assert drawn(given.axes[0]) == {name: of_study[name] for name in ("aem in batch", "aem shuffled")}
    many = [f"arm {number}" for number in range(len(FURTHER) + sum(map(len, NAMED.values())))]
    assert len(set(arm_colors(many).values())) == len(many)


def test_every_colour_has_a_legend(arms):
    pair = compare(arms["grpo + aem"], arms["grpo"], names=("grpo + aem", "grpo"))
    of_recipe = (Path("recipe.toml"), pair)
    for made in (figure(pair), forest([of_recipe] * 3, [True, False, False]), dynamics_figure(arms)):
        used = {to_hex(line.get_color()) for axes in made.axes for line in axes.get_lines()} - {ZERO_LINE}
        assert used
        assert used <= legends(made)
    kinds = {text.get_text() for text in forest([of_recipe] * 2, [True, False]).legends[0].get_texts()}
    assert kinds == {"shown, all counted", "before correction" if pair.difference.shown else "not shown"}


def test_rows_of_several_recipes_name_them(arms):
    pair = compare(arms["grpo + aem"], arms["grpo"], names=("grpo + aem", "grpo"))
    rows = lambda *recipes: [  # noqa: E731
        text.get_text()
        for text in forest([(one, pair) for one in recipes], [True] * len(recipes)).axes[0].get_yticklabels()
    ]
    assert rows(Path("a.toml"), Path("b.toml")) == ["b: grpo + aem - grpo (3)", "a: grpo + aem - grpo (3)"]
    assert rows(Path("a.toml")) == ["grpo + aem - grpo (3)"]


def test_steps_and_trajectories_are_whole_numbers(arms):
    for made in (run_figure(RECORDS, "grpo"), dynamics_figure(arms), curves({Path("recipe"): arms})):
        for axes in made.axes:
            if axes.get_xlabel() in ("step", "trajectories played"):
                assert isinstance(axes.xaxis.get_major_locator(), MaxNLocator)
                assert all(tick == int(tick) for tick in axes.get_xticks())


def test_a_dark_figure_has_light_ink_on_dark_ground():
    for theme in (LIGHT, DARK):
        buffer = io.BytesIO()
        run_figure(RECORDS, "grpo", theme).savefig(buffer, format="png", dpi=40)
        pixels = np.asarray(Image.open(buffer).convert("RGB")).reshape(-1, 3)
        found, counts = np.unique(pixels, axis=0, return_counts=True)
        assert "#{:02x}{:02x}{:02x}".format(*found[counts.argmax()]) == theme.background
        ink = tuple(int(theme.ink[at : at + 2], 16) for at in (1, 3, 5))
        assert np.abs(pixels.astype(int) - ink).sum(axis=1).min() < 60
