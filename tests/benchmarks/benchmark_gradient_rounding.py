"""The rounding error of summing gradients in bfloat16 over many devices (`mesh.reduce_dtype`), compared with the noise between
batches.

    python tests/benchmarks/benchmark_gradient_rounding.py --corpus=DIR [--devices=16,64,256] [--rows=4] [--model=MODEL]

A batch of real text is split into one part per device. The gradients of the kernels and tables of a small BERT on each part are
rounded to bfloat16 and added one after another in bfloat16. This is the worst case, a ring; a torus of two or three dimensions
adds fewer numbers one after another. The model is MODEL, a Hugging Face directory, or freshly initialised. The table shows the
norm of the difference from the float32 sum, relative to the norm of the gradient (*rounding*), and likewise the norm of the
difference between the gradients of two such batches (*noise*). All figures go to --json=FILE.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import open_corpus
from bert_jax.interop.huggingface import import_model
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.pretraining import initial_parameters
from bert_jax.training.steps import StepSeed, gradients
from tests.benchmarks.figures import flag_parser, give
from tests.random_rows import objective_for


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--devices", default="16,64,256")
    parser.add_argument("--rows", type=int, default=4, help="the number of rows per device")
    options = parser.parse_args()
    corpus = open_corpus(options.corpus, "train")
    config = ModelConfig(vocab_size=corpus.vocabulary.size, **published("mini"))  # type: ignore[arg-type]
    params = nn.unbox(initial_parameters(config, jax.random.key(0)))
    if options.model:
        model = import_model(options.model)
        config, params = model.config, model.params
    objective = objective_for(config)
    figures = []
    for devices in map(int, options.devices.split(",")):
        source = BatchSource(corpus, ExampleConfig(length=128, max_predictions=20), devices * options.rows, 0)
        first, second = (sums(objective, params, source.at(step, (0, 1)), devices) for step in (0, 1))
        exact, rounded = first
        noise = length_of(exact, second[0])
        figures.append({"devices": devices, "rows": options.rows, "rounding": length_of(exact, rounded), "noise": noise})
        print(f"{devices} devices: done", file=sys.stderr, flush=True)
    report(figures, options.json)


def report(figures: list[dict[str, Any]], file: pathlib.Path | None) -> None:
    """Prints a table of both norms, relative to the gradient's."""
    rows = [[str(one["devices"]), str(one["rows"]), f"{one['rounding']:.2%}", f"{one['noise']:.0%}"] for one in figures]
    give(["devices", "rows of each", "rounding", "noise"], rows, {"figures": figures}, file)


def sums(objective: Any, params: Any, batch: Any, devices: int) -> tuple[Any, Any]:
    """Returns the sum of the devices' gradients in float32, and the sum accumulated in bfloat16."""
    counts = objective.counts(batch)
    part = jax.jit(functools.partial(of_part, objective))
    exact: Any = None
    rounded: Any = None
    for device in range(devices):
        rows = {name: np.array_split(array, devices)[device] for name, array in batch.items()}
        grads = kernels(part(params, rows, counts, jnp.int32(device)))
        narrow = [g.astype(jnp.bfloat16) for g in grads]
        exact = grads if exact is None else [a + b for a, b in zip(exact, grads, strict=True)]
        rounded = narrow if rounded is None else [a + b for a, b in zip(rounded, narrow, strict=True)]
    return exact, rounded


def of_part(objective: Any, params: Any, rows: Any, counts: Any, device: Any) -> Any:
    return gradients(objective, params, rows, counts, StepSeed(0, device), 1)[0]


def kernels(grads: Any) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(grads)
    return [leaf for path, leaf in leaves if path[-1].key in ("kernel", "embedding")]


def length_of(a: list[Any], b: list[Any]) -> float:
    """Returns |a - b| / |a|."""
    difference = sum(float(jnp.sum(jnp.square(x - y.astype(jnp.float32)))) for x, y in zip(a, b, strict=True))
    return (difference / sum(float(jnp.sum(jnp.square(x))) for x in a)) ** 0.5


if __name__ == "__main__":
    main()
