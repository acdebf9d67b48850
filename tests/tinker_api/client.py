"""Trains, saves and samples with the package tinker, in an environment that has it: `python client.py URL MODEL`.

Prints one line of JSON about what happened.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
import tinker
from tinker import types

warnings.simplefilter("ignore")
IDS = [2, 5, 6, 7, 3, 5, 6, 4]
NEXT = len(IDS) - 1


def now(value: Any) -> Any:
    """What newer clients return as a future, and older ones at once."""
    return value.result() if hasattr(value, "result") else value


def datum(**given: Any) -> Any:
    inputs = {name: np.array(value, dtype=np.float32) for name, value in given.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(IDS[:-1]),
        loss_fn_inputs={"target_tokens": np.array(IDS[1:]), **inputs},
    )


def logprobs(client: Any) -> list[float]:
    out = client.forward([datum(weights=[1.0] * NEXT)], "cross_entropy").result()
    return [float(value) for value in np.array(out.loss_fn_outputs[0]["logprobs"].data)]


def main(url: str, model: str) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-none")
    client = now(service.create_lora_training_client(base_model=model, rank=4))
    before = logprobs(client)
    rewarded = [0.0] * (NEXT - 3) + [1.0] * 3
    for loss in ("importance_sampling", "ppo", "cispo"):
        client.forward_backward([datum(logprobs=logprobs(client), advantages=rewarded)] * 2, loss).result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    after = logprobs(client)
    state = client.save_state("one").result().path
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=3)
    prompt = types.ModelInput.from_ints(IDS[:4])
    samples = []
    path = client.save_weights_for_sampler("sampler").result().path
    for sampler in (client.save_weights_and_get_sampling_client(), service.create_sampling_client(model_path=path)):
        made = now(sampler).sample(prompt=prompt, num_samples=2, sampling_params=params).result()
        samples.append([[each.tokens, [round(p, 4) for p in each.logprobs]] for each in made.sequences])
    client.forward_backward([datum(weights=[1.0] * NEXT)], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    moved = logprobs(client)
    again = logprobs(now(service.create_training_client_from_state_with_optimizer(state)))
    try:
        client.forward_backward([datum(weights=[1.0] * NEXT)], "dro").result()
        refused = ""
    except Exception as error:
        refused = str(error)
    told = {"before": before, "after": after, "moved": moved, "again": again, "samples": samples, "refused": refused}
    print(json.dumps({**told, "version": tinker.__version__}))


main(*sys.argv[1:])
