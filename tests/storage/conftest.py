from __future__ import annotations

from collections.abc import Iterator

import pytest

from bert_jax.storage import objects
from tests.end_to_end.runs import free_port
from tests.storage.emulator import Emulator, running


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """A bucket on loopback, which the programs that tests start use too."""
    with pytest.MonkeyPatch.context() as patch, running(free_port()) as emulator:
        for name, value in emulator.environment.items():
            patch.setenv(name, value)
        objects.set_up.cache_clear()
        yield emulator
        objects.set_up.cache_clear()


@pytest.fixture
def bucket(emulator: Emulator, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[str]:
    """A directory of a test's own in the bucket; its local copies lie below the test's directory."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    yield f"gs://{emulator.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"
    emulator.fail(200, count=0)
