"""The commands of `predict`: their flags, and where the class of each question is defined. This module imports nothing slow, so
that help and flag errors appear immediately."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from annotated_types import Interval

from bert_jax.interface.command import choose_command
from bert_jax.interface.flags import FlagParser, Flags, nonempty, steps_to_profile
from bert_jax.interface.named import load_built_in
from bert_jax.interface.ranges import COUNT, MAX_COUNT, SEED, InRange

if TYPE_CHECKING:
    from bert_jax.prediction.questions import Question

POOLINGS = ("mean", "cls", "pooler")
COMBINATIONS = ("mean", "sum", "concat")
PENALTIES = ("transformers", "gnmt")
"""The length penalties. Translations are compared by the log-probability of their n tokens, divided by n^a ("transformers") or
by ((5 + n) / 6)^a ("gnmt"; Wu et al., arXiv:1609.08144, equation 14)."""
PIECES = Interval(ge=1, le=8)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of `predict`."""

    summary: str
    place: str
    """Where the dataclass of the command's question is defined, "MODULE:NAME"."""
    add_flags: Callable[[Flags], None]
    """Adds the flags of this command. They have the names of the question's fields."""
    example: str
    """The arguments of an example command line, without --model=MODEL."""

    @property
    def question(self) -> Callable[..., Question]:
        """The dataclass of the command's question. It is imported when it is needed, because the import takes seconds."""
        found: Callable[..., Question] = load_built_in(self.place)
        return found


def fill_mask_flags(flags: Flags) -> None:
    """The flags of `fill-mask`."""
    flags.add_argument("--top-k", type=InRange(int, COUNT), default=5, metavar="K", help="words to show for each [MASK]")
    pieces = "also try words of up to N subwords"
    flags.add_argument("--pieces", type=InRange(int, PIECES), default=1, metavar="N", help=pieces)


def embed_flags(flags: Flags) -> None:
    """The flags of `embed`."""
    own = "default: the model directory's setting, otherwise"
    flags.add_argument("--pooling", choices=POOLINGS, help=f"how to combine token vectors into one ({own} mean)")
    layers = "the layers to read: 0 is the embeddings, -1 the last layer"
    flags.add_argument("--layers", type=_numbers, default=(-1,), metavar="N,N", help=layers)
    flags.add_argument("--combine", choices=COMBINATIONS, default="mean", help="how to combine several layers")
    normalise = f"scale the vectors to length 1 ({own} no)"
    flags.add_argument("--normalise", action=argparse.BooleanOptionalAction, help=normalise)
    flags.add_argument("--words", action="store_true", help="one vector per word, with its character offsets")
    truncate = f"cut texts that are longer than the position table ({own} no)"
    flags.add_argument("--truncate", action=argparse.BooleanOptionalAction, help=truncate)


def generate_flags(flags: Flags) -> None:
    """The flags of `generate`."""
    count, positive = InRange(int, COUNT), InRange(float, Interval(gt=0, le=1_000))
    flags.add_argument("--tokens", type=count, default=50, metavar="N", help="maximum number of new tokens")
    temperature = "sample tokens; values below 1 favour the probable ones (default: the most probable token)"
    flags.add_argument("--temperature", type=positive, metavar="T", help=temperature)
    flags.add_argument("--top-k", type=count, metavar="K", help="sample from the K most probable tokens (default: all)")
    nucleus = "sample from the most probable tokens whose probabilities sum to P (default: all tokens)"
    flags.add_argument("--top-p", type=InRange(float, Interval(gt=0, le=1)), metavar="P", help=nucleus)
    beams = "beam search with N hypotheses; 1: no beam search"
    flags.add_argument("--beams", type=InRange(int, Interval(ge=1, le=64)), default=1, metavar="N", help=beams)
    flags.add_argument("--seed", type=InRange(int, SEED), default=0, metavar="N", help="the sampling seed")


def translate_flags(flags: Flags) -> None:
    """The flags of `translate`."""
    beams = "the number of hypotheses of the beam search; 1: take the most probable token at each step"
    flags.add_argument("--beams", type=InRange(int, Interval(ge=1, le=64)), default=4, metavar="N", help=beams)
    power = "the exponent of the length penalty; 0: no penalty (default: 0.6 for gnmt, 1 for transformers)"
    flags.add_argument("--length-penalty", type=InRange(float, Interval(ge=0, le=10)), metavar="A", help=power)
    penalty = "divide the log-probability of n tokens by ((5 + n) / 6)^A (gnmt, as in the paper) or by n^A (transformers)"
    flags.add_argument("--penalty", choices=PENALTIES, default=PENALTIES[1], help=penalty)
    early = "end the search of a text when --beams hypotheses have ended"
    flags.add_argument("--early-stopping", action="store_true", help=early)
    most = "maximum number of tokens of a translation (default: 50 more than in the text)"
    flags.add_argument("--max-length", type=InRange(int, COUNT), metavar="N", help=most)
    references = "a file with a reference translation per line: report BLEU and chrF"
    flags.add_argument("--references", type=nonempty, metavar="FILE", help=references)


def truncate_flag(flags: Flags) -> None:
    """Adds the flag of commands that do not split long texts into windows."""
    flags.add_argument("--truncate", action="store_true", help="cut texts that are longer than the position table")


def tag_flags(flags: Flags) -> None:
    """The flags of `tag`."""
    words = 'texts are already split into words: "words" in JSON, or separated by TABs, otherwise by spaces'
    flags.add_argument("--words", action="store_true", help=words)


def answer_flags(flags: Flags) -> None:
    """The flags of `answer`."""
    count, length, own = InRange(int, COUNT), InRange(int, Interval(ge=8, le=MAX_COUNT)), "default: as in training, otherwise"
    flags.add_argument("--n-best", type=count, default=1, metavar="N", help="number of answers to show")
    windows = f"length of the windows over a long context, at most the model's maximum ({own} 384)"
    flags.add_argument("--length", type=length, metavar="TOKENS", help=windows)
    flags.add_argument("--doc-stride", type=count, metavar="TOKENS", help=f"distance between two windows ({own} 128)")
    flags.add_argument("--max-answer", type=count, metavar="TOKENS", help=f"maximum length of an answer ({own} 30)")
    unanswerable = f'allow "no answer", as in SQuAD 2.0 ({own} no)'
    flags.add_argument("--may-be-unanswerable", action=argparse.BooleanOptionalAction, help=unanswerable)
    margin = f'answer "no answer" if its score exceeds the score of the best answer by more than X ({own} 0)'
    flags.add_argument("--no-answer-threshold", type=InRange(float, Interval()), metavar="X", help=margin)


COMMANDS = {
    "fill-mask": Command(
        "guess the words behind each [MASK] of a text", "bert_jax.prediction.language:FillMask", fill_mask_flags,
        '"The capital of France is [MASK]." --top-k=3'),
    "next-sentence": Command(
        "predict whether a second text follows the first", "bert_jax.prediction.language:NextSentence", truncate_flag,
        '"A sentence." "The one that may follow."'),
    "score": Command(
        "score a text by its pseudo-log-likelihood", "bert_jax.prediction.language:Score", truncate_flag,
        '"How likely is this sentence?"'),
    "generate": Command(
        "continue a text, with a left-to-right model", "bert_jax.prediction.generation:Generate", generate_flags,
        '"The river" --tokens=30 --temperature=0.8'),
    "translate": Command(
        "translate a text, with an encoder-decoder", "bert_jax.prediction.translating:Translate", translate_flags,
        '--input=test.en --references=test.de'),
    "embed": Command(
        "compute a vector for each text, or for each of its words", "bert_jax.prediction.embedding:Embed", embed_flags,
        "--input=sentences.txt --output=vectors.npy"),
    "classify": Command(
        "predict the label or value of a text or a pair", "bert_jax.prediction.labelling:Classify", truncate_flag,
        "--input=reviews.jsonl --output=labelled.jsonl"),
    "tag": Command(
        "predict a label for each word, and the entities", "bert_jax.prediction.labelling:Tag", tag_flags,
        '"Ada Lovelace lived in London."'),
    "answer": Command(
        "find the passage of a context that answers a question", "bert_jax.prediction.labelling:AnswerQuestion", answer_flags,
        "--input=questions.jsonl --n-best=3"),
    "choose": Command(
        "choose the best of several continuations of a prompt", "bert_jax.prediction.labelling:Choose", truncate_flag,
        '"She opened the door and" "went in." "flew away."'),
    "resolve": Command(
        "decide which of two names a pronoun refers to", "bert_jax.prediction.pronouns:Resolve", lambda flags: None,
        '"Ada asked Eve if she would come." she Ada Eve'),
}  # fmt: skip


def check_flags(command: str, description: str | None) -> None:
    """If help is requested, prints it and exits. Raises UserError for wrong flags, as `parse_flags` does."""
    parse_flags(description)


def parse_flags(description: str | None, argv: Sequence[str] | None = None) -> tuple[str, argparse.Namespace]:
    """Returns the command and its flags. Raises UserError, or SystemExit after printing requested help."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    name = choose_command("python -m bert_jax.predict", description, summaries, arguments)
    if name is None:
        sys.exit(0)
    return name, command_parser(name, COMMANDS[name]).parse_args(arguments[1:])


def command_parser(name: str, command: Command) -> FlagParser:
    """Returns the parser of the flags of a command."""
    prog = f"python -m bert_jax.predict {name}"
    description = f"{command.summary[0].upper()}{command.summary[1:]}.\n\n    {prog} --model=MODEL {command.example}"
    parser = FlagParser(prog=prog, description=description)
    parser.may_be_in_bucket = ("--model", "--input", "--output")
    of_model = "a model directory, the workdir of a run, or a name on the hub"
    parser.group("model").add_argument("--model", type=nonempty, required=True, help=of_model)
    texts, output = parser.group("texts"), parser.group("output")
    texts.add_argument("texts", nargs="*", metavar="TEXT", help="the texts (default: standard input)")
    of_input = "one text per line, JSON lines (.jsonl), or a table; also .gz, .zst; - is standard input"
    texts.add_argument("--input", type=nonempty, metavar="FILE", help=of_input)
    texts.add_argument("--jsonl", action="store_true", help="the lines of the input are JSON objects")
    of_output = "write JSON lines to FILE (also .gz, .bz2, .xz, .zst), or with `embed` an array (.npy)"
    output.add_argument("--output", type=nonempty, metavar="FILE", help=of_output)
    output.add_argument("--json", action="store_true", help="print JSON lines instead of formatted text")
    profile = "profile these batches, counted from 0, into profile/ next to the output"
    output.add_argument("--profile", type=steps_to_profile, metavar="FIRST:LAST", help=profile)
    command.add_flags(parser.group(name))
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma-separated list of numbers") from None
