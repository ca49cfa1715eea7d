"""The corpus of a pretraining run: its two splits, whether they suit the experiment, and how a continued run knows them again."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.corpus.store import Corpus
from bert_jax.corpus.verification import Verification
from bert_jax.errors import UserError
from bert_jax.examples import plan
from bert_jax.interface.words import counted

FINGERPRINT = "corpus_fingerprint"
"""The key of a workdir's config.json that says which corpus, to the byte, the run has read."""


@dataclasses.dataclass(frozen=True)
class Corpora:
    """The two splits of a corpus, and the verification of their files, which goes on beside the training."""

    train: Corpus
    heldout: Corpus
    verification: Verification


def check_corpus(experiment: PretrainingExperiment, train: Corpus, heldout: Corpus) -> None:
    """Raises UserError unless the corpus has as many words as the model, and examples can be made from both of its splits."""
    size, asked = train.vocabulary.size, experiment.model.vocab_size
    if size != asked and experiment.init_from:
        raise UserError(
            f"config.init_from={experiment.init_from} has a vocabulary of {counted(asked, 'entry')}, and that of the corpus "
            f"{train.directory} has {size:,}; build the corpus with --vocab={experiment.init_from}"
        )
    if size != asked:
        raise UserError(
            f"config.model.vocab_size={asked:,}, but the vocabulary of the corpus {train.directory} has "
            f"{counted(size, 'entry')}; "
            f"leave model.vocab_size out: it is {size} then; or build the corpus with the model's vocabulary"
        )
    for split in (train, heldout):
        plan.check_corpus(split, experiment.example_config(0))


def fingerprint(*splits: Corpus) -> str:
    """A SHA-256 that changes when the tokens do: a run that continues must find the corpus it began with, wherever that lies
    now."""
    digest = hashlib.sha256(splits[0].vocabulary.sha256.encode())
    for corpus in splits:
        digest.update(np.array([corpus.num_documents, corpus.num_sentences, corpus.num_tokens]).tobytes())
        digest.update(corpus.token_counts.tobytes())
    return digest.hexdigest()
