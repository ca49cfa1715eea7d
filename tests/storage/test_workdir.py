from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.processes import MARKER_FILE, Processes, require_shared_directory
from bert_jax.runtime.restarts import find_workdir, steps_done
from bert_jax.runtime.workdir import PROCESSES, fetch_workdir, open_workdir, stored_config
from bert_jax.storage import objects
from bert_jax.storage.mirror import Mirror
from tests.runtime.connected import group
from tests.storage.emulator import Emulator


def test_the_last_step_of_a_run_in_a_bucket_is_known_to_restarts(bucket: str, emulator: Emulator):
    workdir = find_workdir(["--config=x", f"--workdir={bucket}"])
    assert workdir is not None
    assert steps_done(workdir) == 0
    for name, step in (("metrics.jsonl", 0), ("runs/a/metrics.jsonl", 5), ("runs/b/metrics.jsonl", 7)):
        objects.write(f"{bucket}/{name}", f'{{"step": 1}}\n{{"step": {step}}}\n'.encode())
    assert steps_done(workdir) == 12
    emulator.fail(403)
    assert steps_done(workdir) == 0


def test_a_bucket_directory_with_other_files_is_refused_and_not_changed(bucket: str):
    objects.write(f"{bucket}/photos/1.png", b"1")
    objects.write(f"{bucket}/thesis.tex", b"2")
    says = f"--workdir={bucket} holds files that are not from a run (photos, thesis.tex); name a new or empty directory"
    with Mirror(bucket) as mirror, pytest.raises(UserError, match=re.escape(says)):
        fetch_workdir(mirror)
    assert objects.listed(bucket).keys() == {"photos/1.png", "thesis.tex"}


@pytest.mark.parametrize("names", [(), (".lock", ".processes/1.lock"), ("config.json", "notes.txt")])
def test_a_run_or_nothing_in_a_bucket_is_fetched(names: tuple[str, ...], bucket: str):
    for name in names:
        objects.write(f"{bucket}/{name}", b'{"written_by": "bert_jax 1 pretrain"}')
    with Mirror(bucket) as mirror:
        fetch_workdir(mirror)
        assert {path.name for path in mirror.directory.iterdir()} == {name for name in names if not name.startswith(".")}


def test_a_rejected_start_is_removed_from_the_bucket(bucket: str):
    mirror = Mirror(bucket, mark="config.json")
    opened = open_workdir(mirror.directory, "pretrain", {}, mirror=mirror)
    with contextlib.suppress(UserError), mirror, opened:
        mirror.push()
        mirror.start()
        assert objects.listed(bucket).keys() == {"config.json"}
        raise UserError("the task has no such file")
    assert not objects.listed(bucket)


def test_a_model_directory_in_a_bucket_is_refused_by_its_name_there(bucket: str):
    objects.write(f"{bucket}/config.json", b'{"model_type": "bert"}')
    says = f"{bucket} holds a config.json that was not written by a run (a model directory?); name another --workdir"
    with Mirror(bucket) as mirror, pytest.raises(UserError, match=f"^{re.escape(says)}"):
        fetch_workdir(mirror)


def test_a_removed_local_copy_is_told_from_a_removed_workdir(bucket: str):
    says = f"^{{}}, the local copy of --workdir={bucket}, was moved or removed while the run was using it; rerun the same command"
    with Mirror(bucket) as mirror:
        opened = open_workdir(mirror.directory, "pretrain", {}, mirror=mirror)
        with pytest.raises(UserError, match=says.format(mirror.directory)), opened as require_in_place:  # noqa: PT012
            (mirror.directory / ".lock").unlink()
            require_in_place()


def test_the_configuration_of_a_run_is_read_from_the_bucket(bucket: str):
    objects.write(f"{bucket}/config.json", json.dumps({"written_by": "bert_jax 1 pretrain", "seed": 3}).encode())
    assert stored_config(objects.as_path(bucket))["seed"] == 3


def test_processes_share_a_bucket_and_its_runs(bucket: str):
    place = objects.as_path(bucket)

    def share(one: Processes) -> Any:
        require_shared_directory(one, place)
        with one.shard_runs(place, lambda: None) as own:
            locks = [name for name in objects.listed(bucket) if name.endswith(f"{PROCESSES}/{one.index}.lock")]
            return len(locks), own.gather({"a": one.index}, waiting=lambda: False)

    with group(count=2) as two:
        assert two.all(share) == [(1, [{"a": 0}, {"a": 1}]), (1, None)]
    assert not any(name.endswith(MARKER_FILE) for name in objects.listed(bucket))
    assert not any(name.endswith(".lock") for name in objects.listed(bucket))
