"""Converts a model from one format into another, and optionally changes it.

    python -m bert_jax.convert --from=google/bert_uncased_L-2_H-128_A-2 --to=models/tiny
    python -m bert_jax.convert --from=uncased_L-12_H-768_A-12 --to=models/base --activation=gelu_tanh
    python -m bert_jax.convert --from=models/base --to=models/long --max-position=2048 --drop=nsp_head
    python -m bert_jax.convert --from=run --to=served --format=stablehlo --length=128
    python -m bert_jax.convert --from=run --step=50000 --to=models/at_50000

The source is a Hugging Face directory, the workdir of a run, a name on the hub, a TensorFlow 1 checkpoint of the original (its
directory, or the common prefix of its files), or a file of word vectors (word2vec, GloVe, fastText's .vec). A part that the
target format cannot hold is an error unless it is left out with --drop=PART, which also takes names of tensors, with `*` as a
wildcard. --step takes the weights of a checkpoint of a pretraining run, which `config.checkpoints.keep_at` keeps.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.convert", flags="parse_flags")

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence

from annotated_types import Interval

from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.numbers import whole_number
from bert_jax.interface.ranges import COUNT, SEED, InRange
from bert_jax.interface.words import counted, cut
from bert_jax.interop.card import Training, model_card
from bert_jax.interop.conversion import changed, check_flags, model_lines, part_lines, read_all, written
from bert_jax.interop.directory import FORMATS
from bert_jax.interop.huggingface import DTYPES, PARTS, export_model
from bert_jax.interop.stablehlo import FUNCTIONS, PLATFORMS
from bert_jax.interop.surgery import NEW_POSITIONS, average
from bert_jax.model.config import ACTIVATIONS
from bert_jax.model.heads.outputs import PROBLEMS
from bert_jax.pretraining.checkpointed_model import model_of_step
from bert_jax.runtime.environment import quiet_libraries
from bert_jax.storage.mirror import is_input, uploaded
from bert_jax.storage.objects import place
from bert_jax.storage.paths import checked

POSITIONS, TYPES = InRange(int, Interval(ge=1, le=2**20)), InRange(int, Interval(ge=1, le=2**16))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments `argv` (default: sys.argv)."""
    flags = parse_flags(argv)
    check_flags(flags)
    flags.remote = checked(flags.to, "--to")
    given = flags.source
    with uploaded(flags.to, "--to", is_input, exact=True) as flags.to, at_step(flags.source, flags.step) as flags.source:
        lines = convert(flags)
    for n, (title, line) in enumerate(lines):
        line = line.replace(flags.to, flags.remote)
        if flags.step is not None:
            line = line.replace(flags.source, f"{given}, step {flags.step:,}")
        print(f"{'' if n and title == lines[n - 1][0] else title:<9} {line}")


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags. Raises UserError."""
    return _parser().parse_args(argv)


@contextlib.contextmanager
def at_step(source: str, step: int | None) -> Iterator[str]:
    """The model directory of the run `source` after `step` steps, which exists within the context; without a step, `source`."""
    if step is None:
        yield source
        return
    quiet_libraries()
    model = model_of_step(place(checked(source, "--from")), step)
    with tempfile.TemporaryDirectory(prefix="bert_jax-step-") as directory:
        training = Training(steps=f"The state after {counted(step, 'step')} of pretraining.")
        export_model(directory, model, {"step": step}, card=model_card(model, training))
        yield directory


def convert(flags: argparse.Namespace) -> list[tuple[str, str]]:
    """Reads, changes and writes the model of the flags; returns lines of output, each with the title of its group."""
    sources = [flags.source, *flags.average]
    model = average(read_all(sources, flags)) if flags.average else next(read_all(sources, flags))
    lines = [("read", line) for line in (*model_lines(model, flags.new), *model.notes)]
    if flags.average:
        lines.append(("averaged", f"with {', '.join(flags.average)}"))
    model, changes = changed(model, flags)
    notes = [*(f"averaged with {', '.join(flags.average)}" for _ in flags.average[:1]), *changes]
    lines += [("changed", change) for change in changes]
    lines += [("new", line) for line in part_lines(model, flags.new)]
    lines += [("untrained", part) for part in sorted(model.untrained)]
    lines += [("written", line) for line in written(model, flags, notes)]
    return lines


def _parser() -> FlagParser:
    parser = FlagParser(prog="python -m bert_jax.convert", description=__doc__)
    parser.may_be_in_bucket = ("--from", "--to", "--average")
    parser.add_argument("--from", dest="source", type=nonempty, required=True, metavar="A", help="the model to read")
    parser.add_argument("--step", type=InRange(int, COUNT), metavar="N", help="the weights of the run A after N steps")
    parser.add_argument("--to", type=nonempty, required=True, metavar="B", help="the directory to write; replaces an old export")
    parser.add_argument("--format", default="huggingface", metavar="|".join(FORMATS), help="what to write (default: huggingface)")
    parser.add_argument("--dtype", metavar="|".join(DTYPES), help="type of the written weights (default: float32)")
    parser.add_argument("--vocab", type=nonempty, metavar="PATH", help="vocabulary whose piece i has row i (default: its own)")
    casing = parser.add_mutually_exclusive_group()
    casing.add_argument("--lowercase", action="store_true", default=None, help="casing, if the files do not state it or disagree")
    casing.add_argument("--cased", dest="lowercase", action="store_false")
    parser.add_argument("--activation", metavar="|".join(ACTIVATIONS), help="the variant for the original's gelu (default: gelu)")
    parts = parser.add_argument_group("parts", ", ".join(PARTS))
    parts.add_argument("--new", type=_list, default=[], metavar="PART[,PART]", help="add these with random weights")
    parts.add_argument("--drop", type=_list, default=[], metavar="PART[,PART]", help="leave these or tensors (name, x.*) out")
    parts.add_argument("--labels", type=_list, metavar="A,B,C", help="labels of a sequence or token head, by id")
    parts.add_argument("--problem", metavar="|".join(PROBLEMS), help="problem of a sequence head (default: classification)")
    parts.add_argument("--seed", type=InRange(int, SEED), default=0, metavar="N", help="seed of random weights (default: 0)")
    changes = parser.add_argument_group("changes")
    changes.add_argument("--max-position", type=POSITIONS, metavar="N", help="rows of the position table")
    changes.add_argument("--new-positions", metavar="|".join(NEW_POSITIONS), help="copied (default): the table repeated")
    changes.add_argument("--token-types", type=TYPES, metavar="N", help="rows of the token type table; new ones copy type 0")
    changes.add_argument("--add-tokens", type=nonempty, metavar="FILE", help="words, or special tokens in brackets, one per line")
    changes.add_argument("--replace-vocab", type=nonempty, metavar="VOCAB", help="new pieces: the mean of their old pieces")
    changes.add_argument("--layers", type=InRange(int, COUNT), metavar="N", help="keep the first N layers")
    changes.add_argument("--keep-layers", type=_layers, metavar="0,2,4", help="keep these layers")
    changes.add_argument("--average", type=nonempty, action="append", default=[], metavar="B", help="mean of A and B; repeatable")
    lowered = parser.add_argument_group("stablehlo")
    lowered.add_argument("--function", metavar="|".join(FUNCTIONS), help="default: that of the model's head")
    lowered.add_argument("--length", type=POSITIONS, metavar="N", help="tokens of every text (default: any)")
    lowered.add_argument("--platforms", type=_list, metavar=",".join(PLATFORMS), help="(default: cpu,cuda,tpu)")
    return parser


def _list(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as a,b,c")
    return names


def _layers(text: str) -> list[int]:
    numbers = [whole_number(name) for name in _list(text)]
    if None in numbers:
        raise argparse.ArgumentTypeError(f"{cut(text)!r} is not a list of layers such as 0,2,4")
    return [number for number in numbers if number is not None]
