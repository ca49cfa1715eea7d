"""One phase of a pretraining run: its rows, its compiled training step and its evaluation."""

from __future__ import annotations

from typing import Any

import jax

from bert_jax.configs.memory_advice import require_training_memory
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource, process_shard, to_device
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.rows import Batch
from bert_jax.model.embeddings import check_ids
from bert_jax.pretraining.corpora import Corpora
from bert_jax.pretraining.evaluation import HeldoutEvaluation
from bert_jax.pretraining.program import PretrainingProgram
from bert_jax.runtime.launch import Run
from bert_jax.sharding.rules import BATCH
from bert_jax.training.compilation import compiled
from bert_jax.training.steps import TrainState


def batch_source(experiment: PretrainingExperiment, index: int, corpus: Corpus) -> BatchSource:
    """The batches of phase `index`; the step 0 of the source is the first of the phase."""
    return BatchSource(
        corpus, experiment.example_config(index), experiment.phases[index].batch_size, experiment.phase_seed(index)
    )


class Phase:
    """Phase `index` of a run, from the step `start` to the step `end`; its batches are those of `passed_over` steps later."""

    def __init__(self, program: PretrainingProgram, index: int, corpora: Corpora, run: Run, passed_over: int = 0):
        experiment = program.experiment
        self.experiment, self.index, self.config = experiment, index, experiment.phases[index]
        for later in range(index, len(experiment.phases)):  # those to come too: a run that must fail does so at once
            require_training_memory(experiment, later, program.mesh)
        self.start, self.end = experiment.phase_starts()[index : index + 2]
        self.source = batch_source(experiment, index, corpora.train)
        self.passed_over = passed_over
        self.verification = corpora.verification
        self.evaluate = HeldoutEvaluation(program, index, corpora, run, self.source.plan(0))
        self._program, self._run = program, run
        self._shard = process_shard(program.mesh, BATCH)

    def rows(self, step: int) -> Batch:
        """The rows of the batch of `step` that belong to this process. Checks on the host that their ids are within the model's
        embedding tables."""
        batch = self.source.at(step - self.start + self.passed_over, self._shard)
        ids = {name: batch[name] for name in ("input_ids", "token_type_ids", "position_ids")}
        check_ids(self.experiment.model, **ids)
        return batch

    def on_devices(self, batch: Batch) -> dict[str, jax.Array]:
        """The global batch as sharded device arrays, from the rows `batch` of this process."""
        return to_device(batch, self._program.mesh, BATCH)

    def arguments(self, state: TrainState, batch: Batch) -> tuple[Any, ...]:
        """The arguments of the compiled training step, from the rows `batch` of this process."""
        return self._program.arguments(state, self.on_devices(batch))

    def compile(self, step: int, *, must_be_saved: bool) -> jax.stages.Compiled:
        """The compiled training step, `arguments` -> (state, sums), loaded from --compiled=DIR if given. Raises UserError
        where that directory lacks the step and it `must_be_saved`."""
        function = self._program.training_step(self.index)
        arguments = self.arguments(self._program.state, self.rows(step))
        with self._run.compiling(self._run.ledger):
            return compiled(function, *arguments, mesh=self._program.mesh, saved=self._run.compiled, must_be_saved=must_be_saved)
