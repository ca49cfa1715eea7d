from __future__ import annotations

import errno
import logging
import pathlib
import shutil
import threading
import time
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator

from bert_jax.errors import UserError, WorkdirError
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.checkpoints import DIGESTS, ITEM, Checkpoints, digests
from bert_jax.training.steps import Program
from tests.sharding.training import few_arrays_on, program_of

# TensorStore's threads may report to an event loop that Orbax closed at the first failure; Python can only print that
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def state_at(step: int, size: int = 50_000) -> dict[str, jax.Array]:
    """Returns incompressible numbers that identify the step."""
    weights = np.random.default_rng(step).standard_normal(size, np.float32)
    return jax.device_put({"step": np.int32(step), "weights": weights})


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def steps_in(directory: pathlib.Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def save_all(directory: pathlib.Path, *steps: int, keep: int = 9) -> None:
    with Checkpoints(directory, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_at(step))
        checkpoints.finish()


def damage(directory: pathlib.Path) -> None:
    """Cuts off the end of the largest file, as after a power failure."""
    largest = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1000])


def restored(directory: pathlib.Path) -> Any:
    with Checkpoints(directory, keep=9) as checkpoints:
        return checkpoints.restore_latest(abstract(state_at(0)))


def random_state(program: Program) -> Any:
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: np.asarray(100 * rng.standard_normal(x.shape), x.dtype), program.state)
    return jax.device_put(state, program.shardings)


def test_a_training_state_with_optimizer_is_restored_bit_for_bit(tmp_path: pathlib.Path):
    state = random_state(program_of(few_arrays_on(MeshConfig()), 1))
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(2, state)
        checkpoints.finish()
        found = checkpoints.restore_latest(abstract(state))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert_equal(found, state)


def test_a_state_is_restored_on_another_mesh(tmp_path: pathlib.Path):
    """The state is saved from 8 devices along fsdp and tensor, and restored on 1 and on 4 along data: the same numbers, with the
    requested layout."""
    state = random_state(program_of(few_arrays_on(MeshConfig(data=1, fsdp=4, tensor=2))))
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.finish()
        for mesh, devices in ((MeshConfig(), 1), (MeshConfig(data=-1, tensor=2), 4)):
            program = program_of(few_arrays_on(mesh), devices)
            found = checkpoints.restore_latest(program.state)
            assert_equal(found, state)
            same = jax.tree.map(lambda x, to: x.sharding.is_equivalent_to(to, x.ndim), found, program.shardings)
            assert all(jax.tree.leaves(same))


def test_later_steps_do_not_change_a_save_in_progress(tmp_path: pathlib.Path):
    """The step donates the buffers of the state that is still being written."""
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = step(state_at(0, size=4_000_000))
    wanted = jax.tree.map(lambda x: np.array(x, copy=True), state)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state)
        for _ in range(20):
            state = step(state)
        jax.block_until_ready(state)
        checkpoints.finish()
        assert_equal(checkpoints.restore_latest(abstract(state)), wanted)


@pytest.mark.parametrize("what", ["a file", "a link to nowhere"])
def test_something_else_in_place_of_the_checkpoints_is_refused(tmp_path: pathlib.Path, what: str):
    place = tmp_path / "checkpoints"
    place.touch() if what == "a file" else place.symlink_to("nowhere")
    with pytest.raises(UserError, match=rf"^{place} is not a directory, so checkpoints cannot be saved in it; move it away$"):
        Checkpoints(place)


def test_without_checkpoints_nothing_is_restored(tmp_path: pathlib.Path):
    assert restored(tmp_path) is None


def test_the_newest_checkpoint_is_kept_by_default(tmp_path: pathlib.Path):
    save_all(tmp_path, 1, 2, 3, 4, keep=2)
    assert steps_in(tmp_path) == [3, 4]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, state_at(5))
        assert_equal(checkpoints.restore_latest(abstract(state_at(0))), state_at(5))  # waits for the save
    assert steps_in(tmp_path) == [5]
    save_all(tmp_path, 3)  # an earlier step can be saved after a later one
    assert steps_in(tmp_path) == [3, 5]


def test_chosen_steps_are_kept_in_addition_to_the_newest(tmp_path: pathlib.Path):
    for first, last in ((1, 4), (5, 6)):  # in two starts
        with Checkpoints(tmp_path, keep=2, keep_at=(2, 3)) as checkpoints:
            for step in range(first, last + 1):
                checkpoints.save(step, state_at(step))
            checkpoints.finish()
    assert steps_in(tmp_path) == [2, 3, 5, 6]
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        assert_equal(checkpoints.restore(2, abstract(state_at(0))), state_at(2))
    with Checkpoints(tmp_path / "none", read_only=True) as checkpoints:
        assert checkpoints.steps == []
    assert not (tmp_path / "none").exists()


def test_parallel_runs_may_save_simultaneously(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Orbax counts saves per process: the second to start would take the first one's number, and both would wait for minutes. The
    pause after counting makes them collide every time."""
    count = OperationIdGenerator.next_operation_id

    def count_and_pause() -> int:
        number = count()
        time.sleep(0.2)
        return number

    monkeypatch.setattr(OperationIdGenerator, "next_operation_id", count_and_pause)
    runs = [threading.Thread(target=save_all, args=(tmp_path / name, 1, 2), daemon=True) for name in "abc"]
    for run in runs:
        run.start()
    for run in runs:
        run.join(timeout=60)
    assert [steps_in(tmp_path / name) for name in "abc"] == [[1, 2]] * 3


def test_a_save_in_progress_completes_after_an_error(tmp_path: pathlib.Path):
    def run() -> None:
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save(1, state_at(1, size=4_000_000))
            raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        run()
    assert steps_in(tmp_path) == [1]


def test_a_damaged_newest_checkpoint_is_set_aside_and_saved_again(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    save_all(tmp_path, 1, 2, 3)
    damage(tmp_path / "3")
    with Checkpoints(tmp_path, keep=2) as checkpoints, caplog.at_level(logging.WARNING):
        assert_equal(checkpoints.restore_latest(abstract(state_at(0))), state_at(2))
        assert "the checkpoint of step 3 cannot be read (" in caplog.text
        assert "trying another one" in caplog.text
        assert steps_in(tmp_path / "unreadable") == [3]
        checkpoints.save(3, state_at(3))
        checkpoints.finish()
    assert_equal(restored(tmp_path), state_at(3))


def flipped(path: pathlib.Path, share: float) -> None:
    """Flips one bit of a file, at a fraction of its length."""
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


def test_a_flipped_bit_never_changes_the_restored_state(tmp_path: pathlib.Path, caplog):
    """Either the state is skipped and the one before it is used, or the bit has no meaning and the arrays equal the saved
    ones."""
    save_all(tmp_path / "saved", 1, 2)
    files = sorted(path for path in (tmp_path / "saved/2").rglob("*") if path.is_file() and path.stat().st_size)
    largest = max(files, key=lambda path: path.stat().st_size)
    set_aside = set()
    for file in files:
        for share in (0.0, 0.5, 0.9) if file == largest else (0.5,):
            directory = shutil.copytree(tmp_path / "saved", tmp_path / f"{len(list(tmp_path.iterdir()))}")
            flipped(directory / file.relative_to(tmp_path / "saved"), share)
            found = restored(directory)
            assert_equal(found, state_at(int(found["step"])))
            if int(found["step"]) == 1:
                set_aside.add((file.name, share))
                assert steps_in(directory / "unreadable") == [2]
    assert {(largest.name, share) for share in (0.0, 0.5, 0.9)} <= set_aside
    assert "its contents differ from the saved digests: weights changed on disk" in caplog.text


def test_a_state_is_restored_and_a_flipped_bit_is_detected_on_another_mesh(tmp_path: pathlib.Path, caplog):
    """The arrays get the requested layout."""

    def spread(devices: int, axes: PartitionSpec, step: int = 0) -> Any:
        mesh = make_mesh(MeshConfig(data=devices // 2, tensor=2) if devices > 1 else MeshConfig(), jax.devices()[:devices])
        weights = {"weights": np.asarray(state_at(step, size=64_000)["weights"]).reshape(64, 1000)}
        return jax.device_put(weights, NamedSharding(mesh, axes))

    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, spread(8, PartitionSpec("data", "tensor"), step))
        checkpoints.finish()
    for wanted in (spread(1, PartitionSpec()), spread(4, PartitionSpec("tensor"))):
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            found = checkpoints.restore_latest(abstract(wanted))
            assert_equal(found, spread(8, PartitionSpec(), 2))
            assert found["weights"].sharding.is_equivalent_to(wanted["weights"].sharding, 2)
    flipped(max((tmp_path / "2").rglob("d/*"), key=lambda path: path.stat().st_size), 0.5)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert_equal(checkpoints.restore_latest(abstract(wanted)), spread(8, PartitionSpec(), 1))
    assert "weights changed on disk" in caplog.text


def test_a_checkpoint_whose_digests_are_gone_is_set_aside(tmp_path: pathlib.Path):
    save_all(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "2" / DIGESTS)
    assert_equal(restored(tmp_path), state_at(1))
    assert steps_in(tmp_path / "unreadable") == [2]


def test_a_state_that_is_not_finite_is_neither_saved_nor_restored(tmp_path: pathlib.Path, caplog):
    broken = jax.tree.map(np.array, state_at(3))
    broken["weights"][7] = np.nan
    broken = jax.device_put(broken)
    save_all(tmp_path, 1)
    with ocp.CheckpointManager(tmp_path) as manager:
        parts = {ITEM: ocp.args.StandardSave(broken), DIGESTS: ocp.args.JsonSave(digests(broken)[0])}
        manager.save(2, args=ocp.args.Composite(**parts))
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        assert_equal(checkpoints.restore_latest(abstract(state_at(0))), state_at(1))
        assert "the checkpoint of step 2 cannot be read (NaN or infinity in weights); trying" in caplog.text
        checkpoints.save(3, broken)
        assert "the checkpoint of step 3 could not be saved (NaN or infinity in weights); training continues" in caplog.text
        checkpoints.save(4, {**broken, "a": broken["weights"], "b": broken["weights"]})
        assert "the checkpoint of step 4 could not be saved (NaN or infinity in a and 2 more arrays); training" in caplog.text
        assert type(checkpoints.failure()) is UserError, "the run is at fault, not the disk"
    assert steps_in(tmp_path) == [1]


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (MemoryError(), MemoryError, "^$"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), jax.errors.JaxRuntimeError, "Out of memory"),
        (OSError(errno.EMFILE, "Too many open files"), WorkdirError, "Too many open files"),
        (ValueError("Error reading x [os_error_code='13']"), WorkdirError, "Permission denied"),
        (ValueError("UNAVAILABLE: no answer"), WorkdirError, "UNAVAILABLE: no answer"),
    ],
)
def test_a_checkpoint_that_may_be_intact_is_not_set_aside(
    error: Exception, expected: type[Exception], says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    save_all(tmp_path, 1, 2)
    monkeypatch.setattr("bert_jax.training.checkpoints._READ_PAUSE", 0.0)
    restore, failing = ocp.StandardCheckpointHandler.restore, [error] * 9

    def fails(*given: Any, **named: Any) -> Any:
        if failing:
            raise failing.pop()
        return restore(*given, **named)

    with Checkpoints(tmp_path, keep=2) as checkpoints:
        monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", fails)
        for until in (None, 1):  # a state of a later step would be removed if there were no readable earlier one
            at = rf"{tmp_path}/{until or 2} cannot be read at the moment \({says}\), but it may"
            with pytest.raises(expected, match=at if expected is WorkdirError else says):
                checkpoints.restore_latest(abstract(state_at(0)), until=until)
        del failing[1 if expected is WorkdirError else 0 :]
        if expected is WorkdirError:  # it passes
            assert_equal(checkpoints.restore_latest(abstract(state_at(0))), state_at(2))
    assert steps_in(tmp_path) == [1, 2]
    assert not (tmp_path / "unreadable").exists()
    assert_equal(restored(tmp_path), state_at(2))


def test_a_second_damaged_checkpoint_of_the_same_step_is_set_aside(tmp_path: pathlib.Path):
    for _ in range(2):
        save_all(tmp_path, *({1, 2} - set(steps_in(tmp_path) if tmp_path.exists() else ())))
        damage(tmp_path / "2")
        assert_equal(restored(tmp_path), state_at(1))
    assert sorted(path.name for path in (tmp_path / "unreadable").iterdir()) == ["2", "2-2"]


@pytest.mark.parametrize("missing", ["state", "manifest.ocdbt", "d"])
def test_an_incomplete_checkpoint_is_skipped(tmp_path: pathlib.Path, missing: str):
    save_all(tmp_path, 1, 2)
    for path in sorted((tmp_path / "2").rglob(missing)):
        path.rename(tmp_path / f"taken-{path.parent.name}")
    assert_equal(restored(tmp_path), state_at(1))


def test_unreadable_checkpoints_stay_in_place_if_none_can_be_read(tmp_path: pathlib.Path):
    save_all(tmp_path, 1, 2)
    for step in (1, 2):
        damage(tmp_path / str(step))
    for _ in range(2):
        with pytest.raises(UserError, match=r"none of the checkpoints in .* can be read \(steps 2, 1\); restore the directory"):
            restored(tmp_path)
        assert steps_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("until", [None, 1])
def test_states_of_another_optimizer_are_named_and_stay_in_place(tmp_path: pathlib.Path, until: int | None):
    save_all(tmp_path, 1, 2)
    other = state_at(0) | {"nu": state_at(0)["weights"]}
    wanted = {name: x for name, x in other.items() if name != "weights"}
    both = "it has weights, which the run does not; it lacks nu, which the run has"
    for state, says in ((other, "it lacks nu, which the run has"), (wanted, both)):
        with Checkpoints(tmp_path, keep=9) as checkpoints, pytest.raises(UserError, match=rf"other arrays than .* \({says}"):
            checkpoints.restore_latest(abstract(state), until=until)
        assert steps_in(tmp_path) == [1, 2]
        with Checkpoints(tmp_path, keep=9) as checkpoints, pytest.raises(UserError, match=rf"step 2 .* other arrays .* \({says}"):
            checkpoints.restore(2, abstract(state))
    assert_equal(restored(tmp_path), state_at(2))
    damage(tmp_path / "1")
    with Checkpoints(tmp_path, keep=9) as checkpoints, pytest.raises(UserError, match="other arrays than this run"):
        checkpoints.restore_latest(abstract(other), or_earliest=True)
    assert steps_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("removed", [0, 1, 6, None])
def test_a_kill_during_the_removal_of_a_checkpoint_does_not_block_a_run(tmp_path: pathlib.Path, removed: int | None):
    """The states are best weights. The run continues from a step before the newer ones, and finds them again."""
    save_all(tmp_path, 3, 6)
    files = sorted(path for path in (tmp_path / "3").rglob("*") if path.is_file())
    for path in files[:removed]:
        path.unlink()
    newest = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-newest"))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found = checkpoints.restore_latest(abstract(state_at(0)), until=4)
        if found is not None:  # only files about the state are missing, not the state itself
            assert_equal(found, state_at(3))
        assert (found is not None) >= (removed == 0)
        assert (found is None) >= (removed is None)
        assert steps_in(tmp_path) == ([] if found is None else [3])
        checkpoints.save(6, state_at(6))
        checkpoints.finish()
    assert_equal(restored(tmp_path), state_at(6))
    assert steps_in(tmp_path) == [6]
    assert_equal(restored(newest), state_at(6))


def test_checkpoints_after_a_rollback_are_removed_earliest_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """If the run is killed during the removal, later states show that earlier ones may be missing."""
    save_all(tmp_path, 1, 2, 3)
    remove, removed = shutil.rmtree, list[str]()

    def noted(path: Any, **named: Any) -> None:
        removed.append(pathlib.Path(path).name)
        remove(path, **named)

    with Checkpoints(tmp_path, keep=9) as checkpoints:
        monkeypatch.setattr(shutil, "rmtree", noted)
        assert_equal(checkpoints.restore_latest(abstract(state_at(0)), until=1), state_at(1))
        assert (steps_in(tmp_path), removed) == ([1], ["2", "3"])
        assert checkpoints.restore_latest(abstract(state_at(0)), until=-1) is None
    assert steps_in(tmp_path) == []


def test_a_restore_needs_disk_space_for_one_more_state(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    save_all(tmp_path, 1)
    size = 50_000 * 4 + 4
    for free in (size, size - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(10**9, 10**9 - free, free))
        with Checkpoints(tmp_path) as checkpoints:
            if free == size:
                assert checkpoints.restore_latest(abstract(state_at(0))) is not None
                continue
            with pytest.raises(WorkdirError, match=rf"^a checkpoint of this run has 0\.00 GB, but {tmp_path} has only 0\.00 GB"):
                checkpoints.restore_latest(abstract(state_at(0)))


def test_a_partly_written_checkpoint_is_ignored(tmp_path: pathlib.Path):
    save_all(tmp_path, 1, 2)
    unfinished = (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    (unfinished / "commit_success.txt").unlink()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert_equal(checkpoints.restore_latest(abstract(state_at(0))), state_at(1))
        checkpoints.save(3, state_at(3))
        checkpoints.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]
