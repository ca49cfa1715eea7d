"""The command `compare`: measures where two models differ on the same text."""

from __future__ import annotations

import argparse

import numpy as np

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.command import load_analyser, open_folder, print_written
from bert_jax.analysis.compare.aligned import paired_windows
from bert_jax.analysis.compare.figures import FILES, distances, prediction_rows, write_comparison
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.compare.measure import Comparison, check_comparable, compare_models, matched
from bert_jax.analysis.controls import random_weights
from bert_jax.analysis.reading import Reading
from bert_jax.interface.flags import read_options
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_texts


def run(flags: argparse.Namespace) -> int:
    """Writes how the heads, layers and predictions of two models differ. Returns the exit status."""
    records = read_texts(flags.texts, flags.input, (Field("text"),), jsonl=flags.jsonl)
    folder = open_folder(flags, FILES, [records.file], flags.other or "random weights")
    options = read_options(Comparing, flags)
    engine = load_analyser(flags).engine
    check_comparable(engine, options)  # before random weights are drawn
    other = Engine(random_weights(engine.model, flags.seed)) if flags.control else Analyser.load(flags.other).engine
    reading = Reading(engine, records, min(each.config.max_position for each in (engine, other)))
    pairs = reading.each(lambda text: paired_windows(engine, other, text))
    found = compare_models(engine, other, pairs, options, reading.show)
    print(reading.summary(found.words, found.windows))
    write_comparison(folder, found)
    print_comparison(found)
    print_written(folder)
    return int(reading.failed > 0)


def print_comparison(found: Comparison) -> None:
    """Prints how close the heads, layers and predictions of the two models are."""
    if found.n_divergence:
        every, partners = distances(found), matched(found.divergence.values)
        mean = float(np.mean([every[i, j] for i, j in partners.items()]))
        print(f"heads: mean distance {mean:.3f} between matched heads, {every.mean():.3f} between any two")
        if found.same_shape:
            own, names = np.diag(every), found.divergence["head"]
            farthest = ", ".join(f"{names[i]} {own[i]:.3f}" for i in (-own).argsort()[:3])
            stayed = sum(i == j for i, j in partners.items())
            print(f"  {stayed} of {len(partners)} are matched with the head of the same name; moved most: {farthest}")
    is_paired = found.cka["layer"] == found.cka["other"]
    print("layers: CKA of the same layer in both models, unbiased" if is_paired else "layers: the most similar layer by CKA")
    for i, layer in enumerate(found.cka["layer"]):
        j = i if is_paired else int(np.nan_to_num(found.cka.values[i], nan=-1.0).argmax())
        value = found.cka.values[i, j]
        shown = "- (it needs at least four words with different vectors)" if np.isnan(value) else f"{value:.3f}"
        print(f"  {layer} | {found.cka['other'][j]}: {shown}")
    if found.predictions:
        for name, value, n in prediction_rows(found.predictions):
            print(f"{name}: {value:.3f} (n = {n:,})")
    else:
        print(f"predictions are left out: {found.missing}")
