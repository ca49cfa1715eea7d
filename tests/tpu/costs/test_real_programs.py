"""The programs of the current TPU compiler: each collective of a step is found, with the bytes that follow from the model's
shapes.

Slow, since each test compiles a small program, in a minute or two: `pytest -m slow tests/tpu/costs`.
"""

from __future__ import annotations

import pathlib
import re

import pytest

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.estimate import Estimate, Estimator
from bert_jax.tpu.costs.hlo import UNNAMED, parse
from bert_jax.tpu.costs.topologies import parse_topology, silence
from bert_jax.tpu.programs import pretraining_step

QUICKSTART = pathlib.Path(__file__).resolve().parents[3] / "experiments" / "pretrain" / "quickstart.py"
TINY = {"dtype": "bfloat16", "scan_layers": "true", "num_layers": "1", "vocab_size": "1024"}
SHARDED = (1024 + 512) * 128 + 2 * 128 * 512
"""The number of elements of the matrices whose optimizer state is spread over all devices: word and position embeddings,
feed-forward. Their gradients are scattered in float32 and the results gathered in bfloat16; the rest is in all-reduces."""
COLLECTIVE = re.compile(r" (?:all-gather|reduce-scatter|all-reduce)(?:-start)?\(")


def compiled(topology: str) -> tuple[str, Estimate]:
    """Returns the text of quickstart's step with TINY, and its estimate. Kernels have no schedules here, since they send
    nothing."""
    compiler = Compiler(parse_topology(topology))
    overrides = [(f"model.{key}", value) for key, value in TINY.items()]
    experiment = PretrainingExperiment.from_dict(read_experiment(str(QUICKSTART), overrides, PretrainingExperiment))
    lowered = pretraining_step(experiment, 0, compiler.devices).lowered
    with silence():
        text = str(lowered.compile().as_text())
    return text, Estimator(parse(text), {}, compiler.topology, compiler.devices).estimate()


@pytest.mark.slow
@pytest.mark.tpu_compiler
def test_sparse_core_collectives_of_v7x_are_counted():
    text, found = compiled("v7x:2x2x1")
    assert "call-start(" in text
    assert found.uncounted_collectives == 0
    assert sum(sums["count"] for sums in found.collectives.values()) == len(COLLECTIVE.findall(text))
    assert (found.collectives["all-gather"]["count"], found.collectives["reduce-scatter"]["count"]) == (4, 4)
    assert found.collectives["all-gather"]["sent"] == pytest.approx(2 * SHARDED * 7 / 8)
    assert found.collectives["reduce-scatter"]["sent"] == pytest.approx(4 * SHARDED * 7 / 8)
    pooler_and_head = 2 * 128 * 128
    assert found.collectives["all-reduce"]["sent"] > 2 * 4 * pooler_and_head * 7 / 8


@pytest.mark.slow
@pytest.mark.tpu_compiler
def test_traffic_between_slices_follows_from_their_shards():
    text, found = compiled("2xv5e:2x2")
    assert found.uncounted_collectives == 0
    crossing = {kind: sums for kind, sums in found.collectives.items() if kind.endswith("between slices")}
    assert sum(sums["count"] for sums in crossing.values()) == len(re.findall(r" send\(", text))
    assert all(sums["sent"] == sums["sent_between_slices"] > 0 for sums in crossing.values())
    gathered, scattered = (crossing[f"{kind} between slices"] for kind in ("all-gather", "reduce-scatter"))
    assert (gathered["count"], scattered["count"]) == (4, 4)
    assert gathered["sent"] == pytest.approx(2 * SHARDED / 8)  # each of 8 devices sends its shard to one device
    assert scattered["sent"] == pytest.approx(4 * SHARDED / 4 / 2)  # and half of its quarter of the sums in its slice
    assert crossing["all-reduce between slices"]["count"] > 0
    assert UNNAMED not in {operation.place for operation in found.operations if operation.kind == "collective"}
