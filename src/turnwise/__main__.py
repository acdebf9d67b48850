"""Start the command line: `turnwise`, or `python -m turnwise`."""

import sys


def main() -> int:
    """Run the command line and return the exit code; an interrupt while modules are imported is one line."""
    try:
        from turnwise.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("turnwise: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
