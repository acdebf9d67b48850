"""The subcommands, one or a pair a file: `add` declares options; what does the work is imported when a command runs, so that `--help` is instant."""
