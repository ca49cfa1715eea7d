"""Set before jax is imported: eight virtual CPU devices, and strictness that only tests ask for."""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import logging
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

# No setting of the user's changes a test, and HOME is empty.
FOREIGN = ("BERT_JAX_", "JAX_", "HF_", "HUGGINGFACE_", "TFDS_", "XDG_", "TPU_", "MPL", "GOOGLE_", "STORAGE_EMULATOR")
KEPT = ("BERT_JAX_PEER_PYTHON", "TPU_SKIP_MDS_QUERY")
for name in [name for name in os.environ if name.startswith(FOREIGN) and name not in KEPT]:
    del os.environ[name]
os.environ["HOME"] = home = tempfile.mkdtemp(prefix="home_of_tests_")
process = os.getpid()
atexit.register(lambda: os.getpid() == process and shutil.rmtree(home, ignore_errors=True))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts jobs in the background; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        *os.environ.get("XLA_FLAGS", "").split(),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_parallel_codegen_split_count=1",  # a program in one piece takes a fifth less CPU time than in many
        # The older way to compile fusions takes less than half the time. Later versions lack it, and end at an unknown flag.
        *(["--xla_cpu_use_fusion_emitters=false"] if importlib.metadata.version("jaxlib").startswith("0.10.") else []),
    ]
)

import jax
import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from xdist.scheduler import LoadScopeScheduling

from tests.contexts import share_contexts
from tests.shapes import begin_test, check_shapes

if TYPE_CHECKING:
    from tests.storage.emulator import Emulator

of_data = (f"data.{name}" for name in ("config", "counter_rng", "plan", "packing", "masking", "rows", "batches", "prefetch"))
check_shapes([f"bert_jax.{name}" for name in (*of_data, "model", "objectives", "training", "prediction", "analysis")])
jax.config.update("jax_disable_most_optimizations", True)  # tiny models in many programs: most of the time is compiling
jax.config.update("jax_numpy_rank_promotion", "raise")  # a silent broadcast in a loss or mask is a bug, so every one is spelt out
share_contexts()

gc.set_threshold(100_000, 20, 100)  # tracing makes many objects and little garbage: at the default, 7 % of the CPU time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CHECKOUT = ("README.md", "bert_jax", "experiments", "tests", "tpu_scripts", "requirements.txt", "setup.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: compiles for long; runs with -m slow only")
    # At its end pytest looks for what was not closed in ten collections of garbage, seconds each after so many programs.
    config.stash[gc_collect_iterations_key] = 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores that this process may use, which `taskset` and containers make fewer than the machine has. One
    more gains nothing: the 7 % of the time in which a worker waits are spent on what each of them imports and makes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TOGETHER = (
    *("recovery", "last_save", "run", "bucket", "bad_input", "without_pairs", "own_experiment", "out_of_memory"),
    *("exported_steps", "spikes", "left_to_right", "distilled_pretraining"),
)
"""The tests of pretraining end to end share a corpus, runs and what these compile, so one worker does them all."""
LONGEST = (
    "tests/end_to_end/pretraining",
    "tests/end_to_end/test_finetuning_recovery.py",
    "tests/sharding/test_training_on_meshes.py",
    "tests/end_to_end/test_finetuning.py",
    "tests/bad_inputs/test_bad_inputs.py",
    "tests/end_to_end/",
    "tests/model/",
    "tests/training/",
    "tests/tpu_scripts/",
    "tests/interop/",
)
"""What begins first where several workers share the tests, so that none of it is left for one worker at the end."""


def unit(nodeid: str) -> str:
    """What one worker does as a whole: the tests of a file, or of several files that share what they are made of."""
    file = nodeid.partition("::")[0]
    return LONGEST[0] if file in [f"tests/end_to_end/test_{name}.py" for name in TOGETHER] else file


class Units(LoadScopeScheduling):
    """Gives workers a unit after another, in the order of `pytest_collection_modifyitems`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With `--dist=loadfile`, units of files instead of files."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # which would begin with the units of most tests, and end with those of fewest
    return Units(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers begin with the longest; tests marked `slow` run when asked for: `pytest -m slow`."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((i for i, name in enumerate(LONGEST) if unit(item.nodeid).startswith(name)), 99))
    if "slow" not in (config.getoption("-m") or ""):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with -m slow"))


def pytest_runtest_setup() -> None:
    begin_test()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the order in which the tests ran (pytest-randomly)."""
    seed = getattr(terminalreporter.config.option, "randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"order of the tests: -p randomly --randomly-seed={seed}")


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes that a test starts keep what they compile for those of later tests, and out of the user's own cache directory.

    Workers of pytest-xdist have a directory each: a program is not written at once, so others could read half of it.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))  # not for JAX here, which is imported


@pytest.fixture(scope="session", autouse=True)
def directory_of_tests(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The working directory of all tests: the checkout without what its own use has left in it, such as `runs/`."""
    directory = tmp_path_factory.mktemp("elsewhere")
    for name in CHECKOUT:
        (directory / name).symlink_to(REPOSITORY / name)
    os.chdir(directory)
    return directory


@pytest.fixture(autouse=True)
def nothing_left(directory_of_tests: pathlib.Path) -> Iterator[None]:
    """Fails a test that leaves a file in the working directory, or that leaves the process in another one."""
    yield
    assert (pathlib.Path.cwd(), {path.name for path in directory_of_tests.iterdir()}) == (directory_of_tests, {*CHECKOUT})


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """A bucket on loopback, which the programs that tests start use too. One for the process: the environment names one address,
    so with a second one the faults of a test would go to another emulator than its requests."""
    from bert_jax.storage import objects
    from tests.end_to_end.runs import free_port
    from tests.storage.emulator import running

    with pytest.MonkeyPatch.context() as patch, running(free_port()) as emulator:
        for name, value in emulator.environment.items():
            patch.setenv(name, value)
        objects.set_up.cache_clear()
        yield emulator
        objects.set_up.cache_clear()


@pytest.fixture
def bucket(
    emulator: Emulator, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Iterator[str]:
    """A directory of a test's own in the bucket; its local copies lie below the test's directory."""
    assert os.environ["STORAGE_EMULATOR_HOST"] == emulator.url
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    yield f"gs://{emulator.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"
    emulator.fail(200, count=0)


@pytest.fixture(autouse=True)
def untouched_logger() -> None:
    """Resets the logger of the package, which a command in this process may have set up: `caplog` then gets each line once."""
    ours = logging.getLogger("bert_jax")
    ours.handlers, ours.propagate = [], True
    ours.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real text and published vocabularies beside the checkout; tests that need them skip where they are absent."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not part of the project")
    return path
