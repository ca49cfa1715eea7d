"""Which messages of libraries reach the log of a run."""

from __future__ import annotations

import logging
import os
import sys
import warnings

import pytest

from bert_jax.runtime.environment import quiet_libraries, start_logging

LEVELS = dict.fromkeys(("jax", "orbax", "etils", "tensorflow_datasets", "grain", "matplotlib"), logging.ERROR)
LEVELS |= dict.fromkeys(("absl", "asyncio"), logging.CRITICAL)


def test_libraries_log_only_errors(monkeypatch: pytest.MonkeyPatch):
    for name in LEVELS:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.WARNING)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        quiet_libraries()
        for module in ("orbax.checkpoint", "tensorflow_datasets", "etils.epath", "bert_jax.corpus"):
            warnings.warn_explicit("deprecated", DeprecationWarning, f"{module}.py", 1, module=module)
    assert [warning.filename for warning in shown] == ["bert_jax.corpus.py"]
    assert {name: logging.getLogger(name).level for name in LEVELS} == LEVELS
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"


def test_a_user_setting_of_the_xla_log_level_is_kept(monkeypatch: pytest.MonkeyPatch):
    for name in LEVELS:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.WARNING)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with warnings.catch_warnings():
        quiet_libraries()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


def test_log_lines_are_shown_once_after_a_second_start(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(sys.stdout)])
    for _ in range(2):
        start_logging(0)
    logging.getLogger("bert_jax.somewhere").info("progress")
    logging.getLogger("bert_jax.somewhere").debug("detail")
    assert capsys.readouterr() == ("", "progress\n")
