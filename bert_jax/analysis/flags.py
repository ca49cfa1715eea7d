"""The flags of `analyse`. Each command adds its own flags in the `flags.py` of its folder. Imports nothing slow, so help and flag
errors appear immediately."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

from annotated_types import Interval

from bert_jax.interface.command import choose_command
from bert_jax.interface.flags import FlagParser, nonempty

COMMANDS = {
    "attention": ("the attention of every head for a text, a pair or a translation; page, figures", '"The cat sat on the mat."'),
    "heads": ("what every head attends to: entropy, [CLS], [SEP], neighbours, distances", "--input=texts.txt"),
    "neighbours": (
        "the pieces nearest to a word; in a text, the nearest words and its senses", "--input=texts.txt 'the [bank]'"),
    "dependencies": ("the head that finds each dependency relation of a treebank", "--input=treebank.conllu"),
    "coreference": ("the head that finds the antecedents of pronouns, names and nouns", "--input=documents.conllu"),
    "probe": (
        "probes by layer: labels, trees and heads from word vectors, with control tasks",
        "--input=train.conllu --eval=dev.conllu"),
    "compare": (
        "where two models differ: heads, layers, and predictions of masked words", "--input=texts.txt --with=MODEL"),
    "vocabulary": ("the pieces by kind, script and length; the parameters by part", "--corpus=DIR"),
}  # fmt: skip
"""The commands of `python -m bert_jax.analyse` -> a summary, and the arguments of an example after --model and --output. Each
command has a folder of the same name, with the modules `flags` and `command`. To add a command, add its folder and list it
here."""

CONTROLS = {
    "random-weights": "a model of the same shape with the random weights from which pretraining starts",
    "shuffled-words": "the model reads the words of each sentence in a random order; the heads move with their words",
    "permuted-heads": "the heads of each sentence are assigned to its words in a random order",
}
"""Maps the name of each control to its description."""
Replicates = Annotated[int, Interval(ge=100, le=100_000)]


def check_flags(command: str, description: str | None) -> None:
    """Prints the help and exits if the flags ask for help. Raises UserError if a flag is wrong."""
    parse_flags(description)


def parse_flags(description: str | None, argv: Sequence[str] | None = None) -> tuple[str, argparse.Namespace]:
    """Returns the command and its flags. Raises UserError if a flag is wrong. If the flags ask for help, prints the help and
    raises SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    summaries = {name: summary for name, (summary, _) in COMMANDS.items()}
    name = choose_command("python -m bert_jax.analyse", description, summaries, arguments)
    if name is None:
        sys.exit(0)
    return name, flag_parser(name).parse_args(arguments[1:])


def flag_parser(name: str) -> FlagParser:
    """Returns the parser of the flags of a command."""
    prog = f"python -m bert_jax.analyse {name}"
    summary, example = COMMANDS[name]
    description = f"{summary[0].upper()}{summary[1:]}.\n\n    {prog} --model=MODEL --output=DIR {example}"
    parser = FlagParser(prog=prog, description=description)
    parser.may_be_in_bucket = ("--model", "--input", "--output", "--corpus")
    of_model = "a model directory, the workdir of a run, or a name on the hub"
    parser.group("model").add_argument("--model", type=nonempty, required=True, help=of_model)
    parser.group("output").add_argument("--output", type=nonempty, required=True, metavar="DIR", help="the directory to write to")
    importlib.import_module(f"bert_jax.analysis.{name}.flags").add_flags(parser)
    return parser


def text_flags(parser: FlagParser) -> None:
    """Adds the flags of commands that read texts."""
    texts = parser.group("texts")
    texts.add_argument("texts", nargs="*", metavar="TEXT", help="the texts; without any, standard input is read")
    of_input = "one text per line, JSON lines (.jsonl), or a table; also .gz, .zst; - is standard input"
    texts.add_argument("--input", type=nonempty, metavar="FILE", help=of_input)
    texts.add_argument("--jsonl", action="store_true", help="the lines of the input are JSON objects")
