"""The computations of the GPU benchmark from its measurements, and the text that the peer gets."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.model.config import ModelConfig, published
from bert_jax.objectives.flops import model_row_flops
from tests.benchmarks.benchmark_batches import made_up_corpus
from tests.benchmarks.benchmark_gpu_step import report, text, unmasked


def measurement(who: str, rows: int, seconds: float) -> dict:
    rest = {"waiting_for_input": 0.0, "peak_bytes": 2**30, "matmul": 8e14 if who == "ours" else 4e14}
    return {"who": who, "size": "large", "length": 512, "rows": rows, "seconds": [seconds], **rest}


def test_each_side_is_measured_by_its_fastest_batch_and_form(tmp_path: pathlib.Path):
    report(
        [
            measurement("ours", 32, 0.2),
            measurement("ours", 64, 0.25),
            measurement("peer, mask", 32, 0.2),
            measurement("peer, full", 32, 0.16),
            {"who": "peer, full", "size": "large", "length": 512, "rows": 64, "out_of_memory": True, "matmul": 1e14},
        ],
        tmp_path / "figures.json",
    )
    result = json.loads((tmp_path / "figures.json").read_text())
    assert result["times_the_peer"] == {"large-512": pytest.approx((64 / 0.25) / (32 / 0.16))}


def test_utilisation_is_relative_to_the_largest_measured_rate(tmp_path: pathlib.Path):
    report([measurement("ours", 64, 0.25), measurement("peer, mask", 64, 0.5)], tmp_path / "figures.json")
    ours, peer = json.loads((tmp_path / "figures.json").read_text())["figures"]
    large = ModelConfig(**published("large"))
    needed, computed = (model_row_flops(large, 512, predictions) for predictions in (77, 512))
    assert ours["utilisation"] == ours["utilisation_by_own_count"] == pytest.approx(64 / 0.25 * needed / 8e14)
    assert peer["utilisation"] == pytest.approx(64 / 0.5 * needed / 8e14)
    assert peer["utilisation_by_own_count"] == pytest.approx(64 / 0.5 * computed / 8e14)


def test_the_peer_gets_unmasked_rows():
    corpus, (_, tables) = made_up_corpus(20), text(None)
    rows = {}
    for fraction in (0.15, 0.5):  # other positions are masked in the same text
        config = ExampleConfig(length=64, max_predictions=40, masked_fraction=fraction)
        rows[fraction] = BatchSource(corpus, config, 16, seed=0, tables=tables).at(0)
    first, second = (unmasked(batch) for batch in rows.values())
    assert (rows[0.15]["input_ids"] != rows[0.5]["input_ids"]).any()
    assert (rows[0.5]["input_ids"] == 103).any()
    assert not (first["input_ids"] == 103).any()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
