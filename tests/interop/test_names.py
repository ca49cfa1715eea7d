from __future__ import annotations

import dataclasses
import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.names import (
    our_shapes,
    params_from_tensors,
    reading_notes,
    rows,
    tensors_from_params,
    their_names,
    their_shape,
)
from bert_jax.model.pretraining import abstract_parameters
from tests.interop.tiny import make_model


@pytest.fixture
def tensors(tiny) -> dict[str, np.ndarray]:
    return tensors_from_params(*tiny)


def test_the_table_names_every_parameter_of_the_model_once_with_its_shape(tiny):
    _, config = tiny
    model = flatten_dict(nn.unbox(abstract_parameters(config)), sep="/")
    assert {path: leaf.shape for path, leaf in model.items()} == our_shapes(config)
    assert {row.ours for row in rows(config)} == {row.ours for row in BERT.table if row.ours in model} == set(model)


OWN_POSITIONS = """
from flax import linen as nn
from bert_jax.model.layers import initializer, parameter
class Mine(nn.Module):
    config: object
    def setup(self):
        c = self.config
        self.embedding = parameter(self, "embedding", initializer(c), (None, "embed"), (ROWS * c.max_position, c.hidden_size))
    def embeddings(self, x, tokens):
        return x + self.embedding[tokens.positions]
"""


@pytest.mark.parametrize(("times", "name"), [(1, "weight"), (2, "embedding")])
def test_a_table_of_own_positions_has_the_name_of_berts_only_with_its_shape(tiny, times: int, name: str, tmp_path: pathlib.Path):
    (tmp_path / "mine.py").write_text(OWN_POSITIONS.replace("ROWS", str(times)))
    config = dataclasses.replace(tiny[1], positions=f"{tmp_path}/mine.py:Mine")
    (row,) = (row for row in rows(config) if row.ours.startswith("embeddings/position_embeddings/"))
    assert row.theirs == f"bert.embeddings.position_embeddings.{name}"
    assert their_shape(row, config) == our_shapes(config)[row.ours] == (times * config.max_position, config.hidden_size)


def test_exported_kernels_are_outputs_by_inputs(tiny):
    _, config = tiny
    shapes = {row.theirs: their_shape(row, config) for row in rows(config)}
    d, f = config.hidden_size, config.intermediate_size
    assert shapes["bert.encoder.layer.{}.intermediate.dense.weight"] == (f, d)
    assert shapes["bert.encoder.layer.{}.attention.self.query.weight"] == (d, d)
    assert shapes["cls.seq_relationship.weight"] == (2, d)
    assert shapes["cls.predictions.bias"] == (config.vocab_size,)


def test_heads_are_consecutive_blocks_of_the_output_axis(tiny, tensors):
    params, config = tiny
    query = params["encoder"]["layers"]["attention"]["query"]
    output = params["encoder"]["layers"]["attention"]["output"]
    k = config.head_width
    for head in range(config.num_heads):
        block = slice(head * k, (head + 1) * k)
        np.testing.assert_array_equal(
            tensors["bert.encoder.layer.1.attention.self.query.weight"][block], query["kernel"][1, :, head].T
        )
        np.testing.assert_array_equal(tensors["bert.encoder.layer.1.attention.self.query.bias"][block], query["bias"][1, head])
        np.testing.assert_array_equal(
            tensors["bert.encoder.layer.0.attention.output.dense.weight"][:, block], output["kernel"][0, head].T
        )


def test_parameters_survive_a_round_trip_without_padding_rows(tiny, tensors):
    params, config = tiny
    back = flatten_dict(params_from_tensors(tensors, config, "test"), sep="/")
    flat = flatten_dict(params, sep="/")
    assert back.keys() == flat.keys()
    for path, value in flat.items():
        expected = np.array(value)
        if path in ("embeddings/word_embeddings/embedding", "mlm_head/bias"):
            assert expected.shape[0] == config.padded_vocab_size > config.vocab_size
            expected[config.vocab_size :] = 0.0
        np.testing.assert_array_equal(back[path], expected, err_msg=path)
        assert back[path].dtype == np.float32


def test_exported_tensors_are_contiguous(tensors):
    """safetensors copies bytes: a transposed view would silently be stored in the wrong order."""
    assert all(x.flags.c_contiguous and x.dtype == np.float32 for x in tensors.values())


def test_missing_unknown_and_misshapen_tensors_are_all_listed(tiny, tensors):
    _, config = tiny
    tensors["bert.pooler.dense.weight"] = tensors["bert.pooler.dense.weight"][:-1]
    tensors["classifier.weight"] = np.zeros((2, 2), np.float32)
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    with pytest.raises(UserError) as caught:
        params_from_tensors(tensors, config, "the file")
    message = str(caught.value)
    assert "missing: bert.encoder.layer.1.output.dense.bias" in message
    assert "not part of this model: classifier.weight" in message
    assert "bert.pooler.dense.weight [15, 16] instead of [16, 16]" in message
    assert "the file" in message


@pytest.mark.parametrize(("count", "rest"), [(11, ""), (12, ""), (13, " and 1 more")])
def test_at_most_twelve_tensors_are_listed(tiny, tensors, count, rest):
    names = [f"other.{n:02}" for n in range(count)]
    with pytest.raises(UserError) as caught:
        params_from_tensors(tensors | dict.fromkeys(names, np.zeros(1, np.float32)), tiny[1], "the file")
    listed = f"not part of this model: {', '.join(names[:12])}{rest}"
    assert str(caught.value).endswith(f"{listed}; to leave them out, use `convert --drop='other.*'`")


def test_tensors_of_one_more_layer_are_refused(tiny, tensors):
    _, config = tiny
    layer = "bert.encoder.layer.0."
    tensors |= {name.replace(layer, "bert.encoder.layer.2."): x for name, x in tensors.items() if name.startswith(layer)}
    with pytest.raises(UserError, match=r"not part of this model: bert\.encoder\.layer\.2\..* and 4 more"):
        params_from_tensors(tensors, config, "the file")


def test_heads_may_be_absent_but_not_incomplete(tiny, tensors):
    _, config = tiny
    encoder = {name: x for name, x in tensors.items() if name.startswith("bert.")}
    assert set(params_from_tensors(encoder, config, "")) == {"embeddings", "encoder", "pooler"}
    with pytest.raises(UserError, match=r"missing: cls\.predictions\.transform\.dense\.weight"):
        params_from_tensors(encoder | {"cls.predictions.bias": tensors["cls.predictions.bias"]}, config, "")


def test_names_of_a_bare_encoder_and_old_layer_norm_names_are_read(tiny, tensors):
    _, config = tiny
    old = {
        name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in tensors.items()
        if name.startswith("bert.")
    }
    old["embeddings.position_ids"] = np.arange(config.max_position)[None]
    back = params_from_tensors(old, config, "")
    np.testing.assert_array_equal(
        back["encoder"]["layers"]["attention_layer_norm"]["scale"][1],
        tensors["bert.encoder.layer.1.attention.output.LayerNorm.weight"],
    )


def test_a_stored_tied_decoder_must_equal_the_word_embeddings(tiny, tensors):
    _, config = tiny
    table = tensors["bert.embeddings.word_embeddings.weight"]
    bias = tensors.pop("cls.predictions.bias")
    copies = {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}
    back = params_from_tensors(tensors | copies, config, "")
    np.testing.assert_array_equal(back["mlm_head"]["bias"][: config.vocab_size], bias)
    with pytest.raises(UserError, match=r"decoder\.weight differs"):
        params_from_tensors(tensors | copies | {"cls.predictions.decoder.weight": table + 1}, config, "")


def test_positions_in_another_order_are_refused(tiny, tensors):
    tensors["bert.embeddings.position_ids"] = np.array([[0, 2, 1]])
    with pytest.raises(UserError, match=r"the file: bert\.embeddings\.position_ids must be 0, 1, 2, \.\.\.; other values"):
        params_from_tensors(tensors, tiny[1], "the file")


def test_an_untied_decoder_may_store_its_bias_once_or_twice(vocabulary):
    params, config = make_model(vocabulary, tied_decoder=False)
    tensors = tensors_from_params(params, config)
    bias, unread = (np.full(config.vocab_size, x, np.float32) for x in (1, 2))
    for stated in ({"cls.predictions.bias": bias}, {"cls.predictions.bias": unread, "cls.predictions.decoder.bias": bias}):
        back = params_from_tensors(tensors | stated, config, "")
        np.testing.assert_array_equal(back["mlm_head"]["bias"][: config.vocab_size], bias)


@pytest.mark.parametrize("change", ["another", "short", "absent"])
def test_positions_that_are_computed_are_stored_and_compared(vocabulary, change):
    params, config = make_model(vocabulary, positions="sinusoidal", vocab_multiple=1)
    tensors = tensors_from_params(params, config)
    jax.tree.map(np.testing.assert_array_equal, params_from_tensors(tensors, config, ""), params)
    table = tensors.pop(BERT.position_table)
    name = BERT.position_table
    tensors |= {"another": {name: table + np.float32(1e-3)}, "short": {name: table[:-1]}, "absent": {}}[change]
    with pytest.raises(UserError, match=r"file: .* is not the sinusoidal table of 40 rows that config\.json names"):
        params_from_tensors(tensors, config, "file")


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_orig_mod.module.", "model.encoder."])
@pytest.mark.parametrize("bare", [False, True])
def test_the_names_of_a_module_around_the_model_are_read_without_its_prefix(tiny, tensors, wrapper, bare):
    _, config = tiny
    kept = {name: x for name, x in tensors.items() if not bare or name.startswith("bert.")}
    wrapped = {f"{wrapper}{name.removeprefix('bert.') if bare else name}": x for name, x in kept.items()}
    wrapped[f"{wrapper}{'' if bare else 'bert.'}embeddings.position_ids"] = np.arange(config.max_position)[None]
    wrapped[f"{wrapper}{'' if bare else 'bert.'}embeddings.token_type_ids"] = np.zeros((1, config.max_position), np.int64)
    back = params_from_tensors(wrapped, config, "")
    jax.tree.map(np.testing.assert_array_equal, back, params_from_tensors(kept, config, ""))
    assert f"the prefix {wrapper!r} was removed from names" in reading_notes(wrapped, config, None, ())


@pytest.mark.parametrize("wrapper", ["module.", ""])
def test_messages_name_tensors_as_in_the_file(tiny, tensors, wrapper):
    _, config = tiny
    old = {f"{wrapper}{name.removeprefix('bert.')}": x for name, x in tensors.items() if name.startswith("bert.")}
    old[f"{wrapper}embeddings.LayerNorm.gamma"] = old.pop(f"{wrapper}embeddings.LayerNorm.weight")[:3]
    old |= {f"{wrapper}mine.weight": np.zeros(1, np.float32), f"{wrapper}encoder.extra": np.zeros(1, np.float32)}
    with pytest.raises(UserError) as caught:
        params_from_tensors(old, config, "the file")
    assert f"not part of this model: {wrapper}mine.weight, {wrapper}encoder.extra; " in str(caught.value)
    assert f"{wrapper}embeddings.LayerNorm.gamma [3] instead of [16]" in str(caught.value)
    del old[f"{wrapper}embeddings.LayerNorm.gamma"]
    old[f"{wrapper}embeddings.LayerNorm.weight"] = tensors["bert.embeddings.LayerNorm.weight"]
    says = rf"to leave them out, use `convert --drop='{wrapper}mine\.\*,{wrapper}encoder\.extra'`$"
    with pytest.raises(UserError, match=says):
        params_from_tensors(old, config, "the file")


def test_two_models_in_one_file_are_refused(tiny, tensors):
    twice = {f"{side}.{name}": x for name, x in tensors.items() for side in ("query", "passage")}
    with pytest.raises(UserError, match=r"missing: bert\.embeddings.*not part of this model: query\.bert\.embeddings"):
        params_from_tensors(twice, tiny[1], "the file")


def test_converted_names_are_reported(tiny, tensors):
    _, config = tiny
    assert reading_notes(tensors, config, None, ()) == ()
    table, bias = (tensors[name] for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"))
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): x for name, x in tensors.items()}
    old |= {"cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": np.arange(40)[None]}
    old["cls.seq_relationship.bias"] = old["cls.seq_relationship.bias"].astype(np.float16)
    assert reading_notes(old, config, None, ["nsp_head", "span_head"]) == (
        "nsp_head was left out",
        "renamed 6 tensors that end in LayerNorm.gamma",
        "cls.predictions.decoder.weight, a copy of bert.embeddings.word_embeddings.weight, was left out",
        "bert.embeddings.position_ids, which is not a parameter, was left out",
        "weights in float16 were converted to float32",
    )
    nvidia = {name.replace("intermediate.dense.", "intermediate.dense_act."): x for name, x in tensors.items()}
    assert reading_notes(nvidia, config, None, ()) == ("renamed 4 tensors that end in dense_act.weight and dense_act.bias",)
    same = params_from_tensors(nvidia, config, "file"), params_from_tensors(tensors, config, "file")
    jax.tree.map(np.testing.assert_array_equal, *same)
    untied = dataclasses.replace(config, tied_decoder=False)
    own = {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}
    assert reading_notes(tensors | own, untied, None, ()) == ()


def test_parameters_that_do_not_fit_the_configuration_are_named(tiny):
    params, config = tiny
    broken = {name: part for name, part in params.items() if name != "encoder"} | {"extra": {"x": np.zeros(1)}}
    broken["nsp_head"] = {"dense": {"kernel": np.zeros((16, 3)), "bias": np.zeros(2)}}
    says = r"missing encoder/layers/attention.*unknown extra/x; nsp_head/dense/kernel is \[16, 3\], expected \[16, 2\]"
    with pytest.raises(ValueError, match=says):
        tensors_from_params(broken, config)


def test_every_row_of_the_table_is_one_tensor_or_one_per_layer(tiny):
    _, config = tiny
    names = [name for row in rows(config) for name in their_names(row, config)]
    assert len(names) == len(set(names)) == 16 * config.num_layers + 14
