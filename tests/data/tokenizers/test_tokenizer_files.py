"""The files of a tokenizer. Those of transformers (golden) can be read, and the Rust library returns our ids from those that we
write."""

from __future__ import annotations

import io
import json
import os
import pathlib
import unicodedata
from typing import Any

import pytest
import sentencepiece
import tokenizers

from bert_jax.data.tokenizers.tokenizer import Tokenizer, VocabularyInfo, load_tokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import UserError
from tests.interop.tiny import write_xlm_r

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "tokenizer_golden.json"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyzéüABC中文")
PIECES = [*SPECIALS, *LETTERS, *("##" + letter for letter in LETTERS), *"[]!,'", "中文"]
TEXT = "abé, Abc ÜÉ中文a!"


def tokenizer_json(pieces: list[str] = PIECES, **changes: Any) -> dict[str, Any]:
    """Returns what the Rust library writes for a cased BERT."""
    part = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": False}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    content = {
        "version": "1.0",
        "added_tokens": [added(token, i) for i, token in enumerate(pieces[:5])],
        "normalizer": part,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": model | {"vocab": {piece: i for i, piece in enumerate(pieces)}},
    }
    return content | changes


def added(token: str, i: int, special: bool = True) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": i, "content": token, "special": special, **flags}


def write(directory: pathlib.Path, **contents: Any) -> pathlib.Path:
    """Writes `pieces` as the vocabulary; other keywords are JSON files, named without their suffix."""
    for name, content in contents.items():
        if name == "vocab":
            (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in content), "utf-8")
        else:
            (directory / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return directory


def spelling_vocabulary(strings: list[str]) -> list[str]:
    """Returns the vocabulary of make_tokenizer_golden.py: nearly everything can be spelt, so nearly every difference shows."""
    pieces = (pathlib.Path(__file__).parents[1] / "tiny_cased_vocab.txt").read_text("utf-8").split("\n")[:-1]
    characters = sorted({c for text in strings for c in text if not c.isspace()})
    return list(dict.fromkeys([*pieces, *characters, *("##" + c for c in characters)]))


def departs(text: str, lowercase: bool) -> bool:
    """Returns whether the Rust normalizer splits a text into other words. There are two reasons: it drops private-use characters,
    and it lower-cases a capital sigma at the end of a word as if it were in the middle."""
    return any(unicodedata.category(c) == "Co" for c in text) or (lowercase and text.lower() != "".join(map(str.lower, text)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_directory_that_transformers_saved_gives_its_tokens(number, tmp_path, hostile_strings):
    golden = json.loads(GOLDEN.read_text("utf-8"))["directories"][number]
    content, config = golden["tokenizer.json"], golden["tokenizer_config.json"]
    content["model"]["vocab"] = {piece: i for i, piece in enumerate(spelling_vocabulary(hostile_strings))}
    tokenizer = load_tokenizer(write(tmp_path, tokenizer=content, tokenizer_config=config))
    lowercase = config["do_lower_case"]
    info = tokenizer.vocabulary
    assert (info.lowercase, info.strip_accents, info.split_cjk) == (lowercase, not lowercase, config["tokenize_chinese_chars"])
    assert (tokenizer.max_word_characters, tokenizer.max_length) == (100, 64)
    different = []
    for text, expected in zip(hostile_strings, golden["tokens"], strict=True):
        if " ".join(tokenizer.tokens(tokenizer.encode_with_specials(text))) != expected:
            different.append(text)
    assert different == [text for text in hostile_strings if departs(text, lowercase)]
    assert len(different) == (5 if lowercase else 3)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("split_cjk", [True, False])
def test_a_saved_wordpiece_loads_equal_and_the_rust_library_gives_its_ids(
    lowercase, strip_accents, split_cjk, tmp_path, hostile_strings
):
    rules = {"lowercase": lowercase, "strip_accents": strip_accents, "split_cjk": split_cjk}
    tokenizer = Tokenizer(WordPiece(spelling_vocabulary(hostile_strings), **rules), max_length=77)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    assert (again.max_word_characters, again.max_length, again.added) == (200, 77, ())
    assert [again.encode(text) for text in hostile_strings] == [tokenizer.encode(text) for text in hostile_strings]
    (tmp_path / "vocab.txt").unlink()
    assert load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = {text: rust.encode(text, add_special_tokens=False).ids for text in hostile_strings}
    different = [text for text in hostile_strings if tokenizer.encode_with_specials(text) != ids[text]]
    assert different == [text for text in hostile_strings if departs(text, lowercase)]
    pair = rust.encode("a", "b")
    a, b = tokenizer.encode("a"), tokenizer.encode("b")
    assert pair.ids == [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert pair.type_ids == [0, 0, 0, 1, 1]


def test_the_written_settings_give_transformers_the_same_rules(tmp_path):
    model = WordPiece(PIECES, lowercase=True, strip_accents=False, split_cjk=False, max_word_characters=100)
    Tokenizer(model, max_length=64).save(tmp_path)
    golden = json.loads(GOLDEN.read_text("utf-8"))["directories"][0]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert {key: config[key] for key in golden["tokenizer_config.json"] if key != "backend"} == {
        key: value for key, value in golden["tokenizer_config.json"].items() if key != "backend"
    }
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"].pop("vocab")
    for part in ("normalizer", "pre_tokenizer", "model", "decoder", "added_tokens"):
        assert content[part] == golden["tokenizer.json"][part], part


def test_a_single_tokenizer_json_is_read_from_a_directory_or_by_its_path(tmp_path):
    content = tokenizer_json()
    rust = tokenizers.Tokenizer.from_str(json.dumps(content))
    for path in (write(tmp_path, tokenizer=content), tmp_path / "tokenizer.json"):
        tokenizer = load_tokenizer(path)
        assert tokenizer.pieces == PIECES
        assert tokenizer.encode(TEXT) == rust.encode(TEXT, add_special_tokens=False).ids
        assert (tokenizer.vocabulary.lowercase, tokenizer.max_word_characters) == (False, 100)
    with pytest.raises(UserError, match=r"--lowercase does not fit .* tokenizer.json has lowercase=false"):
        load_tokenizer(tmp_path, lowercase=True)


def test_a_tokenizer_json_from_before_models_had_types_is_read(tmp_path):
    content = tokenizer_json()
    del content["model"]["type"]
    assert load_tokenizer(write(tmp_path, tokenizer=content)).pieces == PIECES


def changed(**fields: Any) -> dict[str, Any]:
    return tokenizer_json()["model"] | fields


def normalizer(**fields: Any) -> dict[str, Any]:
    return tokenizer_json()["normalizer"] | fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": changed(vocab={"[UNK]": 0, "a": 1, "b": 1}), "added_tokens": []}, "two pieces have the same id"),
        ({"added_tokens": [added("[MASK]", 7)]}, r"'\[MASK\]' has the id 4 in the vocabulary, but 7"),
        ({"added_tokens": [added("[E1]", len(PIECES) + 1)]}, f"no piece has the id {len(PIECES)}"),
        ({"model": None}, "the library tokenizers .* cannot read it"),
    ],
)
def test_a_broken_tokenizer_json_is_refused_with_its_fault(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(write(tmp_path, tokenizer=tokenizer_json(**changes)))


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"model": changed(continuing_subword_prefix="@@")}, "its continuing_subword_prefix is '@@'"),
        ({"normalizer": None}, "its normalizer is null"),
        ({"normalizer": {"type": "NFC"}}, "its normalizer is NFC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [normalizer(), {"type": "NFC"}]}}, r"is BertNormalizer \+ NFC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [normalizer(), {"type": "StripAccents"}]}}, r"\+ StripAccents"),
        ({"normalizer": normalizer(clean_text=False)}, "its normalizer has clean_text=false"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is Whitespace"),
        ({"added_tokens": [*tokenizer_json()["added_tokens"], added("b", 6, special=False)]}, ""),
    ],
)
def test_rules_beyond_bert_run_in_the_library_unless_the_class_ignores_them(tmp_path, changes, clause):
    content = tokenizer_json(**changes)
    rust = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer=content))
    assert tokenizer.vocabulary.kind == "library-wordpiece"
    for text in (TEXT, "a\tbc  abc [MASK]\x00b", "é中文A!"):
        assert tokenizer.encode_with_specials(text) == rust.encode(text, add_special_tokens=False).ids
    write(tmp_path, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    if clause:
        with pytest.raises(UserError, match=rf"{clause}.*, but the class BertTokenizer ignores this; take"):
            load_tokenizer(tmp_path)
    else:  # the class uses added tokens
        load_tokenizer(tmp_path).save(tmp_path / "saved")
        assert load_tokenizer(tmp_path / "saved").vocabulary == tokenizer.vocabulary
        write(tmp_path, tokenizer_config={"tokenizer_class": "BertTokenizer", "do_lower_case": True})
        with pytest.raises(UserError, match=r"'b' is matched inside words, .* do_lower_case=true, but .* make the two"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        normalizer(strip_accents=True),
        normalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False),
        {"type": "Sequence", "normalizers": [normalizer(), {"type": "Lowercase"}]},
        {"type": "Sequence", "normalizers": [normalizer(), {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
        {"type": "Sequence", "normalizers": [normalizer(handle_chinese_chars=False), normalizer(lowercase=True)]},
        {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [normalizer()]}, {"type": "Lowercase"}]},
    ],
)
def test_normalizers_made_of_berts_parts_give_the_ids_of_the_rust_library(tmp_path, part):
    content = tokenizer_json(normalizer=part)
    rust = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert load_tokenizer(write(tmp_path, tokenizer=content)).encode(TEXT) == rust.encode(TEXT, add_special_tokens=False).ids


def test_a_normalizer_that_states_nothing_has_the_rules_of_the_uncased_original(tmp_path):
    content = tokenizer_json(normalizer={"type": "BertNormalizer"})
    info = load_tokenizer(write(tmp_path, tokenizer=content)).vocabulary
    assert (info.lowercase, info.strip_accents, info.split_cjk) == (True, None, True)


def test_vocab_txt_and_tokenizer_json_must_agree(tmp_path):
    load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer=tokenizer_json()))
    swapped = [*PIECES[:7], "d", "c", *PIECES[9:]]
    with pytest.raises(UserError, match=r"id 7 is 'd' in vocab.txt, but is 'c' in tokenizer.json"):
        load_tokenizer(write(tmp_path, vocab=swapped))
    with pytest.raises(UserError, match=rf"id {len(PIECES)} is 'ab' in vocab.txt, but is missing in tokenizer.json"):
        load_tokenizer(write(tmp_path, vocab=[*PIECES, "ab"]))


@pytest.mark.parametrize(
    ("config", "in_json", "rules", "stated"),
    [
        ({"do_lower_case": True}, {}, (True, None, True), "do_lower_case=true"),
        ({"do_lower_case": False}, {"lowercase": True}, (False, None, True), "do_lower_case=false"),
        (
            {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False},
            {},
            (True, None, False),
            "do_lower_case=true and tokenize_chinese_chars=false",
        ),
        ({"do_lower_case": False, "strip_accents": True}, {}, (False, True, True), "strip_accents=true"),
        ({"do_lower_case": False, "strip_accents": None}, {"strip_accents": True}, (False, None, True), "strip_accents=null"),
        ({"tokenize_chinese_chars": False}, {}, (False, None, False), "tokenize_chinese_chars=false"),
        ({"do_lower_case": True, "strip_accents": False}, {}, (True, False, True), "do_lower_case=true"),
        ({"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}, {}, (False, None, True), "do_lower_case=true"),
    ],
)
def test_tokenizer_config_takes_precedence_over_tokenizer_json_as_in_transformers(tmp_path, config, in_json, rules, stated):
    content = tokenizer_json(normalizer=normalizer(**in_json))
    tokenizer = load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer=content, tokenizer_config=config))
    info = tokenizer.vocabulary
    assert (info.lowercase, info.strip_accents, info.split_cjk) == rules
    followed = "tokenizer.json" if "tokenizer_class" in config else "tokenizer_config.json"
    assert tokenizer.notes == (
        f"tokenizer_config.json has {stated}, but tokenizer.json differs; {followed} is used, as in transformers",
    )


def test_rules_stated_by_only_one_file_count(tmp_path):
    content = tokenizer_json(normalizer=normalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False))
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": None}
    for settings in ({}, {"do_lower_case": True}, {"do_lower_case": None}, config):
        tokenizer = load_tokenizer(write(tmp_path, tokenizer=content, tokenizer_config=settings))
        info = tokenizer.vocabulary
        assert (info.lowercase, info.strip_accents, info.split_cjk, tokenizer.notes) == (True, False, False, ())


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_stated_casing_settles_files_that_contradict_each_other(tmp_path, lowercase):
    write(tmp_path, vocab=PIECES, tokenizer=tokenizer_json(), tokenizer_config={"do_lower_case": True})
    tokenizer = load_tokenizer(tmp_path, lowercase=lowercase)
    assert (tokenizer.vocabulary.lowercase, tokenizer.vocabulary.strip_accents, tokenizer.notes) == (lowercase, None, ())


def test_a_repeated_piece_survives_saving(tmp_path):
    tokenizer = Tokenizer(WordPiece([*PIECES, "a", "ab"]))
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    assert again.encode("a ab") == [len(PIECES), len(PIECES) + 1]


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"do_lower_case": False}, ["a", "é", "A", "##b", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["a", "e", "A", "##b", "中", "文"]),
        ({"do_lower_case": True}, ["a", "e", "a", "##b", "中", "文"]),
        ({"do_lower_case": True, "strip_accents": False}, ["a", "é", "a", "##b", "中", "文"]),
        ({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False}, ["a", "e", "a", "##b", "中文"]),
    ],
)
def test_tokenizer_config_decides_casing_accents_and_ideographs_of_a_vocab_txt(tmp_path, config, tokens):
    tokenizer = load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer_config=config))
    assert tokenizer.tokens(tokenizer.encode("a é Ab 中文")) == tokens


def test_capitals_that_transformers_would_lower_case_are_kept_with_a_note(tmp_path):
    assert load_tokenizer(write(tmp_path, vocab=PIECES)).notes == ()  # not the files of transformers
    for file in ("config", "tokenizer_config"):
        (note,) = load_tokenizer(write(tmp_path, **{file: {}})).notes
        assert note.startswith(f"{tmp_path}/vocab.txt: capitals are kept, because 6 of its 72 pieces have capitals; no file")
        (tmp_path / f"{file}.json").unlink()
    write(tmp_path, config={})
    assert load_tokenizer(tmp_path, lowercase=False).notes == load_tokenizer(tmp_path / "vocab.txt").notes == ()
    write(tmp_path, tokenizer_config={"do_lower_case": False})
    assert load_tokenizer(tmp_path).notes == ()
    write(tmp_path, vocab=[*SPECIALS, *"abcdefghijklmnopqrstuvwxyz"], tokenizer_config={})
    assert load_tokenizer(tmp_path).notes == ()


def test_unsupported_settings_are_refused_by_name(tmp_path):
    for config, message in (
        ({"strip_accents": "true"}, r'strip_accents="true" must be true, false or null, without quotation marks'),
        ({"tokenize_chinese_chars": 1}, "tokenize_chinese_chars=1 must be true"),
        ({"model_max_length": "512"}, r'model_max_length="512" must be a number or null'),
        ({"max_input_chars_per_word": -1}, "max_input_chars_per_word=-1 must be a whole number above 0"),
        ({"max_input_chars_per_word": 2.5}, "max_input_chars_per_word=2.5 must be a whole number above 0"),
        ({"never_split": "don't"}, """never_split="don't" must be a list of texts"""),
        ({"do_basic_tokenize": False}, "do_basic_tokenize=false"),
        ({"never_split": ["[UNK]", "don't"]}, r'never_split=\["don\'t"\]'),
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type='mecab'"),
    ):
        with pytest.raises(UserError, match=message):
            load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer_config=config | {"do_lower_case": False}))
    load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer_config={"do_lower_case": False, "never_split": ["[UNK]"]}))


@pytest.mark.parametrize("white", ["\n", "\u00a0", "c ", " c", "\u3000c", "\r\n", "a\rb", "\t"])
def test_a_piece_that_vocab_txt_cannot_hold_is_saved_only_in_tokenizer_json(tmp_path, white):
    pieces = [*PIECES[:9], white, *PIECES[9:]]
    tokenizer = load_tokenizer(write(tmp_path, tokenizer=tokenizer_json(pieces)))
    assert tokenizer.pieces == pieces
    write(tmp_path, vocab=["left", "over"])  # left by another program
    tokenizer.save(tmp_path)
    assert not (tmp_path / "vocab.txt").exists()
    again = load_tokenizer(tmp_path)
    assert (again.pieces, again.vocabulary) == (pieces, tokenizer.vocabulary)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert again.encode(TEXT) == rust.encode(TEXT, add_special_tokens=False).ids
    assert {again.pieces[i] for i in again.encode(TEXT)} >= {"a", "##b", "!"}  # a repeated piece has an id of its own
    write(tmp_path, vocab=pieces)  # as transformers saves it
    assert load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary


def test_repeated_pieces_survive_saving_in_only_tokenizer_json(tmp_path):
    config = {"do_lower_case": False, "added_tokens_decoder": {str(len(PIECES) + 1): {"content": "[E1] ", "special": True}}}
    tokenizer = load_tokenizer(write(tmp_path, vocab=[*PIECES, "a"], tokenizer_config=config))
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").vocabulary == tokenizer.vocabulary
    assert tokenizer.encode("a") == [len(PIECES)]


def test_a_missing_id_in_tokenizer_json_becomes_an_unused_piece(tmp_path):
    content = tokenizer_json()
    content["model"]["vocab"] |= {"a": len(PIECES), "b": len(PIECES) + 2}
    tokenizer = load_tokenizer(write(tmp_path, tokenizer=content))
    rust = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert (tokenizer.size, tokenizer.pieces[5], tokenizer.pieces[len(PIECES) + 1]) == (len(PIECES) + 3, "", "")
    assert tokenizer.encode(TEXT) == rust.encode(TEXT, add_special_tokens=False).ids
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").vocabulary == tokenizer.vocabulary
    written = json.loads((tmp_path / "saved" / "tokenizer.json").read_text("utf-8"))
    assert written["model"]["vocab"] == content["model"]["vocab"]


@pytest.mark.parametrize("name", ["BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast", "TokenizersBackend", None])
def test_tokenizer_classes_with_the_rules_of_bert_are_read(tmp_path, name):
    write(tmp_path, vocab=PIECES, config={"tokenizer_class": name}, tokenizer_config={"do_lower_case": False})
    assert load_tokenizer(tmp_path).encode(TEXT) == load_tokenizer(tmp_path / "vocab.txt", lowercase=False).encode(TEXT)


@pytest.mark.parametrize("file", ["config", "tokenizer_config"])
@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "BertweetTokenizer", "MPNetTokenizerFast", ["a", "b"]])
def test_a_tokenizer_class_with_other_rules_is_refused_by_name(tmp_path, file, name):
    write(tmp_path, vocab=PIECES, **{file: {"tokenizer_class": name}})
    with pytest.raises(UserError, match=rf"{file}\.json: tokenizer_class=.*{name[0]}.* differ from BERT's rules; .*: Bert"):
        load_tokenizer(tmp_path, lowercase=False)


@pytest.mark.parametrize(("name", "missing"), [("BertTokenizerFast", "vocab.txt"), ("AlbertTokenizer", "spiece.model")])
def test_a_tokenizer_class_for_another_kind_of_file_is_refused(tmp_path, name, missing):
    write(tmp_path, tokenizer_config={"tokenizer_class": name})
    (tmp_path / {"vocab.txt": "spiece.model", "spiece.model": "vocab.txt"}[missing]).write_text("[PAD]")
    with pytest.raises(UserError, match=rf"{name} reads {missing}, but there is no {missing} next to .*; copy it from the model"):
        load_tokenizer(tmp_path)


def test_the_class_in_tokenizer_config_takes_precedence_over_that_of_the_model(tmp_path):
    write(tmp_path, vocab=PIECES, config={"tokenizer_class": "BertJapaneseTokenizer"})
    load_tokenizer(write(tmp_path, tokenizer_config={"tokenizer_class": "BertTokenizer", "do_lower_case": False}))
    write(tmp_path, config={}, tokenizer_config={"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}})
    with pytest.raises(UserError, match=r"auto_map names a tokenizer with code of its own, but bert_jax does not run"):
        load_tokenizer(tmp_path)


def test_the_sentencepiece_model_of_xlm_r_is_refused_without_its_tokenizer_json(tmp_path):
    """BERTs with this vocabulary are multilingual-e5-small and paraphrase-multilingual-MiniLM-L12-v2."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["A b a b", "b a B"] * 20), model_writer=content, vocab_size=12, hard_vocab_limit=False,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content.getvalue())
    says = r"shifted by one .fairseq's order .*; copy the model's tokenizer\.json, which has the shifted ids, into the same"

    def refused(path: pathlib.Path) -> None:
        with pytest.raises(UserError, match=says):
            load_tokenizer(path, lowercase=False)

    refused(tmp_path)
    refused(write(tmp_path, tokenizer_config={"tokenizer_class": "CamembertTokenizer"}))
    write_xlm_r(tmp_path)
    refused(tmp_path / "sentencepiece.bpe.model")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = load_tokenizer(path)
        assert found.encode("a b a") == [4, 5, 4]
        assert (found.cls_id, found.pad_id, found.sep_id, found.mask_id) == (0, 1, 2, 6)
        assert found.notes == (
            "tokenizer.json puts special tokens around texts as in '<s> ▁a </s> </s> ▁a </s>', but bert_jax as in "
            "'<s> ▁a </s> ▁a </s>'",
        )
    found.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").vocabulary == found.vocabulary


def test_blank_last_lines_are_pieces_only_if_the_model_or_the_saved_tokenizer_has_them(tmp_path):
    def size() -> int:
        return load_tokenizer(tmp_path, lowercase=False).size

    n = len(PIECES)
    write(tmp_path, vocab=[*PIECES, "", ""])
    assert size() == n
    for rows, kept in ((n, n), (n + 1, n + 1), (n + 9, n + 2), ("x", n)):
        write(tmp_path, config={"vocab_size": rows})
        assert size() == kept
    (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
    write(tmp_path, bert_config={"vocab_size": n})
    assert size() == n
    (tmp_path / "bert_config.json").unlink()
    write(tmp_path, tokenizer=tokenizer_json([*PIECES, "", ""]))
    assert size() == n + 2
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "saved")  # as in a corpus, without the model
    assert load_tokenizer(tmp_path / "saved").vocabulary == tokenizer.vocabulary


def test_a_lone_surrogate_is_refused_as_a_piece(tmp_path):
    with pytest.raises(UserError, match=r"the piece '.ud800' has half a surrogate pair"):
        load_tokenizer(write(tmp_path, tokenizer=tokenizer_json([*PIECES, "\ud800"])))


def test_special_tokens_have_the_names_in_the_files(tmp_path):
    pieces = [{"[MASK]": "<m>", "[UNK]": "<?>"}.get(piece, piece) for piece in PIECES] + ["[MASK]"]
    config = {"do_lower_case": False, "mask_token": {"content": "<m>", "lstrip": True}, "pad_token": None}
    write(tmp_path, vocab=pieces, tokenizer_config=config, special_tokens_map={"unk_token": "<?>", "mask_token": "[MASK]"})
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.mask_id, tokenizer.unk_id, tokenizer.pad_id) == (4, 1, 0)
    assert tokenizer.encode("ß") == [1]
    assert tokenizer.encode_with_specials("a<m>") == [*tokenizer.encode("a"), 4]
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").vocabulary == tokenizer.vocabulary
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert rust.encode("ß <m>", add_special_tokens=False).ids == [1, 4]
    with pytest.raises(UserError, match="no <x>"):
        load_tokenizer(write(tmp_path, tokenizer_config=config | {"mask_token": "<x>"}))


def test_a_tokenizer_json_alone_names_its_unknown_token(tmp_path):
    content = tokenizer_json([piece.replace("[UNK]", "<?>") for piece in PIECES])
    content["model"]["unk_token"] = "<?>"
    tokenizer = load_tokenizer(write(tmp_path, tokenizer=content))
    assert tokenizer.encode("ß") == [tokenizer.unk_id] == [1]


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer": tokenizer_json(added_tokens=[added("[E1]", len(PIECES))])},
        {"tokenizer": tokenizer_json(added_tokens=[added("[E1]", len(PIECES))]), "vocab": PIECES},
        {"vocab": PIECES, "added_tokens": {"[E1]": len(PIECES)}},
        {"vocab": PIECES, "tokenizer_config": {"added_tokens_decoder": {str(len(PIECES)): {"content": "[E1]", "special": True}}}},
        {"vocab": [*PIECES, "[E1]"], "tokenizer_config": {"additional_special_tokens": ["[E1]"]}},
        {"vocab": [*PIECES, "[E1]"], "tokenizer_config": {"extra_special_tokens": [{"content": "[E1]"}]}},
        {"vocab": [*PIECES, "[E1]"], "tokenizer_config": {"extra_special_tokens": {"entity_token": "[E1]"}}},
    ],
)
def test_added_tokens_are_recognised_in_every_text(tmp_path, files):
    tokenizer = load_tokenizer(write(tmp_path, **files), lowercase=False)
    assert (tokenizer.pieces, tokenizer.added) == ([*PIECES, "[E1]"], ("[E1]",))
    assert tokenizer.encode_with_specials("a[E1]") == tokenizer.encode("a[E1]") == [*tokenizer.encode("a"), len(PIECES)]
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert (again.vocabulary, again.added) == (tokenizer.vocabulary, ("[E1]",))
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert rust.encode("a[E1]", add_special_tokens=False).ids == tokenizer.encode_with_specials("a[E1]")


def test_added_tokens_that_contradict_a_vocab_txt_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"id 5 is 'a' in the vocabulary, but '\[E1\]' in the added tokens"):
        load_tokenizer(write(tmp_path, vocab=PIECES, added_tokens={"[E1]": 5}), lowercase=False)
    (tmp_path / "alone").mkdir()
    with pytest.raises(
        UserError,
        match=rf"add '\[E2\]' with the id {len(PIECES)}, but tokenizer.json has no such token; take all files from "
        rf"one model",
    ):
        load_tokenizer(write(tmp_path / "alone", tokenizer=tokenizer_json(), added_tokens={"[E2]": len(PIECES)}))
    with pytest.raises(UserError, match="ids of added tokens must continue"):
        load_tokenizer(write(tmp_path, vocab=PIECES, added_tokens={"[E1]": 999}), lowercase=False)
    with pytest.raises(UserError, match=rf"^{tmp_path}: the added token 'covid' \(id {len(PIECES)}\) is not a special token"):
        load_tokenizer(write(tmp_path, vocab=PIECES, added_tokens={"covid": len(PIECES)}), lowercase=False)


def test_a_file_given_by_its_path_is_read_without_its_neighbours(tmp_path):
    write(tmp_path, vocab=PIECES, tokenizer=tokenizer_json())
    write(tmp_path, tokenizer_config={"do_lower_case": True}, added_tokens={"[E1]": 999}, special_tokens_map={"mask_token": "a"})
    for name in ("vocab.txt", "tokenizer.json"):
        tokenizer = load_tokenizer(tmp_path / name, lowercase=False)
        assert (tokenizer.size, tokenizer.mask_id, tokenizer.added) == (len(PIECES), 4, ())


@pytest.mark.parametrize(
    ("config", "differs"),
    [
        ({"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True}, ""),
        ({"strip_accents": True, "model_max_length": 64}, "strip_accents=true"),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, "do_lower_case=true and tokenize_chinese_chars=false"),
        (["damaged"], ""),
    ],
)
def test_text_rules_next_to_a_file_that_are_not_used_are_reported(tmp_path, config, differs):
    write(tmp_path, vocab=PIECES, tokenizer=tokenizer_json(), tokenizer_config=config)
    for name in ("vocab.txt", "tokenizer.json"):
        note = f"the tokenizer_config.json next to {tmp_path / name} has {differs}, which is not used, because the vocabulary "
        notes = load_tokenizer(tmp_path / name, lowercase=False).notes
        assert notes == ((f"{note}is given as a file; give its directory to use all files",) if differs else ())
    (tmp_path / "vocab.txt").rename(tmp_path / "other.txt")  # these settings are not of this vocabulary
    assert load_tokenizer(tmp_path / "other.txt", lowercase=False).notes == ()


@pytest.mark.parametrize(("name", "settles"), [("vocab.txt", True), ("other.txt", False)])
def test_an_unclear_casing_can_be_written_to_the_settings_of_a_directory(tmp_path, name, settles):
    (tmp_path / name).write_text("\n".join([*SPECIALS, "the", "cat"]))
    with pytest.raises(UserError, match=r"is unclear.* give --lowercase or --cased") as raised:
        load_tokenizer(tmp_path / name)
    assert str(raised.value).endswith("next to the vocabulary, and give the directory") is settles
    write(tmp_path, tokenizer_config={"do_lower_case": True})
    if settles:
        assert load_tokenizer(tmp_path).vocabulary.lowercase


@pytest.mark.parametrize("unlimited", [int(1e30), 1e30, float("inf"), float("nan"), 0, -1, None])
def test_limits_on_texts_and_words_are_read_and_may_be_absent(tmp_path, unlimited):
    config = {"do_lower_case": False, "model_max_length": unlimited, "max_input_chars_per_word": 3}
    tokenizer = load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer_config=config))
    assert (tokenizer.max_length, tokenizer.max_word_characters) == (None, 3)
    assert tokenizer.encode("abcd") == [tokenizer.unk_id]
    write(tmp_path, tokenizer_config=config | {"model_max_length": 512})
    assert load_tokenizer(tmp_path).max_length == 512
    for length, known in ((10**9, None), (10**9 - 1, 10**9 - 1)):
        write(tmp_path, tokenizer_config={"do_lower_case": False, "max_len": length})
        assert load_tokenizer(tmp_path).max_length == known
    write(tmp_path, tokenizer_config=config | {"model_max_length": 512})
    assert load_tokenizer(tmp_path, max_word_characters=9).max_word_characters == 9


def test_a_manifest_leaves_out_the_usual_rules_of_accents_and_ideographs(tmp_path):
    info = load_tokenizer(write(tmp_path, tokenizer=tokenizer_json())).vocabulary
    usual = {"size": len(PIECES), "sha256": info.sha256, "lowercase": False, "kind": "wordpiece"}
    usual |= {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    assert VocabularyInfo(**usual) == info
    assert info.to_json() == usual
    part = normalizer(strip_accents=True, handle_chinese_chars=False)
    other = load_tokenizer(write(tmp_path, tokenizer=tokenizer_json(normalizer=part))).vocabulary
    assert other.to_json() == info.to_json() | {"strip_accents": True, "split_cjk": False}
    assert VocabularyInfo(**other.to_json()) == other


BERT = {"type": "BertPreTokenizer"}


@pytest.mark.parametrize(
    "content",
    [
        {"model": "WordPiece"},
        {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}}, "pre_tokenizer": [1]},
        {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}}, "pre_tokenizer": BERT, "added_tokens": [{"content": "[X]"}]},
        {"model": {"type": "WordPiece", "vocab": {"[PAD]": "0"}}, "pre_tokenizer": BERT},
        {
            "model": {"type": "WordPiece", "vocab": {"[PAD]": 10**13}},
            "pre_tokenizer": BERT,
            "normalizer": {"type": "BertNormalizer"},
        },
    ],
)
def test_a_tokenizer_json_of_another_layout_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer\.json.*(copy the files? again|is not supported)"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [("vocab.txt", b""), ("vocab.txt", b"\n \n"), ("spiece.model", b""), ("spiece.model", bytes(range(256)) * 20)],
)
def test_a_path_without_a_vocabulary_is_refused_with_a_remedy(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(
            UserError, match=rf"{name} is (empty|not a SentencePiece model).*; copy the model's .*--train-vocab=wordpiece"
        ):
            load_tokenizer(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "[PAD]\n[UNK]\t5\n", r"a.txt, line 2: '\[UNK\]\\t5' has a TAB; give one piece per line"),
        ("a.txt", ' { "a": 1}', "a.txt is JSON instead of one piece per line; if it is a tokenizer.json"),
        ("a.txt", " \n\n", "a.txt is empty; "),
        ("a.json", "{}", "a.json has no 'model', so it is not a tokenizer.json"),
    ],
)
def test_a_file_that_holds_no_pieces_is_refused(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"^vocabulary {tmp_path}/{says}"):
        load_tokenizer(tmp_path / name)


def test_pieces_that_mark_the_start_of_a_word_are_refused_as_wordpiece(tmp_path):
    """KoBERT's vocab.txt has the pieces of a SentencePiece model."""
    pieces = [*SPECIALS, "▁", "a", "##b"]
    for mark, says in (("▁", "as in SentencePiece.* model's spiece.model$"), ("Ġ", "as in byte-level.* model's tokenizer.json$")):
        write(tmp_path, vocab=[*pieces, f"{mark}a", f"{mark}b"], tokenizer_config={"do_lower_case": False})
        for path in (tmp_path, tmp_path / "vocab.txt"):
            with pytest.raises(UserError, match=rf"^{tmp_path}/vocab.txt: 2 of its 10 pieces start with {mark}, {says}"):
                load_tokenizer(path, lowercase=False)
        assert load_tokenizer(write(tmp_path, vocab=[*pieces, f"{mark}a"])).size == 9
    assert load_tokenizer(write(tmp_path, vocab=[*SPECIALS, *"abcd", "Ġan"])).size == 10  # whole words in Maltese


def test_a_pipe_is_refused_as_a_vocabulary(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match=r"pipe.txt is a pipe or a device"):
        load_tokenizer(tmp_path / "pipe.txt")


MOST = 10_000_000


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("[X]", r"the added token \"\[X\]\" has no text"),
        ({"id": 5, "content": 7}, "has no text; copy the file again"),
        ({"id": "5", "content": "[X]"}, r"the id of the added token '\[X\]' is \"5\", not an integer from 0 to 9,999,999"),
        ({"id": True, "content": "[X]"}, "is true, not an integer"),
        ({"id": -1, "content": "[X]"}, "is -1, not an integer"),
        ({"id": MOST, "content": "[X]"}, "is 10000000, not an integer"),
    ],
)
def test_an_added_token_has_a_text_and_an_id(tmp_path, token, says):
    content = tokenizer_json()
    content["added_tokens"].append(token)
    with pytest.raises(UserError, match=f"tokenizer.json: .*{says}"):
        load_tokenizer(write(tmp_path, tokenizer=content))


def test_added_tokens_are_a_list_or_an_object(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer.json: the added tokens are \{\"a\": 1\}, not a list; copy the file again"):
        load_tokenizer(write(tmp_path, tokenizer=tokenizer_json(added_tokens={"a": 1})))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        UserError, match=r"tokenizer_config.json: added_tokens_decoder is \[5\], not an object; copy the file again"
    ):
        load_tokenizer(write(tmp_path, vocab=PIECES, tokenizer_config={"added_tokens_decoder": [5]}))


@pytest.mark.parametrize("i", [-1, MOST, "5", True])
def test_the_id_of_a_piece_is_an_integer_below_ten_millions(tmp_path, i):
    content = tokenizer_json()
    content["model"]["vocab"]["a"] = i
    if isinstance(i, str):  # ids of one type are sorted first
        content["model"]["vocab"] = {"a": i}
        content["added_tokens"] = []
    with pytest.raises(UserError, match=rf"tokenizer.json: the id of 'a' is {i!r}, not an integer from 0 to 9,999,999"):
        load_tokenizer(write(tmp_path, tokenizer=content))


def test_pieces_of_a_wordpiece_model_are_an_object(tmp_path):
    content = tokenizer_json()
    content["model"]["vocab"] = ["a"]
    with pytest.raises(UserError, match=r"the vocab of the WordPiece model is \[\"a\"\], not an object of pieces and ids"):
        load_tokenizer(write(tmp_path, tokenizer=content))
