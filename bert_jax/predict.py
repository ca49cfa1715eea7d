"""Runs a model on texts: masked words, labels, answers, vectors, translations.

    python -m bert_jax.predict fill-mask --model=MODEL "The capital of France is [MASK]."
    python -m bert_jax.predict classify  --model=MODEL --input=FILE --output=answers.jsonl
    python -m bert_jax.predict embed     --model=MODEL --input=texts.txt --output=vectors.npy

MODEL is a Hugging Face model directory, the workdir of a run, or a name on the Hugging Face hub. Texts come as arguments, from
--input=FILE or from standard input. A file has one text per line (with TABs between the fields of commands that take several),
or JSON objects, or it is a table (.csv, .tsv, .parquet, .arrow). The columns of a table, or the keys of an object, are named
after the fields that the model was trained with or, if these are missing, after the fields of the command. Files may be
compressed (.gz, .bz2, .xz, .zst). The predictions are in the order of the input. A line without a prediction is reported with
its number; the other lines are predicted, and the exit status is 1. Blank lines are skipped, except by `embed`, which writes a
row for every line (NaN in a .npy, null in JSON)."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.predict", check="bert_jax.prediction.commands:check_flags")

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.flags import read_options
from bert_jax.interface.words import counted
from bert_jax.prediction.answers import VectorWriter, Writer, answer_records
from bert_jax.prediction.commands import COMMANDS, Command, parse_flags
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Record
from bert_jax.prediction.questions import ask_each
from bert_jax.prediction.streams import read_records, read_texts
from bert_jax.runtime.environment import enable_compilation_cache
from bert_jax.runtime.profile import PROFILE, Profile
from bert_jax.storage.fetching import local_path
from bert_jax.storage.formats import COMPRESSIONS, bare_name, compression
from bert_jax.storage.mirror import uploaded_file

WRITTEN = (".jsonl", ".npy", *COMPRESSIONS)
OTHER_FORMATS = (
    ".npz", ".txt", ".csv", ".tsv", ".md", ".html", ".xml", ".yaml", ".yml", ".xlsx", ".pt", ".pth", ".pkl", ".pickle", ".bin",
    ".h5", ".mat", ".parquet", ".arrow", ".feather", ".safetensors", ".tfrecord", ".zip", ".tar", ".tgz",
)  # fmt: skip
"""Extensions of formats that --output cannot write."""

AS_A_PAIR = (
    "the two texts are judged as one pair, because the model was trained on pairs; to judge each text alone, write each text "
    "on its own line of --input"
)
UNREAD = "the column text_b is not read, because {} was trained on single texts"
AS_TWO_TEXTS = "the two texts are judged one by one; to judge them as a pair, give one argument with a TAB between the texts"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    name, flags = parse_flags(__doc__, argv)
    flags.place = flags.output
    with uploaded_file(flags.output, "--output") as flags.output:
        finish = ask(name, COMMANDS[name], flags)
    return finish()  # only now, because an error in the `with` block prevents the upload of the answers


def ask(name: str, command: Command, flags: argparse.Namespace) -> Callable[[], int]:
    """Runs the command `name` with its flags and writes its answers. Returns a function that prints the summary and returns the
    exit status. It raises UserError if a requested score or profile could not be made."""
    question = read_options(command.question, flags)
    check_output(name, flags)
    vectors = bool(flags.output) and flags.output.lower().endswith(".npy")
    as_text = not flags.json and not flags.output
    blank = getattr(question, "blank_answer", None)
    columns: dict[str, str | Sequence[str]] = {}  # both are filled after the model is loaded
    table: JsonObject = {}
    trained: dict[str, Any] = {"columns": columns, "table": table}
    records = read_texts(
        flags.texts, flags.input, question.fields, jsonl=flags.jsonl, blank_lines=blank is not None, **trained
    )
    label_in_line = getattr(question, "label_in_line", None)

    told: list[str] = []

    def answer(some: list[Record]) -> list[JsonObject | str]:
        if () in columns.values() and not told and any("text_b" in record.rest for record in some):
            told.append(UNREAD.format(engine.name))
            print(told[0], file=sys.stderr)
        problems = [label_in_line(engine, r.values) if r.divided and label_in_line else None for r in some]
        checked = list(zip(some, problems, strict=True))
        asked = [record.values for record, problem in checked if not record.blank and not problem]
        replies = iter(ask_each(engine, question, asked))
        return [problem or shown(blank() if blank and record.blank else next(replies)) for record, problem in checked]

    def shown(reply: Any) -> JsonObject | str:
        if isinstance(reply, UserError):
            return str(reply)
        return {"reply": reply} if as_text else reply if vectors else question.as_json(reply)

    def text(reply: JsonObject) -> str:
        return question.as_text(reply["reply"])

    # the writer is created before the model is loaded, so that errors of --output are reported at once
    writer = VectorWriter(flags.output, records) if vectors else Writer(flags.output, text if as_text else None, records)
    enable_compilation_cache()
    engine = Engine.load(flags.model)
    question.check(engine)
    columns.update(engine.model.columns)
    table.update(engine.model.reading)
    if engine.model.of_pairs is False:
        columns["text_b"] = ()
    if name == "classify" and len(flags.texts) == 2 and not any("\t" in text for text in flags.texts):
        if engine.model.of_pairs:
            records = read_records(["\t".join(flags.texts)], None, question.fields)
            print(AS_A_PAIR, file=sys.stderr)
        elif engine.model.of_pairs is None:
            print(AS_TWO_TEXTS, file=sys.stderr)
    check_not_the_model(flags.place, engine)
    given: Iterable[Record] = records
    check_count = getattr(question, "check_count", None)
    if check_count and flags.references and records.file:  # a pipe may still be written
        given = list(records)
        check_count(len(given))  # with the lines that cannot be read, which are reported with their numbers
    engine.profile = Profile(flags.profile, _directory(flags.output) / PROFILE, "predict")
    with writer, engine.profile as profile:
        answer_records(given, engine.group_size, answer, writer)

    def finish() -> int:
        for line in question.summary(writer.status == 0) if hasattr(question, "summary") else ():
            print(line, file=sys.stderr)
        if profile.steps and not profile.was_taken:
            raise UserError(f"{profile} starts after the last of {counted(engine.batch_count, 'batch')}; give earlier batches")
        return writer.status

    return finish


def _directory(output: str | None) -> pathlib.Path:
    """Returns the directory of the output file. Returns the current directory if the output is the terminal."""
    return pathlib.Path(output).parent if output and output != "-" else pathlib.Path()


def check_output(name: str, flags: argparse.Namespace) -> None:
    """Raises UserError if the extension of --output names a format that cannot be written."""
    if not flags.output or flags.output == "-":
        return
    path = pathlib.Path(flags.output)
    packed, kind = compression(path.name), pathlib.Path(bare_name(path.name)).suffix.lower()
    if kind == ".npy" and (name != "embed" or flags.words or packed):
        what = "a .npy file cannot be compressed here" if packed else "only `embed` of whole texts returns one array of vectors"
        raise UserError(f"--output={flags.output}: {what}; give a name that ends in .jsonl")
    if kind in OTHER_FORMATS:
        or_array = " or a .npy" if name == "embed" and not flags.words else ""
        raise UserError(
            f"--output={flags.output}: answers cannot be written as {kind}; give a name that ends in .jsonl (JSON "
            f"lines){or_array}"
        )


def check_not_the_model(output: str | None, engine: Engine) -> None:
    """Raises UserError if `output` would overwrite a file of the model directory."""
    path = local_path(output or "-")
    if output and path.exists() and path.suffix not in WRITTEN and path.resolve().parent == pathlib.Path(engine.name).resolve():
        raise UserError(f"--output={output} is a file of the model itself; choose another --output")
