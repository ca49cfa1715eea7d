"""WordPiece compared with the published rules (written out in `reference_wordpiece`) and with transformers' tokens (golden)."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import random
import unicodedata
from array import array

import pytest

from bert_jax.data.tokenizers import wordpiece
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece
from tests.data.corpus import reference_wordpiece

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "tokenizer_golden.json"
VOCABULARIES = ("tiny uncased", "tiny cased", "uncased", "cased")


@pytest.fixture(params=VOCABULARIES)
def named(request, tiny_vocabulary, tiny_cased_vocabulary) -> tuple[str, Tokenizer]:
    if request.param == "tiny uncased":
        return request.param, load_tokenizer(tiny_vocabulary)
    if request.param == "tiny cased":
        return request.param, load_tokenizer(tiny_cased_vocabulary)
    published = request.getfixturevalue("shared_data") / "vocab" / f"bert-base-{request.param}-vocab.txt"
    return request.param, load_tokenizer(published)


def reference(tokenizer: Tokenizer):
    return functools.partial(
        reference_wordpiece.tokenize, vocabulary=set(tokenizer.pieces), lowercase=tokenizer.vocabulary.lowercase
    )


def test_tokens_equal_the_published_rules_on_hostile_strings(named, hostile_strings):
    _, tokenizer = named
    expected = reference(tokenizer)
    for text in hostile_strings:
        assert tokenizer.tokens(tokenizer.encode(text)) == expected(text), ascii(text)


def test_tokens_equal_the_published_rules_when_hostile_strings_are_run_together(named, hostile_strings):
    _, tokenizer = named
    expected = reference(tokenizer)
    draw = random.Random(0)
    for glue in ("", " ", "\u00ad", "\x1f", "a"):
        text = glue.join(draw.choices(hostile_strings, k=60))
        assert tokenizer.tokens(tokenizer.encode(text)) == expected(text)


def test_tokens_equal_the_published_rules_on_every_kind_of_character(tiny):
    expected = reference(tiny)
    codes = [*range(0x3100), *range(0x3100, 0xD800, 41), *range(0xE000, 0x10000, 7), *range(0x10000, 0x110000, 1999)]
    codes += [edge for block in reference_wordpiece.CJK_BLOCKS for edge in (block[0] - 1, block[0], block[-1], block[-1] + 1)]
    for code in codes:
        text = f"a{chr(code)}b {chr(code)} {chr(code)}c"
        assert tiny.tokens(tiny.encode(text)) == expected(text), hex(code)


def explained(text: str, lowercase: bool) -> bool:
    """Returns whether transformers differs from the original on this text for a known reason.

    It drops private-use and unassigned characters, which the original keeps (and mostly cannot spell), and it composes (NFC)
    cased text, which the original leaves unchanged.
    """
    composed = not lowercase and unicodedata.normalize("NFC", text) != text
    return composed or any(unicodedata.category(c) in ("Co", "Cn") for c in text)


def test_tokens_equal_transformers_except_for_its_two_known_differences(named, hostile_strings):
    name, tokenizer = named
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert golden["strings"] == len(hostile_strings)
    departures = 0
    for text, expected in zip(hostile_strings, golden[name], strict=True):
        tokens = " ".join(tokenizer.tokens(tokenizer.encode(text)))
        if tokens != expected:
            assert explained(text, tokenizer.vocabulary.lowercase), ascii(text)
            departures += 1
    assert departures <= 15


def settings_of(name: str) -> dict[str, bool]:
    return {key: value == "True" for key, value in (pair.split("=") for pair in name.split())}


WORDS = json.loads(GOLDEN.read_text("utf-8"))["words"]


@pytest.mark.parametrize("name", WORDS)
def test_words_equal_transformers_for_every_choice_of_casing_accents_and_ideographs(name, hostile_strings):
    """transformers normalizes every text to NFC, so the test does too. Results then differ only for private-use and unassigned
    characters, which transformers drops."""
    departures = []
    for text, expected in zip(hostile_strings, WORDS[name], strict=True):
        words = wordpiece.basic_words(unicodedata.normalize("NFC", text), **settings_of(name))
        if " ".join(words) != expected:
            departures.append(text)
    assert departures == [text for text in hostile_strings if any(unicodedata.category(c) in ("Co", "Cn") for c in text)]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
@pytest.mark.parametrize("split_cjk", [True, False])
def test_offsets_and_word_spans_agree_with_the_words_for_any_settings(lowercase, strip_accents, split_cjk, hostile_strings):
    settings = {"lowercase": lowercase, "strip_accents": strip_accents, "split_cjk": split_cjk}
    characters = {c for text in hostile_strings for c in (*text, *text.lower(), *unicodedata.normalize("NFD", text))}
    letters = sorted(characters - set(" \n"))
    model = WordPiece(["[UNK]", *letters, *("##" + c for c in letters)], **settings)
    for text in hostile_strings:
        ids, spans = model.encode_with_offsets(text)
        assert ids == encoded(model, text), ascii(text)
        words = model.word_spans(text)
        assert len(words) == len(wordpiece.basic_words(text, **settings))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(words)), ascii(text)
        owners = [[k for k, (first, last) in enumerate(words) if first <= start and end <= last] for start, end in spans]
        starts = [not model.pieces[i].startswith("##") or model.pieces[i] == "##" for i in ids]
        assert owners == [[k - 1] for k in itertools.accumulate(starts)], ascii(text)


def encoded(model: WordPiece, text: str) -> list[int]:
    ids = array("I")
    model.append(text, ids)
    return ids.tolist()


def test_casing_accents_and_ideographs_are_independent_settings():
    assert wordpiece.basic_words("Éa中文 n\u0303", True) == ["ea", "中", "文", "n"]
    assert wordpiece.basic_words("Éa中文 n\u0303", True, False) == ["éa", "中", "文", "n\u0303"]
    assert wordpiece.basic_words("Éa中文 n\u0303", False, True) == ["Ea", "中", "文", "n"]
    assert wordpiece.basic_words("Éa中文 n\u0303", False, None, False) == ["Éa中文", "n\u0303"]
    assert wordpiece.basic_words("Ab", False, True) == ["Ab"]


def test_a_word_span_includes_accents(tiny):
    text = " Héllo,\u00ad DÖRL\u0301S\u200b! 中文"
    assert [text[start:end] for start, end in tiny.word_spans(text)] == ["Héllo", ",", "DÖRL\u0301S", "!", "中", "文"]


def test_accents_are_stripped_only_when_lower_casing(tiny, tiny_cased_vocabulary):
    cased = load_tokenizer(tiny_cased_vocabulary)
    assert tiny.tokens(tiny.encode("É é")) == ["e", "e"]
    assert cased.tokens(cased.encode("É é")) == ["É", "é"]


def test_ideographs_are_words_of_their_own_and_hangul_is_not(tiny_cased_vocabulary):
    cased = load_tokenizer(tiny_cased_vocabulary)
    assert cased.tokens(cased.encode("a中文b")) == ["a", "中", "文", "b"]
    assert cased.tokens(cased.encode("국한")) == ["[UNK]"]


def test_a_capital_sigma_is_lower_cased_by_its_position_in_the_word(tiny):
    assert tiny.tokens(tiny.encode("ΟΔΟΣ ΣΑ")) == ["ο", "##δ", "##ο", "##ς", "σ", "##α"]


@pytest.mark.parametrize(("length", "limit", "known"), [(200, 200, True), (201, 200, False), (100, 100, True), (101, 100, False)])
def test_a_word_longer_than_the_limit_is_unknown(tiny_vocabulary, length, limit, known):
    tokenizer = load_tokenizer(tiny_vocabulary, max_word_characters=limit)
    assert tokenizer.encode("a" * length).count(tokenizer.unk_id) == (0 if known else 1)


def test_the_word_length_limit_defaults_to_that_of_bert(tiny):
    assert tiny.max_word_characters == 200


def test_text_never_yields_special_tokens_other_than_unknown(named, hostile_strings):
    _, tokenizer = named
    forbidden = tokenizer.special_ids - {tokenizer.unk_id}
    for text in [*hostile_strings, "[CLS][SEP] [MASK]. [PAD]", "[PAD]" * 50, "\u00ad[\u00adMASK]"]:
        assert forbidden.isdisjoint(tokenizer.encode(text)), ascii(text)


def test_a_full_cache_does_not_change_tokens(monkeypatch, tiny_vocabulary, hostile_strings):
    pieces = tiny_vocabulary.read_text("utf-8").split("\n")[:-1]
    expected = [Tokenizer(WordPiece(pieces, lowercase=True)).encode(text) for text in hostile_strings]
    monkeypatch.setattr(wordpiece, "_CACHED_CHUNKS", 3)
    small = Tokenizer(WordPiece(pieces, lowercase=True))
    assert [small.encode(text) for text in hostile_strings] == expected


def test_a_cache_computes_a_key_once_and_is_emptied_when_it_is_full(monkeypatch):
    monkeypatch.setattr(wordpiece, "_CACHED_CHUNKS", 3)
    monkeypatch.setattr(wordpiece, "_CACHED_CHARACTERS", 10)
    computed = []

    def compute(key: str) -> tuple[int, ...]:
        computed.append(key)
        return (len(key),)

    cache = wordpiece.ChunkCache(compute)
    assert [cache[key] for key in ("a", "bb", "a", "ccc", "bb", "a")] == [(1,), (2,), (1,), (3,), (2,), (1,)]
    assert computed == ["a", "bb", "ccc"]
    assert cache["d"] == (1,)
    assert cache == {"d": (1,)}
    monkeypatch.setattr(wordpiece, "_CACHED_CHARACTERS", 6)
    assert [cache[key] for key in ("eeeee", "f", "gg")] == [(5,), (1,), (2,)]
    assert cache == {"f": (1,), "gg": (2,)}
    assert [cache["hhhh"], cache["iiiiiii"], cache["j"]] == [(4,), (7,), (1,)]
    assert cache == {"j": (1,)}


def test_the_defaults_are_cased_with_separate_ideographs():
    model = WordPiece(["[UNK]", "a", "A", "中", "文", "é"])
    assert (model.lowercase, model.strip_accents, model.split_cjk, model.folds) == (False, None, True, False)
    assert encoded(model, "A a 中文 é [UNK]") == [2, 1, 3, 4, 5, 0, 0, 0]


def test_encoding_with_offsets_gives_the_same_ids(named, hostile_strings):
    _, tokenizer = named
    for text in hostile_strings:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text), ascii(text)
        assert len(spans) == len(ids)
        assert all(0 <= start < end <= len(text) for start, end in spans), ascii(text)
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(spans)), ascii(text)


def test_offsets_select_the_characters_of_each_piece(tiny):
    text = "Héllo,\u00ad unaffable  DÖR\u200bL\u0301S! 中文"
    ids, spans = tiny.encode_with_offsets(text)
    pieces = ["Héllo", ",", "un", "aff", "able", "D", "Ö", "R", "L\u0301", "S", "!", "中", "文"]
    assert [text[start:end] for start, end in spans] == pieces
    assert tiny.tokens(ids)[:9] == ["hello", ",", "un", "##aff", "##able", "d", "##o", "##r", "##l"]


def test_an_accent_written_apart_belongs_to_the_letter_before_it(tiny):
    assert tiny.encode_with_offsets("e\u0301x")[1] == [(0, 2), (2, 3)]
