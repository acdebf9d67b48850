"""Stop texts: a response ends with the token that completes one, and nothing else about it changes."""

import asyncio

import pytest
from tests.rollout.chat_models import chat_model

from turnwise.base.errors import EngineFault
from turnwise.engines.base import Generation, Sampling, ends_with_stop
from turnwise.engines.local import LocalEngine
from turnwise.engines.server import until
from turnwise.models.policy import Policy
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig


@pytest.fixture(scope="module")
def policy() -> Policy:
    return pretrained_policy(ModelConfig(name=str(chat_model("qwen3"))), PromptConfig(), seed=0)


def generate(policy: Policy, *, stop=(), count=12, engine=None, max_new_tokens=40) -> list[Generation]:
    engine = engine or LocalEngine(policy.model, decode=policy.tokenizer.decode)
    prompt = policy.format.prompt_ids("say red", first=True)
    sampling = Sampling(max_new_tokens=max_new_tokens, stop=stop, stop_ids=(policy.format.stop_id,), seed=3)

    async def everybody():
        return await asyncio.gather(*(engine.generate(number, prompt, sampling) for number in range(count)))

    return asyncio.run(everybody())


def test_a_response_ends_where_it_first_says_a_stop_text(policy):
    decode = policy.tokenizer.decode
    whole = generate(policy)
    texts = [decode(generation.token_ids) for generation in whole]
    stop = next(text[i : i + 2] for text in texts for i in range(4, len(text) - 4) if "�" not in text[i : i + 2])
    stopped = generate(policy, stop=(stop, "never said at all"))
    assert any(len(short.token_ids) < len(long.token_ids) for short, long in zip(stopped, whole, strict=True))
    for short, long in zip(stopped, whole, strict=True):
        length = len(short.token_ids)
        assert short.token_ids == long.token_ids[:length]
        assert short.logprobs == pytest.approx(long.logprobs[:length], abs=1e-5)
        assert stop not in decode(short.token_ids[:-1])
        if length < len(long.token_ids):
            assert stop in decode(short.token_ids)
            assert not short.truncated
        cut = until((stop,), long, decode)
        assert (cut.token_ids, cut.truncated) == (short.token_ids, short.truncated)


def test_a_stop_text_may_lie_across_many_tokens(policy):
    ids = policy.tokenizer.encode("x <action> go to cabinet 1 </action>", add_special_tokens=False)
    decode = policy.tokenizer.decode
    first = next(end for end in range(1, len(ids) + 1) if ends_with_stop(("</action>",), ids[:end], decode))
    assert decode(ids[:first]).endswith("</action>")
    assert not ends_with_stop((), ids, decode)


def test_without_a_tokenizer_it_is_said(policy):
    with pytest.raises(EngineFault, match="decode"):
        generate(policy, stop=("x",), engine=LocalEngine(policy.model))
