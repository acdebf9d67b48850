"""Define the options of crossroads, their named settings, and what a teacher of the wanted start success does."""

import dataclasses

from turnwise.base.errors import ConfigError, did_you_mean

ROADS = ("north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest")
"""Names of the roads; a walk uses the first ones."""
RECURRENCES = ("turn", "often", "never")
READINGS = ("short", "text")


@dataclasses.dataclass(frozen=True, slots=True)
class Knobs:
    """Options of a walk. Each sets one property and leaves the others as they are."""

    setting: str  # name of the setting that the options are changed from
    _: dataclasses.KW_ONLY
    turns: int = 10  # turns of a walk, 2 to 200
    critical: int = 3  # number of critical turns: there only the road on the sign leads on. Elsewhere every road does.
    start_success: float = 0.3  # share of walks that the teacher wins; a warm-started policy often wins fewer
    # Probability that the teacher follows the sign of a turn that is not critical, from 1 / roads to below 1. It sets
    # how uncertain those turns are; `start_success` alone sets how uncertain the critical ones are.
    follow: float = 0.7
    # Turns after a wrong choice until the dead end shows, at the latest at the end. Until then nothing differs.
    delay: int = 200
    slip: float = 0.0  # probability that a named road is not the one taken
    # "turn": the observation shows the mile, so it recurs in other trajectories only. "often": it shows only the kind
    # of turn and the sign. "never": it depends on all responses so far.
    recurrence: str = "turn"
    roads: int = 4  # number of roads at each turn, 2 to 8
    reading: str = "short"  # "short": a few words, for a policy made from scratch. "text": sentences, for a chat model.

    def __post_init__(self):
        for name, low, high in (
            ("turns", 2, 200),
            ("critical", 1, self.turns),
            ("delay", 0, 200),
            ("roads", 2, len(ROADS)),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(
                    f"environment.options.{name}={value!r}: expected a whole number from {low} to {high}"
                    + f" (turns={self.turns})" * (high == self.turns)
                )
        for name, low, high in (("start_success", 1e-6, 1), ("follow", 1 / self.roads, 1), ("slip", 0, 0.5)):
            value = getattr(self, name)
            if isinstance(value, bool) or not low <= value < high:
                raise ConfigError(
                    f"environment.options.{name}={value!r}: expected a number from {low:.4g} to below {high}"
                    + f" (roads={self.roads})" * (name == "follow")
                )
        for name, choices in (("recurrence", RECURRENCES), ("reading", READINGS)):
            if getattr(self, name) not in choices:
                value = getattr(self, name)
                raise ConfigError(f"environment.options.{name}={value!r}.{did_you_mean(value, choices)}")
        if not 0 < self.right < 1:
            raise ConfigError(
                f"environment.options.start_success={self.start_success:g} cannot be with critical={self.critical}, "
                f"slip={self.slip:g} and roads={self.roads}: expected above {self._success(0.0):.2g} and below "
                f"{self._success(1.0):.2g}; change one of these options"
            )

    @property
    def right(self) -> float:
        """Probability that the teacher names the right road at a critical turn."""
        stray = self.slip / (self.roads - 1)
        return (self.start_success ** (1 / self.critical) - stray) / (1 - self.slip - stray)

    def _success(self, right: float) -> float:
        """Return the share of walks won if a critical turn's right road is named with this probability."""
        stray = self.slip / (self.roads - 1)
        return (right * (1 - self.slip) + (1 - right) * stray) ** self.critical


SETTINGS: dict[str, dict[str, int | float | str]] = {
    "short": {},
    "long": {"turns": 60},
    "recurring": {"recurrence": "often"},
    "unique": {"recurrence": "never"},
    "hesitant": {"follow": 0.97},
    "confident": {"follow": 0.25},
    "early": {"delay": 0},
    "slippery": {"slip": 0.1},
    "rare": {"start_success": 0.02},
    "frequent": {"start_success": 0.6},
}
"""Named settings: what each changes from "short". In "hesitant" the critical turns are the uncertain ones."""


def read_knobs(setting: str, **options: int | float | str) -> Knobs:
    """Return the knobs of a named setting, changed by options.

    Raises:
        ConfigError: There is no such setting, or an option has a value that cannot be.
    """
    if setting not in SETTINGS:
        raise ConfigError(f"environment.options.setting={setting!r}.{did_you_mean(setting, SETTINGS)}")
    return Knobs(setting, **{**SETTINGS[setting], **options})  # pyright: ignore[reportArgumentType]
