"""The command `coreference`: measures which heads find the antecedents of mentions."""

from __future__ import annotations

import argparse

from bert_jax.analysis.command import exit_status, open_folder, open_with_choose, print_written, score_with_controls
from bert_jax.analysis.coreference.documents import TextFile
from bert_jax.analysis.coreference.figures import FILES, best_in_group, write_coreference
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.coreference.measure import CoreferenceScores, score_coreference
from bert_jax.analysis.coreference.readers import open_texts
from bert_jax.analysis.reading import line_progress
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine


def run(flags: argparse.Namespace) -> int:
    """Writes how often every head finds an antecedent, and how often rules find it. Returns the exit status."""
    file, choosing = open_with_choose(flags, open_texts, "documents")
    folder = open_folder(flags, FILES, [file.file])

    def score(engine: Engine, options: Coreference) -> CoreferenceScores:
        return score_coreference(engine, file, choosing, options, line_progress)

    _, found, controls = score_with_controls(flags, Coreference, score)
    write_coreference(folder, found, controls)
    print_scores(found, controls)
    for line in _left_out(file, found):
        print(line)
    print_written(folder)
    return exit_status(file, choosing)


def print_scores(found: CoreferenceScores, controls: dict[str, CoreferenceScores]) -> None:
    """Prints the chosen head with its accuracy and interval, the rules and the controls, for each group of mentions."""
    reported, choice = (len(part.n["document"]) for part in (found.reported, found.choice))
    print(f"{counted(reported, 'document')}; heads were chosen on {choice:,} others")
    rules = [rate.chooser for rate in found.best[0].rules]
    titles = "  ".join(f"{rule:>15}" for rule in rules)
    print(f"{'mentions':19} {'head':>5} {'accuracy':>8}  {'95 % interval':14} {titles} n")
    for best in found.best:
        spread = f"{100 * best.head.low:.1f} to {100 * best.head.high:.1f}"
        rates = "  ".join(f"{100 * rate.accuracy:15.1f}" for rate in best.rules)
        unbeaten = [rate.chooser for rate in best.rules if not rate.gain_low > 0]
        mark = f"  does not beat: {', '.join(unbeaten)}" if unbeaten else ""
        print(f"{best.group:19} {best.head.chooser:>5} {100 * best.head.accuracy:8.1f}  {spread:14} {rates} {best.n:,}{mark}")
        for name, control in controls.items():
            own = best_in_group(control, best.group)
            if own is not None:
                spread = f"{100 * own.head.low:.1f} to {100 * own.head.high:.1f}"
                print(f"  {name:17} {own.head.chooser:>5} {100 * own.head.accuracy:8.1f}  {spread}")


def _left_out(file: TextFile, found: CoreferenceScores) -> list[str]:
    """Returns sentences about the mentions that the scores do not cover."""
    lines = []
    outside = sum(int(part.outside.values[:, 0].sum()) for part in (found.choice, found.reported))
    if outside:
        lines.append(f"{counted(outside, 'mention')} left out: their antecedents are outside their window")
    neither = int(found.reported.n.values[:, -1].sum()) if file.asks_once else 0
    if neither:
        lines.append(
            f"{counted(neither, 'pronoun')} referring to neither name: counted only in the group that allows the answer "
            "'neither'"
        )
    return [*lines, *file.notes]
