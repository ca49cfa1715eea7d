"""Models that are no Transformer in files: our own directories, and word2vec's text format."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.corpus.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.heads.registry import make_head
from bert_jax.interop.conversion import load_model
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.names import our_shapes
from tests.interop.tiny import make_model, make_vocabulary

SETTINGS = {
    "bilm": {"encoder": "bilm"},
    "left_to_right": {"encoder": "bilm", "direction": "left_to_right", "tied_decoder": False},
    "characters": {"encoder": "bilm", "character_cnn": True, "tied_decoder": False},
    "static": {"encoder": "static", "num_layers": 0},
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "tokenizer", cased=False)


def model_of(vocabulary, name: str, *, head: bool = False) -> Model:
    params, config = make_model(vocabulary, **SETTINGS[name])
    params.pop("pooler")
    tagger = make_head("token", labels=("A", "B")) if head else None
    if tagger:
        shapes = our_shapes(config, tagger)
        params[tagger.part] = {
            "dense": {name: np.ones(shapes[f"{tagger.part}/dense/{name}"], np.float32) for name in ("kernel", "bias")}
        }
    return Model(params=params, config=config, tokenizer=load_tokenizer(vocabulary), head=tagger)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_directory_gives_the_model_that_was_written(vocabulary, tmp_path, name):
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


def test_word2vecs_text_format_gives_the_vectors_bit_for_bit(vocabulary, tmp_path, capsys):
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
    assert back.parts == ()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: ["words 16", *lines[1:]], "line 1 must be the number of words and the width"),
        (lambda lines: [*lines[:3], lines[3] + " 1.0", *lines[4:]], "line 4 must be a word and 16 finite numbers"),
        (lambda lines: [*lines[:3], lines[3].rsplit(" ", 1)[0] + " nan", *lines[4:]], "line 4 must be a word and 16 finite"),
        (lambda lines: lines[:-1], "its first line says"),
        (lambda lines: [*lines[:-1], "other" + lines[-1][lines[-1].index(" ") :]], "has no vector for 1 piece of the vocabulary"),
    ],
)
def test_files_that_hold_no_vectors_are_refused(vocabulary, tmp_path, damage, says):
    model = model_of(vocabulary, "static")
    export_model(tmp_path / "model", model)
    convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'vectors'}", "--format=word2vec"])
    file = tmp_path / "vectors" / "vectors.txt"
    file.write_text("\n".join(damage(file.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=says):
        load_model(tmp_path / "vectors")


@pytest.mark.parametrize(("form", "says"), [("word2vec", "has layers"), ("tf1", "is a bilm; choose another --format")])
def test_a_bilm_is_not_written_in_a_format_that_cannot_hold_it(vocabulary, tmp_path, form, says):
    export_model(tmp_path / "model", model_of(vocabulary, "bilm"))
    with pytest.raises(UserError, match=says):
        convert.main([f"--from={tmp_path / 'model'}", f"--to={tmp_path / 'other'}", f"--format={form}"])
