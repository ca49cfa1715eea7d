"""Checkpoints of the original, to and from."""

from __future__ import annotations

import json
import shutil

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, import_model
from bert_jax.interop.tensorflow import import_tf1
from tests.test_convert import TF1, convert, same_weights


def test_a_checkpoint_of_the_original_goes_to_hugging_face_and_back_unchanged(tmp_path, capsys):
    params, config, tokenizer, _ = import_tf1(TF1)
    convert(TF1, tmp_path / "hf")
    read = import_model(tmp_path / "hf")
    assert (read.config, read.tokenizer.pieces) == (config, tokenizer.pieces)
    assert same_weights(read, Model(params=params, config=config, tokenizer=tokenizer))
    told = capsys.readouterr().out
    assert f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters" in told
    assert "'gelu' was read as the exact form" in told
    assert "slots of the optimizer" in told
    convert(tmp_path / "hf", tmp_path / "tf1", "--format=tf1")
    again = import_tf1(tmp_path / "tf1")
    assert again[1] == config
    assert same_weights(read, Model(params=again[0], config=config, tokenizer=tokenizer))


def test_the_activation_of_the_original_can_be_stated_and_its_files_be_named_by_their_beginning(tmp_path):
    convert(TF1 / "model.ckpt-1000", tmp_path / "hf", "--activation=gelu_tanh")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["hidden_act"] == "gelu_new"
    with pytest.raises(UserError, match="leave it out for"):
        convert(tmp_path / "hf", tmp_path / "again", "--activation=gelu")


def test_tensors_of_the_original_without_a_place_are_an_error_until_they_are_dropped_by_name(tmp_path):
    fields = json.loads((TF1 / "bert_config.json").read_text())
    shutil.copytree(TF1, tmp_path / "deep")
    (tmp_path / "deep" / "bert_config.json").write_text(json.dumps(fields | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match="not part of this model: bert/encoder/layer_1"):
        convert(tmp_path / "deep", tmp_path / "m")
    convert(tmp_path / "deep", tmp_path / "m", "--drop=bert/encoder/layer_1/*")
    assert import_model(tmp_path / "m").config.num_layers == 1
    with pytest.raises(UserError, match="no part 'head'"):
        convert(TF1, tmp_path / "n", "--new=head")


def test_a_truncated_checkpoint_of_the_original_is_named(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(TF1, broken)
    data = next(broken.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(UserError, match=data.name.replace(".", r"\.")):
        convert(broken, tmp_path / "m")
    index = next(broken.glob("*.index"))
    index.write_bytes(index.read_bytes()[:-10])
    with pytest.raises(UserError, match=index.name.replace(".", r"\.")):
        convert(broken, tmp_path / "m")
    assert not (tmp_path / "m").exists()
