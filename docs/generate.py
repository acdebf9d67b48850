"""Writes docs/reference/methods.md and a page a method from docstrings, cards and golden numbers.

    python docs/generate.py            # write
    python docs/generate.py --check    # say what is out of date, exit code 1

Edit the docstring of a method, not its page. docs/reference/missing.toml says what is missing, and why.
"""

import inspect
import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path

import turnwise as tw
from turnwise.objective.token_rules import ENTROPY_RULES, TOKEN_RULES

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference" / "methods"
STAGES = {
    "baseline": "Baselines: what a return is compared with",
    "modulation": "Modulation: how much an advantage counts",
    "shaping": "Shaping: what the rewards are",
}
MADE = "<!-- Made by `python docs/generate.py` from the docstring, the card and the golden numbers. Edit those. -->\n"
HEADS = ("Args", "Expected gradient", "Use it when", "Reference", "Raises", "Returns")


def sections(doc: str) -> dict[str, str]:
    """The parts of a docstring, by heading; what stands before the first heading is `""`."""
    result, current = {"": []}, ""
    for line in doc.splitlines():
        found = re.match(rf"({'|'.join(HEADS)}):\s?(.*)$", line)
        if found:
            current, line = found[1], found[2]
            result[current] = []
        result[current].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in result.items()}


def prose(text: str) -> str:
    """Paragraphs, with indented blocks as code."""
    parts = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            parts.append(" ".join(line.strip() for line in block.splitlines()))
    return "\n\n".join(part for part in parts if part)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def paper(card: tw.Card) -> str:
    """Title and link."""
    return f"[{card.title}, arXiv {card.arxiv}](https://arxiv.org/abs/{card.arxiv})" if card.arxiv else card.title


def options(constructor, text: str) -> str:
    """A table of the options, with what the docstring says about each."""
    meanings = dict(re.findall(r"^ {4}(\w+): ((?:.|\n(?! {4}\w+: ))*)", text, re.MULTILINE))
    lines = ["| option | default | meaning |", "|-|-|-|"]
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name == "base":
            default = "see text"
        else:
            default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        lines.append(f"| `{name}` | {default} | {cell(meanings.get(name, ''))} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def body(constructor) -> str:
    """The code of the constructor without its docstring."""
    source = inspect.getsource(constructor)
    tree = source.split('"""')
    return (tree[0].rstrip() + "\n    ...  # docstring\n" + tree[2].lstrip("\n")).rstrip() if len(tree) > 2 else source


def worked(name: str) -> str:
    """The first golden case as a table of its responses."""
    file = ROOT / "tests" / "golden" / f"{name}.json"
    if not file.exists():
        return ""
    case = json.loads(file.read_text())[0]
    flat = [
        (g, n, t, response)
        for g, group in enumerate(case["groups"])
        for n, trajectory in enumerate(group)
        for t, response in enumerate(trajectory)
    ]
    columns = list(flat[0][3])
    lines = [f"| group | trajectory | turn | {' | '.join(columns)} | advantage |", "|" + "-|" * (len(columns) + 4)]
    for (g, n, t, response), value in zip(flat, case["expected"], strict=True):
        shown = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in (response[c] for c in columns)]
        lines.append(f"| {g} | {n} | {t} | {' | '.join(shown)} | {value:.4g} |")
    chosen = ", ".join(f"`{k}={v!r}`" for k, v in case["options"].items())
    note = (
        f"{case['name']}{f' ({chosen})' if chosen else ''}. {cell(case['equation'])}. Source: {cell(case['source'])}."
    )
    return f"{note}\n\n" + "\n".join(lines)


def page(name: str) -> str:
    """The page of a method."""
    constructor = tw.METHODS[name]
    card, method, parts = tw.card_of(constructor), tw.trial(constructor), sections(inspect.getdoc(constructor) or "")
    needs = "; ".join(f"`{c}`: {tw.COLUMNS[c].meaning}" for c in method.needs) or "nothing but rewards and groups"
    facts = [
        ("paper", paper(card)),
        ("acts on", STAGES[card.stage].split(":")[0].lower()),
        ("formula", card.confidence),
        ("needs", needs),
        ("sees other groups", "yes" if method.across_groups else "no"),
        ("keeps state", "yes" if method.init else "no"),
        ("expected gradient", parts.get("Expected gradient", "")),
        ("use it when", parts.get("Use it when", "")),
    ]
    table = "\n".join(["| | |", "|-|-|", *(f"| {key} | {cell(value)} |" for key, value in facts if value)])
    blocks = [
        f"{MADE}\n# {name}: {card.title}",
        table,
        prose(parts[""]),
        "## Options" if parts.get("Args") else "",
        options(constructor, parts.get("Args", "")),
        "## Code",
        f"```py\n{body(constructor)}\n```",
        "## Worked numbers" if worked(name) else "",
        worked(name),
        "## Reference",
        " ".join(parts.get("Reference", "").split()),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def index() -> str:
    """The table of all methods and of what is missing."""
    lines = [
        f"{MADE}\n# Methods\n",
        "Every method is a chain of public blocks; `turnwise methods` prints this table, `turnwise methods --bias`",
        "what each does to the gradient ([bias.md](bias.md)).",
        "Which one to take: [the guide](../how-to/choose-credit.md).",
        "Formula: `exact` was read in the paper or its code, `near-exact` lacks details, `reconstructed` comes from",
        "secondary notes that agree. An option without a published value has no default.",
    ]
    for stage, title in STAGES.items():
        lines += ["", f"## {title}", "", "| method | paper | needs | expected gradient | formula |", "|-|-|-|-|-|"]
        for name, constructor in tw.METHODS.items():
            card, method = tw.card_of(constructor), tw.trial(constructor)
            if card.stage == stage:
                needs = ", ".join([*(f"`{c}`" for c in method.needs), *(f"`{o}=`" for o in card.trial)]) or "-"
                facts = (paper(card), needs, cell(str(method.gradient)), card.confidence)
                lines.append(f"| [{name}](methods/{name}.md) | {' | '.join(facts)} |")
    lines += ["", "## Losses: rules that tell tokens apart", ""]
    lines += [
        "The objective is a set of orthogonal choices in `[update]`: `importance` token, response (ST-PPO) or",
        "trajectory (GSPO); `clip` ppo, cispo or none with `clip_low`, `clip_high` (DAPO, NGRPO) and `dual_clip`;",
        "`aggregate`.",
        "[losses.py](../../src/turnwise/objective/losses.py) says which paper is which setting. In addition to them,",
        "one rule each for `update.tokens` and",
    ]
    lines += ["`update.entropy`:", "", "| rule | what it does | options without a published value |", "|-|-|-|"]
    for section, rules in (("tokens", TOKEN_RULES), ("entropy", ENTROPY_RULES)):
        for name, rule in rules.items():
            known = inspect.signature(rule).parameters.values()
            required = [p.name for p in known if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
            first = (inspect.getdoc(rule) or "").split("\n\n")[0]
            lines.append(f"| `{section}.{name}` | {cell(first)} | {', '.join(f'`{r}=`' for r in required) or '-'} |")
    lines += ["", "## Selection: which tasks and groups", "", "| setting | what it does |", "|-|-|"]
    filters = "`mixed`: groups that neither all succeed nor all fail, refilled (DAPO); `not-all-correct` (NGRPO)"
    selects = "`epochs`: a walk through all tasks; `vade`: by a Thompson draw of what a task would teach (VADE)"
    lines += [f"| `rollout.filter` | {filters} |", f"| `rollout.select` | {selects} |"]
    missing = tomllib.loads((ROOT / "docs" / "reference" / "missing.toml").read_text())
    lines += ["", "## Missing, and why", "", "| method | paper | why it is not here |", "|-|-|-|"]
    lines += [f"| {cell(m['name'])} | {m.get('arxiv', '')} | {cell(m['why'])} |" for m in missing["missing"]]
    lines += ["", "## Columns", ""]
    lines += ["What a batch may carry in addition to the reward. The trainer fills those marked so.", ""]
    lines += ["| column | meaning | filled by the trainer |", "|-|-|-|"]
    lines += [f"| `{n}` | {c.meaning} | {'yes' if c.source == 'trainer' else ''} |" for n, c in tw.COLUMNS.items()]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """All files to write."""
    return {PAGES / f"{name}.md": page(name) for name in tw.METHODS} | {PAGES.with_suffix(".md"): index()}


def main() -> int:
    """Write, or check."""
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in PAGES.glob("*.md") if path not in made]
    if "--check" in sys.argv[1:]:
        print("\n".join(f"out of date: {path.relative_to(ROOT)}; run python docs/generate.py" for path in stale))
        return int(bool(stale))
    PAGES.mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path in made:
            path.write_text(made[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
