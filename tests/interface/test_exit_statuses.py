"""The exit statuses of runs."""

from __future__ import annotations

from bert_jax.errors import HUNG, MENDED_BY_RESTART, STOPPED


def test_hangs_crashes_and_signals_are_restarted_by_exit_status():
    assert (HUNG, STOPPED) == (42, 143)
    assert [*MENDED_BY_RESTART] == [42, 134, 135, 137, 139, 143]
