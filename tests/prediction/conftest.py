from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.interop.huggingface import Model, export_model
from bert_jax.model.heads.head import TaskHead
from bert_jax.prediction import packing
from bert_jax.prediction.predictor import Predictor
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary
from tests.prediction.reference import engine_on

Labelled = Callable[..., tuple[Model, Predictor]]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="session")
def pretrained(vocabulary: pathlib.Path) -> Model:
    """Returns a model with a pooler and both pretraining heads; answers are compared with this model, not with a re-import of an
    export."""
    return as_model(*make_model(vocabulary), vocabulary)


@pytest.fixture(scope="session")
def directory(pretrained: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the directory of the exported pretrained model."""
    path = tmp_path_factory.mktemp("pretrained") / "model"
    export_model(path, pretrained)
    return path


@pytest.fixture(scope="session")
def predictor(directory: pathlib.Path) -> Predictor:
    """Returns the exported model on one device."""
    return Predictor(engine_on(directory))


@pytest.fixture(scope="session")
def labelled(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Labelled:
    """Returns labelled(head, **fields of the configuration) -> (model of one layer, predictor of its export), made once per
    session."""

    @functools.cache
    def make(head: TaskHead, **fields: Any) -> tuple[Model, Predictor]:
        model = make_labelled_model(vocabulary, head, num_layers=1, **fields)
        path = tmp_path_factory.mktemp(head.kind) / "model"
        export_model(path, model)
        return model, Predictor(engine_on(path))

    return make


@pytest.fixture
def one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the rows of short texts as long as the rows of longer texts, so that each question compiles once."""
    monkeypatch.setattr(packing, "LENGTHS", tuple(length for length in packing.LENGTHS if length >= 64))
    monkeypatch.setattr(packing, "USUAL", (64,))


@pytest.fixture
def pipe() -> Iterator[tuple[Any, Any]]:
    """Yields (text reader, unbuffered writer) of a pipe of the operating system."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "r") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer
