"""BERT and its predecessors as Linen modules, which compute logits from arrays. Meshes, files and losses are in other folders.

In: `Tokens`, int32 arrays of token ids, types, positions and sequence ids. Out: hidden states and logits.

    config.py           ModelConfig: Architecture, Execution, TrainingOnly; the published sizes
    tokens.py           Tokens: the inputs of an encoder; Layer: the properties of a layer
    layers.py           matrix products, Dense, LayerNorm, GELU, dropout, LayerNorm(x + dropout(y))
    positions.py        learned, sinusoidal, rotary, none: objects that act on embeddings, on queries and keys, or on scores
    embeddings.py       token ids -> vectors
    characters.py       word vectors from characters
    attention.py        self-attention and a decoder's attention on its source; the plain implementation
    kernels/            fused attention and residual norm for TPUs and GPUs; `kernels/dispatch.py` chooses between them
    encoder.py          what every encoder declares; the stack of Transformer layers
    encoder_decoder.py  a decoder that attends to an encoder's output, and both as one model
    lstm.py             the recurrence of an LSTM, in one or two directions; the LSTM of task heads
    bilm.py             the layers of a bidirectional LSTM language model
    flair.py            a biLM over characters whose states are read at word boundaries
    cove.py             an LSTM that translates: its encoder, and a decoder with attention
    static.py           the empty stack of layers of a static model
    bert.py             embeddings, encoder, pooler
    features.py         the features of task heads: layers, their mixes, means over tokens
    crf.py              a conditional random field over the labels of words
    heads/              the pooler and the heads of pretraining and of tasks
    pretraining.py      BERT with the two pretraining heads
    cached_decoding.py  next-token logits of a left-to-right model, with a cache of keys and values

To add an encoder, a position embedding, an activation or a norm, write an object in one file and add a line to the dict below.
Other code asks for the facts in the line of an encoder, of positions or of a norm (`ModelConfig.kind`, `positions_kind` and
`norm_kind`), never for the name. An object is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.interface.named import load_built_in, load_named, require_call

if TYPE_CHECKING:
    from bert_jax.model.config import ModelConfig


class EncoderKind(NamedTuple):
    """The classes of an encoder, and the facts about it that `ModelConfig` needs. They are known without importing jax."""

    layers: str
    """The class of the stack of layers, with the methods of `encoder.Encoder`."""
    embeddings: str = "bert_jax.model.embeddings:WordEmbeddings"
    """The class that makes the input of the first layer from `Tokens`."""
    pretraining: str = "bert_jax.model.pretraining:BertForPreTraining"
    """The class of the model with its pretraining heads."""
    has_positions: bool = False
    """Whether the embeddings are BERT's, with positions and token types."""
    has_attention: bool = False
    """Whether the layers are Transformer layers. If not, the settings of its block do not apply."""
    pools: bool = False
    """Whether [CLS] can represent the text, so that a pooler and next sentence prediction can be trained."""
    decoder_layers: int = 0
    """The number of layers of the decoder in the paper. 0: the model has no decoder."""
    is_static: bool = False
    """Whether the model is a table of word vectors, which has no layers and ignores the context."""
    is_lstm: bool = False
    """Whether the layers are LSTMs, in which each of two directions returns half of the hidden state."""
    separate_directions: bool = False
    """Whether a direction of an LSTM reads only its own half of the layer below."""
    reads_words: bool = False
    """Whether the pieces are characters, and all characters of a word have the same hidden state."""
    has_direction: bool = False
    """Whether the model may read only from left to right (`Architecture.direction`)."""
    has_character_cnn: bool = False
    """Whether word vectors may be computed from characters (`Architecture.character_cnn`)."""
    title: str = ""
    """The name in descriptions of a model."""

    @property
    def translates(self) -> bool:
        """Whether the model is a Transformer with a decoder."""
        return self.has_attention and self.decoder_layers > 0

    @property
    def is_encoder_only(self) -> bool:
        """Whether the model is a Transformer without a decoder."""
        return self.has_attention and not self.decoder_layers


ENCODERS: Mapping[str, EncoderKind] = {
    "transformer": EncoderKind(
        "bert_jax.model.encoder:Encoder", "bert_jax.model.embeddings:Embeddings", has_positions=True,
        has_attention=True, pools=True, has_direction=True,
    ),
    "encoder_decoder": EncoderKind(
        "bert_jax.model.encoder_decoder:SourceEncoder", "bert_jax.model.embeddings:Embeddings",
        "bert_jax.model.encoder_decoder:EncoderDecoder", has_positions=True, has_attention=True, decoder_layers=6,
    ),
    "bilm": EncoderKind(
        "bert_jax.model.bilm:BiLstm", pretraining="bert_jax.model.pretraining:BiLstmForPreTraining", is_lstm=True,
        separate_directions=True, has_direction=True, has_character_cnn=True, title="biLM",
    ),
    "flair": EncoderKind(
        "bert_jax.model.flair:Flair", pretraining="bert_jax.model.pretraining:BiLstmForPreTraining", is_lstm=True,
        separate_directions=True, reads_words=True, title="biLM of characters",
    ),
    "cove": EncoderKind(
        "bert_jax.model.cove:Cove", pretraining="bert_jax.model.cove:CoveTranslator", is_lstm=True, decoder_layers=2,
        title="bidirectional LSTM",
    ),
    "static": EncoderKind(
        "bert_jax.model.static:NoLayers", pretraining="bert_jax.model.pretraining:StaticForPreTraining", is_static=True,
        title="static vectors",
    ),
}  # fmt: skip
"""`config.model.encoder` -> its classes and facts."""


class PositionsKind(NamedTuple):
    """The class of a position embedding, and the facts about it that `ModelConfig` and `convert` need. They are known without
    importing jax. A user's own positions have the defaults."""

    place: str
    """The class, with the methods that `positions.py` describes."""
    is_learned: bool = False
    """Whether the positions are a table of parameters with `max_position` rows."""
    has_rows: bool = True
    """Whether each position has a row in a table of parameters or constants. If not, any number of positions is supported."""
    is_rotary: bool = False
    """Whether pairs of dimensions of a head are rotated. If so, the width of a head must be even, and the settings
    `rotary_theta`, `sliding_rotary_theta` and `rotary_pairing` apply."""


POSITIONS: Mapping[str, PositionsKind] = {
    "learned": PositionsKind("bert_jax.model.positions:Learned", is_learned=True),
    "sinusoidal": PositionsKind("bert_jax.model.positions:Sinusoidal"),
    "none": PositionsKind("bert_jax.model.positions:Absent"),
    "rotary": PositionsKind("bert_jax.model.positions:Rotary", has_rows=False, is_rotary=True),
    "sinusoidal_halves": PositionsKind("bert_jax.model.positions:SinusoidalHalves"),
}
"""`config.model.positions` -> its class and facts."""

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "bert_jax.model.layers:gelu",
    "gelu_tanh": "bert_jax.model.layers:gelu_tanh",
    "relu": "jax.nn:relu",
    "silu": "jax.nn:silu",
}
"""`config.model.activation` -> an elementwise function."""


class NormKind(NamedTuple):
    """The function of a norm, and the facts about it that `ModelConfig` and the kernels need. They are known without importing
    jax. A user's own norm has the defaults."""

    place: str
    """The function of (float32 array, epsilon) that normalises the last axis, before scale and bias."""
    has_bias: bool = True
    """Whether the setting `norm_bias` applies. If not, there is never a bias."""
    has_kernel: bool = False
    """Whether the kernels of the fused residual norm compute this function."""


NORMS: Mapping[str, NormKind] = {
    "layer_norm": NormKind("bert_jax.model.layers:standardise", has_kernel=True),
    "rms_norm": NormKind("bert_jax.model.layers:divide_by_root_mean_square", has_bias=False),
}
"""`config.model.norm` -> its function and facts."""


def encoder_classes(config: ModelConfig) -> tuple[Any, Any]:
    """Returns two classes for `config.encoder`. The first makes the input of the first layer, and the second is the stack of
    layers. A user's own stack reads the embeddings of a Transformer. Raises UserError if the user's file does not define a
    valid class."""
    key = "config.model.encoder"
    embeddings = load_built_in(config.kind.embeddings)
    if config.encoder in ENCODERS:
        return embeddings, load_built_in(config.kind.layers)
    from bert_jax.model.encoder import Encoder, WholeRows  # imported here, since `encoder.py` imports this module

    own = load_named(config.encoder, ENCODERS, key)
    if not (isinstance(own, type) and issubclass(own, Encoder | WholeRows)):
        raise UserError(
            f"{key}={config.encoder} is {own!r}, not an encoder; make it a class that inherits from "
            "bert_jax.model.encoder.WholeRows, or from Encoder"
        )
    require_call(own.__call__, "self, x, tokens, seed", f"__call__ of {key}={config.encoder}")
    return embeddings, own


def natural_objective(config: ModelConfig) -> str:
    """Returns the name of a model's default objective, which the encoder declares. Raises UserError if a user's own encoder does
    not declare that it can be trained with the model's direction or positions."""
    from bert_jax.model.encoder import Block, Encoder  # imported here, since `encoder.py` imports this module
    from bert_jax.model.positions import acts_on

    kind, key = encoder_classes(config)[1], f"config.model.encoder={config.encoder}"
    methods = (kind.__call__, kind.block.__call__, getattr(kind.block, "attention", None)) if issubclass(kind, Encoder) else None
    is_changed = methods not in (None, (Encoder.__call__, Block.__call__, Block.attention))
    declares = any("objectives" in vars(base) for base in kind.__mro__ if base not in Encoder.__mro__)
    if config.direction not in kind.objectives or (config.direction == "left_to_right" and is_changed and not declares):
        raise UserError(
            f"config.model.direction={config.direction} needs an encoder whose output at a token does not depend on later "
            f"tokens, and {key} does not declare this; set config.model.direction=both, or add the line "
            'objectives = {"both": "bert", "left_to_right": "next_token"} to the class if it masks later tokens'
        )
    for method in ("queries_and_keys", "scores") if not kind.applies_positions else ():
        if acts_on(config, method):
            raise UserError(
                f"config.model.positions={config.positions} acts on {method.replace('_', ' ')} of attention, but {key} does not "
                "declare that it applies them; set config.model.positions=learned, or add the line applies_positions = True to "
                "the class if it applies the methods of make_positions"
            )
    name: str = kind.objectives[config.direction]
    return name
