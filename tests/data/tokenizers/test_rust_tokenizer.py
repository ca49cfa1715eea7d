"""SentencePiece models in the Rust library's format: the same ids, with the exceptions named in `rust_tokenizer`, and their
files."""

from __future__ import annotations

import io
import itertools
import json
import math
import pathlib
import unicodedata
from typing import Any

import pytest
import sentencepiece
import tokenizers

from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece
from bert_jax.errors import UserError


def _with(directory: pathlib.Path, **contents: Any) -> Tokenizer:
    """Returns the tokenizer of `directory` after replacing some of its JSON files, which are named without their suffix."""
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def english() -> list[list[str]]:
    from pydoc_data import topics

    return [[line.strip() for line in topics.topics[key].split("\n") if line.strip()] for key in sorted(topics.topics)[:12]]


def spelling_score(tokenizer: Tokenizer, ids: list[int]) -> float:
    return sum(tokenizer._model._processor.get_score(i) for i in ids)


@pytest.mark.parametrize("kind", ["folding", "cased", "given folded text", "given folded text with accents"])
def test_a_saved_sentencepiece_loads_equal_and_the_rust_library_gives_its_ids(kind, english, tmp_path, hostile_strings):
    documents = [*english, [text for text in hostile_strings if text.strip()]]
    if kind.startswith("given"):
        train_sentencepiece([[line.lower() for line in lines] for lines in documents], 1500, False).save(tmp_path)
        config = {"do_lower_case": True} | ({"keep_accents": True} if "accents" in kind else {})
        (tmp_path / "tokenizer.json").unlink()
        tokenizer = _with(tmp_path, tokenizer_config=config)
    else:
        tokenizer = train_sentencepiece(documents, 1500, kind == "folding")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    assert again.vocabulary.strip_accents is (False if kind.endswith("with accents") else None)  # None: as the casing determines
    assert [again.encode(text) for text in hostile_strings] == [tokenizer.encode(text) for text in hostile_strings]
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    different = []
    for text in [*itertools.chain.from_iterable(english), *hostile_strings]:
        ours, theirs = tokenizer.encode_with_specials(text), rust.encode(text, add_special_tokens=False).ids
        if ours != theirs and tokenizer.decode(ours) == tokenizer.decode(theirs):  # equal up to rounding
            assert math.isclose(*(spelling_score(tokenizer, ids) for ids in (ours, theirs)), rel_tol=1e-5), ascii(text)
        elif ours != theirs:
            different.append(text)
    disordered, sigmas = "a\u0323\u0302 \u1ead a\u0302\u0323", [text for text in hostile_strings if "ΑΣ" in text]
    assert len(sigmas) == 2
    expected = {"folding": [disordered, sigmas[1]], "cased": [disordered], "given folded text": sigmas}
    assert different == expected.get(kind, [disordered, *sigmas])


def test_a_sentencepiece_model_and_a_tokenizer_json_that_differ_are_refused(english, tmp_path):
    tokenizer = train_sentencepiece(english, 400, True)
    assert "split_cjk" not in tokenizer.vocabulary.to_json()  # a SentencePiece model has no such option
    assert not tokenizer.continuation_table[sorted(tokenizer.special_ids)].any()
    tokenizer.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    *vocabulary, (last, _) = content["model"]["vocab"]
    added = {"id": len(vocabulary), "content": last, "special": True}
    apart = content | {"model": content["model"] | {"vocab": vocabulary}, "added_tokens": [added]}
    for same in (apart, content | {"added_tokens": None}):
        assert _with(tmp_path, tokenizer=same).vocabulary == tokenizer.vocabulary
    piece = content["model"]["vocab"][9][0]
    content["model"]["vocab"][9][0] = "other"
    with pytest.raises(UserError, match=rf"id 9 is '{piece}' in spiece.model, but is 'other' in tokenizer.json"):
        _with(tmp_path, tokenizer=content)
    bert = {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    with pytest.raises(UserError, match=r"holds a WordPiece model, but spiece.model next to it holds a SentencePiece model"):
        _with(tmp_path, tokenizer=bert | {"model": {"type": "WordPiece", "vocab": {"a": 0}}})
    assert load_tokenizer(tmp_path / "spiece.model", lowercase=True).vocabulary == tokenizer.vocabulary  # named by its path
    with pytest.raises(UserError, match=r"--max-word-characters=9 .* but .*spiece\.model \(sentencepiece\) has rules of its own"):
        load_tokenizer(tmp_path / "spiece.model", max_word_characters=9)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "keep_accents": false}')
    (note,) = load_tokenizer(tmp_path / "spiece.model").notes
    assert "has keep_accents=false, which is not used, because the vocabulary is given as a file" in note


def test_the_tokenizer_json_of_another_program_is_used_instead_of_the_sentencepiece_model_next_to_it(english, tmp_path):
    tokenizer = train_sentencepiece(english[:3], 200, True)
    tokenizer.save(tmp_path)
    ours, text = json.loads((tmp_path / "tokenizer.json").read_text()), "The  objects, of\ta class"
    for changes in (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"post_processor": None},
        {"model": ours["model"] | {"byte_fallback": True}},
        {"added_tokens": [token | {"normalized": True} for token in ours["added_tokens"]]},
    ):
        content = ours | changes
        rust = tokenizers.Tokenizer.from_str(json.dumps(content))
        for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "AlbertTokenizer", None):
            read = _with(tmp_path, tokenizer=content, tokenizer_config={"do_lower_case": True, "tokenizer_class": name})
            assert read.vocabulary.kind == "unigram", (name, changes)
            assert read.encode(text) == rust.encode(text, add_special_tokens=False).ids
    (tmp_path / "tokenizer.json").unlink()
    config = {"do_lower_case": True, "tokenizer_class": "AlbertTokenizer"}
    assert _with(tmp_path, tokenizer_config=config).notes == ()  # bert_jax also writes this class
    (note,) = _with(tmp_path, tokenizer_config=config | {"bos_token": "[CLS]"}).notes
    assert "a comma after a digit a separate piece" in note


def test_the_rust_library_makes_no_special_token_from_other_letters(english, tmp_path):
    tokenizer = train_sentencepiece([*english, ["[MASK] and [a] KAMS"] * 20], 500, False)
    tokenizer.save(tmp_path)
    text = unicodedata.lookup("FULLWIDTH LEFT SQUARE BRACKET") + "MASK]"
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert rust.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
    assert tokenizer.mask_id not in tokenizer.encode(text)


@pytest.mark.parametrize("other", [{"model_type": "bpe"}, {"byte_fallback": True}, {"user_defined_symbols": ["the"]}])
def test_a_model_that_the_rust_library_cannot_run_is_saved_without_it(other, english, tmp_path):
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.chain.from_iterable(english), model_writer=content, vocab_size=600, hard_vocab_limit=False,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2, **other,
    )  # fmt: skip
    tokenizer = Tokenizer(SentencePiece(content.getvalue()))
    tokenizer.save(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["tokenizer_class"], config["keep_accents"]) == ("AlbertTokenizer", True)
    assert load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary


def test_words_of_a_sentencepiece_text_are_separated_by_white_space(english, hostile_strings):
    tokenizer = train_sentencepiece(english, 500, True)
    text = " The  objects, of a\tclass "
    assert [text[start:end] for start, end in tokenizer.word_spans(text)] == ["The", "objects,", "of", "a", "class"]
    for text, spans in {
        "a \x10 b": [(0, 1), (4, 5)],
        "a\x10 \x10b\x10": [(0, 1), (4, 5)],
        "\x10a\x10b": [(1, 4)],
        "\x10": [],
    }.items():
        assert tokenizer.word_spans(text) == spans
    for text in hostile_strings:
        words = tokenizer.word_spans(text)
        for start, end in tokenizer.encode_with_offsets(text)[1]:
            owners = [k for k, (first, last) in enumerate(words) if first <= start and end <= last]
            assert len(owners) == 1 or start == end, ascii(text)
