"""What the pages tell users of verl to set is read by us; verl itself is not needed."""

import re
from pathlib import Path

import pytest

import turnwise
from turnwise.integrations.verl_estimator import configured

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "verl.md"
PLUGIN = Path(turnwise.__file__).parent / "integrations" / "verl.py"
TOLD = re.findall(r"\+algorithm\.turnwise\.([\w.]+)=([\w.+]+)", PAGE.read_text() + PLUGIN.read_text())


@pytest.mark.parametrize(("key", "value"), sorted(set(TOLD)))
def test_every_documented_key_is_read(key, value):
    if key == "method":
        configured({"method": value})
    elif key.startswith("options."):
        own = {"temperature": "grpo+empg", "convention": "grpo", "discount": "gigpo+empg"}
        option = key.removeprefix("options.")
        number = float(value) if value.replace(".", "").isdigit() else value
        configured({"method": own[option], "options": {option: number}})
    else:
        configured({key: value == "true"})
