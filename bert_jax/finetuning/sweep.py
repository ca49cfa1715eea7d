"""Trains the runs of a sweep (e.g. the paper's grid and several seeds) in parallel, and compares them.

The results of fine-tuning on small data sets vary with the seed, and some runs fail completely (paper appendix, "several random
restarts"; Mosbach et al., arXiv:2006.04884). Results are therefore reported as means over seeds with standard deviations. The
number of degenerate runs is reported too. A degenerate run gives (nearly) the same answer to all examples."""

from __future__ import annotations

import logging
import math
import pathlib
import queue
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import HUNG, UserError, WorkdirError
from bert_jax.files import Json, JsonObject, read_record, remove_tree
from bert_jax.finetuning.best_weights import BEST
from bert_jax.interface.words import counted
from bert_jax.runtime.goodput import combined, goodput_line
from bert_jax.runtime.launch import Run
from bert_jax.runtime.processes import ProcessesLost
from bert_jax.runtime.workdir import FILES, METRICS, MODEL, RESULTS
from bert_jax.sharding.device_errors import OutOfMemory
from bert_jax.storage.objects import StorageError
from bert_jax.storage.paths import AnyPath
from bert_jax.training.curves import draw_sweep
from bert_jax.training.exporting import write_results
from bert_jax.training.log import FIGURE

log = logging.getLogger(__name__)

RUNS = "runs"
UNSAVED = "unsaved"
"""The key in a run's results for a message about files that could not be saved."""
SETTINGS = ("batch_size", "learning_rate", "epochs")


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run. `results` has the scores. If the run failed, `results` has the reason under "failed"."""

    experiment: FinetuningExperiment
    directory: pathlib.Path
    results: JsonObject

    @property
    def score(self) -> float:
        """The task's main metric on the first dev split, or -inf for a failed run. Runs are compared by this score."""
        if "failed" in self.results:
            return -math.inf
        return float(next(iter(self.results["scores"].values()))[self.results["metric"]])


Train = Callable[[FinetuningExperiment, pathlib.Path, Sequence[jax.Device]], JsonObject | None]
Finish = Callable[[RunResult, Sequence[jax.Device]], None]


def sweep(experiment: FinetuningExperiment, run: Run, train: Train, finish: Finish) -> int:
    """Trains all runs of `experiment`, compares them, and calls `finish` with the best run, and with devices as for its training.
    Returns the exit status.

    `train` trains one run in a directory on some devices. It returns the results of the run, or None if it was asked to stop.
    Runs that finished in an earlier start are not repeated. Independent processes each train their share of the runs. Process 0
    waits for the other processes, compares all runs and calls `finish`.

    Raises UserError if no run finished or, after `finish`, if a finished run could not save some of its files. Raises
    WorkdirError or StorageError if a run ended with it.
    """
    runs, shard = experiment.runs(), run.shard
    single = len(runs) == 1
    directories = [run.workdir if single else run.workdir / RUNS / one.name for one in runs]
    finished: list[RunResult] = []
    judging = threading.Lock()  # without this lock, a comparison could remove the weights of a run that ends meanwhile

    def best() -> RunResult:
        return max(finished, key=lambda one: (one.score, -directories.index(one.directory)))

    def train_one(number: int, devices: Sequence[jax.Device]) -> bool:
        results = _stored(run.durable(directories[number])) or _trained(train, runs[number], directories[number], devices, single)
        if results is None:
            return False
        with judging:
            finished.append(RunResult(runs[number], directories[number], results))
            if run.is_first and not single:
                _keep_only(best(), finished, run)
        return True

    groups = device_groups(experiment)
    if run.is_first and not shard.index and not single:
        (run.workdir / METRICS).touch()  # ties the workdir to this configuration, see `runtime.workdir.open_workdir`
    if shard.count > 1:
        shared = (counted(shard.count, "process"), counted(len(runs), "run"), len(shard.select(runs)))
        log.info("%s for %s; this process trains %d", *shared)
    if not _side_by_side(train_one, shard.select(range(len(runs))), groups):
        shard.tell_stopped()
        return run.preemption.exit_status
    try:
        found = shard.gather({one.directory.name: dict(one.results) for one in finished}, waiting=lambda: _waiting(run))
    except ProcessesLost as error:
        log.error("%s; rerun the same command on all processes: finished runs are not repeated", error)
        return HUNG
    if found is None:
        return run.preemption.exit_status if shard.index == 0 else 0
    elsewhere = {name: results for values in found[1:] for name, results in values.items()}
    if elsewhere:
        others = [number for number, place in enumerate(directories) if place.name in elsewhere]
        finished += [RunResult(runs[i], directories[i], elsewhere[directories[i].name]) for i in others]
        _keep_only(best(), finished, run)
    chosen = best()
    if "failed" in chosen.results:
        raise UserError(f"none of {counted(len(runs), 'run')} finished; the first failed with: {chosen.results['failed']}")
    ordered = sorted(finished, key=lambda one: directories.index(one.directory))
    unsaved = _unsaved(ordered)
    if not single:
        files = {name: value for name, value in chosen.results.items() if name == FILES}
        # runs with the same files do not repeat them; after --changed-files, earlier runs may have had others
        results = [{name: x for name, x in one.results.items() if name not in files or x != files[name]} for one in ordered]
        summary = {"best_run": chosen.directory.name, **summarise(results), **files}
        summary["ledger"] = combined([one.results["ledger"] for one in ordered if "ledger" in one.results])
        log.info("%s\n%s", table(summary), goodput_line(summary["ledger"]))
        if run.is_first:
            if unwritten := write_results(run.workdir, summary):
                unsaved.append(str(unwritten))
            draw(run.workdir, summary, run.figure_formats)
    finish(chosen, groups[0])
    if unsaved:
        raise UserError(". ".join(unsaved))
    log.info("results: %s\nmodel: %s", *(run.durable(run.workdir / name) for name in (RESULTS, MODEL)))
    return 0


def _waiting(run: Run) -> bool:
    """Returns whether this process was asked to stop while waiting for the other processes."""
    run.watchdog.alive("waiting for the runs of the other processes")
    return run.preemption.requested()


def device_groups(experiment: FinetuningExperiment) -> list[list[jax.Device]]:
    """Returns the groups of devices on which runs train in parallel. For a single run, or if devices_per_run=0, there is one
    group with all devices. Raises UserError if devices_per_run does not divide the devices of a process."""
    devices, size = jax.devices(), experiment.sweep.devices_per_run
    if not experiment.side_by_side:
        return [devices]
    if len(devices) % size:
        raise UserError(
            f"config.sweep.devices_per_run={size} does not divide the {counted(len(devices), 'device')} of a process; "
            f"choose a divisor, "
            "or 0 for one run after another on all devices"
        )
    return [devices[i : i + size] for i in range(0, len(devices), size)]


def _side_by_side(
    one: Callable[[int, Sequence[jax.Device]], bool], numbers: Sequence[int], groups: Sequence[Sequence[jax.Device]]
) -> bool:
    """Calls `one(number, devices)` for every run index in `numbers`, with one thread per group of devices. Returns False if a
    call returned False."""
    if len(groups) == 1:
        return all(one(number, groups[0]) for number in numbers)
    free: queue.SimpleQueue[Sequence[jax.Device]] = queue.SimpleQueue()
    for group in groups:
        free.put(group)
    stopping = threading.Event()

    def next_one(number: int) -> None:
        if stopping.is_set():
            return
        devices = free.get()
        try:
            if not one(number, devices):
                stopping.set()
        except BaseException:
            stopping.set()
            raise
        finally:
            free.put(devices)

    with ThreadPoolExecutor(len(groups), thread_name_prefix="run") as pool:
        for _ in pool.map(next_one, numbers):  # the iteration raises the exception of a call
            pass
    return not stopping.is_set()


def _trained(
    train: Train, one: FinetuningExperiment, directory: pathlib.Path, devices: Sequence[jax.Device], single: bool
) -> JsonObject | None:
    """Trains a run and returns its results. In a sweep, a failure does not end the other runs. The results then have the reason
    of the failure. If the disk is full or the storage cannot be reached, this is not a failure of the run. It ends the sweep,
    so that the same command can continue the run."""
    try:
        return train(one, directory, devices)
    except (WorkdirError, StorageError):
        raise
    except UserError as error:
        if single or (isinstance(error, OutOfMemory) and jax.process_count() > 1):  # other processes may have enough memory
            raise
        reason = str(error)
        log.warning("%s failed: %s", directory.name, reason)
        settings = {name: getattr(one.training, name) for name in SETTINGS}
        return {"failed": reason, "seed": one.seed, **settings}


def _stored(directory: AnyPath) -> JsonObject | None:
    """Returns the stored results of a run that an earlier start of the sweep has finished, or None. Raises OSError (StorageError
    in a bucket) if the file cannot be read."""
    results = read_record(directory / RESULTS)
    return results if results and "scores" in results else None


def _unsaved(finished: Sequence[RunResult]) -> list[str]:
    """Returns messages about files that finished runs could not save, or [] if all files are saved. For a single run, only the
    message of the run is returned. For a sweep, the first message counts the runs that could not save files. The following
    messages are about these runs, and start with their names."""
    found = [(one.directory.name, str(one.results[UNSAVED])) for one in finished if UNSAVED in one.results]
    if len(finished) == 1 or not found:
        return [reason for _, reason in found]
    count = f"{len(found):,} of {counted(len(finished), 'run')} finished but could not save everything"
    return [count, *(f"{name}: {reason}" for name, reason in found)]


def _keep_only(best: RunResult, finished: Sequence[RunResult], run: Run) -> None:
    """Removes the checkpoints of all finished runs, and the best weights of all runs except the best run. Without this, a grid
    of 27 BERT-Base models would fill a disk."""
    for other in finished:
        for folder in ("checkpoints", *((BEST,) if other is not best else ())):
            remove_tree(run.durable(other.directory / folder))


def summarise(results: Sequence[JsonObject]) -> JsonObject:
    """Computes statistics over seeds for each setting of batch size, learning rate and epochs.

    `std` is the sample standard deviation (null for one seed). Degenerate runs are counted and included in the statistics.
    Failed runs are counted and excluded. `settings` are sorted by descending mean score.
    """
    scored = [r for r in results if "failed" not in r]
    metric, split = (scored[0]["metric"], next(iter(scored[0]["scores"]))) if scored else ("", "")
    groups: dict[tuple[tuple[str, int | float], ...], list[JsonObject]] = {}
    for result in results:
        groups.setdefault(tuple((name, result[name]) for name in SETTINGS), []).append(result)
    settings: list[JsonObject] = []
    for setting, members in groups.items():
        scores = [r["scores"][split][metric] for r in members if "failed" not in r]
        settings.append(
            {
                **dict(setting),
                "runs": len(members),
                "best": max(scores, default=None),
                "mean": statistics.fmean(scores) if scores else None,
                "std": statistics.stdev(scores) if len(scores) > 1 else None,
                "median": statistics.median(scores) if scores else None,
                "degenerate": sum(bool(r.get("degenerate")) for r in members),
                "failed": sum("failed" in r for r in members),
            }
        )
    settings.sort(key=lambda s: -math.inf if s["mean"] is None else s["mean"], reverse=True)
    baseline = scored[0]["baseline"][split].get(metric) if scored else None
    answers = scored[0].get("baseline_answers", {}).get(split, {}) if scored else {}
    return {
        "metric": f"{split}/{metric}",
        "baseline": baseline,
        "baseline_answers": answers,
        "settings": settings,
        "runs": list(results),
    }


def draw(workdir: pathlib.Path, summary: JsonObject, formats: Sequence[str] = ("png",)) -> None:
    """Plots the scores of all runs to `curves.png`, the best setting first."""
    split, _, metric = summary["metric"].partition("/")  # a user's metric may contain another "/"

    def scores(setting: JsonObject) -> list[float]:
        runs = [r for r in summary["runs"] if "failed" not in r and all(r[name] == setting[name] for name in SETTINGS)]
        return [r["scores"][split][metric] for r in runs]

    def label(setting: JsonObject) -> str:
        return f"batch {setting['batch_size']}\nrate {setting['learning_rate']:g}\n{counted(setting['epochs'], 'epoch')}"

    settings = [(label(setting), scores(setting)) for setting in summary["settings"]]
    title = f"{workdir.name}: {counted(len(summary['runs']), 'run')}"
    draw_sweep(
        workdir / FIGURE,
        title=title,
        metric=summary["metric"],
        settings=settings,
        baselines=summary["baseline_answers"],
        formats=formats,
    )


def table(summary: JsonObject) -> str:
    """Returns the summary as a text table, with a line for each setting."""

    def cell(value: Json) -> str:
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    names = (*SETTINGS, "runs", "best", "mean", "std", "median", "degenerate", "failed")
    rows = [names, *(tuple(cell(setting[name]) for name in names) for setting in summary["settings"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    lines = ["  ".join(f"{row[i]:>{widths[i]}}" for i in range(len(names))) for row in rows]
    answers = ", ".join(f"{cell(value)} ({name})" for name, value in summary["baseline_answers"].items())
    return "\n".join([summary["metric"] + (f", baseline {answers}" if answers else ""), *lines])
