"""The command `probe`: trains probes of linguistic properties on vectors and attention, layer by layer."""

from __future__ import annotations

import argparse

import numpy as np

from bert_jax.analysis.command import check_annotated, load_analyser, open_folder, print_written
from bert_jax.analysis.controls import engine_with_random_weights
from bert_jax.analysis.probe.annotated import AnnotatedFile
from bert_jax.analysis.probe.figures import FILES, over_seeds, selectivity, write_probes
from bert_jax.analysis.probe.flags import CONTROL, Probing
from bert_jax.analysis.probe.measure import Probes, measure_probes
from bert_jax.analysis.reading import stage_progress
from bert_jax.interface.flags import read_options
from bert_jax.interface.words import counted


def run(flags: argparse.Namespace) -> int:
    """Writes the scores of all probes. Returns the exit status."""
    check_annotated(flags, "input", "eval")
    options = read_options(Probing, flags)
    training, evaluation = (AnnotatedFile(path, flags.column) for path in (flags.input, flags.eval))
    folders = [
        open_folder(flags, FILES, [training.file, evaluation.file], under=control)
        for control in dict.fromkeys(("", flags.control))
    ]
    engine = load_analyser(flags).engine
    engines = {"": engine} | ({CONTROL: engine_with_random_weights(engine, flags.seed)} if flags.control else {})
    for folder, (control, own) in zip(folders, engines.items(), strict=True):
        found = measure_probes(own, training, evaluation, options, stage_progress)
        write_probes(folder, found)
        print(f"{control or own.name}: {_read(found)}")
        print_found(found)
        if found.structure and not options.probes and not own.has_attention:
            print(f"parsers are left out, since they read attention and a {own.config.encoder} model has none")
        print_written(folder)
    return int(training.failed + evaluation.failed > 0)


def _read(found: Probes) -> str:
    held = f"; their vectors are {found.size / 1e6:,.0f} MB" if found.size else ""
    cut = f"; read in windows: {counted(found.cut, 'sentence')}" if found.cut else ""
    return f"trained on {counted(found.words[0], 'word')}, scored on {found.words[1]:,}{held}{cut}"


def print_found(found: Probes) -> None:
    """Prints the best layer, the mix and the baseline for each score. Also prints the accuracy of each parser."""
    if found.labels:
        print(f"{'label':24} layer  accuracy  control  selectivity    mix  word type")
        (mean, _), (gap, _) = over_seeds(found.labels.accuracy), over_seeds(selectivity(found.labels))
        for i, label in enumerate(found.labels.accuracy["label"]):
            best = int(mean[i, 0, :-1].argmax())
            values = f"{mean[i, 0, best]:9.3f}{mean[i, 1, best]:9.3f}{gap[i, best]:13.3f}{mean[i, 0, -1]:7.3f}"
            print(f"{label:24} {best:5}{values}{found.labels.majority.values[i]:11.3f}")
        for label, unseen, n in zip(found.labels.unseen["label"], found.labels.unseen.values, found.labels.n.values, strict=True):
            if unseen:
                print(f"WARNING: {unseen:,} of the {n:,} scored words have a label ({label}) that no training word has")
    if found.structure:
        print(f"{'structure':24} layer     value                           mix  right-branching")
        mean, _ = over_seeds(found.structure.scores)
        for i, score in enumerate(found.structure.scores["score"]):
            best = int(np.nan_to_num(mean[i, :-1]).argmax())
            chain = found.structure.right_branching.values[i]
            print(f"{score:24} {best:5}{mean[i, best]:10.3f}{'':22}{mean[i, -1]:7.3f}{chain:17.3f}")
    if found.parsers:
        print(f"{'parser':24} {'heads found':>11}")
        for name, value in zip(found.parsers.accuracy["parser"], found.parsers.accuracy.values, strict=True):
            print(f"{name:24} {value:11.3f}")
