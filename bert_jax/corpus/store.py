"""Opens a finished corpus: token ids in memory-mapped shards, and offsets of sentences and documents.

corpus = open_corpus("DIR")                       # split="heldout" for the held-out documents
corpus.tokens[corpus.sentence_offsets[5] : corpus.sentence_offsets[6]]      # the ids of sentence 5
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.corpus import files
from bert_jax.corpus.files import JsonObject
from bert_jax.corpus.integrity import MANIFEST, check_manifest, check_sizes, corpus_tokenizer, read_arrays, read_token_counts
from bert_jax.corpus.shard import SPLITS, shard_name
from bert_jax.corpus.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.interface.words import counted

FORMAT = 1
SETTINGS, TOKENIZER = "settings.json", "tokenizer"


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """The token ids of all shards as one flat array: shard s holds the positions [bounds[s], bounds[s + 1]). No sentence spans
    two shards.
    """

    shards: tuple[np.ndarray, ...]  # unsigned, 1-d, memory-mapped
    bounds: np.ndarray  # int64 [shards + 1]

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def dtype(self) -> np.dtype:
        """The type of a token id, uint16 or uint32."""
        return self.shards[0].dtype

    def __getitem__(self, where: slice) -> np.ndarray:
        """The ids at [start, stop): a view if they are in one shard, else a copy."""
        start, stop, step = where.indices(len(self))
        assert step == 1
        first = int(np.searchsorted(self.bounds, start, side="right")) - 1
        parts = []
        while start < stop:
            end = min(stop, int(self.bounds[first + 1]))
            parts.append(self.shards[first][start - self.bounds[first] : end - self.bounds[first]])
            start, first = end, first + 1
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, self.dtype)])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One split. Document d is the sentences [document_offsets[d], document_offsets[d + 1]), sentence s the tokens likewise."""

    tokens: TokenStore
    sentence_offsets: np.ndarray  # int64 [S + 1], into the tokens of all shards
    document_offsets: np.ndarray  # int64 [D + 1], into sentences
    token_counts: np.ndarray  # int64 [V], of the train split, whichever split this is
    vocabulary: VocabularyInfo
    split: str
    directory: pathlib.Path | None  # None: built in memory
    tokenizer: Tokenizer | None = None  # with `vocabulary`; None: built in memory

    @property
    def num_documents(self) -> int:
        """The number of documents of the split."""
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        """The number of sentences of the split."""
        return len(self.sentence_offsets) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the split."""
        return len(self.tokens)

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[object, ...]]:
        """Pickles the directory and split only: pickling a memory map would copy the corpus."""
        if self.directory is not None:
            return open_corpus, (self.directory, self.split)
        return Corpus, tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def open_corpus(directory: pathlib.Path | str, split: str = "train") -> Corpus:
    """Opens one split of a finished corpus; see `open_splits`."""
    return open_splits(directory, [split])[0]


def open_splits(directory: pathlib.Path | str, splits: Sequence[str] = SPLITS) -> list[Corpus]:
    """Opens some splits of a finished corpus.

    Raises UserError if the corpus is unfinished or damaged, as far as `integrity` can tell without reading the tokens.
    """
    directory = pathlib.Path(directory)
    for split in splits:
        if split not in SPLITS:
            raise UserError(f"a corpus has no split {split!r}; {nearest(split, SPLITS)}")
    manifest = read_manifest(directory)
    tokenizer = corpus_tokenizer(directory / TOKENIZER, manifest.get("vocabulary"))
    shards = [(directory / shard["name"], shard) for shard in manifest["shards"]]
    for path, shard in shards:
        check_sizes(path, shard["files"])
    token_counts = np.zeros(tokenizer.size, np.int64)
    for path, shard in shards:
        token_counts += read_token_counts(path, shard, tokenizer.size)
    opened = []
    for split in splits:
        arrays = [read_arrays(path, shard, split, tokenizer.size) for path, shard in shards]
        tokens, sentences, documents = zip(*arrays, strict=True)
        store = TokenStore(*_laid_end_to_end(tokens))
        offsets = _joined_offsets(sentences), _joined_offsets(documents)
        opened.append(Corpus(store, *offsets, token_counts, tokenizer.vocabulary, split, directory, tokenizer))
    return opened


def _laid_end_to_end(shards: Sequence[np.ndarray]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    return tuple(shards), np.cumsum([0, *map(len, shards)], dtype=np.int64)


def _joined_offsets(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The offsets of each shard, which begin at 0, as offsets into the concatenation of all shards."""
    bases = np.cumsum([0, *(int(part[-1]) for part in parts)], dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), *(part[1:] + base for part, base in zip(parts, bases, strict=False))])


def finished_shards(directory: pathlib.Path, shards: int) -> list[int]:
    """The indices of the complete shards."""
    return [i for i in range(shards) if (directory / shard_name(i, shards) / "shard.json").is_file()]


def read_manifest(directory: pathlib.Path) -> JsonObject:
    """The checked manifest of a finished corpus. Raises UserError if the corpus is missing, unfinished or of another format."""
    if directory.is_file():
        raise UserError(f"corpus {directory} is a file; give the directory that python -m bert_jax.corpus --output=DIR has made")
    if not directory.is_dir():
        remedy = f"build one with python -m bert_jax.corpus --output={directory} ..."
        raise UserError(f"corpus {missing_path(directory)} does not exist; {remedy}")
    if not (directory / MANIFEST).is_file():
        if not (directory / SETTINGS).is_file():
            raise UserError(f"{directory} is not a corpus (it has no {MANIFEST}); build one with python -m bert_jax.corpus")
        settings = files.read_object(directory / SETTINGS)
        shards, command = settings.get("shards"), settings.get("command")
        done = "not all shards"
        if isinstance(shards, int):
            done = f"{len(finished_shards(directory, shards))} of {counted(shards, 'shard')}"
        raise UserError(
            f"corpus {directory} is unfinished ({done} are done); "
            f"run its command again to continue from there: {command}"
        )
    manifest = files.read_object(
        directory / MANIFEST, "remove it and run the command that built the corpus: it continues from its shards"
    )
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"corpus {directory} has format {manifest.get('format')}, this version reads format {FORMAT}; build it again"
        )
    check_manifest(directory, manifest)
    return manifest
