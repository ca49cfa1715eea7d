from __future__ import annotations

import pytest

from bert_jax.model.kernels import attention_plan, residual_norm_tpu, rotary_tpu


@pytest.fixture(autouse=True)
def one_piece_per_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not unroll loops over the pieces of a block, which takes longer to compile than all else."""
    for module in (residual_norm_tpu, rotary_tpu):
        monkeypatch.setattr(module, "UNROLL", 1)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses blocks of 128 instead of 512, so that rows that are short enough to interpret have several blocks."""
    monkeypatch.setattr(attention_plan, "BLOCK", 128)
