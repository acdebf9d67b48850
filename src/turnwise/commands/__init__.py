"""Define the subcommands. `add` declares options; work is imported when a command runs, so that `--help` is fast."""
