"""Writes a submission to the GLUE leaderboard from the predictions of several runs.

    python -m bert_jax.tasks.glue_submission runs/*/predictions --output=submission

Each directory holds one or more of CoLA.tsv, SST-2.tsv, MRPC.tsv, STS-B.tsv, QQP.tsv, MNLI-m.tsv, MNLI-mm.tsv, QNLI.tsv, RTE.tsv,
WNLI.tsv and AX.tsv. `submission.zip` contains all of these files."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.tasks.glue_submission")

import math
import pathlib
from collections.abc import Iterable

from bert_jax.errors import UserError, missing_path
from bert_jax.interface.flags import FlagParser
from bert_jax.tasks.readers.glue import SUBMISSION, TASKS, write_submission
from bert_jax.tasks.readers.tables import note, parse_number, read_table


def collect_predictions(directories: Iterable[pathlib.Path]) -> dict[str, list[str | float]]:
    """Returns the predictions in the files of all `directories`, by name. The names of the files are the names in `SUBMISSION`.

    A directory without such files is left out with a line, since it may be a run on another task. Raises UserError if a directory
    does not exist, if none has such files, if two directories have the same file, or if a row is out of order.
    """
    found: dict[str, pathlib.Path] = {}
    for directory in directories:
        paths = {name: directory / f"{name}.tsv" for name in SUBMISSION if (directory / f"{name}.tsv").is_file()}
        if not directory.exists():
            raise UserError(f"there is no directory {missing_path(directory)}; give the directories with predictions")
        if not paths:
            note(f"{directory} is left out: it has no predictions of a GLUE task")
        for name, path in paths.items():
            if name in found:
                raise UserError(f"{path} and {found[name]} both have the predictions of {name}; give one of the two directories")
            found[name] = path
    if not found:
        names = ", ".join(f"{name}.tsv" for name in SUBMISSION)
        raise UserError(f"no directory has one of {names}; give the directories with predictions")
    return {name: _predictions(path, name) for name, path in found.items()}


def _predictions(path: pathlib.Path, name: str) -> list[str | float]:
    table = read_table(path)
    table.require("index", "prediction")
    predictions: list[str | float] = []
    for place, row in table:
        if row["index"] != str(len(predictions)):
            raise place.error(f"index is {row['index']!r}, not {len(predictions)}; give one row per test example, in order")
        if TASKS[SUBMISSION[name].task].is_regression:
            predictions.append(parse_number(place, "prediction", row["prediction"], -math.inf, math.inf))
        else:
            predictions.append(row["prediction"])
    return predictions


def main() -> None:
    """Collects the test predictions of the runs and writes the submission."""
    parser = FlagParser(prog="python -m bert_jax.tasks.glue_submission", description=__doc__)
    files = parser.group("predictions and submission")
    files.add_argument("directories", nargs="+", type=pathlib.Path, metavar="DIR", help="the directories with test predictions")
    of_output = "the directory for submission.zip and its files"
    files.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR", help=of_output)
    of_partial = "write the submission even if files are missing; the leaderboard only accepts complete submissions"
    files.add_argument("--partial", action="store_true", help=of_partial)
    flags = parser.parse_args()
    predictions = collect_predictions(flags.directories)
    print(write_submission(flags.output, predictions, complete=not flags.partial))
