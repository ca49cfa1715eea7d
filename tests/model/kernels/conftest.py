from __future__ import annotations

import pytest

from bert_jax.model.kernels import attention_plan


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses blocks of 128 instead of 512, so that rows that are short enough to interpret have several blocks."""
    monkeypatch.setattr(attention_plan, "BLOCK", 128)
