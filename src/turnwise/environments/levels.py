"""Choose what launches processes at a level of isolation."""

from collections.abc import Mapping

from turnwise.environments.containers import Docker, Gvisor
from turnwise.environments.launchers import Bubblewrap, Launcher


def make_launcher(isolation: str, variables: Mapping[str, str], image: str = "") -> Launcher:
    """Make the launcher of a level.

    Args:
        isolation: Level, such as setting `environment.isolation`.
        variables: Environment variables of the processes.
        image: Setting `environment.image`, for docker.

    Raises:
        ConfigError: Its program is missing, or does not work on this machine.
    """
    match isolation:
        case "bubblewrap" | "bubblewrap-offline":
            return Bubblewrap(variables, offline=isolation == "bubblewrap-offline")
        case "gvisor":
            return Gvisor(variables)
        case "docker":
            return Docker(variables, image)
    return Launcher(variables)
