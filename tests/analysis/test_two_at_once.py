"""Two commands of `analyse` that write into one folder at the same time."""

from __future__ import annotations

import os
import pathlib
import signal

from tests.end_to_end import forked
from tests.end_to_end.forked import Signal
from tests.end_to_end.toy_tasks import write_model


def is_stopped(process: int) -> bool:
    """Returns whether SIGSTOP has taken effect."""
    return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_second_of_two_analyses_in_one_folder_is_refused_and_the_first_ends(tmp_path: pathlib.Path):
    write_model(tmp_path / "model", num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, max_position=64)
    out = tmp_path / "out"
    line = ["analyse", "neighbours", f"--model={tmp_path / 'model'}", f"--output={out}", "house"]
    first = forked.start(tmp_path / "said", line, at=Signal("bert_jax.analysis.folder:_Pending.complete", number=signal.SIGSTOP))
    number = first.process.pid or 0
    try:
        first.wait_until(lambda: is_stopped(number))
        (second,) = forked.run(tmp_path / "said", line)
    finally:
        os.kill(number, signal.SIGCONT)
    assert second.status == 2, second.output
    assert f"error: --output={out}" in second.output
    assert f" is being written by another process (in {out}/." in second.output
    assert "); wait for it, or choose another --output" in second.output
    (done,) = first.end()
    assert done.status == 0, done.output
    assert [path.name for path in out.iterdir()] == ["pieces.tsv"]
