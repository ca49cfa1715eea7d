"""The process from which commands are forked."""

from __future__ import annotations

import pathlib
import sys

from tests.end_to_end import forked
from tests.end_to_end.forked import COMMANDS


def every_command_is_there() -> None:
    """Checks, in the new process, that all commands are imported before one runs."""
    missing = [module for module in COMMANDS if f"bert_jax.{module}" not in sys.modules]
    assert not missing, missing


def test_forked_commands_have_all_imports_ready(tmp_path: pathlib.Path):
    """If the module of another test changed what the server imports, imports would take a third of the suite's time."""
    (done,) = forked.run(tmp_path, ("doctor", "--help"), prepare=every_command_is_there)
    assert done.status == 0, done.output
