"""The held-out scores of a pretraining run, beside the scores of two baselines on the same rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from bert_jax.configs.memory_advice import evaluation_demand, least_bytes
from bert_jax.data.batches import heldout_batches, process_shard, tables_of, to_device
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.plan import EpochPlan
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.interface.progress import evaluation_progress
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.objective import bilm_targets
from bert_jax.objectives.scores import next_sentence_baseline, perplexity, summarise, token_measure, unigram_baseline
from bert_jax.pretraining.corpora import Corpora
from bert_jax.pretraining.program import PretrainingProgram, jitted_eval_step, trained_parameters
from bert_jax.runtime.launch import Run
from bert_jax.sharding.out_of_memory import fits_in_memory, require_memory
from bert_jax.sharding.rules import BATCH, parameter_shardings, row_multiple
from bert_jax.training.compilation import compiling
from bert_jax.training.steps import add_sums

HELDOUT_SEED = 20_181_011
"""The seed of held-out pairs and masks, which are the same for every seed of the experiment."""


class HeldoutEvaluation:
    """Computes held-out scores of parameters on rows of a phase's length, and two baselines on the same rows: the unigram
    distribution of the training targets for predicted tokens, and the more frequent label for next sentences. `plan` is the
    phase's plan of the training split, or of a block of it."""

    def __init__(self, program: PretrainingProgram, phase: int, corpora: Corpora, run: Run, plan: EpochPlan):
        experiment, mesh = program.experiment, program.mesh
        settings = experiment.evaluation
        examples = experiment.example_config(phase)
        self._batches = functools.partial(
            heldout_batches,
            corpora.heldout,
            examples,
            settings.batch_size,
            settings.rows,
            HELDOUT_SEED,
            row_multiple=row_multiple(mesh),
        )
        objective = experiment.objective_name
        rows = [(batch["masked_targets"], batch["nsp_labels"], _predicted(objective, batch)) for batch in self._batches()]
        targets, labels, predicted = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
        self._baseline = next_sentence_baseline(labels)
        if not (predicted >= 0).any():
            raise UserError(_nothing_to_predict(examples.length))
        if objective != "skip_gram":  # which predicts no word
            self._baseline |= unigram_baseline(target_counts(corpora.train, plan, objective), predicted)
        self._tokens_per_word = _tokens_per_word(targets, corpora.heldout, examples.masking)
        self._count = int((targets >= 0).any(1).sum())  # without the empty rows that pad the last batch
        self._batch_size, self._mesh, self._run = len(rows[0][0]), mesh, run
        self._step = jitted_eval_step(experiment, mesh)
        self._gathered = jax.jit(
            lambda params: params, out_shardings=parameter_shardings(trained_parameters(experiment), mesh)
        )
        self._length = examples.length
        self._demand = functools.partial(evaluation_demand, experiment, phase, mesh)
        needs = least_bytes(experiment.model, self._batch_size, examples.length, examples.max_predictions, mesh)
        require_memory(needs, mesh, self._demand)
        self._is_compiled = False

    def __call__(self, params: PyTree[jax.Array]) -> dict[str, float]:
        """The scores of `params`, with "word_perplexity" where whole words are predicted, and those of the baselines."""
        total: Sums = {}
        with fits_in_memory(self._demand), evaluation_progress("held-out rows", "rows", self._run.is_first) as progress:
            params = self._gathered(params)  # once per evaluation, in case they are sharded over the data axis
            for number, batch in enumerate(self._batches(process_shard(self._mesh, BATCH)), 1):
                arguments = (params, to_device(batch, self._mesh, BATCH))
                self._compile(*arguments)
                total = add_sums(total, self._step(*arguments))
                self._run.watchdog.alive("evaluation")
                progress(min(number * self._batch_size, self._count), self._count)
            scores = summarise(jax.device_get(total))
            if f"{token_measure(scores)}_loss" not in scores:  # of skip-gram, whose pairs are made on the device
                raise UserError(_nothing_to_predict(self._length))
            if self._tokens_per_word:
                scores["word_perplexity"] = perplexity(scores["mlm_loss"] * self._tokens_per_word)
            return scores | self._baseline

    def _compile(self, *arguments: PyTree[jax.Array]) -> None:
        """Compiles the step before its first call, which then takes the program from JAX's cache, and logs the time."""
        if not self._is_compiled:
            with self._run.compiling(self._run.ledger), compiling("the evaluation"):
                self._step.lower(*arguments).compile()
            self._is_compiled = True


def target_counts(corpus: Corpus, plan: EpochPlan, objective: str) -> Float[np.ndarray, " V"]:
    """Returns how often each token is a target of `objective` in an epoch of the training split `corpus`, up to a constant
    factor.

    Words count as often as they occur. [UNK] is never a target. Next tokens include each [SEP], which the counts of the corpus
    lack; `plan` gives the number of texts. A biLM predicts words in both directions, and the last [SEP] of a text in one.
    """
    counts = corpus.token_counts.astype(np.float64)
    counts[corpus.vocabulary.unk_id] = 0.0
    if plan.config.targets == "next":
        lengths, separators = plan.lengths().astype(np.int64), plan.config.special_tokens - 1
        predicted = plan.config.predictions(lengths) / (lengths - 1)  # the fraction of the tokens after [CLS]
        words = (predicted * (lengths - 1 - separators)).sum()
        times = separators - 0.5 if objective == "bilm" else separators  # the last one in one of two directions
        counts[corpus.vocabulary.sep_id] = counts.sum() * times * predicted.sum() / words
    return counts


def _nothing_to_predict(length: int) -> str:
    return (
        f"the held-out rows of {counted(length, 'token')} have nothing to predict: their tokens are unknown, or alone in their "
        "texts; train a vocabulary on the corpus, hold more texts out, or set longer rows"
    )


def _predicted(objective: str, batch: Batch) -> Int[np.ndarray, "B _"]:
    """The targets of all predictions of a batch, -1 where there is none: of a biLM those of both directions."""
    if objective != "bilm":
        return batch["masked_targets"]
    return np.concatenate(bilm_targets({name: jnp.asarray(array) for name, array in batch.items()}), axis=1)


def _tokens_per_word(targets: Int[np.ndarray, "B M"], corpus: Corpus, masking: str) -> float | None:
    """The number of predicted tokens for each predicted word, where whole words are predicted; else None.

    The loss of a word is the sum of those of its pieces, which are masked together. So the perplexity of words can be compared
    between vocabularies, that of pieces cannot.
    """
    if masking == "tokens" or (continues := tables_of(corpus).continuation) is None:
        return None
    used = targets[targets >= 0]
    return len(used) / max(int(np.count_nonzero(~continues[used])), 1)
