"""Writes the pages of the reference made from code: methods, trainers, settings, combinations, commands, scale.

    python docs/generate.py            # write
    python docs/generate.py --check    # say what is out of date, exit code 1

Edit the docstring of a method or a setting, or the help of an option, not its page. docs/reference/missing.toml says
which methods are missing, and why.
"""

import sys
from pathlib import Path

from generator import combinations, commands, methods, scale, settings, trainers

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Write, or check."""
    made = methods.pages() | settings.pages() | commands.pages() | trainers.pages()
    made |= scale.pages() | combinations.pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in methods.PAGES.glob("*.md") if path not in made]
    if "--check" in sys.argv[1:]:
        print("\n".join(f"out of date: {path.relative_to(ROOT)}; run python docs/generate.py" for path in stale))
        return int(bool(stale))
    for path in stale:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
