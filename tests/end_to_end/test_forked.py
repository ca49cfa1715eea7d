"""The process that verbs are forked from."""

from __future__ import annotations

import pathlib
import sys

from tests.end_to_end import forked
from tests.end_to_end.forked import VERBS


def every_verb_is_there() -> None:
    """In the new process, before a verb is imported."""
    missing = [module for module in VERBS if f"bert_jax.{module}" not in sys.modules]
    assert not missing, missing


def test_a_process_is_forked_from_one_that_has_imported_every_verb(tmp_path: pathlib.Path):
    """A third of the suite's time once went into imports, when the module of another test had set what the server imports."""
    (done,) = forked.run(tmp_path, ("doctor", "--help"), prepare=every_verb_is_there)
    assert done.status == 0, done.output
