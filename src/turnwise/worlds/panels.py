"""List the evaluation panels by name. A panel never changes: other tasks get another name."""

import tomllib
from pathlib import Path

from turnwise.environments.panels import Panel

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PANELS: dict[str, Panel] = {name: Panel(**{"episodes": None, **table}) for name, table in _TABLES.items()}
"""All panels by name; panels.toml describes them."""
