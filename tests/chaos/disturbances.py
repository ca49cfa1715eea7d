"""The disturbances. Each is a function of a trial that returns a text for the table, or raises Wrong or Skipped."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from bert_jax.errors import HUNG
from bert_jax.storage import objects
from tests.chaos import network
from tests.chaos.toy import BUCKET, DISK, WHOLE, Skipped, Trial, Wrong
from tests.end_to_end.forked import Done, Started

Disturbance = Callable[[Trial], str]


# ----------------------------------------------------------------------------------------------------------- processes and hosts
def kills(trial: Trial, flip: bool = False) -> str:
    """Kills a random process with SIGKILL at a random moment of its life, `trial.kills` times. Runs that finish are compared.

    The moment is within the first two seconds, or when the output of process 0 has reached a random length. If `flip` is set, the
    newest checkpoint is also damaged before the last start.
    """
    count, slowest, done, whole = trial.kills, 0.0, 0, 0
    while done < count:
        started, victim = trial.start(), trial.rng.randrange(trial.processes)
        early, seconds = trial.rng.random() < 0.25, trial.toys.scaled(trial.rng.uniform(0.0, 2.0))
        length, began = trial.rng.uniform(0.0, trial.toys.said[trial.processes]), time.monotonic()
        while all(run.process.is_alive() for run in started):
            if (time.monotonic() - began > seconds) if early else (sum(map(len, started[0].said())) >= length):
                break
            time.sleep(0.01)
        else:
            trial.whole(started, "a run that nothing met failed")
            trial.compare()
            trial.fresh, whole = trial.fresh + 1, whole + 1
            continue
        started[victim].process.kill()
        began, done = time.monotonic(), done + 1
        require_ended(trial, trial.ends(started), victim)
        slowest = max(slowest, time.monotonic() - began)
    said = f"{count} kills over {whole + 1} runs, all ended within {slowest:.0f} s naming it"
    if flip:
        if not trial.saved():
            trial.killed_after(2)
        damage_newest(trial, flip_bit)
        said += ", a flipped bit"
    trial.finish()
    return f"{said}; {trial.compare()}"


def stopped(trial: Trial) -> str:
    """Stops a random process with SIGSTOP while it trains, until the others have ended."""
    started, victim = trial.start(), trial.rng.randrange(trial.processes)
    trial.wait_for(lambda: bool(trial.saved()), started)
    os.kill(started[victim].process.pid or 0, signal.SIGSTOP)
    seconds = require_culprit(trial, started, victim)
    os.kill(started[victim].process.pid or 0, signal.SIGCONT)
    (end,) = trial.ends([started[victim]])
    if end.status != HUNG:
        raise Wrong(f"the stopped process ended with {end.status}: {end.output[-500:]}")
    trial.finish()
    return f"ended after {seconds:.0f} s naming it; {trial.compare()}"


def cut(trial: Trial) -> str:
    """Cuts the network of a random process while it trains."""
    with network.hosts(trial.processes) as cut_off:
        trial.host = network.address(0)
        url = trial.toys.emulator.url.replace("127.0.0.1", network.BRIDGE)
        trial.environment = {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url}
        started = trial.start(prepare={i: functools.partial(network.enter, i) for i in range(trial.processes)})
        trial.wait_for(lambda: bool(trial.saved()), started)
        victim = trial.rng.randrange(trial.processes)
        cut_off(victim)
        seconds = require_culprit(trial, started, victim)
        trial.ends([started[victim]])
    trial.host, trial.environment = "127.0.0.1", {}
    trial.finish()
    return f"ended after {seconds:.0f} s naming it; {trial.compare()}"


AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += 3600;
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    int status = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
    return status;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}

/* The kernel, whose clock is right, ends waits: those until a moment by the calendar (of the monotonic clock none is so late). */
static const struct timespec *right(const struct timespec *until, struct timespec *changed) {
    if (!until || until->tv_sec < 1000000000) return until;
    changed->tv_sec = until->tv_sec - 3600, changed->tv_nsec = until->tv_nsec;
    return changed;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec changed;
    int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* dlsym would give the one before it */
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(condition, mutex, right(until, &changed));
}

long syscall(long number, ...) {
    long (*real)(long, ...) = dlsym(RTLD_NEXT, "syscall"), words[6];
    struct timespec changed;
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) words[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME))
        words[3] = (long)right((const struct timespec *)words[3], &changed);
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
"""


def clock(trial: Trial) -> str:
    """Sets the clock of the last process an hour ahead, by replacing functions of the C library."""
    if not (compiler := shutil.which("cc")):
        raise Skipped("a library that changes the clock needs a C compiler")
    trial.directory.mkdir(parents=True)
    source, library = trial.directory / "ahead.c", trial.directory / "ahead.so"
    source.write_text(AHEAD)
    build = [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"]
    built = subprocess.run(build, check=False, capture_output=True, text=True)
    if built.returncode:
        raise Skipped(f"the library that changes the clock is for Linux and glibc ({(built.stderr.splitlines() or ['?'])[0]})")
    # new processes: in forked ones JAX would end silently
    programs: dict[int, dict[str, str]] = {index: {} for index in range(trial.processes)}
    programs[trial.processes - 1] = {"LD_PRELOAD": str(library)}
    trial.whole(trial.start(spawned=programs), "an hour was too much")
    return f"went on; {trial.compare()}"


def other_count(trial: Trial) -> str:
    """Continues a killed run in a different number of processes."""
    trial.killed_after(2)
    count = {2: 4, 4: 2}[trial.processes]
    trial.finish(count)
    return f"went on in {count}; {trial.compare(exact=False)}"


# -------------------------------------------------------------------------------------------------------------------- checkpoints
def cut_short(data: bytes) -> bytes:
    """Returns the first half of the data."""
    return data[: len(data) // 2]


def flip_bit(data: bytes) -> bytes:
    """Returns the data with one bit in the middle flipped."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def damage_newest(trial: Trial, damage: Callable[[bytes], bytes]) -> int:
    """Damages every large file of the newest checkpoint, since Orbax keeps small arrays twice. Returns its step."""
    step = trial.saved()[-1]
    for path, data in large_files(trial, step):
        if trial.storage == BUCKET:
            objects.write(path, damage(data))
        else:
            pathlib.Path(path).write_bytes(damage(data))
    return step


def damaged(trial: Trial, damage: Callable[[bytes], bytes]) -> str:
    """Damages the newest checkpoint of a killed run."""
    trial.killed_after(2)
    step = damage_newest(trial, damage)
    require_unreadable_reported(trial.finish(), step)
    return f"went on from the one before; {trial.compare()}"


def damaged_on_one_host(trial: Trial, damage: Callable[[bytes], bytes]) -> str:
    """Damages the newest checkpoint for the last process only."""
    if trial.storage == BUCKET:
        raise Skipped("a bucket shows the same objects to all hosts")
    if os.geteuid():
        raise Skipped("only root can change what one process sees of a disk")
    step = trial.killed_after(2)
    saved, copy = pathlib.Path(trial.workdir) / "checkpoints" / str(step), trial.directory / "damaged"
    shutil.copytree(saved, copy)
    for path, data in large_files(trial, step):
        (copy / pathlib.Path(path).relative_to(saved)).write_bytes(damage(data))
    prepare = {trial.processes - 1: functools.partial(network.see_instead, str(copy), str(saved))}
    ends = trial.whole(trial.start(prepare=prepare, pause=0.0), "the run does not go on")
    require_unreadable_reported(ends[0].output, step)
    return f"went on from the one before; {trial.compare()}"


def full_disk(trial: Trial) -> str:
    """Fills a disk while the run trains, and frees it once the run has reported that it is full. It is the disk of the workdir
    or, if the workdir is in a bucket, the disk of its local copies."""
    directory = trial.directory / ("disk" if trial.storage == DISK else "cache-0")
    with network.small_disk(directory, 64):
        started = trial.start(pause=0.5)
        trial.wait_for(lambda: bool(trial.saved()), started)
        fill(directory / "filler")
        told = "could not be saved" if trial.storage == DISK else "cannot be written"
        trial.comes_to(lambda: any(told in text for run in started for text in run.said()), started, timeout=20)
        (directory / "filler").unlink()
        ends = trial.ends(started, within=trial.toys.scaled(WHOLE))
        if trial.storage == DISK and told not in ends[0].output:
            raise Wrong(f"the full disk was not reported: {ends}")
        if any(end.status for end in ends):
            trial.finish()
            return f"ended with {[end.status for end in ends]} and went on; {trial.compare()}"
        return f"went on; {trial.compare()}"


# ------------------------------------------------------------------------------------------------------------------------ storage
def storage_answers(trial: Trial, status: int, seconds: float = 8.0) -> str:
    """Makes the storage answer every request with this status for a while."""
    if trial.storage == DISK:
        raise Skipped("of a bucket only")
    started = trial.start()
    trial.wait_for(lambda: bool(trial.saved()), started)
    seconds = trial.toys.scaled(seconds)
    trial.toys.emulator.fail(status)
    time.sleep(seconds)
    trial.toys.emulator.fail(200, count=0)
    ends = trial.ends(started, within=trial.toys.scaled(WHOLE))
    if not any(end.status for end in ends):
        return f"went on after {seconds:.0f} s of it; {trial.compare()}"
    if not any("storage" in end.output for end in ends):
        raise Wrong(f"the error does not name the storage: {ends}")
    trial.finish()
    return f"ended with {[end.status for end in ends]}, and the same command went on; {trial.compare()}"


def failed_save(trial: Trial) -> str:
    """Makes one save into the bucket fail; the next one succeeds."""
    if trial.storage == DISK:
        raise Skipped("of a bucket only")
    started = trial.start(pause=0.5)
    trial.wait_for(lambda: bool(trial.saved()), started)
    before = trial.saved()[-1]
    trial.toys.emulator.fail(403, match="(POST|PUT) .*checkpoints")
    told = "could not be saved"
    trial.wait_for(lambda: any(told in text for text in started[0].said()), started)
    trial.toys.emulator.fail(200, count=0)
    ends = trial.whole(started, "a save that failed ended the run")
    failures = re.findall(r"the checkpoint of step (\d+) could not be saved", ends[0].output)
    return f"after step {before}: saves of {', '.join(failures)} failed; {trial.compare()}"


# ----------------------------------------------------------------------------------------------------------------------- outcomes
def require_culprit(trial: Trial, started: Sequence[Started], victim: int) -> float:
    """Waits for the end of all processes except the victim, which they have to name. Returns the seconds that this took."""
    began = time.monotonic()
    others = [run for index, run in enumerate(started) if index != victim]
    require_ended(trial, trial.ends(others), victim)
    return time.monotonic() - began


def require_ended(trial: Trial, ends: Sequence[Done], victim: int) -> None:
    """Raises Wrong unless one of the processes has named the victim, or the run was already finished.

    If process 0 dies, JAX aborts all others at once with an error about the coordination service; our own error is there only
    if it came first.
    """
    reports = rf"process {victim}\b.*(has ended|did not start|did not answer|has sent no heartbeat|has failed)"
    if victim == 0:
        reports += r"|remote target coordination_service"
    if not any(re.search(reports, end.output) for end in ends) and not trial.is_done():
        raise Wrong(f"process {victim} is not named: {ends}")
    if any("Traceback" in end.output for end in ends):
        raise Wrong(f"a traceback: {ends}")


def require_unreadable_reported(output: str, step: int) -> None:
    """Raises Wrong unless the run has reported that it could not read the checkpoint."""
    if f"the checkpoint of step {step} cannot be read" not in output:
        raise Wrong(f"the damaged checkpoint of step {step} was not noticed: {output}")


def large_files(trial: Trial, step: int) -> list[tuple[str, bytes]]:
    """Returns the files of a checkpoint that have at least half the size of the largest, with their contents."""
    directory = f"{trial.workdir}/checkpoints/{step}"
    if trial.storage == BUCKET:
        names = [f"{directory}/{name}" for name in objects.listed(directory)]
        contents = {name: objects.read_bytes(name) for name in names}
    else:
        contents = {str(path): path.read_bytes() for path in pathlib.Path(directory).rglob("*") if path.is_file()}
    largest = max(map(len, contents.values()))
    return [(name, data) for name, data in contents.items() if 2 * len(data) >= largest]


def fill(path: pathlib.Path) -> None:
    """Writes a file until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


ALL: dict[str, Disturbance] = {
    "kills": kills,
    "stopped": stopped,
    "cut": cut,
    "clock": clock,
    "other_count": other_count,
    "truncated": functools.partial(damaged, damage=cut_short),
    "flipped": functools.partial(damaged, damage=flip_bit),
    "truncated_on_one_host": functools.partial(damaged_on_one_host, damage=cut_short),
    "flipped_on_one_host": functools.partial(damaged_on_one_host, damage=flip_bit),
    "full_disk": full_disk,
    "storage_503": functools.partial(storage_answers, status=503),
    "storage_429": functools.partial(storage_answers, status=429),
    "storage_lost": functools.partial(storage_answers, status=0),
    "failed_save": failed_save,
}
SHORT: dict[str, Disturbance] = {"kills": functools.partial(kills, flip=True)}
