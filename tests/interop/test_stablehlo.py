from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data import INPUTS
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import stablehlo
from bert_jax.interop.directory import FORMATS
from bert_jax.interop.huggingface import Model, without_parts
from bert_jax.interop.stablehlo import export_stablehlo, natural_function
from bert_jax.interop.surgery import extended, find_sources, with_vocabulary
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.pretraining import BertForPreTraining
from tests.interop.tiny import as_model, make_labelled_model
from tests.prediction.reference import first_devices

FOREIGN = """
import sys, pathlib

class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bert_jax", "flax"):
            raise ImportError("there is no " + name + " here")

sys.meta_path.insert(0, NoPackage())
try:
    import bert_jax
except ImportError:
    pass
else:
    sys.exit("bert_jax can be imported")
import jax, numpy
for directory in map(pathlib.Path, sys.argv[1:]):
    forward = jax.export.deserialize((directory / "forward.stablehlo").read_bytes())
    for path in sorted(directory.parent.glob("inputs-*.npz")):
        inputs = numpy.load(path)
        length = forward.in_avals[0].shape[1]
        any_length = path.stem == "inputs-c" or directory.name == "pretraining"
        if length == inputs["input_ids"].shape[1] if isinstance(length, int) else any_length:
            outputs = forward.call(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
            numpy.savez(directory / path.name.replace("inputs", "outputs"), **outputs)
"""

SEQUENCE = SequenceHead(labels=("no", "yes", "perhaps"))
SHAPES = {"b": (4, 5), "c": (3, 40)}


def inputs_of(rows: int, length: int, words: int) -> dict[str, np.ndarray]:
    """Returns rows of random ids and types, with padding of different lengths."""
    rng = np.random.default_rng(rows)
    ends = rng.integers(2, length + 1, (rows, 1))
    return {
        "input_ids": rng.integers(0, words, (rows, length), np.int32),
        "attention_mask": (np.arange(length) < ends).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (rows, length), np.int32),
    }


def expected(model: Model, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the outputs of the model itself, with its padded vocabulary."""
    ids, mask, types = inputs.values()
    columns = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    first = np.zeros((len(ids), 1), np.int32)
    batch = dict(zip(INPUTS, (ids, types, columns, mask), strict=True)) | {"masked_positions": columns, "cls_positions": first}
    if model.head:
        logits = _applied(model.config, model.head)({"params": model.params}, batch)["logits"]
        return {"logits": logits if model.head.per_token else logits[:, 0]}
    out = _applied(model.config, None)({"params": model.params}, batch)
    return {
        "mlm_logits": out["mlm_logits"][..., : model.config.vocab_size],
        "nsp_logits": out["nsp_logits"][:, 0],
        "last_hidden_state": out["last"],
        "pooled": out["pooled"][:, 0],
    }


@functools.cache
def _applied(config: ModelConfig, head: TaskHead | None) -> Any:
    return jax.jit((BertWithHead(config, head) if head else BertForPreTraining(config)).apply)


@pytest.fixture(scope="module")
def model(tiny, vocabulary) -> Model:
    return as_model(*tiny, vocabulary)


@pytest.fixture(scope="module")
def models(model, vocabulary) -> dict[str, Model]:
    return {
        "pretraining": model,
        "encode": model,
        "fixed": model,
        "sequence": make_labelled_model(vocabulary, SEQUENCE, num_layers=1),
        "span": make_labelled_model(vocabulary, SpanHead(), activation="relu", num_layers=1),
    }


@pytest.fixture(scope="module")
def run(models, model, tmp_path_factory) -> pathlib.Path:
    """Exports all of `models` here, and calls them in a process without this package and without flax."""
    root = tmp_path_factory.mktemp("stablehlo")
    for name, each in models.items():
        function, length = ("encode" if name in ("encode", "fixed") else None), (5 if name == "fixed" else None)
        platforms = {} if name == "sequence" else {"platforms": ("cpu",)}
        export_stablehlo(root / name, each, function=function, length=length, **platforms)
    for name, (rows, length) in SHAPES.items():
        np.savez(root / f"inputs-{name}.npz", **inputs_of(rows, length, model.config.vocab_size))
    (root / "foreign.py").write_text(FOREIGN)
    command = [sys.executable, root / "foreign.py", *(root / name for name in models)]
    compiled_quickly = {"XLA_FLAGS": os.environ["XLA_FLAGS"], "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run(command, cwd=root, env={"JAX_PLATFORMS": "cpu", "PATH": "", **compiled_quickly}, check=True)
    return root


@pytest.mark.parametrize(
    ("name", "shape"),
    [("pretraining", "b"), *((name, "c") for name in ("pretraining", "encode", "sequence", "span"))],
)
def test_an_export_computes_the_model_outputs_without_the_package(run, models, model, name, shape):
    answers = dict(np.load(run / name / f"outputs-{shape}.npz"))
    truth = expected(models[name], inputs_of(*SHAPES[shape], model.config.vocab_size))
    names = {"pretraining": {"mlm_logits", "nsp_logits"}, "encode": {"last_hidden_state", "pooled"}}.get(name, {"logits"})
    assert set(answers) == names
    for output, x in answers.items():
        np.testing.assert_allclose(x, truth[output], atol=1e-6 * max(1, np.abs(truth[output]).max()))
    signature = json.loads((run / name / "signature.json").read_text())["outputs"]
    sizes = dict(zip(("batch", "length"), SHAPES[shape], strict=True))
    stated = {output: tuple(sizes.get(dim, dim) for dim in x["shape"]) for output, x in signature.items()}
    assert stated == {output: x.shape for output, x in answers.items()}


def test_an_export_with_a_length_accepts_only_that_length(run, models, model):
    assert {path.name for path in (run / "fixed").glob("outputs-*")} == {"outputs-b.npz"}
    truth = expected(model, inputs_of(4, 5, model.config.vocab_size))["pooled"]
    np.testing.assert_allclose(np.load(run / "fixed" / "outputs-b.npz")["pooled"], truth, atol=1e-6 * np.abs(truth).max())
    signature = json.loads((run / "fixed" / "signature.json").read_text())
    assert [x["shape"] for x in signature["inputs"]] == [["batch", 5]] * 3


def test_padding_does_not_change_the_outputs_of_tokens(run, model):
    forward = jax.export.deserialize((run / "encode" / "forward.stablehlo").read_bytes())
    assert "stablehlo.while" in forward.mlir_module()  # the layers are a loop: more of them do not make the program longer
    ids = inputs_of(1, 5, model.config.vocab_size)["input_ids"]
    longer = np.pad(ids, ((0, 0), (0, 3)), constant_values=7)
    mask = (np.arange(8) < 5).astype(np.int32)[None]
    alone = forward.call(ids, np.ones_like(ids), np.zeros_like(ids))
    padded = forward.call(longer, mask, np.zeros_like(longer))
    np.testing.assert_allclose(padded["last_hidden_state"][:, :5], alone["last_hidden_state"], atol=1e-6)


def test_only_used_parameters_are_in_the_export(run, models):
    def size(name: str) -> int:
        return (run / name / "forward.stablehlo").stat().st_size

    def used(model: Model, parts: tuple[str, ...]) -> int:
        leaves = jax.tree.leaves({part: model.params[part] for part in parts})
        padding = model.config.padded_vocab_size - model.config.vocab_size
        return 4 * (sum(x.size for x in leaves) - padding * (model.config.hidden_size + ("mlm_head" in parts)))

    whole = used(models["pretraining"], ("embeddings", "encoder", "pooler", "mlm_head", "nsp_head"))
    bare = used(models["encode"], ("embeddings", "encoder", "pooler"))
    assert size("pretraining") >= whole
    assert bare <= size("encode") < size("pretraining") - (whole - bare)


def test_the_export_describes_its_arguments_and_has_its_tokenizer(run, model):
    text = (run / "sequence" / "signature.json").read_text()
    signature = json.loads(text)
    assert text.startswith('{\n  "inputs": [\n    {')
    assert [x["name"] for x in signature["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {x["dtype"] for x in signature["inputs"]} == {"int32"}
    assert signature["labels"] == ["no", "yes", "perhaps"]
    assert signature["platforms"] == ["cpu", "cuda", "tpu"]
    assert signature["longest"] == model.config.max_position
    tokenizer = load_tokenizer(run / "sequence")
    assert tokenizer.vocabulary.sha256 == signature["bert_jax"]["vocabulary_sha256"] == model.tokenizer.vocabulary.sha256
    assert json.loads((run / "pretraining" / "signature.json").read_text())["labels"] == []


def test_a_text_longer_than_the_position_table_is_refused(run):
    forward = jax.export.deserialize((run / "encode" / "forward.stablehlo").read_bytes())
    ids = np.zeros((2, 41), np.int32)
    with pytest.raises(ValueError, match=r"."):
        forward.call(ids, ids, ids)


def test_the_default_function_follows_the_head_of_the_model(model, models):
    assert natural_function(model) == "pretraining"
    assert natural_function(models["span"]) == "labels"
    assert natural_function(without_parts(model, ["mlm_head", "nsp_head"])) == "encode"


def test_an_mlm_export_has_no_next_sentence_and_needs_no_pooler(model, tmp_path):
    words = extended(model.tokenizer, ["rivers"])  # an odd number, without the padding of the model's table
    longer = with_vocabulary(model, words, find_sources(model.tokenizer, words))
    with first_devices():
        signature = export_stablehlo(tmp_path / "m", without_parts(longer, ["pooler", "nsp_head"]), platforms=["cpu"])
    assert signature["outputs"] == {"mlm_logits": {"shape": ["batch", "length", 141], "dtype": "float32"}}
    assert signature["platforms"] == ["cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "labels"}, "no task head"),
        ({"function": "encoder"}, "did you mean 'encode'"),
        ({"platforms": ["gpu"]}, "no platform 'gpu'"),
        ({"length": 41}, "length=41 must be between 1 and 40,"),
        ({"length": 0}, "length=0 must be"),
    ],
)
def test_unsupported_exports_are_refused_without_writing(model, tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        export_stablehlo(tmp_path / "m", model, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_model_beyond_the_largest_file_is_refused_before_it_is_lowered(model, tmp_path, monkeypatch):
    size = 4 * without_parts(model, ["mlm_head", "nsp_head"]).counts.trained
    monkeypatch.setattr(stablehlo, "LARGEST", size - 1)
    monkeypatch.setattr(stablehlo, "_exported", None)
    message = r"the parameters take 28\.6 kB in float32, but .* at most 28\.6 kB; choose another --format, or make the model sm"
    with pytest.raises(UserError, match=message):
        export_stablehlo(tmp_path / "m", model, function="encode")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(stablehlo, "LARGEST", size)
    with pytest.raises(TypeError, match="not callable"):
        export_stablehlo(tmp_path / "m", model, function="encode")


def test_untrained_parts_are_refused_if_used(models, tmp_path):
    fresh = dataclasses.replace(models["sequence"], untrained=frozenset({"sequence_head"}))
    with pytest.raises(UserError, match=r"sequence_head was never trained.*drop it"):
        export_stablehlo(tmp_path / "m", fresh)
    signature = export_stablehlo(tmp_path / "m", fresh, function="encode", platforms=["cpu"], length=1)
    assert signature["inputs"][0]["shape"] == ["batch", 1]
    assert signature["labels"] == []  # the encoder predicts no labels


def test_an_older_export_is_replaced_and_a_foreign_directory_is_not(models, tmp_path):
    model = models["span"]
    for function in ("labels", "encode"):
        export_stablehlo(tmp_path / "m", model, function=function, platforms=["cpu"])
        words = (tmp_path / "m" / "vocab.txt").read_text(encoding="utf-8").splitlines()
        assert words == model.tokenizer.pieces  # files of the older export are replaced
        (tmp_path / "m" / "vocab.txt").write_text("other")
        (tmp_path / "m" / "README.md").touch()
    files = {path.name for path in (tmp_path / "m").iterdir()}
    assert files == {"README.md", *FORMATS["stablehlo"][1]} - {"spiece.model"}
    assert json.loads((tmp_path / "m" / "signature.json").read_text())["function"] == "encode"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years")
    with pytest.raises(UserError, match="not overwritten; name another directory"):
        export_stablehlo(tmp_path / "thesis", model, platforms=["cpu"])
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
