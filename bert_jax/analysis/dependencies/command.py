"""The command `dependencies`: measures which heads find the relations of a treebank."""

from __future__ import annotations

import argparse

from bert_jax.analysis.command import (
    exit_status,
    open_folder,
    open_with_choose,
    print_written,
    score_with_controls,
    write_windows,
)
from bert_jax.analysis.dependencies.figures import FILES, beaten, frequent, write_dependencies, write_fits
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.dependencies.measure import Best, DependencyScores, score_dependencies
from bert_jax.analysis.reading import Treebank, line_progress
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine


def run(flags: argparse.Namespace) -> int:
    """Writes how often every attention head finds a dependent's head, by relation. Returns the exit status."""
    treebank, choosing = open_with_choose(flags, lambda path: Treebank(path, needs_heads=True), "sentences")
    folder = open_folder(flags, FILES, [treebank.file])

    def score(engine: Engine, options: Dependencies) -> DependencyScores:
        return score_dependencies(engine, treebank, choosing, options, line_progress)

    engine, found, controls = score_with_controls(flags, Dependencies, score)
    write_dependencies(folder, found, controls, flags.least)
    print_scores(found, controls, flags.least)
    if write_windows(folder, engine.config):
        write_fits(folder, found)
        print_fits(found, flags.least)
    if found.across:
        print(f"{counted(found.across, 'dependent')} left out: the sentence was cut, and the head is in another window")
    print_written(folder)
    return exit_status(treebank, choosing)


def print_scores(found: DependencyScores, controls: dict[str, DependencyScores], least: int) -> None:
    """Prints the chosen head with its accuracy and interval, the offset, and the controls, for each relation with at least
    `least` dependents."""
    print(f"{counted(found.sentences, 'sentence')}; heads and offsets were chosen on "
          f"{counted(found.sentences_choosing, 'other')}")
    print(f"{'relation':14} {'head':>5}  {'direction':17} {'accuracy':>8}  {'95 % interval':14} {'offset':>6} {'baseline':>8} n")
    rows = frequent(found, least)
    for best in rows:
        spread = f"{100 * best.low:.1f} to {100 * best.high:.1f}"
        mark = "" if best.beats_offset else "  does not beat the offset"
        print(
            f"{best.relation:14} {best.name:>5}  {best.direction:17} {100 * best.accuracy:8.1f}  {spread:14} "
            f"{best.offset:+6} {100 * best.baseline:8.1f} {best.n:,}{mark}"
        )
        for name, control in controls.items():
            own = next((row for row in control.best if row.relation == best.relation), None)
            if own is not None:
                print(f"{'':14} {own.name:>5}  {name:17} {100 * own.accuracy:8.1f}  {_beaten(found, control, best)}")
    if len(rows) < len(found.best):
        print(f"{counted(len(found.best) - len(rows), 'relation')} with fewer than {least:,} dependents: see dependencies.tsv")


def print_fits(found: DependencyScores, least: int) -> None:
    """Prints the fraction of each relation's dependents whose heads are within the window of a sliding layer."""
    sizes = dict(zip(found.n["relation"], zip(found.near.values, found.n.values, strict=True), strict=True))
    shares = (f"{best.relation} {100 * sizes[best.relation][0] / best.n:.1f} %" for best in frequent(found, least))
    print(f"dependents whose heads are within the window: {', '.join(shares) or 'see dependency_windows.tsv'}")


def _beaten(found: DependencyScores, control: DependencyScores, best: Best) -> str:
    low, high = (100 * end for end in beaten(found, control, best.relation))
    return f"beaten by {low:.1f} to {high:.1f}" if low > 0 else f"not beaten: {low:.1f} to {high:.1f}"
