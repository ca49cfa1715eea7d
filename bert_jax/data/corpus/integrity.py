"""Checks a corpus at every start: that the manifest is complete and belongs to the corpus, that every array has the recorded
type, size and order, and that the vocabulary is the one the text was tokenised with.

None of the checks reads the tokens, which takes seconds per gigabyte; `verification` does, once per machine.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from bert_jax.data.corpus import arrays
from bert_jax.data.corpus.arrays import ARRAYS, DOCUMENT_HASHES, SPLITS, TOKEN_COUNTS, shard_name, token_dtype
from bert_jax.data.tokenizers.tokenizer import Tokenizer, VocabularyInfo, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject
from bert_jax.interface.words import counted

MANIFEST = "manifest.json"
FILES = frozenset({*(f"{split}.{name}.npy" for split in SPLITS for name in ARRAYS), TOKEN_COUNTS, DOCUMENT_HASHES})
"""The files of a shard."""
_SHARD = re.compile(r"shard-\d+-of-(\d+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = ("documents", *ARRAYS[:2])


class CorruptedCorpus(UserError):
    """A file of a corpus differs from the file that was written."""


def check_manifest(directory: pathlib.Path, manifest: JsonObject) -> None:
    """Raises UserError unless `manifest` lists all shards of one corpus with their files, and its counts are their sums."""
    path = directory / MANIFEST
    shards = manifest.get("shards")
    if not isinstance(shards, list) or not shards or not all(isinstance(shard, dict) for shard in shards):
        _refuse_manifest(path, f'"shards" is {str(shards)[:40]}', "a list of shards")
    for i, shard in enumerate(shards):
        _check_name(path, shard.get("name"), i, len(shards))
        _check_files(path, shard)
    for split in SPLITS:
        parts = [_counts(path, shard, f'"splits" of {shard["name"]}', split) for shard in shards]
        total, found = {name: sum(part[name] for part in parts) for name in _COUNTS}, _counts(path, manifest, '"splits"', split)
        for name in _COUNTS:
            if found[name] != total[name]:
                _refuse_manifest(path, f"the {split} split has {found[name]:,} {name}", f"{total[name]:,}, the sum of its shards")


def _check_name(path: pathlib.Path, name: Json, index: int, shards: int) -> None:
    match = _SHARD.fullmatch(name) if isinstance(name, str) else None
    if match is None:  # such as "../../../home", to make us read or delete other directories
        raise UserError(
            f"{path} names the shard {str(name)[:60]!r}, expected {shard_name(index, shards)!r}: no build writes such a name, so "
            "the file is forged or damaged. Trust nothing in this directory, and get the corpus again from where it was built"
        )
    if name != shard_name(index, shards):
        total = int(match[1])
        found = f"{counted(shards, 'shard')}, of which number {index} is {name}"
        _refuse_manifest(path, found, f"{counted(total, 'shard')}, {shard_name(index, total)} in that place")


def _check_files(path: pathlib.Path, shard: JsonObject) -> None:
    listed = shard.get("files")
    if not isinstance(listed, dict) or listed.keys() != FILES:
        names = sorted(listed) if isinstance(listed, dict) else listed
        _refuse_manifest(path, f"the files of {shard['name']} are {str(names)[:200]}", ", ".join(sorted(FILES)))
    for name, facts in listed.items():
        size, digest = (facts.get("bytes"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if not _is_count(size) or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            _refuse_manifest(path, f"{shard['name']}/{name} has {str(facts)[:60]}", "a number of bytes and a sha256")


def _counts(path: pathlib.Path, holder: JsonObject, where: str, split: str) -> dict[str, int]:
    splits = holder.get("splits")
    counts = splits.get(split) if isinstance(splits, dict) else None
    if not isinstance(counts, dict) or not all(_is_count(counts.get(name)) for name in _COUNTS):
        _refuse_manifest(path, f"{where} for {split} is {str(counts)[:80]}", f"{', '.join(_COUNTS)}, numbers from 0")
    return counts


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse_manifest(path: pathlib.Path, found: str, expected: str) -> NoReturn:
    raise CorruptedCorpus(
        f"corrupted corpus: {path}: {found}; expected {expected}; copy the whole corpus again, or remove {path} and run the "
        "command that built it: it continues from its shards"
    )


def read_arrays(
    path: pathlib.Path, shard: JsonObject, split: str, vocabulary_size: int, *, whole: bool = True
) -> list[np.ndarray]:
    """The memory-mapped `ARRAYS` of a split of the shard in `path`, in their order; `shard` is its part of the manifest.

    Raises CorruptedCorpus unless they have the recorded types and lengths, and offsets ascend from 0 to the number of tokens or
    sentences; only their ends are read where they are not read `whole`.
    """
    counts = shard["splits"][split]
    kinds = (token_dtype(vocabulary_size), np.dtype(np.int64), np.dtype(np.int64))
    lengths = (counts["tokens"], counts["sentences"] + 1, counts["documents"] + 1)
    arrays = [
        _array(path / f"{split}.{name}.npy", dtype, length) for name, dtype, length in zip(ARRAYS, kinds, lengths, strict=True)
    ]
    for name, offsets, end in zip(ARRAYS[1:], arrays[1:], (*lengths[:1], counts["sentences"]), strict=True):
        if offsets[0] != 0 or offsets[-1] != end or (whole and not ascending(offsets)):
            found = f"offsets from {offsets[0]:,} to {offsets[-1]:,}"
            _refuse(path / f"{split}.{name}.npy", found, f"offsets that ascend from 0 to {end:,}")
    return arrays


def ascending(offsets: np.ndarray) -> bool:
    """Whether every offset is larger than the one before it."""
    return bool((offsets[1:] > offsets[:-1]).all())


def read_token_counts(path: pathlib.Path, shard: JsonObject, vocabulary_size: int) -> np.ndarray:
    """int64 [V]: the frequency of each token in the train split of the shard in `path`. Raises CorruptedCorpus unless the counts
    are not negative and sum to the number of tokens."""
    counts = _array(path / TOKEN_COUNTS, np.dtype(np.int64), vocabulary_size)
    tokens = shard["splits"]["train"]["tokens"]
    if counts.min() < 0 or counts.sum() != tokens:
        found = f"counts from {counts.min():,} that sum to {counts.sum():,}"
        _refuse(path / TOKEN_COUNTS, found, f"counts from 0 that sum to {tokens:,}")
    return counts


def _array(file: pathlib.Path, dtype: np.dtype, length: int) -> np.ndarray:
    try:
        array = arrays.map_array(file)
    except (OSError, ValueError, EOFError) as error:
        _refuse(file, f"no array ({error})", f"{counted(length, 'number')} of type {dtype}")
    if array.dtype != dtype or array.shape != (length,):
        _refuse(file, f"an array of shape {array.shape} and type {array.dtype}", f"{counted(length, 'number')} of type {dtype}")
    return array


def check_mapped(array: np.ndarray) -> None:
    """Raises CorruptedCorpus if the file of a memory-mapped array, or of a view of one, has become shorter since it was opened.

    Reading the missing part would end the process with "Bus error" and no other word. Takes 1 us.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and mapped.size() < len(mapped):
        file = pathlib.Path(array.filename)  # type: ignore[attr-defined]
        raise CorruptedCorpus(
            f"corrupted corpus: {file} was cut to {counted(mapped.size(), 'byte')} while it was in use, from {len(mapped):,}: "
            f"another program has written over it; {remedy(file)}"
        )


def check_sizes(path: pathlib.Path, listed: Mapping[str, JsonObject]) -> None:
    """Raises CorruptedCorpus unless every file of the shard in `path` exists with the recorded size."""
    for name, facts in listed.items():
        file = path / name
        if not file.is_file():
            raise CorruptedCorpus(f"corrupted corpus: {file} is missing; {remedy(file)}")
        if (size := file.stat().st_size) != facts["bytes"]:
            raise CorruptedCorpus(
                f"corrupted corpus: {file} has {counted(size, 'byte')} instead of {facts['bytes']:,}; {remedy(file)}"
            )


def remedy(file: pathlib.Path) -> str:
    """The remedy for a damaged file of a shard, for an error message."""
    shard = file.parent
    return f"remove {shard} and {shard.parent / MANIFEST}, and run the command that built it again: only this shard is rebuilt"


def _refuse(file: pathlib.Path, found: str, expected: str) -> NoReturn:
    raise CorruptedCorpus(f"corrupted corpus: {file} holds {found}; expected {expected}; {remedy(file)}")


def corpus_tokenizer(directory: pathlib.Path, recorded: JsonObject | None) -> Tokenizer:
    """The tokenizer in the `directory` of a corpus. Raises CorruptedCorpus if its vocabulary differs from `recorded`, that of the
    manifest: its ids would stand for other pieces."""
    names = {field.name for field in dataclasses.fields(VocabularyInfo)}
    try:
        expected = VocabularyInfo(**(recorded or {}))
    except TypeError:
        _refuse_manifest(directory.parent / MANIFEST, f'"vocabulary" is {str(recorded)[:80]}', ", ".join(sorted(names)))
    advice = (
        f"copy {directory} again from where the corpus was built; for another vocabulary, build a corpus with it in another "
        "--output"
    )
    whose = f"the vocabulary that the text was tokenised with (sha256 {str(expected.sha256)[:12]}...)"
    try:
        tokenizer = load_tokenizer(directory)
    except UserError as error:
        raise CorruptedCorpus(f"corrupted corpus: {directory} does not hold {whose}: {error}. Or {advice}") from error
    found = tokenizer.vocabulary
    if found.sha256 != expected.sha256:
        raise CorruptedCorpus(
            f"corrupted corpus: {directory} holds the vocabulary with sha256 {found.sha256[:12]}...; expected {whose}; {advice}"
        )
    if found != expected:
        name = next(name for name in sorted(names) if getattr(found, name) != getattr(expected, name))
        raise CorruptedCorpus(
            f"corrupted corpus: {directory} says {name}={getattr(found, name)}; expected {getattr(expected, name)}, as the text "
            f"was tokenised; {advice}"
        )
    return tokenizer
