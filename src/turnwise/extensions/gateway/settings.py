"""Define the `[harness]` section of a recipe."""

from collections.abc import Iterator
from typing import Literal

import pydantic

from turnwise.base.facets import Facet, Part
from turnwise.base.section import Section


class HarnessConfig(Section):
    """Play the trajectories through your own agent, which calls the policy over OpenAI's API."""

    run: str | tuple[str, ...] = pydantic.Field(min_length=1)
    """What plays one trajectory: a function as "module:function", or a command, such as "python agent.py"."""
    isolation: Literal["thread", "process", "bubblewrap"] = "thread"
    """Where a function runs: in a thread of the trainer; in a separate process, which can be stopped when it hangs and
    may crash; or in a process in bubblewrap, which sees none of the trainer's secrets. Commands always run in separate
    processes, in bubblewrap if set here."""
    reward: Literal["returned", "posted"] = "returned"
    """Where the reward comes from: a function's result or a command's last line; or "posted", a request to the address,
    which what the policy runs can send too."""
    concurrent: int = pydantic.Field(default=64, ge=1)
    """Trajectories played at a time."""
    timeout_s: float = pydantic.Field(default=600.0, gt=0)
    """Time limit for one trajectory (seconds); then it fails, and is left out of the update."""
    state_key: str | None = pydantic.Field(default=None, pattern=r"^[\w.]+:\w+$")
    """Function from the messages of a call to the key of its state, as "module:function"; default: the last message
    that is not the assistant's. A call's header X-Turnwise-State-Key comes first."""
    pass_variables: tuple[str, ...] = ()
    """Additional environment variables for processes, such as an API key; tokens are not passed otherwise."""

    @pydantic.model_validator(mode="after")
    def _only_functions_choose(self) -> "HarnessConfig":
        if self.isolation == "process" and self.function is None:
            raise ValueError("harness.isolation is only for functions; a command always has its own process; remove it")
        return self

    def parts(self) -> Iterator[Part]:
        """Return what the harness breaks and needs; see `turnwise.base.facets`."""
        yield Part("[harness]", {Facet.TURNS: "plays the turns and makes the prompts"})

    @property
    def function(self) -> str | None:
        """The function to run as `module:function`; None for a command."""
        is_function = isinstance(self.run, str) and " " not in self.run and "/" not in self.run and ":" in self.run
        return str(self.run) if is_function else None
