"""Checkpoints of the original: one that TensorFlow wrote (`tests/golden/make_tf1_checkpoint.py`), and round trips of ours."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import UserError
from bert_jax.interop.surgery import extended
from bert_jax.interop.tensor_bundle import Bundle, Entry, read_bundle
from bert_jax.interop.tensorflow import _head, export_tf1, import_tf1
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.pretraining import BertForPreTraining
from tests.interop.released import GOLDEN, assert_same_trees, rewrite
from tests.interop.tiny import make_labelled_model, make_model
from tests.small_disk import files_of_at_most

ORIGINAL = {"layer_norm_epsilon": 1e-12}  # fixed in the original


@pytest.fixture
def golden(tmp_path) -> pathlib.Path:
    """Returns a copy of the run directory that TensorFlow wrote, to be damaged."""
    return pathlib.Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """Returns the original's names -> the values in the checkpoint."""
    with np.load(GOLDEN / "expected.npz") as arrays:
        return {name: value.astype(np.float32) for name, value in arrays.items()}


def edit_config(directory: pathlib.Path, **fields) -> None:
    path = directory / "bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_imported_model_equals_the_formulas_of_the_original():
    params, config, _, _ = import_tf1(GOLDEN, vocab_multiple=64)
    with np.load(GOLDEN / "outputs.npz") as arrays:
        ids, segments = (arrays[name].astype(np.int32)[None] for name in ("ids", "segments"))
        mlm, nsp = arrays["mlm_logits"], arrays["nsp_logits"]
    columns = np.arange(ids.size, dtype=np.int32)[None]
    ours = jax.jit(BertForPreTraining(config).apply)(
        {"params": params},
        {
            "input_ids": ids,
            "token_type_ids": segments,
            "position_ids": columns,
            "sequence_ids": np.ones_like(ids),
            "masked_positions": columns,
            "cls_positions": np.zeros((1, 1), np.int32),
        },
    )
    np.testing.assert_allclose(ours["mlm_logits"][0, :, : config.vocab_size], mlm, atol=1e-5 * np.abs(mlm).max())
    np.testing.assert_allclose(ours["nsp_logits"][0, 0], nsp, atol=1e-5 * np.abs(nsp).max())


def test_every_variable_of_the_original_is_imported_bit_for_bit(expected):
    params = flatten_dict(import_tf1(GOLDEN)[0], sep="/")
    layers = "encoder/layers"
    for n in range(2):
        layer = f"bert/encoder/layer_{n}"
        for which in ("query", "key", "value"):
            kernel = params[f"{layers}/attention/{which}/kernel"][n]
            np.testing.assert_array_equal(kernel, expected[f"{layer}/attention/self/{which}/kernel"].reshape(24, 3, 8))
        output = params[f"{layers}/attention/output/kernel"][n]
        np.testing.assert_array_equal(output, expected[f"{layer}/attention/output/dense/kernel"].reshape(3, 8, 24))
        inner = params[f"{layers}/feed_forward/intermediate/kernel"][n]
        np.testing.assert_array_equal(inner, expected[f"{layer}/intermediate/dense/kernel"])
        scale = params[f"{layers}/attention_layer_norm/scale"][n]
        np.testing.assert_array_equal(scale, expected[f"{layer}/attention/output/LayerNorm/gamma"])
    np.testing.assert_array_equal(params["pooler/dense/kernel"], expected["bert/pooler/dense/kernel"])
    np.testing.assert_array_equal(params["nsp_head/dense/kernel"], expected["cls/seq_relationship/output_weights"].T)
    np.testing.assert_array_equal(params["mlm_head/bias"], expected["cls/predictions/output_bias"])
    assert sum(x.size for x in params.values()) == sum(x.size for x in expected.values())


def test_configuration_tokenizer_and_notes_come_from_the_run():
    _, config, tokenizer, notes = import_tf1(GOLDEN)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.head_width) == (2, 24, 3, 8)
    assert (config.intermediate_size, config.max_position, config.type_vocab_size) == (16, 12, 2)
    assert (config.vocab_size, config.activation, config.layer_norm_epsilon) == (67, "gelu", 1e-12)
    assert tokenizer.vocabulary.lowercase
    assert tokenizer.tokens(tokenizer.encode("The capital of Paris")) == ["the", "capital", "of", "paris"]
    assert notes.step == 1000
    assert notes.head is None
    assert notes.other_fields == {"directionality": "bidi", "pooler_fc_size": 24, "pooler_type": "first_token_transform"}
    assert [message.partition(";")[0] for message in notes.messages] == [
        "hidden_act 'gelu' was read as the exact form (erf)",
        "92 slots of the optimizer (adam_m, adam_v) were left out",
        "global_step is 1,000",
        "fields of bert_config.json that bert_jax does not use, copied to exports: directionality, pooler_fc_size, pooler_type",
    ]


@pytest.mark.parametrize(
    ("fields", "without"),
    [
        ({}, ()),
        ({"num_heads": 2, "hidden_size": 6, "intermediate_size": 7}, ()),
        ({"type_vocab_size": 1, "num_layers": 1, "activation": "relu"}, ()),
        ({"num_heads": 16, "activation": "gelu", "vocab_multiple": 1}, ("nsp_head",)),
        ({"vocab_multiple": 128}, ("pooler", "nsp_head")),
        ({}, ("pooler", "mlm_head", "nsp_head")),
    ],
)
def test_a_model_survives_a_round_trip_bit_for_bit(fields, without, vocabulary, tmp_path):
    params, config = make_model(vocabulary, **ORIGINAL | fields)
    params = {part: tree for part, tree in params.items() if part not in without}
    for path in (("embeddings", "word_embeddings", "embedding"), ("mlm_head", "bias")):  # the content of padding does not matter
        if path[0] in params:
            flatten_dict(params)[path][config.vocab_size :] = 0
    tokenizer = load_tokenizer(vocabulary)
    export_tf1(tmp_path / "tf1", params, config, tokenizer, other_fields={"directionality": "bidi"})
    back, back_config, back_tokenizer, notes = import_tf1(tmp_path / "tf1", vocab_multiple=config.vocab_multiple)
    assert back_config == config
    assert_same_trees(back, params)
    assert back_tokenizer.vocabulary == tokenizer.vocabulary
    assert notes.other_fields == {"directionality": "bidi"}
    bundle = read_bundle(tmp_path / "tf1" / "bert_model.ckpt")
    assert bundle.entries["bert/embeddings/word_embeddings"].shape == (config.vocab_size, config.hidden_size)
    assert {bundle[name].dtype for name in bundle} == {np.dtype(np.float32)}
    text = (tmp_path / "tf1" / "bert_config.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"  # in the format of the original's file
    assert {path.name for path in (tmp_path / "tf1").iterdir()} == {
        "bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (SequenceHead(labels=("no", "perhaps", "yes")), {"output_weights": (3, 16), "output_bias": (3,)}),
        (SequenceHead(labels=("score",), problem="regression"), {"output_weights": (1, 16), "output_bias": (1,)}),
        (SpanHead(), {"cls/squad/output_weights": (2, 16), "cls/squad/output_bias": (2,)}),
    ],
)
def test_heads_of_run_classifier_and_run_squad_survive_a_round_trip(head, names, vocabulary, tmp_path):
    model = make_labelled_model(vocabulary, head, ("pooler",), **ORIGINAL, vocab_multiple=1)
    export_tf1(tmp_path / "m", model.params, model.config, model.tokenizer, head=head)
    bundle = read_bundle(tmp_path / "m" / "bert_model.ckpt")
    assert {name: entry.shape for name, entry in bundle.entries.items() if "/" not in name or "squad" in name} == names
    back, _, _, notes = import_tf1(tmp_path / "m")
    assert_same_trees(back, model.params)
    assert notes.head == head

    edit_config(tmp_path / "m", bert_jax={"do_lower_case": False})  # as the original would have written it
    stranger = import_tf1(tmp_path / "m")[3].head
    assert stranger.subtree == head.subtree
    assert stranger.labels == tuple(f"LABEL_{n}" for n in range(len(head.labels)))
    assert stranger.problem == head.problem
    dropped, _, _, notes = import_tf1(tmp_path / "m", drop=[head.subtree])
    assert (set(dropped), notes.head) == ({"embeddings", "encoder", "pooler"}, None)
    assert f"dropped: {', '.join(sorted(names))}" in notes.messages


def test_declared_parts_and_tensors_are_left_out(golden):
    extra = np.zeros(3, np.float32)
    rewrite(golden, lambda tensors: tensors | {"loss_scale": extra, "ema/loss_scale": extra})
    says = r"not part of this model: ema/loss_scale, loss_scale; to leave them out, use `convert --drop='ema/\*,loss_scale'`$"
    with pytest.raises(UserError, match=says):
        import_tf1(golden)
    params, _, _, notes = import_tf1(golden, drop=["nsp_head", "*loss_scale"], read_slots=True)
    assert set(params) == set(notes.first_moments) == {"embeddings", "encoder", "pooler", "mlm_head"}
    head = "cls/seq_relationship/output_bias, cls/seq_relationship/output_weights"
    assert f"dropped: {head}, ema/loss_scale, loss_scale" in notes.messages
    import_tf1(golden, drop=["sequence_head", "*loss_scale"])  # a part may be absent
    with pytest.raises(UserError, match=r"'nps_head' cannot be dropped, because it is neither a tensor .* nor a part; did you"):
        import_tf1(golden, drop=["nps_head"])


@pytest.mark.parametrize(
    "slots",
    [
        ("BERTAdam", "BERTAdam_1"),
        ("AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1"),
        ("LAMBOptimizer", "LAMBOptimizer_1"),
        ("Momentum",),
        ("ExponentialMovingAverage",),
        ("adam_weight_decay_m", "adam_weight_decay_v"),
        ("m", "v"),
        ("optimizer/m", "optimizer/v"),
        ("Adafactor_vr", "Adafactor_vc"),
    ],
)
def test_the_state_and_counters_of_any_optimizer_are_left_out(golden, slots):
    params, *_ = import_tf1(golden)

    def trained(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        plain = {name: x for name, x in tensors.items() if not name.endswith(("/adam_m", "/adam_v"))}
        state = {f"{name}/{slot}": x for name, x in plain.items() for slot in slots if x.ndim}
        if slots[0].startswith("Adafactor"):
            state |= {name: x.mean(-1 if name.endswith("r") else 0) for name, x in state.items() if x.ndim == 2}
        counters = {"current_loss_scale": np.float32(8), "good_steps": np.int64(7), "optimizer/iterations": np.int64(3)}
        return plain | state | counters

    rewrite(golden, trained)
    again, _, _, notes = import_tf1(golden)
    assert_same_trees(again, params)
    (line,) = (line for line in notes.messages if "slots" in line)
    assert line.endswith(f"slots of the optimizer ({', '.join(sorted(slots))}) were left out")
    left = "scalars of the training program were left out: current_loss_scale, good_steps, optimizer/iterations"
    assert left in notes.messages


def test_a_tensor_of_another_shape_is_not_an_optimizer_slot(golden):
    rewrite(golden, lambda tensors: tensors | {"bert/pooler/dense/bias/mine": np.zeros(5, np.float32)})
    says = r"model: bert/pooler/dense/bias/mine; to leave it out, use `convert --drop='bert/pooler/dense/bias/\*'`"
    with pytest.raises(UserError, match=says):
        import_tf1(golden)


def test_mismatches_are_listed_by_the_names_of_the_original(golden):
    def spoilt(tensors):
        del tensors["bert/encoder/layer_1/output/dense/bias"]
        changed = {"bert/pooler/dense/kernel": np.zeros((24, 23), np.float32), "bert/nobody/adam_m": np.zeros(1, np.float32)}
        return tensors | changed

    rewrite(golden, spoilt)
    with pytest.raises(UserError) as error:
        import_tf1(golden)
    # the slots of missing variables have no owner
    assert str(error.value) == (
        f"{golden / 'model.ckpt-1000'} does not contain the BERT that its bert_config.json describes: "
        "missing: bert/encoder/layer_1/output/dense/bias; "
        "not part of this model: bert/encoder/layer_1/output/dense/bias/adam_m, "
        "bert/encoder/layer_1/output/dense/bias/adam_v, bert/nobody/adam_m; "
        "other shapes than in bert_config.json: bert/pooler/dense/kernel [24, 23] instead of [24, 24]"
    )


def test_kernels_are_expected_in_the_layout_of_the_original(golden):
    edit_config(golden, intermediate_size=17)
    with pytest.raises(UserError, match=r"layer_0/intermediate/dense/kernel \[24, 16\] instead of \[24, 17\]"):
        import_tf1(golden)
    edit_config(golden, intermediate_size=16, num_hidden_layers=3)
    with pytest.raises(UserError, match=r"missing: bert/encoder/layer_2/attention/self/query/kernel, .* and 4 more"):
        import_tf1(golden)


def test_missing_configuration_fields_are_not_inferred_from_the_checkpoint(golden):
    fields = json.loads((golden / "bert_config.json").read_text())
    del fields["type_vocab_size"]
    (golden / "bert_config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"token_type_embeddings \[2, 24\] instead of \[16, 24\]"):  # the original's own default
        import_tf1(golden)


@pytest.mark.parametrize(
    ("hidden_act", "activation", "read", "told"),
    [
        ("gelu", None, "gelu", True),
        ("gelu", "gelu_tanh", "gelu_tanh", False),
        ("gelu", "gelu", "gelu", False),
        ("relu", None, "relu", False),
        ("gelu_new", None, "gelu_tanh", False),
    ],
)
def test_gelu_is_exact_unless_another_activation_is_given(golden, hidden_act, activation, read, told):
    edit_config(golden, hidden_act=hidden_act)
    _, config, _, notes = import_tf1(golden, activation=activation)
    assert config.activation == read
    assert any("hidden_act" in message for message in notes.messages) is told


def test_both_forms_of_gelu_survive_a_round_trip(vocabulary, tmp_path):
    for activation in ("gelu", "gelu_tanh"):
        params, config = make_model(vocabulary, **ORIGINAL, activation=activation)
        export_tf1(tmp_path / "m", params, config, load_tokenizer(vocabulary))
        assert json.loads((tmp_path / "m" / "bert_config.json").read_text())["hidden_act"] == "gelu"
        _, back, _, notes = import_tf1(tmp_path / "m")
        assert back.activation == activation
        assert notes.messages == ()
    edit_config(tmp_path / "m", hidden_act="relu")  # edited since
    assert import_tf1(tmp_path / "m")[1].activation == "relu"


def test_the_casing_of_an_ambiguous_vocabulary_is_recorded(golden, vocabulary, tmp_path):
    vocab = golden / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("z\n", "7\n"))
    with pytest.raises(UserError, match=r"the casing of the vocabulary .* is unclear"):
        import_tf1(golden)
    params, config, tokenizer, _ = import_tf1(golden, lowercase=True)
    export_tf1(tmp_path / "m", params, config, tokenizer)
    assert import_tf1(tmp_path / "m")[2].vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize("recorded", [False, True])
def test_given_settings_take_precedence_over_recorded_ones(golden, recorded, tmp_path):
    words = (golden / "vocab.txt").read_text().replace("z\n", "7\n")  # a vocabulary that does not show its casing
    (golden / "vocab.txt").write_text(words)
    params, config, tokenizer, _ = import_tf1(golden, lowercase=recorded, activation="gelu_tanh" if recorded else "gelu")
    export_tf1(tmp_path / "m", params, config, tokenizer)
    _, as_recorded, of_record, _ = import_tf1(tmp_path / "m")
    assert (as_recorded.activation, of_record.vocabulary.lowercase) == (config.activation, recorded)
    other = "gelu" if recorded else "gelu_tanh"
    _, as_given, given, _ = import_tf1(tmp_path / "m", lowercase=not recorded, activation=other)
    assert (as_given.activation, given.vocabulary.lowercase) == (other, not recorded)


def test_a_vocabulary_in_another_order_than_the_exported_one_is_refused(golden, tmp_path):
    params, config, tokenizer, _ = import_tf1(golden)
    export_tf1(tmp_path / "m", params, config, tokenizer)
    words = (tmp_path / "m" / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    (tmp_path / "m" / "vocab.txt").write_text("\n".join([*words[:-2], words[-1], words[-2]]) + "\n", "utf-8")
    with pytest.raises(UserError, match=r"the model was trained with another vocabulary \(sha256 [0-9a-f]{12}\.\.\.\)"):
        import_tf1(tmp_path / "m")


def test_models_that_the_original_cannot_represent_are_refused(vocabulary, tmp_path):
    tokenizer = load_tokenizer(vocabulary)
    params, config = make_model(vocabulary, **ORIGINAL)
    untied, untied_config = make_model(vocabulary, **ORIGINAL, tied_decoder=False)
    token = make_labelled_model(vocabulary, TokenHead(labels=("O", "PER")), **ORIGINAL)
    other = extended(tokenizer, ["rivers"])
    white = Tokenizer(WordPiece(["c " if piece == "Paris" else piece for piece in tokenizer.pieces]))
    wide, swish = dataclasses.replace(config, layer_norm_epsilon=1e-6), dataclasses.replace(config, activation="silu")
    cases = [
        (untied, untied_config, tokenizer, None, "no separate decoder"),
        (params, wide, tokenizer, None, "layer_norm_epsilon=1e-06 cannot be represented"),
        (params, swish, tokenizer, None, r"has no activation silu \(only gelu, gelu_tanh, relu\); choose another format"),
        (token.params, token.config, tokenizer, token.head, "has no token head; drop the head"),
        (params, config, other, None, "use the vocabulary that the model was trained with"),
        (
            params,
            config,
            white,
            None,
            "cannot hold the piece 'c ', because the piece contains a line end, or starts or ends with white space",
        ),
    ]
    for tree, settings, words, head, message in cases:
        with pytest.raises(UserError, match=message):
            export_tf1(tmp_path / "m", tree, settings, words, head=head)
    assert not (tmp_path / "m").exists()


def test_a_tokenizer_with_other_rules_is_refused(vocabulary, tmp_path):
    params, config = make_model(vocabulary, **ORIGINAL)
    edited = pathlib.Path(shutil.copytree(vocabulary, tmp_path / "edited"))
    (edited / "tokenizer.json").unlink()
    settings = json.loads((edited / "tokenizer_config.json").read_text())
    (edited / "tokenizer_config.json").write_text(json.dumps(settings | {"strip_accents": True}))
    with pytest.raises(UserError, match=r"differently from this model \(strip_accents=True, split_cjk=True\)"):
        export_tf1(tmp_path / "m", params, config, load_tokenizer(edited))
    vocab = edited / "vocab.txt"
    vocab.write_text(vocab.read_text(encoding="utf-8").replace("[MASK]", "<mask>"), encoding="utf-8")
    (edited / "tokenizer_config.json").write_text(json.dumps(settings | {"mask_token": "<mask>"}))
    (edited / "special_tokens_map.json").unlink()
    with pytest.raises(UserError, match=r"the original's special tokens are \[UNK\], .*, not \[UNK\], \[CLS\], \[SEP\], <mask>"):
        export_tf1(tmp_path / "m", params, config, load_tokenizer(edited))


def test_a_second_export_replaces_only_the_first(vocabulary, tmp_path):
    tokenizer = load_tokenizer(vocabulary)
    for layers in (2, 1):
        export_tf1(tmp_path / "m", *make_model(vocabulary, **ORIGINAL, num_layers=layers), tokenizer)
    (tmp_path / "m").rename(tmp_path / ".m.replaced")  # killed between the two renames
    assert import_tf1(tmp_path / "m")[1].num_layers == 1
    released = pathlib.Path(shutil.copytree(GOLDEN, tmp_path / "released"))
    with pytest.raises(UserError, match="holds files that bert_jax did not export"):
        export_tf1(released, *make_model(vocabulary, **ORIGINAL), tokenizer)
    assert {path.name for path in released.iterdir()} == {path.name for path in GOLDEN.iterdir()}


def test_a_failed_export_leaves_nothing(vocabulary, tmp_path):
    with files_of_at_most(10_000), pytest.raises(UserError, match="File too large; free space"):
        export_tf1(tmp_path / "m", *make_model(vocabulary, **ORIGINAL), load_tokenizer(vocabulary))
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_without_configuration_or_vocabulary_is_refused(golden):
    (golden / "vocab.txt").rename(golden / "words.txt")
    with pytest.raises(UserError, match=r"vocab\.txt"):
        import_tf1(golden)
    (golden / "bert_config.json").unlink()
    with pytest.raises(UserError, match=r"bert_config\.json is missing; copy the file of the pretrained model there"):
        import_tf1(golden)
    (golden / "bert_config.json").write_text("{")
    with pytest.raises(UserError, match=r"bert_config\.json cannot be read as JSON"):
        import_tf1(golden)
    (golden / "bert_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"bert_config\.json must hold a JSON object"):
        import_tf1(golden)


def test_a_vocabulary_of_another_size_is_refused(golden):
    (golden / "vocab.txt").write_text((golden / "vocab.txt").read_text() + "more\n")
    with pytest.raises(UserError, match="68 entries, but the vocab_size of the model is 67"):
        import_tf1(golden)


def test_a_checkpoint_of_tensorflow_2_is_recognised(golden):
    for path in golden.glob("model.ckpt-1000.*"):
        path.unlink()
    for path in GOLDEN.parent.glob("text.*"):
        shutil.copy(path, golden / path.name.replace("text", "model.ckpt-1000"))
    with pytest.raises(UserError, match="is a TensorFlow 2 checkpoint, whose tensors have other names"):
        import_tf1(golden)


@pytest.mark.parametrize(("outputs", "labels"), [(3, 3), (1, 1), (2**20 + 1, 1)])
def test_default_labels_are_made_for_up_to_the_maximum_number_of_outputs(outputs, labels):
    entry = Entry(dtype=1, shape=(outputs, 24), shard=0, offset=0, size=0, checksum=0, partitioned=False)
    head = _head(Bundle(pathlib.Path("x"), 1, {"output_weights": entry}), {}, "bert_config.json")
    assert head == SequenceHead(
        labels=tuple(f"LABEL_{n}" for n in range(labels)), problem="classification" if labels > 1 else "regression"
    )


def test_a_head_of_impossible_shape_is_refused(golden):
    for shape in ((), (0, 24), (5,), (2, 3, 4)):
        head = {"output_weights": np.zeros(shape, np.float32), "output_bias": np.float32([0])}
        rewrite(golden, lambda tensors, head=head: tensors | head)
        with pytest.raises(UserError, match=r"output_weights \[.*\] instead of \[1, 24\]"):
            import_tf1(golden)
