"""The verb `heads`: statistics of every head over any number of texts."""

from __future__ import annotations

import argparse

from annotated_types import Interval

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads.figures import FILES, TITLES, write_heads
from bert_jax.analysis.heads.measure import REACH, Heads, HeadStatistics, measure_heads
from bert_jax.analysis.verb import Reading, Verb, dress, format_flag, load, print_written, text_flags
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.interface.words import counted
from bert_jax.prediction.streams import Field, read_texts


def heads_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `heads`."""
    format_flag(parser)
    text_flags(parser)
    reach, words = InRange(int, REACH), InRange(int, Interval(ge=0, le=MAX_COUNT))
    parser.add_argument("--pieces", action="store_true", help="measure between pieces instead of words")
    parser.add_argument("--reach", type=reach, default=Heads.reach, metavar="WORDS", help="of the distance profile (16)")
    parser.add_argument(
        "--divergence-words", type=words, default=Heads.divergence_words, metavar="N", help="words read for them (10000)"
    )


def heads(flags: argparse.Namespace) -> int:
    """Writes the statistics of every head over any number of texts. Returns the exit status."""
    records = read_texts(flags.texts, flags.input, (Field("text"),), jsonl=flags.jsonl)
    folder = Folder(flags.output, FILES, records.file, flags.format)
    dress(folder, flags)
    analyser = load(flags)
    reading = Reading(analyser, records)
    options = Heads(reach=flags.reach, in_words=not flags.pieces, divergence_words=flags.divergence_words)
    found = measure_heads(analyser.engine, reading.windows(), options, reading.show)
    reading.close()
    write_heads(folder, found)
    print(f"{counted(reading.texts, 'text')}, {counted(int(found.n.values[0]), 'word')}" + reading.cut(found.windows))
    print_strongest(found)
    print_written(folder)
    return int(reading.failed > 0)


def print_strongest(found: HeadStatistics) -> None:
    """Prints for each statistic the three heads with the most, beside a head that attends to all words alike."""
    print(f"{'statistic':20} {'heads with the most':45} uniform")
    array = found.statistics
    for s, statistic in enumerate(array["statistic"]):
        flat = array.values[s].ravel()
        order = (-flat).argsort()[:3]
        best = ", ".join(f"{found.divergence['head'][i]} {flat[i]:.3f}" for i in order)
        print(f"{TITLES[str(statistic)]:20} {best:45} {found.uniform.values[s]:.3f}")


HEADS = Verb("what every head attends to: entropy, [CLS], [SEP], neighbours, distances", heads_flags, heads)
