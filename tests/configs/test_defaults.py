"""The defaults of every key."""

from __future__ import annotations

import json

from tests.golden.make_defaults import GOLDEN, defaults


def test_the_default_of_every_key_equals_the_golden_file():
    assert defaults() == json.loads(GOLDEN.read_text(encoding="utf-8"))
