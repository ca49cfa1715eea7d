"""What both training loops, `pretrain` and `finetune`, are made of."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.checkpoints.manager import Checkpoints
from bert_jax.errors import UserError
from bert_jax.examples.assemble import Batch
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import counted, duration
from bert_jax.interop.directory import Unwritable
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.metrics.writer import RESULTS, MetricsWriter, write_json
from bert_jax.programs.saved import load_program
from bert_jax.training.losses import Sums

log = logging.getLogger(__name__)

MODEL = "model"
EVALUATION_TOLD = 2.0
"""Seconds after which an evaluation shows how far it is."""


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """Shapes that also say where the arrays are to live."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)


def due(step: int, every: int, *, last: int) -> bool:
    """Whether something done every so many steps, and at the last one, is to be done after `step`."""
    return step % every == 0 or step == last


def add(window: Sums, sums: Sums) -> Sums:
    """Sums of several steps, still on the device; of the learning rate, that of the last step."""
    return {name: window[name] + value if window and name != "learning_rate" else value for name, value in sums.items()}


@contextlib.contextmanager
def compiling(what: str, prefix: str = "") -> Iterator[None]:
    """Says that `what` is being compiled, which may take minutes, and afterwards how long it took."""
    start = time.monotonic()
    log.info("%scompiling %s", prefix, what)
    yield
    log.info("%scompiled %s in %s", prefix, what, duration(time.monotonic() - start))


@contextlib.contextmanager
def evaluation_progress(what: str, is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A function (rows that are scored, all rows) that shows how far the evaluation of `what` is, once it has taken seconds."""
    progress = Progress(f"evaluating {what}:", None, "rows", delay=EVALUATION_TOLD)
    try:
        yield lambda done, total: progress.update(done, total=total) if is_shown else None
    finally:
        progress.close()


def compiled(function: Any, *arguments: Any, mesh: Mesh, saved: pathlib.Path | None = None, must: bool = True) -> Any:
    """`function` compiled for such arguments, so that the first step is as fast as the others and the log says what
    compiling took; loaded from the directory `saved` where that is given. Raises UserError where it `must` be there and is not;
    a run that is under way rather compiles."""
    start = time.monotonic()
    lowered = function.lower(*arguments)
    program = None
    if saved:
        try:
            program = load_program(saved, lowered, list(mesh.devices.flat))
        except UserError as error:
            if must:
                raise
            log.warning("compiling, for %s", error)
    if program is not None:
        log.info("loaded the training step in %s", duration(time.monotonic() - start))
        return program
    with compiling("the training step"):
        return lowered.compile()


def stop_if_diverged(limit: int, directory: pathlib.Path, rows: Callable[[int], Batch], step: int, sums: Sums) -> None:
    """Ends a run whose last `limit` steps were all skipped, and keeps the batch of the last one in `directory` for a look.

    `rows(step)` makes that batch again, `sums` are those of the step before `step`. Raises UserError.
    """
    if not sums or float(sums["skipped_in_a_row"]) < limit:
        return
    path = directory / f"nonfinite-step-{step}-process-{jax.process_index()}.npz"
    try:
        np.savez_compressed(path, **dict[str, Any](rows(step - 1)))
        kept = f"is in {path}"
    except OSError as error:
        path.unlink(missing_ok=True)
        kept = f"could not be kept in {path} ({error.strerror})"
    raise UserError(
        f"the loss or the gradient was not finite in {counted(limit, 'step')} in a row, up to step {step:,} "
        f"(config.abort_after_skipped); nothing was learned from them. The last batch {kept}. "
        "The checkpoints hold finite weights: lower the learning rate, or start the same command again to retry from the newest"
    )


def require_learned(steps: int, skipped: int) -> None:
    """Raises UserError where less than half of a run's `steps` changed its weights: the rest had no finite loss or gradient."""
    if 2 * (steps - skipped) < steps or steps == skipped:
        raise UserError(
            f"only {steps - skipped:,} of {counted(steps, 'step')} counted: loss or gradient of the others was not finite. "
            "No model is exported; lower the learning rate and name another --workdir"
        )


def note_failed_saves(metrics: MetricsWriter | None, step: int, **kinds: Checkpoints) -> None:
    """Writes to `metrics.jsonl` how many saves in a row have failed, where some have; of the checkpoints of each kind."""
    failed = {f"{kind}/failed_saves_in_a_row": kept.failed_in_a_row for kind, kept in kinds.items() if kept.failed_in_a_row}
    if metrics and failed:
        metrics.write(step, failed)


def export_trained(workdir: pathlib.Path, model: Model, about: Mapping[str, Any], results: Mapping[str, Any] | None) -> None:
    """Writes `model` to WORKDIR/model, and `results`, where there are any, to WORKDIR/results.json.

    Where the workdir does not take the model, both go to a new directory of the same layout on another disk. Raises UserError
    then, which names it.
    """
    try:
        export_model(workdir / MODEL, model, about)
    except Unwritable as error:
        raise UserError(f"{error}. {_exported_elsewhere(workdir, model, about, results)}") from error
    if results is not None:
        write_json(workdir / RESULTS, results)


def write_results(directory: pathlib.Path, results: Mapping[str, Any]) -> UserError | None:
    """Writes `results` to the directory's results.json; gives the error where the disk does not take it, since a model that is
    to be exported yet must not be lost with them."""
    try:
        write_json(directory / RESULTS, results)
    except OSError as error:
        return UserError(f"{directory / RESULTS} could not be written ({error.strerror}); free space and give the command again")
    return None


def _exported_elsewhere(
    workdir: pathlib.Path, model: Model, about: Mapping[str, Any], results: Mapping[str, Any] | None
) -> str:
    """Writes what `export_trained` does to the first place that takes it, and says where that was."""
    tried = []
    places = (pathlib.Path(tempfile.gettempdir()), pathlib.Path.home(), pathlib.Path.cwd(), pathlib.Path("/dev/shm"))
    for place in dict.fromkeys(places):
        directory = None
        try:
            directory = pathlib.Path(tempfile.mkdtemp(prefix=f"bert_jax-{workdir.name}-", dir=place))
            export_model(directory / MODEL, model, about)
            if results is not None:
                write_json(directory / RESULTS, results)
            return f"The trained model is in {directory / MODEL}: copy it to where it is to stay"
        except (Unwritable, OSError) as error:
            tried.append(f"{place} ({error.__cause__ or error})")
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
    return f"No other place took it either: {', '.join(tried)}"


def on_host(params: Any, mesh: Mesh) -> Any:
    """Whole numpy arrays of parameters that may be spread over devices and processes. Collective: every process calls it."""
    replicated = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))(params)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)
