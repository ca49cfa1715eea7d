"""A model that finds replaced tokens is exported as an ELECTRA, which is read as a BERT with this head."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop.conversion import load_model
from bert_jax.interop.families.electra import discriminator_shapes
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.interop.surgery import average
from bert_jax.objectives.model import Model as Encoder
from bert_jax.objectives.model import unboxed
from tests.interop.tiny import make_electra


@pytest.fixture(scope="module")
def electra(vocabulary: pathlib.Path) -> Model:
    return make_electra(vocabulary)


@pytest.fixture(scope="module")
def exported(electra: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("electra") / "model"
    export_model(directory, electra)
    return directory


def test_the_head_of_an_objective_has_the_shapes_of_the_export(electra: Model):
    head = unboxed(jax.eval_shape(Encoder(electra.config).discriminator, jax.random.key(0)))
    found = {f"discriminator/{layer}/{name}": x.shape for layer, arrays in head.items() for name, x in arrays.items()}
    assert found == discriminator_shapes(electra.config)


def test_the_files_and_the_card_are_of_an_electra(electra: Model, exported: pathlib.Path):
    fields, tensors = json.loads((exported / "config.json").read_text()), load_file(exported / "model.safetensors")
    assert (fields["model_type"], fields["architectures"]) == ("electra", ["ElectraForPreTraining"])
    assert fields["embedding_size"] == fields["hidden_size"]
    assert {name.split(".")[0] for name in tensors} == {"electra", "discriminator_predictions"}
    assert sum(x.size for x in tensors.values()) == electra.counts.trained
    card = (exported / "README.md").read_text()
    assert '"electra"' in card
    assert 'AutoModelForPreTraining.from_pretrained("DIR")' in card
    assert "embed --model=DIR" in card
    assert "# ELECTRA: " in card


def test_an_electra_is_read_as_a_bert_with_its_head(electra: Model, exported: pathlib.Path):
    model = load_model(exported)
    assert model.config == dataclasses.replace(electra.config, vocab_multiple=1)
    rows = model.config.vocab_size
    words = [one.params["embeddings"]["word_embeddings"]["embedding"][:rows] for one in (model, electra)]
    np.testing.assert_array_equal(*words)
    jax.tree.map(np.testing.assert_array_equal, model.params["encoder"], electra.params["encoder"])
    jax.tree.map(np.testing.assert_array_equal, model.discriminator, electra.discriminator)
    assert model.parts == ()
    assert "embedding_size" not in model.other_fields


def test_an_electra_is_converted_to_the_same_bytes(electra: Model, exported: pathlib.Path, tmp_path: pathlib.Path, capsys):
    convert.main([f"--from={exported}", f"--to={tmp_path / 'again'}"])
    assert "parts: embeddings, encoder, discriminator\n" in capsys.readouterr().out
    written = [(directory / "model.safetensors").read_bytes() for directory in (exported, tmp_path / "again")]
    assert written[0] == written[1]
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]


def test_an_electra_is_converted_to_a_bert_without_its_head(exported: pathlib.Path, tmp_path: pathlib.Path, capsys):
    convert.main([f"--from={exported}", f"--to={tmp_path / 'bert'}", "--drop=discriminator_predictions.*"])
    assert json.loads((tmp_path / "bert" / "config.json").read_text())["architectures"] == ["BertModel"]
    convert.main([f"--from={exported}", f"--to={tmp_path / 'pooled'}", "--new=pooler"])
    assert "discriminator is not exported\n" in capsys.readouterr().out


def test_a_head_that_lacks_a_tensor_is_left_out_with_a_note(exported: pathlib.Path, tmp_path: pathlib.Path):
    tensors = load_file(exported / "model.safetensors")
    shutil.copytree(exported, tmp_path / "model")
    del tensors["discriminator_predictions.dense.bias"]
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    model = load_model(tmp_path / "model")
    assert model.discriminator is None
    assert "discriminator_predictions, the head of an ELECTRA, was left out" in model.notes


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"embedding_size": 128}, r"config\.json: embedding_size=128 cannot be represented; only an ELECTRA whose "),
        ({"architectures": ["ElectraForMaskedLM"]}, r"supported classes: ElectraModel, ElectraForPreTraining$"),
    ],
)
def test_other_electras_are_refused(exported: pathlib.Path, fields, says):
    file = exported / "config.json"
    written = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(written) | fields))
        with pytest.raises(UserError, match=says):
            load_model(exported)
    finally:
        file.write_text(written)


def test_the_mean_of_models_has_the_mean_of_their_heads(electra: Model):
    other = dataclasses.replace(electra, discriminator=jax.tree.map(lambda x: 3 * x, electra.discriminator))
    mean = average([electra, other])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, 2 * y, rtol=1e-6), mean.discriminator, electra.discriminator)


def test_a_model_with_the_head_and_one_without_are_not_averaged(electra: Model):
    with pytest.raises(UserError, match="cannot be averaged: parts is discriminator and none"):
        average([electra, dataclasses.replace(electra, discriminator=None)])


def test_a_head_that_is_not_finite_is_never_exported(electra: Model, tmp_path: pathlib.Path):
    broken = dataclasses.replace(electra, discriminator=jax.tree.map(lambda x: x * np.nan, electra.discriminator))
    with pytest.raises(UserError, match="the model is unusable"):
        export_model(tmp_path / "model", broken)
