"""The exit statuses of runs."""

from __future__ import annotations

from bert_jax.errors import HUNG, MENDED_BY_RESTART, MISSING, STOPPED


def test_hangs_crashes_and_signals_are_restarted_by_exit_status():
    assert (HUNG, MISSING, STOPPED) == (42, 43, 143)
    assert [*MENDED_BY_RESTART] == [42, 43, 134, 135, 137, 139, 143]
