"""The defaults of every key."""

from __future__ import annotations

import json

from tests.golden.make_defaults import GOLDEN, defaults


def test_the_default_of_every_key_is_the_one_that_runs_were_started_with():
    assert defaults() == json.loads(GOLDEN.read_text(encoding="utf-8"))
