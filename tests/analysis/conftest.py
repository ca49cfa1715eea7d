from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.analysis.analyser import Analyser
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.prediction import packing
from tests.analysis.reference import pointing_model
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.prediction.reference import engine_on


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="session")
def model(vocabulary: pathlib.Path) -> Model:
    """Random weights: 2 layers of 4 heads, 40 positions."""
    params, config = make_model(vocabulary)
    for part in ("query", "key"):  # attention that is far from even
        params["encoder"]["layers"]["attention"][part]["kernel"] *= np.float32(3)
    return as_model(params, config, vocabulary)


@pytest.fixture(scope="session")
def directory(model: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("random") / "model"
    export_model(path, model)
    return path


@pytest.fixture(scope="session")
def analyser(directory: pathlib.Path) -> Analyser:
    """The random model on two devices."""
    return Analyser(engine_on(directory, devices=2))


@pytest.fixture(scope="session")
def pointing(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Analyser:
    """Heads that look at the token before (1-1) and after (1-2), at themselves (2-1) and at [CLS] (2-2)."""
    path = tmp_path_factory.mktemp("pointing") / "model"
    export_model(path, pointing_model(vocabulary))
    return Analyser(engine_on(path))


@pytest.fixture(autouse=True)
def one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is as long as the position table, so that each function compiles once."""
    monkeypatch.setattr(packing, "LENGTHS", ())
    monkeypatch.setattr(packing, "USUAL", (64,))
