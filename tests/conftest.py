"""Set before jax is imported: eight virtual CPU devices, and strictness that only tests ask for."""

from __future__ import annotations

import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        *os.environ.get("XLA_FLAGS", "").split(),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_use_fusion_emitters=false",  # the older way to compile what is fused, in less than half the time
    ]
)

import jax
import pytest

from tests.shapes import check_shapes

check_shapes([f"bert_jax.{folder}" for folder in ("examples", "batches", "model", "heads", "training", "prediction")])
jax.config.update("jax_disable_most_optimizations", True)  # tiny models in many programs: most of the time is compiling
jax.config.update("jax_numpy_rank_promotion", "raise")  # a silent broadcast in a loss or mask is a bug, so every one is spelt out

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: compiles for long; runs with -m slow only")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores that this process may use, which `taskset` and containers make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `slow` run when asked for: `pytest -m slow`."""
    if "slow" not in (config.getoption("-m") or ""):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with -m slow"))


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes that a test starts keep what they compile for those of later tests, and out of the user's own cache directory.

    Workers of pytest-xdist have a directory each: a program is not written at once, so others could read half of it.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))  # not for JAX here, which is imported


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real text and published vocabularies beside the checkout; tests that need them skip where they are absent."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not part of the project")
    return path
