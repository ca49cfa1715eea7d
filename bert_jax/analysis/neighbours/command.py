"""The command `neighbours`: finds the pieces nearest to a word. With a text, also finds the words nearest to a word in context,
and the senses of a word."""

from __future__ import annotations

import argparse
import sys

from bert_jax.analysis.command import load_analyser, open_folder, print_written
from bert_jax.analysis.neighbours.figures import FILES, PIECES, summary, write_neighbours, write_pieces
from bert_jax.analysis.neighbours.flags import USUAL_SENSES, Neighbouring
from bert_jax.analysis.neighbours.measure import Neighbours, WordPieces, checked_layers, find_neighbours, nearest_pieces
from bert_jax.analysis.reading import Reading
from bert_jax.analysis.windows import marked_window
from bert_jax.errors import UserError
from bert_jax.interface.flags import read_options
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import check_not_files, read_texts


def run(flags: argparse.Namespace) -> int:
    """Writes the nearest pieces of words and, if a text is given, the nearest words in context. Returns the exit status."""
    check_not_files(flags.words)
    options = read_options(Neighbouring, flags)
    if not flags.input:
        _refuse_flags_of_texts(flags, options)
    records = read_texts((), flags.input, (Field("text"),), jsonl=flags.jsonl) if flags.input else None
    folder = open_folder(flags, FILES if records else (PIECES,), [records.file] if records else ())
    engine = load_analyser(flags).engine
    checked_layers(options.layers, engine.config.num_layers)
    plain = [word for word in flags.words if marked_window(engine, word) is None]
    if records is None and len(plain) < len(flags.words):
        raise UserError("a word in context is compared with the words of a text; name the text with --input=FILE")
    if plain and records and engine.config.spells_words:
        print("the nearest pieces are left out: a character model has no table of pieces", file=sys.stderr)
    elif plain:
        pieces = nearest_pieces(engine.model, plain, options.count)
        write_pieces(folder, pieces)
        print_pieces(pieces)
    failed = 0
    if records:
        reading = Reading(engine, records)
        found = find_neighbours(engine, flags.words, reading.windows(), options, reading.show)
        print(reading.summary(found.words, found.windows))
        drawn = write_neighbours(folder, found, flags.senses)
        print_nearest(found)
        for own in drawn:
            print("\n".join(summary(own)))
        failed = reading.failed + print_missing(found, flags.input)
    print_written(folder)
    return int(failed > 0)


def _refuse_flags_of_texts(flags: argparse.Namespace, options: Neighbouring) -> None:
    """Raises UserError if a flag is given that has no effect without --input."""
    usual = Neighbouring()
    given = {
        "--jsonl": flags.jsonl,
        **{f"--layer={layer}": True for layer in options.layers},
        f"--senses={flags.senses}": flags.senses != USUAL_SENSES,
        f"--occurrences={options.occurrences}": options.occurrences != usual.occurrences,
    }
    for flag, is_given in given.items():
        if is_given:
            raise UserError(f"{flag} has no effect without a text; name the text with --input=FILE, or leave the flag out")


def print_pieces(found: list[WordPieces]) -> None:
    """Prints the nearest pieces of each word."""
    for word in found:
        is_itself = [piece.lstrip("\u2581\u0120").casefold() for piece in word.pieces] == [word.word.casefold()]
        own = "" if is_itself else f" ({' '.join(word.pieces)})"  # an unknown word is shown as [UNK]
        near = ", ".join(f"{piece.piece} {piece.cosine:.3f}" for piece in word.nearest[:8])
        print(f"{word.word}{own}: {near}")


def print_nearest(found: Neighbours) -> None:
    """Prints the three nearest words of each word in context, at the last of the compared layers."""
    layers = found.random["layer"]
    s = len(layers) - 1
    print(f"layer {layers[s]}: the mean cosine of any two words is {found.random.values[s]:.3f}")
    for q, text in enumerate(found.marked):
        print(text)
        for r in range(3):
            if (s, q, r) in found.contexts:
                print(f"  {found.cosines.values[s, q, r]:.3f}  {found.contexts[s, q, r]}")


def print_missing(found: Neighbours, source: str) -> int:
    """Reports each word that does not occur in the text, unless it was also given in a context. Returns the number of these
    words."""
    missing = [own.word for own in found.occurrences if not own.n and not own.marked]
    for word in missing:
        print(f"error: {word!r} is not in {source}, so it has no senses; give another text or word", file=sys.stderr)
    return len(missing)
