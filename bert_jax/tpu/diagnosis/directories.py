"""Whether the workdir and the corpus can be used, from every process."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError, missing_path
from bert_jax.runtime.processes import Processes, require_shared_directory
from bert_jax.storage.checks import require_capable
from bert_jax.storage.objects import read, remove, require_bucket, write
from bert_jax.storage.paths import Place, is_remote
from bert_jax.tpu.diagnosis.checks import Check

PROBE = ".doctor"
"""The beginning of the name of the object that is written to a bucket, read and removed."""


def workdir_check(processes: Processes, workdir: Place) -> Check:
    """Whether every process can do in the workdir what a run needs; a workdir that is not there yet is made, and removed."""
    with contextlib.ExitStack() as stack:
        faults = _everywhere(processes, lambda: stack.enter_context(made(workdir)) if processes.index == 0 else None)
        if not faults:
            faults = _everywhere(
                processes,
                lambda: _bucket(workdir, processes.index) if is_remote(workdir) else require_capable(pathlib.Path(workdir)),
            )
        if not faults and processes.count > 1:
            faults = _everywhere(processes, lambda: require_shared_directory(processes, workdir))
    return Check("workdir", f"{workdir} takes, appends, renames and lists files" if not faults else str(workdir), faults)


def corpus_check(processes: Processes, directory: str) -> Check:
    """Whether every process finds the corpus."""

    def look() -> None:
        if is_remote(directory):
            require_bucket(directory)
        elif not pathlib.Path(directory).is_dir():
            raise UserError(
                f"config.corpus.directory={missing_path(directory)} is not there; make it with "
                "`tpu_scripts/run.sh corpus`, or name a place that all hosts see, such as gs://BUCKET/PATH"
            )

    faults = _everywhere(processes, look)
    return Check("corpus", directory, faults)


@contextlib.contextmanager
def made(directory: Place) -> Iterator[None]:
    """Makes a local directory with its parents, and removes those that were not there and are empty at the end."""
    if is_remote(directory):
        yield
        return
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise UserError(f"--workdir={directory} cannot be made ({reason}); name a directory you may write to") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()


def _bucket(directory: Place, process: int) -> None:
    """Raises UserError unless the bucket is there, and an object in the directory can be written, read and removed."""
    require_bucket(directory)
    probe = f"{directory}/{PROBE}-{os.getpid()}-{process}"
    write(probe, b"1")
    try:
        content = read(probe)
    finally:
        remove(probe)
    if content is None or content.data != b"1":
        raise UserError(f"--workdir={directory} does not return what was written; name another bucket")


def _everywhere(processes: Processes, look: Callable[[], object]) -> tuple[str, ...]:
    """The UserErrors that `look` raises in the processes, each once; every process has to call this function."""
    message = ""
    try:
        look()
    except UserError as error:
        message = str(error)
    return tuple(dict.fromkeys(str(said) for said in processes.gather(message) if said))
