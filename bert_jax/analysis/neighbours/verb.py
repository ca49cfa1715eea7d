"""The verb `neighbours`: the nearest pieces of a word, and in a text the nearest words and the senses of a word in context."""

from __future__ import annotations

import argparse
import sys

from annotated_types import Interval

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.neighbours.figures import FILES, PIECES, summary, write_neighbours, write_pieces
from bert_jax.analysis.neighbours.measure import COUNT, OCCURRENCES, Neighbouring, Neighbours, checked_layers, find_neighbours
from bert_jax.analysis.neighbours.pieces import WordPieces, nearest_pieces
from bert_jax.analysis.verb import Reading, Verb, dress, format_flag, load, print_written
from bert_jax.analysis.windows import marked_window
from bert_jax.errors import UserError
from bert_jax.interface.flags import nonempty
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.interface.words import counted
from bert_jax.prediction.streams import Field, check_not_files, read_texts

SENSES = Interval(ge=1, le=10)


def neighbours_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `neighbours`."""
    format_flag(parser)
    whole, counts = InRange(int, Interval(ge=0, le=MAX_COUNT)), InRange(int, COUNT)
    parser.add_argument("words", nargs="+", metavar="WORD", help="a word, or a sentence with one in brackets: 'a [bank] of sand'")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="the text to look in: a line each, or .jsonl (.gz, .zst)")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")
    parser.add_argument("--layer", type=whole, action="append", default=[], metavar="N", help="0: embeddings; repeatable (all)")
    parser.add_argument("--count", type=counts, default=Neighbouring.count, metavar="N", help="nearest ones that are kept (10)")
    parser.add_argument("--senses", type=InRange(int, SENSES), default=2, metavar="N", help="clusters of occurrences (2)")
    limit, text = InRange(int, OCCURRENCES), "most occurrences of a word that are drawn (200)"
    parser.add_argument("--occurrences", type=limit, default=Neighbouring.occurrences, metavar="N", help=text)


def neighbours(flags: argparse.Namespace) -> int:
    """Writes the nearest pieces of words and, in a text, what is near to words in context. Returns the exit status."""
    check_not_files(flags.words)
    records = read_texts((), flags.input, (Field("text"),), jsonl=flags.jsonl) if flags.input else None
    folder = Folder(flags.output, FILES if records else (PIECES,), records.file if records else None, flags.format)
    dress(folder, flags)
    options = Neighbouring(tuple(flags.layer), flags.count, flags.occurrences)
    analyser = load(flags)
    engine = analyser.engine
    checked_layers(options.layers, engine.config.num_layers)
    plain = [word for word in flags.words if marked_window(engine, word) is None]
    if records is None and len(plain) < len(flags.words):
        raise UserError("a word in context is looked for in a text; name one with --input=FILE")
    if plain and records and engine.config.character_cnn:
        print("the nearest pieces are left out: a model of characters has no table of them", file=sys.stderr)
    elif plain:
        pieces = nearest_pieces(engine.model, plain, options.count)
        write_pieces(folder, pieces)
        print_pieces(pieces)
    failed = 0
    if records:
        reading = Reading(analyser, records)
        found = find_neighbours(engine, flags.words, reading.windows(), options, reading.show)
        reading.close()
        print(f"{counted(reading.texts, 'text')}, {counted(found.words, 'word')}" + reading.cut(found.windows))
        drawn = write_neighbours(folder, found, flags.senses)
        print_nearest(found)
        for own in drawn:
            print("\n".join(summary(own)))
        failed = reading.failed + print_missing(found, flags.input)
    print_written(folder)
    return int(failed > 0)


def print_pieces(found: list[WordPieces]) -> None:
    """Prints the nearest pieces of each word."""
    for word in found:
        own = f" ({' '.join(word.pieces)})" if len(word.pieces) > 1 else ""
        near = ", ".join(f"{piece.piece} {piece.cosine:.3f}" for piece in word.nearest[:8])
        print(f"{word.word}{own}: {near}")


def print_nearest(found: Neighbours) -> None:
    """Prints the three nearest words of each word in context, in the last of the layers."""
    layers = found.random["layer"]
    s = len(layers) - 1
    print(f"layer {layers[s]}: the mean cosine of any two words is {found.random.values[s]:.3f}")
    for q, text in enumerate(found.marked):
        print(text)
        for r in range(3):
            if (s, q, r) in found.contexts:
                print(f"  {found.cosines.values[s, q, r]:.3f}  {found.contexts[s, q, r]}")


def print_missing(found: Neighbours, source: str) -> int:
    """Reports the words that the text does not hold, but for those that stand in a context of their own. Returns their number."""
    missing = [own.word for own in found.occurrences if not own.n and not own.marked]
    for word in missing:
        print(f"error: {word!r} is not in {source}, so it has no senses; give another text or word", file=sys.stderr)
    return len(missing)


NEIGHBOURS = Verb("the pieces nearest to a word; in a text, the words nearest to it and its senses", neighbours_flags, neighbours)
