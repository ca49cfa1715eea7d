"""The end of both training loops: a run ends with its model, whatever happens to its disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import pathlib
import pwd
import shutil
import tempfile
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.interop.card import Training
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.training.exporting import export_trained, exported_files, on_host, write_results
from bert_jax.training.loop import StepSums, require_learned
from bert_jax.training.steps import add_sums
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.small_disk import files_of_at_most


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    vocabulary = make_vocabulary(tmp_path_factory.mktemp("loop") / "vocabulary", cased=False)
    return as_model(*make_model(vocabulary), vocabulary)


@pytest.fixture
def workdir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns an empty workdir; all other places for a model are in `tmp_path` too."""
    for name in ("run", "temporary", "home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "run"


def fill_disk_of(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes writing weights below a directory fail with safetensors' error for a full disk."""
    save = safetensors.numpy.save_file

    def save_elsewhere(tensors: dict, path: pathlib.Path, **named: object) -> None:
        if directory in pathlib.Path(path).parents:
            pathlib.Path(path).write_bytes(b"half")
            raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(tensors, path, **named)

    monkeypatch.setattr(safetensors.numpy, "save_file", save_elsewhere)


def test_a_model_and_its_results_are_written_to_the_workdir(model, workdir):
    export_trained(workdir, model, {"step": 3}, {"steps": 4}, Training(data="Pretrained on a poem."))
    assert sorted(path.name for path in workdir.iterdir()) == ["model", "results.json"]
    assert import_model(workdir).config == dataclasses.replace(model.config, vocab_multiple=1)
    assert_described(workdir)
    assert json.loads((workdir / "results.json").read_text()) == {"steps": 4}


def test_an_export_has_the_user_files_that_are_not_recorded_with_its_settings():
    files: dict[str, Any] = {key: {"path": "a.py", "sha256": "0", "source": "x"} for key in ("model.norm", "optimizer.name")}
    assert exported_files(files) == {"files": {"optimizer.name": files["optimizer.name"]}}
    assert exported_files({"model.norm": files["model.norm"]}) == exported_files({}) == {}


def assert_described(place: pathlib.Path) -> None:
    """The exported model has its step and a card about its training."""
    about = json.loads((place / "model" / "config.json").read_text())["bert_jax"]
    assert (about["step"], "steps" in about) == (3, False)
    assert "Pretrained on a poem." in (place / "model" / "README.md").read_text()


def test_a_full_workdir_makes_the_model_go_to_another_directory(model, workdir, monkeypatch):
    fill_disk_of(workdir, monkeypatch)
    with pytest.raises(UserError) as error:
        export_trained(workdir, model, {"step": 3}, {"steps": 4}, Training(data="Pretrained on a poem."))
    (place,) = (workdir.parent / "temporary").iterdir()
    assert place.name.startswith("bert_jax-run-")
    assert str(error.value).startswith(f"cannot write a model to {workdir / 'model'}: No space left on device; free space")
    assert f"The trained model is in {place / 'model'}: copy it" in str(error.value)
    written = import_model(place).params["pooler"]["dense"]["kernel"]
    np.testing.assert_array_equal(written, model.params["pooler"]["dense"]["kernel"])
    assert (place / "results.json").exists()
    assert_described(place)
    assert list(workdir.iterdir()) == []


def test_a_model_is_kept_in_memory_if_no_other_directory_exists(model, workdir, monkeypatch):
    make, asked = tempfile.mkdtemp, []

    def no_temporary_directory() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    def make_in_memory(prefix: str, dir: str) -> str:
        asked.append(dir)
        return make(prefix=prefix, dir=workdir.parent / "temporary")

    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_directory)
    monkeypatch.setattr(tempfile, "mkdtemp", make_in_memory)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.delenv("HOME")
    pathlib.Path.cwd().rmdir()
    fill_disk_of(workdir, monkeypatch)
    with pytest.raises(UserError, match="The trained model is in "):
        export_trained(workdir, model, {}, None)
    assert asked == ["/dev/shm"]


def test_a_run_without_own_results_exports_only_the_model(model, workdir, monkeypatch):
    export_trained(workdir, model, {}, None)
    assert [path.name for path in workdir.iterdir()] == ["model"]
    shutil.rmtree(workdir / "model")
    fill_disk_of(workdir, monkeypatch)
    with pytest.raises(UserError, match="The trained model is in "):
        export_trained(workdir, model, {}, None)
    (place,) = (workdir.parent / "temporary").iterdir()
    assert [path.name for path in place.iterdir()] == ["model"]


def test_results_that_cannot_be_written_are_an_error_that_is_returned(tmp_path):
    assert write_results(tmp_path, {"steps": 3}) is None
    assert json.loads((tmp_path / "results.json").read_text()) == {"steps": 3}
    error = write_results(tmp_path / "gone", {"steps": 3})
    assert str(error).startswith(f"{tmp_path / 'gone' / 'results.json'} could not be written (No such file or directory)")


@pytest.mark.parametrize("devices", [1, 4])
def test_parameters_are_gathered_whole_from_all_devices(devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    spread = jax.device_put(np.arange(8.0), NamedSharding(mesh, PartitionSpec("data")))
    (found,) = on_host([spread], mesh)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, np.arange(8.0))


def test_the_error_names_all_tried_directories_if_none_is_writable(model, workdir):
    with files_of_at_most(8_000), pytest.raises(UserError) as error:
        export_trained(workdir, model, {}, {})
    assert "No other directory could be written either: " in str(error.value)
    for name in ("temporary", "home", "here"):
        assert f"{workdir.parent / name} ([Errno 27] File too large" in str(error.value)
        assert list((workdir.parent / name).iterdir()) == []


def test_weights_that_are_not_finite_are_never_exported(model, workdir):
    export_model(workdir / "model", model)
    broken = jax.tree.map(np.copy, model.params)
    broken["pooler"]["dense"]["kernel"][3, 5] = np.inf
    with pytest.raises(UserError, match=r"nothing is written to .*: NaN or infinity in bert.pooler.dense.weight; "):
        export_trained(workdir, dataclasses.replace(model, params=broken), {}, {})
    import_model(workdir)  # the previous one
    assert not list((workdir.parent / "temporary").iterdir())


@pytest.mark.parametrize(("steps", "skipped"), [(10, 6), (1, 1), (3, 2)])
def test_a_run_with_less_than_half_of_its_steps_counted_fails(steps, skipped):
    with pytest.raises(UserError, match=f"only {steps - skipped} of {steps} steps? changed the weights"):
        require_learned(steps, skipped)


@pytest.mark.parametrize(("steps", "most_skipped"), [(10, 5), (1, 0), (2, 1), (3, 1)])
def test_the_error_begins_with_the_first_skipped_step_beyond_half(steps, most_skipped):
    def is_refused(skipped: int) -> bool:
        try:
            require_learned(steps, skipped)
        except UserError:
            return True
        return False

    assert [is_refused(skipped) for skipped in range(steps + 1)] == [skipped > most_skipped for skipped in range(steps + 1)]


def test_a_log_window_adds_sums_and_keeps_the_last_rate():
    first, second = ({"rows": np.float32(n), "learning_rate": np.float32(rate)} for n, rate in ((8, 0.5), (4, 0.25)))
    assert add_sums(add_sums({}, first), second) == {"rows": 12.0, "learning_rate": 0.25}


def test_devices_count_as_busy_until_the_last_step_is_done(tmp_path):
    class Step:
        done = False

        def is_ready(self) -> bool:
            return self.done

        def __float__(self) -> float:
            return 0.0

    sums, step = StepSums(3, tmp_path, dict), Step()
    assert not sums.is_computing()
    sums._last = {"skipped_in_a_row": step}
    assert sums.is_computing()
    step.done = True
    assert not sums.is_computing()


def test_divergence_is_reported_even_on_a_full_disk(tmp_path):
    def rows(step: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.random.default_rng(step).integers(0, 1 << 30, (64, 64))}

    sums = StepSums(3, tmp_path, rows)
    sums.add(7, {"skipped_in_a_row": np.float32(3)})
    with (
        files_of_at_most(1000),
        pytest.raises(
            UserError,
            match=r"in 3 steps in a row, .*could not be written to .*File too "
            r"large",
        ),
    ):
        sums.check(7)
    assert list(tmp_path.iterdir()) == []
