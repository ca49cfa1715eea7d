r"""Estimates BERT training steps on 4 to 4,096 chips, without a TPU: memory, time, network traffic, and the limits of a fixed
batch.

    python tests/benchmarks/benchmark_scaling.py [--models=base,large] [--lengths=128,512] [--chips=4,16,64,256,1024,4096] \
        [--generation=v5p] [--cache=DIR]

Every point is the step that `pretrain` runs, compiled for that slice and estimated by the method of `python -m bert_jax.aot`,
with 2 and with 4 layers; each further layer is assumed to cost as much as the third and fourth. *Weak* scaling keeps the rows
per chip (64 of 128 tokens or 16 of 512); *strong* scaling keeps the batch, the paper's 256 rows. If the batch has more rows per
chip than in weak scaling, it runs in microbatches, and a row costs as much as in weak scaling. Points are cached in --cache, so
the command continues where it stopped. All figures go to --json=FILE.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bert_jax.model.config import ModelConfig, published
from bert_jax.objectives.flops import model_row_flops
from bert_jax.tpu import programs as step_programs
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.memory import used_bytes
from bert_jax.tpu.costs.topologies import parse_topology
from tests.benchmarks.benchmark_tpu_programs import our_step
from tests.benchmarks.figures import flag_parser, give

SLICES = {
    "v5p": {4: "2x2x1", 16: "2x2x4", 64: "4x4x4", 256: "4x8x8", 1_024: "8x8x16", 4_096: "16x16x16"},
    "v5e": {4: "2x2", 16: "4x4", 64: "8x8", 256: "16x16"},
    "v6e": {4: "2x2", 16: "4x4", 64: "8x8", 256: "16x16"},
}
WEAK = {128: 64, 512: 16}
"""Rows per chip, by their length."""
PREDICTIONS = {128: 20, 512: 77}
PAPER = 256
"""Rows of the paper's batch; LAMB's largest are 65,536 of 128 tokens and 32,768 of 512 (arXiv:1904.00962, Table 1)."""
LAYERS = (2, 4)
OVERRIDES = ("--config.mesh.reduce_dtype=bfloat16",)


@dataclasses.dataclass(frozen=True)
class Point:
    """The estimate for one step of a whole model."""

    model: str
    length: int
    chips: int
    rows: int
    """Rows of one chip."""
    milliseconds: float
    gib: float
    sent_mib: float
    """MiB that a chip sends, in all collectives of a step."""
    exposed_ms: float
    """Milliseconds of collectives during which nothing else is computed."""
    utilisation: float


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--models", default="base,large")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--chips", default="4,16,64,256,1024,4096")
    parser.add_argument("--generation", default="v5p", choices=sorted(SLICES))
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache" / "bert_jax" / "scaling")
    options = parser.parse_args()
    points = []
    for model in options.models.split(","):
        for length in map(int, options.lengths.split(",")):
            for chips, rows in asked(length, [int(number) for number in options.chips.split(",")]):
                points.append(measured(model, length, chips, rows, options.generation, options.cache))
                print(f"{model}, {length} tokens, {chips:,} chips, {rows} rows a chip: done", file=sys.stderr, flush=True)
    report(points, options.generation, options.json)


def report(points: list[Point], generation: str, file: pathlib.Path | None) -> None:
    """Prints the table of experiments/results/tpu.md without its last column."""
    times = ["GiB", "ms a step", "waiting for the network", "MiB sent a chip", "of peak", "rows/s"]
    columns = ["model", "tokens", "chips", "rows a chip", "batch", *times]
    figures = {"generation": generation, "points": [dataclasses.asdict(point) for point in points]}
    give(columns, [cells(point) for point in points], figures, file)


def asked(length: int, chips: list[int]) -> Iterator[tuple[int, int]]:
    """Returns (chips, rows per chip) for weak scaling, and also for strong scaling if the batch has fewer rows per chip."""
    for number in chips:
        yield number, WEAK[length]
        if PAPER % number == 0 and PAPER // number < WEAK[length]:
            yield number, PAPER // number


def cells(p: Point) -> list[str]:
    """Returns a row of the table."""
    shape = [p.model, str(p.length), f"{p.chips:,}", str(p.rows), f"{p.rows * p.chips:,}"]
    times = [f"{p.gib:.1f}", f"{p.milliseconds:.1f}", f"{p.exposed_ms:.1f}", f"{p.sent_mib:,.0f}"]
    return [*shape, *times, f"{100 * p.utilisation:.1f} %", f"{p.rows * p.chips / p.milliseconds * 1e3:,.0f}"]


def measured(model: str, length: int, chips: int, rows: int, generation: str, cache: pathlib.Path) -> Point:
    """Returns the point, from the cache or compiled."""
    topology = f"{generation}:{SLICES[generation][chips]}"
    sources = [path.read_bytes() for path in sorted(pathlib.Path(step_programs.__file__).parent.rglob("*.py"))]
    name = hashlib.sha256(repr((model, length, topology, rows, OVERRIDES)).encode() + b"".join(sources)).hexdigest()[:20]
    file = cache / f"{name}.json"
    if file.exists():
        return Point(**json.loads(file.read_text()))
    compiler = Compiler(parse_topology(topology))
    few, more = (compiled(compiler, model, length, rows, layers) for layers in LAYERS)
    layers = published(model)["num_layers"]
    further = (layers - LAYERS[0]) / (LAYERS[1] - LAYERS[0])
    ms, gib, sent, exposed = (a + further * (b - a) for a, b in zip(few, more, strict=True))
    flops = rows * model_row_flops(ModelConfig(**published(model)), length, PREDICTIONS[length])
    peak = compiler.topology.chip.peak_flops
    point = Point(model, length, chips, rows, ms, gib, sent, exposed, flops / (ms / 1e3) / peak)
    cache.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dataclasses.asdict(point)))
    return point


def compiled(compiler: Compiler, model: str, length: int, rows: int, layers: int) -> tuple[float, float, float, float]:
    """Returns (milliseconds, GiB, MiB sent, exposed milliseconds of collectives) for a step with this many layers."""
    overrides = (*OVERRIDES, f"--config.model.num_layers={layers}")
    step = our_step(compiler, f"bert_{model}", rows, length, PREDICTIONS[length], overrides)
    program = compiler.compile(step.lowered)
    estimate = compiler.estimate(program, list(step.mesh.devices.flat))
    sent = sum(sums["sent"] for sums in estimate.collectives.values())
    exposed = estimate.by_kind.get("collective", 0.0)
    return 1e3 * estimate.seconds, used_bytes(program.memory) / 2**30, sent / 2**20, 1e3 * exposed


if __name__ == "__main__":
    main()
