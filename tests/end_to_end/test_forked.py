"""The process that commands are forked from."""

from __future__ import annotations

import pathlib
import sys

from tests.end_to_end import forked
from tests.end_to_end.forked import COMMANDS


def every_command_is_there() -> None:
    """In the new process, before a command is imported."""
    missing = [module for module in COMMANDS if f"bert_jax.{module}" not in sys.modules]
    assert not missing, missing


def test_a_process_is_forked_from_one_that_has_imported_every_command(tmp_path: pathlib.Path):
    """A third of the suite's time once went into imports, when the module of another test had set what the server imports."""
    (done,) = forked.run(tmp_path, ("doctor", "--help"), prepare=every_command_is_there)
    assert done.status == 0, done.output
