"""A kernel that disagrees on the attached device is not used by "auto"; the result is cached for this version of JAX only.

CPU devices stand in for chips with kernels: these tests replace `no_attention_kernel` and `KERNELS`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import pathlib
import types
from typing import Any, cast

import jax
import numpy as np
import pytest

from bert_jax.files import is_locked
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import agreement, dispatch, self_test
from bert_jax.model.kernels.agreement import Comparison, Figure
from bert_jax.model.kernels.self_test import compare_kernels_once, verdict_file, verdicts
from bert_jax.prediction.engine import Engine
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh

WRONG = Figure("2 x 51 tokens, width 2 x 64, float32", "gradient of key", 0.31, 1e-4)
RIGHT = dataclasses.replace(WRONG, error=1e-6)
FIGURES = "gradient of key off by 31 %, at most 0.01 %, in 2 x 51 tokens, width 2 x 64, float32"


class Chip:
    """A chip with kernels: their figures, and how often they were compared."""

    def __init__(self) -> None:
        self.compared: list[str] = []
        self.wrong_on: list[jax.Device] = []
        self.figures = {"attention": RIGHT, "residual_norm": RIGHT}
        self.error: BaseException | None = None

    def compare(self, operation: str, platform: str, device: jax.Device) -> Comparison:
        self.compared.append(operation)
        if self.error:
            raise self.error
        if device in self.wrong_on:
            return Comparison((WRONG,))
        return Comparison((self.figures[operation],))


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Chip:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dispatch, "no_attention_kernel", lambda *_: None)
    monkeypatch.setattr(dispatch, "no_residual_norm_kernel", lambda *_: None)
    monkeypatch.setattr(self_test, "KERNELS", {"cpu": ("attention", "residual_norm")})
    made = Chip()
    monkeypatch.setattr(agreement, "compare", made.compare)
    return made


def in_words(rejected: dict[str, str], **settings: str) -> str:
    """Returns the log line about the implementations of a run that starts with these rejected kernels."""
    config = ModelConfig(**settings).without_kernels(rejected)
    return dispatch.in_words(config, [128], make_mesh(MeshConfig()), rejected)


def test_a_failed_kernel_is_replaced_by_plain_with_figures_in_the_log(chip: Chip, caplog: pytest.LogCaptureFixture):
    chip.figures["attention"] = WRONG
    chip.wrong_on = jax.local_devices()[1:]  # the first device represents all
    rejected = compare_kernels_once()
    reason = f"the kernel disagrees with the plain path here: {FIGURES}"
    assert f"model.attention=auto uses the plain path: {reason}" in caplog.text
    assert in_words(rejected) == f"attention: plain, since {reason}; residual norm: fused (model.residual_norm=auto, cpu)"


def test_a_result_is_cached_until_jax_or_a_kernel_changes(chip: Chip, monkeypatch: pytest.MonkeyPatch):
    chip.figures["residual_norm"] = WRONG
    rejected = compare_kernels_once()
    assert chip.compared == ["attention", "residual_norm"]
    stored = json.loads(verdict_file("cpu").read_text())
    assert stored["attention"]["reason"] == ""
    assert stored["residual_norm"]["figures"] == [dataclasses.asdict(WRONG)]
    rejected = compare_kernels_once()
    assert len(chip.compared) == 2
    assert "residual norm: plain, since the kernel disagrees" in in_words(rejected)
    monkeypatch.setattr(jax, "__version__", "0.99.1")
    chip.figures["residual_norm"] = RIGHT
    rejected = compare_kernels_once()
    assert len(chip.compared) == 4
    assert "residual norm: fused" in in_words(rejected)
    assert verdict_file("another kind") != verdict_file("cpu")


def test_each_source_of_the_kernels_and_each_compiler_has_verdicts_of_its_own(
    chip: Chip, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(self_test, "kernels", types.SimpleNamespace(__file__=folder / "__init__.py"))
    files = [folder / "one.py", *(tmp_path / name for name in self_test.SOURCES)]
    for file in files:
        file.touch()
    found = [verdict_file("cpu")]
    for file in files:
        file.write_text("changed")
        found.append(verdict_file("cpu"))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "99")
    found.append(verdict_file("cpu"))
    assert len(set(found)) == len(found)


def test_a_self_test_that_ended_the_process_counts_as_failed(chip: Chip):
    path = verdict_file("cpu")

    def killed(*_: Any, **__: Any) -> Comparison:
        """Writes the file that remains if the compiler aborts the process here."""
        chip.left = path.read_text()  # type: ignore[attr-defined]
        return Comparison((RIGHT,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "compare", killed)
        rejected = compare_kernels_once({"residual_norm": "plain"})
    path.write_text(chip.left)  # type: ignore[attr-defined]
    rejected = compare_kernels_once({"residual_norm": "plain"})
    assert chip.compared == []
    assert f"did not finish in an earlier run ({path}; remove it to compare again)" in in_words(rejected)


def test_an_interrupted_self_test_has_no_result(chip: Chip):
    chip.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rejected = compare_kernels_once()
    chip.error = None
    rejected = compare_kernels_once()
    assert chip.compared == ["attention", "attention", "residual_norm"]
    assert "attention: fused" in in_words(rejected)


def test_only_usable_kernels_are_tested_and_a_requested_one_is_used_with_a_warning(chip: Chip, caplog: pytest.LogCaptureFixture):
    chip.figures["attention"] = WRONG
    rejected = compare_kernels_once({"attention": "fused", "residual_norm": "plain"})
    assert chip.compared == ["attention"]
    assert f"model.attention=fused uses a kernel that may be wrong: the kernel disagrees {FIGURES}"[:60] in caplog.text
    assert FIGURES in caplog.text
    assert "attention: fused" in in_words(rejected, attention="fused")


def test_kernels_that_are_not_requested_are_not_tested(chip: Chip):
    assert compare_kernels_once({"attention": "plain", "residual_norm": "plain"}) == {}
    assert chip.compared == []


def test_a_kernel_that_fails_in_one_process_is_used_in_none(chip: Chip):
    rejected = compare_kernels_once(gather=lambda own: [own, {"attention": "it is wrong", "residual_norm": ""}])
    assert "attention: plain, since process 1: it is wrong; residual norm: fused" in in_words(rejected)


def test_an_unwritable_cache_and_a_damaged_file_only_repeat_the_test(
    chip: Chip, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    verdict_file("cpu").parent.mkdir(parents=True)
    verdict_file("cpu").write_text("[1, {")
    compare_kernels_once()
    assert len(chip.compared) == 2
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        compare_kernels_once()
    assert len(chip.compared) == 4
    assert "so the next run will compare the kernels again" in caplog.text


def test_a_failure_on_one_device_names_the_device_and_is_cached(chip: Chip):
    devices = jax.local_devices()
    chip.wrong_on = [devices[3]]
    found = verdicts(devices, ["attention"], anew=True)["attention"]
    assert chip.compared == ["attention"] * len(devices)
    assert found["reason"] == f"device {devices[3].id}: the kernel disagrees with the plain path here: {FIGURES}"
    assert len(found["figures"]) == len(devices)
    rejected = compare_kernels_once({"residual_norm": "plain"})
    assert len(chip.compared) == len(devices)
    assert f"attention: plain, since device {devices[3].id}: the kernel disagrees" in in_words(rejected)


def test_a_reason_names_two_devices_and_counts_the_others(chip: Chip):
    devices = jax.local_devices()
    told = [f"device {device.id}: the kernel disagrees with the plain path here: {FIGURES}" for device in devices]
    for wrong, more in ((2, ""), (3, "; and on 1 more"), (5, "; and on 3 more")):
        chip.wrong_on = devices[:wrong]
        assert verdicts(devices, ["attention"], anew=True)["attention"]["reason"] == f"{told[0]}; {told[1]}{more}"


@pytest.mark.parametrize(("count", "where"), [(1, "cpu"), (2, "2 x cpu")])
def test_the_log_shows_the_time_and_the_worst_figure_of_a_passed_test(
    count: int, where: str, chip: Chip, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    ticks = iter((1_000.0, 1_002.54))
    monkeypatch.setattr(self_test, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))
    far, close = dataclasses.replace(RIGHT, error=4e-5, limit=1.0), dataclasses.replace(RIGHT, error=2e-5)
    found = [Comparison((close,)), Comparison((far,))]
    monkeypatch.setattr(agreement, "compare", lambda *_, device: found[device.id])
    with caplog.at_level(logging.INFO):
        record = verdicts(jax.local_devices()[:count], ["attention"])["attention"]
    assert record["seconds"] == 2.5
    assert record["figures"] == [dataclasses.asdict(figure) for figure in (close, far)[:count]]
    told = f"agrees with the plain path on {where}, compared in 3s (closest to its limit: {close})"
    assert told in caplog.text


def test_a_self_test_without_figures_is_logged_without_them(chip: Chip, caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    monkeypatch.setattr(agreement, "compare", lambda *_, device: Comparison(()))
    with caplog.at_level(logging.INFO):
        verdicts(jax.local_devices()[:1], ["attention"])
    assert "closest" not in caplog.text
    assert "agrees with the plain path on cpu" in caplog.text


def test_a_figure_that_is_nan_is_stored_as_none(chip: Chip):
    chip.figures["attention"] = dataclasses.replace(WRONG, error=float("nan"))
    compare_kernels_once({"residual_norm": "plain"})
    assert json.loads(verdict_file("cpu").read_text())["attention"]["figures"][0]["error"] is None


def test_a_start_holds_the_lock_while_it_tests_kernels(chip: Chip, monkeypatch: pytest.MonkeyPatch):
    right = chip.compare

    def compare(*arguments: Any, **named: Any) -> Comparison:
        assert is_locked(verdict_file("cpu").with_suffix(".lock"))
        return right(*arguments, **named)

    monkeypatch.setattr(agreement, "compare", compare)
    for start in (1, 2):
        verdicts(jax.local_devices()[:1], ["attention"], anew=True)
        assert len(chip.compared) == start
        assert not is_locked(verdict_file("cpu").with_suffix(".lock"))


def test_results_are_in_the_kernels_folder_of_the_cache(chip: Chip, tmp_path: pathlib.Path):
    assert verdict_file("TPU v5 lite").parent == tmp_path / "cache" / "kernels"
    assert verdict_file("TPU v5 lite").name.startswith(f"TPU-v5-lite-jax-{jax.__version__}-")


def test_loading_a_model_as_a_library_tests_no_kernel(chip: Chip):
    """The test makes an `Engine`, as `Predictor` and `Analyser` do."""
    config = ModelConfig(vocab_size=8, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, residual_norm="plain")
    tokenizer = types.SimpleNamespace(continuation_table=np.zeros(8, bool), size=8, pieces=["a"] * 8)
    engine = Engine(Model(params={}, config=config, tokenizer=cast(Any, tokenizer)))
    assert chip.compared == []
    assert (engine.config.kernel("attention"), engine.config.kernel("residual_norm")) == (None, None)
