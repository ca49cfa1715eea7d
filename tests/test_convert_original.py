"""`convert` from and to checkpoints of the original BERT."""

from __future__ import annotations

import json
import pathlib
import shutil

import jax
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.tensorflow import export_tf1, import_tf1
from bert_jax.model.heads import make_head
from tests.interop.tiny import make_labelled_model, make_model, make_vocabulary
from tests.test_convert import TF1, convert, same_weights


def test_an_original_checkpoint_survives_a_round_trip_through_hugging_face(tmp_path, capsys):
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


def test_an_original_checkpoint_accepts_an_activation_and_a_file_prefix(tmp_path):
    convert(TF1 / "model.ckpt-1000", tmp_path / "hf", "--activation=gelu_tanh")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["hidden_act"] == "gelu_new"
    with pytest.raises(UserError, match="leave it out for"):
        convert(tmp_path / "hf", tmp_path / "again", "--activation=gelu")


def test_unknown_tensors_of_the_original_are_an_error_unless_dropped_by_name(tmp_path):
    fields = json.loads((TF1 / "bert_config.json").read_text())
    shutil.copytree(TF1, tmp_path / "deep")
    (tmp_path / "deep" / "bert_config.json").write_text(json.dumps(fields | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match="not part of this model: bert/encoder/layer_1"):
        convert(tmp_path / "deep", tmp_path / "m")
    convert(tmp_path / "deep", tmp_path / "m", "--drop=bert/encoder/layer_1/*")
    assert import_model(tmp_path / "m").config.num_layers == 1
    with pytest.raises(UserError, match="no part 'head'"):
        convert(TF1, tmp_path / "n", "--new=head")


def test_a_truncated_original_checkpoint_is_named(tmp_path):
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


def export_recording(directory: pathlib.Path, *, lowercase: bool, activation: str) -> None:
    """Exports a model in the original's format, which records casing and activation. The vocabulary does not show the
    casing."""
    directory.mkdir()
    (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nriver\n")
    tokenizer = load_tokenizer(directory / "vocab.txt", lowercase=lowercase)
    tokenizer.save(directory)
    params, config = make_model(directory, layer_norm_epsilon=1e-12, activation=activation)
    export_tf1(directory / "tf1", params, config, tokenizer)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("given", [None, False, True])
def test_a_given_casing_takes_precedence_over_the_recorded_one(tmp_path, recorded, given):
    export_recording(tmp_path / "m", lowercase=recorded, activation="gelu")
    expected = recorded if given is None else given
    assert import_tf1(tmp_path / "m" / "tf1", lowercase=given)[2].vocabulary.lowercase == expected
    convert(tmp_path / "m" / "tf1", tmp_path / "hf", *({None: [], False: ["--cased"], True: ["--lowercase"]}[given]))
    assert import_model(tmp_path / "hf").tokenizer.vocabulary.lowercase == expected


@pytest.mark.parametrize("recorded", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("given", [None, "gelu", "gelu_tanh", "relu"])
def test_a_given_activation_takes_precedence_over_the_recorded_one(tmp_path, recorded, given):
    export_recording(tmp_path / "m", lowercase=True, activation=recorded)
    expected = given or recorded
    assert import_tf1(tmp_path / "m" / "tf1", activation=given)[1].activation == expected
    convert(tmp_path / "m" / "tf1", tmp_path / "hf", *([f"--activation={given}"] if given else []))
    assert import_model(tmp_path / "hf").config.activation == expected


@pytest.mark.parametrize("recorded", ["classification", "multi_label"])
@pytest.mark.parametrize("given", ["classification", "multi_label"])
def test_given_labels_and_problem_take_precedence_over_the_recorded_ones(tmp_path, recorded, given):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=False)
    head = make_head("sequence", labels=("no", "yes"), problem=recorded)
    export_model(tmp_path / "m", make_labelled_model(vocabulary, head))
    convert(tmp_path / "m", tmp_path / "given", "--labels=a,b", f"--problem={given}")
    assert import_model(tmp_path / "given").head == make_head("sequence", labels=("a", "b"), problem=given)
    convert(tmp_path / "m", tmp_path / "recorded")
    assert import_model(tmp_path / "recorded").head == head
