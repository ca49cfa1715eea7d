"""Rows per second of our batches, compared with transformers' DataCollatorForLanguageModeling.

    python tests/benchmarks/benchmark_batches.py --peer-python=PATH [--corpus=DIR]

PATH is a Python with torch and transformers; without it, ours runs alone. Without a real corpus one is made up.

The time of our side includes everything: a new plan for every epoch (also the first), pairs, gathering, masking, all eight
arrays. The peer only masks rows that are already tokenised, paired and of full length, in every form that it accepts
(peer_collator.py). Run it on an idle machine; the sides are measured alternately, twice, and the best result counts. All figures
go to --json=FILE.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np

from bert_jax.data.batches import BatchSource, corpus_masking_tables
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus, open_corpus
from bert_jax.data.masking import MaskingTables
from bert_jax.data.prefetch import prefetch
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from tests.benchmarks.figures import flag_parser, give
from tests.data.corpora import corpus_from_arrays

V = 30_522
SETTINGS = {
    "128": ExampleConfig(length=128, max_predictions=20),
    "512": ExampleConfig(length=512, max_predictions=80),
    "128, whole words": ExampleConfig(length=128, max_predictions=20, masking="whole_words"),
    "128, words": ExampleConfig(length=128, max_predictions=27, masking="words"),
    "128, spans": ExampleConfig(length=128, max_predictions=20, masking="spans"),
    "128, 3 packed": ExampleConfig(length=128, max_predictions=20, packed_examples=3),
    "512, 3 packed": ExampleConfig(length=512, max_predictions=80, packed_examples=3),
}
BATCH_SIZES = (64, 256, 1024, 4096)


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--corpus", type=pathlib.Path, help="a corpus (default: a made-up one of a million sentences)")
    parser.add_argument("--seconds", type=float, default=1.0, help="the time per measurement; ours runs at least one epoch")
    options = parser.parse_args()
    corpus = open_corpus(options.corpus) if options.corpus else made_up_corpus(10_000)
    made_up = MaskingTables(mask_id=103, legal_ids=np.arange(999, V, dtype=np.int32), continuation=np.arange(V) % 4 == 0)
    tables = corpus_masking_tables(corpus) if options.corpus else made_up
    print(f"{corpus.num_documents:,} documents, {corpus.num_sentences:,} sentences, {corpus.num_tokens:,} tokens")
    figures: list[dict[str, Any]] = []
    for _ in range(2):
        for name, config in SETTINGS.items():
            figures += [{"who": "ours", "length": name} | figure for figure in ours(corpus, config, tables, options.seconds)]
        if options.peer_python:
            for length in (128, 512):
                figures += [
                    {"who": "peer", "length": str(length)} | figure
                    for figure in peer(options.peer_python, corpus, tables, length, options.seconds)
                ]
    report(figures, options.json)


def report(figures: list[dict[str, Any]], file: pathlib.Path | None) -> None:
    """Prints a table of the best rows per second of every method, and the ratio of ours to the peer's."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for figure in sorted(figures, key=lambda figure: figure["rows_per_second"]):
        best[figure["who"], figure["length"], figure["how"]] = figure
    rows = [
        [who, length, f"{figure['rows_per_second']:,.0f}", str(figure["batch_size"]), how]
        for (who, length, how), figure in sorted(best.items())
    ]
    times = {}
    for length in ("128", "512") if any(figure["who"] == "peer" for figure in figures) else ():
        mine = max(f["rows_per_second"] for f in figures if (f["who"], f["length"]) == ("ours", length))
        for use in ("as documented", "bare"):
            theirs = max(f["rows_per_second"] for f in figures if f["length"] == length and f.get("use") == use)
            times[f"{length}, {use}"] = mine / theirs
            print(f"length {length}: {mine / theirs:.0f} times the peer called {use}")
    everything = {"cores": os.cpu_count(), "load": os.getloadavg(), "times_the_peer": times, "figures": figures}
    give(["side", "length", "rows/s", "batch", "how"], rows, everything, file)


def ours(corpus: Corpus, config: ExampleConfig, tables: MaskingTables, seconds: float) -> list[dict[str, Any]]:
    """Returns our rows per second over whole epochs, including plans, in one thread and with two prefetch threads."""
    results = []
    for size in BATCH_SIZES:
        for how in ("one thread", "prefetched"):
            start, step = time.perf_counter(), 0
            source = BatchSource(corpus, config, size, seed=0, tables=tables)
            while step == 0 or time.perf_counter() - start < seconds:
                stop = step + max(1, source.rows_per_epoch // size)
                for _ in prefetch(source.at, step, stop) if how == "prefetched" else map(source.at, range(step, stop)):
                    step += 1
            results.append({"how": how, "batch_size": size, "rows_per_second": step * size / (time.perf_counter() - start)})
    return results


def peer(python: str, corpus: Corpus, tables: MaskingTables, length: int, seconds: float) -> list[dict[str, Any]]:
    """Measures every way to call the collator on 4,096 of our rows."""
    config = ExampleConfig(length=length, max_predictions=length * 3 // 20, short_probability=0.0)
    batch = BatchSource(corpus, config, 16_384, seed=0, tables=tables).at(0)
    full = np.flatnonzero((batch["sequence_ids"] > 0).all(axis=1))[:4096]
    with tempfile.TemporaryDirectory() as directory:
        np.savez(f"{directory}/rows.npz", input_ids=batch["input_ids"][full], token_type_ids=batch["token_type_ids"][full])
        special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
        pathlib.Path(directory, "vocab.txt").write_text("".join(f"{special.get(i, f'word{i}')}\n" for i in range(V)))
        script = pathlib.Path(__file__).with_name("peer_collator.py")
        command = [python, str(script), directory, f"--seconds={seconds}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return json.loads(done.stdout)["results"]


def made_up_corpus(documents: int) -> Corpus:
    """Makes a corpus of sentences of 26 tokens and documents of 110 sentences on average, both skewed as in Wikipedia."""
    rng = np.random.default_rng(0)
    sentences = 1 + rng.exponential(109, documents).astype(int)
    tokens = 1 + rng.gamma(2, 12.5, sentences.sum()).astype(int)
    info = VocabularyInfo(V, "", True, "wordpiece", 0, 100, 101, 102, 103)
    ids = rng.integers(999, V, tokens.sum()).astype(np.uint16)
    return corpus_from_arrays(ids, np.concatenate([[0], np.cumsum(tokens)]), np.concatenate([[0], np.cumsum(sentences)]), info)


if __name__ == "__main__":
    main()
