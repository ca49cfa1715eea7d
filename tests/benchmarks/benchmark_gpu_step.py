r"""Rows per second of BERT's training step on one GPU in bfloat16, input included, compared with transformers' PyTorch BERT.

    python tests/benchmarks/benchmark_gpu_step.py --peer-python=PATH [--corpus=DIR] [--sizes=base,large] [--lengths=128,512] \
        [--rows=64,128] [--forms=mask,full] [--config.KEY=VALUE ...]
    python tests/benchmarks/benchmark_gpu_step.py --device=cpu --peer-python=PATH    # all of it with a model of two layers

PATH is a Python with torch for the GPU and transformers; without it, ours runs alone. Without a real corpus one is made up.
Needs a GPU that JAX sees (`pip install "jax[cuda13]"`). With --device=cpu it runs without a GPU, but its figures mean nothing.

Ours is the step of `pretrain` on the batches of `pretrain`, with the configuration of experiments/pretrain/bert_base.py or
bert_large.py (AdamW instead of BERT's Adam) and the given overrides. The peer (peer_gpu_step.py) is BertForPreTraining under
torch.compile, bfloat16 autocast, fused SDPA attention and fused AdamW, on the same rows of text, masked by
DataCollatorForLanguageModeling in the workers of a DataLoader; it computes the MLM head at all positions. It comes in two forms:
"mask", with the attention mask that padded rows need, and "full", on rows without padding and so without a mask, which gives up
short rows for PyTorch's fastest attention. Dropout 0.1, clipping and float32 master weights on both sides.

Every measurement runs in a process of its own, one after another. Each side counts with its fastest batch size, and the peer with
its faster form. Utilisation is relative to the largest rate at which either side multiplied large bfloat16 matrices. It counts
only the products that training needs, with the head at the predicted positions (`model_row_flops`), so the peer's additional
products do not count. The peer's utilisation by its own count is in --json=FILE, with all figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np

from bert_jax.configs.command_line import parse_flags
from bert_jax.data.batches import BatchSource, corpus_masking_tables
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus, open_corpus
from bert_jax.data.masking import MaskingTables
from bert_jax.errors import UserError
from bert_jax.interface.command import run_main
from bert_jax.model.config import ModelConfig, published
from bert_jax.objectives.flops import model_row_flops
from tests.benchmarks.benchmark_batches import V, made_up_corpus
from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.gpu_timing import WARM_UP, largest_rate, process_bytes, timed
from tests.flags import replacing

HERE = pathlib.Path(__file__).resolve()
PREDICTIONS = {128: 20, 512: 77}
BATCH_SIZES = {
    ("base", 128): (256, 512),
    ("base", 512): (64, 128),
    ("large", 128): (128, 256),
    ("large", 512): (32, 64),
    ("tiny", 128): (8,),
    ("tiny", 512): (2,),
}
"""The batch sizes to try: as many rows as a GPU of 80 GB holds, and half of it."""
ROWS_OF_TEXT = 8_192
"""The size of the peer's data set."""
SIDE = {"gpu": 8_192, "cpu": 256}
"""The size of the square matrices whose product measures the peak."""
FORMS = ("mask", "full")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One configuration of the step."""

    size: str
    length: int
    rows: int

    @property
    def model(self) -> ModelConfig:
        """The model's architecture."""
        return ModelConfig(**published(self.size))

    def flops(self, predictions: int | None = None) -> float:
        """Returns the FLOPs of the matrix products of a row, with the head at the predicted positions, or at this many."""
        return model_row_flops(self.model, self.length, predictions or PREDICTIONS[self.length])


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--corpus", type=pathlib.Path, help="a corpus (default: a made-up one of a million sentences)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--sizes", help="any of base, large, tiny (default: base,large; on a CPU tiny)")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--rows", help="the batch sizes to try, at every size and length")
    parser.add_argument("--forms", default=",".join(FORMS), help="the forms of the peer's rows")
    parser.add_argument("--peer-mode", default="default", help="the mode of torch.compile")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="workers of the peer's DataLoader")
    parser.add_argument("--steps", type=int, help="the number of steps per timed block (default: 20; on a CPU 2)")
    parser.add_argument("--blocks", type=int, default=5, help="the number of timed blocks; the result is the median")
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    options, overrides = parser.parse_known_args()
    if unknown := [flag for flag in overrides if not flag.startswith("--config.")]:
        parser.error(f"unknown argument {unknown[0]}; flags that change our configuration start with --config.")
    options.steps = options.steps or {"gpu": 20, "cpu": 2}[options.device]
    if options.ours:
        print(json.dumps(ours(Setting(**json.loads(options.ours)), options, overrides)))
        return
    figures: list[dict[str, Any]] = []
    corpus, tables = text(options.corpus)
    for setting in settings(options):
        with tempfile.TemporaryDirectory() as directory:
            if options.peer_python:
                write_rows(corpus, tables, setting.length, pathlib.Path(directory))
            for who, command, extra in sides(setting, options, overrides, directory):
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | extra)
                if done.returncode:
                    sys.exit(done.returncode)  # it has printed the reason
                figures.append({"who": who, **dataclasses.asdict(setting), **json.loads(done.stdout.splitlines()[-1])})
                print(line(figures[-1]), file=sys.stderr, flush=True)
    report(figures, options.json)


def settings(options: argparse.Namespace) -> list[Setting]:
    """Returns the settings to measure."""
    sizes = (options.sizes or {"gpu": "base,large", "cpu": "tiny"}[options.device]).split(",")
    keys = [(size, int(length)) for size in sizes for length in options.lengths.split(",")]
    if unknown := [key for key in keys if key not in BATCH_SIZES]:
        raise UserError(f"there is no setting {unknown[0]}; sizes are base, large and tiny, lengths 128 and 512")
    given = [int(rows) for rows in (options.rows or "").split(",") if rows]
    return [Setting(*key, rows) for key in keys for rows in given or BATCH_SIZES[key]]


def sides(
    setting: Setting, options: argparse.Namespace, overrides: Sequence[str], directory: str
) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns (name, command, environment) for everything that is measured at one setting."""
    common = [f"--{name}={getattr(options, name)}" for name in ("device", "steps", "blocks")]
    mine = [sys.executable, str(HERE), *common, f"--ours={json.dumps(dataclasses.asdict(setting))}", *overrides]
    mine += [f"--corpus={options.corpus}"] if options.corpus else []
    platform = {"gpu": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}, "cpu": {"JAX_PLATFORMS": "cpu"}}
    result = [("ours", mine, platform[options.device])]
    if options.peer_python:
        model = setting.model
        flags = {
            "directory": directory,
            "layers": model.num_layers,
            "width": model.hidden_size,
            "rows": setting.rows,
            "mode": options.peer_mode,
            "workers": options.workers,
            "side": SIDE[options.device],
        }
        theirs = [options.peer_python, str(HERE.with_name("peer_gpu_step.py")), *common]
        theirs += [f"--{name}={value}" for name, value in flags.items()]
        result += [(f"peer, {form}", [*theirs, f"--form={form}"], {"HF_HUB_OFFLINE": "1"}) for form in options.forms.split(",")]
    return result


# ------------------------------------------------------------------------------------------------------------------------- text


def text(directory: pathlib.Path | None) -> tuple[Corpus, MaskingTables]:
    """Returns the corpus in `directory`, or a random one, and its masking tables."""
    if directory:
        corpus = open_corpus(directory)
        return corpus, corpus_masking_tables(corpus)
    return made_up_corpus(10_000), MaskingTables(103, np.arange(999, V, dtype=np.int32), np.arange(V) % 4 == 0)


def write_rows(corpus: Corpus, tables: MaskingTables, length: int, directory: pathlib.Path) -> None:
    """Writes, for the peer, rows of our pipeline before masking, and a vocabulary that names the special ids."""
    config = ExampleConfig(length=length, max_predictions=PREDICTIONS[length])
    batch = unmasked(BatchSource(corpus, config, ROWS_OF_TEXT, seed=0, tables=tables).at(0))
    np.savez(directory / "rows.npz", **batch)
    info = corpus.vocabulary
    special = dict(zip((info.pad_id, info.unk_id, info.cls_id, info.sep_id, info.mask_id), SPECIAL, strict=True))
    (directory / "vocab.txt").write_text("".join(f"{special.get(i, f'word{i}')}\n" for i in range(V)))


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def unmasked(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns input_ids, token_type_ids and attention_mask [B, L] and next_sentence_label [B] of a batch with one example per
    row."""
    ids, targets = batch["input_ids"].copy(), batch["masked_targets"]
    rows, places = np.nonzero(targets >= 0)
    ids[rows, batch["masked_positions"][rows, places]] = targets[rows, places]
    return {
        "input_ids": ids,
        "token_type_ids": batch["token_type_ids"],
        "attention_mask": (batch["sequence_ids"] > 0).astype(np.int32),
        "next_sentence_label": batch["nsp_labels"][:, 0],
    }


# ------------------------------------------------------------------------------------------------------------------------- ours


def ours(setting: Setting, options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns our figures at one setting, without compilation."""
    import functools

    import flax.linen as nn
    import jax

    from bert_jax.configs.pretraining import PretrainingExperiment
    from bert_jax.data.batches import to_device
    from bert_jax.data.prefetch import prefetch
    from bert_jax.model.kernels.dispatch import in_words
    from bert_jax.pretraining.program import pretraining_program, step_scalars
    from bert_jax.pretraining.start import initial_parameters
    from bert_jax.sharding.mesh import make_mesh
    from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
    from bert_jax.tpu.costs.memory import used_bytes

    device = jax.devices()[0]
    if device.platform != options.device:
        raise UserError(f"this benchmark needs a GPU, and JAX sees only a {device.platform}; --device=cpu needs none")
    file = {"tiny": "bert_miniature.py:tiny"}.get(setting.size, f"bert_{setting.size}.py")
    phase = {"length": setting.length, "batch_size": setting.rows, "max_predictions": PREDICTIONS[setting.length]}
    flags = [f"--config=experiments/pretrain/{file}", "--workdir=unused", "--config.optimizer.name=adamw"]
    flags += [f"--config.phases.0.{key}={value}" for key, value in phase.items()]
    flags = replacing(flags, *overrides)
    experiment = PretrainingExperiment.from_dict(parse_flags("benchmark", __doc__, flags, PretrainingExperiment).config)
    matmul = largest_rate(product(SIDE[options.device]), SIDE[options.device])

    mesh = make_mesh(experiment.mesh, [device])
    program = pretraining_program(experiment, mesh)
    corpus, tables = text(options.corpus)
    source = BatchSource(corpus, experiment.example_config(0), setting.rows, experiment.phase_seed(0), tables=tables)
    rows = source.at
    try:
        with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
            state, scalars = program.init_state(functools.partial(initial_parameters, experiment)), step_scalars(experiment)
            step = program.training_step(experiment.phases[0].accumulation)
            step = step.lower(state, to_device(rows(0), mesh, BATCH), scalars).compile()
            batches = prefetch(rows, 0, WARM_UP + options.steps * options.blocks)
            pending: Any = None

            def one() -> float:
                nonlocal state, pending
                started = time.perf_counter()
                batch = next(batches)
                waited = time.perf_counter() - started
                state, sums = step(state, to_device(batch, mesh, BATCH), scalars)
                if pending is not None:  # like `pretrain`, which reads the sums of the previous step
                    float(pending["skipped_in_a_row"])
                pending = sums
                return waited

            timing = timed(one, lambda: jax.block_until_ready((state, pending)), options.steps, options.blocks)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"out_of_memory": True, "matmul": matmul}
    return {
        **timing,
        "matmul": matmul,
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use") or process_bytes(),
        "program_bytes": used_bytes(step.memory_analysis()),
        "attention": in_words(program.objective.model.config, [setting.length]),
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


def product(side: int) -> Callable[[int], None]:
    """Multiplies random bfloat16 matrices this many times and waits for the last product."""
    import jax
    import jax.numpy as jnp

    a, b = (jax.random.normal(jax.random.key(seed), (side, side), jnp.bfloat16) for seed in range(2))
    multiply = jax.jit(jnp.matmul)

    def repeat(times: int) -> None:
        jax.block_until_ready([multiply(a, b) for _ in range(times)][-1])

    return repeat


# ----------------------------------------------------------------------------------------------------------------------- report


def line(figure: dict[str, Any]) -> str:
    """Returns one measurement as a line."""
    start = f"{figure['size']:5} {figure['length']:4} {figure['rows']:4} rows  {figure['who']:10}"
    if figure.get("out_of_memory"):
        return f"{start}  does not fit"
    rate = figure["rows"] / statistics.median(figure["seconds"])
    waits = f"waits {100 * figure['waiting_for_input']:.0f} % for input"
    matmul, gib = figure["matmul"] / 1e12, figure["peak_bytes"] / 2**30
    return f"{start}  {rate:8.1f} rows/s  {gib:6.2f} GiB  {waits}  matmul {matmul:.1f} TFLOP/s"


def report(figures: list[dict[str, Any]], file: pathlib.Path | None) -> None:
    """Prints the best result of each side at every size and length, and the ratio of our rows per second to the peer's."""
    matmul = max(figure["matmul"] for figure in figures)
    for figure in figures:
        if "seconds" in figure:
            setting = Setting(figure["size"], figure["length"], figure["rows"])
            rate = setting.rows / statistics.median(figure["seconds"])
            whole = setting.length if figure["who"] != "ours" else None
            figure |= {
                "rows_per_second": rate,
                "utilisation": rate * setting.flops() / matmul,
                "utilisation_by_own_count": rate * setting.flops(whole) / matmul,
            }
    print(f"utilisation of {matmul / 1e12:.1f} TFLOP/s, each side at its best")
    times: dict[str, float] = {}
    rows = []
    for size, length in dict.fromkeys((figure["size"], figure["length"]) for figure in figures):
        found = [figure for figure in figures if (figure["size"], figure["length"]) == (size, length) and "seconds" in figure]
        best = [max(some, key=lambda f: f["rows_per_second"]) for some in by_side(found) if some]
        for figure in best:
            ratio = best[0]["rows_per_second"] / figure["rows_per_second"]
            rate, share = f"{figure['rows_per_second']:.1f}", f"{100 * figure['utilisation']:.1f} %"
            gib = f"{figure['peak_bytes'] / 2**30:.2f}"
            faster = f"{ratio:.2f}" if best[0]["who"] == "ours" else ""
            rows.append([size, str(length), figure["who"], str(figure["rows"]), rate, share, gib, faster])
        if len(best) == 2:
            times[f"{size}-{length}"] = best[0]["rows_per_second"] / best[1]["rows_per_second"]
    columns = ["model", "tokens", "side", "rows", "rows/s", "utilisation", "peak GiB", "ours is times faster"]
    give(columns, rows, {"matmul": matmul, "times_the_peer": times, "figures": figures}, file)


def by_side(figures: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Returns our results, and the peer's of any form."""
    return [[figure for figure in figures if (figure["who"] == "ours") == mine] for mine in (True, False)]


if __name__ == "__main__":
    run_main(main)
