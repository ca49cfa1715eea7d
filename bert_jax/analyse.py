"""Examines a model: its attention, heads, vectors and vocabulary.

    python -m bert_jax.analyse attention  --model=MODEL --output=DIR "The cat sat on the mat."
    python -m bert_jax.analyse attention  --model=TRANSLATOR --output=DIR "A dog." "Ein Hund."
    python -m bert_jax.analyse heads      --model=MODEL --output=DIR --input=texts.txt
    python -m bert_jax.analyse neighbours --model=MODEL --output=DIR --input=texts.txt "the [bank]"
    python -m bert_jax.analyse dependencies --model=MODEL --output=DIR --input=treebank.conllu
    python -m bert_jax.analyse coreference --model=MODEL --output=DIR --input=documents.conllu
    python -m bert_jax.analyse probe --model=MODEL --output=DIR --input=train.conllu --eval=dev.conllu
    python -m bert_jax.analyse compare    --model=MODEL --output=DIR --input=texts.txt --with=MODEL
    python -m bert_jax.analyse vocabulary --model=MODEL --output=DIR

MODEL is a Hugging Face model directory, a checkpoint of the original, the workdir of a run, or a name on the Hugging Face hub.
Texts come as arguments, from --input=FILE or from standard input: one text per line, or JSON objects (--jsonl, or a name that
ends in .jsonl); files may be compressed (.gz, .bz2, .xz, .zst). Lines that cannot be read are reported with their numbers; all
other lines are processed, and the exit status is 1. Tables are TSV files. Each number is accompanied by n, the number of cases
from which it was computed. Each figure is saved with a table of the numbers that it shows."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.analyse", check="bert_jax.analysis.flags:check_flags")

import importlib
from collections.abc import Sequence

from bert_jax.analysis.flags import parse_flags
from bert_jax.analysis.folder import appearing_together
from bert_jax.runtime.environment import enable_compilation_cache
from bert_jax.storage.mirror import uploaded


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    name, flags = parse_flags(__doc__, argv)
    enable_compilation_cache()
    flags.place = flags.output
    with uploaded(flags.output, "--output") as flags.output, appearing_together():
        return int(importlib.import_module(f"bert_jax.analysis.{name}.command").run(flags))
