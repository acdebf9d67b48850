"""Collect what the engine reported while sampling."""

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.measures.base import Columns, Played, measure


@measure(provides=("behavior_logprob_T",))
def sampled(step: Played, columns: Columns) -> Columns:
    """Collect log-probabilities of tokens under the distributions that they were sampled from (nats)."""
    return {"behavior_logprob_T": np.concatenate([turn.behavior_logprobs for turn in step.turns])}


@measure(provides=("logprob_T", "entropy_T"), needs=("behavior_logprob_T",), engine="entropies")
def engine_scores(step: Played, columns: Columns) -> Columns:
    """Collect log-probabilities and entropies from the engine (nats), which skips the scoring pass."""
    known = [turn.behavior_entropies for turn in step.turns if turn.behavior_entropies is not None]
    if len(known) < len(step.turns):
        raise ConfigError("update.scoring='engine' needs an engine that measures entropies; set engine.name=local")
    return {"logprob_T": columns["behavior_logprob_T"], "entropy_T": np.concatenate(known)}
