from __future__ import annotations

import pathlib
from typing import Any

import pytest

from bert_jax.model.config import ModelConfig
from tests.interop.tiny import make_model, make_vocabulary


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="session")
def tiny(vocabulary: pathlib.Path) -> tuple[dict[str, Any], ModelConfig]:
    """Returns (random parameters, configuration) with a padded vocabulary."""
    return make_model(vocabulary)
