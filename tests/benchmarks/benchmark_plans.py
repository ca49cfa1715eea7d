"""Time to the first batch, and memory, for corpora of 10^8 to 10^11 tokens. Each corpus is made up: one part of random text,
repeated.

    python -m tests.benchmarks.benchmark_plans --json=FILE

Each size is measured in a process of its own: the time from the corpus to its first batch, the same for a batch from the middle
of the epoch, as after a restart, and the peak memory beyond the synthetic corpus itself.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib
import resource
import time

import numpy as np

from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import BLOCK_TOKENS, Corpus, ShardedOffsets, TokenStore
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from tests.benchmarks.figures import flag_parser, give

SIZES = (10**8, 10**9, 10**10, 10**11)
SENTENCES = 1 << 20
"""The number of sentences in the repeated part, with 24 tokens per sentence and 32 sentences per document on average."""
VOCABULARY = VocabularyInfo(30_522, "", True, "wordpiece", pad_id=0, unk_id=100, cls_id=101, sep_id=102, mask_id=103)


def synthetic(tokens: int) -> Corpus:
    """Returns a corpus of at least this many tokens."""
    rng = np.random.default_rng(0)
    sentences = np.concatenate([[0], np.cumsum(1 + rng.gamma(1.5, 15.3, SENTENCES).astype(np.int64))])
    ends = np.cumsum(rng.geometric(1 / 32, SENTENCES // 16))
    documents = np.concatenate([[0], ends[ends < SENTENCES], [SENTENCES]])
    part = rng.integers(1_000, 30_522, sentences[-1]).astype(np.uint16)
    times = -(-tokens // len(part))
    store = TokenStore((part,) * times, np.arange(times + 1, dtype=np.int64) * len(part))
    offsets = ShardedOffsets([sentences] * times), ShardedOffsets([documents] * times)
    if tokens <= BLOCK_TOKENS:
        return Corpus(store, *(o.joined() for o in offsets), np.bincount(part, minlength=30_522), VOCABULARY, "train", None)
    return Corpus(store, *offsets, np.bincount(part, minlength=30_522), VOCABULARY, "train", None)


def peak() -> int:
    """Returns the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(tokens: int) -> dict[str, float]:
    """Returns the figures for one size, in seconds and MiB."""
    corpus, before, start = synthetic(tokens), peak(), time.perf_counter()
    source = BatchSource(corpus, ExampleConfig(), 256, seed=0)
    source.at(0)
    first, rows = time.perf_counter() - start, source.rows_per_epoch
    del source
    start = time.perf_counter()
    BatchSource(corpus, ExampleConfig(), 256, seed=0).at(rows // 512)
    middle = time.perf_counter() - start
    return {"tokens": corpus.num_tokens, "rows": rows, "first": first, "middle": middle, "mib": (peak() - before) / 2**20}


def report(figures: list[dict[str, float]], file: pathlib.Path | None) -> None:
    """Prints a row for each size."""
    rows = [
        [f"{f['tokens']:,}", f"{f['rows']:,}", f"{f['first']:.1f}", f"{f['middle']:.1f}", f"{f['mib']:,.0f}"] for f in figures
    ]
    give(["tokens", "rows of 128", "first batch, s", "from the middle, s", "MiB"], rows, {"figures": figures}, file)


def main() -> None:
    options = flag_parser(__doc__).parse_args()
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        report(list(pool.map(measure, SIZES)), options.json)


if __name__ == "__main__":
    main()
