"""The verb `probe`: what can be read from the vectors and the attention of words, layer by layer."""

from __future__ import annotations

import argparse

import numpy as np
from annotated_types import Interval

from bert_jax.analysis.controls import CONTROLS, engine_with_random_weights
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.probe.annotated import AnnotatedFile
from bert_jax.analysis.probe.figures import FILES, over_seeds, selectivity, write_probes
from bert_jax.analysis.probe.measure import EPOCHS, PROBES, RANK, SEEDS, WORDS, Probes, Probing, measure_probes
from bert_jax.analysis.progress import progress_of_stage
from bert_jax.analysis.verb import Verb, check_files, dress, format_flag, load, print_written
from bert_jax.errors import nearest
from bert_jax.interface.flags import nonempty
from bert_jax.interface.ranges import SEED, InRange
from bert_jax.interface.words import counted

CONTROL = "random-weights"


def probe_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `probe`."""
    format_flag(parser)
    add = parser.add_argument
    add("--input", type=nonempty, required=True, metavar="FILE", help="to train on: .conllu or a CoNLL file; also .gz, .zst")
    add("--eval", type=nonempty, required=True, metavar="FILE", help="to score on, of the same format")
    column = InRange(int, Interval(ge=-100, le=100))
    add("--column", type=column, default=-1, help="of the tags of a CoNLL file, from 0, or from the last (-1)")
    add("--probes", type=_probes, default=(), metavar="P,P", help="labels, structure, parsers (all that the files have)")
    add("--words", type=InRange(int, WORDS), default=Probing.words, metavar="N", help="of each file at most (50000)")
    add("--rank", type=InRange(int, RANK), default=Probing.rank, help="of structural probes (64)")
    add("--epochs", type=InRange(int, EPOCHS), default=Probing.epochs, help="of structural probes and of mixes (10)")
    add("--passes", type=InRange(int, EPOCHS), default=Probing.passes, help="of parsers (2)")
    add("--seeds", type=InRange(int, SEEDS), default=Probing.seeds, metavar="N", help="probes are trained N times (3)")
    add("--seed", type=InRange(int, SEED), default=Probing.seed, help="the first seed, and that of the control (0)")
    control_help = f"probe a control too, with files in DIR/{CONTROL}: {CONTROLS[CONTROL]}"
    add("--control", choices=(CONTROL,), default="", help=control_help)


def probe(flags: argparse.Namespace) -> int:
    """Writes the scores of all probes. Returns the exit status."""
    check_files(flags, ("input", "eval"))
    options = Probing(**{name: getattr(flags, name) for name in Probing.__dataclass_fields__})
    files = [AnnotatedFile(path, flags.column) for path in (flags.input, flags.eval)]
    folders = [Folder(flags.output, FILES, file.file, flags.format) for file in files]
    folder = folders[0]
    dress(folder, flags)
    analyser = load(flags)
    engines = {"": analyser.engine}
    if flags.control:
        engines[flags.control] = engine_with_random_weights(analyser.engine, flags.seed)
    for control, engine in engines.items():
        found = measure_probes(engine, files[0], files[1], options, progress_of_stage)
        own = Folder(folder.path / control, formats=flags.format) if control else folder
        dress(own, flags)
        write_probes(own, found)
        print(f"{control or engine.name}: {_read(found)}")
        print_found(found)
        if found.structure and not found.parsers and not engine.config.has_attention:
            print(f"parsers are left out: a {engine.config.encoder} model has no attention that they could read")
        print_written(own)
    return int(any(file.failed for file in files))


def _read(found: Probes) -> str:
    held = f"; their vectors are {found.size / 1e6:,.0f} MB" if found.size else ""
    cut = f"; read in windows: {counted(found.cut, 'sentence')}" if found.cut else ""
    return f"trained on {counted(found.words[0], 'word')}, scored on {found.words[1]:,}{held}{cut}"


def print_found(found: Probes) -> None:
    """Prints the best layer and the mix of each score, and the parsers."""
    if found.labels:
        print(f"{'label':24} layer  accuracy  control  selectivity    mix  word type")
        (mean, _), (gap, _) = over_seeds(found.labels.accuracy), over_seeds(selectivity(found.labels))
        for i, label in enumerate(found.labels.accuracy["label"]):
            best = int(mean[i, 0, :-1].argmax())
            values = f"{mean[i, 0, best]:9.3f}{mean[i, 1, best]:9.3f}{gap[i, best]:13.3f}{mean[i, 0, -1]:7.3f}"
            print(f"{label:24} {best:5}{values}{found.labels.majority.values[i]:11.3f}")
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


def _probes(text: str) -> tuple[str, ...]:
    for name in (probes := tuple(text.split(","))):
        if name not in PROBES:
            raise argparse.ArgumentTypeError(f"={text} is unknown: {nearest(name, PROBES)}")
    return probes


PROBE = Verb("what is read from words by layer: labels, trees, heads, with control tasks", probe_flags, probe)
