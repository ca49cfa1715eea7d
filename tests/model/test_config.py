"""The defaults of a model's configuration, its invalid values, and its description."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.ranges import allowed_words, hints, marked
from bert_jax.model import ENCODERS, encoder_classes, natural_objective
from bert_jax.model.config import Execution, ModelConfig, OnlyFor, published, published_sizes
from bert_jax.objectives.model import Model
from tests.random_rows import TINY, drawn_parameters, random_batch

RELEASED = """{
  "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512, "num_attention_heads": 12,
  "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522
}"""
"""bert_config.json of the original's uncased_L-12_H-768_A-12."""
OURS = {
    "attention_probs_dropout_prob": "attention_dropout", "hidden_act": "activation", "hidden_dropout_prob": "hidden_dropout",
    "max_position_embeddings": "max_position", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
}  # fmt: skip


def test_the_defaults_are_bert_base_with_the_layer_norm_of_tensorflow():
    config = ModelConfig()
    for name, value in json.loads(RELEASED).items():
        assert getattr(config, OURS.get(name, name)) == value
    assert config.layer_norm_epsilon == 1e-12  # tf.contrib.layers.layer_norm
    assert config.padded_vocab_size == config.vocab_size
    assert config.tied_decoder
    assert not config.character_cnn
    assert config.scan_layers is False


def test_the_miniatures_have_the_sizes_of_their_paper():
    """The table is arXiv:1908.08962, table 1, and the original's README."""
    names = {f"L-{layers}_H-{width}" for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)}
    assert published_sizes().keys() - {"tiny", "mini", "small", "medium", "base", "large"} == names


MODERN = {
    "ettin-17m": (7, 256, 384, 4), "ettin-32m": (10, 384, 576, 6), "ettin-68m": (19, 512, 768, 8),
    "ettin-150m": (22, 768, 1_152, 12), "ettin-400m": (28, 1_024, 2_624, 16), "ettin-1b": (28, 1_792, 3_840, 28),
    "modernbert-large": (28, 1_024, 2_624, 16), "mmbert-small": (22, 384, 1_152, 6),
}  # fmt: skip
"""(layers, width, intermediate, heads): arXiv:2507.11412, table 1; arXiv:2412.13663, table 4; arXiv:2509.06888."""
EUROBERT = {
    "eurobert-210m": (12, 768, 3_072, 12, 12), "eurobert-610m": (26, 1_152, 4_096, 18, 6),
    "eurobert-2.1b": (32, 2_304, 6_144, 18, 6),
}  # fmt: skip
"""(layers, width, intermediate, heads, heads of keys and values): arXiv:2503.05500, table 1."""


def test_published_encoders_have_the_sizes_of_their_papers_and_the_settings_of_their_releases():
    for name, sizes in MODERN.items():
        c = ModelConfig(**published(name))
        assert (c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads) == sizes
        assert c.vocab_size == (256_000 if "mmbert" in name else 50_368)
        assert c.max_position == (7_999 if "ettin" in name else 8_192)
        assert (c.rotary_theta, c.sliding_rotary_theta) == (160_000, 10_000 if "modernbert" in name else 160_000)
        assert (c.sliding_radius, c.layer_norm_epsilon, c.layer_types[:4]) == (64, 1e-5, ("full", "sliding", "sliding", "full"))
    for name, sizes in EUROBERT.items():
        c = ModelConfig(**published(name))
        assert (c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads, c.key_value_heads) == sizes
        assert (c.vocab_size, c.max_position, c.rotary_theta, c.layer_norm_epsilon) == (128_256, 8_192, 250_000, 1e-5)
        assert c.num_key_value_heads == (0 if sizes[3] == sizes[4] else sizes[4])
        unset = ("type_vocab_size", "norm_bias", "embedding_norm", "attention_bias", "intermediate_bias", "output_bias")
        assert not any(getattr(c, field) for field in (*unset, "decoder_bias", "tied_decoder"))
        assert c.final_norm
    c = ModelConfig(**published("nomic-bert"))
    assert (c.vocab_size, c.max_position, c.rotary_theta, c.type_vocab_size) == (30_528, 2_048, 1_000, 2)
    assert not any((c.attention_bias, c.intermediate_bias, c.output_bias))
    c = ModelConfig(**published("transformer_base"))
    assert (c.vocab_size, c.max_position, c.layer_norm_epsilon, c.scale_embeddings) == (37_000, 512, 1e-5, True)


def another_value(kind: type, name: str) -> Any:
    """Returns a value of a field that is not its default."""
    default, hint = getattr(kind, name), hints(kind)[name]
    if isinstance(default, bool):
        return not default
    if name == "layer_types":
        return ("full",) * 12
    others = [word for word in allowed_words(hint) if word != default]
    return others[0] if others else (default or 1) + 4


def test_a_resumed_run_may_change_everything_about_its_execution_but_rounding_and_arrays():
    assert Execution.exact() == ("remat", "scan_layers", "layers_per_scan_step", "attention", "residual_norm")
    assert Execution.within_noise() == ("dtype", *Execution.exact())


BASES: dict[str, dict[str, Any]] = {
    "transformer": {},
    "encoder_decoder": published("transformer_base"),
    "bilm": {"num_layers": 2},
    "flair": {"num_layers": 1},
    "cove": {"num_layers": 2, "decoder_layers": 2},
    "static": {"num_layers": 0},
}


def test_every_setting_is_refused_by_the_encoders_to_which_it_does_not_apply():
    assert BASES.keys() == ENCODERS.keys()
    for encoder, base in BASES.items():
        model = {**base, "encoder": encoder}
        ModelConfig(**model)
        for name, marker in marked(ModelConfig, OnlyFor).items():
            if not getattr(ENCODERS[encoder], marker.fact):
                with pytest.raises(UserError, match=rf"model\.{name}\b"):
                    ModelConfig(**{**model, name: another_value(ModelConfig, name)})


@pytest.mark.parametrize(
    ("fields", "in_words", "word_width", "has_segments"),
    [
        (
            {"encoder": "cove", "num_layers": 2, "decoder_layers": 1, "hidden_size": 600, "intermediate_size": 300},
            "bidirectional LSTM of 2 layers, 600 wide, cells 300 wide, decoder of 1 layer",
            600,
            True,
        ),
        ({"encoder": "flair", "num_layers": 1}, "biLM of characters of 1 layer, 768 wide, cells 3072 wide", 384, True),
        (published("transformer_base"), "encoder of 6 and decoder of 6 layers, 512 wide", 512, False),
        ({"encoder": "a/mine.py:Mine"}, "Mine of 12 layers, 768 wide", 768, True),
        ({}, "12 layers, 768 wide, 12 heads", 768, True),
        ({"num_layers": 1, "num_heads": 1, "type_vocab_size": 1}, "1 layer, 768 wide, 1 head", 768, False),
        ({"direction": "left_to_right"}, "12 layers, 768 wide, 12 heads", 768, False),
        ({"encoder": "static", "num_layers": 0, "hidden_size": 300}, "static vectors, 300 wide", 300, True),
        ({"encoder": "bilm", "num_layers": 2}, "biLM of 2 layers, 768 wide, cells 3072 wide", 384, True),
        (
            {"encoder": "bilm", "num_layers": 2, "direction": "left_to_right", "hidden_size": 601},
            "left-to-right LSTM of 2 layers, 601 wide, cells 3072 wide",
            601,
            False,
        ),
    ],
)
def test_a_model_is_described_in_one_line(fields: dict[str, Any], in_words: str, word_width: int, has_segments: bool):
    config = ModelConfig(**fields)
    assert (config.in_words, config.word_width, config.has_segments) == (in_words, word_width, has_segments)


STATIC = {"encoder": "static", "num_layers": 0}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_heads": 2**16 + 1}, "model.num_heads=65537 must be at least 1 and at most 65,536"),
        ({"num_layers": 0}, "model.num_layers=0 must be at least 1; only model.encoder=static has no layers"),
        ({"hidden_size": 7, "num_heads": 2}, "divisible by model.num_heads=2; the nearest number of heads that divides it is 1"),
        ({"hidden_size": 7, "num_heads": 6}, "divisible by model.num_heads=6; the nearest number of heads that divides it is 7"),
        ({"hidden_size": 36, "num_heads": 11}, "the nearest number of heads that divides it is 12"),
        ({"character_cnn": True, "tied_decoder": False}, "model.character_cnn=True requires model.encoder=bilm and"),
        ({"character_cnn": True, "encoder": "bilm"}, "since a character CNN has no word table to tie"),
        ({"encoder": "static", "num_layers": 1}, "model.num_layers=1 must be 0: word vectors have no layers (model.encoder="),
        ({"encoder": "bilm", "num_layers": 0}, "model.num_layers=0 must be at least 1 (model.encoder=bilm)"),
        ({"encoder": "bilm", "hidden_size": 9}, "must be even: each direction of model.encoder=bilm uses half of it; set 10, or"),
        ({**STATIC, "direction": "left_to_right"}, "model.direction=left_to_right does not apply to model.encoder=static"),
        ({**STATIC, "positions": "none"}, "model.positions=none does not apply to model.encoder=static; leave it out (learned)"),
        ({"encoder": "bilm", "attention": "plain"}, "attention=plain does not apply to model.encoder=bilm; leave it out (auto)"),
        ({"encoder": "bilm", "residual_norm": "plain"}, "does not apply to model.encoder=bilm; leave it out (auto)"),
        ({"encoder": "bilm", "remat": "full"}, "does not apply to model.encoder=bilm; leave it out (none)"),
        ({"rotary_theta": 0.9}, "model.rotary_theta=0.9 must be at least 1 and at most 1e+12"),
        ({"rotary_theta": 1.1e12}, "must be at least 1 and at most 1e+12"),
    ],
)  # fmt: skip
def test_impossible_models_are_refused_with_a_remedy(fields: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        ModelConfig(**fields)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_layers": 1, "num_heads": 768},
        {"hidden_size": 1, "num_heads": 1},
        {"hidden_size": 2**16, "num_heads": 2**16},
        {"encoder": "bilm", "character_cnn": True, "tied_decoder": False},
        {"encoder": "bilm", "direction": "left_to_right", "hidden_size": 9},
        {**STATIC, "hidden_size": 9},
        {"rotary_theta": 1.0, "sliding_rotary_theta": 1e12},
    ],
)
def test_models_at_the_limits_are_accepted(fields: dict[str, Any]):
    made = ModelConfig(**fields)
    assert {name: getattr(made, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ("full", "sliding"), "sliding_radius": 4}, "layer_types lists 2 layers, but model.num_layers=3"),
        ({"layer_types": ("full", "local", "full")}, "layer_types.1='local' is not one of full, sliding"),
        ({"layer_types": ("full", "sliding", "full")}, "sliding_radius=0 a token sees no other token; set it to at least 1"),
        ({"gate": "third"}, "model.gate='third' is not one of none, first, second"),
        ({"norm": "rms"}, "model.norm='rms' is not one of layer_norm, rms_norm; did you mean 'rms_norm'"),
        ({"num_key_value_heads": 3}, "num_heads=4 is not divisible by model.num_key_value_heads=3; set it to one of 1, 2, 4"),
        ({"positions": "rotary", "hidden_size": 36}, "needs an even head width, not 9"),
        ({"first_attention_norm": False}, "model.first_attention_norm=False requires model.norm_placement=pre"),
        ({"encoder": "bilm", "gate": "first"}, "model.gate=first does not apply to model.encoder=bilm; leave it out"),
    ],
)
def test_incompatible_block_settings_are_refused(fields, message):
    with pytest.raises(UserError, match=re.escape(message)):
        ModelConfig(**{"num_layers": 3, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64} | fields)


def test_an_encoder_in_a_file_must_be_a_class_of_encoders(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text("from bert_jax.model.static import NoLayers\nclass Other: pass\ndef function(x, tokens, seed): pass\n")
    assert encoder_classes(ModelConfig(encoder=f"{file}:NoLayers"))[1].__name__ == "NoLayers"
    for name in ("Other", "function"):
        with pytest.raises(UserError, match=rf"mine.py:{name} is <.*, not an encoder; make it a class that inherits from"):
            encoder_classes(ModelConfig(encoder=f"{file}:{name}"))


OWN_ENCODERS = """from bert_jax.model.encoder import Block, Encoder, WholeRows
class Whole(WholeRows):
    def __call__(self, x, tokens, seed): return x, x[None]
class MaskedWhole(Whole):
    objectives = {"both": "bert", "left_to_right": "next_token"}
    applies_positions = True
class Mixing(Block):
    def __call__(self, x, tokens, seed, layer): return x
class Narrow(Block): pass
class Mean:
    def __init__(self, config, name): pass
    def __call__(self, x, tokens, seed, layer):
        same = tokens.query_sequence_ids[:, :, None] == tokens.sequence_ids[:, None]
        return same @ x / same.sum(-1, keepdims=True)
class Same(Mean):
    def __call__(self, x, tokens, seed, layer): return x
class OfMeans(Block): attention = Mean
class OfSame(Block): attention = Same
class Means(Encoder): block = OfMeans
class Forgetful(Encoder): block = OfSame
class Mixed(Encoder): block = Mixing
class Called(Encoder):
    def __call__(self, x, tokens, seed): return super().__call__(x, tokens, seed)
class MaskedMixed(Mixed): objectives = MaskedWhole.objectives
class MaskedCalled(Called): objectives = Encoder.objectives
class Narrowed(Encoder): block = Narrow
"""
OWN_NAMES = ("Whole", "Mixed", "Called", "Means", "MaskedWhole", "MaskedMixed", "MaskedCalled", "Narrowed")


@pytest.mark.parametrize(
    ("name", "refused"),
    [(name, name in ("Whole", "Mixed", "Called", "Means")) for name in OWN_NAMES],
)
def test_an_own_encoder_is_trained_left_to_right_only_if_it_declares_that_it_masks_later_tokens(
    tmp_path: pathlib.Path, name: str, refused: bool
):
    file = tmp_path / "mine.py"
    file.write_text(OWN_ENCODERS)
    encoder = f"{file}:{name}"
    assert natural_objective(ModelConfig(encoder=encoder)) == "bert"
    refusal = pytest.raises(UserError, match=rf"{name} does not declare this; set .*both, or add")
    with refusal if refused else contextlib.nullcontext():
        assert natural_objective(ModelConfig(encoder=encoder, direction="left_to_right")) == "next_token"


def test_positions_of_attention_are_refused_for_own_layers_that_do_not_declare_them(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(OWN_ENCODERS)
    for positions in ("rotary", "experiments/extensions/alibi.py:Alibi"):
        with pytest.raises(UserError, match=r"acts on (queries and keys|scores) of attention, but .*Whole does not declare"):
            natural_objective(ModelConfig(encoder=f"{file}:Whole", positions=positions))
        for name in ("MaskedWhole", "Mixed"):
            assert natural_objective(ModelConfig(encoder=f"{file}:{name}", positions=positions)) == "bert"


def test_a_block_may_have_its_own_attention_which_returns_the_queried_tokens(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(OWN_ENCODERS)
    params, batch, positions = drawn_parameters(TINY), random_batch(), np.zeros((8, 1), np.int32)
    layers = {name: part for name, part in params["encoder"]["layers"].items() if name != "attention"}
    for name, refused in (("Means", False), ("Forgetful", True)):
        model = Model(dataclasses.replace(TINY, encoder=f"{file}:{name}"))
        assert "attention" not in jax.eval_shape(model.encoder, jax.random.key(0))["encoder"]["layers"]
        own = {**params, "encoder": {"layers": layers}}
        with pytest.raises(UserError, match=r"attention of .*Forgetful") if refused else contextlib.nullcontext():
            assert jax.eval_shape(model.encode_at, own, positions, batch).shape == (8, 1, 16)


def test_an_encoder_in_a_file_must_return_its_last_layer_and_all_layers(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import jax.numpy as jnp\nfrom bert_jax.model.encoder import WholeRows\n"
        "class Last(WholeRows):\n    def __call__(self, x, tokens, seed): return x\n"
        "class One(WholeRows):\n    def __call__(self, x, tokens, seed): return x, x[None]\n"
        "class Right(WholeRows):\n    def __call__(self, x, tokens, seed): return x, jnp.stack([x, x])\n"
    )
    for name, refused in (("Last", True), ("One", True), ("Right", False)):
        model = Model(dataclasses.replace(TINY, encoder=f"{file}:{name}"))
        params = {"embeddings": drawn_parameters(TINY)["embeddings"], "encoder": {}}
        with pytest.raises(UserError, match="must return the output of the last layer") if refused else contextlib.nullcontext():
            assert jax.eval_shape(model.encode, params, random_batch()).shape == (8, 16, 16)
