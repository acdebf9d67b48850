"""How far AEM's alpha is off with entropies estimated from the sampled tokens, on recorded policies of known entropies.

    python -m benchmarks.tinker_entropy [RUN]      default: the run that comes with `turnwise demo`

Per response, the exact column `entropy` is the mean entropy of its tokens, and the estimate the mean of -log p of its
tokens: `engine.entropy = "sampled"` of a server that tells no entropies.
"""

import sys
from pathlib import Path

import numpy as np

from turnwise.commands.demo import demo_run
from turnwise.credit.batch import Batch
from turnwise.credit.methods.build import named_method
from turnwise.credit.segments import Segments
from turnwise.train.folder import RunFolder
from turnwise.train.recorded import read_step, recorded_batch

METHOD = "grpo+aem"


def with_entropy(batch: Batch, entropy_R: np.ndarray) -> Batch:
    """The batch with other entropies."""
    columns = {**batch.columns, "entropy": entropy_R}
    return Batch(batch.groups, batch.trajectories, batch.reward_R, columns, batch.tokens)


def main() -> None:
    folder, config = RunFolder.open(Path(sys.argv[1]) if len(sys.argv) > 1 else demo_run())
    pairs, entropies, advantages, lengths = [], [], [], []
    for path in sorted(folder.rollouts.glob("step-*.parquet")):
        batch = recorded_batch(read_step(path), invalid_penalty=config.environment.invalid_penalty)
        exact, estimate = batch.columns["entropy"], -batch.columns["logprob"]
        traces = [named_method(METHOD).trace(with_entropy(batch, column))[0] for column in (exact, estimate)]
        pairs.append([trace.coefficient_R for trace in traces])
        advantages.append([trace.advantage_R for trace in traces])
        entropies.append([exact, estimate])
        assert isinstance(batch.tokens, Segments)
        lengths.append(batch.tokens.lengths)
    (alpha, noisy), (a, b), (h, s) = (np.concatenate(each, axis=1) for each in (pairs, advantages, entropies))
    off, signal = np.abs(noisy - alpha), a != 0
    tokens = np.concatenate(lengths).mean()
    print(f"{len(pairs)} steps of {folder.path.name}, {len(alpha)} responses of {tokens:.1f} tokens")
    print(f"entropy: mean {h.mean():.3f}, estimate {s.mean():.3f} nats; correlation {np.corrcoef(h, s)[0, 1]:.2f}")
    print(f"alpha: sd {alpha.std():.3f}; off by {off.mean():.3f} on average, {np.quantile(off, 0.9):.3f} in one of ten")
    print(f"       correlation {np.corrcoef(alpha, noisy)[0, 1]:.2f}; where alpha matters (advantage not 0)")
    print(f"       off by {off[signal].mean():.3f}, correlation {np.corrcoef(alpha[signal], noisy[signal])[0, 1]:.2f}")
    print(f"advantage: correlation {np.corrcoef(a[signal], b[signal])[0, 1]:.3f}")


if __name__ == "__main__":
    main()
