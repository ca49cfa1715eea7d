"""The exit statuses of runs."""

from __future__ import annotations

from bert_jax.errors import HUNG, MENDED_BY_RESTART, STOPPED


def test_a_run_is_started_again_after_a_hang_a_crash_and_a_signal_by_the_statuses_of_a_shell():
    assert (HUNG, STOPPED) == (42, 143)
    assert [*MENDED_BY_RESTART] == [42, 134, 135, 137, 139, 143]
