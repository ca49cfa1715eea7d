"""Word vectors in word2vec's text format, with the files of the tokenizer beside them.

`vectors.txt`: a line with the number of words and the width, then a line for each word: the word and its vector, with spaces
between. Numbers have nine significant digits, from which float32 is read back exactly.
"""

from __future__ import annotations

import pathlib

import numpy as np
from jaxtyping import Float32

from bert_jax.corpus.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.directory import replaced_when_complete
from bert_jax.interop.huggingface import FILES, Model
from bert_jax.interop.weights import check_finite
from bert_jax.model.config import ModelConfig

VECTORS = "vectors.txt"


def export_word2vec(directory: pathlib.Path, model: Model) -> None:
    """Writes the word vectors of a static model; the context vectors and counts of its training are left out. Raises UserError
    for a model with layers, and for a word with a space in it."""
    if model.config.encoder != "static":
        raise UserError(f"{model.source} has layers, and word2vec's format holds a vector per word; name a static model")
    table = np.asarray(model.params["embeddings"]["word_embeddings"]["embedding"], np.float32)[: model.tokenizer.size]
    check_finite({"word vectors": table}, f"nothing is written to {directory}: {{found}}; the model is unusable")
    for piece in model.tokenizer.pieces:
        if piece.split() != [piece]:
            fault = "has spaces" if piece else "is empty"
            raise UserError(f"the piece {piece!r} {fault}, which word2vec's format cannot hold; choose another format")
    with replaced_when_complete(directory, is_ours=holds_word2vec, format_files=(*FILES, VECTORS)) as incomplete:
        with (incomplete / VECTORS).open("w", encoding="utf-8") as file:
            file.write(f"{len(table)} {table.shape[1]}\n")
            for row, piece in enumerate(model.tokenizer.pieces):
                file.write(f"{piece} {' '.join(f'{x:.9g}' for x in table[row].tolist())}\n")
        model.tokenizer.save(incomplete)


def holds_word2vec(directory: pathlib.Path) -> bool:
    """Whether `directory` has vectors in word2vec's text format and no model in another one."""
    return (directory / VECTORS).is_file() and not (directory / "config.json").exists()


def import_word2vec(directory: pathlib.Path, *, vocabulary: pathlib.Path | None = None, lowercase: bool | None = None) -> Model:
    """The static model of the vectors in `directory`, for the tokenizer there or that of `vocabulary`, whose pieces are the words
    of the file in any order. Raises UserError naming the line of what is no vector, and the pieces without one."""
    tokenizer = load_tokenizer(vocabulary or directory, lowercase=lowercase)
    words, table = read_vectors(directory / VECTORS)
    row_of = {word: row for row, word in enumerate(words)}
    if missing := [piece for piece in tokenizer.pieces if piece not in row_of]:
        raise UserError(
            f"{directory / VECTORS} has no vector for {counted(len(missing), 'piece')} of the vocabulary, such as {missing[0]!r};"
            " give the vocabulary that the vectors were trained with"
        )
    ordered = table[[row_of[piece] for piece in tokenizer.pieces]]
    config = ModelConfig(encoder="static", num_layers=0, vocab_size=tokenizer.size, hidden_size=table.shape[1])
    left = len(words) - tokenizer.size
    return Model(
        params={"embeddings": {"word_embeddings": {"embedding": ordered}}},
        config=config,
        tokenizer=tokenizer,
        source=str(directory),
        notes=(f"vectors of {counted(left, 'word')} that the vocabulary lacks were left out",) if left else (),
    )


def read_vectors(path: pathlib.Path) -> tuple[list[str], Float32[np.ndarray, "V D"]]:
    """(the words of a file in word2vec's text format, their vectors). Raises UserError naming the line that is wrong."""
    with path.open(encoding="utf-8") as file:
        header = file.readline().split()
        if len(header) != 2 or not all(number.isdecimal() for number in header) or "0" in header:
            raise UserError(f"{path}: line 1 must be the number of words and the width, as in 8192 300; export the file again")
        count, width = (int(number) for number in header)
        words, rows = [], []
        for number, line in enumerate(file, 2):
            word, *values = line.rstrip("\n").rstrip(" ").split(" ")
            try:
                vector = np.array(values, np.float32)
            except ValueError:
                vector = np.full(len(values), np.nan, np.float32)
            if len(values) != width or not np.isfinite(vector).all():
                raise UserError(f"{path}: line {number} must be a word and {width} finite numbers; export the vectors again")
            words.append(word)
            rows.append(vector)
    if len(words) != count:
        raise UserError(f"{path} has {counted(len(words), 'word')}, and its first line says {count:,}; copy the whole file again")
    return words, np.stack(rows)
