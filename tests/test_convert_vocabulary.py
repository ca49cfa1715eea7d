"""`convert` with a vocabulary that differs from the model's."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest

from bert_jax.convert import main
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model, import_model
from tests.interop.tiny import as_model, make_model, make_translator, make_vocabulary


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="module")
def model(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("convert") / "model"
    export_model(directory, as_model(*make_model(vocabulary), vocabulary))
    return directory


@pytest.fixture
def bare(model: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns the model without its vocabulary."""
    directory = tmp_path / "bare"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model / name, directory)
    return directory


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a workdir whose model has a lower-cased vocabulary."""
    base = tmp_path_factory.mktemp("workdir")
    lowercase = make_vocabulary(base / "lowercase", cased=False)
    export_model(base / "run" / "model", as_model(*make_model(lowercase), lowercase))
    (base / "run" / "checkpoints").mkdir()
    return base / "run"


def convert(source: pathlib.Path, target: pathlib.Path, *flags: str) -> None:
    main([f"--from={source}", f"--to={target}", *flags])


def test_a_directory_without_a_vocabulary_uses_the_given_one(bare, vocabulary, tmp_path):
    with pytest.raises(UserError, match=r"holds neither vocab\.txt"):
        convert(bare, tmp_path / "m")
    convert(bare, tmp_path / "m", f"--vocab={vocabulary}")
    assert load_tokenizer(tmp_path / "m").vocabulary == load_tokenizer(vocabulary).vocabulary


def test_the_casing_of_another_vocabulary_is_inferred_or_stated(model, tmp_path, capsys):
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "france"]
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="give --lowercase or --cased"):
        convert(model, tmp_path / "m", f"--replace-vocab={tmp_path / 'vocab.txt'}")
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    convert(model, tmp_path / "m", f"--replace-vocab={tmp_path / 'vocab.txt'}", "--lowercase")
    assert "has strip_accents=false, which is not used, because the vocabulary is given as a file" in capsys.readouterr().out
    read = import_model(tmp_path / "m")
    assert read.tokenizer.vocabulary.lowercase
    assert read.tokenizer.tokens(read.tokenizer.encode("Paris")) == ["paris"]
    recorded = json.loads((tmp_path / "m" / "config.json").read_text())["bert_jax"]["vocabulary_sha256"]
    assert recorded == read.tokenizer.vocabulary.sha256 != load_tokenizer(model).vocabulary.sha256


@pytest.mark.parametrize("place", ["", "model"])
def test_a_given_vocabulary_may_come_from_a_workdir_or_an_export(bare, model, vocabulary, tmp_path, place):
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    convert(bare, tmp_path / "m", f"--vocab={run / place}")
    assert load_tokenizer(tmp_path / "m").vocabulary == load_tokenizer(vocabulary).vocabulary


@pytest.mark.parametrize("place", ["", "model"])
def test_a_replacing_vocabulary_may_come_from_a_workdir_or_an_export(model, workdir, tmp_path, place):
    convert(model, tmp_path / "m", f"--replace-vocab={workdir / place}")
    found = load_tokenizer(tmp_path / "m").vocabulary
    assert found == load_tokenizer(workdir / "model").vocabulary != load_tokenizer(model).vocabulary
    assert found.lowercase


def test_a_workdir_without_a_model_is_refused_as_a_vocabulary(model, bare, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for source, flag in ((bare, "--vocab"), (model, "--replace-vocab")):
        with pytest.raises(UserError, match="run is a workdir that has no exported model yet"):
            convert(source, tmp_path / "m", f"{flag}={tmp_path / 'run'}")


def test_words_in_place_of_unused_pieces_keep_their_rows(tmp_path):
    pieces = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "france"]
    (tmp_path / "old.txt").write_text("\n".join(pieces))
    load_tokenizer(tmp_path / "old.txt", lowercase=True).save(tmp_path / "old")
    export_model(tmp_path / "model", as_model(*make_model(tmp_path / "old"), tmp_path / "old"))
    (tmp_path / "new.txt").write_text("\n".join(["lockdown" if piece == "[unused1]" else piece for piece in pieces]))
    convert(tmp_path / "model", tmp_path / "m", f"--vocab={tmp_path / 'new.txt'}", "--lowercase")
    before, after = import_model(tmp_path / "model"), import_model(tmp_path / "m")
    assert after.tokenizer.encode("lockdown") == [2]
    np.testing.assert_array_equal(*(m.params["embeddings"]["word_embeddings"]["embedding"] for m in (before, after)))
    renamed = import_model(tmp_path / "model", vocabulary=tmp_path / "new.txt", lowercase=True).notes
    assert renamed == ("1 unused piece renamed ([unused1] is now 'lockdown'); their rows are kept",)
    assert before.notes == import_model(tmp_path / "model", vocabulary=tmp_path / "old.txt", lowercase=True).notes == ()
    (tmp_path / "new.txt").write_text("\n".join(["lyon" if piece == "paris" else piece for piece in pieces]))
    with pytest.raises(UserError, match="the model was trained with another vocabulary"):
        convert(tmp_path / "model", tmp_path / "n", f"--vocab={tmp_path / 'new.txt'}", "--lowercase")


@pytest.mark.parametrize("change", ["none", "--add-tokens", "--replace-vocab"])
def test_a_vocabulary_with_a_line_end_as_a_piece_survives_every_change(model, tmp_path, change):
    pieces = load_tokenizer(model).pieces
    source = tmp_path / "source"
    shutil.copytree(model, source)
    (source / "vocab.txt").unlink()
    content = json.loads((source / "tokenizer.json").read_text())
    content["model"]["vocab"] = {("\n" if piece == "é" else piece): i for piece, i in content["model"]["vocab"].items()}
    (source / "tokenizer.json").write_text(json.dumps(content))
    fields = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({name: value for name, value in fields.items() if name != "bert_jax"}))
    (tmp_path / "words.txt").write_text("lockdown\n")
    values = {"--add-tokens": tmp_path / "words.txt", "--replace-vocab": source}
    convert(source, tmp_path / "m", *(f"{flag}={value}" for flag, value in values.items() if flag == change))
    read = import_model(tmp_path / "m").tokenizer
    added = ["lockdown"] if change == "--add-tokens" else []
    assert read.pieces == [*("\n" if piece == "é" else piece for piece in pieces), *added]
    assert not (tmp_path / "m" / "vocab.txt").exists()


def test_a_foreign_tokenizer_is_replaced_with_its_class(bare, vocabulary, tmp_path):
    fields = json.loads((bare / "config.json").read_text()) | {"tokenizer_class": "BertJapaneseTokenizer"}
    (bare / "config.json").write_text(json.dumps(fields))
    convert(bare, tmp_path / "m", f"--vocab={vocabulary}")
    assert "tokenizer_class" not in json.loads((tmp_path / "m" / "config.json").read_text())
    shutil.copy(vocabulary / "vocab.txt", bare)
    with pytest.raises(UserError, match=r'config.json: tokenizer_class="BertJapaneseTokenizer" is not supported'):
        convert(bare, tmp_path / "n")


def rows_of(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns piece -> its row of word embeddings."""
    read = import_model(directory)
    return dict(zip(read.tokenizer.pieces, read.params["embeddings"]["word_embeddings"]["embedding"], strict=False))


def test_a_byte_level_vocabulary_replaces_another_and_accepts_added_tokens(model, tmp_path):
    train_bpe([["Paris is in France. (It is in France.)"] * 9], 320, None, unused=4).save(tmp_path / "bytes")
    convert(model, tmp_path / "m", f"--replace-vocab={tmp_path / 'bytes'}")
    before = rows_of(tmp_path / "m")
    old = rows_of(model)
    for piece in ("[MASK]", "[CLS]"):
        np.testing.assert_array_equal(before[piece], old[piece])
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == (tmp_path / "bytes" / "tokenizer.json").read_bytes()
    (tmp_path / "tokens.txt").write_text("[E1]\nZ\u00fcrich\n")
    convert(tmp_path / "m", tmp_path / "n", f"--add-tokens={tmp_path / 'tokens.txt'}")
    after = rows_of(tmp_path / "n")
    assert list(after)[:261] == list(before)[:261]
    for piece in before.keys() & after.keys():
        np.testing.assert_array_equal(after[piece], before[piece], piece)
    tokenizer = load_tokenizer(tmp_path / "m")
    assert len(after) == len(before)
    assert before.keys() - after.keys() == {"[unused0]", "[unused1]"}
    pieces = [tokenizer.pieces[i] for i in tokenizer.encode(" Z\u00fcrich")]
    np.testing.assert_allclose(after["Z\u00fcrich"], np.mean([before[piece] for piece in pieces], axis=0), atol=1e-6)
    marks = [tokenizer.pieces[i] for i in tokenizer.encode("[E1]")]
    np.testing.assert_allclose(after["[E1]"], np.mean([before[piece] for piece in marks], axis=0), atol=1e-6)


def test_a_translator_with_another_vocabulary_has_the_special_tokens_of_that_vocabulary(tmp_path):
    """transformers reads their ids from config.json and generation_config.json."""
    words = make_vocabulary(tmp_path / "words", cased=True)
    export_model(tmp_path / "model", make_translator(words))
    file = tmp_path / "model" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_beams": 6, "bad_words_ids": [[0], [9]]}))
    (tmp_path / "added.txt").write_text("lockdown\n")
    convert(tmp_path / "model", tmp_path / "added", f"--add-tokens={tmp_path / 'added.txt'}")
    kept = json.loads((tmp_path / "added" / "generation_config.json").read_text())
    assert (kept["num_beams"], kept["bad_words_ids"], kept["eos_token_id"]) == (6, [[0], [9]], 3)
    pieces = ["the", "river", "[SEP]", "[UNK]", "[CLS]", "[PAD]", "[MASK]"]
    (tmp_path / "new.txt").write_text("\n".join(pieces) + "\n")
    convert(tmp_path / "model", tmp_path / "new", f"--replace-vocab={tmp_path / 'new.txt'}", "--cased")
    fields, found = (json.loads((tmp_path / "new" / f"{name}.json").read_text()) for name in ("config", "generation_config"))
    for one in (fields, found):
        assert [one[f"{name}_token_id"] for name in ("pad", "decoder_start", "eos", "forced_eos")] == [5, 5, 2, 2]
    assert (found["num_beams"], found["bad_words_ids"]) == (6, [[5]])
    assert import_model(tmp_path / "new").params["lm_head"]["final_logits_bias"].shape == (7,)
