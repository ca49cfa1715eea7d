"""The command `heads`: statistics of every head over any number of texts."""

from __future__ import annotations

import argparse

import numpy as np

from bert_jax.analysis.command import load_analyser, open_folder, print_written, write_windows
from bert_jax.analysis.heads.figures import FILES, TITLES, write_heads
from bert_jax.analysis.heads.flags import Heads
from bert_jax.analysis.heads.measure import HeadStatistics, measure_heads
from bert_jax.analysis.reading import Reading
from bert_jax.interface.flags import read_options
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_texts


def run(flags: argparse.Namespace) -> int:
    """Writes the statistics of every head over any number of texts. Returns the exit status."""
    records = read_texts(flags.texts, flags.input, (Field("text"),), jsonl=flags.jsonl)
    folder = open_folder(flags, FILES, [records.file])
    engine = load_analyser(flags).engine
    reading = Reading(engine, records)
    found = measure_heads(engine, reading.windows(), read_options(Heads, flags), reading.show)
    write_heads(folder, found)
    print(reading.summary(int(found.n.values[0]), found.windows))
    print_strongest(found)
    write_windows(folder, engine.config)
    print_written(folder)
    return int(reading.failed > 0)


def print_strongest(found: HeadStatistics) -> None:
    """Prints the three heads with the highest values of each statistic, and the value for uniform attention."""
    print(f"{'statistic':20} {'heads with the most':45} uniform")
    array = found.statistics
    for s, statistic in enumerate(array["statistic"]):
        flat = array.values[s].ravel()
        if np.isnan(flat).all():  # if every text has only one word, no word has a previous word
            print(f"{TITLES[str(statistic)]:20} {'-':45} -")
            continue
        order = (-flat).argsort()[:3]
        best = ", ".join(f"{found.divergence['head'][i]} {flat[i]:.3f}" for i in order)
        print(f"{TITLES[str(statistic)]:20} {best:45} {found.uniform.values[s]:.3f}")
