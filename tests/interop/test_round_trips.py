"""Models saved by transformers survive import, export and re-import: every tensor, every field and every logit.

`tests/golden/heads/` has one directory for every BERT class, made by `make_heads_golden.py`. Logits have to be within 1e-5 of the
largest value of PyTorch's float64; PyTorch's own float32 is at most 7e-7 away.
"""

from __future__ import annotations

import dataclasses
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

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, NewParts, export_model, import_model, with_new_parts
from bert_jax.interop.huggingface_config import ARCHITECTURES
from bert_jax.interop.names import our_shapes
from bert_jax.model.heads import make_head
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from tests.interop.answers import our_outputs
from tests.interop.test_transformers_loads_exports import zero_padding_rows
from tests.interop.tiny import as_model, make_model

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "heads"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
TOLERANCE = 1e-5

FOUR = ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")

# config.json: all possible differences between transformers' file and ours for the same model.
HOW_IT_WAS_WRITTEN = {"dtype", "transformers_version"}
"""The keys that only transformers writes. Ours has `torch_dtype` instead of "dtype", since every version of transformers reads
it, and names no version."""
ADDED = {"torch_dtype", "bert_jax", "position_embedding_type"}
DEFAULTS_SPELT_OUT = {
    "sequence": {"problem_type": "single_label_classification"},
}
"""Case -> the fields that its config.json leaves to transformers' defaults."""
# Weights: if nothing is tied, transformers computes with `decoder.bias`, and saves a second bias that nobody reads.
UNREAD, READ = "cls.predictions.bias", "cls.predictions.decoder.bias"


def imported(case: str, **arguments: Any) -> Model:
    """Returns the model of a case, with a padded vocabulary: the shapes of a second configuration take longer than most tests."""
    return import_model(GOLDEN / case, vocabulary=GOLDEN / "tokenizer", vocab_multiple=64, **arguments)


def stored(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the tensors of every safetensors file of a directory, whatever its index lists."""
    return {name: x for file in directory.glob("*.safetensors") for name, x in safetensors.numpy.load_file(file).items()}


def fields_of(directory: pathlib.Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def copied(case: str, directory: pathlib.Path, **fields: Any) -> pathlib.Path:
    """Returns a copy of a case with its tokenizer; `fields` replace fields of config.json, and None removes one."""
    shutil.copytree(GOLDEN / case, directory)
    shutil.copytree(GOLDEN / "tokenizer", directory, dirs_exist_ok=True)
    kept = {name: value for name, value in (fields_of(directory) | fields).items() if value is not None or name not in fields}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


def rewrite(directory: pathlib.Path, change) -> None:
    """Replaces the tensors of a directory with a single file by `change(tensors)`."""
    tensors = stored(directory)
    safetensors.numpy.save_file(change(tensors) or tensors, directory / "model.safetensors")


def bits(tensors: dict[str, np.ndarray]) -> dict[str, tuple]:
    return {name: (x.shape, x.dtype.name, x.tobytes()) for name, x in tensors.items()}


def test_there_is_a_case_for_every_class():
    elsewhere = {"BertLMHeadModel"}  # below, of random weights; its logits: tests/prediction/test_decoding.py
    assert {fields_of(GOLDEN / case)["architectures"][0] for case in CASES} == set(ARCHITECTURES) - elsewhere


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_survives_bit_for_bit_under_its_name(case, tmp_path):
    """The import pads the vocabulary, and the export removes the padding."""
    before = stored(GOLDEN / case)
    export_model(tmp_path / "model", imported(case), dtype=fields_of(GOLDEN / case)["dtype"])
    after = stored(tmp_path / "model")
    if READ in before:
        assert not np.array_equal(before[UNREAD], before[READ])
        before[UNREAD] = before[READ]
    assert bits(after) == bits(before)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_every_parameter_of_a_left_to_right_model_survives_bit_for_bit(vocabulary, tmp_path, positions):
    params, config = make_model(vocabulary, direction="left_to_right", positions=positions)
    whole = as_model({name: params[name] for name in ("embeddings", "encoder", "mlm_head")}, config, vocabulary)
    export_model(tmp_path / "model", whole)
    assert fields_of(tmp_path / "model")["architectures"] == ["BertLMHeadModel"]
    back = import_model(tmp_path / "model", vocab_multiple=config.vocab_multiple)
    assert (back.config, back.parts) == (config, ("mlm_head",))
    before, after = (flatten_dict(tree, sep="/") for tree in (zero_padding_rows(whole.params, config), back.params))
    assert bits(after) == bits(before)
    export_model(tmp_path / "again", back)
    assert bits(stored(tmp_path / "again")) == bits(stored(tmp_path / "model"))


@pytest.mark.parametrize("case", CASES)
def test_every_field_survives_and_a_second_round_trip_changes_nothing(case, tmp_path):
    before, first, second = fields_of(GOLDEN / case), tmp_path / "first", tmp_path / "second"
    export_model(first, imported(case))
    after = fields_of(first)
    explicit = DEFAULTS_SPELT_OUT.get(case, {})
    assert before.keys() - after.keys() == HOW_IT_WAS_WRITTEN
    assert after.keys() - before.keys() == ADDED | explicit.keys()
    same = before.keys() & after.keys()
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert {name: after[name] for name in explicit} == explicit
    assert (after["position_embedding_type"], after["torch_dtype"]) == ("absolute", "float32")
    export_model(second, import_model(first, vocab_multiple=64))
    assert fields_of(second) == after
    others = [path.name for path in first.iterdir() if path.name != "config.json"]
    assert {path.name for path in second.iterdir()} == {"config.json", *others}
    assert [name for name in others if (first / name).read_bytes() != (second / name).read_bytes()] == []


@pytest.mark.parametrize("case", CASES)
def test_every_output_equals_pytorch(case):
    with np.load(GOLDEN / "logits.npz") as file:
        theirs = {name.removeprefix(f"{case}/"): file[name] for name in file.files if name.startswith(f"{case}/")}
        batch = {name: file[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert theirs.pop("float32_error") < TOLERANCE / 10
    model = imported(case)
    batch["token_type_ids"] = np.minimum(batch["token_type_ids"], model.config.type_vocab_size - 1)
    ours = our_outputs(model, batch)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        value = np.asarray(ours[name], np.float64)
        assert value.shape == expected.shape
        if expected.shape[:2] == batch["input_ids"].shape:  # of real tokens only: nobody reads the values at padding
            real = batch["attention_mask"].astype(bool)
            value, expected = value[real], expected[real]
        assert np.abs(value - expected).max() / np.abs(expected).max() < TOLERANCE, name


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_files_keep_their_values(dtype, tmp_path):
    directory = copied("pretraining", tmp_path / "half")
    rewrite(directory, lambda tensors: {name: (x * 1.2345).astype(dtype) for name, x in tensors.items()})
    model = import_model(directory)
    assert {x.dtype.name for x in flatten_dict(model.params).values()} == {"float32"}
    export_model(tmp_path / "wide", model)
    expected = {name: x.astype(np.float32) for name, x in stored(directory).items()}
    assert bits(stored(tmp_path / "wide")) == bits(expected)
    export_model(tmp_path / "narrow", model, dtype=np.dtype(dtype).name)
    assert bits(stored(tmp_path / "narrow")) == bits(stored(directory))
    assert fields_of(tmp_path / "narrow")["torch_dtype"] == np.dtype(dtype).name
    with pytest.raises(UserError, match="weights cannot be written with dtype 'float8': did you mean 'float"):
        export_model(tmp_path / "narrower", model, dtype="float8")


def test_unused_fields_are_carried_along(tmp_path):
    unknown = {"my_field": {"a": 1}, "task_specific_params": [1, None, "x"], "finetuning_task": "colä", "use_cache": False}
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}, "classifier_dropout": 0.25}
    export_model(tmp_path / "out", import_model(copied("pretraining", tmp_path / "in", **unknown, **labels)))
    after = fields_of(tmp_path / "out")
    assert {name: after[name] for name in unknown | labels} == unknown | labels


def test_a_new_head_replaces_carried_labels(tmp_path):
    """With the three labels kept, transformers would give the span head three outputs instead of two."""
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    directory = copied("masked", tmp_path / "in", **labels, mine=[1])
    model = import_model(directory, new=NewParts(["span_head"], SpanHead()), drop=["mlm_head"])
    export_model(tmp_path / "out", model)
    assert not labels.keys() & fields_of(tmp_path / "out").keys()
    assert fields_of(tmp_path / "out")["mine"] == [1]
    assert import_model(directory, new=NewParts(["pooler"])).other_fields == import_model(directory).other_fields
    assert fields_of(tmp_path / "out")["architectures"] == ["BertForQuestionAnswering"]


def test_old_layer_norm_names_and_tied_copies_are_read_but_not_written(tmp_path):
    """The names of the first converted checkpoints, and tables that are stored twice."""
    directory = copied("pretraining", tmp_path / "old")
    before = stored(directory)

    def age(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        old = {}
        for name, x in tensors.items():
            ending = next((ending for ending in endings if name.endswith(ending)), "")
            old[name.removesuffix(ending) + endings.get(ending, "")] = x
        return old | {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
            "bert.embeddings.position_ids": np.arange(16)[None],
        }

    rewrite(directory, age)
    assert not any("LayerNorm.weight" in name for name in stored(directory))
    export_model(tmp_path / "new", import_model(directory))
    assert bits(stored(tmp_path / "new")) == bits(before)


def test_heads_beyond_the_class_are_kept_and_change_the_class(tmp_path):
    """bert-base-uncased names BertForMaskedLM and also contains the next-sentence head."""
    directory = copied("pretraining", tmp_path / "in", architectures=["BertForMaskedLM"])
    export_model(tmp_path / "out", import_model(directory))
    assert bits(stored(tmp_path / "out")) == bits(stored(directory))
    assert fields_of(tmp_path / "out")["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize("case", CASES)
def test_a_file_without_a_class_is_recognised_by_its_tensors_or_refused(case, tmp_path):
    stated = imported(case)
    directory = copied(case, tmp_path / "in", architectures=None)
    if stated.head and stated.head.kind != "span":
        with pytest.raises(UserError, match=r'^\S+/in/config\.json has no "architectures".*add the class, for example'):
            import_model(directory)
        return
    model = import_model(directory, vocab_multiple=64)
    assert (model.parts, model.config, model.head) == (stated.parts, stated.config, stated.head)
    jax.tree.map(np.testing.assert_array_equal, model.params, stated.params)


def test_the_parameter_tree_fits_the_class():
    for case in CASES:
        model = imported(case)
        (architecture,) = fields_of(GOLDEN / case)["architectures"]
        parts = {"embeddings", "encoder", *ARCHITECTURES[architecture]} | ({"pooler"} if case == "encoder" else set())
        expected = {path: shape for path, shape in our_shapes(model.config, model.head).items() if path.split("/")[0] in parts}
        assert {path: x.shape for path, x in flatten_dict(model.params, sep="/").items()} == expected, case


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("sequence", SequenceHead(labels=("no", "yes", "perhaps"), dropout=0.3)),
        ("sequence_regression", SequenceHead(labels=("LABEL_0",), problem="regression")),
        ("sequence_multi_label", SequenceHead(labels=FOUR, problem="multi_label")),
        ("token_in_shards", TokenHead(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))),
        ("span", SpanHead()),
        ("choice", ChoiceHead(dropout=0.0)),
        ("pretraining", None),
    ],
)
def test_the_head_is_the_one_that_was_saved(case, head):
    assert imported(case).head == head


def test_untrained_parts_are_recorded_and_read_again(tmp_path):
    model = imported("masked", new=NewParts(["pooler", "nsp_head"]))
    assert model.untrained == {"pooler", "nsp_head"}
    export_model(tmp_path / "model", model)
    assert fields_of(tmp_path / "model")["bert_jax"]["untrained"] == ["nsp_head", "pooler"]
    assert import_model(tmp_path / "model").untrained == {"pooler", "nsp_head"}
    assert import_model(tmp_path / "model", drop=["nsp_head"]).untrained == {"pooler"}
    trained = dataclasses.replace(model, untrained=frozenset())
    export_model(tmp_path / "model", trained)
    assert "untrained" not in fields_of(tmp_path / "model")["bert_jax"]
    assert import_model(tmp_path / "model").untrained == frozenset()


def test_every_missing_unused_and_reshaped_array_is_listed(tmp_path):
    directory = copied("sequence", tmp_path / "in")

    def damage(tensors: dict[str, np.ndarray]) -> None:
        tensors["bert.encoder.layer.0.output.dense.bias"] = np.zeros(13, np.float32)
        tensors["classifier.weight"] = np.zeros((4, 12), np.float32)
        tensors["qa_outputs.bias"] = tensors["lora.A"] = np.zeros(2, np.float32)
        for name in ("bert.pooler.dense.bias", "bert.embeddings.LayerNorm.weight"):
            del tensors[name]

    rewrite(directory, damage)
    with pytest.raises(UserError) as caught:
        import_model(directory)
    _, _, listed = str(caught.value).partition("config.json describes: ")
    problems = dict(part.split(": ", 1) for part in listed.split("; "))
    assert {what: set(names.split(", ")) if "shapes" not in what else names for what, names in problems.items()} == {
        "missing": {"bert.pooler.dense.bias", "bert.embeddings.LayerNorm.weight"},
        "not part of this model": {"qa_outputs.bias", "lora.A"},
        "other shapes than in config.json": (
            "bert.encoder.layer.0.output.dense.bias [13] instead of [12], classifier.weight [4, 12] instead of [3, 12]"
        ),
    }


def test_parts_missing_for_a_class_must_be_declared_new(tmp_path):
    directory = copied("masked", tmp_path / "in", architectures=["BertForPreTraining"])
    with pytest.raises(UserError, match=r"missing: bert\.pooler\..*declare nsp_head and pooler as new"):
        import_model(directory)
    model = import_model(directory, new=NewParts(["pooler", "nsp_head"], seed=3))
    assert model.parts == ("pooler", "mlm_head", "nsp_head")
    kernel = model.params["pooler"]["dense"]["kernel"]
    assert isinstance(kernel, np.ndarray)
    assert 0.01 < kernel.std() < 0.03
    again, other = (import_model(directory, new=NewParts(["pooler", "nsp_head"], seed=seed)).params for seed in (3, 4))
    np.testing.assert_array_equal(kernel, again["pooler"]["dense"]["kernel"])
    assert not np.array_equal(kernel, other["pooler"]["dense"]["kernel"])


def test_new_replaces_existing_parts_and_drop_removes_them():
    stated = import_model(GOLDEN / "pretraining", vocabulary=GOLDEN / "tokenizer")
    model = imported("pretraining", new=NewParts(["pooler"]), drop=["nsp_head", "mlm_head"])
    assert (model.parts, model.untrained) == (("pooler",), {"pooler"})
    kernel = model.params["pooler"]["dense"]["kernel"]
    assert not np.array_equal(kernel, stated.params["pooler"]["dense"]["kernel"])
    seeded = with_new_parts(stated, NewParts(["pooler"], seed=0))
    np.testing.assert_array_equal(kernel, seeded.params["pooler"]["dense"]["kernel"])
    assert len(stated.params["embeddings"]["word_embeddings"]["embedding"]) == 97  # not padded unless requested
    jax.tree.map(np.testing.assert_array_equal, model.params["encoder"], stated.params["encoder"])


@pytest.mark.parametrize("case", ["token_in_shards", "choice"])
@pytest.mark.parametrize("kind", ["token", "span"])
def test_a_head_may_be_replaced_by_the_same_or_another_kind(case, kind):
    """Three kinds of head have the same name in the file, so the name does not decide which is dropped."""
    old = imported(case)
    assert old.head is not None
    head = make_head(kind, labels=("p", "q") if kind == "token" else ())
    model = imported(case, new=NewParts([head.subtree], head), drop=[old.head.subtree])
    assert (model.head, model.untrained) == (head, {head.subtree})
    assert model.parts == (*(part for part in old.parts if part == "pooler"), head.subtree)
    assert model.params[head.subtree]["dense"]["kernel"].shape == (12, head.num_outputs)
    if kind != old.head.kind:
        with pytest.raises(UserError, match=rf"already has a {old.head.subtree}; to replace it"):
            imported(case, new=NewParts([head.subtree], head))
    assert imported(case, drop=[old.head.subtree]).head is None


def test_a_head_may_restart_with_its_labels():
    model = imported("token_in_shards", new=NewParts(["token_head"]))
    stated = imported("token_in_shards")
    assert model.head == stated.head
    assert not np.array_equal(model.params["token_head"]["dense"]["kernel"], stated.params["token_head"]["dense"]["kernel"])


def test_impossible_new_parts_are_refused():
    head = SequenceHead(labels=("a", "b"))
    for arguments, said in [
        ({"new": NewParts(["nsp"])}, "no part 'nsp'; did you mean 'nsp_head'"),
        (
            {"drop": ["encoder"]},
            "'encoder' cannot be dropped, because it is neither a tensor of .*masked/model.safetensors",
        ),
        ({"new": NewParts(["sequence_head", "span_head"], head)}, "a model has at most one task head"),
        ({"new": NewParts(["sequence_head", "pooler"])}, "needs labels"),
        ({"new": NewParts(["token_head"], head)}, "needs labels"),
        ({"new": NewParts(["sequence_head"], head)}, "but .*masked has no pooler; add a pooler with --new=pooler"),
    ]:
        with pytest.raises(UserError, match=said):
            imported("masked", **arguments)
    assert with_new_parts(imported("masked"), NewParts(["sequence_head", "pooler"], head)).head == head
