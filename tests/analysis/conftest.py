from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import IO, Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.analysis.analyser import Analyser
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.prediction import engine, packing
from tests.analysis.reference import pointing_model
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.prediction.reference import engine_on


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="session")
def model(vocabulary: pathlib.Path) -> Model:
    """Returns a model with random weights: 2 layers of 4 heads, 40 positions."""
    params, config = make_model(vocabulary)
    for part in ("query", "key"):  # attention that is far from uniform
        params["encoder"]["layers"]["attention"][part]["kernel"] *= np.float32(3)
    return as_model(params, config, vocabulary)


@pytest.fixture(scope="session")
def directory(model: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("random") / "model"
    export_model(path, model)
    return path


@pytest.fixture(scope="session")
def analyser(directory: pathlib.Path) -> Analyser:
    """Returns the random model on two devices."""
    return Analyser(engine_on(directory, devices=2))


@pytest.fixture(scope="session")
def pointing(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Analyser:
    """Returns a model whose heads attend to the token before (1-1) and after (1-2), to themselves (2-1) and to [CLS] (2-2)."""
    path = tmp_path_factory.mktemp("pointing") / "model"
    export_model(path, pointing_model(vocabulary))
    return Analyser(engine_on(path))


@pytest.fixture(scope="module", autouse=True)
def one_shape() -> Iterator[None]:
    """Makes every row as long as the position table, so that each function compiles once, also for the fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LENGTHS", (64,))
        patch.setattr(packing, "USUAL", (64,))
        yield


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes models that are loaded during the test run on as many devices and tokens as `analyser`, and share its programs."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:2])
    monkeypatch.setitem(engine.TOKENS, "cpu", 40)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Saves each figure without drawing it: its file has one byte for each axes. Returns the saved figures."""
    saved: list[Figure] = []

    def savefig(figure: Figure, file: IO[bytes], **settings: Any) -> None:
        saved.append(figure)
        file.write(bytes(len(figure.axes)))

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


@pytest.fixture(autouse=True)
def every_axis_has_a_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks after each test that in all of its figures the axes with numbers name their quantity; a y axis may name it in a
    title."""
    made: list[Figure] = []
    with_title = Figure.suptitle

    def suptitle(figure: Figure, *arguments: Any, **settings: Any) -> Any:
        made.append(figure)
        return with_title(figure, *arguments, **settings)

    monkeypatch.setattr(Figure, "suptitle", suptitle)
    yield
    for figure in made:
        for axes in figure.axes:
            if not axes.axison or axes.get_label() == "<colorbar>":
                continue
            title, about = axes.get_title("left") or axes.get_title(), figure.get_suptitle()
            assert not shows_numbers(axes.xaxis) or axes.get_xlabel() or figure.get_supxlabel(), about
            assert not shows_numbers(axes.yaxis) or axes.get_ylabel() or figure.get_supylabel() or title, about


def shows_numbers(axis: Any) -> bool:
    """Returns whether any visible tick label of an axis is a number."""
    texts = [label.get_text().replace("\N{MINUS SIGN}", "-").replace(",", "") for label in axis.get_ticklabels()]
    shown = [text for text, tick in zip(texts, axis.get_major_ticks(), strict=False) if text and tick.label1.get_visible()]
    return any(text.lstrip("-").replace(".", "", 1).isdigit() for text in shown)
