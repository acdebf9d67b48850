"""Measure the WebShop environment: start, reset, steps, and its search compared with Lucene's recorded pages.

    WEBSHOP_DATA=... python benchmarks/webshop_speed.py

Pages are compared where $WEBSHOP_DATA holds transcripts.jsonl.gz (see
tests/environments/webshop/test_transcripts.py), also with bm25s where it is installed. The figures are processor time,
on which other work on the machine has less influence.
"""

import argparse
import gzip
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from turnwise.worlds.bm25 import K1, B, analyse
from turnwise.worlds.webshop.catalogue import data_folder
from turnwise.worlds.webshop.environment import WebshopEnvironment
from turnwise.worlds.webshop.pages import MAX_HITS, PAGE_SIZE
from turnwise.worlds.webshop.shop import Shop, load_shop

Search = Callable[[str], list[str]]
RESULTS = re.compile(r"Page (\d+) \(Total results: ")


def recorded_pages(folder: Path) -> dict[tuple[str, int], list[str]]:
    """Read the products on Lucene's pages, by keywords and number of the page."""
    pages: dict[tuple[str, int], list[str]] = {}
    with gzip.open(folder / "transcripts.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            keywords = ""
            for step in json.loads(line)["steps"]:
                if found := re.fullmatch(r"search\[(.+)\]", step["action"] or ""):
                    keywords = found[1].lower()
                if page := RESULTS.search(step["observation"]):
                    shown = [text.upper() for text in step["available"]["clickables"] if re.fullmatch(r"\w{10}", text)]
                    pages[keywords, int(page[1])] = shown
    return pages


def compare(name: str, search: Search, pages: dict[tuple[str, int], list[str]]) -> None:
    shared = same = total = 0
    for (keywords, number), expected in pages.items():
        shown = search(keywords)[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        shared, total = shared + len(set(shown) & set(expected)), total + len(expected)
        same += shown == expected
    print(f"{name:<28} overlap at 10: {shared / total:.2%}, identical pages: {same} of {len(pages)}")


def bm25s_search(shop: Shop, tokenize: Callable[[str], list[str]]) -> Search:
    """Search with bm25s on the same texts."""
    import bm25s

    names = sorted(shop.products)
    model = bm25s.BM25(method="lucene", k1=K1, b=B)
    model.index([tokenize(shop.products[name].text) for name in names], show_progress=False)

    def search(keywords: str) -> list[str]:
        scores = model.get_scores([term for term in tokenize(keywords) if term in model.vocab_dict])
        best = sorted(range(len(names)), key=lambda number: -scores[number])[:MAX_HITS]
        return [names[number] for number in best if scores[number] > 0]

    return search


def plain_terms(text: str) -> list[str]:
    """Split text the usual way: runs of letters and digits, with Lucene's stop words and stems."""
    return [term for word in re.findall(r"\w+", text.lower()) for term in analyse(word)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goals", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TURNWISE_CACHE"] = cache
        for kind in ("without a kept index", "with it"):
            begun = time.process_time()
            shop, goals = load_shop(goals="synthetic")
            print(
                f"start {kind}: {time.process_time() - begun:.2f} s, {len(shop.products)} products, {len(goals)} goals"
            )

    for observation in ("text", "text_rich"):
        rng, num_steps, resets, begun = random.Random(options.seed), 0, [], time.process_time()
        for goal in rng.sample(goals, options.goals):
            before = time.process_time()
            environment = WebshopEnvironment(shop, goal, max_steps=30, observation=observation)
            step = environment.start()
            resets.append(time.process_time() - before)
            while not step.ended:
                step = environment.step(rng.choice(step.admissible or [""]))
                num_steps += 1
        seconds = time.process_time() - begun
        print(f"{observation}: {num_steps / seconds:,.0f} steps/s, reset {1000 * max(resets):.2f} ms at most")

    pages = recorded_pages(data_folder())
    queries = sorted({keywords for keywords, _ in pages})
    shop.search.cache_clear()
    begun = time.process_time()
    for keywords in queries:
        shop.search(keywords)
    print(f"a search: {1e6 * (time.process_time() - begun) / len(queries):.0f} microseconds")
    compare("turnwise", lambda keywords: [product.asin for product in shop.search(keywords)], pages)
    try:
        compare("bm25s, terms as here", bm25s_search(shop, analyse), pages)
        compare("bm25s, terms by \\w+", bm25s_search(shop, plain_terms), pages)
    except ImportError as error:
        print(f"bm25s is not compared: {error}")


if __name__ == "__main__":
    main()
