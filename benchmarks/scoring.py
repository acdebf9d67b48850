"""Measure scoring (log-probabilities and entropies) of 49,152 tokens, and the logits of all positions at once.

    OMP_NUM_THREADS=1 python -m benchmarks.scoring
    python -m benchmarks.scoring --device cuda --repeats 5

The model has SmolLM2-135M's shape and random weights. Every figure comes from a process of its own, and the variants
take turns.

* The whole pass: naive logits `[trajectories, tokens, vocabulary]` in float32, and `turnwise.objective.tokens.score`,
  over the same sequences.
* The output layer alone, from hidden states on, and with its backward pass through the weights and the hidden states.
  The depth of the model has no influence here, so two layers make the hidden states.

All work in micro-batches of `--max-tokens`.

Seconds are those of a second call. Memory is the peak of torch during a third, above what it held before.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.common import describe, make_smollm2, one_thread, timed
from benchmarks.tables import ratios, spread, table

from turnwise.credit.segments import Segments
from turnwise.objective.tokens import Sequences, chunked_logprobs, score

VARIANTS = {"naive": 1.0, "turnwise, 20 % generated": 0.2, "turnwise, all generated": 1.0}
RESPONSE = 16
"""Tokens per response; prompts fill the rest."""
Values = tuple[np.ndarray, np.ndarray]


def make_sequences(count: int, length: int, share: float) -> Sequences:
    """Make trajectories of equal length, of which this share was generated (at most all but the first token)."""
    ids = np.random.default_rng(0).integers(0, 49152, (count, length))
    turn = round(RESPONSE / share)
    positions = np.arange(1, length)
    generated = positions[positions % turn >= turn - RESPONSE]
    tokens = Segments.from_lengths([len(generated)] * count)
    return Sequences(list(ids), [generated] * count, tokens, np.arange(count))


def micro_batches(rows: torch.Tensor, options: argparse.Namespace) -> tuple[torch.Tensor, ...]:
    """Split `[trajectories, tokens, ...]` into parts of at most `--max-tokens` tokens, or of one trajectory."""
    return rows.split(max(1, options.max_tokens // rows.shape[1]))


def joined(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Values:
    """Join the log-probabilities and the entropies of micro-batches."""
    logprob, entropy = ([own.detach().flatten() for own in column] for column in zip(*parts, strict=True))
    return torch.cat(logprob).cpu().numpy(), torch.cat(entropy).cpu().numpy()


def naive_logprobs(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[trajectories, tokens - 1]` log-probability and entropy, from logits as they are."""
    logprobs = torch.log_softmax(logits[:, :-1].float(), -1)
    return logprobs.gather(-1, ids[:, 1:, None])[..., 0], -(logprobs.exp() * logprobs).sum(-1)


def most_held(call: Callable[[], object], device: str) -> int:
    """Measure the peak bytes of torch during a call, above what it held before.

    On a CPU from torch's own account of its allocations: the resident set would add what the system reclaims and
    brings back, and what the C library keeps of freed memory.
    """
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return int(np.cumsum([size for _, size in changes]).max())


def whole_pass(options: argparse.Namespace, sequences: Sequences) -> Callable[[], Values]:
    """Run the scoring pass from tokens on."""
    model = make_smollm2(options.layers, options.device)
    if options.variant != "naive":
        return lambda: score(model, sequences, max_tokens=options.max_tokens)

    @torch.no_grad()
    def naive() -> Values:
        parts = []
        for ids in micro_batches(torch.from_numpy(np.stack(sequences.token_ids)).to(options.device), options):
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            parts.append(naive_logprobs(logits, ids))
            del logits
        return joined(parts)

    return naive


def output_layer(options: argparse.Namespace, sequences: Sequences) -> Callable[[], Values]:
    """Run the output layer from hidden states on, with a backward pass of the sums on request."""
    model = make_smollm2(2, options.device)
    layer = model.get_output_embeddings()
    ids = torch.from_numpy(np.stack(sequences.token_ids)).to(options.device)
    with torch.no_grad():
        whole = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    hidden = [part.clone().requires_grad_(options.backward) for part in micro_batches(whole, options)]
    if options.backward:  # gradients have their place before
        layer.weight.grad = torch.zeros_like(layer.weight)
        for part in hidden:
            part.grad = torch.zeros_like(part)
    places = torch.from_numpy(sequences.generated[0]).to(options.device)

    def run() -> Values:
        parts = []
        for states, words in zip(hidden, micro_batches(ids, options), strict=True):
            if options.variant == "naive":
                logprob, entropy = naive_logprobs(layer(states), words)
            else:
                chosen = states[:, places - 1].flatten(0, 1)
                logprob, entropy = chunked_logprobs(
                    chosen, layer, words[:, places].flatten(), chunk_tokens=options.chunk
                )
            if options.backward:
                (logprob.sum() + entropy.sum()).backward()
            parts.append((logprob.detach(), entropy.detach()))
        return joined(parts)

    def without_gradient() -> Values:
        with torch.no_grad():
            return run()

    return run if options.backward else without_gradient


def worker(options: argparse.Namespace) -> None:
    """Measure one variant once; print its figures and write its values to a file."""
    sequences = make_sequences(options.trajectories, options.tokens, VARIANTS[options.variant])
    call = (whole_pass if options.part == "whole" else output_layer)(options, sequences)
    call()  # sets up what libraries need once
    wall, own, (logprob, entropy) = timed(call, options.device)
    most = most_held(call, options.device)
    everywhere = options.variant == "naive"
    where = [np.arange(1, options.tokens)] * options.trajectories if everywhere else sequences.generated
    np.savez(options.values, logprob=logprob, entropy=entropy, where=np.stack(where))
    print(json.dumps({"wall": wall, "own": own, "memory": most}))


def run_worker(options: argparse.Namespace, variant: str, part: str, *, backward: bool, values: Path) -> dict:
    command = [
        sys.executable,
        "-m",
        "benchmarks.scoring",
        "--variant",
        variant,
        "--part",
        part,
        "--values",
        str(values),
    ]
    for name in ("trajectories", "tokens", "layers", "device", "chunk", "max_tokens"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    command += ["--backward"] * backward
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def difference(ours: Path, naive: Path) -> tuple[float, float]:
    """Return the greatest difference of log-probabilities and of entropies."""
    with np.load(ours) as own, np.load(naive) as full:
        rows, index = np.arange(len(own["where"]))[:, None], own["where"] - 1
        return tuple(
            float(np.abs(own[name].reshape(index.shape) - full[name].reshape(len(rows), -1)[rows, index]).max())
            for name in ("logprob", "entropy")
        )  # pyright: ignore


def measure(options: argparse.Namespace, folder: Path, title: str, part: str, *, backward: bool = False) -> None:
    rounds = [
        {
            variant: run_worker(options, variant, part, backward=backward, values=folder / f"{number}.npz")
            for number, variant in enumerate(VARIANTS)
        }
        for _ in range(options.repeats)
    ]
    columns = {
        variant: {name: [got[variant][name] for got in rounds] for name in ("wall", "own", "memory")}
        for variant in VARIANTS
    }
    logits = 4 * 49152 * options.trajectories * options.tokens
    seconds = "own" if options.device == "cpu" else "wall"
    rows = []
    for number, (variant, got) in enumerate(columns.items()):
        apart = ("", "") if not number else difference(folder / f"{number}.npz", folder / "0.npz")
        memory = (f"{max(got['memory']) / 2**20:,.0f}", f"{max(got['memory']) / logits:.3f}")
        times = (spread(got["wall"]), spread(got["own"]), spread(ratios(got[seconds], columns["naive"][seconds])))
        rows.append((variant, *memory, *times, *(f"{value:.1e}" if number else "" for value in apart)))
    header = (
        "",
        "memory MiB",
        "over the logits'",
        "wall s",
        "CPU s",
        "time over naive",
        "log-prob. apart",
        "entropy apart",
    )
    table(title, header, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="of a trajectory")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chunk", type=int, help="tokens whose logits exist at one time, for the output layer alone")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a micro-batch")
    parser.add_argument("--device", default="cpu")
    for internal in ("--variant", "--part", "--values"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_thread()
    if options.variant:
        worker(options)
        return
    print(describe(make_smollm2(options.layers, options.device)))
    size = f"{options.trajectories} trajectories of {options.tokens} tokens"
    print(f"{size}; their logits take {4 * 49152 * options.trajectories * options.tokens / 2**20:,.0f} MiB")
    with tempfile.TemporaryDirectory() as name:
        measure(options, Path(name), "The output layer, forward", "output")
        measure(options, Path(name), f"The whole pass, {options.layers} layers", "whole")
        measure(options, Path(name), "The output layer, forward and backward", "output", backward=True)


if __name__ == "__main__":
    main()
