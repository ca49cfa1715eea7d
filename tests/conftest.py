"""Sets up the tests before jax is imported: eight virtual CPU devices, and strict checks that only tests use."""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import tests.collecting  # noqa: F401
from tests.foreign import remove_foreign

remove_foreign(os.environ)  # and HOME is empty
if os.environ.get("PYTHONDONTWRITEBYTECODE") == "1":  # as in many containers; each process would compile all files anew
    del os.environ["PYTHONDONTWRITEBYTECODE"]
    sys.dont_write_bytecode = False
os.environ["HOME"] = home = tempfile.mkdtemp(prefix="home_of_tests_")
FLAGS_OF_0_10 = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_collective_call_terminate_timeout_seconds=600")
process = os.getpid()
atexit.register(lambda: os.getpid() == process and shutil.rmtree(home, ignore_errors=True))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job of a shell; commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["JAX_PLATFORMS"] = "cpu"
# NumPy's and SciPy's threads wait for each other longer than they multiply matrices as small as those of the tests
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = " ".join(
    [
        *os.environ.get("XLA_FLAGS", "").split(),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_parallel_codegen_split_count=1",  # compiling a program in one part takes a fifth less CPU time than in many
        # The older fusion compiler takes less than half the time. Under load, the threads of eight devices may meet later than in
        # 40 s, after which XLA aborts the process. Other versions may lack these flags, and abort at an unknown one.
        *(FLAGS_OF_0_10 if importlib.metadata.version("jaxlib").startswith("0.10.") else ()),
    ]
)

import jax
import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from xdist.scheduler import LoadScopeScheduling

from bert_jax.interface.named import read_files_again
from tests.compiling import keep_programs, remove_unused_programs, share_contexts
from tests.shapes import begin_test, check_shapes

if TYPE_CHECKING:
    from tests.storage.emulator import Emulator

of_data = (f"data.{name}" for name in ("config", "counter_rng", "plan", "packing", "masking", "rows", "batches", "prefetch"))
check_shapes([f"bert_jax.{name}" for name in (*of_data, "model", "objectives", "training", "prediction", "analysis")])
jax.config.update("jax_disable_most_optimizations", True)  # tiny models in many programs: most of the time is spent compiling
jax.config.update("jax_numpy_rank_promotion", "raise")  # a silent broadcast in a loss or mask is a bug, so all are explicit
share_contexts()
keep_programs(least=0.03)  # shorter ones take longer to write and to look for than to compile again

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CHECKOUT = ("README.md", "bert_jax", "experiments", "tests", "tpu_scripts", "requirements.txt", "setup.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: compiles for long; runs with -m slow only")
    config.addinivalue_line("markers", "tpu_compiler: needs libtpu; skipped where it is not installed")
    # At its end, pytest looks for unclosed resources in ten garbage collections, each of which takes seconds after so many
    # programs.
    config.stash[gc_collect_iterations_key] = 1
    if not hasattr(config, "workerinput"):
        remove_unused_programs()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns the number of cores that this process may use; `taskset` and containers can make it smaller than the machine's. One
    more worker gains nothing: workers wait for 7 % of the time, which the imports and fixtures of another worker would use up."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TOGETHER = (
    *("recovery", "run", "bucket", "bad_input", "out_of_memory"),
    *("exported_steps", "spikes", "left_to_right", "distilled_pretraining"),
)
"""The end-to-end tests of pretraining share a corpus, runs and compiled programs, so one worker runs all of them."""
PRETRAINING = "tests/end_to_end/pretraining"
LONGEST = (
    "tests/runtime/test_profile.py",
    PRETRAINING,
    "tests/test_commands_and_kinds.py",
    "tests/end_to_end/",
    "tests/sharding/",
    "tests/bad_inputs/test_bad_inputs.py",
    "tests/chaos/",
    "tests/model/",
    "tests/prediction/",
    "tests/training/",
    "tests/tpu_scripts/",
    "tests/interop/",
)
"""The tests that start first if there are several workers. Otherwise one worker might still run one of them at the end. The first
takes a profile, which holds every program that its process has compiled."""


def unit(nodeid: str) -> str:
    """Returns the unit that one worker runs as a whole: the tests of a file, or of several files that share fixtures."""
    file = nodeid.partition("::")[0]
    return PRETRAINING if file in [f"tests/end_to_end/test_{name}.py" for name in TOGETHER] else file


class Units(LoadScopeScheduling):
    """A scheduler that gives units to workers in the order of `pytest_collection_modifyitems`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Schedules units of files instead of files with `--dist=loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the base class would start with the largest units
    return Units(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports the tests without garbage collections, which would find nothing; later ones do not visit what is in memory now."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest tests first if there are several workers. Skips tests marked `slow`, except with `pytest -m slow`, and
    tests marked `tpu_compiler` if libtpu is not installed."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((i for i, name in enumerate(LONGEST) if unit(item.nodeid).startswith(name)), 99))
    if "slow" not in (config.getoption("-m") or ""):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with -m slow"))
    if importlib.util.find_spec("libtpu") is None:
        for item in items:
            if item.get_closest_marker("tpu_compiler"):
                item.add_marker(pytest.mark.skip(reason="needs libtpu"))


def pytest_runtest_setup() -> None:
    begin_test()
    read_files_again()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the order of the tests (pytest-randomly)."""
    seed = getattr(terminalreporter.config.option, "randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"order of the tests: -p randomly --randomly-seed={seed}")


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Gives commands that tests start as a person would a compilation cache that later tests share, separate from the user's.

    Each worker of pytest-xdist has its own directory: JAX does not write a program atomically, so others could read a part of it.
    """
    # this process, which has already imported JAX, and forked ones use the directory of tests/compiling.py
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session", autouse=True)
def directory_of_tests(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Runs all tests in a directory that links to the checkout, but not to files of earlier runs, such as `runs/`."""
    directory = tmp_path_factory.mktemp("elsewhere")
    for name in CHECKOUT:
        (directory / name).symlink_to(REPOSITORY / name)
    os.chdir(directory)
    return directory


@pytest.fixture(autouse=True)
def nothing_left(directory_of_tests: pathlib.Path) -> Iterator[None]:
    """Fails a test that leaves a file in the working directory, or that changes the working directory."""
    yield
    assert (pathlib.Path.cwd(), {path.name for path in directory_of_tests.iterdir()}) == (directory_of_tests, {*CHECKOUT})


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """Starts a bucket emulator on loopback, which the programs started by tests use too. There is one per process, since the
    environment names a single address: with a second emulator, a test would inject its faults into one and send its requests
    to another."""
    from bert_jax.storage import objects
    from tests.end_to_end.runs import free_port
    from tests.storage.emulator import running

    with pytest.MonkeyPatch.context() as patch, running(free_port()) as emulator:
        for name, value in emulator.environment.items():
            patch.setenv(name, value)
        objects.set_up.cache_clear()
        objects.set_up()  # before gcsfs is imported: it would look for another service, and try again for minutes
        yield emulator
        objects.set_up.cache_clear()


@pytest.fixture
def bucket(
    emulator: Emulator, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Iterator[str]:
    """Returns a directory in the bucket for one test; its local copies are below the test's directory."""
    assert os.environ["STORAGE_EMULATOR_HOST"] == emulator.url
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    yield f"gs://{emulator.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"
    emulator.fail(200, count=0)


@pytest.fixture
def machine_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Returns a dict, path -> text, of the only files below /proc and /sys that a test finds. It begins without any."""
    files: dict[str, str] = {}
    read = pathlib.Path.read_text

    def read_text(path: pathlib.Path, *arguments: Any, **named: Any) -> str:
        if not path.as_posix().startswith(("/proc/", "/sys/")):
            return read(path, *arguments, **named)
        if path.as_posix() not in files:
            raise FileNotFoundError(path)
        return files[path.as_posix()]

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    return files


@pytest.fixture(autouse=True)
def untouched_logger() -> None:
    """Resets the package's logger, which a command in this process may have set up, so that `caplog` gets each line once."""
    ours = logging.getLogger("bert_jax")
    ours.handlers, ours.propagate = [], True
    ours.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Returns the directory with real text and published vocabularies next to the checkout; tests that need them are skipped if
    it does not exist."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not part of the project")
    return path
