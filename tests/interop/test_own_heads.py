"""Labelled heads for which transformers has no class: written next to the encoder under names of our own, and read again."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import flatten_dict

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import NewParts, export_model, import_model, without_parts
from bert_jax.interop.stablehlo import export_stablehlo
from bert_jax.interop.surgery import with_layers, with_positions, with_token_types
from bert_jax.interop.tensorflow import export_tf1
from bert_jax.model.heads import head_classes
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from tests.interop.answers import our_outputs
from tests.interop.test_transformers_loads_exports import zero_padding_rows
from tests.interop.tiny import make_labelled_model

HEADS = [
    SequenceHead(labels=("no", "yes"), pooling="concat", problem="multi_label", dropout=0.25),
    SequenceHead(labels=("score",), layers="second_to_last", problem="regression"),
    SequenceHead(labels=("no", "yes"), pooling="concat", layers="last_four_concat"),
    TokenHead(labels=tuple(f"tag {i}" for i in range(12)), lstm=3, layers="scalar_mix"),
    TokenHead(labels=("O", "B"), lstm=5, layers="last_four_concat"),
    MentionHead(labels=("A", "B", "neither"), layers="last_four_mix"),
    SpanHead(layers="all_sum"),
    SpanHead(lstm=3),
    TokenHead(labels=("O", "B-X", "I-X"), crf="free"),
    TokenHead(labels=("O", "B-X", "I-X"), crf="iob2", lstm=3),
    SequenceHead(labels=("no", "yes"), pooling="concat", lstm=3),
    SequenceHead(labels=("no", "yes"), pooling="last_token"),
    ChoiceHead(layers="embeddings"),
    TokenHead(labels=("O", "B"), lstm=3, layers="scalar_mix", mix_at="both"),
    TokenHead(labels=("O", "B"), lstm=3, layers="last_four_concat", mix_at="output"),
    SpanHead(lstm=3, layers="last_four_mix", mix_at="both"),
]
HEADS += [kind.typical() for kind in head_classes().values() if kind not in {type(head) for head in HEADS}]
TAGGER = HEADS[3]


def model_of(vocabulary: pathlib.Path, head: TaskHead, parts: tuple[str, ...] = ()):
    return make_labelled_model(vocabulary, head, parts, num_layers=4)


def fields_of(directory: pathlib.Path) -> dict:
    return json.loads((directory / "config.json").read_text())


def edit_head(directory: pathlib.Path, head) -> None:
    """Sets a field of the head in config.json; None removes it."""
    fields = fields_of(directory)
    fields["bert_jax"] = {name: x for name, x in fields["bert_jax"].items() if name != "head"} | ({"head": head} if head else {})
    (directory / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{head.layers}")
def test_a_model_with_an_own_head_is_an_encoder_and_arrays_of_our_own_and_survives_bit_for_bit(vocabulary, tmp_path, head):
    """If the name of any array starts with "bert", older versions of transformers expect this prefix in all names of the
    encoder."""
    model = model_of(vocabulary, head)
    export_model(tmp_path / "m", model)
    back = import_model(tmp_path / "m", vocab_multiple=model.config.vocab_multiple)
    assert (back.head, back.config, back.parts) == (head, model.config, model.parts)
    jax.tree.map(np.testing.assert_array_equal, back.params, zero_padding_rows(model.params, model.config))
    assert {x.dtype.name for x in jax.tree.leaves(back.params)} == {"float32"}
    fields, tensors = fields_of(tmp_path / "m"), safetensors.numpy.load_file(tmp_path / "m" / "model.safetensors")
    assert fields["architectures"] == ["BertModel"]
    assert fields["bert_jax"]["head"] == {
        "kind": head.kind, "pooling": head.pooling, "layers": head.layers, "lstm": head.lstm
    } | ({"crf": head.crf} if head.has_crf else {}) | ({"mix_at": head.mix_at} if head.mix_at != "input" else {})  # fmt: skip
    own = {name for name in tensors if name.split(".")[0] not in ("embeddings", "encoder", "pooler")}
    assert own == {f"{head.subtree}.{path}" for path in flatten_dict(model.params[head.subtree], sep=".")}
    assert not any(name.startswith("bert") for name in tensors)
    if head.labels:
        assert fields["id2label"] == {str(i): label for i, label in enumerate(head.labels)}
        assert fields["label2id"] == {label: i for i, label in enumerate(head.labels)}


def test_pretraining_heads_keep_their_class_next_to_an_own_head(vocabulary, tmp_path):
    model = model_of(vocabulary, TAGGER, ("pooler", "mlm_head", "nsp_head"))
    export_model(tmp_path / "m", model)
    assert fields_of(tmp_path / "m")["architectures"] == ["BertForPreTraining"]
    back = import_model(tmp_path / "m", vocab_multiple=model.config.vocab_multiple)
    assert back.head == TAGGER
    jax.tree.map(np.testing.assert_array_equal, back.params, zero_padding_rows(model.params, model.config))


def test_a_second_export_equals_the_first(vocabulary, tmp_path):
    export_model(tmp_path / "a", model_of(vocabulary, TAGGER))
    export_model(tmp_path / "b", import_model(tmp_path / "a"))
    assert fields_of(tmp_path / "a") == fields_of(tmp_path / "b")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_missing_unexpected_and_misshapen_arrays_are_named(vocabulary, tmp_path):
    export_model(tmp_path / "m", model_of(vocabulary, TAGGER))
    weights = tmp_path / "m" / "model.safetensors"
    whole = safetensors.numpy.load_file(weights)
    safetensors.numpy.save_file({name: x for name, x in whole.items() if "mix" not in name}, weights)
    with pytest.raises(UserError, match=r"missing: token_head\.mix\.gamma, token_head\.mix\.weights$"):
        import_model(tmp_path / "m")
    safetensors.numpy.save_file({name: x for name, x in whole.items() if not name.startswith("token_head")}, weights)
    with pytest.raises(UserError, match=r"missing: token_head\.dense\.bias, .*declare token_head as new"):
        import_model(tmp_path / "m")
    safetensors.numpy.save_file(whole, weights)
    edit_head(tmp_path / "m", {"kind": "token", "pooling": "pooler", "layers": "scalar_mix", "lstm": 4})
    with pytest.raises(UserError, match=r"token_head\.dense\.kernel \[6, 12\] instead of \[8, 12\]"):
        import_model(tmp_path / "m")
    edit_head(tmp_path / "m", None)
    with pytest.raises(UserError, match=r"not part of this model: token_head\."):
        import_model(tmp_path / "m")
    assert import_model(tmp_path / "m", drop=["token_head"]).parts == ()


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"kind": "token", "layers": "last", "lstm": 3}, 'config.json: "head" under "bert_jax" is .*; export the model again'),
        ({"kind": "token", "pooling": "pooler", "layers": "last", "lstm": "3"}, "not an object with kind, pooling, layers, lstm"),
        ({"kind": "token", "pooling": "pooler", "layers": "last", "lstm": 3, "mlp": 1}, "not an object with kind, pooling"),
        (["token"], "not an object with kind, pooling, layers, lstm"),
        ({"kind": "token", "pooling": "pooler", "layers": "first", "lstm": 3}, "config.json: head.layers='first' is not one of"),
        ({"kind": "tagger", "pooling": "pooler", "layers": "last", "lstm": 3}, "config.json: head.kind='tagger' is not one of"),
        ({"kind": "span", "pooling": "concat", "layers": "last", "lstm": 0}, "config.json: head.pooling='concat' is for"),
    ],
)
def test_an_invalid_head_is_refused_with_the_file(vocabulary, tmp_path, head, said):
    export_model(tmp_path / "m", model_of(vocabulary, TAGGER))
    edit_head(tmp_path / "m", head)
    with pytest.raises(UserError, match=said):
        import_model(tmp_path / "m")


def test_an_own_head_may_be_dropped_restarted_or_replaced(vocabulary, tmp_path):
    model = model_of(vocabulary, TAGGER)
    export_model(tmp_path / "m", model)
    dropped = import_model(tmp_path / "m", drop=["token_head"])
    assert (dropped.head, dropped.parts) == (None, ())
    assert "token_head was left out" in dropped.notes
    anew = import_model(tmp_path / "m", new=NewParts(["token_head"]))
    assert (anew.head, anew.untrained) == (TAGGER, {"token_head"})
    assert not np.any(anew.params["token_head"]["mix"]["weights"])
    assert anew.params["token_head"]["mix"]["gamma"] == 1
    export_model(tmp_path / "anew", anew)
    assert import_model(tmp_path / "anew").untrained == {"token_head"}
    span = SpanHead()
    other = import_model(tmp_path / "m", new=NewParts(["span_head"], span), drop=["token_head"])
    export_model(tmp_path / "m", other)
    assert "head" not in fields_of(tmp_path / "m")["bert_jax"]
    assert import_model(tmp_path / "m").head == span


def test_a_pooled_head_on_other_layers_needs_its_pooler(vocabulary, tmp_path):
    model = model_of(vocabulary, HEADS[1])
    export_model(tmp_path / "m", without_parts(model, ["pooler"]))
    with pytest.raises(UserError, match=r"missing: bert\.pooler\.dense\.weight, .*declare pooler as new"):
        import_model(tmp_path / "m")


@pytest.mark.parametrize("head", [HEADS[0], TAGGER], ids=lambda head: head.kind)
def test_a_stablehlo_export_computes_own_heads_for_any_length(vocabulary, tmp_path, head):
    model = make_labelled_model(vocabulary, head, num_layers=1)
    export_stablehlo(tmp_path / "s", model, platforms=("cpu",))
    forward = jax.export.deserialize((tmp_path / "s" / "forward.stablehlo").read_bytes())
    mask = (np.arange(11) < np.array([[5], [10], [8]])).astype(np.int32)
    ids = np.random.default_rng(0).integers(5, 40, mask.shape, np.int32)
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    ours = np.asarray(our_outputs(model, batch)["logits"])
    for rows, length in ((1, 6), (3, 11)):  # the first row has 5 tokens
        theirs = forward.call(*(x[:rows, :length] for x in batch.values()))["logits"]
        real = mask[:rows, :length].astype(bool) if head.per_token else ...
        wanted = ours[:rows, :length] if head.per_token else ours[:rows]
        np.testing.assert_allclose(theirs[real], wanted[real], atol=2e-6 * max(1, np.abs(ours).max()))


def test_surgery_on_words_and_positions_does_not_change_own_heads(vocabulary):
    model = model_of(vocabulary, TAGGER)
    for changed in (with_positions(model, 20), with_token_types(model, 2)):
        jax.tree.map(np.testing.assert_array_equal, changed.params["token_head"], model.params["token_head"])
    with pytest.raises(UserError, match="the token_head has a weight for each of 4 layers, so no layer can be removed; drop"):
        with_layers(model, [0, 1])


def test_an_own_head_is_refused_in_the_original_format(vocabulary, tmp_path):
    model = make_labelled_model(vocabulary, HEADS[0], layer_norm_epsilon=1e-12)
    with pytest.raises(UserError, match=r"the original's heads only read the last layer's \[CLS\] or tokens; choose another"):
        export_tf1(tmp_path / "m", model.params, model.config, model.tokenizer, head=model.head)


def test_conversion_needs_a_pooler_only_if_the_head_reads_one(vocabulary, tmp_path):
    export_model(tmp_path / "a", model_of(vocabulary, HEADS[0]))
    convert.main([f"--from={tmp_path / 'a'}", f"--to={tmp_path / 'b'}"])
    assert import_model(tmp_path / "b").head == HEADS[0]


def test_a_mention_head_cannot_be_exported_as_a_function(vocabulary, tmp_path):
    with pytest.raises(UserError, match="a mention head needs the positions of the mentions, but the exported function has no"):
        export_stablehlo(tmp_path / "s", model_of(vocabulary, HEADS[5]))
    with pytest.raises(UserError, match="a CRF needs the positions of the words, but the exported function has no such input"):
        export_stablehlo(tmp_path / "s", model_of(vocabulary, next(head for head in HEADS if head.has_crf)))
