"""The noise of a gradient: right on numbers whose signal is known, and on a run."""

import numpy as np
import pytest
import torch
from tests.diagnostics.autograd import group_gradients
from tests.toys import small_config

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.lab.diagnostics import noise
from turnwise.lab.diagnostics.noise import SKETCH, Noise, measure_noise, noise_of, noise_table, sketch
from turnwise.lab.diagnostics.stage import Stage
from turnwise.train.credit import named_transform
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


def test_signal_and_noise_by_hand():
    found = noise_of(np.array([[1.0, 0.0], [1.0, 2.0], [1.0, -2.0]]))
    # pairs: 1, 1, 1 - 4 = -3, so -1/3; squares 1, 5, 5
    assert found.signal == pytest.approx(-1 / 3)
    assert found.noise == pytest.approx(11 / 3 + 1 / 3)
    # leaving one out: (-3), (1), (1); mean -1/3; squares 64/9 + 16/9 + 16/9, times 2/3
    assert found.error == pytest.approx(np.sqrt(2 / 3 * 96 / 9))
    assert found.groups == np.inf
    assert found.least_groups == pytest.approx(4 / (-1 / 3 + 1.959964 * found.error))


def test_estimates_are_right_on_average_and_their_error_is_honest():
    generator, size, signal, scale = np.random.default_rng(0), 12, 4.0, 3.0
    mean = np.zeros(20)
    mean[0] = np.sqrt(signal)
    drawn = [noise_of(mean + scale * generator.normal(size=(size, 20))) for _ in range(4000)]
    assert np.mean([one.signal for one in drawn]) == pytest.approx(signal, rel=0.05)
    assert np.mean([one.noise for one in drawn]) == pytest.approx(20 * scale**2, rel=0.02)
    spread = np.std([one.signal for one in drawn])
    assert spread < np.sqrt(np.mean([one.error**2 for one in drawn])) < 1.45 * spread, (
        "the jackknife errs on the safe side"
    )


def test_a_sketch_keeps_inner_products():
    generator = torch.Generator().manual_seed(0)
    shapes = [(300, 700), (5,), (SKETCH,), (33, 7)]
    signs = [torch.randint(2, shape, generator=generator, dtype=torch.int8) * 2 - 1 for shape in shapes]
    a, b = ([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))
    b = [0.5 * x + y for x, y in zip(a, b, strict=True)]
    exact = [sum(float((x * y).sum()) for x, y in zip(p, q, strict=True)) for p, q in ((a, a), (a, b), (b, b))]
    one, other = sketch(a, signs), sketch(b, signs)
    found = [float(p @ q) for p, q in ((one, one), (one, other), (other, other))]
    assert found == pytest.approx(exact, abs=5 * np.sqrt(exact[0] * exact[2] / SKETCH))
    short = [torch.randn(7, generator=generator)]
    assert torch.equal(sketch(short, [torch.ones(7, dtype=torch.int8)])[:7], short[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    config = small_config(tmp_path_factory.mktemp("run"), run={"steps": 1}, rollout={"temperature": 0.7})
    return train(config)


def test_gradients_are_those_of_autograd_at_the_temperature_of_the_rollout(run):
    folder, _ = RunFolder.open(run.path)
    found, method = measure_noise(folder, ["rloo"], step=0, groups=4)["rloo"], named_transform("rloo")
    stage = Stage.open(folder, 0)
    trajectories, _ = stage.play_groups(4, 0)
    stage.close()
    batch, sequences, _ = stage.measure(stage.plan({"rloo": method.needs}), trajectories)
    expected = noise_of(group_gradients(stage, batch, sequences, method(batch), temperature=0.7))
    assert found.noise == pytest.approx(expected.noise, rel=0.02)
    assert found.signal == pytest.approx(expected.signal, abs=0.02 * expected.noise)


def test_a_sketched_measure_is_that_of_the_whole_gradients(run, monkeypatch):
    folder, _ = RunFolder.open(run.path)
    methods = ["rloo", "grpo", "grpo+aem"]
    sketched = measure_noise(folder, methods, step=0, groups=8)
    whole: list[torch.Tensor] = []

    def exact(gradient, signs):
        flat = torch.cat([part.flatten() for part in gradient])
        whole.append(flat)
        return torch.nn.functional.pad(flat, (0, SKETCH - len(flat)))

    monkeypatch.setattr(noise, "sketch", exact)
    found = measure_noise(folder, methods, step=0, groups=8)
    assert len(whole[0]) == sum(weight.numel() for weight in trained(run))
    for name in methods:
        assert sketched[name].noise == pytest.approx(found[name].noise, rel=0.02)
        assert sketched[name].signal == pytest.approx(found[name].signal, abs=0.02 * found[name].noise)
    assert found["rloo"].noise != pytest.approx(found["grpo"].noise, rel=0.01), "methods of other scales"


def trained(run: RunFolder):
    from turnwise.train.checkpoint import load_checkpoint

    return load_checkpoint(run.checkpoints / "step-000000")[1].model.parameters()


def test_a_method_is_named_with_its_own_options():
    assert "entropy" in named_transform("gigpo+aem").needs
    assert "entropy" not in named_transform("rloo").needs
    with pytest.raises(ConfigError, match="nothing named 'amm' may follow a"):
        named_transform("grpo+amm")
    with pytest.raises(ConfigError, match="unknown method 'grp'"):
        named_transform("grp")


def test_what_cannot_be_seen_is_said_so():
    rows = noise_table({"a": Noise(1.0, 0.5, 99.0), "b": Noise(-1.0, 0.25, 101.0)}, 8)
    assert rows[1] == ("a", "0.0100 +- 0.0050", "99.0", "50.0", "0.08")
    assert rows[2] == ("b", "-0.0100 +- 0.0025", "not seen", "inf", "-")


def test_the_command_prints_a_row_a_method(run, capsys):
    assert main(["analyse", "noise", str(run.path), "--groups", "4", "--method", "rloo", "--method", "gigpo+aem"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line and line.split()[0] in ("rloo", "gigpo+aem")] == [
        "rloo",
        "gigpo+aem",
    ]
    assert "gradients" in err
    assert main(["analyse", "noise", str(run.path), "--groups", "2"]) == 2
    assert "expected 3 or more" in capsys.readouterr().err


def test_groups_for_as_much_signal_as_noise():
    assert Noise(signal=2.0, error=1.0, noise=6.0).groups == 3.0


def test_a_sketch_of_what_all_points_one_way_is_no_longer_than_it():
    """Without signs, numbers of one sign would add up in their places."""
    ones = [torch.ones(40 * SKETCH)]
    signs = [torch.randint(2, (40 * SKETCH,), generator=torch.Generator().manual_seed(1), dtype=torch.int8) * 2 - 1]
    found = sketch(ones, signs)
    assert float(found @ found) == pytest.approx(40 * SKETCH, rel=0.1)
