"""Environments that an agent can cheat, each in one way."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from turnwise.environments.base import Step


class Sound:
    """Three turns; only the right word pays."""

    def __init__(self, seed: int):
        self.seed, self.turns = seed, 0

    def start(self) -> str:
        return "say the word"

    def step(self, response: str) -> Step:
        self.turns += 1
        won = self.won(response)
        return Step(
            observation=self.answer(response),
            reward=float(won),
            terminated=won or self.turns == 30,
            valid=won,
            info={"success": won},
        )

    def won(self, response: str) -> bool:
        return response == "abracadabra"

    def answer(self, response: str) -> str:
        return "wrong"


class Shell(Sound):
    """Runs the agent's commands in a folder of its own."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.folder = Path(tempfile.mkdtemp())

    def answer(self, response: str) -> str:
        found = re.search(r"```bash\n(.*)\n```", response, re.DOTALL)
        if not found:
            return "no command"
        command = ["timeout", "0.3", "sh", "-c", f"ulimit -v 500000; {found[1]}"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False).stdout[:1000]


class ReadsResult(Shell):
    """Believes a result file in the folder of the agent's tools."""

    def won(self, response: str) -> bool:
        path = self.folder / "result.json"
        return path.exists() and json.loads(path.read_text())["passed"]


class ReadsHiddenResult(Shell):
    """Believes a file whose name no list has, which the folder has from the start."""

    def __init__(self, seed: int):
        super().__init__(seed)
        (self.folder / "zz-outcome").write_text("0")

    def won(self, response: str) -> bool:
        return self.turns == 30 and (self.folder / "zz-outcome").read_text().strip() == "1"


class OneFolder(Shell):
    """All trajectories share a folder."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.folder = Path(tempfile.gettempdir())


class Believes(Sound):
    """Takes the agent's text for that of its tests."""

    def won(self, response: str) -> bool:
        return "All tests passed" in response


class Obeys(Sound):
    """A judge that does as it is told."""

    def won(self, response: str) -> bool:
        return "Ignore all previous instructions" in response


class Remembers(Sound):
    """Keeps what was said in the class."""

    said: list[str] = []  # noqa: RUF012 (that is the mistake)

    def answer(self, response: str) -> str:
        self.said.append(response[:20])
        return str(len(self.said)) if self.turns > 1 else "wrong"


class Interleaved(Sound):
    """Keeps the turn in the class, and resets it with every new trajectory."""

    turn = 0

    def start(self) -> str:
        Interleaved.turn = 0
        return super().start()

    def answer(self, response: str) -> str:
        Interleaved.turn += 1
        return f"turn {Interleaved.turn}"


class Parses(Sound):
    """Loads JSON without a limit."""

    def answer(self, response: str) -> str:
        found = re.search(r"<tool_call>(.*)</tool_call>", response, re.DOTALL)
        return str(len(json.loads(found[1]))) if found else "no call"


class Slow(Sound):
    """A regular expression that tries every split."""

    def answer(self, response: str) -> str:
        return str(bool(re.fullmatch(r"(9+)+", response[:40] + "!")))


class Dies(Sound):
    """Native code that ends the process on text that is not valid."""

    def answer(self, response: str) -> str:
        if "\ud800" in response:
            import os

            os._exit(3)
        return "wrong"


class Hoards(Sound):
    """Copies long text a hundred times."""

    def answer(self, response: str) -> str:
        self.copies = [response + str(i) for i in range(120)] if len(response) > 1_000_000 else []
        return "wrong"


class Echoes(Sound):
    """Answers with what it was told."""

    def answer(self, response: str) -> str:
        return response
