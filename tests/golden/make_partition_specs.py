"""Writes partition_specs.json: how BERT-Base's parameters and optimizer slots are sharded over the mesh axes.

    python -m tests.golden.make_partition_specs

Run it after a deliberate change of bert_jax/sharding/rules.py or of a parameter's axis names, and review the difference.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
from jax.sharding import AxisType

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.model.config import ModelConfig, published
from bert_jax.pretraining.program import pretraining_program
from bert_jax.sharding.config import AXES
from bert_jax.training import OPTIMIZERS
from bert_jax.training.config import OptimizerConfig

GOLDEN = pathlib.Path(__file__).with_name("partition_specs.json")


LAYOUTS = {
    **{name: (name, (2, 2, 2)) for name in OPTIMIZERS},
    # with the state sharded over `data` too, at most one other axis is larger than 1
    **{f"bert_adam on {'x'.join(map(str, sizes))}": ("bert_adam", sizes) for sizes in ((8, 1, 1), (4, 2, 1), (4, 1, 2))},
}
"""An optimizer and the sizes of the mesh axes, by the name in the file."""


def partition_specs(layout: str) -> dict[str, list[Any]]:
    """Returns the PartitionSpec of every array of a training state of BERT-Base, by its path. The arrays are abstract, without
    memory."""
    optimizer_name, sizes = LAYOUTS[layout]
    model = ModelConfig(**published("base"), vocab_multiple=128)
    optimizer = OptimizerConfig(name=optimizer_name)
    experiment = PretrainingExperiment(model=model, optimizer=optimizer, phases=(PhaseConfig(steps=1),))
    named = dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
    shape = tuple(named.get(axis, 1) for axis in AXES)
    mesh = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    shardings = pretraining_program(experiment, mesh).shardings
    leaves, _ = jax.tree_util.tree_flatten_with_path(shardings)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): list(sharding.spec) for path, sharding in leaves}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    text = ",\n".join(
        f'"{name}": {{\n' + ",\n".join(f'  "{path}": {json.dumps(spec)}' for path, spec in partition_specs(name).items()) + "\n}"
        for name in LAYOUTS
    )
    GOLDEN.write_text("{\n" + text + "\n}\n")
