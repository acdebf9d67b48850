"""State the version of turnwise."""

__version__ = "0.2.0"
