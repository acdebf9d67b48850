"""What a command left behind: its one line, and the files."""

from pathlib import Path

from turnwise.commands.cli import main


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in str(path)
    }


def refused(capsys, *arguments: str) -> str:
    """Run a command that must fail; returns its one line."""
    assert main(arguments) == 2
    return one_line(capsys.readouterr())


def one_line(captured) -> str:
    """What was printed: nothing on stdout, one line on stderr."""
    out, err = captured
    assert out == ""
    assert err.startswith("turnwise: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err
