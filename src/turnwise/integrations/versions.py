"""Check the versions of other trainers."""

from turnwise.base.errors import IntegrationError

Range = tuple[tuple[int, int], tuple[int, int]]
"""First supported version, and first untested version."""


def check_version(name: str, installed: str, supported: Range) -> None:
    """Raise unless the installed version of a trainer is supported, since its private parts change without notice.

    Args:
        name: Name of the trainer; in lower case, it is its module here and its package.
        installed: Installed version.
        supported: Range of supported versions.

    Raises:
        IntegrationError: The version is not supported.
    """
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if not supported[0] <= numbers < supported[1]:
        first, beyond = (".".join(map(str, version)) for version in supported)
        package = name.lower()
        raise IntegrationError(
            f"turnwise.integrations.{package}: {name} {installed} is installed, expected >={first},<{beyond}; "
            f"pip install '{package}>={first},<{beyond}'"
        )
