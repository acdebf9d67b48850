"""The page on scale: what the paper's ALFWorld setting takes, computed from published and measured figures."""

import json
from pathlib import Path
from typing import NamedTuple

from generator.text import item, wrap

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "scale.md"
MEASURED = ROOT / "benchmarks" / "results" / "credit-scale.json"
MADE = "<!-- Made by `python docs/generate.py` from docs/generator/scale.py and benchmarks/results. Edit those. -->"


class Figure(NamedTuple):
    """A number that somebody published."""

    value: float
    unit: str
    source: str


GIGPO = "GiGPO, arXiv 2505.10978, time per iteration of Qwen2.5-1.5B on ALFWorld, 2 H100, verl-agent"
PHASES = {  # seconds per step
    "rollout": Figure(221.97, "s", GIGPO),
    "old log-probabilities": Figure(24.99, "s", GIGPO),
    "reference log-probabilities": Figure(25.96, "s", GIGPO),
    "update": Figure(89.86, "s", GIGPO),
}
ANCHOR_GPUS = 2
AEM_STEP = Figure(500.7, "s", "AEM, arXiv 2605.00425, figure 6")
AEM_SHARE = Figure(5.62, "s", "AEM, arXiv 2605.00425, figure 6")
CARDS = "model card"
MODELS = {  # parameters
    "0.5 B": Figure(0.49e9, "parameters", f"Qwen2.5-0.5B, {CARDS}"),
    "1.5 B": Figure(1.54e9, "parameters", f"Qwen2.5-1.5B, {CARDS}"),
    "7 B": Figure(7.61e9, "parameters", f"Qwen2.5-7B, {CARDS}"),
    "32 B": Figure(32.8e9, "parameters", f"Qwen3-32B, {CARDS}"),
}
ANCHOR = "1.5 B"
NEMO = "NeMo-RL 0.4, docs/about/performance-summary.md, GRPO on policy, H100, whole steps"
THROUGHPUT = {  # tokens per second and GPU
    "8 B": (8.03e9, Figure(1562, "tokens/s/GPU", f"{NEMO}, Llama 3.1 8B, 16 GPUs")),
    "32 B": (32.8e9, Figure(540, "tokens/s/GPU", f"{NEMO}, Qwen3-32B, 32 GPUs")),
}
API_COSTS = [
    ["1", "4.0", "1.4 ms", "1", "100 %"],
    ["8", "4.0", "0.6 ms", "8", "99 %"],
    ["64", "4.0", "0.5 ms", "62", "97 %"],
    ["512", "4.0", "0.8 ms", "400", "78 %"],
]
"""Measured by `benchmarks.tinker_cost`."""
GPUS = (1, 8, 64)
GPU_GB = 80
STEPS, GROUPS, ROLLOUTS, TURNS, PROMPT, RESPONSE = 150, 16, 8, 50, 2048, 512
"""The paper's setting; lengths and turns are limits."""
TRAINING_BYTES = {"weights": 4, "gradients": 4, "Adam's two moments": 8}
"""Per parameter, float32, sharded over all GPUs (FSDP in verl)."""
REFERENCE_BYTES, ENGINE_BYTES = 2, 2  # bfloat16
MOST_TENSOR_PARALLEL = 8


def written(value: float) -> str:
    """Write a published number; large ones are whole."""
    return f"{value:,.0f}" if value > 1e6 else f"{value:,}"


def memory(model: str, gpus: int) -> tuple[float, float]:
    """GB per GPU without activations and caches: while training, with the reference, and weights while generating."""
    parameters = MODELS[model].value
    training = parameters * (sum(TRAINING_BYTES.values()) + REFERENCE_BYTES) / gpus
    return training / 1e9, parameters * ENGINE_BYTES / min(gpus, MOST_TENSOR_PARALLEL) / 1e9


def hours(model: str, gpus: int) -> tuple[float, float]:
    """Hours of all steps: at best, and if the rollout takes no less than it was measured to take."""
    ratio = MODELS[model].value / MODELS[ANCHOR].value * ANCHOR_GPUS / gpus
    ideal = {name: figure.value * ratio for name, figure in PHASES.items()}
    rollout = max(ideal["rollout"], PHASES["rollout"].value)
    best = sum(ideal.values())
    return STEPS * best / 3600, STEPS * (best - ideal["rollout"] + rollout) / 3600


def throughput(model: str) -> float:
    """Tokens per second and GPU of whole steps, from the nearer published model: inverse to the parameters."""
    parameters = MODELS[model].value
    size, figure = THROUGHPUT["32 B" if parameters > 16e9 else "8 B"]
    return figure.value * size / parameters


def most_tokens() -> tuple[int, int]:
    """Responses and tokens of a step at the limits of turns and lengths."""
    responses = GROUPS * ROLLOUTS * TURNS
    return responses, responses * (PROMPT + RESPONSE)


def credit_seconds(cases: list[dict], method: str, responses: int) -> float:
    """Seconds to make the batch and assign credit, measured."""
    found = next(case for case in cases if case["method"] == method and case["responses"] == responses)
    return (found["batch_ms"] + found["method_ms"]) / 1e3


def gpus_where_credit_shows(cases: list[dict], model: str, share: float = 0.01) -> float:
    """GPUs at which one thread's credit takes a share of the step, at the longest prompts and responses.

    A GPU processes `throughput` tokens a second; a response has `PROMPT + RESPONSE` of them and costs the same however
    large the step is.
    """
    largest = max(case["responses"] for case in cases)
    per_response = credit_seconds(cases, "GRPO + AEM", largest) / largest
    return share / (per_response * throughput(model) / (PROMPT + RESPONSE))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first to the right."""
    lines = [head, ["-", *["-:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def short(value: float) -> str:
    """Two significant digits, without an exponent."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def pages() -> dict[Path, str]:
    """The page."""
    measured = json.loads(MEASURED.read_text())
    cases, (responses, tokens) = measured["cases"], most_tokens()
    step = sum(figure.value for figure in PHASES.values())
    of_gpus = [f"{gpus} GPU{'s' if gpus > 1 else ''}" for gpus in GPUS]
    memories = [[m, *(f"{short(memory(m, n)[0])} / {short(memory(m, n)[1])}" for n in GPUS)] for m in MODELS]
    times = [[m, *(" to ".join(dict.fromkeys(map(short, hours(m, n)))) for n in GPUS)] for m in MODELS]
    rates = [[m, f"{throughput(m):,.0f}", *(short(tokens / throughput(m) / n / 60) for n in GPUS)] for m in MODELS]
    sizes = sorted({case["responses"] for case in cases})
    methods = list(dict.fromkeys(case["method"] for case in cases))
    simulated = [
        [f"{size:,}"]
        + [
            f"{case['batch_ms']:,.{int(size < 100_000)}f} + {case['method_ms']:,.1f}; {case['peak_mib']:,.0f} MiB"
            for method in methods
            for case in cases
            if case["method"] == method and case["responses"] == size
        ]
        for size in sizes
    ]
    small = credit_seconds(cases, "GRPO + AEM", sizes[0])
    shows = ", ".join(f"{m}: {gpus_where_credit_shows(cases, m):,.0f}" for m in MODELS)
    published = {**PHASES, "step with AEM": AEM_STEP, "AEM's own part": AEM_SHARE, **MODELS}
    published |= {f"throughput of {size}": figure for size, (_, figure) in THROUGHPUT.items()}
    sources = [f"{name}: {written(figure.value)} {figure.unit} ({figure.source})" for name, figure in published.items()]
    parts = [
        "# Scale",
        MADE,
        wrap(
            f"What AEM's ALFWorld setting ({GROUPS} groups x {ROLLOUTS}, up to {TURNS} turns, {STEPS} steps) takes "
            "with [verl](../how-to/verl.md) on GPUs of 80 GB, and when the cost of credit shows. We have not run these "
            "sizes. The tables are computed from the published and measured figures at the end."
        ),
        "## Memory",
        wrap(
            f"GB per GPU while training / weights while generating. Training has "
            f"{' + '.join(f'{size} bytes of {name}' for name, size in TRAINING_BYTES.items())} per parameter and "
            f"{REFERENCE_BYTES} of a frozen reference, all sharded over the GPUs; the engine has {ENGINE_BYTES}, over "
            f"at most {MOST_TENSOR_PARALLEL} GPUs. Activations and caches come on top. Above {GPU_GB} GB it takes "
            "`fsdp_config.param_offload` and `optimizer_offload`, or more GPUs."
        ),
        table(["model", *of_gpus], memories),
        "## Tokens",
        wrap(
            f"At its limits a step has {responses:,} responses with prompts of {PROMPT:,} and responses of {RESPONSE} "
            f"tokens: {tokens / 1e6:,.1f} million tokens. Minutes per step at those limits, from published "
            "throughputs of whole steps of GRPO, taken as inverse to the parameters:"
        ),
        table(["model", "tokens/s/GPU", *of_gpus], rates),
        f"## Hours of the paper's {STEPS} steps",
        wrap(
            f"From a published step: {ANCHOR} on {ANCHOR_GPUS} H100 takes {step:,.1f} s, of which the rollout is "
            f"{PHASES['rollout'].value / step:.0%}. The first number takes every phase as proportional to parameters "
            "and inverse to GPUs. The second lets no rollout take less than it was measured to take, since turns are "
            "played one after another, whatever the hardware. Where memory does not suffice, the cell is for "
            "offloaded states, without the time of the transfers."
        ),
        table(["model", *of_gpus], times),
        wrap(
            f"AEM's own step took {AEM_STEP.value} s ({AEM_STEP.value / step:.2f} times this one); its GPUs are not "
            "published."
        ),
        "## Where credit shows",
        wrap(
            f"Measured {measured['date']}, on one thread ({measured['machine']}): processor milliseconds to make the "
            f"batch + to assign credit, and peak memory. Steps of more than {measured['chunk']:,} responses are "
            "credited in chunks of whole groups, so memory stays that of one chunk, and later chunks reuse it, which "
            f"makes them faster. {measured.get('note', '')}"
        ),
        table(["responses per step, about", *methods], simulated),
        item(
            f"The paper's step has at most {responses:,} responses. {sizes[0]:,} take {1e3 * small:,.1f} ms for "
            f"GRPO + AEM, {100 * small / step:.4f} % of the step above. The paper reports {AEM_SHARE.value} s for its "
            "own; what that includes is not known, and ours leaves out computing entropies, so this is no comparison."
        )
        + "\n"
        + item(
            "Credit costs the same per response, whatever the model; GPUs make responses. At the longest prompts and "
            f"responses, one thread's credit takes 1 % of the step at this many GPUs: {shows}. Chunks are independent, "
            "so further processes divide it."
        ),
        "Reproduce: `PYTHONPATH=.:src python -m benchmarks.credit_scale --out benchmarks/results/credit-scale.json`.",
        "## Through the Tinker API",
        wrap(
            "What a response costs this process when a server samples ([guide](../how-to/tinker.md)): two calls, one "
            "to begin and one to fetch, each request with the whole prompt. Measured 2026-11-27 on one core (AMD EPYC, "
            "beside other work) against a server that answers after 1 s, 8 turns, prompts of 400 to 820 tokens. "
            '"Busy" is the time that the delays need over the time that it took.'
        ),
        table(["conversations", "KiB sent", "client's CPU", "responses a second", "busy"], API_COSTS),
        wrap(
            "So the client is the limit above some 400 responses a second: 512 conversations are 90 % busy where a "
            "response takes 4 s, as hundreds of tokens of a large model do. An update sends each trajectory once a "
            "pass, 21 KiB for 820 tokens: 10.5 MiB for 512. Until that day a client whose cost grew with its "
            "connections took 5.3 ms a response at 512, and kept them 23 % busy. Reproduce: `python -m "
            "benchmarks.tinker_cost`."
        ),
        "## Sources",
        "\n".join(item(source) for source in sources),
    ]
    return {PAGE: "\n\n".join(parts) + "\n"}
