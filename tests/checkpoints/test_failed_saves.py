from __future__ import annotations

import itertools
import pathlib
import shutil

import pytest

from bert_jax.checkpoints import manager
from bert_jax.checkpoints.manager import UNFINISHED


def test_files_that_a_failed_save_is_still_writing_are_removed_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    partial = tmp_path / f"3{UNFINISHED}"
    (partial / "state").mkdir(parents=True)
    written = iter(range(3))

    def remove_while_another_thread_writes(path: pathlib.Path) -> None:
        shutil.rmtree(path)
        for number in itertools.islice(written, 1):
            path.mkdir()
            (path / f"{number}").write_bytes(b"late")

    monkeypatch.setattr(manager, "remove_tree", remove_while_another_thread_writes)
    manager._remove_partial(tmp_path, 3)
    assert not list(tmp_path.iterdir())
    assert next(written, None) is None, "all late files were written"
