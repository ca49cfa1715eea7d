"""Checks whether an experiment can run here. Checks its workdir and its corpus in every process, and the memory and time of its
steps."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp

from bert_jax.configs.memory_advice import pretraining_advice
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.verification import KEY
from bert_jax.errors import UserError, missing_path
from bert_jax.files import parse_json
from bert_jax.hardware import find_chip
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.interface.words import duration, prefixed
from bert_jax.runtime.processes import Processes, require_shared_directory
from bert_jax.sharding.device_errors import DoesNotFit, memory_shortage
from bert_jax.storage.checks import require_capable, require_room
from bert_jax.storage.objects import read, remove, require_bucket, write
from bert_jax.storage.paths import AnyPath, checked, is_remote
from bert_jax.tpu.costs.memory import Statistics, used_bytes
from bert_jax.tpu.diagnosis.judgement import Check
from bert_jax.tpu.diagnosis.machine import host_memory
from bert_jax.tpu.programs import Case, StepProgram, cases
from bert_jax.training.log import utilisation
from bert_jax.training.steps import TrainState

# ------------------------------------------------------------------------------------------------------------------- directories
PROBE = ".doctor"
"""The prefix of the name of a test object. The object is written to a bucket, read and removed."""


def workdir_check(processes: Processes, workdir: AnyPath) -> Check:
    """Checks in every process that the workdir supports the operations of a run. A missing workdir is created and removed."""
    with contextlib.ExitStack() as stack:
        faults = _everywhere(processes, lambda: stack.enter_context(made(workdir)) if processes.index == 0 else None)
        if not faults:
            faults = _everywhere(
                processes,
                lambda: _bucket(workdir, processes.index) if is_remote(workdir) else require_capable(pathlib.Path(workdir)),
            )
        if not faults and processes.count > 1:
            faults = _everywhere(processes, lambda: require_shared_directory(processes, workdir))
    works = ": files can be written, appended to, renamed and listed"
    return Check("workdir", f"{workdir}{'' if faults else works}", faults)


def corpus_check(processes: Processes, directory: str) -> Check:
    """Checks that every process finds the corpus in `directory`, the value of an experiment's key."""

    def look() -> None:
        path = checked(directory, KEY)
        if is_remote(path):
            require_bucket(path)
        elif not pathlib.Path(path).is_dir():
            raise UserError(
                f"{KEY}={missing_path(path)} does not exist; build the corpus with `tpu_scripts/run.sh corpus`, or give a "
                "directory that all hosts can read, such as gs://BUCKET/PATH"
            )

    faults = _everywhere(processes, look)
    return Check("corpus", directory, faults)


@contextlib.contextmanager
def made(directory: AnyPath) -> Iterator[None]:
    """Creates a local directory with its parents. At the end of the context, removes the directories that it created, if they
    are empty."""
    if is_remote(directory):
        yield
        return
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise UserError(f"--workdir={directory} cannot be created ({reason}); give a directory that you may write to") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()


def _bucket(directory: AnyPath, process: int) -> None:
    """Raises UserError if the bucket does not exist, or if an object in the directory cannot be written, read and removed."""
    require_bucket(directory)
    probe = f"{directory}/{PROBE}-{os.getpid()}-{process}"
    write(probe, b"1")
    try:
        content = read(probe)
    finally:
        remove(probe)
    if content is None or content.data != b"1":
        raise UserError(f"the bucket of --workdir={directory} does not return what was written to it; give another bucket")


def _everywhere(processes: Processes, look: Callable[[], object]) -> tuple[str, ...]:
    """Returns the messages of the UserErrors that `look` raises in all processes, without duplicates. Every process has to call
    this function, and to end its check if there is a message, because the others do not go on."""
    message = ""
    try:
        with file_errors_explained():
            look()
    except UserError as error:
        message = str(error)
    return tuple(dict.fromkeys(str(said) for said in processes.gather(message) if said))


# --------------------------------------------------------------------------------------------------------------------- the steps
LONGEST = 20.0
"""If the measured FLOP/s predict that a step takes more seconds than this, the step is not run."""
STEPS = 3
ESTIMATE_SECONDS = 900
"""The estimate compiles the step for the slice. It is stopped after this many seconds."""


def fit_checks(
    processes: Processes,
    given: str,
    overrides: Sequence[tuple[str, str]],
    flops: float,
    workdir: AnyPath | None,
    *,
    estimated: bool,
    rejected: Collection[str] = (),
) -> list[Check]:
    """Returns a check for each step of the experiment file `given`. Compiles each step, and reports whether it fits and how
    long it takes.

    `flops` is the measured rate of all devices together. If there is a `workdir`, its disk must have room for a checkpoint. On
    TPUs, if `estimated` is set, the first process also runs `aot` for this slice. The steps do not use the `rejected` kernels,
    because these disagree with the plain path on these devices. Every process has to call this function."""
    options = argparse.Namespace(step=None, phase=None, model=None, rows=None, save=None)
    lowered: list[tuple[Case, StepProgram]] = []

    def lower() -> None:
        for case in cases(given, overrides, options):
            used = case.without_kernels(rejected) if rejected else case
            lowered.append((used, used.lower(jax.devices())))

    if faults := _everywhere(processes, lower):
        return [Check("experiment", given, faults)]
    return [fit_check(processes, case, program, overrides, flops, workdir, estimated=estimated) for case, program in lowered]


def fit_check(
    processes: Processes,
    case: Case,
    program: StepProgram,
    overrides: Sequence[tuple[str, str]],
    flops: float,
    workdir: AnyPath | None,
    *,
    estimated: bool,
) -> Check:
    """Returns the check of one step, `program`, which is lowered for these devices. The other arguments are those of
    `fit_checks`."""
    name = f"phase {case.phase}" if isinstance(case.experiment, PretrainingExperiment) else "step"
    compiled: list[jax.stages.Compiled] = []

    def find_room() -> None:
        if workdir is not None and isinstance(program.state, TrainState):
            require_room(workdir, sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.state)))

    def compile() -> None:
        try:
            compiled.append(program.lowered.compile())
        except jax.errors.JaxRuntimeError as error:
            shortage = memory_shortage(error)
            if shortage is None:
                raise
            raise UserError(too_large(case, program, shortage)) from error

    if faults := _everywhere(processes, find_room):
        return Check(name, case.config, faults)
    if faults := _everywhere(processes, compile):
        return Check(name, f"{case.config} does not fit", faults)
    (executable,) = compiled
    needs, free = step_bytes(cast(Statistics, executable.memory_analysis())), least_free(processes)
    text = f"{case.config}: {needs / 2**30:.2f}" + (f" of {free / 2**30:.2f} GiB per device" if free else " GiB per device")
    if free is not None and needs > free:
        space = "host memory" if jax.default_backend() == "cpu" else "hbm"
        return Check(name, f"{text}, which is too much", (too_large(case, program, DoesNotFit(needs, free, space)),))
    if not isinstance(case.experiment, PretrainingExperiment):
        return Check(name, f"{text}, fits")
    expected = program.flops / flops
    if expected > LONGEST:
        return Check(name, f"{text}, fits; a step would take {duration(expected)} or more, so none was run")
    seconds = step_seconds(program, executable)
    speed = prefixed(program.flops / seconds, "FLOP/s")
    text += f", fits; a step takes {seconds:.3g} s, {program.rows / seconds:,.0f} rows/s, {speed}"
    share = utilisation(program.flops / seconds, jax.devices()[0].device_kind, jax.device_count())
    text += f" ({100 * share:.0f} % of peak)" if share else ""
    return Check(name, text + (_estimate(processes, case, overrides) if estimated else ""))


def step_bytes(statistics: Statistics) -> int:
    """Returns the bytes per device that a step needs. On TPUs, this is the peak that the compiler computes, plus the code. On
    other devices, the peak does not include everything, so the sum of arguments, results and temporaries is returned."""
    if jax.default_backend() == "tpu":
        return used_bytes(statistics)
    s = statistics
    return s.argument_size_in_bytes + s.output_size_in_bytes - s.alias_size_in_bytes + s.temp_size_in_bytes


def too_large(case: Case, program: StepProgram, shortage: DoesNotFit) -> str:
    """Returns a sentence about a step that does not fit, with the flags that reduce its memory."""
    if isinstance(case.experiment, PretrainingExperiment):
        return pretraining_advice(case.experiment, case.phase, program.mesh).message(shortage)
    return (
        f"the training step does not fit in memory: it {shortage}; lower --config.training.batch_size below {program.rows}, or "
        f"set --config.training.accumulation={2 * case.accumulation}"
    )


def least_free(processes: Processes) -> float | None:
    """Returns the free bytes of the device with the least free memory in all processes. For a CPU device, this is its share of
    the machine's free memory. Returns None if the free memory is unknown."""
    free: list[float] = []
    for device in jax.local_devices():
        if stats := device.memory_stats():
            free.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
        elif (host := host_memory()) is not None:
            free.append(host / jax.local_device_count())
    return min((size for size in processes.gather(min(free, default=None)) if size is not None), default=None)


def step_seconds(program: StepProgram, executable: jax.stages.Compiled) -> float:
    """Returns the shortest time of several training steps, in seconds. All values are zeros, because the time does not depend
    on them."""

    def zeros(tree: object) -> object:
        shardings = jax.tree.map(lambda x: x.sharding, tree)
        return jax.jit(lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree), out_shardings=shardings)()

    state, batch = zeros(program.state), zeros(program.batch)
    teacher = () if program.teacher is None else (zeros(program.teacher),)
    spent = []
    for _ in range(STEPS + 1):  # the first step is slower
        start = time.perf_counter()
        state, sums = executable(state, batch, program.scalars, *teacher)
        jax.block_until_ready(sums)
        spent.append(time.perf_counter() - start)
    return min(spent[1:])


# ----------------------------------------------------------------------------------------------------------- the estimate of aot
def slice_name(devices: Sequence[jax.Device]) -> str | None:
    """Returns the name of the slice that the TPU devices form, in the notation of `aot --topology`. Returns None if the devices
    are not TPUs, or if they are only a part of a slice."""
    chip = find_chip(devices[0].device_kind)
    if devices[0].platform != "tpu" or chip is None:
        return None
    slices = {getattr(device, "slice_index", None) for device in devices}
    places = {(getattr(device, "slice_index", None), *device.coords) for device in devices}
    sides = [1 + max(device.coords[axis] for device in devices) for axis in range(chip.dimensions)]
    several = f"{len(slices)}x" if len(slices) > 1 else ""
    return f"{several}{chip.name}:{'x'.join(map(str, sides))}" if math.prod(sides) * len(slices) == len(places) else None


def _estimate(processes: Processes, case: Case, overrides: Sequence[tuple[str, str]]) -> str:
    """Returns the estimate of `aot` for this slice, as the end of a sentence. Returns "" if `slice_name` is None."""
    name = slice_name(jax.devices())
    if name is None:
        return ""
    return str(processes.gather(estimate(case, overrides, name) if processes.index == 0 else "")[0])


def estimate(case: Case, overrides: Sequence[tuple[str, str]], topology: str) -> str:
    """Returns the time that `aot` estimates for a step on a slice, as the end of a sentence. `aot` runs in a separate process
    that does not see the TPU."""
    flags = [f"--config={case.config}", *(f"--config.{key}={text}" for key, text in overrides)]
    command = [sys.executable, "-m", "bert_jax.aot", *flags, f"--topology={topology}", f"--phase={case.phase}"]
    hidden = ("TPU_", "MEGASCALE_", "CLOUD_TPU_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)} | {"JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            [*command, "--json", "--no-remedies"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=ESTIMATE_SECONDS,
            check=True,
        )
        step = parse_json(done.stdout)["experiments"][0]["steps"][0]
        return f"; aot estimates {step['seconds']:.3g} s on {topology}, at least {step['roofline_seconds']:.3g} s"
    except subprocess.CalledProcessError as error:
        return f"; aot has no estimate ({(error.stderr.strip().splitlines() or ['?'])[-1][:200]})"
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        return f"; aot has no estimate ({type(error).__name__})"
