from __future__ import annotations

from collections.abc import Iterator

import pytest

from bert_jax.sharding import rules


@pytest.fixture(scope="module")
def small_arrays_are_spread_too() -> Iterator[None]:
    """Shards small arrays too: in a model 16 wide, otherwise none would be large enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MIN_ZERO_SIZE", 64)
        yield
