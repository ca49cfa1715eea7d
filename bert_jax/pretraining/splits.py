"""The two splits of a pretraining corpus. This module makes their batches, checks them against the experiment, and computes the
fingerprint that a resumed run compares."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data import DECODER
from bert_jax.data.batches import BatchSource, check_own_rows, check_rows
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import TOKENIZER, UNNAMED, Corpus, CorruptedCorpus, open_splits
from bert_jax.data.corpus.verification import Verification, Verifications, local_corpus
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.embeddings import check_ids

FINGERPRINT = "corpus_fingerprint"
"""The key in a workdir's config.json whose value is the `fingerprint` of the run's corpus."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """The two splits of a corpus, and the verification of the corpus checksums. The verification runs in the background during
    training."""

    train: Corpus
    eval: Corpus
    verification: Verification | Verifications
    of_phases: Mapping[int, Corpus] = dataclasses.field(default_factory=dict)
    """Index of a phase -> training split, for each phase that has its own corpus."""

    def for_phase(self, phase: int) -> Corpus:
        """Returns the split that a phase trains on."""
        return self.of_phases.get(phase, self.train)


PHASE_CORPUS = "phases.*.corpus"


def with_corpora_in_place(may_change: Sequence[str], experiment: PretrainingExperiment) -> list[str]:
    """Returns the keys that a resumed run of `experiment` `may_change`. PHASE_CORPUS stands only for the phases that have their
    own corpus, since such a corpus may be in another directory, but not in another phase."""
    own = [f"phases.{i}.corpus" for i, phase in enumerate(experiment.phases) if phase.corpus]
    return [key for pattern in may_change for key in (own if pattern == PHASE_CORPUS else [pattern])]


def trained_splits(experiment: PretrainingExperiment, train: Corpus, of_phases: Mapping[int, Corpus]) -> list[Corpus]:
    """Returns the different splits that the phases train on, in the order of the phases. `of_phases` are the splits of the
    phases that do not train on `train`."""
    every = [of_phases.get(i, train) for i in range(len(experiment.phases))]
    return [*{corpus.directory.resolve() if corpus.directory else id(corpus): corpus for corpus in every}.values()]


class PhaseBatches:
    """The batches of a phase, indexed by the step of the run. `source` indexes the batches from the first step of the phase.

    `shard` selects the part of a batch that this process holds. Step n reads the batch with index n plus `skipped_batches`."""

    def __init__(
        self,
        experiment: PretrainingExperiment,
        phase: int,
        corpus: Corpus,
        shard: tuple[int, int] = (0, 1),
        skipped_batches: int = 0,
    ):
        self._model, self._shard, self.skipped_batches = experiment.model, shard, skipped_batches
        self._start = experiment.phase_starts()[phase]
        examples, size = experiment.example_config(phase), experiment.phases[phase].batch_size
        self.source = BatchSource(corpus, examples, size, experiment.phase_seed(phase))

    def rows(self, step: int) -> Batch:
        """Returns this process's rows of the batch for `step`. Checks on the host that the ids in the rows are within the
        model's embedding tables."""
        batch = self.source.at(step - self._start + self.skipped_batches, self._shard)
        for prefix in ("", DECODER):
            names = ("input_ids", "token_type_ids", "position_ids") if prefix + "input_ids" in batch else ()
            check_ids(self._model, **{name: batch[prefix + name] for name in names})
        return batch


def check_corpus(experiment: PretrainingExperiment, train: Corpus, eval_split: Corpus) -> None:
    """Raises UserError if the corpus and the model have different vocabulary sizes, if examples cannot be built from one of the
    splits, or if a kind of rows or a mask policy in a user's file cannot be used. With `init_from`, the model may have more word
    embeddings than the corpus has pieces, because `pretraining_start` compares the vocabularies."""
    size, asked = train.vocabulary.size, experiment.model.vocab_size
    if size > asked and experiment.init_from:
        raise UserError(
            f"config.init_from={experiment.init_from} has a vocabulary of {counted(asked, 'entry')}, but the vocabulary of the "
            f"corpus {train.directory} has {size:,}; build the corpus with --vocab={experiment.init_from}"
        )
    if size != asked and not experiment.init_from:
        raise UserError(
            f"config.model.vocab_size={asked:,}, but the vocabulary of the corpus {train.directory} has "
            f"{counted(size, 'entry')}; leave model.vocab_size out (default: {size}), or build the corpus with the model's "
            "vocabulary"
        )
    if 0 < (target := experiment.model.decoder_vocab_size) < size:
        raise UserError(
            f"config.model.decoder_vocab_size={target:,}, but the corpus {train.directory} has a vocabulary of "
            f"{counted(size, 'entry')} for both languages; set {size}, or 0, so that the languages share a table"
        )
    checked: set[tuple[int, ExampleConfig]] = set()
    for i, phase in enumerate(experiment.phases):
        of_phase = [] if phase.corpus else [(train, experiment.example_config(i))]
        for split, config in [*of_phase, (eval_split, experiment.eval_config(i))]:
            if (id(split), config) not in checked:
                checked.add((id(split), config))
                _require_rows(split, config, f"config.phases.{i}: " if i else "")
    check_own_rows(train, experiment.example_config(0))


def _require_rows(corpus: Corpus, config: ExampleConfig, named: str) -> None:
    """Raises UserError, which starts with `named`, if no rows can be made from a corpus."""
    try:
        check_rows(corpus, config)
    except CorruptedCorpus:
        raise
    except UserError as error:
        raise UserError(f"{named}{error}") from None


def open_phase_corpora(experiment: PretrainingExperiment, train: Corpus) -> dict[int, Corpus]:
    """Opens the training splits of the phases that have their own corpus. Raises UserError if such a split has a different
    vocabulary or direction of translation than `train`, or if examples cannot be built from the split."""
    found: dict[int, Corpus] = {}
    for i, phase in enumerate(experiment.phases):
        if not phase.corpus:
            continue
        key = f"config.phases.{i}.corpus"
        same = next((found[j] for j in found if experiment.phases[j].corpus == phase.corpus), None)
        corpus = found[i] = same or open_splits(local_corpus(phase.corpus, key), ["train"])[0]
        if corpus.vocabulary != train.vocabulary:
            raise UserError(
                f"{key}={phase.corpus} has a different vocabulary than config.corpus.directory={experiment.corpus.directory}; "
                f"build it with --vocab={experiment.corpus.directory}/{TOKENIZER}"
            )
        _require_rows(corpus, experiment.example_config(i), f"{key}={phase.corpus}: ")
        _require_direction(f"{key}={phase.corpus}", corpus, experiment, train)
        check_own_rows(corpus, experiment.example_config(i))
    return found


def _require_direction(named: str, corpus: Corpus, experiment: PretrainingExperiment, train: Corpus) -> None:
    """Raises UserError if a run that translates would train on the corpus `named` in another direction than on `train`."""
    there, here = train.languages, corpus.languages
    translates = experiment.examples.kind.parallel and experiment.model.translates
    if not translates or not there or not here or UNNAMED in (there, here) or there == here:
        return
    reverse = f"; build it with the texts in {here[0]} as the translations" if there == here[::-1] else ""
    raise UserError(
        f"{named} holds translations from {' to '.join(here)}, but config.corpus.directory={experiment.corpus.directory} from "
        f"{' to '.join(there)}, and a model translates in one direction{reverse or '; name a corpus of this direction'}"
    )


def fingerprint(*splits: Corpus) -> str:
    """Returns a SHA-256 of the vocabulary, the sizes and the token counts of the `splits`. A resumed run compares this hash.
    The corpus may have moved, but it must have the same tokens."""
    digest = hashlib.sha256(splits[0].vocabulary.sha256.encode())
    for corpus in splits:
        digest.update(np.array([corpus.num_documents, corpus.num_sentences, corpus.num_tokens]).tobytes())
        digest.update(corpus.token_counts.tobytes())
    return digest.hexdigest()
