"""`Architecture`, the function that a model computes; `Execution`, how it is computed; `ModelConfig`, the section with both; the
published sizes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Protocol, Self

from annotated_types import Interval

from bert_jax.errors import UserError, nearest
from bert_jax.interface.ranges import Dropout, Epsilon, NamedIn, OneOf, check_ranges
from bert_jax.interface.words import counted
from bert_jax.model import ACTIVATIONS, ENCODERS, NORMS, POSITIONS

DTYPES = ("float32", "bfloat16")
REMAT = ("none", "dots", "full")
KERNELS = ("auto", "fused", "plain")
DIRECTIONS = ("both", "left_to_right")
PLACEMENTS = ("post", "pre")
GATES = ("none", "first", "second")
PAIRINGS = ("halves", "interleaved")
LAYER_TYPES = ("full", "sliding")
MLM_HEADS = ("bert", "decoder")
CLASSIFIER_POOLINGS = ("pooler", "cls", "mean", "late")
INITIALIZERS = ("bert", "modernbert", "normal", "uniform")

MOST_WIDE = 2**16
"""The largest width: larger than any machine can hold, and small enough that sizes in bytes do not overflow 64 bits."""
Width = Annotated[int, Interval(ge=1, le=MOST_WIDE)]
Theta = Annotated[float, Interval(ge=1, le=1e12)]
CHANGES_NUMBERS = "changes numbers"
"""Marks a field of `Execution` whose values differ in more than the order and rounding of sums."""


class AttentionKernel(Protocol):
    """Fused attention on the devices of a run, spread over their mesh."""

    def computes(self, model: ModelConfig, length: int) -> bool:
        """Returns whether it computes the attention of `model` in rows of that many tokens. Raises UserError if it does not and
        the model asks for it."""

    def __call__(self, qkv: Any, sequence_ids: Any, *, num_heads: int, dropout: Any, radius: int | None = None) -> Any:
        """Returns the context, as `kernels.attention.fused_attention` returns it."""


class ResidualNormKernel(Protocol):
    """LayerNorm(x + dropout(y)) on the devices of a run, spread over their mesh."""

    def computes(self, model: ModelConfig) -> bool:
        """Returns whether it computes rows of the width of `model`. Raises UserError if it does not and the model asks for it."""

    def __call__(self, x: Any, y: Any, norm: Any, dropout: Any) -> Any:
        """Returns the sum, normalised, as `kernels.residual_norm.fused_residual_norm` returns it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a program is compiled for, and the kernels that it calls there: `sharding.kernels.resolve` makes it, once,
    when a run starts. The default is any device, without kernels. Its values decide what is traced, so it is part of the key of
    every compiled program."""

    platform: str = ""
    """"cpu", "tpu" or "gpu"."""
    one_cpu: bool = False
    """Whether that is a single CPU device, for which `matmul.py` has forms of its own."""
    attention: AttentionKernel | None = None
    """The kernel of attention; None: XLA's program."""
    residual_norm: ResidualNormKernel | None = None
    """The kernel of LayerNorm(x + dropout(y)); None: XLA's program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The function that a trained model computes; it decides which weights may be loaded into which model.

    The defaults are the original's `BertConfig` (google-research/bert `modeling.py`) as the released files set it, except that
    `type_vocab_size` is the released 2 (the class default there is 16) and GELU is the exact erf form of the first release; the
    released code has used the tanh approximation since February 2019, so a checkpoint must say which (`activation`).

    Raises UserError on values that cannot be a BERT.
    """

    vocab_size: Annotated[int, Interval(ge=1, le=2**24)] = 30_522
    hidden_size: Width = 768
    num_layers: Annotated[int, Interval(ge=0, le=10_000)] = 12
    num_heads: Width = 12
    intermediate_size: Annotated[int, Interval(ge=1, le=2**20)] = 3_072
    max_position: Annotated[int, Interval(ge=1, le=2**20)] = 512
    type_vocab_size: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 2
    """The number of token types; 0: there are none (ModernBERT, arXiv:2412.13663), and those of a batch are not read."""
    activation: Annotated[str, OneOf(tuple(ACTIVATIONS))] = "gelu"
    """"gelu" (exact, by erf), "gelu_tanh" (the tanh approximation), "relu", or "silu" (EuroBERT, arXiv:2503.05500)."""
    layer_norm_epsilon: Epsilon = 1e-12
    """Added to the variance, or the mean square, in every norm; ModernBERT and EuroBERT have 1e-5."""
    encoder: Annotated[str, OneOf(tuple(ENCODERS))] = "transformer"
    """"transformer": BERT. "encoder_decoder": the Transformer of Vaswani et al. (arXiv:1706.03762), the encoder and a decoder of
    `decoder_layers` that reads its output (`model/encoder_decoder.py`). "bilm": the bidirectional LSTM language model of ELMo
    (`model/bilm.py`), whose directions have half of `hidden_size` each and cells of width `intermediate_size`; with
    direction=left_to_right one LSTM of `hidden_size`. "static": a vector for each token, whatever its context
    (`model/static.py`), with num_layers=0. The last two read neither positions nor token types."""
    character_cnn: bool = False
    """Of a biLM: word vectors are computed from the characters of words (`model/characters.py`) in place of a table; the softmax
    then has a table of its own, tied_decoder=False."""
    direction: Annotated[str, OneOf(DIRECTIONS)] = "both"
    """The tokens that a token sees: "both", those before and after it; "left_to_right", itself and those before it, as a decoder
    without cross-attention (transformers' BertLMHeadModel with is_decoder). Such a model predicts the next token."""
    positions: Annotated[str, NamedIn(tuple(POSITIONS))] = "learned"
    """The positions: "learned", a table of `max_position` rows; "sinusoidal", the fixed table of `positions.sinusoids`, which has
    no parameters and any number of rows; "sinusoidal_halves", the same numbers undivided, the sines before the cosines, as
    tensor2tensor and Marian have them; "none", nothing, so that only a mask can tell the order of tokens; FILE.py:NAME, a class
    of the user's (`model/positions.py`)."""
    tied_decoder: bool = True
    """True: the MLM head's decoder is the word-embedding table, as in the original; False: it has a table of its own."""

    # ---------------------------------------------------------------------------------- an encoder-decoder (encoder_decoder.py)
    decoder_layers: Annotated[int, Interval(ge=0, le=10_000)] = 0
    """The layers of the decoder of encoder=encoder_decoder, whose encoder has `num_layers`; 0 for all other encoders."""
    decoder_vocab_size: Annotated[int, Interval(ge=0, le=2**24)] = 0
    """The words of the target language, where the decoder has a table of its own; 0: source and target share a vocabulary and the
    table of its word embeddings (arXiv:1706.03762, section 3.4)."""
    scale_embeddings: bool = False
    """Whether word embeddings are multiplied by sqrt(hidden_size) where they are read (arXiv:1706.03762, section 3.4)."""

    # ------------------------------------------------------------------------------- the block of a Transformer (encoder.py)
    norm: Annotated[str, NamedIn(tuple(NORMS))] = "layer_norm"
    """"layer_norm" (Ba et al., arXiv:1607.06450); "rms_norm", the division by the root mean square alone (Zhang and Sennrich,
    arXiv:1910.07467; EuroBERT); FILE.py:NAME, a function (x, epsilon) of the user's."""
    norm_scale: bool = True
    """Whether norms have a learned scale. False: they have no parameters at all (GPT-BERT, arXiv:2410.24159)."""
    norm_bias: bool = True
    """Whether a LayerNorm has a learned bias; ModernBERT has none. An RMSNorm never has one."""
    norm_placement: Annotated[str, OneOf(PLACEMENTS)] = "post"
    """"post": after each residual sum, as in the original; "pre": before attention and before the feed-forward, whose outputs
    are added to what they read (Xiong et al., arXiv:2002.04745; ModernBERT, EuroBERT)."""
    first_attention_norm: bool = True
    """norm_placement=pre: whether the first layer has a norm before its attention. ModernBERT has none there, since the norm of
    the embeddings stands just before it."""
    embedding_norm: bool = True
    """Whether the embeddings are normalised; those of EuroBERT are not."""
    final_norm: bool = False
    """Whether the output of the last layer is normalised, as norm_placement=pre needs (ModernBERT, EuroBERT)."""
    attention_bias: bool = True
    """Whether query, key, value and the output of attention have biases; ModernBERT has none in the whole block."""
    intermediate_bias: bool = True
    """Whether the first matrix of the feed-forward has a bias, with a `gate` both of its halves."""
    output_bias: bool = True
    """Whether the last matrix of the feed-forward has a bias."""
    gate: Annotated[str, OneOf(GATES)] = "none"
    """The feed-forward: "none", the original's; else a gated linear unit (Shazeer, arXiv:2002.05202), whose first matrix has two
    halves of `intermediate_size` each, "intermediate" and "gate" in the parameters. One half is activated and multiplied by the
    other: "first", the intermediate (ModernBERT's GeGLU); "second", the gate (EuroBERT's and nomic-bert's SwiGLU)."""
    rotary_theta: Theta = 10_000.0
    """positions=rotary: the base of the wavelengths in full layers (arXiv:2104.09864, section 3.2); ModernBERT has 160,000."""
    sliding_rotary_theta: Theta | None = None
    """positions=rotary: the base in sliding layers; None is `rotary_theta`. ModernBERT has 10,000."""
    rotary_pairing: Annotated[str, OneOf(PAIRINGS)] = "halves"
    """positions=rotary: the numbers of a head that are rotated together: "halves", i and i + K/2 (GPT-NeoX, and every model in
    transformers); "interleaved", 2 i and 2 i + 1 (the paper; NeoBERT, arXiv:2502.19587)."""
    layer_types: tuple[Annotated[str, OneOf(LAYER_TYPES)], ...] = ()
    """The attention of each layer: "full", to all tokens of the sequence; "sliding", to those at most `sliding_radius` away; ()
    is full in all layers. ModernBERT: layers 0, 3, 6, ... are full."""
    sliding_radius: Annotated[int, Interval(ge=0, le=2**20)] = 0
    """The largest distance that a token of a sliding layer sees, on both sides and inclusive: 64 are the 129 tokens that
    ModernBERT's configuration calls local_attention=128."""
    num_key_value_heads: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    """The heads of keys and values, each read by num_heads / num_key_value_heads heads of queries (Ainslie et al.,
    arXiv:2305.13245; EuroBERT); 0: one for each of `num_heads`."""
    mlm_head: Annotated[str, OneOf(MLM_HEADS)] = "bert"
    """"bert": a dense layer, the activation, a norm, and the decoder; "decoder": the decoder alone (EuroBERT, NeoBERT)."""
    head_dense_bias: bool = True
    """Whether the dense layer of the MLM head, and that before a classifier with classifier_pooling, has a bias; ModernBERT's has
    none."""
    decoder_bias: bool = True
    """Whether the decoder of the MLM head has a bias for each word; EuroBERT's has none."""
    classifier_pooling: Annotated[str, OneOf(CLASSIFIER_POOLINGS)] = "pooler"
    """The input of the layer of a task head: "pooler", the original's tanh layer on the [CLS]; "cls" and "mean", a dense layer,
    the activation and a norm on the [CLS] or on the mean of the tokens, and on each token of a head with labels of tokens, which
    begin as those of the MLM head (ModernBERT); "late", the mean of the logits of all tokens. With mlm_head=decoder, which has
    neither dense layer nor norm, they are a dense layer and the exact GELU, and not for labels of tokens (EuroBERT)."""

    def __post_init__(self) -> None:
        check_ranges(self, "model")
        if self.character_cnn and (self.encoder != "bilm" or self.tied_decoder):
            raise UserError(
                "model.character_cnn=True is for model.encoder=bilm with model.tied_decoder=false, since characters give no "
                "table of words to tie; set both, or leave it out"
            )
        if not self.has_attention:
            _check_predecessor(self)
        elif self.num_layers < 1:
            raise UserError(
                f"model.num_layers={self.num_layers} must be at least 1; only word vectors, model.encoder=static, have no layers"
            )
        elif self.hidden_size % self.num_heads:
            divisors = [h for h in range(1, self.hidden_size + 1) if self.hidden_size % h == 0]
            raise UserError(
                f"model.hidden_size={self.hidden_size} does not divide into model.num_heads={self.num_heads}; "
                f"nearest number of heads that does: {min(divisors, key=lambda h: abs(h - self.num_heads))}"
            )
        else:
            _check_block(self)
            _check_decoder(self)

    @property
    def head_width(self) -> int:
        """K, the width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """G, the number of heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    def layer_type(self, layer: int) -> str:
        """Returns the attention of a layer, "full" or "sliding"."""
        return self.layer_types[layer] if self.layer_types else "full"

    @property
    def has_segments(self) -> bool:
        """Whether the second text of a pair has a token type of its own. A left-to-right model reads a pair as one text with
        [SEP] between its parts, as GPT does."""
        return self.direction == "both" and self.type_vocab_size > 1

    @property
    def has_attention(self) -> bool:
        """Whether tokens attend to each other, as only a Transformer's do."""
        return self.encoder in ("transformer", "encoder_decoder")

    @property
    def cls_reads_text(self) -> bool:
        """Whether the [CLS] of a text, and so a pooler, can stand for the text: it is trained to in a Transformer alone, and sees
        nothing in one that reads from left to right."""
        return self.encoder == "transformer" and self.direction == "both"

    @property
    def in_words(self) -> str:
        """The kind and the sizes of the encoder, for a line of output."""
        layers = f"{counted(self.num_layers, 'layer')}, {self.hidden_size} wide"
        if self.encoder == "static":
            return f"static vectors, {self.hidden_size} wide"
        if self.encoder == "bilm":
            kind = "biLM" if self.direction == "both" else "left-to-right LSTM"
            return f"{kind} of {layers}, cells {self.intermediate_size} wide"
        if self.encoder == "encoder_decoder":
            return f"encoder of {self.num_layers} and decoder of {counted(self.decoder_layers, 'layer')}, {self.hidden_size} wide"
        return f"{layers}, {counted(self.num_heads, 'head')}"

    @property
    def word_width(self) -> int:
        """The width of a word embedding: `hidden_size`, or that of each direction of a bidirectional LSTM."""
        return self.hidden_size // (2 if self.encoder == "bilm" and self.direction == "both" else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The settings that change the time and memory of the compiled program, not the function that it computes. Weights can be
    loaded with any execution."""

    dtype: Annotated[str, OneOf(DTYPES)] = dataclasses.field(default="float32", metadata={CHANGES_NUMBERS: True})
    """The dtype of matrix products and activations: "float32" or "bfloat16", which TPUs, GPUs and CPUs with AMX multiply several
    times faster. Parameters, softmax, LayerNorm statistics and logits are float32."""
    remat: Annotated[str, OneOf(REMAT)] = "none"
    """Recomputation in the backward pass: "none"; "dots" keeps the matrix products and recomputes the rest; "full" keeps only the
    inputs of layers and recomputes the rest."""
    scan_layers: bool = False
    """Whether the layers run in a loop, `jax.lax.scan`, so that one layer is compiled. False unrolls the loop: slower to compile,
    faster to run."""
    layers_per_scan_step: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """The layers in each iteration of that loop (`unroll` of `jax.lax.scan`)."""
    attention: Annotated[str, OneOf(KERNELS)] = "auto"
    """"fused": one kernel that keeps the scores on the chip (TPU, and NVIDIA GPUs from compute capability 8.0); "plain": XLA
    operations; "auto": fused if it can run and agrees with the plain path there.
    The kernels have no left-to-right mask. On a TPU the dropout masks of the two differ, at the same rate."""
    residual_norm: Annotated[str, OneOf(KERNELS)] = "auto"
    """LayerNorm(x + dropout(y)) after attention and feed-forward. "fused": one kernel (TPU); "plain": XLA operations; "auto":
    fused if it can run and agrees with the plain path there. Both drop the same elements."""

    target = Target()  # no setting, so no field: `Resolved` has what these settings come to on the devices of a run

    def kernel(self, operation: str) -> Any:
        """Returns the kernel of `operation`, "attention" or "residual_norm", or None for XLA's program. Raises UserError if it is
        asked for and these settings were not resolved for any devices."""
        if getattr(self, operation) == "plain":
            return None
        found = getattr(self.target, operation)
        if found is None and getattr(self, operation) == "fused":
            raise UserError(
                f"model.{operation}='fused' is not available: it is a kernel for given devices, and none are given; "
                f"set model.{operation} to 'plain' or 'auto'"
            )
        return found

    def plain(self) -> Self:
        """Returns these settings without kernels: for initialisation, whose outputs are not used, and for attention weights,
        which the kernels never hold as a whole."""
        return dataclasses.replace(self, attention="plain", residual_norm="plain")

    @classmethod
    def exact(cls) -> tuple[str, ...]:
        """Returns the fields that a continued run may change: they leave the result as it is, apart from the order and rounding
        of sums and, for fused attention, the random bits of its dropout."""
        return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get(CHANGES_NUMBERS))

    def without_kernels(self, rejected: Collection[str]) -> Self:
        """Returns these settings without the `rejected` kernels ("attention", "residual_norm") if the choice is "auto"."""
        changes: dict[str, Any] = {name: "plain" for name in rejected if getattr(self, name) == "auto"}
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Execution, Architecture):
    """The section `config.model`: an `Architecture`, its `Execution`, and how it is trained.

    Dropout rates and `initializer_range` belong to training alone: a trained model computes the same function whatever they were.
    `vocab_multiple` shapes the arrays of a run, and is undone where weights are read or written.
    """

    hidden_dropout: Dropout = 0.1
    """Dropout of the embeddings and of the outputs of attention and feed-forward."""
    attention_dropout: Dropout = 0.1
    """Dropout of the attention weights."""
    embedding_dropout: Dropout | None = None
    """Dropout of the embeddings; None: `hidden_dropout`."""
    attention_output_dropout: Dropout | None = None
    """Dropout of the outputs of attention; None: `hidden_dropout`. ModernBERT was trained with 0.1 here and no other dropout
    (arXiv:2412.13663, Table 3)."""
    initializer: Annotated[str, OneOf(INITIALIZERS)] = "bert"
    """The initial values of kernels and embeddings: "bert", a truncated normal (cut at two deviations, not rescaled);
    "modernbert", the same, divided by sqrt(2 x layers) for the outputs of attention and feed-forward (arXiv:2412.13663, appendix
    A.2); "normal"; "uniform", between plus and minus `initializer_range` (NeoBERT)."""
    initializer_range: Annotated[float, Interval(ge=0, le=1_000)] = 0.02
    """Standard deviation of the normal that initialises kernels and embeddings, or the bound of the uniform distribution."""
    vocab_multiple: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """The rows of the word-embedding table are padded to a multiple of this number (128 suits a TPU's lanes). Padded rows have
    probability 0 and are not exported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("remat", "attention", "residual_norm"):
            value, only = getattr(self, name), getattr(Execution, name)
            if not self.has_attention and value != only:
                raise UserError(f"model.{name}={value} is not for model.encoder={self.encoder}; leave it out ({only})")

    @property
    def architecture(self) -> Architecture:
        """The function that it computes, without the rest."""
        return Architecture(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Architecture)})

    def without_kernels(self, rejected: Collection[str]) -> Self:
        """As for any `Execution`; a model that is not a Transformer has no kernels."""
        return super().without_kernels(rejected if self.has_attention else ())

    def with_architecture(self, other: Architecture) -> ModelConfig:
        """Returns these settings of execution and training for another architecture."""
        return dataclasses.replace(self, **dataclasses.asdict(other))

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word-embedding table: `vocab_size` rounded up to a multiple of `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def of_encoder(self) -> ModelConfig:
        """The encoder of an encoder-decoder as a model of its own."""
        return dataclasses.replace(self, encoder="transformer", decoder_layers=0, decoder_vocab_size=0)

    @property
    def of_decoder(self) -> ModelConfig:
        """The decoder of an encoder-decoder as a left-to-right model over its vocabulary, which reads the encoder's output in
        each layer."""
        return dataclasses.replace(
            self.of_encoder,
            direction="left_to_right",
            num_layers=self.decoder_layers,
            vocab_size=self.decoder_vocab_size or self.vocab_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(ModelConfig):
    """A model on the devices of a run: its settings, and the `Target` that its kernels are chosen for."""

    target: Target


SIZES = ("hidden_size", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size", "layer_types")
"""The fields of `Architecture` that say how large a Transformer is, with the type of each layer: models of one kind differ in
these."""
BLOCK_FIELDS = (
    "norm", "norm_scale", "norm_bias", "norm_placement", "first_attention_norm", "embedding_norm", "final_norm",
    "attention_bias", "intermediate_bias", "output_bias", "gate", "rotary_theta", "sliding_rotary_theta", "rotary_pairing",
    "layer_types", "sliding_radius", "num_key_value_heads", "mlm_head", "head_dense_bias", "decoder_bias", "classifier_pooling",
    "scale_embeddings", "decoder_layers", "decoder_vocab_size",
)  # fmt: skip
"""The fields of `Architecture` that only a Transformer has."""
NOT_IN_A_TRANSLATOR = (
    "direction", "type_vocab_size", "first_attention_norm", "layer_types", "sliding_radius", "mlm_head", "head_dense_bias",
    "decoder_bias", "classifier_pooling", "character_cnn",
)  # fmt: skip
"""The fields of `Architecture` that an encoder-decoder does not have: of BERT's heads, and of windows."""


def _check_block(c: Architecture) -> None:
    """Raises UserError for switches of the block that do not go together."""
    if c.layer_types and len(c.layer_types) != c.num_layers:
        raise UserError(
            f"model.layer_types names {counted(len(c.layer_types), 'layer')}, and model.num_layers={c.num_layers}; "
            "name each layer once, or leave layer_types out (full attention in all layers)"
        )
    if "sliding" in c.layer_types and c.sliding_radius < 1:
        raise UserError(
            f"model.layer_types has sliding layers, and model.sliding_radius={c.sliding_radius} lets them see no other token; "
            "set it to at least 1 (ModernBERT: 64)"
        )
    if c.num_heads % c.key_value_heads:
        divisors = [h for h in range(1, c.num_heads + 1) if c.num_heads % h == 0]
        raise UserError(
            f"model.num_heads={c.num_heads} does not divide into model.num_key_value_heads={c.num_key_value_heads}; "
            f"set it to one of {', '.join(map(str, divisors))}"
        )
    if c.positions == "rotary" and c.head_width % 2:
        raise UserError(
            f"model.positions=rotary rotates pairs of numbers, and a head has {c.head_width} of them "
            f"(model.hidden_size={c.hidden_size} / model.num_heads={c.num_heads}); choose sizes with an even quotient"
        )
    if c.norm_placement == "post" and not c.first_attention_norm:
        raise UserError(
            "model.first_attention_norm=False is for model.norm_placement=pre: the norms of a post-norm layer stand after its "
            "residual sums; leave it out"
        )


def _check_decoder(c: Architecture) -> None:
    """Raises UserError for an encoder-decoder without a decoder, and for a decoder of another model."""
    if c.encoder != "encoder_decoder":
        for name in ("decoder_layers", "decoder_vocab_size"):
            if value := getattr(c, name):
                raise UserError(
                    f"model.{name}={value} is for model.encoder=encoder_decoder, and this is {c.encoder}; leave it out (0)"
                )
        return
    if not c.decoder_layers:
        raise UserError("model.decoder_layers=0 must be at least 1 with model.encoder=encoder_decoder (the paper: 6)")
    for name in NOT_IN_A_TRANSLATOR:
        only = 0 if name == "type_vocab_size" else getattr(Architecture, name)
        if getattr(c, name) != only:
            raise UserError(f"model.{name}={getattr(c, name)} is not for model.encoder=encoder_decoder; set {only}")


def _check_predecessor(c: Architecture) -> None:
    """Raises UserError for settings that a bidirectional LSTM or static vectors cannot have."""
    if (c.encoder == "static") != (c.num_layers == 0):
        layers = "0: word vectors have no layers" if c.encoder == "static" else "at least 1"
        raise UserError(f"model.num_layers={c.num_layers} must be {layers} (model.encoder={c.encoder})")
    if c.encoder == "bilm" and c.direction == "both" and c.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={c.hidden_size} must be even: each direction of model.encoder=bilm has half of it; "
            f"set {c.hidden_size + 1}, or model.direction=left_to_right"
        )
    fixed: dict[str, Any] = {"positions": "learned"}
    fixed |= {"direction": "both"} if c.encoder == "static" else {}
    fixed |= {name: getattr(Architecture, name) for name in BLOCK_FIELDS}
    for name, only in fixed.items():
        if getattr(c, name) != only:
            raise UserError(f"model.{name}={getattr(c, name)} is not for model.encoder={c.encoder}; leave it out ({only})")


# (layers, width) by the names of the paper (section 3) and of the miniatures' paper (arXiv:1908.08962); heads = width / 64.
PUBLISHED = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768), "large": (24, 1024)}
MINIATURE_LAYERS = (2, 4, 6, 8, 10, 12)
MINIATURE_WIDTHS = (128, 256, 512, 768)


MODERN_WIDTHS = {
    "modernbert-base": (22, 768, 1_152, 12), "modernbert-large": (28, 1_024, 2_624, 16),
    "mmbert-small": (22, 384, 1_152, 6), "mmbert-base": (22, 768, 1_152, 12),
    "ettin-17m": (7, 256, 384, 4), "ettin-32m": (10, 384, 576, 6), "ettin-68m": (19, 512, 768, 8),
    "ettin-150m": (22, 768, 1_152, 12), "ettin-400m": (28, 1_024, 2_624, 16), "ettin-1b": (28, 1_792, 3_840, 28),
}  # fmt: skip
"""(layers, width, intermediate, heads) of ModernBERT (arXiv:2412.13663, Table 4), mmBERT (arXiv:2509.06888) and Ettin
(arXiv:2507.11412, Table 1)."""
EUROBERT_WIDTHS = {
    "eurobert-210m": (12, 768, 3_072, 12, 12), "eurobert-610m": (26, 1_152, 4_096, 18, 6),
    "eurobert-2.1b": (32, 2_304, 6_144, 18, 6),
}  # fmt: skip
"""(layers, width, intermediate, heads, heads of keys and values) of EuroBERT (arXiv:2503.05500, Table 1)."""


def modern_block(num_layers: int, every: int = 3, radius: int = 64) -> dict[str, Any]:
    """Returns the fields of `Architecture` that make BERT's block ModernBERT's: every `every`th layer is full, from the first on,
    and the others see `radius` tokens on each side."""
    return {
        "activation": "gelu", "type_vocab_size": 0, "layer_norm_epsilon": 1e-5, "norm_bias": False, "norm_placement": "pre",
        "first_attention_norm": False, "final_norm": True, "attention_bias": False, "intermediate_bias": False,
        "output_bias": False, "gate": "first", "positions": "rotary", "rotary_theta": 160_000.0, "sliding_rotary_theta": 10_000.0,
        "layer_types": tuple("sliding" if n % every else "full" for n in range(num_layers)), "sliding_radius": radius,
        "head_dense_bias": False, "classifier_pooling": "mean",
    }  # fmt: skip


def _modern(name: str) -> dict[str, Any]:
    layers, width, wide, heads = MODERN_WIDTHS[name]
    sizes = {"num_layers": layers, "hidden_size": width, "intermediate_size": wide, "num_heads": heads}
    fields = {**modern_block(layers), **sizes, "vocab_size": 256_000 if "mmbert" in name else 50_368, "max_position": 8_192}
    if "modernbert" not in name:  # theta is raised in all layers for the longer rows
        fields |= {"sliding_rotary_theta": None}
    return fields | ({"max_position": 7_999} if "ettin" in name else {})


def _eurobert(name: str) -> dict[str, Any]:
    layers, width, wide, heads, shared = EUROBERT_WIDTHS[name]
    shared = 0 if shared == heads else shared
    return {
        "num_layers": layers, "hidden_size": width, "intermediate_size": wide, "num_heads": heads, "num_key_value_heads": shared,
        "vocab_size": 128_256, "max_position": 8_192, "type_vocab_size": 0, "activation": "silu", "layer_norm_epsilon": 1e-5,
        "norm": "rms_norm", "norm_bias": False, "norm_placement": "pre", "embedding_norm": False, "final_norm": True,
        "attention_bias": False, "intermediate_bias": False, "output_bias": False, "gate": "second", "positions": "rotary",
        "rotary_theta": 250_000.0, "mlm_head": "decoder", "decoder_bias": False, "tied_decoder": False,
        "classifier_pooling": "late",
    }  # fmt: skip


# (layers of each side, width, feed-forward width, heads)
TRANSFORMER_WIDTHS = {"transformer_base": (6, 512, 2_048, 8), "transformer_big": (6, 1_024, 4_096, 16)}
"""The models of "Attention Is All You Need" (arXiv:1706.03762, Table 3)."""


def _transformer(name: str) -> dict[str, Any]:
    """With the shared vocabulary of about 37,000 words of the paper's English-German model, section 5.1."""
    layers, width, wide, heads = TRANSFORMER_WIDTHS[name]
    return {
        "encoder": "encoder_decoder", "num_layers": layers, "decoder_layers": layers, "hidden_size": width,
        "intermediate_size": wide, "num_heads": heads, "vocab_size": 37_000, "max_position": 512, "type_vocab_size": 0,
        "activation": "relu", "layer_norm_epsilon": 1e-5, "positions": "sinusoidal_halves", "embedding_norm": False,
        "scale_embeddings": True,
    }  # fmt: skip


NOMIC_BERT: Mapping[str, Any] = {
    "vocab_size": 30_528, "max_position": 2_048, "activation": "silu", "attention_bias": False, "intermediate_bias": False,
    "output_bias": False, "gate": "second", "positions": "rotary", "rotary_theta": 1_000.0,
}  # fmt: skip
"""nomic-bert-2048 (arXiv:2402.01613): BERT-Base with rotary positions and SwiGLU, without biases in its matrices."""


def published_sizes() -> dict[str, tuple[int, int]]:
    """Returns every published size of BERT as name -> (layers, width): the six sizes with names and the 24 miniatures
    (`L-4_H-256` and so on)."""
    grid = {f"L-{n}_H-{d}": (n, d) for n in MINIATURE_LAYERS for d in MINIATURE_WIDTHS}
    return PUBLISHED | grid


def published(name: str) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` of a published model: `published("mini")`, `published("L-4_H-256_A-4")`,
    `published("modernbert-base")`, `published("ettin-32m")`, `published("eurobert-210m")`, `published("nomic-bert")`,
    `published("transformer_base")`.

    Raises UserError with the most similar name for an unknown one.
    """
    if name in MODERN_WIDTHS:
        return _modern(name)
    if name in EUROBERT_WIDTHS:
        return _eurobert(name)
    if name == "nomic-bert":
        return dict(NOMIC_BERT)
    if name in TRANSFORMER_WIDTHS:
        return _transformer(name)
    sizes = published_sizes()
    key = re.sub(r"_A-\d+$", "", name)
    if key not in sizes:
        known = (*sizes, *MODERN_WIDTHS, *EUROBERT_WIDTHS, "nomic-bert", *TRANSFORMER_WIDTHS)
        raise UserError(f"no published model is called {name!r}; {nearest(name, known)}")
    layers, width = sizes[key]
    return {"num_layers": layers, "hidden_size": width, "num_heads": width // 64, "intermediate_size": 4 * width}
