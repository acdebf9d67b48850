"""The credit of a run, as its configuration says."""

import inspect

import numpy as np

from turnwise.batch import Batch
from turnwise.config import Config
from turnwise.methods.build import build_method
from turnwise.train.columns import check_columns
from turnwise.transform import Transform, chain
from turnwise.transforms import add_penalty, modulate_by_entropy


def make_credit(config: Config) -> Transform:
    """The configured method, then the penalty for invalid responses as a term of its own.

    Raises:
        ConfigError: The method needs what a rollout does not know.
    """
    method = build_method(config.method.name, config.method.model_extra or {}, with_aem=config.aem)
    check_columns(method, name=config.label, provided=("ref_logprob",))
    return chain(method, add_penalty())


def coefficients(batch: Batch, config: Config) -> np.ndarray:
    """AEM's coefficient of every response, for records and metrics; 1 where AEM is off."""
    if not config.aem and config.method.name != "aem":
        return np.ones(batch.num_responses)
    known = inspect.signature(modulate_by_entropy).parameters
    modulate = modulate_by_entropy(**{k: v for k, v in (config.method.model_extra or {}).items() if k in known})
    return modulate.update(np.ones(batch.num_responses), None, batch)[0]
