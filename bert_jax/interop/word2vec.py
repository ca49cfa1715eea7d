"""Writes word vectors in word2vec's text format, and reads the formats of published word vectors.

An export has `vectors.txt` and the files of the tokenizer. The first line of `vectors.txt` has the number of words and the
width. Each further line has a word and its vector, separated by spaces. Numbers have nine significant digits, which is enough
to restore the float32 exactly.

An import reads the same format (also fastText's `.vec`), the same format without its first line (GloVe), or word2vec's binary
format. If GloVe's program wrote the first line, the file may have one more word, <unk>. The binary format has the same first
line, and for each word its bytes, a space, and its vector as little-endian float32. All files may be compressed with gzip,
bzip2, xz or zstd. They are read as a stream, into one table."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np
from jaxtyping import Float32

from bert_jax import __version__
from bert_jax.data.tokenizers.tokenizer import CONFIG_FILE, Tokenizer, infer_casing, load_tokenizer
from bert_jax.data.tokenizers.tokenizer_files import SPECIAL_NAMES, vocabulary_files
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import UserError
from bert_jax.files import read_object, write_json
from bert_jax.interface.words import counted
from bert_jax.interop.directory import OURS, replaced_when_complete
from bert_jax.interop.huggingface import Model
from bert_jax.interop.locate import VECTORS
from bert_jax.interop.weights import check_finite, read_start
from bert_jax.model.config import ModelConfig
from bert_jax.storage.formats import (
    COMPRESSIONS,
    UNREADABLE,
    bare_name,
    conversion,
    open_packed,
    recognise,
    unicode_encoding,
)
from bert_jax.storage.records import without_bom

FASTTEXT = b"\xba\x16\x4f\x2f"
"""The first bytes of a fastText model, whose `.bin` format differs from word2vec's."""
LARGEST_RATIO = 1100
"""The highest compression ratio of gzip, rounded up. A header is wrong if the words that it states could not fit in the file
with this ratio."""
WIDEST = 1 << 16
_LONGEST_WORD, _LONGEST_LINE, _BLOCK = 1 << 14, 1 << 21, 1 << 20
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_LINE_ENDS = re.compile(rb"\n*+\Z")
_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2}")
_AGAIN = "copy the whole file again"
_UNCOUNTED = "<unk>"
"""The word that GloVe's program adds to the end of a text file. The first line does not count it."""


def export_word2vec(directory: pathlib.Path, model: Model, *, card: str = "") -> None:
    """Writes the word vectors of a static model, without the context vectors and counts of its training. `card` is the text of
    the model card. Raises UserError if the model is not static, or if a piece is empty or has a space in it."""
    if not model.config.kind.is_static:
        raise UserError(f"{model.source} has layers, but word2vec's format only holds one vector per word; name a static model")
    table = np.asarray(model.params["embeddings"]["word_embeddings"]["embedding"], np.float32)[: model.tokenizer.size]
    check_finite({"word vectors": table}, f"nothing is written to {directory}: {{found}}; the model is unusable")
    for piece in model.tokenizer.pieces:
        if piece.split() != [piece]:
            fault = "has spaces" if piece else "is empty"
            raise UserError(f"the piece {piece!r} {fault}, which word2vec's format cannot hold; choose another format")
    with replaced_when_complete(directory, "word2vec", card) as incomplete:
        with (incomplete / VECTORS[0]).open("w", encoding="utf-8") as file:
            file.write(f"{len(table)} {table.shape[1]}\n")
            for row, piece in enumerate(model.tokenizer.pieces):
                file.write(f"{piece} {' '.join(f'{x:.9g}' for x in table[row].tolist())}\n")
        model.tokenizer.save(incomplete)
        settings = read_object(incomplete / CONFIG_FILE)
        ours = {"version": __version__, "vocabulary_sha256": model.tokenizer.vocabulary.sha256}
        write_json(incomplete / CONFIG_FILE, settings | {OURS: ours})


def find_vectors(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the file of word vectors at `path`: `path` itself, or one of VECTORS in a directory without a config.json. Returns
    None if there is none."""
    if path.is_dir():
        found = next((path / name for name in VECTORS if (path / name).is_file()), None)
        return None if (path / "config.json").exists() else found
    if not path.is_file():
        return None
    if pathlib.PurePath(bare_name(path.name)).suffix in (".vec", ".w2v") or path.name in VECTORS:
        return path
    try:  # other files are only used if they start like word vectors
        _read_form(path)
    except _NotVectors:
        return None
    except UserError:
        pass  # the file has word vectors with a fault, which is reported when it is read
    return path


def import_word2vec(path: pathlib.Path, *, vocabulary: pathlib.Path | None = None, lowercase: bool | None = None) -> Model:
    """Returns a static model with the word vectors at `path`. `path` is a file or directory in which `find_vectors` finds a
    file.

    If `vocabulary` is given, or if the directory has a tokenizer, the pieces of this vocabulary must be words of the file, in
    any order. Otherwise, all words of the file become the vocabulary. A special token that is missing in the file gets the mean
    of all vectors. If the file is wrong, raises a UserError that names the line or word. Also raises UserError if a piece has
    no vector."""
    file = find_vectors(path)
    assert file is not None, path
    found = vocabulary or (path if path.is_dir() and vocabulary_files(path) else None)
    if found is None:
        words, table, notes = read_vectors(file, room=len(SPECIAL_NAMES))
        tokenizer, table = _with_specials(words, table, lowercase)
        casing = "lower-cased" if tokenizer.vocabulary.lowercase else "cased"
        notes = (f"the words of the file are the vocabulary, {casing}; --vocab=PATH chooses another vocabulary", *notes)
    else:
        remedy = "" if vocabulary else f", or give the file itself to use its words as the vocabulary (--from={file})"
        try:
            tokenizer = load_tokenizer(found, lowercase=lowercase)
        except UserError as error:
            raise UserError(f"{error}{remedy}") from error
        words, table, notes = read_vectors(file, tokenizer.pieces)
        special = {tokenizer.pieces[i] for i in tokenizer.special_ids}
        there = set(words)
        if missing := [piece for piece in tokenizer.pieces if piece not in there and piece not in special]:
            raise UserError(
                f"{file} has no vector for {counted(len(missing), 'piece')} of the vocabulary, such as {missing[0]!r};"
                f" give the vocabulary that the vectors were trained with{remedy}"
            )
        mean = table.mean(0, dtype=np.float64).astype(np.float32)
        rows = iter(table)  # the rows are in the order of the pieces
        table = np.stack([next(rows) if piece in there else mean for piece in tokenizer.pieces])
        notes = (*tokenizer.notes, *notes)
    return Model(
        params={"embeddings": {"word_embeddings": {"embedding": table}}},
        config=ModelConfig(encoder="static", num_layers=0, vocab_size=tokenizer.size, hidden_size=table.shape[1]),
        tokenizer=tokenizer,
        source=str(path),
        notes=notes,
    )


def read_vectors(
    path: pathlib.Path, wanted: Sequence[str] | None = None, *, room: int = 0
) -> tuple[list[str], Float32[np.ndarray, "V D"], tuple[str, ...]]:
    """Returns (words, vectors, clauses that report what was left out). The vectors start with `room` rows without values.

    If `wanted` is given, only the vectors of these words are kept in memory, and they are returned in the order of `wanted`. If
    a word occurs several times in the file, its first vector is used. If `wanted` has the word twice, its first two vectors are
    used. If a line or a word is wrong, raises a UserError that names it."""
    form = _read_form(path)
    stated = count = form.count or _count_lines(path)
    may_end_in_unknown = form.count is not None and not form.is_binary
    places: dict[str, list[int]] = {}
    for place, piece in reversed(list(enumerate(wanted or ()))):
        places.setdefault(piece, []).append(place)
    try:
        table = np.empty((room + (count + may_end_in_unknown if wanted is None else len(wanted)), form.width), np.float32)
    except MemoryError as error:
        raise UserError(
            f"{path} has {counted(count, 'word')} of width {form.width:,}, which do not fit in memory; give --vocab=PATH with "
            "the words that you need"
        ) from error
    row_of: dict[str, int] = {}
    seen, twice, spaced, odd = 0, [], 0, 0
    for number, word, vector in _rows(path, form):
        seen += 1
        if may_end_in_unknown and seen == stated + 1 and word == _UNCOUNTED:
            count = seen
        if not np.isfinite(vector).all():
            raise UserError(f"{path}: {number} must be a word and {form.width} finite numbers; export the vectors again")
        if word is None:
            odd += 1
        elif wanted is not None:
            if word in row_of and not places[word]:
                twice.append(word)
            elif word in places:
                row_of[word] = row_of.get(word, places[word][-1])
                table[room + places[word].pop()] = vector
        elif word in row_of:
            twice.append(word)
        elif word.split() != [word]:
            spaced += 1
        elif seen <= count:
            table[room + len(row_of)] = vector
            row_of[word] = len(row_of)
    if wanted is None and not row_of:
        raise UserError(
            f"{path} has no word that can be a piece ({counted(spaced, 'word')} with spaces, {odd:,} that are not UTF-8); export "
            "the vectors again"
        )
    if seen != count:
        raise UserError(f"{path} has {counted(seen, 'word')}, but its first line states {stated:,}; {_AGAIN}")
    left = 0
    if wanted is not None:
        unfilled = {place: piece for piece, several in places.items() for place in several}
        left = seen - (len(wanted) - len(unfilled)) - len(twice)
        for place, piece in unfilled.items():
            if piece in row_of:  # `wanted` has the word more often than the file
                table[room + place] = table[room + row_of[piece]]
        found = [place for place, piece in enumerate(wanted) if piece in row_of]
        words, table = [wanted[place] for place in found], table if len(found) == len(wanted) else table[found]
    else:
        words, table = list(row_of), table[: room + len(row_of)]
    notes = [f"left out the vectors of {counted(left, 'word')} that are not in the vocabulary"] if left else []
    if twice:
        notes.append(f"left out {counted(len(twice), 'vector')} of repeated words, such as {twice[0]!r}")
    notes += [f"left out {counted(spaced, 'word')} with spaces, because no piece can have a space"] if spaced else []
    notes += [f"left out {counted(odd, 'word')} with invalid UTF-8"] if odd else []
    return words, table, tuple(notes)


def _count_lines(path: pathlib.Path) -> int:
    with _opened(path) as file:
        return sum(1 for line in _guarded(path, file) if line.strip())


class _NotVectors(UserError):
    """Raised if a file does not start like word vectors."""


@dataclasses.dataclass(frozen=True)
class _Form:
    """The format of a file of vectors, which the beginning of the file shows."""

    count: int | None
    """The number of words. None if the first line of the file does not state it."""
    width: int
    is_binary: bool


def _read_form(path: pathlib.Path) -> _Form:
    """Returns the format of the vectors in a file. Raises _NotVectors if the file does not start like word vectors, and
    UserError if its first line cannot be right."""
    start = read_start(path)
    if start.startswith(FASTTEXT):
        raise UserError(f"{path} is a model of fastText, not vectors in word2vec's format; take the .vec file of that model")
    if unicode_encoding(start):
        raise UserError(f"{path} is not UTF-8{conversion(start)}")
    with _opened(path) as file:
        blocks = _guarded(path, (file.readline(_LONGEST_LINE) for _ in range(2)))
        first, second = next(blocks), next(blocks)
    fields = without_bom(first).split()
    if len(fields) == 2 and all(re.fullmatch(rb"[0-9]+", field) for field in fields):
        named = " ".join(field.decode()[:20] for field in fields)
        is_binary = bool(_BINARY.search(second)) or (".bin" in path.suffixes and not _are_numbers(second.split()[1:]))
        size = path.stat().st_size * (LARGEST_RATIO if _packed(path) else 1)
        count, width = (int(field) if len(field) < 13 else 10**12 for field in fields)
        least = 4 * width + 1 if is_binary else 2 * width + 1  # the fewest bytes of a word and its vector
        if not (1 <= width <= WIDEST and count >= 1 and count * least <= size):
            raise UserError(
                f"{path}: line 1 must have the word count and the width (at most {WIDEST:,}), such as 8192 300, but {named} "
                f"does not fit into the {counted(path.stat().st_size, 'byte')} of the file; {_AGAIN}"
            )
        return _Form(count, width, is_binary)
    if len(fields) >= 3 and _are_numbers(fields[1:]) and any(not field.isdigit() for field in fields[1:]):
        return _Form(None, len(fields) - 1, False)
    raise _NotVectors(
        f"{path}: line 1 must have the word count and the width, such as 8192 300, or a word and its vector; export the file "
        "again"
    )


def _are_numbers(fields: Sequence[bytes]) -> bool:
    try:
        return bool([float(field) for field in fields])
    except ValueError:
        return False


def _rows(path: pathlib.Path, form: _Form) -> Iterator[tuple[str, str | None, Float32[np.ndarray, " D"]]]:
    """Yields (place, word, vector) for each vector. The place is a text for error messages, such as "line 7". The word is None
    if it is not UTF-8."""
    with _opened(path) as file:
        if form.count is not None:
            file.readline()
        yield from (_binary_rows if form.is_binary else _text_rows)(path, file, form)


def _text_rows(
    path: pathlib.Path, file: IO[bytes], form: _Form
) -> Iterator[tuple[str, str | None, Float32[np.ndarray, " D"]]]:
    for number, line in enumerate(_guarded(path, file), 1 if form.count is None else 2):
        line = without_bom(line) if number == 1 else line
        if not line.strip():
            continue
        word, *numbers = line.rsplit(None, form.width)
        try:
            with np.errstate(over="ignore"):
                vector = np.array([float(x) for x in numbers], np.float32)
        except ValueError:
            vector = np.full(form.width, np.nan, np.float32)
        last = word.split()[-1:] if len(word.split()) > 1 else []
        wrong = len(numbers) != form.width or _are_numbers(last)  # there is one number too few or too many
        if wrong or (b"_" in line and any(b"_" in x for x in numbers)):  # `float` also reads 1_0
            vector = np.full(form.width, np.nan, np.float32)
        try:
            yield f"line {number}", word.decode().lstrip(string.whitespace), vector
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: line {number} is not UTF-8 at byte {error.start + 1}{conversion(b'')}"
            ) from error


def _binary_rows(
    path: pathlib.Path, file: IO[bytes], form: _Form
) -> Iterator[tuple[str, str | None, Float32[np.ndarray, " D"]]]:
    size, buffer, at = 4 * form.width, b"", 0
    blocks = _guarded(path, iter(lambda: file.read(max(_BLOCK, 2 * size)), b""))
    for number in itertools.count(1):
        while len(buffer) - at < _LONGEST_WORD + size and (block := next(blocks, b"")):
            buffer, at = buffer[at:] + block, 0
        if _LINE_ENDS.match(buffer, at):  # a slice would copy the rest of the buffer for each word
            return
        end = buffer.find(b" ", at, at + _LONGEST_WORD)
        if end < 0 or end + 1 + size > len(buffer):
            if form.count is not None and number > form.count:
                raise UserError(f"{path} continues after the {counted(form.count, 'word')} that its first line states; {_AGAIN}")
            raise UserError(f"{path} is damaged or incomplete at word {number:,} of {form.count:,}; {_AGAIN}")
        try:
            word: str | None = buffer[at:end].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            word = None
        yield f"word {number}", word, np.frombuffer(buffer, "<f4", form.width, end + 1)
        at = end + 1 + size


def _packed(path: pathlib.Path) -> str:
    """Returns the suffix of a file's compression, such as ".gz", or "" if it is not compressed. The compression is recognised
    by the first bytes of the file, so the name may have any suffix."""
    found = recognise(read_start(path))
    return next((suffix for suffix, name in COMPRESSIONS.items() if found and found.kind == name), "")


def _opened(path: pathlib.Path) -> IO[bytes]:
    return open_packed(path, f"vectors{_packed(path)}")


def _guarded(path: pathlib.Path, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the blocks of a file that may be damaged. Converts the errors of decompression to a UserError."""
    try:
        yield from blocks
    except (*UNREADABLE, ValueError) as error:
        raise UserError(f"{path} cannot be read to its end ({error}); {_AGAIN}") from error


def _with_specials(
    words: list[str], table: Float32[np.ndarray, "R D"], lowercase: bool | None
) -> tuple[Tokenizer, Float32[np.ndarray, "V D"]]:
    """Returns (a tokenizer, the vectors of its pieces). The pieces are the special tokens that `words` lacks, followed by
    `words`. `table` starts with a row without values for each special token. The vectors of the words follow."""
    there = set(words)
    absent = [names[0] for names in SPECIAL_NAMES.values() if not there & set(names)]
    certain, _ = infer_casing(words)
    if lowercase is None:
        lowercase = certain if certain is not None else all(word == word.lower() for word in words)
    foreign = (word for word in words if not word.isascii())
    accents = any(unicodedata.category(mark) == "Mn" for word in foreign for mark in unicodedata.normalize("NFD", word))
    model = WordPiece(
        [*absent, *words],
        lowercase=lowercase,
        strip_accents=False if accents else None,
        split_cjk=not any(_IDEOGRAPHS.search(word) for word in words),
        unknown=next(name for name in SPECIAL_NAMES["unk"] if name in there or name in absent),
    )
    room = len(SPECIAL_NAMES)
    table[:room] = table[room:].mean(0, dtype=np.float64)
    return Tokenizer(model), table[room - len(absent) :]
