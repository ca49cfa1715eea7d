"""The verbs of `predict`, with their flags and where their questions are implemented. Imports nothing slow, so that help and
errors in flags appear at once."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from annotated_types import Interval

from bert_jax.interface.command import choose_verb
from bert_jax.interface.flags import FlagParser, nonempty, steps_to_profile
from bert_jax.interface.ranges import COUNT, MAX_COUNT, SEED, InRange

if TYPE_CHECKING:
    from bert_jax.prediction.questions import Question

POOLINGS = ("mean", "cls", "pooler")
COMBINATIONS = ("mean", "sum", "concat")
PIECES = Interval(ge=1, le=8)


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    place: str
    """Where the dataclass of its question is, as "MODULE:NAME"."""
    add_flags: Callable[[argparse.ArgumentParser], None]
    """Adds the flags of this verb; their names are fields of the question."""

    @property
    def question(self) -> Callable[..., Question]:
        """The dataclass of its question, whose module takes seconds to import."""
        module, _, name = self.place.partition(":")
        found: Callable[..., Question] = getattr(importlib.import_module(module), name)
        return found


def fill_mask_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `fill-mask`."""
    parser.add_argument("--top-k", type=InRange(int, COUNT), default=5, metavar="K", help="candidates for each [MASK] (5)")
    parser.add_argument("--pieces", type=InRange(int, PIECES), default=1, metavar="N", help="also try words of up to N (1)")


def embed_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `embed`."""
    own = "the model directory's setting, else"
    parser.add_argument("--pooling", choices=POOLINGS, help=f"pooling of token vectors ({own} mean)")
    parser.add_argument("--layers", type=_numbers, default=(-1,), metavar="N,N", help="layers: 0 embeddings, -1 last (-1)")
    parser.add_argument("--combine", choices=COMBINATIONS, default="mean", help="combination of several layers (mean)")
    parser.add_argument("--normalise", action=argparse.BooleanOptionalAction, help=f"vectors of length 1 ({own} not)")
    parser.add_argument("--words", action="store_true", help="a vector for each word, with its character offsets")
    parser.add_argument("--truncate", action=argparse.BooleanOptionalAction, help=f"cut texts that are too long ({own} not)")


def generate_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `generate`."""
    count, positive = InRange(int, COUNT), InRange(float, Interval(gt=0, le=1_000))
    parser.add_argument("--tokens", type=count, default=50, metavar="N", help="new tokens at most (50)")
    parser.add_argument("--temperature", type=positive, metavar="T", help="draw tokens; below 1 the probable ones more often")
    parser.add_argument("--top-k", type=count, metavar="K", help="draw among the K most probable tokens")
    parser.add_argument("--top-p", type=InRange(float, Interval(gt=0, le=1)), metavar="P", help="draw among those that sum to P")
    parser.add_argument("--beams", type=InRange(int, Interval(ge=1, le=64)), default=1, metavar="N", help="beam search (1: none)")
    parser.add_argument("--seed", type=InRange(int, SEED), default=0, metavar="N", help="seed of the draws (0)")


def truncate_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of verbs without windows over long texts."""
    parser.add_argument("--truncate", action="store_true", help="cut texts that are longer than the position table")


def tag_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `tag`."""
    parser.add_argument("--words", action="store_true", help='records are words: "words" of JSON, or between TABs, else spaces')


def answer_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `answer`."""
    count, length = InRange(int, COUNT), InRange(int, Interval(ge=8, le=MAX_COUNT))
    parser.add_argument("--n-best", type=count, default=1, metavar="N", help="answers to show (1)")
    parser.add_argument("--length", type=length, default=384, metavar="TOKENS", help="a window, at most the model's (384)")
    parser.add_argument("--doc-stride", type=count, default=128, metavar="TOKENS", help="from window to window (128)")
    parser.add_argument("--max-answer", type=count, default=30, metavar="TOKENS", help="the longest (30)")
    parser.add_argument("--may-be-unanswerable", action="store_true", help='allow "no answer" (SQuAD 2.0)')
    margin = InRange(float, Interval())
    parser.add_argument("--no-answer-threshold", type=margin, default=0.0, metavar="X", help='margin for "no answer" (0)')


VERBS = {
    "fill-mask": Verb("guess the words behind each [MASK] of a text", "bert_jax.prediction.language:FillMask", fill_mask_flags),
    "next-sentence": Verb("judge whether text_b follows text", "bert_jax.prediction.language:NextSentence", truncate_flag),
    "score": Verb("how likely a text is, by its pseudo-log-likelihood", "bert_jax.prediction.language:Score", truncate_flag),
    "generate": Verb("continue a text, by a left-to-right model", "bert_jax.prediction.generation:Generate", generate_flags),
    "embed": Verb("a vector for each text, or for each of its words", "bert_jax.prediction.embedding:Embed", embed_flags),
    "classify": Verb("the label, or the value, of a text or a pair", "bert_jax.prediction.labels:Classify", truncate_flag),
    "tag": Verb("a label for every word, and the entities they make", "bert_jax.prediction.labels:Tag", tag_flags),
    "answer": Verb("the passage of a context that answers a question", "bert_jax.prediction.labels:AnswerQuestion", answer_flags),
    "choose": Verb("the best of several continuations of a prompt", "bert_jax.prediction.labels:Choose", truncate_flag),
    "resolve": Verb(
        "which of two names a pronoun means, or neither", "bert_jax.prediction.mentions:Resolve", lambda parser: None),
}


def check_flags(command: str, description: str | None) -> None:
    """Prints the help that the command line asks for, and exits; else raises UserError as `parse_flags` does."""
    parse_flags(description)


def parse_flags(description: str | None, argv: Sequence[str] | None = None) -> tuple[str, argparse.Namespace]:
    """The verb and its flags. Raises UserError, and SystemExit after printing the help that the flags ask for."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    summaries = {name: verb.summary for name, verb in VERBS.items()}
    name = choose_verb("python -m bert_jax.predict", description, summaries, arguments)
    if name is None:
        sys.exit(0)
    return name, parser_of(name, VERBS[name]).parse_args(arguments[1:])


def parser_of(name: str, verb: Verb) -> FlagParser:
    """The parser of the flags of a verb."""
    parser = FlagParser(prog=f"python -m bert_jax.predict {name}", description=verb.summary)
    parser.may_be_in_bucket = ("--model", "--input", "--output")
    parser.add_argument("--model", type=nonempty, required=True, help="model directory, workdir of a run, or name on the hub")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="one text per line, .jsonl, a table; .gz, .zst; -: stdin")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")
    parser.add_argument("--output", type=nonempty, metavar="FILE", help="writes JSON lines, also .gz; .npy for embed")
    profile = "batches to profile, counted from 0, into profile/ next to the output"
    parser.add_argument("--profile", type=steps_to_profile, metavar="FIRST:LAST", help=profile)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of formatted text")
    verb.add_flags(parser)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between them") from None
