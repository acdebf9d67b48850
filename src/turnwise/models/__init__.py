"""Create, load and save policies."""
