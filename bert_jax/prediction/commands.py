"""The commands of `predict`: their options, which become flags, and where the class of each question is defined. This module
imports nothing slow, so that help and flag errors appear immediately."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

from bert_jax.interface.command import choose_command
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, nonempty, steps_to_profile
from bert_jax.interface.named import load_built_in
from bert_jax.interface.ranges import MAX_COUNT, Count, OneOf, Seed

if TYPE_CHECKING:
    from bert_jax.prediction.questions import Question

POOLINGS = ("mean", "cls", "pooler")
COMBINATIONS = ("mean", "sum", "concat")
PENALTIES = ("transformers", "gnmt")
"""The length penalties. Translations are compared by the log-probability of their n tokens, divided by n^a ("transformers") or
by ((5 + n) / 6)^a ("gnmt"; Wu et al., arXiv:1609.08144, equation 14)."""
BEAMS = Interval(ge=1, le=64)
OF_DIRECTORY = "default: the model directory's setting, otherwise"
OF_RUN = "default: as in training, otherwise"


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a command that has none."""


@dataclasses.dataclass(frozen=True)
class Truncation:
    """The option of commands that do not split long texts into windows."""

    truncate: bool = flag(False, "cut texts that are longer than the position table")


@dataclasses.dataclass(frozen=True)
class FillMaskOptions:
    """The options of `fill-mask`."""

    top_k: Count = flag(5, "words to show for each [MASK]", "K")
    pieces: Annotated[int, Interval(ge=1, le=8)] = flag(1, "also try words of up to N subwords", "N")


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    """The options of `generate`."""

    tokens: Count = flag(50, "maximum number of new tokens", "N")
    temperature: Annotated[float, Interval(gt=0, le=1_000)] | None = flag(
        None, "sample tokens; values below 1 favour the probable ones (default: the most probable token)", "T"
    )
    top_k: Count | None = flag(None, "sample from the K most probable tokens (default: all)", "K")
    top_p: Annotated[float, Interval(gt=0, le=1)] | None = flag(
        None, "sample from the most probable tokens whose probabilities sum to P (default: all tokens)", "P"
    )
    beams: Annotated[int, BEAMS] = flag(1, "beam search with N hypotheses; 1: no beam search", "N")
    seed: Seed = flag(0, "the sampling seed", "N")


@dataclasses.dataclass(frozen=True)
class TranslateOptions:
    """The options of `translate`."""

    beams: Annotated[int, BEAMS] = flag(
        4, "the number of hypotheses of the beam search; 1: take the most probable token at each step", "N"
    )
    length_penalty: Annotated[float, Interval(ge=0, le=10)] | None = flag(
        None, "the exponent of the length penalty; 0: no penalty (default: 0.6 for gnmt, 1 for transformers)", "A"
    )
    penalty: Annotated[str, OneOf(PENALTIES)] = flag(
        PENALTIES[1], "divide the log-probability of n tokens by ((5 + n) / 6)^A (gnmt, as in the paper) or by n^A (transformers)"
    )
    early_stopping: bool = flag(False, "end the search of a text when --beams hypotheses have ended")
    max_length: Count | None = flag(None, "maximum number of tokens of a translation (default: 50 more than in the text)", "N")
    references: str | None = flag(None, "a file with a reference translation per line: report BLEU and chrF", "FILE")


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma-separated list of numbers") from None


@dataclasses.dataclass(frozen=True)
class EmbedOptions:
    """The options of `embed`. None means the setting of the model directory, if it has the sentence-transformers format."""

    pooling: Annotated[str, OneOf(POOLINGS)] | None = flag(None, f"how to combine token vectors into one ({OF_DIRECTORY} mean)")
    """"mean": the mean over all tokens (a static model leaves out [CLS] and [SEP]); "cls": the state of [CLS]; "pooler": the
    output of the trained pooler."""
    layers: tuple[int, ...] = flag((-1,), "the layers to read: 0 is the embeddings, -1 the last layer", "N,N", read=_layers)
    """The layers to read. 0 is the embeddings, N is the last layer, and negative numbers count from the end."""
    combine: Annotated[str, OneOf(COMBINATIONS)] = flag("mean", "how to combine several layers")
    """How to combine several layers. "concat" is the paper's feature-based approach (section 5.3)."""
    normalise: bool | None = flag(None, f"scale the vectors to length 1 ({OF_DIRECTORY} no)")
    words: bool = flag(False, "one vector per word, with its character offsets")
    """Whether to return one vector per word, the mean over the word's subwords, with the character offsets of the word."""
    truncate: bool | None = flag(None, f"cut texts that are longer than the position table ({OF_DIRECTORY} no)")


@dataclasses.dataclass(frozen=True)
class TagOptions:
    """The options of `tag`."""

    words: bool = flag(False, 'texts are already split into words: "words" in JSON, or separated by TABs, otherwise by spaces')


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """The options of `answer`. None means the value of the fine-tuning run, or of run_squad.py if the model does not state
    it."""

    n_best: Count = flag(1, "number of answers to show", "N")
    length: Annotated[int, Interval(ge=8, le=MAX_COUNT)] | None = flag(
        None, f"length of the windows over a long context, at most the model's maximum ({OF_RUN} 384)", "TOKENS"
    )
    doc_stride: Count | None = flag(None, f"distance between two windows ({OF_RUN} 128)", "TOKENS")
    """The number of tokens from the start of a window to the start of the next window."""
    max_answer: Count | None = flag(None, f"maximum length of an answer ({OF_RUN} 30)", "TOKENS")
    may_be_unanswerable: bool | None = flag(None, f'allow "no answer", as in SQuAD 2.0 ({OF_RUN} no)')
    no_answer_threshold: Annotated[float, Interval()] | None = flag(
        None, f'answer "no answer" if its score exceeds the score of the best answer by more than X ({OF_RUN} 0)', "X"
    )
    """In training, this threshold is tuned on the dev set."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of `predict`."""

    summary: str
    place: str
    """Where the dataclass of the command's question is defined, "MODULE:NAME"."""
    options: type
    """The dataclass of the command's options, from which its flags are made. The question inherits from it."""
    example: str
    """The arguments of an example command line, without --model=MODEL."""

    @property
    def question(self) -> type[Question]:
        """The dataclass of the command's question. It is imported when it is needed, because the import takes seconds."""
        found: type[Question] = load_built_in(self.place)
        return found


COMMANDS = {
    "fill-mask": Command(
        "guess the words behind each [MASK] of a text", "bert_jax.prediction.language:FillMask", FillMaskOptions,
        '"The capital of France is [MASK]." --top-k=3'),
    "next-sentence": Command(
        "predict whether a second text follows the first", "bert_jax.prediction.language:NextSentence", Truncation,
        '"A sentence." "The one that may follow."'),
    "score": Command(
        "score a text by its pseudo-log-likelihood", "bert_jax.prediction.language:Score", Truncation,
        '"How likely is this sentence?"'),
    "generate": Command(
        "continue a text, with a left-to-right model", "bert_jax.prediction.generation:Generate", GenerateOptions,
        '"The river" --tokens=30 --temperature=0.8'),
    "translate": Command(
        "translate a text, with an encoder-decoder", "bert_jax.prediction.translating:Translate", TranslateOptions,
        '--input=test.en --references=test.de'),
    "embed": Command(
        "compute a vector for each text, or for each of its words", "bert_jax.prediction.embedding:Embed", EmbedOptions,
        "--input=sentences.txt --output=vectors.npy"),
    "classify": Command(
        "predict the label or value of a text or a pair", "bert_jax.prediction.labelling:Classify", Truncation,
        "--input=reviews.jsonl --output=labelled.jsonl"),
    "tag": Command(
        "predict a label for each word, and the entities", "bert_jax.prediction.labelling:Tag", TagOptions,
        '"Ada Lovelace lived in London."'),
    "answer": Command(
        "find the passage of a context that answers a question", "bert_jax.prediction.labelling:AnswerQuestion", AnswerOptions,
        "--input=questions.jsonl --n-best=3"),
    "choose": Command(
        "choose the best of several continuations of a prompt", "bert_jax.prediction.labelling:Choose", Truncation,
        '"She opened the door and" "went in." "flew away."'),
    "resolve": Command(
        "decide which of two names a pronoun refers to", "bert_jax.prediction.pronouns:Resolve", NoOptions,
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
    add_option_flags(parser.group(name), command.options)
    return parser
