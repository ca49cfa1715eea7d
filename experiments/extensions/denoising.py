"""Text infilling (BART, arXiv:1910.13461, section 2.2): spans of the text are replaced by one [MASK] each, and a decoder writes
the whole text.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/multi30k.py --workdir=runs/denoising \
        --config.corpus.directory=runs/embedded_corpus --config.objective=experiments/extensions/denoising.py:Denoising

The lengths of the spans have a Poisson distribution with mean 3. As in BART, about 30 % of the tokens are masked; unlike there,
no span is empty, and texts are not permuted. The corruption is a kind of rows: it is made with the batches, and depends on the
seed, the epoch and the text alone.
"""

import math

import numpy as np

from bert_jax.data.counter_rng import bernoulli, hash_bits, random_bits
from bert_jax.data.kinds_of_rows import PairRows
from bert_jax.data.rows import example_keys, token_spans
from bert_jax.objectives.scores import unigram_baseline
from bert_jax.objectives.translation import Translation

MASKED = 0.3
MEAN_LENGTH = 3.0
LENGTHS = np.cumsum([MEAN_LENGTH**n * math.exp(-MEAN_LENGTH) / math.factorial(n) for n in range(12)])


class Denoised(PairRows):
    """Rows of corrupted texts for the encoder, and of the whole texts for the decoder."""

    def sides(self, corpus, plan, examples, tables):
        lengths = plan.pairs.a_length[examples].astype(np.int64)
        ids = token_spans(corpus.tokens, plan.pairs.a_start[examples], lengths)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        first, inside = spans(example_keys(plan, examples), ids.shape)
        kept = real & ~inside
        short, counts = np.zeros_like(ids), kept.sum(1)
        short[np.arange(ids.shape[1]) < counts[:, None]] = np.where(first, tables.mask_id, ids)[kept]
        return (short, counts), (ids, lengths)


def spans(key, shape):
    """Returns (whether each token is the first of a span, whether it is a later token of a span). `key` has a row for each
    text."""
    column = np.broadcast_to(np.arange(shape[1]), shape)
    bits = random_bits(key, column)
    length = np.maximum(1, np.searchsorted(LENGTHS, (hash_bits(bits) >> np.uint64(11)) * 2.0**-53))
    begins = bernoulli(MASKED / MEAN_LENGTH / (1 - MASKED / 2), bits)  # overlapping spans are one
    masked = column < np.maximum.accumulate(np.where(begins, column + length, 0), axis=1)
    first = masked & ~np.pad(masked, ((0, 0), (1, 0)))[:, :-1]
    return first, masked & ~first


class Denoising(Translation):
    """The mean cross-entropy of the tokens of the whole text."""

    rows = Denoised

    def eval_scores(self, rows):
        counts = rows.train.token_counts.astype(np.float64)
        counts[rows.train.vocabulary.sep_id] += rows.plan.num_examples
        return unigram_baseline(counts, rows.predicted)
