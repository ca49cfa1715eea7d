"""A larger ModernBERT that starts as a tiling of a smaller one, from the command line."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.interop.huggingface import import_model
from bert_jax.interop.tiling import tiled
from tests.end_to_end import forked
from tests.end_to_end.forked import Commands, Surroundings
from tests.end_to_end.runs import REPOSITORY, VOCABULARY, records, write_text

TRAIN = f"""pretrain --config={REPOSITORY}/experiments/pretrain/modern_laptop.py --config.corpus.directory=corpus
    --config.steps=3 --config.phases.0.batch_size=8 --config.phases.1.batch_size=8 --config.phases.2.batch_size=8
    --config.phases.1.length=32 --config.phases.2.length=32 --config.phases.1.max_predictions=10
    --config.phases.2.max_predictions=10 --config.evaluation.rows=8 --config.evaluation.batch_size=8 --config.log_every=1
    --config.checkpoints.keep_at=[] --config.model.scan_layers=true"""
SMALL = "--config.model.hidden_size=16 --config.model.num_heads=2 --config.model.intermediate_size=12"
LARGE = "--config.model.hidden_size=32 --config.model.intermediate_size=20 --config.model.num_layers=5 --config.init_from=small"
TYPES = """--config.model.layer_types=["full","sliding","full","sliding","full"]"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("tiled")
    write_text(base / "text.txt")
    lines = {
        "corpus": f"corpus --source=text:text.txt --vocab={VOCABULARY} --lowercase --output=corpus --shards=2 --workers=1 "
        "--eval-fraction=0.2",
        "small": f"{TRAIN} --workdir=small {SMALL}",
        "large": f"{TRAIN} --workdir=large {LARGE} --config.model.num_heads=4 {TYPES} --config.init_tiled=true",
        "unasked": f"{TRAIN} --workdir=unasked {LARGE} --config.model.num_heads=4 {TYPES}",
        "heads": f"{TRAIN} --workdir=heads {LARGE} --config.model.num_heads=2 {TYPES} --config.init_tiled=true",
        "smaller": f"{TRAIN} --workdir=smaller {SMALL} --config.init_from=small --config.init_tiled=true "
        """--config.model.num_layers=2 --config.model.layer_types=["full","sliding"]""",
        "types": f"{TRAIN} --workdir=types {LARGE} --config.model.num_heads=4 --config.init_tiled=true",
    }
    done = forked.run(base / "said", *(line.split() for line in lines.values()), around=Surroundings(directory=base))
    return Commands(base, dict(zip(lines, done, strict=True)))


def test_training_starts_from_the_tiled_model(runs: Commands):
    for name in ("corpus", "small", "large"):
        assert runs.ends[name].status == 0, (name, runs.ends[name].output)
    assert "tiling" in runs.ends["large"].output
    assert "4 layers, 16 wide, 2 heads, to 5 layers, 32 wide, 4 heads" in runs.ends["large"].output
    large = import_model(runs.base / "large")
    begun = tiled(import_model(runs.base / "small"), large.config)
    found, first = (model.params["encoder"]["layers"]["feed_forward"]["gate"]["kernel"] for model in (large, begun))
    assert found.shape == first.shape == (5, 32, 20)
    moved = np.abs(found - first)
    assert 0 < moved.max() < 0.02  # three steps of at most 1.5e-3, not random weights of deviation 0.06
    assert {record["step"] for record in records(runs.base / "large")} >= {1, 2}
    assert large.config.layer_types == ("full", "sliding", "full", "sliding", "full")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unasked", "to initialise a larger model by tiling, give --config.init_tiled=True"),
        ("heads", "are 16 wide, but the heads of"),
        ("smaller", "config.model.num_layers=2 is smaller than the 4 of"),
        ("types", "model.layer_types lists 4 layers, but model.num_layers=5"),
    ],
)
def test_models_that_cannot_be_tiled_are_refused_in_one_sentence(runs: Commands, name: str, said: str):
    end = runs.ends[name]
    assert end.status == 2
    assert said in end.output.splitlines()[-1]
    assert "Traceback" not in end.output
