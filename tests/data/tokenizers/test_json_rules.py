"""The rules of a tokenizer.json that allow to cut a text at its spaces, and to find its ASCII words without the library."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_jax.data.tokenizers import json_tokenizer
from bert_jax.data.tokenizers.json_tokenizer import GPT2_SPLIT, GPT4_SPLIT, model_type, parts, with_prefix_space

BYTES: dict[str, Any] = {"type": "ByteLevel"}
MERGED = BYTES | {"use_regex": False}


def spec(**changes: Any) -> dict[str, Any]:
    return {"normalizer": None, "pre_tokenizer": BYTES, "model": {"type": "Unigram", "vocab": []}} | changes


def sequence(*steps: dict[str, Any], inside: str = "pretokenizers") -> dict[str, Any]:
    return {"type": "Sequence", inside: [*steps]}


def split(pattern: str, kind: str = "Regex", **changes: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", "invert": False} | changes


def replaced(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def bpe(*pieces: str) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []}


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, True),
        ({"pre_tokenizer": MERGED}, False),
        ({"pre_tokenizer": None}, False),
        ({"pre_tokenizer": None, "model": bpe("a", "Ġb", "▁▁c", " d")}, True),
        ({"pre_tokenizer": None, "model": bpe("a", "bĠ")}, False),
        ({"pre_tokenizer": None, "model": bpe("a", "b▁c")}, False),
        ({"pre_tokenizer": None, "model": bpe("a b")}, False),
        ({"pre_tokenizer": {"type": "Metaspace"}}, True),
        ({"pre_tokenizer": {"type": "Metaspace", "split": False}}, False),
        ({"pre_tokenizer": {"type": "Digits"}}, False),
        ({"pre_tokenizer": {"type": "Punctuation"}}, False),
        ({"pre_tokenizer": sequence({"type": "Digits"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation"})}, True),
        ({"pre_tokenizer": sequence({"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"})}, False),
        ({"pre_tokenizer": sequence(split(GPT2_SPLIT), MERGED)}, True),
        ({"pre_tokenizer": sequence(split(GPT2_SPLIT, behavior="Removed"), MERGED)}, False),
        ({"pre_tokenizer": sequence(split(GPT2_SPLIT, invert=True), MERGED)}, False),
        ({"pre_tokenizer": split("x")}, False),
        ({"pre_tokenizer": split("x", "String"), "model": bpe("a")}, False),
        ({"pre_tokenizer": split(" ", "String"), "model": bpe("a")}, True),
        ({"pre_tokenizer": split(" ", "String")}, False),
        ({"normalizer": {"type": "Lowercase"}}, True),
        ({"normalizer": {"type": "Prepend"}}, False),
        ({"normalizer": sequence({"type": "NFC"}, {"type": "Strip"}, inside="normalizers")}, False),
        ({"normalizer": replaced("▁", String=" ")}, True),
        ({"normalizer": replaced("b", String="a")}, True),
        ({"normalizer": replaced("", String="a")}, False),
        ({"normalizer": replaced("b ", String="a")}, False),
        ({"normalizer": replaced("c", String="a b")}, False),
        ({"normalizer": replaced("y", Regex="x")}, False),
        ({"normalizer": replaced(" ", Regex=" {2,}")}, True),
        ({"added_tokens": [{"content": "a b ", "special": True, "rstrip": True}, {"content": "word"}, {"content": "  "}]}, True),
        ({"added_tokens": [{"content": "word", "rstrip": True}]}, False),
        ({"added_tokens": [{"content": "a b"}]}, False),
        ({"added_tokens": [{"content": " "}]}, False),
    ],
)
def test_a_text_may_be_cut_at_spaces_if_no_rule_spans_them(changes, stops):
    assert bool(json_tokenizer._stops_at_spaces(spec(**changes))) is stops


@pytest.mark.parametrize(
    ("normalizer", "splitter", "spans"),
    [
        ("Precompiled", {"type": "WhitespaceSplit"}, True),
        ("StripAccents", BYTES, True),
        ("BertNormalizer", BYTES, True),
        ("Nmt", sequence({"type": "Metaspace"}, {"type": "WhitespaceSplit"}), True),
        ("Nmt", sequence({"type": "WhitespaceSplit"}, {"type": "Metaspace"}), False),
        ("BertNormalizer", {"type": "BertPreTokenizer"}, False),
        ("StripAccents", {"type": "Whitespace"}, False),
        ("NFC", BYTES, False),
    ],
)
def test_rules_for_other_than_ascii_characters_may_span_spaces(normalizer, splitter, spans):
    assert json_tokenizer._spans_spaces(spec(normalizer={"type": normalizer}, pre_tokenizer=splitter)) is spans


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, GPT2_SPLIT),
        ({"model": {"type": "Unigram", "vocab": []}}, None),
        ({"normalizer": sequence({"type": "NFC"}, {"type": "NFKD"}, inside="normalizers")}, GPT2_SPLIT),
        ({"normalizer": {"type": "Lowercase"}}, None),
        ({"pre_tokenizer": BYTES | {"add_prefix_space": True}}, None),
        ({"pre_tokenizer": MERGED}, None),
        ({"pre_tokenizer": sequence(split(GPT4_SPLIT), MERGED)}, GPT4_SPLIT),
        ({"pre_tokenizer": sequence(split(GPT4_SPLIT), BYTES)}, None),
        ({"pre_tokenizer": sequence(split(GPT4_SPLIT, behavior="Removed"), MERGED)}, None),
        ({"pre_tokenizer": sequence(split("x"), MERGED)}, None),
        ({"pre_tokenizer": sequence(MERGED, split(GPT4_SPLIT))}, None),
    ],
)
def test_ascii_words_are_found_without_the_library_for_two_splits_of_byte_level_merges(changes, words):
    added = [{"content": "[X]", "special": True}, {"content": "a|b"}]
    found, plain = json_tokenizer._ascii_split(spec(model=bpe("a"), added_tokens=added) | changes)
    assert found == (json_tokenizer._ASCII[words] if words else None)
    assert [bool(plain.search(text)) for text in ("x a|b y", "a", "b", "[X]")] == [True, False, False, False]
    assert not json_tokenizer._ascii_split(spec())[1].search("")


@pytest.mark.parametrize(
    ("splitter", "wanted", "changed"),
    [
        (BYTES | {"add_prefix_space": False}, True, True),
        (BYTES | {"add_prefix_space": True}, False, True),
        (BYTES | {"add_prefix_space": True}, True, False),
        (BYTES | {"add_prefix_space": True}, None, False),
        (BYTES | {"add_prefix_space": True}, 0, False),
        (sequence(BYTES), True, False),
        (None, True, False),
    ],
)
def test_the_space_before_a_text_follows_the_settings(splitter, wanted, changed):
    text = with_prefix_space(spec(pre_tokenizer=splitter), wanted)
    assert (text is not None) is changed
    if text is not None:
        assert json.loads(text) == spec(pre_tokenizer=splitter | {"add_prefix_space": wanted})


def test_older_files_do_not_name_the_type_of_their_model():
    models = [{"merges": [], "vocab": {}}, {"vocab": {}}, {"vocab": []}, {"type": "WordLevel", "merges": []}, None]
    assert [model_type({"model": model}) for model in models] == ["BPE", "WordPiece", "Unigram", "WordLevel", "Unigram"]
    assert parts(None, "x") == []
    assert parts(sequence(sequence(BYTES), MERGED), "pretokenizers") == [BYTES, MERGED]
