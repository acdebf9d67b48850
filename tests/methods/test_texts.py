"""ProxMO: success weights, vectors of texts, and states that read alike, by hand; GiGPO's clusters of texts."""

import math
import random
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pytest
from tests.methods.batches import batch_of

import turnwise as tw
from turnwise.credit.transforms import words
from turnwise.credit.transforms.words import WORD, find_words


@pytest.mark.parametrize(
    ("successes", "won", "lost"), [(1, 1.0142, 1.0000), (7, 1.0000, 0.9858)]
)  # of eight: the card's check
def test_proxmo_success_weights_of_the_card(successes, won, lost):
    flags = [1.0] * successes + [0.0] * (8 - successes)
    batch = batch_of([[1] * 8], np.ones(8), success=flags)
    weight_R = tw.weigh_by_success_rate()(batch)
    np.testing.assert_allclose(weight_R, [won if flag else lost for flag in flags], atol=5e-5)


def test_proxmo_success_rate_counts_trajectories_and_the_releases_counts_clipped_rewards():
    # one success in four turns, three failures of one turn each: p is 1/4 by trajectories, 4/7 by responses
    batch = batch_of([[4, 1, 1, 1]], [0, 0, 0, 10, 0, 0, 0], success=[1] * 4 + [0] * 3)

    def f(x):
        return 1 / (1 + math.exp(-x)) - 0.5

    ones = np.ones(7)
    weight_R, _ = tw.weigh_by_success_rate(alpha=2.0, beta=1.0).update(ones, None, batch)
    np.testing.assert_allclose(weight_R[[0, 4]], [1 + f(0.75**2), 1 + f(-(0.25**2))], rtol=1e-14)
    # the mean reward of 40/7 is clipped to 1: a success weighs 1, a failure the least
    released_R, _ = tw.weigh_by_success_rate(alpha=2.0, beta=1.0, read_from="reward").update(ones, None, batch)
    np.testing.assert_allclose(released_R[[0, 4]], [1.0, 1 + f(-1)], rtol=1e-14)


def test_proxmo_half_a_success_weighs_half_of_both():
    batch = batch_of([[1, 1]], [1, 1], success=[0.5, 0.5])
    f = 1 / (1 + math.exp(-(0.5**4))) - 0.5
    np.testing.assert_allclose(tw.weigh_by_success_rate(beta=1.0)(batch), 1 + 0.5 * f - 0.5 * f, rtol=1e-14)


def vectors(texts, **options: Any) -> np.ndarray:
    text, word, value = tw.tf_idf(texts, **options)
    dense = np.zeros((len(texts), int(word.max()) + 1))
    dense[text, word] = value
    return dense


def test_tf_idf_by_hand():
    # "mug" in both texts: ln(3/3) + 1 = 1; "red" and "blue" in one: ln(3/2) + 1; "a" is too short to be a word
    rare = math.log(3 / 2) + 1
    cosine = 1 * 2 / (math.hypot(1, rare) * math.hypot(2, rare))
    dense = vectors(["A red mug", "mug, a blue MUG!"])
    assert dense.shape == (2, 3)
    np.testing.assert_allclose(dense @ dense.T, [[1, cosine], [cosine, 1]], rtol=1e-14)


def test_tf_idf_counts_repeated_texts_as_scikit_learn_does():
    texts = ["red mug", "blue mug", "a key"]
    once = vectors([texts[0], texts[0], texts[1], texts[2]])
    counted = vectors(texts, count=np.array([2, 1, 1]))
    np.testing.assert_allclose(counted @ counted.T, (once @ once.T)[1:, 1:], rtol=1e-14)
    assert abs((vectors(texts) @ vectors(texts).T)[0, 1] - (counted @ counted.T)[0, 1]) > 0.01


def test_tf_idf_keeps_the_most_frequent_words_and_the_first_of_equals():
    texts = ["zebra zebra mug", "apple", "berry"]
    text, word, value = tw.tf_idf(texts, max_features=2)
    np.testing.assert_array_equal(
        text, [0, 1]
    )  # zebra, then apple: as frequent as mug and berry, before them in the alphabet
    np.testing.assert_array_equal(word, [0, 1])
    np.testing.assert_array_equal(value, [1, 1])
    text, _, _ = tw.tf_idf(texts, count=np.array([1, 1, 2]), max_features=2)
    np.testing.assert_array_equal(text, [0, 2])  # berry now twice


MANY = [" ".join(f"word{n}" for n in np.random.default_rng(k).integers(0, 1500, 40)) for k in range(90)]


def test_of_equally_frequent_words_those_of_scikit_learn_count():
    """More than 1,024 words: its `_limit_features` sorts the counts of the alphabetical vocabulary unstably."""
    words = sorted({word for text in MANY for word in text.split()})
    count = np.array([[text.split().count(word) for word in words] for text in MANY])
    assert len(words) > 1024
    kept = np.sort((-count.sum(axis=0)).argsort()[:1024])
    value = count[:, kept] * (np.log((1 + len(MANY)) / (1 + (count[:, kept] > 0).sum(axis=0))) + 1)
    value = value / np.linalg.norm(value, axis=1, keepdims=True)
    ours, alphabetical = (vectors(MANY, ties=ties) for ties in ("scikit-learn", "alphabet"))
    np.testing.assert_allclose(ours @ ours.T, value @ value.T, atol=1e-13)
    assert np.abs(ours @ ours.T - alphabetical @ alphabetical.T).max() > 1e-3
    released = similar(MANY, np.arange(90), ties="scikit-learn")
    weight = np.exp((value @ value.T) / 0.1)
    np.testing.assert_allclose(released, np.arange(90) - weight @ np.arange(90) / weight.sum(axis=1), atol=1e-10)


READ = [
    "A red mug, and a RED key.",
    "go to desk_1; take the key!",
    "Grüße: naïve café, 2 red mugs; the 2nd MUG",
    "go to desk_1; take the key!",
]


@pytest.mark.parametrize(
    ("max_features", "cosines"),
    [
        (1024, [0.10552366329442008, 0.3402906502476322, 0.08694936928932323]),
        (3, [0.26531890705587097, 0.7204348649747954, 0.44493104253199844]),  # the, red and key, three times each
    ],
)
def test_cosines_are_those_of_scikit_learn(max_features, cosines):
    """Of scikit-learn 1.9.1, TfidfVectorizer(max_features=max_features); the last text is the second again."""
    known = vectors(READ[:3], count=np.array([1, 2, 1]), max_features=max_features, ties="scikit-learn")
    for ours in (vectors(READ, max_features=max_features, ties="scikit-learn"), known):
        cosine = ours @ ours.T
        np.testing.assert_allclose([cosine[0, 1], cosine[0, 2], cosine[1, 2]], cosines, rtol=1e-13)


def test_the_release_of_proxmo_takes_the_words_that_scikit_learn_takes():
    batch = batch_of([[1] * 90], np.arange(90.0), state_text=MANY, success=[0.0] * 90)
    released = tw.center_by_similarity(ties="scikit-learn")(batch) - tw.center_by_similarity()(batch)
    assert np.abs(released).max() > 1e-3
    cases: Any = [("release", "scikit-learn"), ("paper", "alphabet")]
    for convention, ties in cases:
        parts = [tw.proxmo(weight=weight, convention=convention)(batch) for weight in (0.0, 1.0)]
        step = tw.center_by_similarity(ties=ties)(batch)
        np.testing.assert_allclose(parts[1] - parts[0], step, atol=1e-10)


def similar(texts, credit, lengths=None, **options: Any) -> np.ndarray:
    batch = batch_of(lengths or [[1] * len(texts)], credit, state_text=texts)
    return tw.center_by_similarity(**options)(batch)


def test_states_that_read_alike_count_by_their_likeness():
    # cosines 1 and 0: weights e^(1 / tau) and 1
    likely = math.e**2 / (math.e**2 + 1)
    np.testing.assert_allclose(similar(["mug", "key"], [1, 0], temperature=0.5), [1 - likely, likely - 1], rtol=1e-14)
    # hot: all alike; cold: each alone; equal texts share their mean whatever their case
    np.testing.assert_allclose(similar(["mug", "key"], [1, 0], temperature=1e9), [0.5, -0.5], rtol=1e-8)
    np.testing.assert_allclose(similar(["mug", "key", "MUG"], [1, 5, 0], temperature=1e-3), [0.5, 0, -0.5], atol=1e-14)


def test_states_may_be_compared_by_the_commonest_word_alone():
    texts, credit = ["mug mug", "red mug", "key"], [1, 5, 0]
    np.testing.assert_allclose(similar(texts, credit, max_features=1, temperature=1e-3), [-2, 2, -2], atol=1e-14)
    assert tw.tf_idf(["", "!"])[0].shape == (0,)


def test_a_temperature_next_to_zero_still_gives_numbers():
    """Products of equal vectors may round to more than 1, which no temperature may blow up."""
    names = ["mug", "key", "desk", "lamp", "shelf", "drawer", "cabinet"]
    texts = [" ".join(names[k:] + names[:k] + names[: k % 4]) for k in range(7)]
    assert np.isfinite(similar(texts, list(range(7)), temperature=1e-20)).all()


def test_a_text_without_words_is_like_no_other_nor_like_itself():
    np.testing.assert_allclose(similar(["", "mug", "!"], [1, 0, 0]), [2 / 3, -1 / (math.e**10 + 2), -1 / 3], atol=1e-15)
    np.testing.assert_allclose(similar(["", "", ""], [3, 0, 0]), [2, -1, -1], rtol=1e-14)


def test_other_prompts_are_not_compared_but_tell_how_common_a_word_is():
    def expected(red, blue):  # "mug" is in all texts: weight 1
        cosine = 1 / (math.hypot(1, red) * math.hypot(1, blue))
        return 1 / (1 + math.exp((1 - cosine) / 0.1)) * np.array([1, -1])

    rare, common, rarer = math.log(3 / 2) + 1, math.log(5 / 4) + 1, math.log(5 / 2) + 1
    texts, credit = ["red mug", "blue mug"], [1, 0]
    np.testing.assert_allclose(similar(texts, credit), expected(rare, rare), rtol=1e-12)
    beside = similar([*texts, "red mug", "red mug"], [*credit, 50, -50], lengths=[[1, 1], [1, 1]])
    np.testing.assert_allclose(beside, [*expected(common, rarer), 50, -50], rtol=1e-12)


def test_equal_credit_and_lone_responses_get_exactly_nothing():
    np.testing.assert_array_equal(similar(["red mug", "blue mug", "key"], [0.7] * 3), 0.0)
    np.testing.assert_array_equal(similar(["red mug", "blue mug"], [3, 4], lengths=[[1], [1]]), 0.0)


def test_proxmos_release_needs_no_success_flag():
    assert set(tw.proxmo(convention="release").needs) == {"state_text"}
    assert set(tw.proxmo().needs) == {"state_text", "success"}


# -- GiGPO's clusters --------------------------------------------------------------------------------------------------


def released_clusters(texts, threshold):
    """verl-agent's `build_step_group(enable_similarity=True)`, within one group."""
    clusters = []
    for row, text in enumerate(texts):
        for cluster in clusters:
            if SequenceMatcher(None, text, texts[cluster[0]]).ratio() >= threshold:
                cluster.append(row)
                break
        else:
            clusters.append([row])
    return clusters


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9, 0.95])
def test_clusters_are_those_of_verl_agent(threshold):
    generator = np.random.default_rng(int(100 * threshold))
    long = " and a lamp, a desk, a mug," * 10  # above 200 characters difflib leaves out popular ones of the second text
    texts = []
    for k in range(60):
        text = list(f"You are in room {k % 7} and see {k % 3} doors." + (long if k % 2 else ""))
        for place in generator.integers(0, len(text), 4):
            text[place] = "xyz"[generator.integers(3)]
        texts.append("".join(text))
    texts += texts[:10]
    credit = generator.normal(size=70)
    for scale in (False, True):
        expected = np.zeros(70)
        for rows in released_clusters(texts, threshold):
            std = credit[rows].std(ddof=1) + 1e-6 if scale and len(rows) > 1 else 1.0
            expected[rows] = (credit[rows] - credit[rows].mean()) / std
        batch = batch_of([[1] * 70], credit, state_text=texts)
        ours = tw.center_by_cluster(similarity=threshold, scale=scale)(batch)
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_gigpo_takes_similar_texts_for_one_state_if_asked():
    texts = ["You see 12 mugs here.", "You see 13 mugs here.", "The end", "The end"]
    batch = batch_of([[1, 1, 1, 1]], [1, 0, 3, 5], state_text=texts, state_key=[0, 1, 2, 3])
    options: Any = {"weight": 1.0, "scale": False}
    episode = tw.gigpo(weight=0.0, scale=False)(batch)
    np.testing.assert_array_equal(tw.gigpo(**options)(batch), episode)  # four different keys
    np.testing.assert_allclose(
        tw.gigpo(similarity=0.9, **options)(batch), np.add(episode, [0.5, -0.5, -1, 1]), rtol=1e-15
    )
    assert tw.gigpo(similarity=0.9).needs == ("state_text",)
    assert tw.gigpo().needs == ("state_key",)


def test_equal_texts_only_are_one_state_at_a_similarity_of_one():
    batch = batch_of([[1, 1, 1]], [1, 0, 5], state_text=["a mug", "a mug", "a mud"], state_key=[0, 0, 1])
    np.testing.assert_array_equal(tw.gigpo(similarity=1.0)(batch), tw.gigpo()(batch))
    for wrong in (0.0, -0.5, 1.5):
        with pytest.raises(tw.ConfigError, match="must be above 0 and at most 1"):
            tw.gigpo(similarity=wrong)(batch)
    with pytest.raises(
        tw.BatchError, match="center_by_cluster needs texts, but column 'state_key' does not hold texts"
    ):
        tw.center_by_cluster(column="state_key")(batch)


def test_words_of_texts_cut_together_are_those_of_each_alone():
    generator = random.Random(0)
    long = ["eightlet", "sixteencharacter", "sixteencharacters", "sixteencharacterz"]  # numbers hold 8 and 16 bytes
    characters = [*"ab1_ é-,.\n\t\0Σİ\u2028\x1c\ud800", "word ", "Shelf 1", *long]
    for _ in range(300):
        texts = ["".join(generator.choices(characters, k=generator.randint(0, 12))) for _ in range(4)]
        vocabulary, text, number = find_words(texts)
        found = [[vocabulary[n] for n in number[text == k]] for k in range(4)]
        assert found == [WORD.findall(text.lower()) for text in texts]


def test_words_that_meet_in_a_slot_stay_apart(monkeypatch):
    texts = [" ".join(f"word{n}" for n in range(k, k + 60)) for k in range(40)]
    expected = find_words(texts)
    monkeypatch.setattr(words, "SLOT_BITS", 3)  # 100 words in 8 slots
    found = find_words(texts)
    assert found[0] == expected[0] == sorted({word for text in texts for word in text.split()})
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("num_states", [15, 40, 600])
def test_rare_and_frequent_words_count_alike(num_states):
    """A word of few states of a group takes another way than one of many."""
    generator = np.random.default_rng(num_states)
    names = np.array([f"word{n}" for n in range(200)])
    likely = 1 / np.arange(1, 201)
    texts = [" ".join(row) for row in generator.choice(names, (num_states, 12), p=likely / likely.sum())]
    credit = generator.normal(size=num_states)
    cosine = vectors(texts) @ vectors(texts).T
    weight = np.exp((cosine - 1) / 0.1)
    np.testing.assert_allclose(similar(texts, credit), credit - weight @ credit / weight.sum(axis=1), atol=1e-13)
