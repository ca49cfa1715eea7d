"""Files of models other than Transformers: our own directories, and word2vec's text format."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.analysis.controls import random_weights
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import UserError
from bert_jax.interop.conversion import load_model
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.names import our_shapes
from bert_jax.interop.word2vec import export_word2vec, import_word2vec
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import make_head
from bert_jax.model.pretraining import pretraining_model
from tests.interop.tiny import SPECIALS, make_model, make_vocabulary

SETTINGS = {
    "bilm": {"encoder": "bilm"},
    "left_to_right": {"encoder": "bilm", "direction": "left_to_right", "tied_decoder": False},
    "characters": {"encoder": "bilm", "character_cnn": True, "tied_decoder": False},
    "static": {"encoder": "static", "num_layers": 0},
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "tokenizer", cased=False)


def model_of(vocabulary, name: str, *, head: bool = False, **fields: Any) -> Model:
    params, config = make_model(vocabulary, **SETTINGS[name] | fields)
    params.pop("pooler", None)
    tagger = make_head("token", labels=("A", "B")) if head else None
    if tagger:
        shapes = our_shapes(config, tagger)
        params[tagger.subtree] = {
            "dense": {name: np.ones(shapes[f"{tagger.subtree}/dense/{name}"], np.float32) for name in ("kernel", "bias")}
        }
    return Model(params=params, config=config, tokenizer=load_tokenizer(vocabulary), head=tagger)


@pytest.mark.parametrize("name", SETTINGS)
def test_predecessors_survive_export_and_import(vocabulary, tmp_path, name):
    model = model_of(vocabulary, name, head=True)
    export_model(tmp_path / "model", model)
    back = import_model(tmp_path / "model", vocab_multiple=64)
    shape = ["encoder", "direction", "hidden_size", "num_layers", "intermediate_size", "vocab_size", "tied_decoder"]
    shape += ["character_cnn"]
    assert all(getattr(back.config, field) == getattr(model.config, field) for field in shape)
    assert back.head == model.head
    size = model.config.vocab_size
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(model.params), jax.tree.leaves(back.params), strict=True):
        assert np.array_equal(x[:size], y[:size]), path
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == SETTINGS[name]["encoder"]


def test_word2vec_text_format_keeps_vectors_bit_for_bit(vocabulary, tmp_path, capsys):
    model = model_of(vocabulary, "static")
    export_model(tmp_path / "model", model)
    convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'vectors'}", "--format=word2vec"])
    assert "skip_gram_head is not exported" in capsys.readouterr().out
    lines = (tmp_path / "vectors" / "vectors.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"{model.config.vocab_size} 16"
    assert lines[1].split(" ")[0] == "[PAD]"
    back = load_model(tmp_path / "vectors")
    table = model.params["embeddings"]["word_embeddings"]["embedding"][: model.config.vocab_size]
    assert np.array_equal(back.params["embeddings"]["word_embeddings"]["embedding"], table)
    size = model.config.vocab_size
    assert back.config == ModelConfig(encoder="static", num_layers=0, vocab_size=size, hidden_size=16)
    assert (back.parts, back.source, back.notes) == ((), str(tmp_path / "vectors"), ())
    lines[0] = f"{size + 1} 16"
    (tmp_path / "vectors" / "vectors.txt").write_text("\n".join([*lines, f"unknown{' 1' * 16}"]) + "\n", encoding="utf-8")
    assert load_model(tmp_path / "vectors").notes == ("left out the vectors of 1 word that are not in the vocabulary",)


def test_vectors_without_a_vocabulary_use_the_given_one_and_may_get_new_parts(vocabulary, tmp_path):
    model = model_of(vocabulary, "static")
    export_word2vec(tmp_path / "vectors", model)
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "vectors" / "vectors.txt").rename(alone / "vectors.txt")
    convert.main([f"--from={alone}", f"--to={tmp_path / 'm'}", f"--vocab={vocabulary}", "--new=skip_gram_head"])
    back = import_model(tmp_path / "m")
    assert (back.parts, back.untrained) == (("skip_gram_head",), {"skip_gram_head"})
    assert back.tokenizer.vocabulary == model.tokenizer.vocabulary
    convert.main([f"--from={alone}", f"--to={tmp_path / 'm'}", f"--vocab={vocabulary}", "--drop=skip_gram_head"])
    assert import_model(tmp_path / "m").parts == ()
    (alone / "vocab.txt").write_bytes((vocabulary / "vocab.txt").read_bytes())
    (alone / "tokenizer_config.json").write_text('{"strip_accents": false}')
    found = import_word2vec(alone / "vectors.txt", vocabulary=alone / "vocab.txt", lowercase=True)
    assert "has strip_accents=false, which is not used" in found.notes[0]
    with pytest.raises(UserError, match="--drop=mine: word vectors have no such part; leave it out"):
        convert.main([f"--from={alone}", f"--to={tmp_path / 'm'}", f"--vocab={vocabulary}", "--drop=mine"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pieces": ["the", "new york"]}, "the piece 'new york' has spaces, which word2vec's format cannot hold; choose another"),
        ({"pieces": ["", "the"]}, "the piece '' is empty, which word2vec's format cannot hold"),
        ({"pieces": [" the", "of"]}, "the piece ' the' has spaces"),
        ({"table": np.array([[1, np.nan]] * 7, np.float32)}, "nothing is written to .*: NaN or infinity in word vectors"),
    ],
    ids=["two words", "no word", "space before", "not finite"],
)
def test_words_that_cannot_be_read_back_are_not_written(vocabulary, tmp_path, change, says):
    words = Tokenizer(WordPiece([*SPECIALS, *change.get("pieces", ["the", "of"])], lowercase=False))
    table = change.get("table", np.zeros((words.size, 2), np.float32))
    config = ModelConfig(encoder="static", num_layers=0, vocab_size=words.size, hidden_size=2)
    model = Model(params={"embeddings": {"word_embeddings": {"embedding": table}}}, config=config, tokenizer=words)
    with pytest.raises(UserError, match=says):
        export_word2vec(tmp_path / "vectors", model)
    assert not (tmp_path / "vectors").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: ["words 16", *lines[1:]], "line 1 must have the word count and the width"),
        (lambda lines: [f"{'9' * 5000} 16", *lines[1:]], "line 1 must have the word count and the width"),
        (lambda lines: ["² 16", *lines[1:]], "line 1 must have the word count and the width"),
        (lambda lines: [f"{lines[0]} 1", *lines[1:]], "line 1 must have the word count and the width"),
        (lambda lines: ["0 16"], "line 1 must have the word count and the width"),
        (lambda lines: [*lines[:3], lines[3] + " 1.0", *lines[4:]], "line 4 must be a word and 16 finite numbers"),
        (lambda lines: [*lines[:3], lines[3].rsplit(" ", 1)[0] + " nan", *lines[4:]], "line 4 must be a word and 16 finite"),
        (lambda lines: lines[:-1], "its first line states"),
        (lambda lines: [*lines[:-1], "other" + lines[-1][lines[-1].index(" ") :]], "has no vector for 1 piece of the vocabulary"),
    ],
)
def test_damaged_vectors_with_a_vocabulary_are_refused(vocabulary, tmp_path, damage, says):
    model = model_of(vocabulary, "static")
    export_model(tmp_path / "model", model)
    convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'vectors'}", "--format=word2vec"])
    file = tmp_path / "vectors" / "vectors.txt"
    file.write_text("\n".join(damage(file.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=says):
        load_model(tmp_path / "vectors")


@pytest.mark.parametrize(("form", "says"), [("word2vec", "has layers"), ("tf1", "is a bilm model; choose another --format")])
def test_a_bilm_is_not_written_in_a_format_that_cannot_hold_it(vocabulary, tmp_path, form, says):
    export_model(tmp_path / "model", model_of(vocabulary, "bilm"))
    with pytest.raises(UserError, match=says):
        convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'other'}", f"--format={form}"])


def loaded(directory: pathlib.Path, *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the outputs of an exported file."""
    forward = jax.export.deserialize((directory / "forward.stablehlo").read_bytes())
    return {name: np.asarray(x) for name, x in forward.call(*inputs).items()}


@pytest.mark.parametrize("name", ["bilm", "left_to_right", "characters"])
def test_exported_functions_of_a_bilm_compute_vectors_and_predictions(vocabulary, tmp_path, name):
    model = model_of(vocabulary, name, num_layers=2 if name == "bilm" else 1)
    export_model(tmp_path / "model", model)
    ids = np.array([[2, 9, 30, 11, 3, 0], [2, 7, 3, 0, 0, 0]], np.int32)
    mask = (ids > 0).astype(np.int32)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), ids.shape)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "position_ids": positions, "sequence_ids": mask}
    batch |= {"masked_positions": positions}
    expected = jax.jit(pretraining_model(model.config, next_sentence=False).apply)({"params": model.params}, batch)
    functions = [("pretraining", "mlm_logits", "mlm_logits")]
    if name != "characters":  # the two functions have the same embeddings
        functions.append(("encode", "last", "last_hidden_state"))
    for function, ours, theirs in functions:
        flags = ["--format=stablehlo", f"--function={function}", "--platforms=cpu"]
        convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / function}", *flags])
        found = loaded(tmp_path / function, ids, mask, 0 * ids)[theirs]
        assert found.shape[-1] == (model.config.hidden_size if function == "encode" else model.config.vocab_size)
        np.testing.assert_allclose(found, np.asarray(expected[ours])[..., : found.shape[-1]], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_impossible_parts_are_refused_and_others_added(vocabulary, tmp_path, name):
    whole = model_of(vocabulary, name)
    bare = {tree: whole.params[tree] for tree in ("embeddings", "encoder") if tree in whole.params}
    export_model(tmp_path / "model", dataclasses.replace(whole, params=bare))
    possible = "skip_gram_head" if name == "static" else "softmax"
    for part in {"pooler", "softmax", "nsp_head", "skip_gram_head"} - {possible}:
        left = "left-to-right " if name == "left_to_right" else ""
        says = rf"model is a {left}{SETTINGS[name]['encoder']} model, which has no {part}; the parts of its pretraining are "
        with pytest.raises(UserError, match=says):
            convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'm'}", f"--new={part}"])
    convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'm'}", f"--new={possible}"])
    assert import_model(tmp_path / "m").parts == (possible,)


def test_random_weights_keep_the_characters_of_the_words(vocabulary):
    model = model_of(vocabulary, "characters", num_layers=1)
    drawn, own = (one.params["embeddings"]["characters"] for one in (random_weights(model, 1), model))
    np.testing.assert_array_equal(drawn["symbols"], own["symbols"])
    assert not np.array_equal(drawn["embedding"], own["embedding"])


def test_a_head_that_reads_a_pooler_is_refused_for_word_vectors(vocabulary, tmp_path):
    export_model(tmp_path / "model", model_of(vocabulary, "static"))
    with pytest.raises(UserError, match=r"reads the pooler, but .* has no pooler; a static model cannot have a pooler"):
        convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'm'}", "--new=sequence_head", "--labels=a,b"])
