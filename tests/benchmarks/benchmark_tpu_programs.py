r"""Estimated model-FLOP utilisation of a training step on TPUs, ours compared with plain Flax Linen or plain JAX, without a TPU.

    python tests/benchmarks/benchmark_tpu_programs.py [--settings=v5e-512,v5p-128] [--only=ours] [--places=20] \
        [--rows-per-chip=N] [--config.KEY=VALUE ...]
    python tests/benchmarks/benchmark_tpu_programs.py --settings=v5e-1024,v5e-8192 [--layers=4]

Both sides are compiled for the same topology and estimated by the method of `python -m bert_jax.aot`, including the optimizer,
with dropout 0.1. Up to 512 tokens the model is BERT-Large, for longer rows ModernBERT-base. Ours is
experiments/pretrain/bert_large.py or modern_base.py with the given overrides (`--config.model.scan_layers=true` compiles several
times faster); --rows-per-chip changes only our batch. The programs of the plain side (`plain_bert.py`, `plain_modernbert.py`) are
cached in --cache. --layers compiles fewer layers on both sides. Needs libtpu (`requirements.txt`, extra `tpu`). All figures go to
--json=FILE.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gzip
import hashlib
import importlib.metadata
import json
import pathlib
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.model.config import ModelConfig, published
from bert_jax.objectives.flops import model_row_flops
from bert_jax.tpu import programs as step_programs
from bert_jax.tpu.costs.compiler import Compiler, DoesNotFit
from bert_jax.tpu.costs.estimate import Estimate, Estimator, interval, utilisation
from bert_jax.tpu.costs.hlo import parse
from bert_jax.tpu.costs.kernel_cycles import kernel_schedules
from bert_jax.tpu.costs.memory import used_bytes
from bert_jax.tpu.costs.topologies import parse_topology
from tests.benchmarks import plain_bert, plain_modernbert
from tests.benchmarks.figures import flag_parser, give
from tests.flags import replacing

SETTINGS = {  # name: topology, rows per chip, length, predictions
    "v5e-512": ("v5e:4x4", 4, 512, 77),
    "v5e-128": ("v5e:4x4", 32, 128, 20),
    "v5p-512": ("v5p:4x4x4", 16, 512, 77),
    "v5p-128": ("v5p:4x4x4", 64, 128, 20),
    "v6e-512": ("v6e:4x4", 8, 512, 77),
    "v5e-1024": ("v5e:4x4", 8, 1_024, 315),
    "v5e-8192": ("v5e:4x4", 1, 8_192, 2_489),
    "v6e-1024": ("v6e:4x4", 8, 1_024, 315),
    "v6e-8192": ("v6e:4x4", 1, 8_192, 2_489),
}


@dataclasses.dataclass(frozen=True)
class Side:
    """A model that both sides compute."""

    experiment: str
    """Our experiment file in experiments/pretrain."""
    size: str
    """The model's name for `published`."""
    plain: types.ModuleType
    """The module with the plain side's step: its `lower` and its `Size`."""

    def config(self, layers: int) -> ModelConfig:
        """Returns the architecture with this many layers, or with its own number if it is 0."""
        own = published(self.size)
        return ModelConfig(**own | ({} if not layers else of_layers(own, layers)))


def of_layers(own: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Returns the fields that change with the number of layers."""
    kinds = own.get("layer_types")
    return {"num_layers": layers} | ({"layer_types": tuple(kinds)[:layers]} if kinds else {})


def side(length: int) -> Side:
    """Returns the model for rows of `length` tokens."""
    if length <= 512:
        return Side("bert_large", "large", plain_bert)
    return Side("modern_base", "modernbert-base", plain_modernbert)


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one program."""

    setting: str
    who: str
    rows_per_chip: int
    milliseconds: float
    utilisation: float
    roofline_utilisation: float
    gib: float
    by_kind: dict[str, float]
    compile_seconds: float
    places: list[tuple[str, float]]


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--only", choices=("ours", "plain"))
    parser.add_argument("--rows-per-chip", type=int)
    parser.add_argument("--layers", type=int, default=0, help="the number of layers to compile (default: all)")
    parser.add_argument("--places", type=int, default=0, help="the number of the costliest places of the model to show")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache" / "bert_jax" / "plain_programs")
    parser.add_argument("--dump", type=pathlib.Path, help="write the optimized HLO of our program to this directory")
    options, overrides = parser.parse_known_args()
    results = []
    for setting in options.settings.split(","):
        for who in ("plain", "ours"):
            if options.only in (None, who):
                try:
                    result = plain(setting, options) if who == "plain" else ours(setting, options, overrides)
                except DoesNotFit as error:
                    print(f"{setting:8} {who:6} does not fit: {error}", flush=True)
                    continue
                results.append(result)
                show(result, options.places)
    compare(results, options.json)


def ours(setting: str, options: argparse.Namespace, overrides: Sequence[str]) -> Result:
    """Compiles our step for a setting, and returns its figures."""
    name, rows, length, predictions = SETTINGS[setting]
    rows = options.rows_per_chip or rows
    compiler = Compiler(parse_topology(name))
    model = side(length)
    fewer = of_layers(published(model.size), options.layers) if options.layers else {}
    overrides = [*(f"--config.model.{key}={json.dumps(value)}" for key, value in fewer.items()), *overrides]
    step = our_step(compiler, model.experiment, rows, length, predictions, overrides)
    compiled = compiler.compile(step.lowered)
    if options.dump:
        options.dump.mkdir(parents=True, exist_ok=True)
        (options.dump / f"{setting}.hlo.txt").write_text(compiled.text)
    estimate = Estimator(compiled.module, compiled.schedules, compiler.topology, list(step.mesh.devices.flat)).estimate()
    config = model.config(options.layers)
    return result_of(setting, "ours", config, rows, compiler, estimate, used_bytes(compiled.memory), compiled.seconds)


def our_step(
    compiler: Compiler, experiment: str, rows: int, length: int, predictions: int, overrides: Sequence[str]
) -> step_programs.StepProgram:
    """Returns the step of experiments/pretrain/EXPERIMENT.py with `rows` rows per chip."""
    own = [f"--config=experiments/pretrain/{experiment}.py", "--workdir=unused"]
    phase = {"batch_size": rows * compiler.topology.chips, "accumulation": 1, "length": length, "max_predictions": predictions}
    own += [f"--config.phases.0.{key}={value}" for key, value in phase.items()]
    flags = parse_flags("benchmark", __doc__, replacing(own, *overrides), PretrainingExperiment)
    return step_programs.pretraining_step(PretrainingExperiment.from_dict(flags.config), 0, compiler.devices)


def plain(setting: str, options: argparse.Namespace) -> Result:
    """Returns the figures of the plain side; its program is compiled once for each version of the file and of the compiler."""
    name, rows, length, predictions = SETTINGS[setting]
    compiler, model, cache = Compiler(parse_topology(name)), side(length), options.cache
    source = pathlib.Path(str(model.plain.__file__)).read_text()
    about = (source, compiler.version, setting, str(SETTINGS[setting]), options.layers)
    file = cache / f"{setting}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}.json.gz"
    if file.exists():
        kept = json.loads(gzip.decompress(file.read_bytes()))
    else:
        size = model.plain.Size(**{"layers": options.layers} if options.layers else {})
        all_rows = rows * compiler.topology.chips
        compiled = compiler.compile(model.plain.lower(list(compiler.devices), all_rows, length, predictions, size))
        kept = {"text": compiled.text, "bytes": used_bytes(compiled.memory), "seconds": compiled.seconds}
        cache.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(gzip.compress(json.dumps(kept).encode()))
        part.replace(file)
    module = parse(kept["text"])
    schedules = kernel_schedules(module, compiler.topology, compiler.version)
    estimate = Estimator(module, schedules, compiler.topology, compiler.devices).estimate()
    return result_of(setting, "plain", model.config(options.layers), rows, compiler, estimate, kept["bytes"], kept["seconds"])


def result_of(
    setting: str, who: str, model: ModelConfig, rows: int, compiler: Compiler, estimate: Estimate, used: float, seconds: float
) -> Result:
    """Returns the figures of an estimated program with `rows` rows per chip."""
    _, _, length, predictions = SETTINGS[setting]
    flops = rows * model_row_flops(model, length, predictions) / compiler.topology.chip.devices
    least, most = interval(estimate, flops, compiler.topology)
    places: collections.Counter[str] = collections.Counter()
    for operation in estimate.operations:
        places[f"{operation.place} [{operation.kind}]"] += operation.seconds  # type: ignore[assignment]
    return Result(
        setting,
        who,
        rows,
        1e3 * most,
        utilisation(flops, most, compiler.topology),
        utilisation(flops, least, compiler.topology),
        used / 2**30,
        {kind: 1e3 * value for kind, value in estimate.by_kind.items()},
        seconds,
        [(place, 1e3 * value) for place, value in places.most_common(40)],
    )


def show(result: Result, places: int) -> None:
    """Prints one line, followed by the costliest places."""
    kinds = "  ".join(f"{kind} {value:.1f}" for kind, value in sorted(result.by_kind.items(), key=lambda item: -item[1]))
    print(
        f"{result.setting:8} {result.who:6} {result.rows_per_chip:3} rows/chip  {result.milliseconds:8.1f} ms  "
        f"MFU {100 * result.utilisation:5.1f} % (roofline {100 * result.roofline_utilisation:5.1f} %)  {result.gib:5.2f} GiB  "
        f"ms: {kinds}  (compiled in {result.compile_seconds:.0f} s, {time.strftime('%H:%M')})",
        flush=True,
    )
    for place, value in result.places[:places]:
        print(f"    {value:8.2f} ms {100 * value / result.milliseconds:5.1f} %  {place}")


def compare(results: Sequence[Result], file: pathlib.Path | None) -> None:
    """Prints a table of both sides, with the ratio of our rows per second to the plain side's."""
    rows = []
    found = {(result.setting, result.who): result for result in results}
    for one in results:
        plain_one = found.get((one.setting, "plain"))
        times = ""
        if plain_one and one.who == "ours":
            times = f"{one.rows_per_chip / one.milliseconds / (plain_one.rows_per_chip / plain_one.milliseconds):.2f}"
        kernel = 100 * one.by_kind.get("kernel", 0.0) / one.milliseconds
        measured = [f"{one.milliseconds:.1f}", f"{100 * one.utilisation:.1f} %", f"{kernel:.1f} %", f"{one.gib:.2f}"]
        rows.append([one.setting, one.who, str(one.rows_per_chip), *measured, times])
    columns = ["setting", "side", "rows a chip", "ms a step", "of peak", "in kernels", "GiB", "rows/s to plain"]
    version = importlib.metadata.version("libtpu") if results else ""
    give(columns, rows, {"libtpu": version, "results": [dataclasses.asdict(one) for one in results]}, file)


if __name__ == "__main__":
    main()
