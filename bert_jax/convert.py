"""Converts a model from one format to another, and optionally changes it.

    python -m bert_jax.convert --from=google/bert_uncased_L-2_H-128_A-2 --to=models/tiny
    python -m bert_jax.convert --from=uncased_L-12_H-768_A-12 --to=models/base --activation=gelu_tanh
    python -m bert_jax.convert --from=models/base --to=models/long --max-position=2048 --drop=nsp_head
    python -m bert_jax.convert --from=run --to=served --format=stablehlo --length=128
    python -m bert_jax.convert --from=run --step=50000 --to=models/at_50000
    python -m bert_jax.convert --from=run --last=5 --to=models/averaged

The source is a Hugging Face directory, the workdir of a run, a name on the hub, a TensorFlow 1 checkpoint of the original (its
directory, or the common prefix of its files), or a file of word vectors (word2vec, GloVe, fastText's .vec). A part that the
target format cannot hold is an error, unless --drop=PART removes it. --drop also accepts tensor names with `*` as a wildcard.
--step uses the weights of a checkpoint of a pretraining run (kept with `config.checkpoints.keep_at`); --last=5 uses the mean of
the last five checkpoints (kept with `config.checkpoints.keep`)."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.convert", check="bert_jax.interop.flags:check_flags")

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence

from bert_jax.interface.words import counted
from bert_jax.interop.card import Training, model_card
from bert_jax.interop.conversion import (
    changed,
    check_sources,
    check_target,
    check_words,
    model_lines,
    part_lines,
    read_all,
    target_form,
    written,
)
from bert_jax.interop.directory import FORMATS, is_replaced
from bert_jax.interop.flags import parse_flags
from bert_jax.interop.huggingface import export_model
from bert_jax.interop.surgery import average
from bert_jax.pretraining.results import load_checkpointed_model, model_of_last
from bert_jax.runtime.environment import quiet_libraries
from bert_jax.storage.mirror import is_input, uploaded
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import checked


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments `argv` (default: sys.argv)."""
    flags = parse_flags(__doc__, argv)
    flags.remote = checked(flags.to, "--to")
    check_sources(flags)
    check_words(flags)
    given = flags.source
    read = at_step(flags.source, flags.step, flags.last)
    last = FORMATS[target_form(flags)][:1]  # until it is uploaded, no reader takes the files of two models for one model
    with uploaded(flags.to, "--to", lambda name: is_input(name) and is_replaced(name), last=last) as flags.to:
        check_target(flags)
        with read as flags.source:
            lines = convert(flags)
    for n, (title, line) in enumerate(lines):
        line = line.replace(flags.to, flags.remote)
        if flags.step is not None or flags.last is not None:
            which = f"step {flags.step:,}" if flags.last is None else f"the mean of {counted(flags.last, 'checkpoint')}"
            line = line.replace(flags.source, f"{given}, {which}")
        print(f"{'' if n and title == lines[n - 1][0] else title:<9} {line}")


@contextlib.contextmanager
def at_step(source: str, step: int | None, last: int | None = None) -> Iterator[str]:
    """Yields a directory with a model of the run `source`. The model has the weights after `step` steps, or the mean of the
    `last` checkpoints. The directory only exists within the context. Without `step` and `last`, yields `source`."""
    if step is None and last is None:
        yield source
        return
    quiet_libraries()
    workdir = as_path(checked(source, "--from"))
    if step is not None:
        model, what = load_checkpointed_model(workdir, step), f"The state after {counted(step, 'step')}"
    else:
        assert last is not None
        model, steps = model_of_last(workdir, last)
        what = f"The mean of the states after {' and '.join(f'{one:,}' for one in steps)} steps"
    with tempfile.TemporaryDirectory(prefix="bert_jax-step-") as directory:
        training = Training(steps=f"{what} of pretraining.")
        export_model(directory, model, card=model_card(model, training))
        yield directory


def convert(flags: argparse.Namespace) -> list[tuple[str, str]]:
    """Reads the model that the flags name, changes the model and writes it. Returns the lines to print as (title of the group,
    line)."""
    sources = [flags.source, *flags.average]
    model = average(read_all(sources, flags)) if flags.average else next(read_all(sources, flags))
    lines = [("read", line) for line in (*model_lines(model, flags.new), *model.notes)]
    if flags.average:
        lines.append(("averaged", f"with {', '.join(flags.average)}"))
    model, changes = changed(model, flags)
    parts = (("averaged with", flags.average), ("without", flags.drop), ("with new random weights:", flags.new))
    notes = [*(f"{what} {', '.join(names)}" for what, names in parts if names), *changes]
    lines += [("changed", change) for change in changes]
    lines += [("new", line) for line in part_lines(model, flags.new)]
    lines += [("untrained", part) for part in sorted(model.untrained)]
    lines += [("written", line) for line in written(model, flags, notes)]
    return lines
