"""Marian's tokenizer: it returns the ids of transformers' `MarianTokenizer` on random Unicode; language codes; saved files."""

from __future__ import annotations

import io
import json
import pathlib

import pytest
import sentencepiece

from bert_jax.data.tokenizers import marian
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from tests.data.tokenizers.test_json_tokenizer import documents

CODES = (">>deu<<", ">>fra<<")


@pytest.fixture(scope="module", params=["shared", "separate"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_marian(tmp_path_factory.mktemp(request.param), separate=request.param == "separate")


def write_marian(path: pathlib.Path, *, separate: bool) -> pathlib.Path:
    """Writes two SentencePiece models with normalisation, and a vocabulary that lacks some of their pieces."""
    pieces, lines = {}, [line for document in documents() for line in document]
    for name, size in (("source", 400), ("target", 300)):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines if name == "source" else lines[::3]), model_writer=written, vocab_size=size,
            character_coverage=0.98, minloglevel=2,
        )  # fmt: skip
        (path / f"{name}.spm").write_bytes(written.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces[name] = [model.id_to_piece(i) for i in range(3, size) if i % 17]
    vocabularies = [[*pieces["source"], *pieces["target"]]] if not separate else [pieces["source"], pieces["target"]]
    for name, own in zip(("vocab", "target_vocab"), vocabularies, strict=False):
        words = dict.fromkeys(["</s>", "<unk>", "<pad>", *CODES, *own])
        (path / f"{name}.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    settings |= {"separate_vocabs": separate, "target_vocab_file": str(path / "target_vocab.json")}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture
def tokenizer(directory: pathlib.Path) -> Tokenizer:
    return load_tokenizer(directory)


def test_a_text_is_split_into_pieces_of_its_language_with_vocabulary_ids(tokenizer: Tokenizer, directory: pathlib.Path):
    ids = json.loads((directory / "vocab.json").read_text())
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "source.spm"))
    expected = [ids.get(piece, ids["<unk>"]) for piece in model.encode("The object is a list.", out_type=str)]
    assert tokenizer.encode("The object is a list.") == expected
    assert tokenizer.encode(">>deu<<The object is a list.") == [ids[">>deu<<"], *expected]
    assert tokenizer.encode(">>eng<< x")[0] == tokenizer.unk_id
    assert (tokenizer.pad_id, tokenizer.sep_id) == (ids["<pad>"], ids["</s>"])
    own = directory / "target_vocab.json"
    words = json.loads(own.read_text()) if own.exists() else ids
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "target.spm"))
    pieces = model.encode("A Python object.", out_type=str)
    assert tokenizer.encode("A Python object.", target=True) == [words.get(piece, words["<unk>"]) for piece in pieces]


def test_offsets_count_characters_after_the_language_code(tokenizer: Tokenizer):
    text = ">>deu<< The object is a list."
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert text[slice(*spans[0])] == ">>deu<<"
    assert "".join(text[start:end] for start, end in spans[1:]) == "Theobjectisalist."
    text = "A Python object."
    ids, spans = tokenizer.target_tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text, target=True)
    assert "".join(text[start:end] for start, end in spans) == "APythonobject."


def test_a_language_code_is_a_word_of_its_own(tokenizer: Tokenizer):
    for code in ("", ">>deu<<"):
        text = f"{code} The object, a list."
        words = [text[start:end] for start, end in tokenizer.word_spans(text)]
        assert words == [*filter(None, [code]), "The", "object,", "a", "list."]
    ids = tokenizer.encode("The object, a list.")
    continues = tokenizer.continuation_table[ids]
    assert continues.tolist() == [not tokenizer.pieces[i].startswith("\u2581") and i not in tokenizer.special_ids for i in ids]
    assert continues.any()


@pytest.mark.parametrize(
    ("text", "code"), [(">>deu<< x", ">>deu<<"), (">>fra<<", ">>fra<<"), (">> not a code", ""), ("a << b", ""), ("", "")]
)
def test_a_code_is_at_the_start_of_a_text_between_angle_brackets(text: str, code: str):
    assert marian._split_code(text) == (code, text.removeprefix(code))


@pytest.mark.parametrize("target", [False, True])
def test_decoded_text_has_no_special_tokens(tokenizer: Tokenizer, target: bool):
    known = [i for i in tokenizer.encode("The object is a list.", target=target) if i != tokenizer.unk_id]
    decoded = tokenizer.decode([tokenizer.pad_id, *known, tokenizer.unk_id, tokenizer.sep_id], target=target)
    pieces = (tokenizer.target_tokenizer if target else tokenizer).pieces
    assert decoded == "".join(pieces[i] for i in known).replace("\u2581", " ").strip()
    assert len(decoded) > 10


def test_an_id_without_a_piece_has_the_empty_piece():
    assert marian._by_id({"a": 0, "b": 2}) == ["a", "", "b"]


def test_a_second_vocabulary_is_left_out_if_the_settings_say_so(tmp_path: pathlib.Path):
    write_marian(tmp_path, separate=True)
    assert load_tokenizer(tmp_path).separate_vocabularies
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"separate_vocabs": False}))
    shared = load_tokenizer(tmp_path)
    assert not shared.separate_vocabularies
    assert shared.target_tokenizer.pieces == shared.pieces
    config.unlink()
    assert load_tokenizer(tmp_path).separate_vocabularies


def test_files_are_saved_byte_for_byte(tokenizer: Tokenizer, directory: pathlib.Path, tmp_path: pathlib.Path):
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary
    for path in directory.iterdir():
        if path.name != "tokenizer_config.json":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    before, after = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (directory, tmp_path))
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("target.spm", None, "holds source.spm but no target.spm"),
        ("source.spm", b"", "are not Marian's tokenizer"),
        ("target.spm", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 1}', "has no <pad>"),
    ],
)
def test_missing_or_damaged_files_are_refused(directory, tmp_path: pathlib.Path, name, content, says):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("options", "says"), [({"lowercase": True}, "--lowercase"), ({"max_word_characters": 9}, "--max-word")])
def test_rules_that_marian_does_not_have_are_refused(directory, options, says):
    with pytest.raises(UserError, match=f"^{says}.*; leave it out"):
        load_tokenizer(directory, **options)
    assert not load_tokenizer(directory, lowercase=False).vocabulary.lowercase
