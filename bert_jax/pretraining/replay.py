"""Recomputes a training step of a pretraining run from the workdir and the corpus. Reports the texts, losses and gradient
norms."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from bert_jax.configs.experiment_files import override, with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data import DECODER
from bert_jax.data.batches import to_device
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.data.rows import Batch
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import Score
from bert_jax.pretraining.program import check_batch_sizes, phase_program, phase_step, pretraining_program, step_scalars
from bert_jax.pretraining.splits import FINGERPRINT, PhaseBatches, fingerprint, open_phase_corpora, with_corpora_in_place
from bert_jax.pretraining.start import initial_state, load_teacher, start_step, with_teacher
from bert_jax.runtime.environment import enable_compilation_cache, quiet_libraries, start_logging
from bert_jax.runtime.workdir import METRICS, from_start, read_metrics, run_config, with_lists
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.storage.paths import AnyPath
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.log import SKIPPED_BATCHES
from bert_jax.training.steps import Program, TrainState, skipped_batches

log = logging.getLogger(__name__)

ROWS = 32
"""The number of rows whose logits are in memory at once."""


DIFFERS = 1e-3
"""A loss that differs from the log by more than this fraction is reported. On the same devices, losses are equal, except
that rounding may differ on a GPU."""


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """A recomputed training step, with its batch, losses and gradient norms."""

    step: int
    """The number of the step in the log, counted from 1. The step reads the batch with index `step` - 1."""
    weights_of: int
    """The number of training steps that produced the weights. This is `step` - 1, or more if no earlier state exists
    anymore."""
    learning_rate: float
    sums: Sums
    """The objective's sums and counts, computed with the dropout of the step, as in the log."""
    norms: dict[str, float]
    """Parameter name -> the L2 norm of the parameter's gradient before clipping. Layers are numbered from 0."""
    batch: Batch
    losses: dict[str, Float[np.ndarray, " B"]]
    """The losses of each row without dropout (see `Objective.row_losses`)."""
    objective: Objective

    @property
    def norm(self) -> float:
        """The norm of the whole gradient."""
        return float(np.sqrt(np.sum(np.square([*self.norms.values()], dtype=np.float64))))


def replay_step(workdir: AnyPath, step: int, overrides: Sequence[tuple[str, str]], may_change: Sequence[str]) -> int:
    """Recomputes and prints a training step of the run in `workdir`. Returns the exit status."""
    quiet_libraries()
    start_logging(0)
    enable_compilation_cache()
    experiment, corpus = load_experiment(workdir, overrides, may_change)
    for line in report(replay(experiment, workdir, corpus, step), workdir, corpus.tokenizer):
        print(line)
    return 0


def load_experiment(
    workdir: AnyPath, overrides: Sequence[tuple[str, str]], may_change: Sequence[str]
) -> tuple[PretrainingExperiment, Corpus]:
    """Returns (the experiment of the run in `workdir`, its training corpus).

    Relative paths in the run's configuration are relative to the directory in which the run was started. `overrides` are pairs
    (dotted key, text). Raises UserError if a key does not match the patterns `may_change`, if `workdir` holds no run, or if the
    corpus differs from the run's corpus.
    """
    stored = with_lists(with_defaults(PretrainingExperiment, run_config(workdir, "pretrain"), extra_key=FINGERPRINT))
    of_corpus = stored.pop(FINGERPRINT, None)
    of_phases = ((phase, "corpus") for phase in stored.get("phases", ()))
    for group, key in ((stored.get("corpus"), "directory"), (stored, "init_from"), (stored, "teacher"), *of_phases):
        if isinstance(group, dict) and isinstance(path := group.get(key), str):
            group[key] = from_start(workdir, path)
    if stored.get("init_state"):
        trunk, _, kept = stored["init_state"].rpartition("@")
        stored["init_state"] = f"{from_start(workdir, trunk)}@{kept}"
    may_change = with_corpora_in_place(may_change, PretrainingExperiment.from_dict(stored))
    for key, text in overrides:
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change):
            raise UserError(f"--config.{key}={text} would change the run; with --replay set only {', '.join(may_change)}")
        override(stored, PretrainingExperiment, key, text)
    experiment = PretrainingExperiment.from_dict(stored)
    train, eval_split = open_splits(local_corpus(experiment.corpus.directory))
    if fingerprint(train, eval_split, *open_phase_corpora(experiment, train).values()) != of_corpus:
        raise UserError(
            f"the corpus {experiment.corpus.directory} is not the one this run was trained on; "
            "give its location with --config.corpus.directory=DIR"
        )
    return experiment, train


def replay(experiment: PretrainingExperiment, workdir: AnyPath, corpus: Corpus, step: int) -> Replay:
    """Recomputes training step `step` of the run in `workdir` without writing anything.

    The weights are recomputed by training from the newest checkpoint before the step. If there is no such checkpoint, and the
    step is among the first `checkpoints.every` steps of the run, the initial state is used. Otherwise the earliest remaining
    checkpoint is used. Raises UserError if the run has no such step, or if no state exists."""
    first, last = start_step(experiment) + 1, experiment.phase_starts()[-1]
    if not first <= step <= last:
        raise UserError(f"--replay={step} is not a step of this run; give one from {first:,} to {last:,}")
    mesh = make_mesh(experiment.mesh)
    check_batch_sizes(experiment, mesh)
    teacher = load_teacher(experiment, corpus.vocabulary)
    experiment = with_teacher(experiment, teacher)
    program = pretraining_program(experiment, mesh, teacher)
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        state = _nearest_state(experiment, program, workdir, corpus, step - 1)
        batches = Batches(experiment, corpus, _rollbacks(workdir) or [(0, skipped_batches(state))])
        state = _trained_on(experiment, program, state, batches, step - 1)
        weights_of = int(state.step)
        if weights_of != step - 1:
            state = dataclasses.replace(state, step=state.step - (weights_of - step + 1))  # for the step's dropout masks
        batch, phase = batches.at(step - 1), batches.phase(step - 1)
        of_phase = phase_program(experiment, program, phase)
        arguments = program.arguments(state, to_device(batch, mesh, BATCH), step_scalars(experiment))
        norms, sums = of_phase.norms_step(experiment.phases[phase].accumulation)(*arguments)
        rate = jax.jit(program.learning_rate)(jnp.int32(step - 1), step_scalars(experiment))
        losses = _row_losses(of_phase, state.params, batch)
    objective = experiment.trained_objective
    numbers = float(rate), jax.device_get(sums), named_norms(norms)
    return Replay(step, weights_of, *numbers, batch, losses, objective)


class Batches:
    """The batches of all phases of a run, indexed by the number of finished steps. The index is shifted by the number of
    batches that the run has skipped. `rollbacks` has (step, that number from the step on), the earliest first."""

    def __init__(self, experiment: PretrainingExperiment, corpus: Corpus, rollbacks: Sequence[tuple[int, int]] = ()):
        self.phase = experiment.phase_after
        self._skipped = [(0, 0), *rollbacks]
        of_phases = open_phase_corpora(experiment, corpus)
        self._of_phase = functools.cache(
            lambda phase, skipped: PhaseBatches(experiment, phase, of_phases.get(phase, corpus), skipped_batches=skipped)
        )

    def at(self, step: int) -> Batch:
        """Returns the batch that the run trains on after `step` steps."""
        skipped = [number for since, number in self._skipped if since <= step][-1]
        return self._of_phase(self.phase(step), skipped).rows(step)


def _rollbacks(workdir: AnyPath) -> list[tuple[int, int]]:
    """Returns the recorded rollbacks of the run in `workdir`, for `Batches`. The state to which a run has rolled back does not
    have the number of skipped batches, since it was saved before."""
    records = read_metrics(workdir / METRICS)
    return [(record["step"], int(record[SKIPPED_BATCHES])) for record in records if SKIPPED_BATCHES in record]


def _nearest_state(
    experiment: PretrainingExperiment, program: Program, workdir: AnyPath, corpus: Corpus, step: int
) -> TrainState:
    """Returns the newest state that is not after `step`. If there is none, returns the earliest state."""
    directory = workdir / "checkpoints"
    may_be_lost = step - start_step(experiment) >= experiment.checkpoints.every
    there: list[int] = []
    if directory.is_dir():
        with Checkpoints(directory, read_only=True) as checkpoints:
            there = checkpoints.steps
            before = [saved for saved in there if saved <= step]
            if before or (there and may_be_lost):
                return checkpoints.restore(max(before) if before else min(there), program.state)
    if may_be_lost and not there:
        raise UserError(f"{workdir} holds no checkpoint, so the weights of step {step:,} are lost; choose another run")
    return initial_state(experiment, program, corpus, open_phase_corpora(experiment, corpus))


def _trained_on(
    experiment: PretrainingExperiment, program: Program, state: TrainState, batches: Batches, step: int
) -> TrainState:
    """Trains `state` until `step` and returns the result. If `state` is not before `step`, it is returned unchanged."""
    first = int(state.step)
    if first >= step:
        return state
    log.info("retraining from step %s to step %s", f"{first:,}", f"{step:,}")
    scalars, training_step = step_scalars(experiment), functools.cache(functools.partial(phase_step, experiment, program))
    with Progress("trained", step - first, "steps") as progress:
        for at in range(first, step):
            batch = to_device(batches.at(at), program.mesh, BATCH)
            state, _ = training_step(batches.phase(at))(*program.arguments(state, batch, scalars))
            progress.update(at + 1 - first)
    return state


def named_norms(norms: PyTree[Float[np.ndarray, " ..."]]) -> dict[str, float]:
    """Returns the norms by parameter name, e.g. "encoder/layers/0/attention/query/kernel". The index of the layer follows
    "layers"."""
    found: dict[str, float] = {}
    for path, norm in jax.tree_util.tree_leaves_with_path(jax.device_get(norms)):
        name = "/".join(str(key.key) for key in path)
        if np.ndim(norm):
            found |= {name.replace("layers/", f"layers/{layer}/"): float(one) for layer, one in enumerate(norm)}
        else:
            found[name] = float(norm)
    return found


def _row_losses(program: Program, params: PyTree[jax.Array], batch: Batch) -> dict[str, Float[np.ndarray, " B"]]:
    """Returns the losses of each row. The losses are computed for `ROWS` rows at a time if the sizes of the batch and the mesh
    allow this. Otherwise they are computed for all rows at once."""

    @jax.jit
    def losses(params: Any, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return program.objective.row_losses(params, dict(rows))

    rows = len(batch["input_ids"])
    size = ROWS if rows % ROWS == 0 and ROWS % program.mesh.size == 0 else rows
    parts = [
        jax.device_get(losses(params, to_device({name: x[i : i + size] for name, x in batch.items()}, program.mesh, BATCH)))
        for i in range(0, rows, size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# ---------------------------------------------------------------------------------------------------------------------- as text
def report(found: Replay, workdir: AnyPath, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yields the lines that the command prints. They report the step, the norm of every gradient, and the rows. The rows are
    sorted by loss, the largest loss first. If the objective shows no loss, they are in the order of the batch."""
    yield f"step {found.step:,} of {workdir}, learning rate {found.learning_rate:.3g}"
    if found.weights_of == found.step - 1:
        yield "with the original weights"
    else:
        yield f"with the weights of step {found.weights_of:,}, the earliest that remain, so losses and gradients differ"
    named = found.objective.named_scores()
    ratios = {name: score for name, score in named.items() if isinstance(score, Score) and score.numerator in found.sums}
    for name in found.losses:
        score = ratios[name]
        n = max(float(found.sums[score.denominator]), 1.0)
        line = f"{score.title} {float(found.sums[score.numerator]) / n:.6g}"
        shares = [one for one in ratios.values() if one.is_share and one.denominator == score.denominator]
        if shares:
            line += f", {100 * float(found.sums[shares[0].numerator]) / n:.1f} % of {n:,.0f} right"
        yield f"{line} (with dropout, as in the log)"
    for score in () if found.losses else ratios.values():
        value = float(found.sums[score.numerator]) / max(float(found.sums[score.denominator]), 1.0)
        yield f"{score.text(value)} (with dropout, as in the log)"
    yield from _differences(found, ratios, _logged(workdir, found.step) if found.weights_of == found.step - 1 else {})
    yield f"norm of the gradient {found.norm:.6g}"
    for name, norm in sorted(found.norms.items(), key=lambda item: -np.nan_to_num(item[1], nan=np.inf)):
        yield f"  {norm:12.6g}  {name}"
    order, sorting = np.arange(len(found.batch["input_ids"])), ""
    titles = {name: score.title for name, score in ratios.items()}
    if found.losses:
        first = next(iter(found.losses))
        order = np.argsort(-np.nan_to_num(found.losses[first], nan=np.inf), kind="stable")
        sorting = f", the largest {titles[first]} first (without dropout)"
    yield f"{counted(len(order), 'row')}{sorting}; [shown -> predicted]"
    for row in order.tolist():
        losses = ", ".join(f"{titles[name].removesuffix(' loss')} {values[row]:.3f}" for name, values in found.losses.items())
        losses = f": {losses}" if losses else ""
        if {DECODER + "input_ids", "targets"} <= found.batch.keys():
            yield f"row {row}{losses}"
            yield from (f"  {line}" for line in pair_texts(found.batch, row, tokenizer))
            continue
        labels = found.batch.get("nsp_labels", np.zeros((len(order), 0), np.int32))[row]
        yield f"row {row}{losses}{_labels(labels, found.objective)}"
        yield f"  {row_text(found.batch, row, tokenizer)}"


def _logged(workdir: AnyPath, step: int) -> JsonObject:
    """Returns the numbers that the run logged for training step `step`, or {} if it logged only means over several steps."""
    logged = {record["step"]: record for record in read_metrics(workdir / METRICS) if "train/grad_norm" in record}
    return logged.get(step, {}) if step == 1 or step - 1 in logged else {}


def _differences(found: Replay, scores: Mapping[str, Score], logged: JsonObject) -> Iterator[str]:
    """Yields a line for each loss that differs from the log."""
    for name, score in scores.items():
        value = float(found.sums[score.numerator]) / max(float(found.sums[score.denominator]), 1.0)
        before = logged.get(f"train/{name}")
        if before is not None and not score.is_share and not np.isclose(value, before, rtol=DIFFERS):
            yield (
                f"the log has {score.title} {before:.6g}, so this is not exactly the step of the run: the devices or the "
                "accumulation differ, or, on a GPU, rounding differs, or code of your own depends on more than its arguments"
            )


def _labels(labels: Int[np.ndarray, " P"], objective: Objective) -> str:
    """Returns a note that shows for each pair of a row whether the second text follows the first text. If the objective is from
    the user's file, the note adds that the objective may still change the pairs."""
    names = [("follows", "random")[label] for label in labels.tolist() if label != IGNORED]
    own = "" if type(objective).__module__.startswith("bert_jax.") else f" as read, before {type(objective).__name__}"
    return f" (second text{own}: {', '.join(names)})" if names else ""


def pair_texts(batch: Batch, row: int, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yields each pair of a row as "text -> translation". Without a `tokenizer`, ids are shown."""

    def spell(some: Sequence[int], *, target: bool = False) -> str:
        return tokenizer.decode(some, target=target) if tokenizer else " ".join(map(str, some))

    numbers, translated = batch["sequence_ids"][row], batch[DECODER + "sequence_ids"][row]
    for pair in range(1, int(numbers.max(initial=0)) + 1):
        text, target = batch["input_ids"][row][numbers == pair][:-1], batch["targets"][row][translated == pair][:-1]
        yield f"{spell(text.tolist())} -> {spell(target.tolist(), target=True)}"


def row_text(batch: Batch, row: int, tokenizer: Tokenizer | None) -> str:
    """Returns the text of a row. Each predicted token is written as "[shown -> predicted]" and each centre as "[shown]".
    Without a `tokenizer`, ids are shown."""
    ids, real = batch["input_ids"][row], batch["sequence_ids"][row] > 0
    predicted: dict[int, int | None] = dict.fromkeys(batch["centres"][row].tolist()) if "centres" in batch else {}
    if "masked_targets" in batch:
        places = zip(batch["masked_positions"][row].tolist(), batch["masked_targets"][row].tolist(), strict=True)
        predicted = {place: target for place, target in places if target != IGNORED}
    spell: Callable[[Sequence[int]], str] = tokenizer.decode if tokenizer else lambda some: " ".join(map(str, some))
    name: Callable[[int], str] = (lambda i: tokenizer.tokens([i])[0]) if tokenizer else str
    parts: list[str] = []
    waiting: list[int] = []
    for place in np.flatnonzero(real).tolist():
        if place not in predicted:
            waiting.append(int(ids[place]))
            continue
        target = predicted[place]
        arrow = "" if target is None else f" -> {name(target)}"
        parts += [spell(waiting)] * bool(waiting) + [f"[{name(int(ids[place]))}{arrow}]"]
        waiting = []
    return " ".join([*parts, *([spell(waiting)] if waiting else [])])
