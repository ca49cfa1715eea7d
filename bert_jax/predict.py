"""A trained model answers on the command line.

    python -m bert_jax.predict fill-mask --model=MODEL "The capital of France is [MASK]."
    python -m bert_jax.predict classify  --model=MODEL --input=FILE --output=answers.jsonl
    python -m bert_jax.predict embed     --model=MODEL --input=texts.txt --output=vectors.npy

MODEL is a Hugging Face model directory, the workdir of a run, or a name on the Hugging Face hub. Texts come as arguments, from
--input=FILE or from standard input: a text a line (its fields, where a verb takes several, between TABs), or JSON objects
(--jsonl, or a name that ends in .jsonl), `.gz` included. Answers keep the order. A line that cannot be answered is reported with
its number, the others are answered, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.launch import keep_compiled_programs
from bert_jax.prediction.answers import Writer, answer_records
from bert_jax.prediction.embedding import COMBINATIONS, POOLINGS, Embed
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.labels import AnswerQuestion, Choose, Classify, Tag
from bert_jax.prediction.language import FillMask, NextSentence, Score
from bert_jax.prediction.mentions import Resolve
from bert_jax.prediction.questions import Question, ask_each
from bert_jax.prediction.streams import Record, read_records
from bert_jax.prediction.vectors import VectorWriter
from bert_jax.terminal import FlagParser, UserError, nearest, run_verb


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing a model can be asked on the command line."""

    summary: str
    question: Callable[..., Question]
    add_flags: Callable[[argparse.ArgumentParser], None]
    """The flags of this verb alone; their names are the question's options."""


def fill_mask_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `fill-mask`."""
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="candidates for each [MASK] (5)")
    parser.add_argument("--pieces", type=int, default=1, metavar="N", help="also try words of up to N pieces (1)")


def embed_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `embed`."""
    own = "as the model directory says, else"
    parser.add_argument("--pooling", choices=POOLINGS, help=f"what the vector of a text is ({own} mean)")
    parser.add_argument("--layers", type=_numbers, default=(-1,), metavar="N,N", help="layers: 0 embeddings, -1 last (-1)")
    parser.add_argument("--combine", choices=COMBINATIONS, default="mean", help="how several layers become one vector (mean)")
    parser.add_argument("--normalise", action=argparse.BooleanOptionalAction, help=f"vectors of length 1 ({own} not)")
    parser.add_argument("--words", action="store_true", help="a vector for each word, with its characters")
    parser.add_argument("--truncate", action=argparse.BooleanOptionalAction, help=f"cut texts that are too long ({own} not)")


def truncate_flag(parser: argparse.ArgumentParser) -> None:
    """The one flag of the verbs that read a text whole."""
    parser.add_argument("--truncate", action="store_true", help="cut texts that are longer than the position table")


def tag_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `tag`."""
    parser.add_argument("--words", action="store_true", help='records are words, split already ("words", or TABs between them)')


def answer_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `answer`."""
    parser.add_argument("--n-best", type=int, default=1, metavar="N", help="answers to show (1)")
    parser.add_argument("--length", type=int, default=384, metavar="TOKENS", help="of a window (384)")
    parser.add_argument("--stride", type=int, default=128, metavar="TOKENS", help="from window to window (128)")
    parser.add_argument("--max-answer-tokens", type=int, default=30, metavar="TOKENS", help="longest answer (30)")
    parser.add_argument("--may-be-unanswerable", action="store_true", help='let "no answer" win, as SQuAD 2.0 does')
    parser.add_argument("--no-answer-threshold", type=float, default=0.0, metavar="X", help="score margin it needs (0)")


VERBS = {
    "fill-mask": Verb("guess the words behind each [MASK] of a text", FillMask, fill_mask_flags),
    "next-sentence": Verb("judge whether text_b follows text", NextSentence, truncate_flag),
    "score": Verb("how likely a text is, by its pseudo-log-likelihood", Score, truncate_flag),
    "embed": Verb("a vector for each text, or for each of its words", Embed, embed_flags),
    "classify": Verb("the label, or the value, of a text or a pair", Classify, truncate_flag),
    "tag": Verb("a label for every word, and the entities they make", Tag, tag_flags),
    "answer": Verb("the passage of a context that answers a question", AnswerQuestion, answer_flags),
    "choose": Verb("the best of several continuations of a prompt", Choose, truncate_flag),
    "resolve": Verb("which of two names a pronoun means, or neither", Resolve, lambda parser: None),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The verb; `argv` stands for the command line. Returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        verbs = "\n".join(f"  {name:14} {verb.summary}" for name, verb in VERBS.items())
        print(f"{__doc__}\nVerbs (each has --help):\n{verbs}")
        return 0
    name = arguments[0]
    if name.startswith("-"):
        raise UserError(f"{name} comes after the verb: python -m bert_jax.predict VERB {name}; verbs are {', '.join(VERBS)}")
    if name not in VERBS:
        raise UserError(f"unknown verb {name!r}: {nearest(name, VERBS)}; python -m bert_jax.predict --help")
    verb = VERBS[name]
    flags = _parser(name, verb).parse_args(arguments[1:])
    options = {field.name for field in dataclasses.fields(verb.question)}  # type: ignore[arg-type]
    question = verb.question(**{option: value for option, value in vars(flags).items() if option in options})
    vectors = bool(flags.output) and flags.output.endswith(".npy")
    check_output(name, flags)
    records = read_records(one_record(flags.texts, question), flags.input, question.fields, jsonl=flags.jsonl)
    keep_compiled_programs()
    engine = Engine.load(flags.model)
    question.check(engine)
    for_people = not flags.json and not flags.output

    def answer(some: list[Record]) -> list[Mapping[str, Any] | str]:
        replies = ask_each(engine, question, [record.values for record in some])
        shown = (lambda reply: {"reply": reply}) if for_people else (lambda reply: reply) if vectors else question.as_json
        return [str(reply) if isinstance(reply, UserError) else shown(reply) for reply in replies]

    def text(reply: Mapping[str, Any]) -> str:
        return question.for_people(reply["reply"])

    shown_to_people = text if for_people else None
    with VectorWriter(flags.output, records) if vectors else Writer(flags.output, shown_to_people, records) as writer:
        answer_records(records, engine.window, answer, writer)
    return writer.status


def check_output(name: str, flags: argparse.Namespace) -> None:
    """Refuses, before a model is loaded, a file that could not be written or could not hold the answers."""
    if not flags.output or flags.output == "-":
        return
    if not pathlib.Path(flags.output).absolute().parent.is_dir():
        raise UserError(f"--output={flags.output}: there is no directory {pathlib.Path(flags.output).parent}; make it first")
    if flags.output.endswith((".npy", ".npy.gz")) and (name != "embed" or flags.words or flags.output.endswith(".gz")):
        packed = flags.output.endswith(".gz")
        what = "a .npy is not compressed here" if packed else "only `embed` of whole texts gives one array of vectors"
        raise UserError(f"--output={flags.output}: {what}; name a .jsonl")


def one_record(texts: Sequence[str], question: Question) -> Sequence[str]:
    """Arguments without TABs are the fields of one record, where a verb needs several: `next-sentence "A" "B"`."""
    required = sum(not field.optional for field in question.fields)
    return ["\t".join(texts)] if required > 1 and len(texts) >= required and not any("\t" in text for text in texts) else texts


def _parser(name: str, verb: Verb) -> FlagParser:
    parser = FlagParser(prog=f"python -m bert_jax.predict {name}", description=verb.summary)
    parser.add_argument("--model", required=True, help="Hugging Face model directory, workdir of a run, or name on the hub")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read")
    parser.add_argument("--input", metavar="FILE", help="texts from a file, one a line, or .jsonl; .gz too; - is standard input")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")
    parser.add_argument("--output", metavar="FILE", help="JSON lines to a file, .gz too; .npy of embed")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of text for people")
    verb.add_flags(parser)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between them") from None


if __name__ == "__main__":
    run_verb(main)
