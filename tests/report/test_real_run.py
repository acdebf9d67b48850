"""A run that the trainer made: the page's numbers are the trainer's."""

import numpy as np
from tests.toys import small_config

from turnwise.credit.compared import COMPARED
from turnwise.lab.report.build import ReportData
from turnwise.lab.report.credit import OtherMethods
from turnwise.train import loop
from turnwise.train.folder import RunFolder
from turnwise.train.recorded import read_step


def test_what_the_trainer_recorded_is_recomputed_and_shown(tmp_path):
    path = loop.train(small_config(tmp_path / "runs")).path
    folder, config = RunFolder.open(path)
    files = sorted(folder.rollouts.glob("step-*.parquet"))
    assert files
    own = OtherMethods([config.label.replace(" ", "")], invalid_penalty=config.environment.invalid_penalty)
    for file in files:
        step = read_step(file)
        (again,) = own(step).values()
        np.testing.assert_allclose(again, step.values("advantage"), rtol=0, atol=1e-9)
    data = ReportData([path], tmp_path / "page", COMPARED)
    data.update()
    shown = data.runs[0].summary()
    assert shown["train"]["step"] == [int(file.stem.split("-")[1]) for file in files]
    assert shown["train"]["credit/entropy"][-1] == folder.metrics()[-2]["credit/entropy"]
    assert data.runs[0].pieces.texts
