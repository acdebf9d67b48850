"""Which versions of another trainer its file here was written for."""

from turnwise.errors import IntegrationError

Range = tuple[tuple[int, int], tuple[int, int]]
"""The first version that it works with, and the first that it was not tried with."""


def check_version(name: str, installed: str, supported: Range) -> None:
    """Raise unless the installed version of a trainer is supported: what is private to it changes without notice.

    Args:
        name: As its makers write it; `turnwise.integrations` and the package index have it in lower case.
        installed: Its version.
        supported: The range.

    Raises:
        IntegrationError: It is not.
    """
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if not supported[0] <= numbers < supported[1]:
        first, beyond = (".".join(map(str, version)) for version in supported)
        package = name.lower()
        raise IntegrationError(
            f"turnwise.integrations.{package}: {name} {installed} is installed, supported is {first} up to, not including, {beyond}; "
            f"pip install '{package}>={first},<{beyond}'"
        )
