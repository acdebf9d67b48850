"""Define the `[teacher]` section of a recipe."""

from pathlib import Path

import pydantic

from turnwise.base.section import Section


class TeacherConfig(Section):
    """Configure the policy of a finished run that teaches this one (on-policy distillation)."""

    run: Path
    """Folder of the run; its policy must have the tokens of this one."""
    step: int | None = pydantic.Field(default=None, ge=0)
    """Step of its checkpoint; default: the last."""
