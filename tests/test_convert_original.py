"""`convert` from and to checkpoints of the original BERT."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(("lowercase", "activation"), [(False, "gelu"), (True, "gelu_tanh")])
def test_a_given_casing_or_activation_takes_precedence_over_the_recorded_one(tmp_path, lowercase, activation):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nriver\n")  # does not show the casing
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=lowercase)
    tokenizer.save(tmp_path)
    params, config = make_model(tmp_path, layer_norm_epsilon=1e-12, activation=activation)
    export_tf1(tmp_path / "tf1", params, config, tokenizer)
    flags = {None: [], False: ["--cased"], True: ["--lowercase"]}
    for casing, other in ((None, None), (False, "gelu"), (True, "gelu_tanh"), (None, "relu")):
        expected = (lowercase if casing is None else casing, other or activation)
        _, config, read, _ = import_tf1(tmp_path / "tf1", lowercase=casing, activation=other)
        assert (read.vocabulary.lowercase, config.activation) == expected
        convert(tmp_path / "tf1", tmp_path / "hf", *flags[casing], *([f"--activation={other}"] if other else []))
        model = import_model(tmp_path / "hf")
        assert (model.tokenizer.vocabulary.lowercase, model.config.activation) == expected


def test_given_labels_and_problem_take_precedence_over_the_recorded_ones(tmp_path):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=False)
    head = make_head("sequence", labels=("no", "yes"), problem="classification")
    export_model(tmp_path / "m", make_labelled_model(vocabulary, head))
    source = tmp_path / "m"
    for given in ("classification", "multi_label", "classification"):  # of models with each
        convert(source, tmp_path / "kept")
        assert import_model(tmp_path / "kept").head == head
        head = make_head("sequence", labels=(f"{given[0]}a", "b"), problem=given)
        convert(source, tmp_path / f"{given}-{source.name}", f"--labels={given[0]}a,b", f"--problem={given}")
        source = tmp_path / f"{given}-{source.name}"
        assert import_model(source).head == head
