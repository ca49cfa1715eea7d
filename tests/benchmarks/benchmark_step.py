"""Rows per second of a CPU training step, compared with transformers' PyTorch BERT and ModernBERT.

    python tests/benchmarks/benchmark_step.py --peer-python=PATH
    python tests/benchmarks/benchmark_step.py --peer-python=PATH --cases=modern-1024,embed-1024

PATH is a Python with torch and transformers; without it, ours runs alone. Two rounds of eight steps of all cases (`--rounds=2`)
take under 12 minutes.

Both sides train the same model with clipping and AdamW on random rows of full length: BERT (4 layers, 256 wide, vocabulary
30,522, dropout 0.1) at 32 x 128 and 8 x 512, and the model of experiments/pretrain/modern_laptop.py (ModernBERT's block, 4
layers, 256 wide, vocabulary 8,192, 30 % of the tokens predicted, the peer's with `sparse_prediction`) at 4 x 1,024. `embed-1024`
computes a vector for each of the same rows, the mean of the last layer. `--dtype=bfloat16` multiplies in bfloat16 on both sides
(the peer by `torch.autocast`), for CPUs with instructions for it (AMX, AVX512-BF16). The peer runs as installed and with glibc's
allocator tuned, so that its large buffers are not returned to the system and faulted in again at every step; ours runs as
installed. The sides alternate, every round in a fresh process. Run it on an idle machine. All figures go to --json=FILE.

`--left-to-right` adds the steps of a left-to-right model on BERT's rows: with as many predictions as masked language modelling,
and with predictions of all next tokens, whose vocabulary head is larger in proportion.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import TUNED


class Case(NamedTuple):
    """The rows that both sides compute, and the model."""

    model: str
    rows: int
    length: int
    predictions: int
    """Predictions in each row; 0 embeds the rows without training."""


CASES = {
    "bert-128": Case("bert", 32, 128, 20),
    "bert-512": Case("bert", 8, 512, 77),
    "modern-1024": Case("modern", 4, 1_024, 307),
    "embed-1024": Case("modern", 4, 1_024, 0),
}
PREDICTS = ("ours", "ours, left to right", "ours, left to right, every next token")
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--steps", type=int, default=8, help="the number of timed steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="the type of matrix products")
    parser.add_argument("--left-to-right", action="store_true", help="also measure steps of a left-to-right model")
    parser.add_argument("--cases", default=",".join(CASES), help="any of " + ", ".join(CASES))
    parser.add_argument("--ours", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--predicts", choices=PREDICTS, default="ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps({"seconds": ours(CASES[options.ours], options.steps, options.dtype, options.predicts)}))
        return
    names = options.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--cases: there is no {unknown[0]}; known: {', '.join(CASES)}")
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name in names:
            for who, command, extra in sides(name, options):
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | extra)
                seconds.setdefault((who, name), []).extend(json.loads(done.stdout.splitlines()[-1])["seconds"])
    report(seconds, options.json)


def sides(name: str, options: argparse.Namespace) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns (name, command, environment) for everything that is measured in one case."""
    case, common = CASES[name], [f"--steps={options.steps}", f"--dtype={options.dtype}"]
    mine = [sys.executable, str(HERE), f"--ours={name}", *common]
    environment = {"PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu"}
    kinds = PREDICTS if options.left_to_right and case.model == "bert" else PREDICTS[:1]
    result = [(kind, [*mine, f"--predicts={kind}"], environment) for kind in kinds]
    if options.peer_python:
        flags = [f"--{field}={value}" for field, value in case._asdict().items()]
        theirs = [options.peer_python, str(HERE.with_name("peer_step.py")), *common, *flags, f"--threads={os.cpu_count()}"]
        result += [("peer as installed", theirs, {}), ("peer, allocator tuned", theirs, TUNED)]
    return result


def report(seconds: dict[tuple[str, str], list[float]], file: pathlib.Path | None) -> None:
    """Prints a table of rows per second, and of the ratio of ours to the peer's."""
    figures: list[dict[str, Any]] = []
    rows_of_table = []
    for (who, name), times in seconds.items():
        rows = CASES[name].rows
        ratio = statistics.median(times) / statistics.median(seconds["ours", name])
        rates = {"median": rows / statistics.median(times), "best": rows / min(times)}
        figures.append({"who": who, "case": name, "rows_per_second": rates, "ours_is_times_faster": ratio})
        rows_of_table.append([name, who, f"{rates['median']:.2f}", f"{rates['best']:.2f}", f"{ratio:.2f}"])
    columns = ["case", "side", "rows/s, median", "best", "ours is times faster"]
    give(columns, rows_of_table, {"cores": os.cpu_count(), "load": os.getloadavg(), "figures": figures}, file)


def ours(case: Case, steps: int, dtype: str, predicts: str) -> list[float]:
    """Returns the seconds of each of our steps, without compilation."""
    import jax
    import jax.numpy as jnp

    from bert_jax.configs.experiment_files import dataclass_from_dict
    from bert_jax.interface import python_files
    from bert_jax.model.config import ModelConfig, published
    from bert_jax.model.kernels.dispatch import resolve
    from tests.benchmarks.timed_steps import seconds_of_steps
    from tests.random_rows import initial_parameters_of, objective_for, random_batch

    masked, every = predicts == PREDICTS[0], predicts == PREDICTS[2]
    if case.model == "bert":
        model = published("mini") | {"direction": "both" if masked else "left_to_right"}
    else:
        file = HERE.parents[2] / "experiments" / "pretrain" / "modern_laptop.py"
        model = python_files.load(str(file), "--config")["model"] | {"max_position": case.length}
    config = dataclass_from_dict(ModelConfig, model | {"dtype": dtype}, "config.model")
    config = resolve(config, jax.local_devices()[0])
    batch = random_batch(rows=case.rows, length=case.length, predictions=case.predictions or 1, config=config, padding=False)
    if every:
        positions = jnp.broadcast_to(jnp.arange(case.length - 1, dtype=jnp.int32), (case.rows, case.length - 1))
        batch |= {"masked_positions": positions, "masked_targets": batch["input_ids"][:, 1:]}
    params = initial_parameters_of(config)
    if not case.predictions:
        return seconds_of_vectors(config, params, batch, steps)
    return seconds_of_steps(objective_for(config, masked and case.model == "bert"), params, batch, steps)


def seconds_of_vectors(config: Any, params: Any, batch: Any, times: int) -> list[float]:
    """Returns the seconds of each of `times` embeddings of all rows, as `predict embed` computes them, on the host."""
    import jax.numpy as jnp

    from bert_jax.model.encoder import unstacked_layers
    from bert_jax.prediction.forwards import CombinedLayers, text_vectors

    rows, length = batch["input_ids"].shape
    batch |= {
        "sequence_ids": jnp.broadcast_to(1 + jnp.arange(rows, dtype=jnp.int32)[:, None], (rows, length)),
        "starts": jnp.arange(rows, dtype=jnp.int32) * length,
    }
    last, weights = CombinedLayers((config.num_layers,), "mean"), unstacked_layers(params)
    seconds = []
    for _ in range(times + 2):
        start = time.perf_counter()
        np.asarray(text_vectors(weights, batch, config=config, source=last, pooling="mean", normalise=False))
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


if __name__ == "__main__":
    main()
