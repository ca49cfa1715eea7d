"""The held-out scores of a pretraining run, and their baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.configs.memory_advice import evaluation_advice, least_bytes
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource, corpus_masking_tables, eval_batches, process_shard, to_device
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.masking import masks_whole_words
from bert_jax.data.plan import EpochPlan, plan_epoch
from bert_jax.data.rows import words_begun
from bert_jax.errors import UserError
from bert_jax.interface.progress import evaluation_progress
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.scores import EvalRows
from bert_jax.pretraining.program import phase_program
from bert_jax.pretraining.splits import Splits
from bert_jax.runtime.launch import Run
from bert_jax.sharding.device_errors import OutOfMemory, fits_in_memory, require_memory
from bert_jax.sharding.rules import BATCH, row_multiple
from bert_jax.training.compilation import compiling
from bert_jax.training.steps import Program, add_sums

EVAL_SEED = 20_181_011
"""The seed of held-out pairs and masks. It does not depend on the experiment's seed."""


class Evaluation:
    """Computes held-out scores on rows of a phase's length. Also computes the objective's baselines on the same rows.
    `source` makes the phase's batches."""

    def __init__(
        self, experiment: PretrainingExperiment, program: Program, phase: int, splits: Splits, run: Run, source: BatchSource
    ):
        program, experiment = phase_program(experiment, program, phase), experiment.for_phase(phase)
        mesh, self._program = program.mesh, program
        settings = experiment.evaluation
        examples = experiment.eval_config(phase)
        plan = plan_epoch(splits.eval, examples, seed=EVAL_SEED, epoch=0)  # once, since it takes seconds for a large split
        require_evaluation_memory(experiment, phase, splits.eval, mesh, plan)
        self._batches = functools.partial(
            eval_batches,
            splits.eval,
            examples,
            settings.batch_size,
            settings.rows,
            EVAL_SEED,
            row_multiple=row_multiple(mesh),
            plan=plan,
        )
        objective = self._objective = experiment.trained_objective
        rows = [(batch.get("nsp_labels"), objective.predicted(batch)) for batch in self._batches()]
        predicted = np.concatenate([predicted for _, predicted in rows])
        labels = np.concatenate([np.zeros((len(of_rows), 0), np.int32) if found is None else found for found, of_rows in rows])
        if not (predicted >= 0).any():
            raise UserError(_nothing_to_predict(examples.length))
        counts_words = examples.kind.predicted == "masked_targets" and masks_whole_words(examples.masking)
        words = self._count_words(splits.eval, plan) if counts_words else None
        further = objective.eval_scores(EvalRows(predicted, labels, source.texts(0), source.plan(0), words))
        self._formulas = {name: formula for name, formula in further.items() if callable(formula)}
        self._baseline = {name: value for name, value in further.items() if not callable(value)}
        self._count = int((predicted >= 0).any(1).sum())  # does not count the empty rows that pad the last batch
        self._batch_size, self._mesh, self._run = len(rows[0][1]), mesh, run
        self._length = examples.length
        self._memory_advice = functools.partial(evaluation_advice, experiment, phase, mesh)

    def _count_words(self, corpus: Corpus, plan: EpochPlan) -> int:
        """Returns the number of words to which the predicted pieces belong."""
        tables = corpus_masking_tables(corpus)
        first = words = 0
        for batch in self._batches():
            end = first + len(batch["masked_targets"])
            rows = np.minimum(np.arange(first, end), plan.num_rows - 1)  # rows after the last one are empty
            words += int(words_begun(corpus, plan, rows, batch, tables).sum())
            first = end
        return words

    def __call__(self, params: PyTree[jax.Array], before_batch: Callable[[], object] = lambda: None) -> dict[str, float]:
        """Returns the scores of `params` and of the baselines. `before_batch` is called before each batch."""
        total: Sums = {}
        with fits_in_memory(self._memory_advice), evaluation_progress("held-out rows", "rows", self._run.is_first) as progress:
            params = self._program.gathered(params)  # gathered once per evaluation if they are sharded over the data axis
            for number, batch in enumerate(self._batches(process_shard(self._mesh, BATCH)), 1):
                before_batch()
                arguments = (params, to_device(batch, self._mesh, BATCH))
                if self._program.is_new("evaluation", batch):  # the call below then finds it in JAX's cache
                    with self._run.compiling(self._run.goodput), compiling("the evaluation"):
                        self._program.evaluation_step.lower(*arguments).compile()
                total = add_sums(total, self._program.evaluation_step(*arguments))
                self._run.watchdog.alive("evaluation")
                progress(min(number * self._batch_size, self._count), self._count)
            sums = jax.device_get(total)
            scores = self._objective.summarise(sums)
            if next(iter(self._objective.named_scores())) not in scores:  # e.g. skip-gram, which makes its pairs on the device
                raise UserError(_nothing_to_predict(self._length))
            further = {name: value for name, formula in self._formulas.items() if (value := formula(scores)) is not None}
            return scores | further | self._baseline | self._objective.baseline_scores(sums)


def require_evaluation_memory(
    experiment: PretrainingExperiment, phase: int, corpus: Corpus, mesh: Mesh, plan: EpochPlan | None = None
) -> None:
    """Raises OutOfMemory, before anything is compiled, if a batch of the held-out rows in `corpus` cannot fit in the memory of
    the devices at a phase's length. `plan` is the plan of the rows, if the caller already has it."""
    settings, examples, multiple = experiment.evaluation, experiment.eval_config(phase), row_multiple(mesh)
    model = experiment.for_phase(phase).model

    def require(rows: int) -> None:
        batch = min(settings.batch_size, -(-rows // multiple) * multiple)
        needs = least_bytes(model, batch, examples.length, examples.max_predictions, mesh)
        require_memory(needs, mesh, functools.partial(evaluation_advice, experiment, phase, mesh))

    try:
        require(settings.rows)
    except OutOfMemory:  # there may be fewer rows
        plan = plan or plan_epoch(corpus, examples, seed=EVAL_SEED, epoch=0)
        require(min(settings.rows, plan.num_rows))


def _nothing_to_predict(length: int) -> str:
    return (
        f"the held-out rows of {counted(length, 'token')} have nothing to predict: their tokens are unknown, or each text is a "
        "single token; train a vocabulary on the corpus, hold more texts out, or set longer rows"
    )
