"""The verb `coreference`: the heads of a model against the antecedents of mentions."""

from __future__ import annotations

import argparse

from bert_jax.analysis.coreference.choice import CoreferenceScores, score_coreference
from bert_jax.analysis.coreference.figures import FILES, of_group, write_coreference
from bert_jax.analysis.coreference.files import open_texts
from bert_jax.analysis.coreference.measure import CONTROLS, REPLICATES, TOKENS, Coreference
from bert_jax.analysis.coreference.mentions import TextFile
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.progress import progress_of
from bert_jax.analysis.verb import Verb, check_choose, check_files, dress, format_flag, load, print_written
from bert_jax.interface.flags import nonempty
from bert_jax.interface.ranges import SEED, InRange
from bert_jax.interface.words import counted


def coreference_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `coreference`."""
    format_flag(parser)
    formats = "CoNLL-U with Entity=, CoNLL-2012 or GAP; also .gz, .zst"
    parser.add_argument("--input", type=nonempty, required=True, metavar="FILE", help=formats)
    choose_help = "a file to choose heads on (every other document of --input, from the first on)"
    parser.add_argument("--choose", type=nonempty, metavar="FILE", help=choose_help)
    control_help = "measure a control as well; may be repeated. " + "; ".join(
        f"{name}: {what}" for name, what in CONTROLS.items()
    )
    parser.add_argument("--control", choices=tuple(CONTROLS), action="append", default=[], help=control_help)
    parser.add_argument("--window", type=InRange(int, TOKENS), metavar="TOKENS", help="read together (the position table)")
    parser.add_argument(
        "--coreferent", action="store_true", help="candidates are of entities mentioned twice or more, as in CoNLL-2012"
    )
    defaults, replicates = Coreference(), InRange(int, REPLICATES)
    parser.add_argument("--replicates", type=replicates, default=defaults.replicates, metavar="N", help="of the bootstrap (1000)")
    parser.add_argument("--seed", type=InRange(int, SEED), default=0, metavar="N", help="of both (0)")


def coreference(flags: argparse.Namespace) -> int:
    """Writes how often every head finds an antecedent, beside rules. Returns the exit status."""
    check_files(flags, ("input", "choose"))
    file = open_texts(flags.input)
    choosing = open_texts(flags.choose) if flags.choose else None
    check_choose(flags, "documents")
    folder = Folder(flags.output, FILES, file.file, flags.format)
    dress(folder, flags)
    engine = load(flags).engine
    scores: dict[str, CoreferenceScores] = {}
    for control in dict.fromkeys(("", *flags.control)):
        tokens = flags.window or Coreference.tokens
        options = Coreference(tokens, not flags.coreferent, control, flags.replicates, flags.seed)
        scores[control] = score_coreference(engine, file, choosing, options, progress_of)
    found = scores.pop("")
    write_coreference(folder, found, scores)
    print_scores(found, scores)
    for line in _left_out(file, found):
        print(line)
    print_written(folder)
    return int(file.failed + (choosing.failed if choosing is not None else 0) > 0)


def print_scores(found: CoreferenceScores, controls: dict[str, CoreferenceScores]) -> None:
    """Prints for each group of mentions the head, its accuracy and interval, the rules and the controls."""
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
            own = of_group(control, best.group)
            if own is not None:
                spread = f"{100 * own.head.low:.1f} to {100 * own.head.high:.1f}"
                print(f"  {name:17} {own.head.chooser:>5} {100 * own.head.accuracy:8.1f}  {spread}")


def _left_out(file: TextFile, found: CoreferenceScores) -> list[str]:
    """Sentences about what is not in the numbers."""
    lines = []
    outside = sum(int(part.outside.values[:, 0].sum()) for part in (found.choice, found.reported))
    if outside:
        lines.append(f"{counted(outside, 'mention')} left out: the antecedents are in no window that holds the mention")
    neither = int(found.reported.n.values[:, -1].sum()) if file.asks_once else 0
    if neither:
        lines.append(f"{counted(neither, 'pronoun')} of neither name: counted only where neither is an answer")
    return [*lines, *file.notes]


COREFERENCE = Verb("the head that finds the antecedents of pronouns, names and nouns", coreference_flags, coreference)
