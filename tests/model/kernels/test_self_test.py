"""A kernel that disagrees on the attached device is not used by "auto"; the result is cached for this version of JAX only.

No device with kernels is attached. On a CPU, the kernels fail, since they do not compile for it. The verdicts about a TPU are
those that an earlier run left.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import pathlib
from typing import Any

import jax
import pytest
from jax.sharding import AbstractDevice

from bert_jax.files import is_locked, write_json
from bert_jax.model import kernels
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import dispatch, on_one_device, self_test
from bert_jax.model.kernels.agreement import Comparison, Figure
from bert_jax.model.kernels.self_test import compare_kernels_once, verdict, verdict_file, verdicts

WRONG = Figure("2 x 51 tokens, width 2 x 64, float32", "gradient of key", 0.31, 1e-4)
RIGHT = dataclasses.replace(WRONG, error=1e-6)
REASON = (
    "the kernel disagrees with the plain path here: "
    "gradient of key off by 31 %, at most 0.01 %, in 2 x 51 tokens, width 2 x 64, float32"
)
FAILS = "the kernel does not run here: ValueError"
TPU = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    return tmp_path / "cache"


@pytest.fixture
def on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first device is a TPU. Nothing runs on it, so only kernels that have a verdict can be asked about."""
    monkeypatch.setattr(jax, "local_devices", lambda: [TPU])


def leave(**reasons: str) -> None:
    """Writes the verdicts about a TPU that an earlier run left."""
    write_json(verdict_file(TPU.device_kind), {operation: {"reason": reason} for operation, reason in reasons.items()})


def in_words(rejected: dict[str, str], **settings: str) -> str:
    """Returns the log line about the implementations of a run that starts with these rejected kernels."""
    config = ModelConfig(**settings).without_kernels(rejected)
    return dispatch.in_words(dispatch.resolve(config, TPU, 1, on_one_device), [128], rejected)


def on_cpu(operation: str = "residual_norm", devices: int = 1, anew: bool = False) -> dict[str, Any]:
    """Returns the record of a kernel on a CPU."""
    return verdicts(jax.local_devices()[:devices], [operation], anew=anew)[operation]


def test_a_failed_kernel_is_replaced_by_plain_with_figures_in_the_log(on_a_tpu: None, caplog: pytest.LogCaptureFixture):
    leave(attention=REASON, residual_norm="")
    rejected = compare_kernels_once()
    assert caplog.messages == [f"model.attention=auto uses the plain path: {REASON}"]
    assert in_words(rejected) == f"attention: plain, since {REASON}; residual norm: fused (model.residual_norm=auto, TPU v5 lite)"


def test_only_usable_kernels_are_tested_and_a_requested_one_is_used_with_a_warning(
    on_a_tpu: None, caplog: pytest.LogCaptureFixture
):
    leave(attention=REASON)
    asked = {"attention": "fused", "residual_norm": "plain"}
    rejected = compare_kernels_once(asked)
    assert caplog.messages == [f"model.attention=fused uses a kernel that may be wrong: {REASON}; set it to auto or plain"]
    assert "attention: fused" in in_words(rejected, **asked)


def test_kernels_that_are_not_requested_are_not_tested(on_a_tpu: None):
    assert compare_kernels_once({"attention": "plain", "residual_norm": "plain"}) == {}


def test_a_kernel_that_fails_in_one_process_is_used_in_none(on_a_tpu: None):
    leave(attention="", residual_norm="")
    rejected = compare_kernels_once(gather=lambda own: [own, {"attention": "it is wrong", "residual_norm": ""}])
    assert "attention: plain, since process 1: it is wrong; residual norm: fused" in in_words(rejected)


def test_a_result_is_cached_until_jax_changes_or_it_is_compared_anew(monkeypatch: pytest.MonkeyPatch):
    found, path = on_cpu(), verdict_file("cpu")
    assert found["reason"].startswith(FAILS)
    assert json.loads(path.read_text()) == {"residual_norm": found}
    write_json(path, {"residual_norm": {"reason": ""}})
    assert on_cpu() == {"reason": ""}
    assert on_cpu(anew=True)["reason"].startswith(FAILS)
    write_json(path, {"residual_norm": {"reason": ""}})
    monkeypatch.setattr(jax, "__version__", "0.99.1")
    assert on_cpu()["reason"].startswith(FAILS)


def test_a_kernel_that_is_compared_later_leaves_the_verdicts_of_others():
    write_json(verdict_file("cpu"), {"attention": {"reason": "it is wrong"}})
    found = on_cpu()
    assert json.loads(verdict_file("cpu").read_text()) == {"attention": {"reason": "it is wrong"}, "residual_norm": found}


def test_each_source_of_the_kernels_and_each_compiler_has_verdicts_of_its_own(monkeypatch: pytest.MonkeyPatch):
    folder = pathlib.Path(kernels.__file__ or "").parent
    read, found = pathlib.Path.read_bytes, [verdict_file("cpu"), verdict_file("another kind")]
    for file in [*folder.glob("*.py"), *(folder.parent / name for name in self_test.SOURCES)]:

        def changed(path: pathlib.Path, file: pathlib.Path = file) -> bytes:
            return read(path) + b"#" * (path == file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pathlib.Path, "read_bytes", changed)
            found.append(verdict_file("cpu"))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "99")
    found.append(verdict_file("cpu"))
    assert len(set(found)) == len(found) > 10


def test_a_start_holds_the_lock_and_counts_as_failed_if_it_is_killed_but_not_if_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
):
    """A process that a compiler aborts leaves the file as it is during the comparison."""
    path = verdict_file("cpu")
    lock, left = path.with_suffix(".lock"), []

    def interrupted(device: jax.Device) -> None:
        left.append((path.read_text(), is_locked(lock)))
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_device", interrupted)
        with pytest.raises(KeyboardInterrupt):
            on_cpu()
    ((text, locked),) = left
    assert (locked, is_locked(lock)) == (True, False)
    assert on_cpu()["reason"].startswith(FAILS), "the interrupted comparison has no result"
    path.write_text(text)
    assert on_cpu()["reason"].endswith(f"did not finish in an earlier run ({path}; remove it to compare again)")


def test_an_unwritable_cache_and_a_damaged_file_only_repeat_the_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    verdict_file("cpu").write_text("[1, {")
    found = on_cpu()
    assert found["reason"].startswith(FAILS)
    assert json.loads(verdict_file("cpu").read_text()) == {"residual_norm": found}
    assert not caplog.messages
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "file"))
    assert on_cpu()["reason"].startswith(FAILS)
    assert "so the next run will compare the kernels again" in caplog.text


def test_every_device_is_compared_and_named_and_the_reason_shows_two():
    one, (first, second, *more) = on_cpu(), on_cpu(devices=4, anew=True)["reason"].split("; ")
    assert [first, second] == [f"device {device.id}: {one['reason']}" for device in jax.local_devices()[:2]]
    assert more == ["and on 2 more"]


def test_the_reason_of_one_of_two_devices_and_all_figures_are_recorded():
    not_a_number = dataclasses.replace(WRONG, error=float("nan"))
    right, wrong = Comparison((RIGHT,)), Comparison((WRONG, not_a_number))
    found = verdict("attention", jax.local_devices()[:2], [right, wrong], 2.54)
    assert found["reason"].startswith(f"device {jax.local_devices()[1].id}: {REASON}; gradient of key off by nan %")
    assert found["seconds"] == 2.5
    figures = [dataclasses.asdict(figure) for figure in (RIGHT, WRONG, not_a_number)]
    figures[2]["error"] = None
    assert found["figures"] == figures


@pytest.mark.parametrize(("count", "where"), [(1, "cpu"), (2, "2 x cpu")])
def test_the_log_shows_the_time_and_the_worst_figure_of_a_passed_test(count: int, where: str, caplog: pytest.LogCaptureFixture):
    far, close = dataclasses.replace(RIGHT, error=4e-5, limit=1.0), dataclasses.replace(RIGHT, error=2e-5)
    with caplog.at_level(logging.INFO):
        verdict("attention", jax.local_devices()[:count], [Comparison((figure,)) for figure in (close, far)[:count]], 2.54)
        verdict("attention", jax.local_devices()[:1], [Comparison(())], 2.54)
    told = f"kernel of attention: agrees with the plain path on {where}, compared in 3s (closest to its limit: {close})"
    assert caplog.messages == [told, "kernel of attention: agrees with the plain path on cpu, compared in 3s"]


def test_results_are_in_the_kernels_folder_of_the_cache(cache: pathlib.Path):
    assert verdict_file("TPU v5 lite").parent == cache / "kernels"
    assert verdict_file("TPU v5 lite").name.startswith(f"TPU-v5-lite-jax-{jax.__version__}-")
