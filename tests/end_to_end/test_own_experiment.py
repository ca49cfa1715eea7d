"""The experiment file that experiments/README.md shows, trained as printed except for its length."""

from __future__ import annotations

import pathlib

from tests.documented import own_experiment
from tests.end_to_end import forked
from tests.end_to_end.runs import records, results


def test_the_documented_experiment_trains_both_of_its_phases(experiment: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "mine.py").write_text(own_experiment())
    shorter = ["--config.phases.0.steps=2", "--config.phases.1.steps=1", "--config.evaluation.rows=8", "--config.log_every=5"]
    smaller = [f"--config.{key}.batch_size=8" for key in ("phases.0", "phases.1", "evaluation")]
    smaller += ["--config.phases.1.length=32", "--config.phases.1.max_predictions=5"]  # the compiled step of the first phase
    smaller += ["--config.model.scan_layers=true"]
    flags = [f"--config={tmp_path}/mine.py", f"--config.corpus.directory={experiment.parent}/corpus", *shorter, *smaller]
    (done,) = forked.run(experiment.parent, ["pretrain", *flags, f"--workdir={tmp_path}/run"])
    assert done.status == 0, done.output
    assert "model: 2 layers, 128 wide" in done.output
    assert results(tmp_path / "run")["steps"] == 3
    logged = [record["step"] for record in records(tmp_path / "run") if "train/mlm_loss" in record]
    assert logged == [2, 3], "the end of each phase"
