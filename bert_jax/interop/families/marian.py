"""Marian's encoder-decoders as transformers has them (`modeling_marian.py`; Junczys-Dowmunt et al., arXiv:1804.00344). These
are the translators of OPUS-MT, and every model of "Attention Is All You Need" that is trained here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject
from bert_jax.interop.families.bert import ACTIVATIONS
from bert_jax.interop.families.family import Constant, Family, Key, Row, TokenId, attention, linear, norm
from bert_jax.model.config import Architecture, ModelConfig
from bert_jax.model.positions import fixed_table

ALWAYS = {
    "encoder": "encoder_decoder", "type_vocab_size": 0, "positions": "sinusoidal_halves", "embedding_norm": False,
    "layer_norm_epsilon": 1e-5, "initializer": "normal",
}  # fmt: skip

SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


@dataclasses.dataclass(frozen=True)
class TargetVocabulary:
    """Whether the target has its own table of word embeddings ("share_encoder_decoder_embeddings"), and the size of the
    target's vocabulary."""

    carried: bool = False
    names: ClassVar[tuple[str, ...]] = ("share_encoder_decoder_embeddings", "decoder_vocab_size")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the size of the target's vocabulary if it has its own table, or 0 if it shares the source's table. Raises
        UserError if the table is shared but two sizes are given, or if a value has the wrong type."""
        shared, size = fields.get("share_encoder_decoder_embeddings", True), fields.get("decoder_vocab_size")
        size = read["vocab_size"] if size is None else size
        if not isinstance(shared, bool) or isinstance(size, bool) or not isinstance(size, int):
            raise UserError(
                f"{source}: share_encoder_decoder_embeddings={shared!r} must be true or false, and decoder_vocab_size={size!r} "
                "must be a whole number"
            )
        if shared and size != read["vocab_size"]:
            raise UserError(
                f"{source}: decoder_vocab_size={size} and vocab_size={read['vocab_size']} contradict "
                "share_encoder_decoder_embeddings=true; correct one of them"
            )
        return {"decoder_vocab_size": 0 if shared else size}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns both keys."""
        size = config.decoder_vocab_size
        return {"share_encoder_decoder_embeddings": not size, "decoder_vocab_size": size or config.vocab_size}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarianFamily(Family):
    """The Marian family. If the target has its own word table, the source's word table has a different name."""

    def copies(self, config: ModelConfig) -> Mapping[str, str]:
        """Returns the name of a copy of a word table -> the name of the table. A file need not contain the copies."""
        shared = _shares(config)
        tables = {SOURCE: SHARED, TARGET: SHARED} if shared else {}
        return tables | ({"lm_head.weight": SHARED if shared else TARGET} if config.tied_decoder else {})

    def lacks(self, config: ModelConfig) -> str:
        """Returns the settings of `config` that Marian does not support, such as "norm_placement=pre"."""
        has = self.read(self.write(config, {}, {}), "")
        fields = (field.name for field in dataclasses.fields(Architecture))
        unlike = [name for name in fields if getattr(config, name) != has.get(name, getattr(ModelConfig, name))]
        return ", ".join(f"{name}={getattr(config, name)}" for name in unlike)


def generation_settings(config: ModelConfig, ids: Mapping[str, int]) -> JsonObject:
    """Returns the content of generation_config.json. The target starts with the padding token, which is never generated. If the
    target reaches `max_length` tokens, its last token is the end token. `ids` are the ids of the special tokens by role."""
    return {
        "pad_token_id": ids["pad"], "decoder_start_token_id": ids["pad"], "bad_words_ids": [[ids["pad"]]],
        "eos_token_id": ids["sep"], "forced_eos_token_id": ids["sep"], "max_length": min(512, config.max_position),
        "num_beams": 4,
    }  # fmt: skip


CHANGES_TOKENS: Mapping[str, Json] = {
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "min_length": 0, "min_new_tokens": 0, "forced_bos_token_id": None, "forced_decoder_ids": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "sequence_bias": None, "exponential_decay_length_penalty": None, "constraints": None,
    "force_words_ids": None, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0, "guidance_scale": 1.0,
    "do_sample": False,
}  # fmt: skip
"""Key of generation_config.json -> the value with which the key has no effect. With any other value, transformers generates
other tokens than `translate`, which does not apply these keys."""
_OTHER_KEYS = (
    "max_length", "max_new_tokens", "num_beams", "early_stopping", "length_penalty", "bad_words_ids", "renormalize_logits",
    "remove_invalid_values", "forced_eos_token_id", "num_return_sequences", "temperature", "top_k", "top_p", "typical_p",
)  # fmt: skip


def older_settings(fields: JsonObject) -> JsonObject:
    """Returns the settings of generation in `fields`, the content of config.json. Older releases of transformers stored them
    there. All releases use them if there is no generation_config.json."""
    neutral = {name: fields.get(name) in (None, value) for name, value in CHANGES_TOKENS.items()}
    neutral |= {name: fields.get(name) is None for name in _OTHER_KEYS}
    return {name: fields[name] for name, is_neutral in neutral.items() if not is_neutral}


def unapplied_settings(generation: JsonObject, pad_id: int) -> tuple[str, ...]:
    """Returns a clause about settings of `generation` that `translate` does not apply, if there are any."""
    found = {
        name: generation[name]
        for name, neutral in CHANGES_TOKENS.items()
        if generation.get(name) is not None and generation[name] != neutral
    }
    if generation.get("bad_words_ids") not in (None, [[pad_id]]):
        found["bad_words_ids"] = generation["bad_words_ids"]
    if generation.get("early_stopping") == "never":  # the flag --early-stopping has the values true and false
        found["early_stopping"] = "never"
    listed = ", ".join(f"{name}={str(value)[:60]}" for name, value in found.items())
    return (f"`translate` does not apply {listed} of the model's generation settings",) if found else ()


def _layers(side: str, ours: str) -> tuple[Row, ...]:
    """Returns the rows of the layers of the encoder or of the decoder."""
    theirs = f"model.{side}.layers.{{}}"
    attentions = {"attention": "self_attn"} | ({"cross_attention": "encoder_attn"} if side == "decoder" else {})
    rows: list[Row] = []
    for own, other in attentions.items():
        rows += attention(f"{ours}/layers/{own}", f"{theirs}.{other}", ("q_proj", "k_proj", "v_proj"), "out_proj")
        rows += norm(f"{ours}/layers/{own}_layer_norm", f"{theirs}.{other}_layer_norm")
    rows += linear(f"{ours}/layers/feed_forward/intermediate", "D", "F", f"{theirs}.fc1")
    rows += linear(f"{ours}/layers/feed_forward/output", "F", "D", f"{theirs}.fc2")
    return (*rows, *norm(f"{ours}/layers/feed_forward_layer_norm", f"{theirs}.final_layer_norm"))


def _shares(config: ModelConfig) -> bool:
    return not config.decoder_vocab_size


def _positions(size: int, config: ModelConfig) -> np.ndarray:
    """Returns the values of the position buffer of a model, flattened."""
    table = fixed_table(config)
    return np.zeros(0) if table is None else table.ravel()


MARIAN = MarianFamily(
    model_type="marian",
    title="Marian",
    prefix="model.",
    table=(
        Row("embeddings/word_embeddings/embedding", "V D", SHARED, "V D", when=_shares),
        Row("embeddings/word_embeddings/embedding", "V D", SOURCE, "V D", when=lambda config: not _shares(config)),
        *_layers("encoder", "encoder"),
        Row("decoder/embeddings/word_embeddings/embedding", "W D", TARGET, "W D"),
        *_layers("decoder", "decoder"),
        Row("lm_head/final_logits_bias", "W", "final_logits_bias", "1:1 W"),
        Row("lm_head/decoder", "W D", "lm_head.weight", "W D"),
    ),
    keys=(
        Key("vocab_size", "vocab_size"),
        TargetVocabulary(),
        Key("d_model", "hidden_size"),
        Key("encoder_layers", "num_layers", also=("num_hidden_layers",)),
        Key("decoder_layers", "decoder_layers"),
        Key("encoder_attention_heads", "num_heads"),
        Key("decoder_attention_heads", "num_heads"),
        Key("encoder_ffn_dim", "intermediate_size"),
        Key("decoder_ffn_dim", "intermediate_size"),
        Key("max_position_embeddings", "max_position", 1_024),
        Key("activation_function", "activation", "gelu", ACTIVATIONS, carried=True),
        Key("scale_embedding", "scale_embeddings", False),
        Key("tie_word_embeddings", "tied_decoder", True),
        Key("dropout", "hidden_dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("init_std", "initializer_range", 0.02),
        *(Constant(name, 0.0, carried=True) for name in ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")),
        Constant("is_encoder_decoder", True),
        TokenId("pad_token_id", "pad"),
        TokenId("decoder_start_token_id", "pad"),
        TokenId("eos_token_id", "sep"),
        TokenId("forced_eos_token_id", "sep"),
        Constant("torch_dtype", "float32"),
    ),
    always=ALWAYS,
    fixed={
        "is_encoder_decoder": True, "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
        "static_position_embeddings": True, "add_bias_logits": False, "is_decoder": False, "quantization_config": None,
    },
    classes={"MarianModel": (), "MarianMTModel": ("decoder", "lm_head")},
    special_ids={
        "pad_token_id": "pad", "decoder_start_token_id": "pad", "eos_token_id": "sep", "forced_eos_token_id": "sep",
    },
    buffers=dict.fromkeys(POSITIONS, ("the sinusoids of every position, sines before cosines", _positions)),
)  # fmt: skip
