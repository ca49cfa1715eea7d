"""Large corpora in blocks: parts of about `BLOCK_TOKENS` tokens, each planned when it is needed.

The memory and the time to the first batch do not grow with the corpus. A block is made of segments, ranges of documents from
everywhere in the corpus, drawn anew in every epoch: a corpus that is one source after another is mixed, and a document has other
companions in every epoch. The random second segments of next sentence prediction come from documents of the same block.
"""

from __future__ import annotations

import numpy as np

from bert_jax.data.corpus.offsets import ShardedOffsets
from bert_jax.data.corpus.store import BLOCK_TOKENS, Corpus
from bert_jax.data.counter_rng import key_of
from bert_jax.data.packing import permutation
from bert_jax.errors import UserError
from bert_jax.interface.words import counted

SEGMENTS = 16
"""Segments of a block: of 2^25 tokens, 80 MB of a corpus, so that it is read in long pieces."""
_BLOCK_KEY, _SEGMENTS_KEY, _ORDER_KEY = 9, 10, 11  # the last part of keys; smaller ones are in plan.py, chunks.py and packing.py


class Blocks:
    """The blocks of a corpus in the order in which they are trained on: block n is number n % count of epoch n // count.

    A corpus of at most `block_tokens` tokens is one block, itself. With `duplicates=k` (ExampleConfig), epochs e and e + k have
    the same blocks in another order.
    """

    def __init__(self, corpus: Corpus, seed: int, duplicates: int = 0, block_tokens: int = BLOCK_TOKENS):
        self._corpus, self._seed, self._duplicates = corpus, seed, duplicates
        self.count = max(1, -(-corpus.num_tokens // block_tokens))
        """The number of blocks of an epoch."""
        self._sentences, self._documents = (
            offsets if isinstance(offsets, ShardedOffsets) else ShardedOffsets([offsets])
            for offsets in (corpus.sentence_offsets, corpus.document_offsets)
        )

    def at(self, block: int) -> tuple[Corpus, int, int]:
        """(the texts, the seed and the epoch) of a block, from which `plan_epoch` makes its plan."""
        epoch, place = divmod(block, self.count)
        if self.count == 1:
            return self._corpus, self._seed, epoch
        number = int(permutation(self.count, key_of(self._seed, epoch, _ORDER_KEY), np.int64)[place])
        version = epoch % self._duplicates if self._duplicates else epoch
        every = permutation(self.count * SEGMENTS, key_of(self._seed, version, _SEGMENTS_KEY), np.int64)
        part = self._corpus.part([self.documents(segment) for segment in sorted(every[number :: self.count].tolist())])
        return part, int(key_of(self._seed, number, _BLOCK_KEY)), epoch

    def documents(self, segment: int) -> tuple[int, int]:
        """The documents [first, last) that begin in the segment; of all segments, every document once."""
        return self._first_document(segment), self._first_document(segment + 1)

    def require_documents(self) -> None:
        """Raises UserError where documents are so long that some block may be empty: where none begins in more than half of the
        segments, of which it looks at 256 at most. With fewer, those of a block are all empty with a probability below 2^-16."""
        if self.count == 1:
            return
        every = self.count * SEGMENTS
        looked_at = range(0, every, -(-every // 256))
        empty = sum(first == last for first, last in map(self.documents, looked_at))
        if 2 * empty > len(looked_at):
            tokens = self._corpus.num_tokens
            raise UserError(
                f"in {empty} of {len(looked_at)} parts of {counted(tokens // every, 'token')} no document of the "
                f"{self._corpus.split} split begins: {counted(self._corpus.num_documents, 'document')} in "
                f"{counted(tokens, 'token')} are too long to be mixed; separate documents by blank lines in the text, or give "
                "another layout (python -m bert_jax.corpus --help), and build the corpus again"
            )

    def _first_document(self, segment: int) -> int:
        """The first document that begins at or after the beginning of the segment."""
        token = segment * self._corpus.num_tokens // (self.count * SEGMENTS)
        return self._documents.first_reaching(self._sentences.first_reaching(token))
