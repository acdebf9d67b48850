"""Say which columns each trainer's batch has, and so which methods it can run. Needs no trainer.

The table in docs/reference/trainers.md and the errors of the adapters come from here.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from turnwise.base.errors import ConfigError, IntegrationError, guide
from turnwise.credit.options import check_transforms
from turnwise.credit.transform import Transform, trial

FREE = ("turn", "length")
"""Columns that follow from rewards, masks and groups."""
PLAYED = (
    "state_key",
    "end_key",
    "action_key",
    "state_text",
    "penalty",
    "num_paths",
    "truncated",
    "task",
    "success",
    "finished",
    "prefix",
    "tree",
)
"""Columns that turnwise's environments record."""
SAMPLED = ("logprob", "rare_logprob")
ENTROPY = ("entropy", "peak_entropy")
MISMATCH = ("mismatch", "mismatch_min")
CRITIC = ("value", "value_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """Describe what a trainer's batch has.

    Attributes:
        name: Name of the trainer.
        read: Version or commit that was read or run.
        how: Column to what it takes to have it; an empty text if every batch has it.
    """

    name: str
    read: str
    how: Mapping[str, str]

    def runs(self, method: Transform) -> str:
        """Return what it takes to run a method: "yes", conditions, or "no" with the reason."""
        if method.init is not None:
            return "no: keeps state"
        known = {**dict.fromkeys(FREE, ""), **self.how}
        if missing := [name for name in method.needs if name not in known]:
            return "no: " + ", ".join(missing)
        return "; ".join(dict.fromkeys(known[name] for name in method.needs if known[name])) or "yes"

    def check(self, method: Transform, given: Collection[str] = ()) -> None:
        """Raise unless the trainer's batch can have the columns that a method needs.

        Args:
            method: The method.
            given: Further columns that the caller has.

        Raises:
            ConfigError: It is no method, or keeps state.
            IntegrationError: A column is missing.
        """
        check_transforms(self.name, {"method": method}, Transform)
        if method.init is not None:
            raise ConfigError(
                f"{method} keeps state, which {self.name}'s checkpoints would lose; choose a stateless method"
            )
        known = {*FREE, *self.how, *given}
        if missing := [name for name in method.needs if name not in known]:
            raise IntegrationError(
                f"{method} needs column {missing[0]!r}, which {self.name} does not have; it has "
                f"{', '.join(sorted(known))}; {guide('reference/trainers.md')} lists the methods"
            )


def _columns(*parts: tuple[Collection[str], str]) -> dict[str, str]:
    return {name: how for names, how in parts for name in names}


RETURN = {"success": "`return_is_success`"}
TRAINERS: Mapping[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        Trainer(
            "verl",
            "0.9.1",
            _columns(
                (SAMPLED, ""),
                (("ref_logprob",), "reference"),
                (MISMATCH, "engine's log-probabilities"),
                (CRITIC, "critic"),
                (ENTROPY, "`turnwise_sync`"),
                (PLAYED, "agent loop"),
                (("success",), "agent loop or `return_is_success`"),
            ),
        ),
        Trainer(
            "TRL",
            "1.16.0",
            _columns(
                (ENTROPY + SAMPLED, ""),
                (("ref_logprob",), "reference"),
                (MISMATCH, "vLLM"),
                (("state_key",), "environments"),
            )
            | RETURN,
        ),
        Trainer(
            "SkyRL",
            "0.3.0",
            _columns(
                (SAMPLED, ""),
                (("ref_logprob",), "reference"),
                (MISMATCH, "engine's log-probabilities"),
                (CRITIC, "critic"),
            )
            | RETURN,
        ),
        Trainer(
            "prime-rl",
            "commit 039b4009f84aa9996a5cca4ae6ab257de094ff81",
            _columns((SAMPLED, "")) | RETURN,
        ),
        Trainer(
            "AReaL",
            "1.0.4",
            _columns((SAMPLED, ""), (("ref_logprob",), "reference"), (MISMATCH, "decoupled loss"), (CRITIC, "critic"))
            | RETURN,
        ),
    )
}


def methods_of(trainer: Trainer, methods: Mapping[str, Callable[..., Transform]]) -> dict[str, str]:
    """Return what it takes to run each method, by name."""
    return {name: trainer.runs(trial(make)) for name, make in methods.items()}
