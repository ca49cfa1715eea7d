"""The settings of the model, and the published sizes. `Architecture` defines the function that the model computes, `Execution`
how this function is computed, and `TrainingOnly` dropout and initial weights. `ModelConfig` is the section `config.model`, the
sum of the three."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Protocol, Self, TypeVar

from annotated_types import Interval

from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file, split_named
from bert_jax.interface.ranges import Dropout, Epsilon, NamedIn, OneOf, check_ranges, hints, marked
from bert_jax.interface.words import counted
from bert_jax.model import ACTIVATIONS, ENCODERS, NORMS, POSITIONS, EncoderKind, NormKind, PositionsKind

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
NO_MESH = "since the kernels need a mesh, and none is set"

MOST_WIDE = 2**16
"""The largest accepted width. It is several times the width of any published model, and sizes in bytes still fit in 64 bits."""
Width = Annotated[int, Interval(ge=1, le=MOST_WIDE)]
Theta = Annotated[float, Interval(ge=1, le=1e12)]


@dataclasses.dataclass(frozen=True)
class OnlyFor:
    """Marks a field that must have its default unless the encoder has this fact."""

    fact: str
    """An attribute of `EncoderKind`."""


@dataclasses.dataclass(frozen=True)
class IsSize:
    """Marks a field that sets the size of a Transformer, including the type of each layer. Models of the same kind differ only
    in these fields."""


Setting = TypeVar("Setting")
OfSize = Annotated[Setting, IsSize()]
OfBlock = Annotated[Setting, OnlyFor("has_attention")]
"""A setting of the block of a Transformer."""
OfEncoderOnly = Annotated[Setting, OnlyFor("is_encoder_only")]
"""A setting of a Transformer without a decoder, such as its heads and sliding windows."""


class Changes(enum.Enum):
    """Marks a field of `Execution` that changes more than the order of sums. A resumed run may not change such a field."""

    ROUNDING = enum.auto()
    """The field changes the rounding of all numbers, which affects scores less than the seed does."""
    ARRAYS = enum.auto()
    """The field changes the shapes of parameters."""


class AttentionKernel(Protocol):
    """Fused attention, distributed over the mesh of a run."""

    def computes(self, model: ModelConfig, length: int, selects: bool = False, masks: bool = False) -> bool:
        """Returns whether the kernel computes the attention of `model` in rows of `length` tokens. Returns False if the kernel
        does not support the model or the length, if `Tokens.visible` `masks` columns, or if the layer `selects` only some
        tokens as queries and the plain path is faster. Raises UserError if the model requires the kernel and the kernel does
        not support it."""

    def why_plain(self, model: ModelConfig, length: int, masks: bool = False) -> str:
        """Returns the reason, as a clause, if the kernel does not compute the attention of every token in rows of `length`
        tokens, otherwise "". Raises the error of `computes`."""

    def rotates(self, model: ModelConfig) -> bool:
        """Returns whether the kernel rotates the queries and keys of `model` by given angles."""

    def __call__(
        self,
        qkv: Any,
        sequence_ids: Any,
        *,
        num_heads: int,
        dropout: Any,
        radius: int | None = None,
        queried: Any = None,
        angles: Any = None,
    ) -> Any:
        """Returns the context, as `kernels.fused_attention.fused_attention` does."""


class ResidualNormKernel(Protocol):
    """LayerNorm(x + dropout(y)) in one kernel, distributed over the mesh of a run."""

    def computes(self, model: ModelConfig) -> bool:
        """Returns whether the kernel supports the norm and the width of `model`. Raises UserError if the model requires the
        kernel and the kernel does not support it."""

    def __call__(self, x: Any, y: Any, norm: Any, dropout: Any) -> Any:
        """Returns the normalised sum, as `kernels.residual_norm.fused_residual_norm` does."""

    def before(self, x: Any, y: Any, norm: Any, dropout: Any) -> tuple[Any, Any]:
        """Returns the sum and its norm, as `kernels.residual_norm.fused_pre_norm` does."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices for which a program is compiled, and the kernels that the program calls on these devices.
    `sharding.kernels.resolve` creates the target once, when a run starts. The default target has no kernels and works on any
    device. The fields affect tracing, so the target is part of the key of every compiled program."""

    platform: str = ""
    """"cpu", "tpu" or "gpu"."""
    one_cpu: bool = False
    """Whether the program runs on a single CPU device, for which `layers.matmul` has special forms."""
    attention: AttentionKernel | None = None
    """The fused attention kernel. None: attention uses plain XLA operations."""
    residual_norm: ResidualNormKernel | None = None
    """The fused kernel of LayerNorm(x + dropout(y)). None: plain XLA operations are used."""

    # the fields below are for log lines, and do not affect tracing
    kind: str = dataclasses.field(default="", compare=False)
    """The kind of the devices, e.g. "TPU v5 lite"."""
    no_attention: str = dataclasses.field(default=NO_MESH, compare=False)
    """The reason, as a clause, why `attention` is None."""
    no_residual_norm: str = dataclasses.field(default=NO_MESH, compare=False)
    """The reason, as a clause, why `residual_norm` is None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The settings that define what a trained model computes. Weights can be loaded only into a model with the same
    architecture.

    The defaults are those of the original `BertConfig` (google-research/bert `modeling.py`) with two exceptions.
    `type_vocab_size` is 2, as in the released files (the class default there is 16). GELU is computed exactly, with erf, as in
    the first release. The released code has used the tanh approximation since February 2019, so a checkpoint must record which
    form it uses (`activation`).

    Raises UserError for invalid or inconsistent values.
    """

    vocab_size: Annotated[int, Interval(ge=1, le=2**24)] = 30_522
    hidden_size: OfSize[Width] = 768
    num_layers: OfSize[Annotated[int, Interval(ge=0, le=10_000)]] = 12
    num_heads: OfSize[Width] = 12
    intermediate_size: OfSize[Annotated[int, Interval(ge=1, le=2**20)]] = 3_072
    max_position: Annotated[int, Interval(ge=1, le=2**20)] = 512
    type_vocab_size: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 2
    """The number of token types. 0 means that the model has none and ignores the token types of a batch (ModernBERT,
    arXiv:2412.13663)."""
    activation: Annotated[str, NamedIn(tuple(ACTIVATIONS))] = "gelu"
    """The activation of the feed-forward and of the MLM head. One of "gelu" (exact, with erf), "gelu_tanh" (the tanh
    approximation), "relu", "silu" (EuroBERT, arXiv:2503.05500), or FILE.py:NAME, your own elementwise function."""
    layer_norm_epsilon: Epsilon = 1e-12
    """The number that every norm adds to the variance or, in an RMSNorm, to the mean square. ModernBERT and EuroBERT use
    1e-5."""
    encoder: Annotated[str, NamedIn(tuple(ENCODERS))] = "transformer"
    """"transformer": BERT. "encoder_decoder": the Transformer of Vaswani et al. (arXiv:1706.03762). A decoder with
    `decoder_layers` layers attends to the encoder's output (`model/encoder_decoder.py`). "bilm": the bidirectional LSTM
    language model of ELMo (`model/bilm.py`). Each direction is `hidden_size` / 2 wide and has cells of width
    `intermediate_size`. With direction=left_to_right, there is a single LSTM of width `hidden_size`. "flair": a "bilm" over a
    vocabulary of characters, always with both directions. Its hidden states are read at the ends of words (`model/flair.py`).
    "cove": an LSTM in which every layer reads both directions of the layer below. A decoder with `decoder_layers` layers
    translates (`model/cove.py`). "static": context-independent word vectors (`model/static.py`), with num_layers=0. "bilm",
    "flair", "cove" and "static" use neither positions nor token types. FILE.py:NAME: your own layers on BERT's embeddings (see
    `encoder.WholeRows`)."""
    character_cnn: bool = False
    """Whether word vectors are computed from characters (`model/characters.py`) instead of being read from an embedding table.
    Requires encoder=bilm, and also tied_decoder=False, since the softmax then needs its own table."""
    direction: Annotated[str, OneOf(DIRECTIONS), OnlyFor("has_direction")] = "both"
    """The context of a token. "both": the tokens before and after the token. "left_to_right": the token itself and the tokens
    before it, as in a decoder without cross-attention (transformers' BertLMHeadModel with is_decoder). A left-to-right model
    predicts the next token."""
    positions: Annotated[str, NamedIn(tuple(POSITIONS)), OnlyFor("has_positions")] = "learned"
    """The position embedding. "learned": a table of `max_position` rows. "sinusoidal": the fixed table `positions.sinusoids` of
    `max_position` rows. A larger `max_position` needs no new weights. "sinusoidal_halves": the sinusoids without the division
    by sqrt(`hidden_size`), with all sines before all cosines (tensor2tensor, Marian). "rotary": rotations of queries and keys.
    "none": no positions. Only a left-to-right mask then conveys the order of tokens. FILE.py:NAME: your own class (see
    `model/positions.py`)."""
    tied_decoder: bool = True
    """Whether the decoder of the MLM head shares the word-embedding table, as in the original. If False, the decoder has its
    own table."""

    # ---------------------------------------------------------------------------------- an encoder-decoder (encoder_decoder.py)
    decoder_layers: Annotated[int, Interval(ge=0, le=10_000), OnlyFor("decoder_layers")] = 0
    """The number of decoder layers, if encoder is "encoder_decoder" or "cove". The encoder has `num_layers` layers. Must be 0
    for all other encoders."""
    decoder_vocab_size: Annotated[int, Interval(ge=0, le=2**24), OnlyFor("translates")] = 0
    """The size of the target vocabulary, if the decoder has its own embedding table. 0: source and target share a vocabulary
    and an embedding table (arXiv:1706.03762, section 3.4)."""
    scale_embeddings: OfBlock[bool] = False
    """Whether word embeddings are multiplied by sqrt(hidden_size) when they are looked up (arXiv:1706.03762, section 3.4)."""

    # ------------------------------------------------------------------------------- the block of a Transformer (encoder.py)
    norm: OfBlock[Annotated[str, NamedIn(tuple(NORMS))]] = "layer_norm"
    """The function of all norms. "layer_norm": the LayerNorm of Ba et al. (arXiv:1607.06450). "rms_norm": division by the root
    mean square (Zhang and Sennrich, arXiv:1910.07467; EuroBERT). FILE.py:NAME: your own function (x, epsilon)."""
    norm_scale: OfBlock[bool] = True
    """Whether norms have a learned scale. If False, they have no parameters at all (GPT-BERT, arXiv:2410.24159)."""
    norm_bias: OfBlock[bool] = True
    """Whether a LayerNorm has a learned bias. ModernBERT's LayerNorms have none. An RMSNorm never has a bias."""
    norm_placement: OfBlock[Annotated[str, OneOf(PLACEMENTS)]] = "post"
    """The norms of a block. "post": a norm follows each residual sum, as in the original. "pre": the inputs of attention and of
    the feed-forward are normalised (Xiong et al., arXiv:2002.04745; ModernBERT, EuroBERT)."""
    first_attention_norm: OfEncoderOnly[bool] = True
    """Whether the first layer has a norm before its attention if norm_placement=pre. ModernBERT has no norm there, since its
    embeddings are already normalised."""
    embedding_norm: OfBlock[bool] = True
    """Whether the embeddings are normalised. EuroBERT does not normalise them."""
    final_norm: OfBlock[bool] = False
    """Whether the output of the last layer is normalised. Models with norm_placement=pre, such as ModernBERT and EuroBERT, have
    this norm."""
    attention_bias: OfBlock[bool] = True
    """Whether the query, key, value and output projections of attention have biases. ModernBERT's block has no biases at
    all."""
    intermediate_bias: OfBlock[bool] = True
    """Whether the first dense layer of the feed-forward has a bias. With a `gate`, this applies to both halves of the layer."""
    output_bias: OfBlock[bool] = True
    """Whether the last dense layer of the feed-forward has a bias."""
    gate: OfBlock[Annotated[str, OneOf(GATES)]] = "none"
    """"none": the original feed-forward. With the other values, the feed-forward is a gated linear unit (Shazeer,
    arXiv:2002.05202). Its first dense layer has two halves of width `intermediate_size`, which are called "intermediate" and
    "gate" in the parameters. One half is activated and then multiplied by the other half. "first" activates the intermediate
    half (ModernBERT's GeGLU). "second" activates the gate (SwiGLU of EuroBERT and nomic-bert)."""
    rotary_theta: OfBlock[Theta] = 10_000.0
    """The base of the wavelengths in full-attention layers if positions=rotary (arXiv:2104.09864, section 3.2). ModernBERT uses
    160,000."""
    sliding_rotary_theta: OfBlock[Theta | None] = None
    """The base of the wavelengths in sliding layers if positions=rotary. None: the same as `rotary_theta`. ModernBERT uses
    10,000."""
    rotary_pairing: OfBlock[Annotated[str, OneOf(PAIRINGS)]] = "halves"
    """The dimensions of a head that are rotated as a pair if positions=rotary. "halves": i and i + K/2 (GPT-NeoX, and every
    model in transformers). "interleaved": 2 i and 2 i + 1 (the paper; NeoBERT, arXiv:2502.19587)."""
    layer_types: OfEncoderOnly[OfSize[tuple[Annotated[str, OneOf(LAYER_TYPES)], ...]]] = ()
    """The type of attention in each layer. "full": a token attends to all tokens of the sequence. "sliding": a token attends to
    tokens that are at most `sliding_radius` away. (): all layers have full attention. In ModernBERT, layers 0, 3, 6, ... have
    full attention."""
    sliding_radius: OfEncoderOnly[Annotated[int, Interval(ge=0, le=2**20)]] = 0
    """The largest distance on each side at which a token attends to another token in a sliding layer. A radius of 64 is a
    window of 129 tokens, which ModernBERT's configuration calls local_attention=128."""
    num_key_value_heads: OfBlock[OfSize[Annotated[int, Interval(ge=0, le=MOST_WIDE)]]] = 0
    """The number of key and value heads. Each key and value head serves num_heads / num_key_value_heads query heads (Ainslie et
    al., arXiv:2305.13245; EuroBERT). 0: the same number as `num_heads`."""
    mlm_head: OfEncoderOnly[Annotated[str, OneOf(MLM_HEADS)]] = "bert"
    """The layers of the MLM head. "bert": a dense layer, the activation, a norm, and the decoder. "decoder": the decoder alone
    (EuroBERT, NeoBERT)."""
    head_dense_bias: OfEncoderOnly[bool] = True
    """Whether the dense layers of the MLM head and of a classifier with `classifier_pooling` have biases. ModernBERT has none."""
    decoder_bias: OfEncoderOnly[bool] = True
    """Whether the decoder of the MLM head has a bias for each word. EuroBERT has none."""
    classifier_pooling: OfEncoderOnly[Annotated[str, OneOf(CLASSIFIER_POOLINGS)]] = "pooler"
    """The features of a task head. "pooler": the original tanh layer on [CLS]. "cls" and "mean": a dense layer, the activation
    and a norm on [CLS] or on the mean of the tokens. Token-level heads apply these layers to each token. The layers are
    initialised from the MLM head (ModernBERT). "late": the same layers on each token, then the mean of the logits of all
    tokens. If mlm_head=decoder (EuroBERT), the MLM head has no dense layer and no norm. "cls", "mean" and "late" then use a
    dense layer and the exact GELU, and token-level heads use no such layers."""

    def __post_init__(self) -> None:
        check_ranges(self, "model")
        if self.character_cnn and (self.tied_decoder or not self.kind.has_character_cnn):
            raise UserError(
                "model.character_cnn=True requires model.encoder=bilm and model.tied_decoder=false, since a character CNN has no "
                "word table to tie; set both, or remove model.character_cnn"
            )
        if not self.has_attention:
            _check_predecessor(self)
        elif self.num_layers < 1:
            raise UserError(f"model.num_layers={self.num_layers} must be at least 1; only model.encoder=static has no layers")
        elif self.hidden_size % self.num_heads:
            divisors = [h for h in range(1, self.hidden_size + 1) if self.hidden_size % h == 0]
            raise UserError(
                f"model.hidden_size={self.hidden_size} is not divisible by model.num_heads={self.num_heads}; "
                f"the nearest number of heads that divides it is {min(divisors, key=lambda h: abs(h - self.num_heads))}"
            )
        else:
            _check_block(self)
        _check_decoder_layers(self)
        _check_applicable(self)

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
        """Whether the second text of a pair has its own token type. A left-to-right model reads a pair as one text with [SEP] in
        between, as GPT does."""
        return self.direction == "both" and self.type_vocab_size > 1

    @property
    def kind(self) -> EncoderKind:
        """The facts about the encoder. A user's own encoder has the facts of a Transformer, since it has the same embeddings,
        heads and objectives."""
        return ENCODERS.get(self.encoder, ENCODERS["transformer"])

    @property
    def positions_kind(self) -> PositionsKind:
        """The facts about the positions."""
        return POSITIONS.get(self.positions, PositionsKind(self.positions))

    @property
    def norm_kind(self) -> NormKind:
        """The facts about the norm."""
        return NORMS.get(self.norm, NormKind(self.norm))

    @property
    def has_attention(self) -> bool:
        """Whether the encoder may have attention. This is True for Transformers and for a user's own encoder."""
        return self.kind.has_attention

    @property
    def translates(self) -> bool:
        """Whether the model is a Transformer with a decoder."""
        return self.has_attention and self.decoder_layers > 0

    @property
    def has_position_table(self) -> bool:
        """Whether an array may have `max_position` rows. Otherwise `max_position` can be changed without new weights. A user's
        own encoder or positions may have such an array."""
        own = is_in_file(self.positions) or is_in_file(self.encoder)
        return self.kind.has_positions and (self.positions_kind.is_learned or own)

    @property
    def spells_words(self) -> bool:
        """Whether word vectors are computed from the characters of the words, so that there is no table of word vectors."""
        return self.character_cnn or self.kind.reads_words

    @property
    def cls_reads_text(self) -> bool:
        """Whether the [CLS] token, and so the pooler, can represent the text. This requires a bidirectional Transformer,
        because [CLS] sees only itself in a left-to-right model."""
        return self.kind.pools and self.direction == "both"

    @property
    def in_words(self) -> str:
        """A short description of the encoder's kind and sizes."""
        layers = f"{counted(self.num_layers, 'layer')}, {self.hidden_size} wide"
        title = split_named(self.encoder)[1] if is_in_file(self.encoder) else self.kind.title
        if self.kind.is_static:
            return f"{title}, {self.hidden_size} wide"
        if self.kind.is_lstm:
            title = title if self.direction == "both" else "left-to-right LSTM"
            decoder = f", decoder of {counted(self.decoder_layers, 'layer')}" if self.decoder_layers else ""
            return f"{title} of {layers}, cells {self.intermediate_size} wide{decoder}"
        if self.translates:
            return f"encoder of {self.num_layers} and decoder of {counted(self.decoder_layers, 'layer')}, {self.hidden_size} wide"
        return f"{title} of {layers}" if title else f"{layers}, {counted(self.num_heads, 'head')}"

    @property
    def word_width(self) -> int:
        """The width of a word embedding. This is `hidden_size` / 2 for an LSTM with two independent directions, otherwise
        `hidden_size`."""
        return self.direction_width if self.kind.separate_directions else self.hidden_size

    @property
    def direction_width(self) -> int:
        """The width of the output of one direction of an LSTM."""
        return self.hidden_size // (2 if self.direction == "both" else 1)


IN_FILES = tuple(marked(Architecture, NamedIn))
"""The fields of `Architecture` that may name a user's file as FILE.py:NAME."""
SIZES = tuple(marked(Architecture, IsSize))
"""The fields of `Architecture` that set the size of a Transformer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The settings that change how much time and memory the compiled program needs, but not the function that it computes.
    Weights can be loaded with any of these settings."""

    dtype: Annotated[str, OneOf(DTYPES), Changes.ROUNDING] = "float32"
    """The dtype of matrix products and activations: "float32" or "bfloat16". TPUs, GPUs and CPUs with AMX multiply bfloat16
    several times faster. Parameters, softmax, LayerNorm statistics and logits are float32."""
    remat: OfBlock[Annotated[str, OneOf(REMAT)]] = "none"
    """The values that the backward pass recomputes (remat). "none": no values. "dots": all values except the results of matrix
    products and of fused attention, which are saved. "full": all values except the inputs of layers, which are saved."""
    scan_layers: bool = False
    """Whether the layers run in a `jax.lax.scan`, so that only one layer is compiled. False unrolls the loop over the layers,
    which is slower to compile and faster to run."""
    layers_per_scan_step: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """The number of layers in each iteration of the scan (`unroll` of `jax.lax.scan`)."""
    attention: OfBlock[Annotated[str, OneOf(KERNELS)]] = "auto"
    """How attention is computed. "fused": one kernel that keeps the scores on the chip (TPU, and NVIDIA GPUs from compute
    capability 8.0). "plain": XLA operations. "auto": the fused kernel, if it runs on the devices and agrees with the plain
    path. The kernels do not support left-to-right masks. On a TPU the fused and plain versions draw different dropout masks, at
    the same rate."""
    residual_norm: OfBlock[Annotated[str, OneOf(KERNELS)]] = "auto"
    """How LayerNorm(x + dropout(y)) is computed after attention and feed-forward. "fused": one kernel (TPU). "plain": XLA
    operations. "auto": the fused kernel, if it runs on the devices and agrees with the plain path. The fused and the plain
    version drop the same elements."""
    vocab_multiple: Annotated[int, Interval(ge=1, le=2**20), Changes.ARRAYS] = 1
    """The rows of the word-embedding table are padded to a multiple of this number (128 suits a TPU's lanes). Padded rows have
    probability 0. They are added when weights are read and removed when weights are written."""

    target = Target()  # not a field, since it is not a setting; `Resolved` replaces it with the target of a run

    def kernel(self, operation: str) -> Any:
        """Returns the kernel of `operation` ("attention" or "residual_norm"), or None for plain XLA operations. Raises UserError
        if a fused kernel is required but these settings were not resolved for any devices."""
        if getattr(self, operation) == "plain":
            return None
        found = getattr(self.target, operation)
        if found is None and getattr(self, operation) == "fused":
            raise UserError(
                f"model.{operation}='fused' is not available: a kernel needs known devices, and none are given; "
                f"set model.{operation} to 'plain' or 'auto'"
            )
        return found

    def plain(self) -> Self:
        """Returns these settings without kernels. Attention weights are read with these settings, because a kernel never holds
        all weights at once."""
        return dataclasses.replace(self, attention="plain", residual_norm="plain")

    @classmethod
    def exact(cls) -> tuple[str, ...]:
        """Returns the fields that a resumed run may change. These fields only affect the order and rounding of sums and, with
        fused attention, the random bits of dropout."""
        return tuple(name for name in hints(cls) if name not in marked(cls, Changes))

    @classmethod
    def within_noise(cls) -> tuple[str, ...]:
        """Returns the fields that affect scores less than the seed does."""
        return tuple(name for name in hints(cls) if marked(cls, Changes).get(name) != Changes.ARRAYS)

    def without_kernels(self, rejected: Collection[str]) -> Self:
        """Returns these settings without the `rejected` kernels ("attention", "residual_norm"). Each rejected kernel that is
        set to "auto" is set to "plain". A kernel that is set to "fused" is not changed."""
        changes: dict[str, Any] = {name: "plain" for name in rejected if getattr(self, name) == "auto"}
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOnly:
    """The settings that only training reads: dropout and initial weights. They do not change what a trained model computes."""

    hidden_dropout: Dropout = 0.1
    """Dropout of the embeddings and of the outputs of attention and feed-forward."""
    attention_dropout: Dropout = 0.1
    """Dropout of the attention weights."""
    embedding_dropout: Dropout | None = None
    """Dropout of the embeddings. None: the same as `hidden_dropout`."""
    attention_output_dropout: Dropout | None = None
    """Dropout of the outputs of attention. None: the same as `hidden_dropout`. ModernBERT was trained with 0.1 here and no
    other dropout (arXiv:2412.13663, Table 3)."""
    initializer: Annotated[str, OneOf(INITIALIZERS)] = "bert"
    """The initial values of kernels and embeddings. "bert": a normal distribution that is cut at two standard deviations and
    not rescaled. "modernbert": the same, but the output projections of attention and feed-forward are divided by sqrt(2 x
    layers) (arXiv:2412.13663, appendix A.2). "normal": a normal distribution. "uniform": within +/- `initializer_range`
    (NeoBERT)."""
    initializer_range: Annotated[float, Interval(ge=0, le=1_000)] = 0.02
    """The standard deviation of the normal distribution that initialises kernels and embeddings, or the bound of the uniform
    distribution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(TrainingOnly, Execution, Architecture):
    """The section `config.model`, the sum of three types. A new setting belongs to the type that says what it changes."""

    @property
    def architecture(self) -> Architecture:
        """The `Architecture` part of this configuration."""
        return Architecture(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Architecture)})

    def for_initial_parameters(self) -> ModelConfig:
        """Returns a copy without kernels, in which all fields that do not affect initial parameters have their defaults."""
        bare = ModelConfig(
            attention="plain", residual_norm="plain", initializer=self.initializer, initializer_range=self.initializer_range
        )
        return bare.with_architecture(self.architecture)

    def without_kernels(self, rejected: Collection[str]) -> Self:
        """Does the same as `Execution.without_kernels`. Models other than Transformers have no kernels, so nothing changes for
        them."""
        return super().without_kernels(rejected if self.has_attention else ())

    def with_sliding_theta(self) -> Self:
        """Returns a copy in which `sliding_rotary_theta` is not None if a layer is sliding. Two configurations with the same
        bases are then equal, and a new `rotary_theta` does not affect sliding layers."""
        if "sliding" not in self.layer_types or self.sliding_rotary_theta is not None:
            return self
        return dataclasses.replace(self, sliding_rotary_theta=self.rotary_theta)

    def with_architecture(self, other: Architecture) -> ModelConfig:
        """Returns a copy with the fields of another architecture."""
        return dataclasses.replace(self, **dataclasses.asdict(other))

    @property
    def padded_vocab_size(self) -> int:
        """The number of rows of the word-embedding table: `vocab_size` rounded up to a multiple of `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def encoder_config(self) -> ModelConfig:
        """The encoder of an encoder-decoder as a model of its own."""
        return dataclasses.replace(self, encoder="transformer", decoder_layers=0, decoder_vocab_size=0)

    @property
    def decoder_config(self) -> ModelConfig:
        """The decoder of an encoder-decoder as a left-to-right model over its vocabulary. Each of its layers reads the encoder's
        output."""
        return dataclasses.replace(
            self.encoder_config,
            direction="left_to_right",
            num_layers=self.decoder_layers,
            vocab_size=self.decoder_vocab_size or self.vocab_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(ModelConfig):
    """A model configuration resolved for the devices of a run. It has the settings and the `Target` with its kernels."""

    target: Target


def _check_block(c: Architecture) -> None:
    """Raises UserError for inconsistent settings of the Transformer block."""
    if c.layer_types and len(c.layer_types) != c.num_layers:
        raise UserError(
            f"model.layer_types lists {counted(len(c.layer_types), 'layer')}, but model.num_layers={c.num_layers}; list one type "
            "per layer, or leave layer_types out (full attention in all layers)"
        )
    if "sliding" in c.layer_types and c.sliding_radius < 1:
        raise UserError(
            f"model.layer_types has sliding layers, but with model.sliding_radius={c.sliding_radius} a token sees no other "
            "token; set it to at least 1 (ModernBERT: 64)"
        )
    if c.num_heads % c.key_value_heads:
        divisors = [h for h in range(1, c.num_heads + 1) if c.num_heads % h == 0]
        raise UserError(
            f"model.num_heads={c.num_heads} is not divisible by model.num_key_value_heads={c.num_key_value_heads}; "
            f"set it to one of {', '.join(map(str, divisors))}"
        )
    if c.positions_kind.is_rotary and c.head_width % 2:
        raise UserError(
            f"model.positions={c.positions} needs an even head width, not {c.head_width} "
            f"(model.hidden_size={c.hidden_size} / model.num_heads={c.num_heads}); choose sizes with an even quotient"
        )
    if c.norm_placement == "post" and not c.first_attention_norm:
        raise UserError(
            "model.first_attention_norm=False requires model.norm_placement=pre, because post-norm layers have no norm before "
            "attention; leave it out"
        )


def _check_decoder_layers(c: Architecture) -> None:
    """Raises UserError if a model that needs a decoder has no decoder layers."""
    if not c.decoder_layers and c.kind.decoder_layers:
        raise UserError(
            f"model.decoder_layers=0 is too small for model.encoder={c.encoder}; set it to at least 1 (the paper: "
            f"{c.kind.decoder_layers})"
        )


def _check_predecessor(c: Architecture) -> None:
    """Raises UserError for settings that LSTMs or static vectors do not support."""
    if c.kind.is_static != (c.num_layers == 0):
        layers = "0: word vectors have no layers" if c.kind.is_static else "at least 1"
        raise UserError(f"model.num_layers={c.num_layers} must be {layers} (model.encoder={c.encoder})")
    if c.kind.is_lstm and c.direction == "both" and c.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={c.hidden_size} must be even: each direction of model.encoder={c.encoder} uses half of it; "
            f"set {c.hidden_size + 1}" + (", or model.direction=left_to_right" if c.kind.has_direction else "")
        )


def _check_applicable(c: Architecture) -> None:
    """Raises UserError if a setting that does not apply to the encoder has another value than its default."""
    if c.kind.translates and c.type_vocab_size:  # 0 is not its default
        raise UserError(f"model.type_vocab_size={c.type_vocab_size} does not apply to model.encoder={c.encoder}; set 0")
    for name, marker in marked(type(c), OnlyFor).items():
        value, only = getattr(c, name), getattr(type(c), name)
        if value == only or getattr(c.kind, marker.fact):
            continue
        remedy = f"set {only}" if c.kind.translates else f"leave it out ({only})"
        fits = "is for model.encoder=encoder_decoder, not for " if c.kind.is_encoder_only else "does not apply to model.encoder="
        raise UserError(f"model.{name}={value} {fits}{c.encoder}; {remedy}")


# Name -> (layers, width). The names are from section 3 of the paper and from the paper on smaller models (arXiv:1908.08962).
# The number of heads is width / 64.
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
    """Returns the `Architecture` fields of ModernBERT's block. Every `every`th layer, starting with the first, has full
    attention. In the other layers, a token sees `radius` tokens on each side."""
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
    if "modernbert" not in name:  # sliding layers use the large theta too, for longer rows
        fields |= {"sliding_rotary_theta": 160_000.0}
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


# name -> (layers of the encoder and of the decoder, width, feed-forward width, heads)
TRANSFORMER_WIDTHS = {"transformer_base": (6, 512, 2_048, 8), "transformer_big": (6, 1_024, 4_096, 16)}
"""The models of "Attention Is All You Need" (arXiv:1706.03762, Table 3)."""


def _transformer(name: str) -> dict[str, Any]:
    """Returns the fields of one of TRANSFORMER_WIDTHS, with the vocabulary size of the paper's English-German model (section
    5.1)."""
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
"""nomic-bert-2048 (arXiv:2402.01613): BERT-Base with rotary positions and SwiGLU, without biases in its dense layers."""


def published_sizes() -> dict[str, tuple[int, int]]:
    """Returns every published size of BERT as name -> (layers, width). These are the six named sizes and the 24 miniatures
    (`L-4_H-256` etc.)."""
    grid = {f"L-{n}_H-{d}": (n, d) for n in MINIATURE_LAYERS for d in MINIATURE_WIDTHS}
    return PUBLISHED | grid


def published(name: str) -> dict[str, Any]:
    """Returns the `ModelConfig` fields of a published model, e.g. `published("mini")`, `published("L-4_H-256_A-4")`,
    `published("modernbert-base")`, `published("ettin-32m")`, `published("eurobert-210m")`, `published("nomic-bert")`,
    `published("transformer_base")`.

    Raises UserError for an unknown name and suggests the most similar name. A name whose number of heads (`A-4`) is not the
    model's is unknown too.
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
    key, stated, heads = name.partition("_A-")
    if key not in sizes:
        known = (*sizes, *MODERN_WIDTHS, *EUROBERT_WIDTHS, "nomic-bert", *TRANSFORMER_WIDTHS)
        raise UserError(f"no published model is called {name!r}; {nearest(name, known)}")
    layers, width = sizes[key]
    if stated and heads != str(width // 64):
        raise UserError(
            f"no published model is called {name!r}, because {key} has {counted(width // 64, 'head')}; write {key}, and set "
            "config.model.num_heads for another number of heads"
        )
    return {"num_layers": layers, "hidden_size": width, "num_heads": width // 64, "intermediate_size": 4 * width}
