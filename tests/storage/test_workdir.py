from __future__ import annotations

import json
import re
import threading

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.independent_processes import ProcessShare
from bert_jax.runtime.processes import finds_marker, write_marker
from bert_jax.runtime.restarts import steps_done, workdir_of
from bert_jax.runtime.workdir import fetch_workdir, stored_config
from bert_jax.storage import objects
from bert_jax.storage.mirror import Mirror
from tests.storage.emulator import Emulator


def test_the_last_step_of_a_run_in_a_bucket_is_known_to_restarts(bucket: str, emulator: Emulator):
    workdir = workdir_of(["--config=x", f"--workdir={bucket}"])
    assert workdir is not None
    assert steps_done(workdir) == 0
    for name, step in (("metrics.jsonl", 0), ("runs/a/metrics.jsonl", 5), ("runs/b/metrics.jsonl", 7)):
        objects.write(f"{bucket}/{name}", f'{{"step": 1}}\n{{"step": {step}}}\n'.encode())
    assert steps_done(workdir) == 12
    emulator.fail(403)
    assert steps_done(workdir) == 0


def test_a_directory_of_something_else_is_refused_and_stays_as_it_was(bucket: str):
    objects.write(f"{bucket}/photos/1.png", b"1")
    objects.write(f"{bucket}/thesis.tex", b"2")
    says = f"--workdir={bucket} holds files that are not of a run (photos, thesis.tex); name a new or empty directory"
    with Mirror(bucket) as mirror, pytest.raises(UserError, match=re.escape(says)):
        fetch_workdir(mirror)
    assert objects.listed(bucket).keys() == {"photos/1.png", "thesis.tex"}


def test_the_configuration_of_a_run_is_read_from_the_bucket(bucket: str):
    objects.write(f"{bucket}/config.json", json.dumps({"written_by": "bert_jax 1 pretrain", "seed": 3}).encode())
    assert stored_config(objects.place(bucket))["seed"] == 3


def test_a_marker_in_the_bucket_is_seen_by_other_processes(bucket: str):
    place = objects.place(bucket)
    assert not finds_marker(place, "7", patience=0)
    write_marker(place, "7")
    assert finds_marker(place, "7", patience=0)
    assert not finds_marker(place, "8", patience=0)


def test_independent_processes_share_a_sweep_through_the_bucket(bucket: str):
    place, found = objects.place(bucket), []

    def other() -> None:
        with ProcessShare(place, (1, 2), start="s", beat=0.2) as share:
            assert share.gather({"b": 2}, waiting=lambda: False) is None

    thread = threading.Thread(target=other)
    with ProcessShare(place, (0, 2), start="s", beat=0.2) as share:
        thread.start()
        found = share.gather({"a": 1}, waiting=lambda: False)
    thread.join()
    assert found == [{"a": 1}, {"b": 2}]
    assert not any(name.endswith(".lock") for name in objects.listed(bucket))
