"""States in a bucket, where nothing can be renamed: a marker object next to each state shows that it is complete."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.objects import StorageError
from bert_jax.training.checkpoints import Checkpoints
from tests.storage.emulator import Emulator

SIZE = 20_000


def state(step: int) -> dict[str, jax.Array]:
    return {"weights": jnp.arange(SIZE, dtype=jnp.float32) + step, "step": jnp.int32(step)}


ABSTRACT = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))


def saved(bucket: str, *steps: int) -> None:
    with Checkpoints(objects.as_path(f"{bucket}/checkpoints"), keep=2) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step))
            checkpoints.finish()


def restored(bucket: str, until: int | None = None) -> int | None:
    with Checkpoints(objects.as_path(f"{bucket}/checkpoints"), keep=2) as checkpoints:
        found = checkpoints.restore_latest(ABSTRACT, until)
    if found is None:
        return None
    np.testing.assert_array_equal(found["weights"], state(int(found["step"]))["weights"])
    return int(found["step"])


def steps(bucket: str) -> set[str]:
    return {name.split("/")[0] for name in objects.listed(f"{bucket}/checkpoints")}


def test_the_newest_checkpoints_are_kept_the_newest_one_restored_and_those_after_a_rollback_removed(bucket: str):
    assert restored(bucket) is None
    saved(bucket, 1, 2, 3)
    assert steps(bucket) == {"2", "3"}
    assert restored(bucket) == 3
    assert restored(bucket, until=2) == 2
    assert steps(bucket) == {"2"}


def test_an_incomplete_checkpoint_is_ignored_and_removed(bucket: str):
    saved(bucket, 1, 2)
    objects.remove(f"{bucket}/checkpoints/2/commit_success.txt")
    assert restored(bucket) == 1
    until = time.monotonic() + 30
    while steps(bucket) != {"1"} and time.monotonic() < until:  # Orbax removes it in a thread, for which only the next save waits
        time.sleep(0.01)
    assert steps(bucket) == {"1"}
    saved(bucket, 2)
    assert restored(bucket) == 2


def test_a_damaged_checkpoint_is_set_aside_for_the_previous_one_and_a_refused_one_is_not(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
):
    saved(bucket, 1, 2)
    monkeypatch.setattr("bert_jax.training.checkpoints._READ_PAUSE", 0.0)
    emulator.fail(403, match="alt=media")
    with pytest.raises(StorageError, match=rf"{bucket}/checkpoints/2: permission denied \(403\); the account needs"):
        restored(bucket)
    emulator.fail(200, count=0)
    assert steps(bucket) == {"1", "2"}
    for name, item in objects.listed(f"{bucket}/checkpoints/2").items():
        if item.size > 1000 and (found := objects.read(f"{bucket}/checkpoints/2/{name}")):
            middle = item.size // 2
            data = found.data[:middle] + bytes([found.data[middle] ^ 0x10]) + found.data[middle + 1 :]
            objects.write(f"{bucket}/checkpoints/2/{name}", data)
    assert restored(bucket) == 1
    assert steps(bucket) == {"1", "unreadable"}
    assert any(name.startswith("unreadable/2/state") for name in objects.listed(f"{bucket}/checkpoints"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gcsfs closes its file again
def test_a_refused_save_is_reported_and_the_next_one_tried(bucket: str, emulator: Emulator, caplog: pytest.LogCaptureFixture):
    with Checkpoints(objects.as_path(f"{bucket}/checkpoints"), keep=2) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.finish()
        emulator.fail(403, match="POST")
        checkpoints.save(2, state(2))
        with pytest.raises(UserError, match=rf"the checkpoint of step 2 could not be saved in {bucket}/checkpoints \("):
            checkpoints.finish()
        emulator.fail(200, count=0)
        assert checkpoints.failures == 1
        checkpoints.save(3, state(3))
        checkpoints.finish()
    assert "the checkpoint of step 2 could not be saved" in caplog.text
    assert restored(bucket) == 3


def test_process_0_of_two_starts_no_save_in_a_bucket_that_refuses(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with Checkpoints(objects.as_path(f"{bucket}/checkpoints"), gather=lambda here: [here, True]) as checkpoints:
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr("orbax.checkpoint.CheckpointManager.save", lambda *_, **__: pytest.fail("started"))
        emulator.fail(403, match="GET")
        checkpoints.save(1, state(1))
        emulator.fail(200, count=0)
        assert checkpoints.failures == 1
    assert "the checkpoint of step 1 could not be saved (" in caplog.text
