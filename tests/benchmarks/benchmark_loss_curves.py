r"""Loss curves of ours compared with plain Flax Linen (`plain_bert.py`), trained on the same batches of real text, on a CPU.

    python tests/benchmarks/benchmark_loss_curves.py [--corpus=DIR] [--start=DIR] [--seeds=6] [--steps=200] [--same-start] \
        [--config.KEY=VALUE ...]

Model, corpus and rows come from the quickstart (experiments/pretrain/quickstart.py: 2 layers, 128 wide, float32), with dropout
0.1. The batches come from `pretrain`, the same for every run; weights and dropout change with the seed. Ours is the step that
`pretrain` runs. The plain side has its own forward pass, loss, initial weights, schedule and optimizer, set to the same recipe.
In 200 steps from random weights a model learns little beyond the frequency of words. With --start=DIR, the model directory that
the quickstart writes, both sides continue from that model: only dropout differs between seeds, and attention matters from the
first step. Overrides change our side only: `--config.model.dtype=bfloat16` compares bfloat16 with plain float32, and
`--config.model.hidden_dropout=0.15` shows which difference the comparison can detect.

The mean loss of the last 20 steps is compared at steps 50, 100, 150 and 200: the difference between the sides' means, divided by
the standard error from the spread between seeds (Welch's t). The statistic is the largest |t| of the four. Its p-value is exact,
from a permutation test: the fraction of all ways to divide the curves between two sides with a statistic at least as large. With
--same-start, both sides start from the same weights without dropout, and the largest difference of any step so far is shown. All
figures go to --json=FILE.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource, to_device
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.interface.command import run_main
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.pretraining.program import pretraining_program
from bert_jax.pretraining.splits import check_corpus
from bert_jax.pretraining.start import initial_parameters, pretraining_start
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import new_state
from tests.benchmarks import plain_bert
from tests.benchmarks.figures import flag_parser, give, table
from tests.flags import replacing

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "experiments" / "pretrain" / "quickstart.py"
SETTINGS = {
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "optimizer.name": "adamw",
    "phases.0.batch_size": 64,
    "phases.0.warmup_steps": 20,
}
"""The settings that differ from the quickstart: dropout as in the paper, bias correction as in plain `optax.adamw`, half the
rows."""
WINDOW = 20
"""The number of steps over which losses are averaged."""
FIRST_PLAIN_SEED = 1_000_000
"""The seeds of the plain side start here, so that none of them is one of ours."""


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--corpus", default="runs/embedded_corpus")
    parser.add_argument("--start", default="", help="a model directory; all runs start with its weights")
    parser.add_argument("--seeds", type=int, default=6, help="the number of runs per side")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--same-start", action="store_true")
    options, overrides = parser.parse_known_args()
    if options.seeds < 2:
        parser.error(f"--seeds={options.seeds} leaves no spread between seeds; give at least 2")
    settings = SETTINGS | {"corpus.directory": options.corpus, "phases.0.steps": options.steps}
    if options.start:
        settings["init_from"] = options.start
    if options.same_start:
        settings |= {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}
    base, changed = experiment_of(settings, []), experiment_of(settings, overrides)
    batches = batches_of(base)
    given = as_plain(beginning(base)(0).params, base.model) if options.start or options.same_start else None
    if options.same_start:
        ours, plain = our_curves(changed, [0], batches)[0], plain_curves(base, [0], batches, given)[0]
        report_same_start(ours, plain, options.json)
        return
    started = time.monotonic()
    plain = plain_curves(base, range(FIRST_PLAIN_SEED, FIRST_PLAIN_SEED + options.seeds), batches, given)
    middle = time.monotonic()
    ours = our_curves(changed, range(options.seeds), batches)
    seconds = {"plain": middle - started, "ours": time.monotonic() - middle}
    report(ours, plain, {"overrides": overrides, "seconds": seconds}, options.json)


def experiment_of(settings: dict[str, Any], overrides: Sequence[str]) -> PretrainingExperiment:
    """Returns the quickstart with `settings` and then the flags `overrides`."""
    flags = [f"--config={QUICKSTART}", "--workdir=unused", *(f"--config.{key}={value}" for key, value in settings.items())]
    given = replacing(flags, *overrides)
    return PretrainingExperiment.from_dict(parse_flags("benchmark", __doc__, given, PretrainingExperiment).config)


def batches_of(experiment: PretrainingExperiment) -> list[Batch]:
    """Returns the batch of every step of the first phase."""
    phase = experiment.phases[0]
    corpus = open_corpus(experiment.corpus.directory, "train")
    check_corpus(experiment, corpus, open_corpus(experiment.corpus.directory, "eval"))
    source = BatchSource(corpus, experiment.example_config(0), phase.batch_size, experiment.phase_seed(0))
    return [source.at(step) for step in range(phase.steps)]


# ------------------------------------------------------------------------------------------------------------------------- ours


def beginning(experiment: PretrainingExperiment) -> Callable[[Any], Any]:
    """Returns a function from the seed to the `TrainState` with which `pretrain` starts."""
    optimizer = make_optimizer(experiment.optimizer, abstract_parameters(experiment.model))
    if experiment.init_from:
        given = pretraining_start(experiment, open_corpus(experiment.corpus.directory, "train").vocabulary)
        return lambda seed: new_state(jax.tree.map(jnp.array, given), optimizer)
    return jax.jit(lambda seed: new_state(initial_parameters(dataclasses.replace(experiment, seed=seed)), optimizer))


def our_curves(experiment: PretrainingExperiment, seeds: Sequence[int], batches: Sequence[Batch]) -> np.ndarray:
    """Returns the loss before every update, float64 [R, S], of the step that `pretrain` runs; it is compiled once for all
    seeds."""
    mesh = make_mesh(experiment.mesh)
    program = pretraining_program(experiment, mesh)
    objective = experiment.trained_objective
    start, step, curves = beginning(experiment), program.training_step(experiment.phases[0].accumulation), []
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        for seed in map(np.uint32, seeds):
            state, losses = jax.device_put(start(seed), program.shardings), []
            for batch in batches:
                state, sums = step(state, to_device(batch, mesh, BATCH), {"seed": seed})
                losses.append(objective.loss(sums, sums))
            if int(state.skipped):
                raise UserError(f"{int(state.skipped)} steps of ours with seed {seed} were not finite; lower the learning rate")
            curves.append(np.array(losses, np.float64))
            print(f"ours, seed {seed}: {curves[-1][0]:.4f} -> {curves[-1][-1]:.4f}", file=sys.stderr, flush=True)
    return np.stack(curves)


# ------------------------------------------------------------------------------------------------------------------------ plain


def plain_curves(
    experiment: PretrainingExperiment, seeds: Sequence[int], batches: Sequence[Batch], start: Any = None
) -> np.ndarray:
    """Returns the same [R, S] for the plain implementation, from weights of its own or from `start`."""
    m, inputs = experiment.model, [plain_batch(batch) for batch in batches]
    size = plain_bert.Size(
        vocabulary=m.vocab_size,
        width=m.hidden_size,
        layers=m.num_layers,
        heads=m.num_heads,
        feed_forward=m.intermediate_size,
        positions=m.max_position,
        dropout=m.hidden_dropout,
        dtype=jnp.float32,
    )
    model, optimizer = plain_bert.PlainBert(size), recipe(experiment)
    step, curves = jax.jit(plain_bert.train_step, donate_argnums=0), []
    for seed in seeds:
        weights, dropout = jax.random.split(jax.random.key(seed))
        params = start if start is not None else plain_start(model, weights, inputs[0], m.initializer_range)
        params = jax.tree.map(jnp.array, params)  # the step donates its arguments
        state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
        losses = []
        for batch in inputs:
            state, loss = step(state, batch, dropout)
            losses.append(loss)
        curves.append(np.array(losses, np.float64))
        print(f"plain, seed {seed}: {curves[-1][0]:.4f} -> {curves[-1][-1]:.4f}", file=sys.stderr, flush=True)
    return np.stack(curves)


def plain_batch(batch: Batch) -> dict[str, np.ndarray]:
    """Returns a batch of unpacked rows in the form that the plain implementation reads."""
    targets = batch["masked_targets"]
    return {
        **{name: batch[name] for name in ("input_ids", "token_type_ids", "masked_positions")},
        "attention_mask": np.minimum(batch["sequence_ids"], 1),
        "masked_targets": np.maximum(targets, 0),
        "masked_weights": (targets >= 0).astype(np.float32),
        "nsp_labels": batch["nsp_labels"][:, 0],
    }


def plain_start(model: nn.Module, key: jax.Array, batch: Any, deviation: float) -> Any:
    """Returns initial weights as in the paper (Linen's own defaults differ by layer), each drawn with a key made from its
    name."""
    shapes = jax.eval_shape(lambda: model.init({"params": key, "dropout": key}, batch))["params"]

    def draw(path: Any, leaf: Any) -> jax.Array:
        name = path[-1].key
        if name in ("kernel", "embedding"):
            own = jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode()))
            return deviation * jax.random.truncated_normal(own, -2.0, 2.0, leaf.shape)
        return jnp.ones(leaf.shape) if name == "scale" else jnp.zeros(leaf.shape)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def recipe(experiment: PretrainingExperiment) -> optax.GradientTransformation:
    """Returns our settings as optax's own parts: clipping, AdamW without decay of biases and LayerNorm, the original's
    schedule."""
    o, phase = experiment.optimizer, experiment.phases[0]

    def rate(step: jax.Array) -> jax.Array:
        return phase.learning_rate * jnp.where(step < phase.warmup_steps, step / phase.warmup_steps, 1 - step / phase.steps)

    def is_matrix(params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > 1, params)

    adamw = optax.adamw(rate, o.b1, o.b2, o.epsilon, weight_decay=o.weight_decay, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(o.clip_norm), adamw)


def as_plain(ours: Any, model: ModelConfig) -> Any:
    """Returns our parameters as numpy arrays, with the names and shapes of the plain implementation."""
    ours = jax.device_get(ours)
    embeddings, layers, head = ours["embeddings"], ours["encoder"]["layers"], ours["mlm_head"]
    width = model.hidden_size
    shapes = {"kernel": (width, width), "bias": (width,)}  # heads side by side

    def layer(i: int) -> dict[str, Any]:
        own = jax.tree.map(lambda x: x[i], layers)
        attention, wide = own["attention"], own["feed_forward"]
        projections = {
            name: {part: array.reshape(shapes[part]) for part, array in attention[name].items()}
            for name in ("query", "key", "value", "output")
        }
        norms = {"LayerNorm_0": own["attention_layer_norm"], "LayerNorm_1": own["feed_forward_layer_norm"]}
        return {**projections, **norms, "wide": wide["intermediate"], "narrow": wide["output"]}

    return {
        "words": {"embedding": embeddings["word_embeddings"]["embedding"][: model.vocab_size]},
        "positions": embeddings["position_embeddings"],
        "types": embeddings["token_type_embeddings"],
        "LayerNorm_0": embeddings["layer_norm"],
        **{f"Layer_{i}": layer(i) for i in range(model.num_layers)},
        "pooler": ours["pooler"]["dense"],
        "next_sentence": ours["nsp_head"]["dense"],
        "transform": head["transform"],
        "LayerNorm_1": head["layer_norm"],
        "bias": head["bias"][: model.vocab_size],
    }


# ------------------------------------------------------------------------------------------------------------------- comparison


def compared_steps(steps: int) -> list[int]:
    """Returns the steps at which curves are compared: four, evenly spaced, up to the last step."""
    return [steps * quarter // 4 for quarter in range(1, 5)]


def smoothed(curves: np.ndarray, at: Sequence[int], window: int = WINDOW) -> np.ndarray:
    """Returns the mean of the `window` losses up to each of the steps `at`: [R, S] -> [R, K]."""
    return np.stack([curves[:, max(0, step - window) : step].mean(1) for step in at], axis=1)


def welch(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (t, standard error) of the difference of means over the last axis but one: [..., N, K], [..., M, K] -> [..., K]
    each."""
    error = np.sqrt(a.var(-2, ddof=1) / a.shape[-2] + b.var(-2, ddof=1) / b.shape[-2])
    return (a.mean(-2) - b.mean(-2)) / error, error


def part_as_large(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the exact p-value of a permutation test: the fraction of all ways to divide N + M runs into groups of N and M whose
    largest |t| is at least as large as for `a` [N, K] and `b` [M, K]. It holds however the K are correlated. 6 and 6 runs can
    be divided in 924 ways."""
    runs, count = np.concatenate([a, b]), len(a) + len(b)
    ways = np.array(list(itertools.combinations(range(count), len(a))))
    others = np.array([np.setdiff1d(np.arange(count), way) for way in ways])
    largest = np.abs(welch(runs[ways], runs[others])[0]).max(-1)
    return float((largest >= np.abs(welch(a, b)[0]).max() * (1 - 1e-9)).mean())


def report(ours: np.ndarray, plain: np.ndarray, about: dict[str, Any], file: pathlib.Path | None) -> None:
    """Prints both mean curves and the comparison of curves [R, S]; `about` is stored with the figures."""
    steps = ours.shape[1]
    grid = range(WINDOW, steps + 1, WINDOW)
    print(f"mean loss of {WINDOW} steps, mean over {len(ours)} seeds (and their standard deviation)")
    columns = [column for side in (ours, plain) for column in (smoothed(side, grid).mean(0), smoothed(side, grid).std(0, ddof=1))]
    rows = [[f"{step}", f"{a:.4f} ({sa:.4f})", f"{b:.4f} ({sb:.4f})"] for step, a, sa, b, sb in zip(grid, *columns, strict=True)]
    print(table(["step", "ours", "plain"], rows) + "\n")
    at = compared_steps(steps)
    a, b = smoothed(ours, at), smoothed(plain, at)
    t, error = welch(a, b)
    difference = a.mean(0) - b.mean(0)
    p = part_as_large(a, b)
    print(f"largest |t| {np.abs(t).max():.2f}: {100 * p:.1f} % of all ways to split the curves into two sides reach it")
    rounded = functools.partial(np.round, decimals=5)
    curves = {"ours": rounded(ours.mean(0)).tolist(), "plain": rounded(plain.mean(0)).tolist()}
    compared = {"at": at, "difference": difference.tolist(), "standard_error": error.tolist(), "t": t.tolist()}
    figures = about | {"seeds": len(ours), **compared, "largest_t": float(np.abs(t).max()), "p": p, "mean_curves": curves}
    rows = [
        [f"{step}", f"{apart:+.4f}", f"{wide:.4f}", f"{by:+.2f}"]
        for step, apart, wide, by in zip(at, difference, error, t, strict=True)
    ]
    give(["step", "ours - plain", "standard error", "t"], rows, figures, file)


def report_same_start(ours: np.ndarray, plain: np.ndarray, file: pathlib.Path | None) -> None:
    """Prints how far two curves [S] from the same weights have diverged."""
    shown = [step for step in (1, 10, 20, 50, 100, 150, 200) if step <= len(ours)]
    apart = np.maximum.accumulate(np.abs(ours - plain))
    rows = [[f"{step}", f"{ours[step - 1]:.4f}", f"{plain[step - 1]:.4f}", f"{apart[step - 1]:.1e}"] for step in shown]
    figures = {"at": shown, "largest_difference": [float(apart[step - 1]) for step in shown]}
    give(["step", "ours", "plain", "largest difference so far"], rows, figures, file)


if __name__ == "__main__":
    run_main(main)
