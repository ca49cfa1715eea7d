"""The flags of `convert`. Imports nothing slow, so that help and flag errors appear immediately."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from annotated_types import Interval

from bert_jax.errors import UserError, nearest
from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.ranges import COUNT, SEED, InRange, whole_number
from bert_jax.interface.words import cut
from bert_jax.interop import DTYPES, FUNCTIONS, NEW_POSITIONS, PARTS, PLATFORMS, TEXT_POOLINGS
from bert_jax.interop.directory import FORMATS
from bert_jax.model import ACTIVATIONS
from bert_jax.model.heads import PROBLEMS

POSITIONS, TYPES = InRange(int, Interval(ge=1, le=2**20)), InRange(int, Interval(ge=1, le=2**16))
WRITTEN = (*FORMATS, "bert_jax")
"""The formats of exports. "bert_jax" writes the same directory as "huggingface", but it also accepts encoder-decoders that
transformers does not support."""
FORMATS_OF_FLAG = {
    "dtype": ("huggingface", "bert_jax"), "pooling": ("huggingface", "bert_jax"),
    "normalise": ("huggingface", "bert_jax"), "function": ("stablehlo",), "length": ("stablehlo",), "platforms": ("stablehlo",),
}  # fmt: skip


def check_flags(command: str, description: str | None) -> None:
    """Prints the help and exits if the help is requested. Otherwise, raises UserError for wrong flags, as `parse_flags`
    does."""
    parse_flags(description)


def parse_flags(description: str | None, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags. Raises UserError if a flag or a value is unknown, or if flags contradict each other."""
    flags: argparse.Namespace = flag_parser(description).parse_args(argv)
    _check_values(flags)
    return flags


def _check_values(flags: argparse.Namespace) -> None:
    """Raises UserError if the value of a flag is unknown, or if flags contradict each other."""
    for name, known in (
        ("format", WRITTEN), ("dtype", DTYPES), ("activation", tuple(ACTIVATIONS)), ("problem", PROBLEMS),
        ("new_positions", NEW_POSITIONS), ("function", FUNCTIONS), ("pooling", TEXT_POOLINGS),
    ):  # fmt: skip
        value = getattr(flags, name)
        if value is not None and value not in known:
            raise UserError(f"--{name.replace('_', '-')}={value} is unknown: {nearest(value, known)}")
    for name, forms in FORMATS_OF_FLAG.items():
        if getattr(flags, name) not in (None, False) and flags.format not in forms:
            raise UserError(f"--{name} is for --format={forms[0]}, not for {flags.format}; leave it out")
    if flags.new_positions and not flags.max_position:
        raise UserError("--new-positions only applies to a larger position table; add --max-position=N, or leave this flag out")
    if flags.step is not None and flags.last is not None:
        raise UserError(f"--step={flags.step} and --last={flags.last} both choose the checkpoints to read; leave one of them out")
    if flags.layers and flags.keep_layers is not None:
        raise UserError("--layers and --keep-layers are both given; give only one of them")
    if flags.labels and len(set(flags.labels)) < len(flags.labels):
        raise UserError(f"--labels={','.join(flags.labels)} repeats a label; give every output a different label")


def flag_parser(description: str | None) -> FlagParser:
    """Returns the parser of the flags."""
    parser = FlagParser(prog="python -m bert_jax.convert", description=description)
    parser.may_be_in_bucket = ("--from", "--to", "--average")
    read = parser.group("the source model")
    read.add_argument("--from", dest="source", type=nonempty, required=True, metavar="A", help="the model")
    of_step = "if A is a pretraining run: the weights after N steps (default: the final weights)"
    read.add_argument("--step", type=InRange(int, COUNT), metavar="N", help=of_step)
    of_last = "if A is a pretraining run: the mean weights of the last N checkpoints (config.checkpoints.keep)"
    read.add_argument("--last", type=InRange(int, COUNT), metavar="N", help=of_last)
    of_vocab = "a vocabulary whose piece i belongs to row i of the embeddings (default: the model's own)"
    read.add_argument("--vocab", type=nonempty, metavar="PATH", help=of_vocab)
    casing = read.add_mutually_exclusive_group()
    of_casing = "lower-case text; only needed if the model's files do not state the casing, or contradict each other"
    casing.add_argument("--lowercase", action="store_true", default=None, help=of_casing)
    casing.add_argument("--cased", dest="lowercase", action="store_false", help="keep case and accents")
    of_activation = "the variant of GELU that a TensorFlow 1 checkpoint was trained with (default: gelu)"
    read.add_argument("--activation", metavar="|".join(ACTIVATIONS), help=of_activation)
    write = parser.group("the output")
    of_to = "the output directory; an earlier export is replaced"
    write.add_argument("--to", type=nonempty, required=True, metavar="B", help=of_to)
    of_format = "the format; bert_jax is like huggingface, but supports all encoder-decoders"
    write.add_argument("--format", default="huggingface", metavar="|".join(WRITTEN), help=of_format)
    write.add_argument("--dtype", metavar="|".join(DTYPES), help="the type of the weights (default: float32)")
    parts = parser.group("parts", ", ".join(PARTS))
    parts.add_argument("--new", type=_list, default=[], metavar="PART[,PART]", help="add these parts, with random weights")
    of_drop = "remove these parts, or tensors by name (* is a wildcard)"
    parts.add_argument("--drop", type=_list, default=[], metavar="PART[,PART]", help=of_drop)
    parts.add_argument("--labels", type=_list, metavar="A,B,C", help="the labels of a sequence or token head, by id")
    parts.add_argument("--problem", metavar="|".join(PROBLEMS), help="what a sequence head predicts (default: classification)")
    parts.add_argument("--seed", type=InRange(int, SEED), default=0, metavar="N", help="the seed of random weights")
    changes = parser.group("changes")
    changes.add_argument("--max-position", type=POSITIONS, metavar="N", help="resize the position table to N rows")
    of_positions = "how to fill new rows of the position table: copied repeats the table, random draws values (default: copied)"
    changes.add_argument("--new-positions", metavar="|".join(NEW_POSITIONS), help=of_positions)
    of_theta = "change the base of rotary positions in full layers; with SLIDING, also in sliding layers"
    changes.add_argument("--rope-theta", type=_bases, metavar="FULL[,SLIDING]", help=of_theta)
    of_window = "change the window of sliding layers to N tokens (left and right side together)"
    changes.add_argument("--window", type=POSITIONS, metavar="N", help=of_window)
    of_types = "resize the token-type table to N rows; new rows are copies of type 0"
    changes.add_argument("--token-types", type=TYPES, metavar="N", help=of_types)
    of_tokens = "add the words of FILE to the vocabulary; FILE has one word per line, and special tokens are in brackets"
    changes.add_argument("--add-tokens", type=nonempty, metavar="FILE", help=of_tokens)
    of_replaced = "replace the vocabulary; the vector of a new piece is the mean of its old pieces"
    changes.add_argument("--replace-vocab", type=nonempty, metavar="VOCAB", help=of_replaced)
    changes.add_argument("--layers", type=InRange(int, COUNT), metavar="N", help="keep the first N layers")
    changes.add_argument("--keep-layers", type=_layers, metavar="0,2,4", help="keep these layers")
    of_average = "average the weights of A and this model; may be repeated"
    changes.add_argument("--average", type=nonempty, action="append", default=[], metavar="MODEL", help=of_average)
    sentences = parser.group("files for sentence-transformers")
    of_pooling = "how to pool token vectors into a text vector"
    sentences.add_argument("--pooling", metavar="|".join(TEXT_POOLINGS), help=of_pooling)
    sentences.add_argument("--normalise", action="store_true", help="scale text vectors to length 1")
    lowered = parser.group("--format=stablehlo")
    lowered.add_argument("--function", metavar="|".join(FUNCTIONS), help="the function (default: depends on the model's head)")
    lowered.add_argument("--length", type=POSITIONS, metavar="N", help="the number of tokens per text (default: any)")
    of_platforms = "the platforms that can run the file (default: cpu,cuda,tpu)"
    lowered.add_argument("--platforms", type=_list, metavar=",".join(PLATFORMS), help=of_platforms)
    return parser


def _list(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as a,b,c")
    return names


def _bases(text: str) -> list[float]:
    try:
        bases = [float(part) for part in text.split(",")]
    except ValueError:
        bases = []
    if not 1 <= len(bases) <= 2 or not all(1 <= base <= 1e12 for base in bases):
        raise argparse.ArgumentTypeError(f"{cut(text)!r} is not one or two bases from 1 to 1e12, such as 160000,10000")
    return bases


def _layers(text: str) -> list[int]:
    numbers = [whole_number(name) for name in _list(text)]
    if None in numbers:
        raise argparse.ArgumentTypeError(f"{cut(text)!r} is not a list of layers such as 0,2,4")
    return [number for number in numbers if number is not None]
