"""The command `vocabulary`: lists the pieces of a vocabulary and the parameters of a model."""

from __future__ import annotations

import argparse

from bert_jax.analysis.command import load_analyser, open_folder, print_written
from bert_jax.analysis.vocabulary.figures import FILES, examples, write_splits, write_vocabulary
from bert_jax.analysis.vocabulary.flags import VocabularyOptions
from bert_jax.analysis.vocabulary.measure import Vocabulary, groups
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.errors import UserError
from bert_jax.interface.flags import read_options
from bert_jax.interface.words import counted
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_records


def run(flags: argparse.Namespace) -> int:
    """Writes the pieces of the vocabulary by kind, script and length, and the parameters by part. Returns the exit status."""
    folder = open_folder(flags, FILES)
    options = read_options(VocabularyOptions, flags)
    if options.new_words and not options.corpus:
        raise UserError(f"--new-words={options.new_words} looks for words in a corpus; give one with --corpus=DIR")
    names = read_names(options.names) if options.names else None
    corpus = local_corpus(options.corpus, "--corpus") if options.corpus else None
    found = load_analyser(flags).vocabulary(corpus, names, with_splits=bool(options.new_words))
    write_vocabulary(folder, found)
    if found.splits and options.new_words:
        write_splits(folder, found.splits, options.new_words)
    print_vocabulary(found)
    print_written(folder)
    return 0


def print_vocabulary(found: Vocabulary) -> None:
    """Prints the words that the vocabulary splits, the number of pieces with examples by property, and the parameters by
    part."""
    if found.splits:
        shown = " ".join(one.word for one in found.splits.split[:6])
        print(f"{'words that it splits':32} {len(found.splits.split):9,}  {shown}")
        print(f"{'pieces per word':32} {found.splits.pieces_per_word:9.3f}  in {counted(found.splits.words, 'word')}")
    for name, value, pieces in groups(found):
        print(f"{name + ' ' + value:32} {len(pieces):9,}  {examples(pieces, 6)}")
    for part, arrays in found.parameters.items():
        size = sum(arrays.values())
        print(f"{'parameters of ' + part:32} {size:9,}  {100 * size / found.num_parameters:.1f} %")


def read_names(path: str) -> list[str]:
    """Reads names from a file, one per line. Raises UserError for a line that is not text."""
    names = []
    for record in read_records((), path, (Field("text"),)):
        if record.problem:
            raise UserError(f"{record.place}{record.problem}")
        names.append(record.values["text"].strip())
    return names
