from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import flatten_dict

from bert_jax.convert import main
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.tensor_bundle import read_bundle, write_bundle
from bert_jax.interop.tensorflow import export_tf1, import_tf1
from bert_jax.model.heads import make_head
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary
from tests.small_disk import files_of_at_most

TF1 = pathlib.Path(__file__).parent / "golden" / "tf1" / "bert"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "cased", cased=True)


@pytest.fixture(scope="module")
def model(vocabulary, tmp_path_factory) -> pathlib.Path:
    """Returns a model that the original's code could have trained."""
    directory = tmp_path_factory.mktemp("convert") / "model"
    export_model(directory, as_model(*make_model(vocabulary, layer_norm_epsilon=1e-12), vocabulary))
    return directory


def labelled(vocabulary: pathlib.Path, directory: pathlib.Path, **head: Any) -> pathlib.Path:
    export_model(directory, make_labelled_model(vocabulary, make_head(**head), layer_norm_epsilon=1e-12))
    return directory


def convert(source: pathlib.Path, target: pathlib.Path, *flags: str) -> None:
    main([f"--from={source}", f"--to={target}", *flags])


def same_weights(a: Model, b: Model) -> bool:
    mine, other = flatten_dict(a.params), flatten_dict(b.params)
    return mine.keys() == other.keys() and all(np.array_equal(mine[path], other[path]) for path in mine)


# Formats


@pytest.mark.parametrize("form", ["huggingface", "tf1"])
def test_a_full_disk_is_an_error_and_keeps_the_older_export(model, tmp_path, form):
    convert(model, tmp_path / "m", f"--format={form}")
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    with files_of_at_most(10_000), pytest.raises(UserError, match=r"cannot write a model to .*/m: File too large; free space"):
        convert(model, tmp_path / "m", f"--format={form}")
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_an_original_checkpoint_that_is_not_finite_is_refused(model, tmp_path):
    convert(model, tmp_path / "tf1", "--format=tf1")
    data = next((tmp_path / "tf1").glob("*.data-00000-of-00001"))
    bundle = read_bundle(tmp_path / "tf1" / "bert_model.ckpt")
    tensors = {name: np.array(bundle[name]) for name in bundle}
    tensors["bert/pooler/dense/bias"][0] = np.nan
    data.unlink()
    write_bundle(tmp_path / "tf1" / "bert_model.ckpt", tensors)
    with pytest.raises(UserError, match=r"bert_model\.ckpt cannot be used because of NaN or infinity in pooler/dense/bias"):
        convert(tmp_path / "tf1", tmp_path / "m")
    params, config, tokenizer, _ = import_tf1(TF1)
    params["pooler"]["dense"]["bias"] = np.full_like(params["pooler"]["dense"]["bias"], np.inf)
    with pytest.raises(UserError, match=r"nothing is written to .*: NaN or infinity in bert/pooler/dense/bias"):
        export_tf1(tmp_path / "n", params, config, tokenizer)
    assert not (tmp_path / "n").exists()


def test_a_checkpoint_set_aside_by_a_killed_export_is_found(model, tmp_path):
    convert(model, tmp_path / "tf1", "--format=tf1")
    (tmp_path / "tf1").rename(tmp_path / ".tf1.replaced")
    convert(tmp_path / "tf1", tmp_path / "m")
    assert import_model(tmp_path / "m").parts == ("pooler", "mlm_head", "nsp_head")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_written_in_the_type_asked_for_and_rounded_to_nearest(model, tmp_path, dtype):
    convert(model, tmp_path / "m", f"--dtype={dtype}")
    written = safetensors.numpy.load_file(tmp_path / "m" / "model.safetensors")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for name, x in safetensors.numpy.load_file(model / "model.safetensors").items():
        np.testing.assert_array_equal(written[name], x.astype(kind))
        assert written[name].dtype == kind
    assert json.loads((tmp_path / "m" / "config.json").read_text())["torch_dtype"] == dtype


def test_a_weight_beyond_float16_is_refused(model, tmp_path):
    loaded = import_model(model)
    loaded.params["pooler"]["dense"]["bias"][3] = 70_000
    export_model(tmp_path / "large", loaded)
    with pytest.raises(UserError, match=r"70,000, above float16's maximum of 65,504; choose --dtype=bfloat16"):
        convert(tmp_path / "large", tmp_path / "m", "--dtype=float16")
    convert(tmp_path / "large", tmp_path / "m", "--dtype=bfloat16")


def test_a_workdir_stands_for_its_model_and_is_not_overwritten_by_its_conversion(model, tmp_path):
    shutil.copytree(model, tmp_path / "run" / "model")
    convert(tmp_path / "run", tmp_path / "m")
    assert same_weights(import_model(tmp_path / "m"), import_model(model))
    with pytest.raises(UserError, match=r"is the directory of the source"):
        convert(tmp_path / "run", tmp_path / "run" / "model", "--max-position=7")


def test_convert_exports_a_model_that_runs_without_the_package(model, tmp_path, capsys):
    convert(model, tmp_path / "m", "--format=stablehlo", "--length=8", "--platforms=cpu")
    told = [line[10:] for line in capsys.readouterr().out.splitlines()]
    for line in ("function: pretraining, for the platforms cpu", "input input_ids int32 [batch, 8]"):
        assert line in told
    assert "output mlm_logits float32 [batch, 8, 140]" in told
    assert not any("is not exported" in line for line in told)
    forward = jax.export.deserialize((tmp_path / "m" / "forward.stablehlo").read_bytes())
    ids = np.zeros((2, 8), np.int32)
    assert forward.call(ids, ids, ids)["nsp_logits"].shape == (2, 2)


# Nothing is lost without a warning


def test_heads_of_the_original_keep_their_labels_and_others_are_refused(vocabulary, tmp_path):
    sequence = labelled(vocabulary, tmp_path / "s", kind="sequence", labels=("no", "yes"))
    convert(sequence, tmp_path / "tf1", "--format=tf1")
    convert(tmp_path / "tf1", tmp_path / "back")
    assert import_model(tmp_path / "back").head == import_model(sequence).head
    token = labelled(vocabulary, tmp_path / "t", kind="token", labels=("O", "B"))
    with pytest.raises(UserError, match="no token head"):
        convert(token, tmp_path / "m", "--format=tf1")
    convert(token, tmp_path / "m", "--format=tf1", "--drop=token_head")
    assert import_tf1(tmp_path / "m")[3].head is None


def test_an_untied_decoder_is_refused_in_formats_without_one(vocabulary, tmp_path):
    untied = as_model(*make_model(vocabulary, tied_decoder=False, layer_norm_epsilon=1e-12), vocabulary)
    export_model(tmp_path / "m", untied)
    with pytest.raises(UserError, match="no separate decoder"):
        convert(tmp_path / "m", tmp_path / "tf1", "--format=tf1")


def test_untrained_parts_are_not_exported_as_trained(model, tmp_path):
    convert(model, tmp_path / "m", "--new=nsp_head")
    assert import_model(tmp_path / "m").untrained == {"nsp_head"}
    for form in ("tf1", "stablehlo"):
        with pytest.raises(UserError, match="nsp_head was never trained"):
            convert(tmp_path / "m", tmp_path / form, f"--format={form}")
        assert not (tmp_path / form).exists()
    convert(tmp_path / "m", tmp_path / "tf1", "--format=tf1", "--drop=nsp_head")


def test_added_tokens_are_refused_in_formats_without_them(model, tmp_path):
    (tmp_path / "tokens").write_text("[E1]\n")
    with pytest.raises(UserError, match=r"no added tokens such as \[E1\]"):
        convert(model, tmp_path / "m", "--format=tf1", f"--add-tokens={tmp_path / 'tokens'}")


def test_a_function_that_drops_parts_must_be_named(model, tmp_path, capsys):
    convert(model, tmp_path / "both", "--new=sequence_head", "--labels=a,b")
    trained = json.loads((tmp_path / "both" / "config.json").read_text())
    del trained["bert_jax"]["untrained"]
    (tmp_path / "both" / "config.json").write_text(json.dumps(trained))
    with pytest.raises(UserError, match="labels does not use mlm_head, nsp_head"):
        convert(tmp_path / "both", tmp_path / "m", "--format=stablehlo")
    capsys.readouterr()
    convert(tmp_path / "both", tmp_path / "m", "--format=stablehlo", "--function=labels")
    told = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert "function: labels, for the platforms cpu, cuda, tpu" in told
    assert [line for line in told if line.endswith("is not exported")] == ["mlm_head is not exported", "nsp_head is not exported"]
    signature = json.loads((tmp_path / "m" / "signature.json").read_text())
    assert signature["labels"] == ["a", "b"]


# Parts


def test_a_new_head_replaces_dropped_heads_and_is_marked_untrained(model, tmp_path, capsys):
    convert(model, tmp_path / "m", "--drop=mlm_head,nsp_head", "--new=sequence_head", "--labels=a,b,c", "--problem=multi_label")
    read = import_model(tmp_path / "m")
    assert read.head == make_head("sequence", labels=("a", "b", "c"), problem="multi_label")
    assert read.parts == ("pooler", "sequence_head")
    assert read.untrained == {"sequence_head"}
    lines = capsys.readouterr().out.splitlines()
    assert "new       parts: sequence_head" in lines
    assert "untrained sequence_head" in lines
    assert sum("was left out" in line for line in lines) == 2


# Changes, as flags


def test_every_change_has_a_flag_and_is_reported(model, tmp_path, capsys):
    (tmp_path / "tokens").write_text("rivers\nparis\n")
    flags = ("--max-position=50", "--new-positions=random", "--token-types=2", "--keep-layers=1")
    convert(model, tmp_path / "m", *flags, f"--add-tokens={tmp_path / 'tokens'}")
    config = import_model(tmp_path / "m").config
    assert (config.max_position, config.type_vocab_size, config.num_layers, config.vocab_size) == (50, 2, 1, 141)
    told = capsys.readouterr().out
    for line in (
        "layers: 2 -> 1 (kept: 1)",
        "position table: 40 -> 50 rows (new rows: random)",
        "token types: 3 -> 2",
        "vocabulary: 140 -> 141 pieces (cased); embeddings: 140 kept, 1 new (each the mean of its old pieces;",
        "tokens that the vocabulary already had: 1 of 2",
    ):
        assert line in told


def test_the_first_layers_are_kept(model, tmp_path):
    convert(model, tmp_path / "m", "--layers=1")
    (first,) = import_model(tmp_path / "m").params["encoder"]["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(first, import_model(model).params["encoder"]["layers"]["attention"]["query"]["kernel"][0])


def test_three_models_are_averaged(model, vocabulary, tmp_path):
    models = [import_model(model)]
    for n in (1, 2):
        params = jax.tree.map(lambda x, n=n: x * np.float32(1 - n), models[0].params)
        models.append(as_model(params, models[0].config, vocabulary))
        export_model(tmp_path / f"m{n}", models[-1])
    convert(model, tmp_path / "mean", f"--average={tmp_path / 'm1'}", f"--average={tmp_path / 'm2'}")
    for x in jax.tree.leaves(import_model(tmp_path / "mean").params):  # 1, 0 and -1 times the same
        assert not x.any()


# Bad input


def test_models_of_different_shapes_are_not_averaged(model, vocabulary, tmp_path):
    export_model(tmp_path / "narrow", as_model(*make_model(vocabulary, hidden_size=8), vocabulary))
    with pytest.raises(UserError, match=r"cannot be averaged: hidden_size is 16 and 8"):
        convert(model, tmp_path / "m", f"--average={tmp_path / 'narrow'}")
    assert not (tmp_path / "m").exists()


def test_an_export_in_one_format_is_not_replaced_by_one_in_another(model, tmp_path):
    convert(model, tmp_path / "m", "--format=tf1")
    with pytest.raises(UserError, match="exported in the format tf1, so it is not overwritten in huggingface; name another"):
        convert(model, tmp_path / "m")
    for source in ("m", "m/bert_model.ckpt", "m/bert_model.ckpt.index"):
        with pytest.raises(UserError, match=r"^--to=\S+/m is the directory of the source \S+; name another directory"):
            convert(tmp_path / source, tmp_path / "m")
    convert(model, tmp_path / "m", "--format=tf1", "--max-position=7")
    assert import_tf1(tmp_path / "m")[1].max_position == 7
