"""Runs a trained model on texts: masked words, continuations, labels, entities, answers, embeddings.

    python -m bert_jax.predict fill-mask --model=MODEL "The capital of France is [MASK]."
    python -m bert_jax.predict classify  --model=MODEL --input=FILE --output=answers.jsonl
    python -m bert_jax.predict embed     --model=MODEL --input=texts.txt --output=vectors.npy

MODEL is a Hugging Face model directory, the workdir of a run, or a name on the Hugging Face hub. Texts come as arguments, from
--input=FILE or from standard input: one text per line (with TABs between the fields of verbs that take several), JSON objects,
or a table (.csv, .tsv, .parquet) whose columns have the names of the fields, or those that the model was trained with; files may
be compressed (.gz, .bz2, .xz, .zst). The predictions are in the order of the input. A line without a prediction is reported with
its number; the other lines are predicted, and the exit status is 1. Blank lines are skipped, except by `embed`, which writes a
row for each line: NaN in a .npy, null in JSON.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.predict", flags="parse_flags")

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from annotated_types import Interval

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.command import choose_verb
from bert_jax.interface.flags import FlagParser, nonempty, steps_to_profile
from bert_jax.interface.ranges import COUNT, MAX_COUNT, SEED, InRange
from bert_jax.interface.words import counted
from bert_jax.prediction.answers import Writer, answer_records
from bert_jax.prediction.embedding import COMBINATIONS, POOLINGS, Embed
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.generation import Generate
from bert_jax.prediction.labels import AnswerQuestion, Choose, Classify, Tag
from bert_jax.prediction.language import FillMask, NextSentence, Score
from bert_jax.prediction.mentions import Resolve
from bert_jax.prediction.questions import Question, ask_each
from bert_jax.prediction.streams import Record, read_records, read_texts
from bert_jax.prediction.vectors import VectorWriter
from bert_jax.runtime.compilation_cache import enable_compilation_cache
from bert_jax.runtime.profile import PROFILE, Profile
from bert_jax.storage.fetching import local_place
from bert_jax.storage.mirror import uploaded_file


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    question: Callable[..., Question]
    add_flags: Callable[[argparse.ArgumentParser], None]
    """Adds the flags of this verb; their names are fields of the question."""


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
    parser.add_argument("--doc-stride", "--stride", type=count, default=128, metavar="TOKENS", help="from window to window (128)")
    parser.add_argument("--max-answer", "--max-answer-tokens", type=count, default=30, metavar="TOKENS", help="the longest (30)")
    parser.add_argument("--may-be-unanswerable", action="store_true", help='allow "no answer" (SQuAD 2.0)')
    margin = InRange(float, Interval())
    parser.add_argument("--no-answer-threshold", type=margin, default=0.0, metavar="X", help='margin for "no answer" (0)')


WRITTEN = (".jsonl", ".npy", ".gz")
PIECES = Interval(ge=1, le=8)
OTHER_FORMATS = (
    ".npz", ".txt", ".csv", ".tsv", ".md", ".html", ".xml", ".yaml", ".yml", ".xlsx", ".pt", ".pth", ".pkl", ".pickle", ".bin",
    ".h5", ".mat", ".parquet", ".arrow", ".feather", ".safetensors", ".tfrecord", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst",
)  # fmt: skip
"""Extensions of other formats, which are refused for --output."""

AS_A_PAIR = "two texts, judged as one pair, as the model was trained on; give each as a line of --input to judge it alone"
AS_TWO_TEXTS = "two texts, each judged alone; a pair is one argument with a TAB between its texts"

VERBS = {
    "fill-mask": Verb("guess the words behind each [MASK] of a text", FillMask, fill_mask_flags),
    "next-sentence": Verb("judge whether text_b follows text", NextSentence, truncate_flag),
    "score": Verb("how likely a text is, by its pseudo-log-likelihood", Score, truncate_flag),
    "generate": Verb("continue a text, by a left-to-right model", Generate, generate_flags),
    "embed": Verb("a vector for each text, or for each of its words", Embed, embed_flags),
    "classify": Verb("the label, or the value, of a text or a pair", Classify, truncate_flag),
    "tag": Verb("a label for every word, and the entities they make", Tag, tag_flags),
    "answer": Verb("the passage of a context that answers a question", AnswerQuestion, answer_flags),
    "choose": Verb("the best of several continuations of a prompt", Choose, truncate_flag),
    "resolve": Verb("which of two names a pronoun means, or neither", Resolve, lambda parser: None),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    name, flags = parse_flags(argv)
    flags.place = flags.output
    with uploaded_file(flags.output, "--output") as flags.output:
        return ask(name, VERBS[name], flags)


def parse_flags(argv: Sequence[str] | None = None) -> tuple[str, argparse.Namespace]:
    """The verb and its flags. Raises UserError, and SystemExit after printing the help that the flags ask for."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    summaries = {name: verb.summary for name, verb in VERBS.items()}
    name = choose_verb("python -m bert_jax.predict", __doc__, summaries, arguments)
    if name is None:
        sys.exit(0)
    return name, _parser(name, VERBS[name]).parse_args(arguments[1:])


def ask(name: str, verb: Verb, flags: argparse.Namespace) -> int:
    """Answers the question of a verb with its flags; returns the exit status."""
    options = {field.name for field in dataclasses.fields(verb.question)}  # type: ignore[arg-type]
    question = verb.question(**{option: value for option, value in vars(flags).items() if option in options})
    check_output(name, flags)
    vectors = bool(flags.output) and flags.output.lower().endswith(".npy")
    as_text = not flags.json and not flags.output
    blank = getattr(question, "blank_answer", None)
    columns: dict[str, str | Sequence[str]] = {}  # of the model, which is loaded later
    records = read_texts(
        flags.texts, flags.input, question.fields, jsonl=flags.jsonl, blank_lines=blank is not None, columns=columns
    )
    label_in_line = getattr(question, "label_in_line", None)

    def answer(some: list[Record]) -> list[JsonObject | str]:
        problems = {r.number: label_in_line(engine, r.values) for r in some if r.divided and label_in_line}
        asked = [record.values for record in some if not record.blank and not problems.get(record.number)]
        replies = iter(ask_each(engine, question, asked))
        return [
            problems.get(record.number) or shown(blank() if blank and record.blank else next(replies)) for record in some
        ]

    def shown(reply: Any) -> JsonObject | str:
        if isinstance(reply, UserError):
            return str(reply)
        return {"reply": reply} if as_text else reply if vectors else question.as_json(reply)

    def text(reply: JsonObject) -> str:
        return question.as_text(reply["reply"])

    # opened before the model is loaded, so that errors of --input and --output are reported at once
    writer = VectorWriter(flags.output, records) if vectors else Writer(flags.output, text if as_text else None, records)
    enable_compilation_cache()
    engine = Engine.load(flags.model)
    question.check(engine)
    columns.update(engine.model.columns)
    if name == "classify" and len(flags.texts) == 2 and not any("\t" in text for text in flags.texts):
        if engine.model.of_pairs:
            records = read_records(["\t".join(flags.texts)], None, question.fields)
            print(AS_A_PAIR, file=sys.stderr)
        elif engine.model.of_pairs is None:
            print(AS_TWO_TEXTS, file=sys.stderr)
    check_not_the_model(flags.place, engine)
    engine.profile = Profile(flags.profile, _beside(flags.output) / PROFILE, "predict")
    with writer, engine.profile as profile:
        answer_records(records, engine.group_size, answer, writer)
    if profile.steps and not profile.was_taken:
        raise UserError(f"{profile} begins after the last of {counted(engine.batch_count, 'batch')}; name earlier ones")
    return writer.status


def _beside(output: str | None) -> pathlib.Path:
    """The directory of the output; the current one for the terminal."""
    return pathlib.Path(output).parent if output and output != "-" else pathlib.Path()


def check_output(name: str, flags: argparse.Namespace) -> None:
    """Raises UserError where the extension of --output is that of a format that is not written."""
    if not flags.output or flags.output == "-":
        return
    path = pathlib.Path(flags.output)
    packed, kind = path.suffix == ".gz", pathlib.Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind == ".npy" and (name != "embed" or flags.words or packed):
        what = "a .npy is not compressed here" if packed else "only `embed` of whole texts gives one array of vectors"
        raise UserError(f"--output={flags.output}: {what}; name a .jsonl")
    if kind in OTHER_FORMATS:
        or_array = " or a .npy" if name == "embed" and not flags.words else ""
        raise UserError(f"--output={flags.output}: answers are not written as {kind}; name a .jsonl (JSON lines){or_array}")


def check_not_the_model(output: str | None, engine: Engine) -> None:
    """Raises UserError where `output` is a file of the model directory, which would be overwritten."""
    path = local_place(output or "-")
    if output and path.exists() and path.suffix not in WRITTEN and path.resolve().parent == pathlib.Path(engine.name).resolve():
        raise UserError(f"--output={output} is a file of the model itself; choose another --output")


def _parser(name: str, verb: Verb) -> FlagParser:
    parser = FlagParser(prog=f"python -m bert_jax.predict {name}", description=verb.summary)
    parser.may_be_in_bucket = ("--model", "--input", "--output")
    parser.add_argument("--model", type=nonempty, required=True, help="model directory, workdir of a run, or name on the hub")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="one text per line, .jsonl, a table; .gz, .zst; -: stdin")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")
    parser.add_argument("--output", type=nonempty, metavar="FILE", help="writes JSON lines, also .gz; .npy for embed")
    profile = "batches to profile, counted from 0, into profile/ beside the output"
    parser.add_argument("--profile", type=steps_to_profile, metavar="FIRST:LAST", help=profile)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of formatted text")
    verb.add_flags(parser)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between them") from None
