"""Published word vectors in all their formats, and files that are not word vectors."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop import word2vec
from bert_jax.interop.conversion import load_model
from bert_jax.interop.huggingface import import_model
from bert_jax.interop.locate import find_model_directory
from bert_jax.interop.word2vec import find_vectors, import_word2vec, read_vectors
from tests.compressed import PACK

WORDS = ["the", "of", "paris", "café", "river", "北京"]
TABLE = np.random.default_rng(3).standard_normal((len(WORDS), 5), np.float32)


def text(words: list[str] = WORDS, table: np.ndarray = TABLE, *, header: bool = True, end: str = "\n") -> bytes:
    """Returns a file in word2vec's text format. `header=False` makes it GloVe's, and a space in `end` makes it fastText's."""
    lines = [f"{len(words)} {table.shape[1]}"] if header else []
    lines += [f"{word} {' '.join(f'{x:.9g}' for x in row)}" for word, row in zip(words, table, strict=True)]
    return "".join(f"{line}{end}" for line in lines).encode()


def binary(words: list[str] = WORDS, table: np.ndarray = TABLE, *, end: bytes = b"\n", encoding: str = "utf-8") -> bytes:
    """Writes word2vec's binary format; published files have a newline after each vector, or none."""
    rows = (word.encode(encoding) + b" " + row.astype("<f4").tobytes() + end for word, row in zip(words, table, strict=True))
    return f"{len(words)} {table.shape[1]}\n".encode() + b"".join(rows)


FORMATS = {
    "vectors.txt": text(),
    "windows.txt": text(end="\r\n"),
    "glove.6B.5d.txt": text(header=False),
    "two_marks.txt": b"\xef\xbb\xbf" * 2 + text(header=False),
    "wiki.fr.vec": text(end=" \n"),
    "GoogleNews.bin": binary(),
    "no_line_ends.bin": binary(end=b""),
    "GoogleNews.bin.gz": gzip.compress(binary(), mtime=0),
    "glove.txt.gz": gzip.compress(text(header=False), mtime=0),
    "wiki.vec.bz2": bz2.compress(text()),
    "vectors.bin.xz": lzma.compress(binary()),
    "a_binary_of_another_name": binary(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_published_vectors_are_read_bit_for_bit_in_every_format(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    words, table, notes = read_vectors(tmp_path / name)
    assert (words, notes) == (WORDS, ())
    np.testing.assert_array_equal(table, TABLE)
    model = load_model(tmp_path / name)
    assert model.tokenizer.pieces == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vectors = model.params["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(vectors[5:], TABLE)
    np.testing.assert_allclose(vectors[:5], np.tile(TABLE.mean(0), (5, 1)), rtol=1e-6)


def test_a_word_may_cross_blocks_of_a_file(tmp_path):
    words = [f"{'long' * 2000}{k}" for k in range(300)]  # 2.4 megabytes
    table = np.random.default_rng(4).standard_normal((len(words), 5), np.float32)
    (tmp_path / "v.bin").write_bytes(binary(words, table))
    found, vectors, _ = read_vectors(tmp_path / "v.bin")
    assert found == words
    np.testing.assert_array_equal(vectors, table)


def test_empty_lines_are_ignored_in_a_file_without_header(tmp_path):
    (tmp_path / "glove.txt").write_bytes(text(header=False).replace(b"\nriver", b"\n\nriver") + b"\n \n")
    words, table, notes = read_vectors(tmp_path / "glove.txt")
    assert (words, notes) == (WORDS, ())
    np.testing.assert_array_equal(table, TABLE)


@pytest.mark.parametrize("name", ["vectors.bin", "vectors.vec.gz", "vectors.txt.gz"])
def test_a_given_vocabulary_selects_the_words(tmp_path, name):
    content = text() if ".bin" not in name else binary()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nriver\nthe\n")
    model = import_word2vec(tmp_path, lowercase=True)
    vectors = model.params["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(vectors[5:], TABLE[[4, 0]])
    np.testing.assert_allclose(vectors[0], TABLE[[0, 4]].mean(0), rtol=1e-6)
    assert model.notes == ("left out the vectors of 4 words that are not in the vocabulary",)
    with pytest.raises(UserError, match=r"holds vectors\.\S+; convert it first: python -m bert_jax\.convert --from="):
        find_model_directory(tmp_path)


def test_convert_makes_a_model_of_vectors_for_other_commands(tmp_path, capsys):
    (tmp_path / "v.bin.gz").write_bytes(FORMATS["GoogleNews.bin.gz"])
    convert.main([f"--from={tmp_path / 'v.bin.gz'}", f"--to={tmp_path / 'm'}"])
    out = capsys.readouterr().out
    assert "the words of the file are the vocabulary, lower-cased; --vocab=PATH chooses another vocabulary" in out
    model = import_model(tmp_path / "m")
    encoded = model.tokenizer.encode("The river 北京 CAFÉ")
    assert model.tokenizer.tokens(encoded) == ["the", "river", "北京", "café"]
    convert.main([f"--from={tmp_path / 'm'}", f"--to={tmp_path / 'back'}", "--format=word2vec"])
    words, table, _ = read_vectors(tmp_path / "back" / "vectors.txt")
    np.testing.assert_array_equal(table[words.index("the") :], TABLE)
    convert.main([f"--from={tmp_path / 'back'}", f"--to={tmp_path / 'again'}"])
    assert import_model(tmp_path / "again").tokenizer.vocabulary == model.tokenizer.vocabulary


def test_words_with_capitals_make_a_cased_vocabulary_unless_a_flag_decides(tmp_path):
    (tmp_path / "v.txt").write_bytes(text(["The", *WORDS[1:]]))
    assert not import_word2vec(tmp_path / "v.txt").tokenizer.vocabulary.lowercase
    assert import_word2vec(tmp_path / "v.txt", lowercase=True).tokenizer.vocabulary.lowercase
    (tmp_path / "v.txt").write_bytes(text())
    assert import_word2vec(tmp_path / "v.txt").tokenizer.vocabulary.lowercase
    assert not import_word2vec(tmp_path / "v.txt", lowercase=False).tokenizer.vocabulary.lowercase


def test_words_that_cannot_be_pieces_are_left_out_and_counted(tmp_path):
    words = [". . .", "of", "the", "of", "new\u00a0york", "[UNK]", "\u00a0paris"]  # only ASCII spaces separate fields
    (tmp_path / "v.txt").write_bytes(text(words, np.vstack([TABLE, TABLE[:1]])))
    found, table, notes = read_vectors(tmp_path / "v.txt")
    assert found == ["of", "the", "[UNK]"]
    np.testing.assert_array_equal(table, TABLE[[1, 2, 5]])
    assert notes == (
        "left out 1 vector of repeated words, such as 'of'",
        "left out 3 words with spaces, because no piece can have a space",
    )
    model = import_word2vec(tmp_path / "v.txt")
    assert model.tokenizer.pieces == ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "of", "the", "[UNK]"]
    np.testing.assert_array_equal(model.params["embeddings"]["word_embeddings"]["embedding"][4:], table)
    (tmp_path / "v.bin").write_bytes(binary(["é", *WORDS[1:3]], TABLE[:3], encoding="latin-1"))
    assert read_vectors(tmp_path / "v.bin")[0] == WORDS[1:3]
    assert read_vectors(tmp_path / "v.bin")[2] == ("left out 1 word with invalid UTF-8",)


def test_the_unknown_word_that_gloves_program_does_not_count_is_read(tmp_path):
    words = [*WORDS[:5], "<unk>"]
    (tmp_path / "v.txt").write_bytes(spoilt(text(words), b"6 5", b"5 5"))
    assert read_vectors(tmp_path / "v.txt")[0] == words
    np.testing.assert_array_equal(read_vectors(tmp_path / "v.txt")[1], TABLE)
    np.testing.assert_array_equal(read_vectors(tmp_path / "v.txt", ["<unk>", "of"])[1], TABLE[[5, 1]])
    for refused in (binary(words), text([*words, "more"], np.ones((7, 5)))):
        (tmp_path / "v.bin").write_bytes(re.sub(b"^. 5", b"5 5", refused))
        with pytest.raises(UserError, match=r"has [67] words, but its first line states 5"):
            read_vectors(tmp_path / "v.bin")


@pytest.mark.parametrize(("there", "says"), [("the 9\n", "has no .PAD."), (None, "no vector for 4 pieces")])
def test_an_unfit_vocabulary_next_to_the_vectors_can_be_left_out(tmp_path, there, says):
    """GloVe's program writes vocab.txt with the count of each word."""
    (tmp_path / "vectors.txt").write_bytes(text())
    (tmp_path / "vocab.txt").write_text(there or "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\na\nb\nc\nd\n")
    with pytest.raises(UserError, match=rf"{says}.*, or give the file itself .* \(--from=\S+vectors\.txt\)$"):
        import_word2vec(tmp_path, lowercase=True)
    assert set(WORDS) < set(import_word2vec(tmp_path / "vectors.txt").tokenizer.pieces)


def test_a_repeated_piece_gets_its_vector_twice(tmp_path):
    (tmp_path / "v.vec").write_bytes(text(["a", "b", "a", "c", "a"], TABLE[:5]))
    words, table, notes = read_vectors(tmp_path / "v.vec", ["c", "a", "b", "a", "x"])
    assert words == ["c", "a", "b", "a"]
    np.testing.assert_array_equal(table, TABLE[[3, 0, 1, 2]])
    assert notes == ("left out 1 vector of repeated words, such as 'a'",)
    words, table, notes = read_vectors(tmp_path / "v.vec", ["b", "a", "b"])
    np.testing.assert_array_equal(table, TABLE[[1, 0, 1]])
    assert notes[0] == "left out the vectors of 1 word that are not in the vocabulary"
    (tmp_path / "twice.vec").write_bytes(text(["a", "b", "a"], TABLE[:3]))
    _, table, _ = read_vectors(tmp_path / "twice.vec", ["a", "a", "b", "a", "a"])
    np.testing.assert_array_equal(table, TABLE[[0, 2, 1, 0, 0]], err_msg="further ones have the first")


def spoilt(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("v.vec", text().decode().encode("latin-1", "ignore"), r"line 5 is not UTF-8 at byte 4; convert it \(iconv -f"),
        ("v.vec", spoilt(text(), b"6 5", b"7 5"), r"v\.vec has 6 words, but its first line states 7; copy the whole file again"),
        ("v.vec", spoilt(text(), b"6 5", b"5 5"), r"v\.vec has 6 words, but its first line states 5"),
        ("v.vec", spoilt(text(), b"6 5", b"6 4"), r"line 2 must be a word and 4 finite numbers; export the vectors again"),
        ("v.vec", spoilt(text(), b"6 5", b"6 6"), r"line 2 must be a word and 6 finite numbers"),
        ("v.vec", spoilt(text(header=False), b"\nof ", b"\nof 1 "), r"line 2 must be a word and 5 finite numbers"),
        ("v.vec", spoilt(text(), b"the ", b"the nan "), r"line 2 must be a word and 5 finite numbers"),
        ("v.vec", spoilt(text(), b"6 5", b"6 " + b"9" * 5000), r"but 6 99999999999999999999 does not fit .* 5,407 bytes"),
        ("v.vec", spoilt(text(), b"6 5", b"9" * 5000 + b" 5"), r"line 1 must have the word count .* but 9999"),
        ("v.vec", spoilt(text(), b"6 5", b"999999999 5"), r"but 999999999 5 does not fit .* \d+ bytes .*; copy the whole"),
        ("v.vec", spoilt(text(), b"6 5", b"0 5"), r"line 1 must have the word count"),
        ("v.vec", spoilt(text(), b"6 5", b"6 0"), r"line 1 must have the word count"),
        ("v.vec", spoilt(text(), b"6 5", b"-6 5"), r"line 1 must have the word count"),
        ("v.vec", b"", r"line 1 must have the word count"),
        ("v.vec", b"\n" + text(), r"line 1 must have the word count"),
        ("v.bin", binary()[:-30], r"v\.bin is damaged or incomplete at word 5 of 6; copy"),
        ("v.bin", binary()[:-21], r"v\.bin is damaged or incomplete at word 6 of 6; copy the whole file again"),
        ("v.bin", binary() + b"more", r"v\.bin continues after the 6 words that its first line states; copy the whole file"),
        ("v.bin", binary() + binary()[4:], r"v\.bin has 12 words, but its first line states 6"),
        ("v.bin", spoilt(binary(), b"6 5", b"99999999 5"), r"but 99999999 5 does not fit .*; copy"),
        ("v.bin", spoilt(binary(), b"6 5", b"6 4000000"), r"at most 65,536.*but 6 4000000 does not fit"),
        ("v.bin", binary(table=np.where(TABLE[2, 2] == TABLE, np.inf, TABLE)), r"word 3 must be a word and 5 finite numbers"),
        ("v.bin.gz", gzip.compress(binary(), mtime=0)[:-20], r"v\.bin\.gz cannot be read to its end \(.*\); copy the"),
        ("v.vec.gz", gzip.compress(text(), mtime=0)[:60] + b"x" * 40, r"v\.vec\.gz(: line \d must| cannot be read)"),
        ("v.vec.xz", lzma.compress(text())[:-9], r"v\.vec\.xz cannot be read to its end"),
        *((f"v.vec{end}", pack(b"some text\n"), r"line 1 must have the word count") for end, pack in PACK.items()),
        ("v.vec", word2vec.FASTTEXT + bytes(100), r"v\.vec is a model of fastText, .*; take the \.vec file of that model"),
    ],
)
def test_damaged_vector_files_are_refused_in_one_sentence(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        convert.main([f"--from={tmp_path / name}", f"--to={tmp_path / 'm'}"])
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(50), b"{}", b"some text\nmore\n", bytes(3000), b"a b c\n", b"1 2 3\n"])
def test_other_files_are_not_vectors(tmp_path, content):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert find_vectors(tmp_path / "pytorch_model.bin") is None
    with pytest.raises(UserError, match=r"is a file; name the directory .*the file has no word vectors ei"):
        load_model(tmp_path / "pytorch_model.bin")  # `convert` does not advise `convert`
    with pytest.raises(UserError, match=r"is a file; name the directory that holds .*; a file of word"):
        find_model_directory(tmp_path / "pytorch_model.bin")


def test_compressed_vectors_that_are_named_as_a_model_must_be_converted(tmp_path):
    (tmp_path / "words.vec.gz").write_bytes(gzip.compress(b"1 2\nthe 0.5 1\n"))
    with pytest.raises(UserError, match=r"words\.vec\.gz is a file; .* must be converted first: .*--from=.*words\.vec\.gz"):
        find_model_directory(tmp_path / "words.vec.gz")


@pytest.mark.parametrize("make", [text, binary])
def test_a_file_is_streamed_in_memory_for_the_wanted_words_only(tmp_path, make: Callable[..., bytes]):
    words, table = [f"w{n}" for n in range(4000)], np.ones((4000, 100), np.float32)
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress(make(words, table)))
    tracemalloc.start()
    found, kept, _ = read_vectors(tmp_path / "v.bin.gz", ["w3999", "w7"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (sorted(found), kept.shape) == (["w3999", "w7"], (2, 100))
    assert peak < 3 * 2**20 + table.nbytes / 4 + word2vec._BLOCK


def test_a_word_of_a_binary_file_is_read_without_copying_the_block(tmp_path):
    words = [f"w{n}" for n in range(2000)]
    (tmp_path / "v.bin").write_bytes(binary(words, np.ones((2000, 100), np.float32)))
    rows = word2vec._rows(tmp_path / "v.bin", word2vec._read_form(tmp_path / "v.bin"))
    tracemalloc.start()
    assert [next(rows)[1], next(rows)[1]] == ["w0", "w1"]
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert next(rows)[1] == "w2"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 50_000 < (tmp_path / "v.bin").stat().st_size
    assert sum(1 for _ in rows) == 1997
