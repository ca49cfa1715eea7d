"""The common interface of both kinds of vocabulary: loading, casing, special tokens, saving."""

from __future__ import annotations

import gzip
import json
import pathlib
import re
from array import array

import numpy as np
import pytest
import tokenizers

from bert_jax.data.tokenizers.tokenizer import Tokenizer, infer_casing, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import UserError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def vocabulary(directory: pathlib.Path, pieces: list[str], line_end: str = "\n") -> pathlib.Path:
    path = directory / "vocab.txt"
    path.write_bytes("".join(piece + line_end for piece in pieces).encode())
    return path


def test_special_tokens_are_found_anywhere_in_the_vocabulary(tmp_path):
    tokenizer = load_tokenizer(vocabulary(tmp_path, [*LETTERS, *reversed(SPECIALS)]))
    info = tokenizer.vocabulary
    assert (info.mask_id, info.sep_id, info.cls_id, info.unk_id, info.pad_id) == (26, 27, 28, 29, 30)
    assert tokenizer.special_ids == {26, 27, 28, 29, 30}
    assert tokenizer.encode("zß") == [29]


@pytest.mark.parametrize("missing", SPECIALS)
def test_a_vocabulary_without_a_special_token_is_refused_by_name(tmp_path, missing):
    path = vocabulary(tmp_path, [*(s for s in SPECIALS if s != missing), *LETTERS])
    with pytest.raises(UserError, match=rf"no \[{missing[1:-1]}\]"):
        load_tokenizer(path)


def test_the_published_vocabularies_show_their_casing(shared_data):
    uncased = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    cased = load_tokenizer(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    assert (uncased.vocabulary.lowercase, uncased.size) == (True, 30522)
    assert (cased.vocabulary.lowercase, cased.size) == (False, 28996)
    assert uncased.tokens(uncased.encode("Unaffable Köln [MASK]")) == ["una", "##ffa", "##ble", "koln", "[", "mask", "]"]


def test_casing_that_contradicts_the_vocabulary_is_refused_with_the_flag(tmp_path):
    path = vocabulary(tmp_path, [*SPECIALS, *LETTERS])
    with pytest.raises(UserError, match=r"--cased does not fit .* no capitals; use --lowercase"):
        load_tokenizer(path, lowercase=False)
    path = vocabulary(tmp_path, [*SPECIALS, *LETTERS, "A", "B"])
    with pytest.raises(UserError, match=r"--lowercase does not fit .* 2 of its 28 pieces have capitals; use --cased"):
        load_tokenizer(path, lowercase=True)


def test_uncertain_casing_must_be_stated(tmp_path):
    path = vocabulary(tmp_path, [*SPECIALS, "中", "文"])
    with pytest.raises(UserError, match=r'--lowercase or --cased, or write \{"do_lower_case": true\} .or false. to tokenizer_'):
        load_tokenizer(path)
    assert load_tokenizer(path, lowercase=True).vocabulary.lowercase
    assert not load_tokenizer(path, lowercase=False).vocabulary.lowercase


def test_recorded_casing_takes_precedence_over_inferred_casing(tmp_path):
    vocabulary(tmp_path, [*SPECIALS, *LETTERS])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert not load_tokenizer(tmp_path).vocabulary.lowercase
    with pytest.raises(UserError, match="do_lower_case=false"):
        load_tokenizer(tmp_path, lowercase=True)


@pytest.mark.parametrize(
    ("before", "end", "after"),
    [
        ("", "\r\n", ""), ("", "\r", ""), ("\ufeff", "\n", ""), ("\ufeff" * 2, "\n", ""), ("", "\n", "\n \n"),
        ("\ufeff", "\r", "\r\r"), ("", "\n", "a\n"),
    ],
)  # fmt: skip
def test_line_ends_a_byte_order_mark_and_blank_last_lines_do_not_change_a_vocabulary(tmp_path, before, end, after):
    unix = load_tokenizer(vocabulary(tmp_path, [*SPECIALS, *LETTERS]))
    text = end.join([*SPECIALS, *LETTERS])
    path = tmp_path / "other.txt"
    path.write_bytes((before + text + end + after).encode())
    assert (load_tokenizer(path).vocabulary == unix.vocabulary) is (after != "a\n")
    path.write_bytes((before + text).encode())  # without the last newline
    assert load_tokenizer(path).vocabulary == unix.vocabulary
    assert load_tokenizer(vocabulary(tmp_path, [*SPECIALS, *reversed(LETTERS)])).vocabulary.sha256 != unix.vocabulary.sha256


def test_a_saved_tokenizer_is_the_same_when_loaded(tmp_path, tiny_cased_vocabulary, hostile_strings):
    tokenizer = load_tokenizer(tiny_cased_vocabulary, max_word_characters=100)
    tokenizer.save(tmp_path / "new" / "saved")
    again = load_tokenizer(tmp_path / "new" / "saved")
    assert again.vocabulary == tokenizer.vocabulary
    assert again.max_word_characters == 100
    assert [again.encode(text) for text in hostile_strings] == [tokenizer.encode(text) for text in hostile_strings]


def test_the_saved_rust_tokenizer_gives_the_same_ids_on_plain_text(tmp_path, tiny):
    tiny.save(tmp_path)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("Hello, world! unaffable's (mask)...", "Café 中文 naïve 123", "a" * 200, "a" * 201, ""):
        assert rust.encode(text, add_special_tokens=False).ids == tiny.encode(text)
        assert rust.encode(text).ids == [tiny.cls_id, *tiny.encode(text), tiny.sep_id]


def test_written_special_tokens_count_only_on_request(tiny):
    text = "hello [MASK]world[SEP]"
    hello, world = tiny.encode("hello"), tiny.encode("world")
    assert tiny.encode_with_specials(text) == [*hello, tiny.mask_id, *world, tiny.sep_id]
    assert tiny.encode(text) == [*hello, *tiny.encode("[MASK]"), *world, *tiny.encode("[SEP]")]
    assert tiny.mask_id not in tiny.encode(text)


def test_tokens_and_decoding_join_continuations(tiny):
    ids = tiny.encode("Unaffable, hello")
    assert tiny.tokens(ids) == ["un", "##aff", "##able", ",", "hello"]
    assert tiny.decode(np.array(ids)) == "unaffable , hello"
    assert tiny.is_continuation(np.array(ids)).tolist() == [False, True, True, False, False]
    assert tiny.continuation_table.shape == (tiny.size,)
    assert not tiny.continuation_table[sorted(tiny.special_ids)].any()
    assert not tiny.mask_takes_space


def test_added_tokens_are_recognised_in_every_text():
    tokenizer = Tokenizer(WordPiece([*SPECIALS, *LETTERS, "##b", "[", "]", "mask", "[E1]"], lowercase=True), added=("[E1]",))
    added, text = tokenizer.size - 1, "ab[E1]b [MASK][E1]"
    appended = array("I")
    tokenizer.append(text, appended)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert tokenizer.tokens(ids) == ["a", "##b", "[E1]", "b", "[", "mask", "]", "[E1]"]
    assert ids == tokenizer.encode(text) == appended.tolist()
    assert [text[start:end] for start, end in offsets] == ["a", "b", "[E1]", "b", "[", "MASK", "]", "[E1]"]
    assert tokenizer.continuation_table[ids].tolist() == [False, True, *[False] * 6]
    assert [text[start:end] for start, end in tokenizer.word_spans(text)] == ["ab", "[E1]", "b", "[", "MASK", "]", "[E1]"]
    assert tokenizer.encode_words(["ab", "[E1]"]) == ([*ids[:2], added], [0, 2], [2, 1])
    assert tokenizer.encode_with_specials(text) == [*ids[:4], tokenizer.mask_id, added]


def test_an_added_token_begins_a_word_of_sentencepiece():
    trained = train_sentencepiece([["it was fine at the house", "five more houses"]] * 20, 40, True)
    assert "e" in trained.pieces
    tokenizer = Tokenizer(trained._model, specials=trained.specials, added=("e",))
    text = "it was the houses"
    ids, offsets = tokenizer.encode_with_offsets(text)
    found = [i for i, token in enumerate(ids) if tokenizer.pieces[token] == "e"]
    assert [offsets[i] for i in found] == [(9, 10), (15, 16)]
    assert not tokenizer.continuation_table[ids][found].any()
    assert {(9, 10), (15, 16)} <= {*tokenizer.word_spans(text)}
    assert "".join(text[start:end] for start, end in offsets) == text.replace(" ", "")


def test_the_longest_of_special_tokens_with_a_common_prefix_matches():
    tokenizer = Tokenizer(WordPiece([*SPECIALS, *LETTERS, "[E", "[E1"]), added=("[E", "[E1"))
    assert tokenizer.encode_with_specials("a[E1b[Ea") == [5, 32, 6, 31, 5]


def test_the_written_files_are_readable_and_name_the_special_tokens(tmp_path, tiny):
    tiny.save(tmp_path)
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIALS}
    assert json.loads((tmp_path / "special_tokens_map.json").read_text()) == names
    for name in ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json"):
        assert re.match(r'{\n  "\w+": .*\n', (tmp_path / name).read_text())


@pytest.mark.parametrize(
    ("pieces", "lowercase"),
    [
        (["A"], False),
        ([], None),
        (LETTERS, True),
        (["##a", "\u2581b", *LETTERS[2:]], True),
        (LETTERS[1:], None),
        ([*LETTERS, *["0"] * 73, "A"], False),  # one in a hundred
        ([*LETTERS, *["0"] * 74, "A"], None),
        ([*LETTERS, "[A"], False),  # no special token
        ([*LETTERS, "A]"], False),
        ([*LETTERS, "[CLS]", "<S>"], True),
    ],
)
def test_the_casing_of_a_vocabulary_is_inferred_from_its_capitals_and_alphabet(pieces, lowercase):
    assert infer_casing(pieces)[0] is lowercase
    assert infer_casing(pieces, folds=True)[0] is True


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d / "absent.txt", "does not exist"),
        (lambda d: d, r"holds neither vocab.txt nor spiece.model"),
        (lambda d: (d / "spiece.model").write_bytes(b"junk") and d / "spiece.model", "not a SentencePiece model"),
        (lambda d: (d / "vocab.txt").write_bytes(b"[UNK]\n\xff\n") and d / "vocab.txt", "not UTF-8 at byte 6"),
        (
            lambda d: (d / "vocab.txt.gz").write_bytes(gzip.compress(b"[UNK]\n")) and d / "vocab.txt.gz",
            "vocab.txt.gz is compressed with gzip, not text; decompress it first$",
        ),
    ],
)
def test_a_file_that_is_not_a_vocabulary_is_refused_in_one_sentence(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(make(tmp_path))


def test_words_split_beforehand_are_tokenised_one_by_one(tmp_path):
    pieces = [*SPECIALS, *"abcAB中文'", *("##" + letter for letter in "abcAB")]
    tokenizer = load_tokenizer(vocabulary(tmp_path, pieces), lowercase=False)
    tokenizer.save(tmp_path)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    words = ["ab", "c'a", "中文", "ß", "A"]
    ids, firsts, counts = tokenizer.encode_words(words)
    encoded = rust.encode(words, is_pretokenized=True, add_special_tokens=False)
    assert ids == encoded.ids
    assert firsts == [encoded.word_ids.index(k) for k in range(len(words))]
    assert counts == [encoded.word_ids.count(k) for k in range(len(words))]


def test_a_word_without_a_piece_is_unknown_so_that_every_word_has_one(tiny):
    ids, firsts, counts = tiny.encode_words(["a", "\u200b\x00", "", "b"])
    assert tiny.tokens(ids) == ["a", "[UNK]", "[UNK]", "b"]
    assert (firsts, counts) == ([0, 1, 2, 3], [1, 1, 1, 1])
    assert tiny.encode_words([]) == ([], [], [])
