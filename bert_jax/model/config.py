"""`Architecture`, the function that a model computes; `Execution`, how it is computed; `ModelConfig`, the section with both; the
published sizes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import Annotated, Any, Protocol, Self

from annotated_types import Interval

from bert_jax.errors import UserError, nearest
from bert_jax.interface.ranges import Dropout, Epsilon, NamedIn, OneOf, check_ranges
from bert_jax.interface.words import counted
from bert_jax.model import ACTIVATIONS, ENCODERS, POSITIONS

DTYPES = ("float32", "bfloat16")
REMAT = ("none", "dots", "full")
KERNELS = ("auto", "fused", "plain")
DIRECTIONS = ("both", "left_to_right")

MOST_WIDE = 2**16
"""The largest width: larger than any machine can hold, and small enough that sizes in bytes do not overflow 64 bits."""
Width = Annotated[int, Interval(ge=1, le=MOST_WIDE)]
CHANGES_NUMBERS = "changes numbers"
"""Marks a field of `Execution` whose values differ in more than the order and rounding of sums."""


class AttentionKernel(Protocol):
    """Fused attention on the devices of a run, spread over their mesh."""

    def computes(self, model: ModelConfig, length: int) -> bool:
        """Whether it computes the attention of `model` in rows of that many tokens. Raises UserError if it does not and the model
        asks for it."""

    def __call__(self, qkv: Any, sequence_ids: Any, *, num_heads: int, dropout: Any) -> Any:
        """The context, as `kernels.attention.fused_attention` returns it."""


class ResidualNormKernel(Protocol):
    """LayerNorm(x + dropout(y)) on the devices of a run, spread over their mesh."""

    def computes(self, model: ModelConfig) -> bool:
        """Whether it computes rows of the width of `model`. Raises UserError if it does not and the model asks for it."""

    def __call__(self, x: Any, y: Any, norm: Any, dropout: Any) -> Any:
        """The sum, normalised, as `kernels.residual_norm.fused_residual_norm` returns it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a program is compiled for, and the kernels that it calls there: `sharding.kernels.resolve` makes it, once,
    when a run starts. The default is any device, without kernels. Its values decide what is traced, so it is part of the key of
    every compiled program."""

    platform: str = ""
    """"cpu", "tpu" or "gpu"."""
    one_cpu: bool = False
    """Whether that is a single CPU device, for which `products.py` has forms of its own."""
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
    type_vocab_size: Width = 2
    activation: Annotated[str, OneOf(tuple(ACTIVATIONS))] = "gelu"
    """"gelu" (exact, by erf), "gelu_tanh" (the tanh approximation), or "relu"."""
    layer_norm_epsilon: Epsilon = 1e-12
    encoder: Annotated[str, OneOf(tuple(ENCODERS))] = "transformer"
    """"transformer": BERT. "bilm": the bidirectional LSTM language model of ELMo (`model/bilm.py`), whose directions have half of
    `hidden_size` each and cells of width `intermediate_size`; with direction=left_to_right one LSTM of `hidden_size`. "static": a
    vector for each token, whatever its context (`model/static.py`), with num_layers=0. The last two read neither positions nor
    token types."""
    character_cnn: bool = False
    """Of a biLM: word vectors are computed from the characters of words (`model/characters.py`) in place of a table; the softmax
    then has a table of its own, tied_decoder=False."""
    direction: Annotated[str, OneOf(DIRECTIONS)] = "both"
    """The tokens that a token sees: "both", those before and after it; "left_to_right", itself and those before it, as a decoder
    without cross-attention (transformers' BertLMHeadModel with is_decoder). Such a model predicts the next token."""
    positions: Annotated[str, NamedIn(tuple(POSITIONS))] = "learned"
    """The positions: "learned", a table of `max_position` rows; "sinusoidal", the fixed table of `positions.sinusoids`, which has
    no parameters and any number of rows; "none", nothing, so that only a mask can tell the order of tokens; FILE.py:NAME, a class
    of the user's (`model/positions.py`)."""
    tied_decoder: bool = True
    """True: the MLM head's decoder is the word-embedding table, as in the original; False: it has a table of its own."""

    def __post_init__(self) -> None:
        check_ranges(self, "model")
        if self.character_cnn and (self.encoder != "bilm" or self.tied_decoder):
            raise UserError(
                "model.character_cnn=True is for model.encoder=bilm with model.tied_decoder=false, since characters give no "
                "table of words to tie; set both, or leave it out"
            )
        if self.encoder != "transformer":
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

    @property
    def head_width(self) -> int:
        """K, the width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def has_segments(self) -> bool:
        """Whether the second text of a pair has a token type of its own. A left-to-right model reads a pair as one text with
        [SEP] between its parts, as GPT does."""
        return self.direction == "both" and self.type_vocab_size > 1

    @property
    def has_attention(self) -> bool:
        """Whether tokens attend to each other, as only a Transformer's do."""
        return self.encoder == "transformer"

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
    operations; "auto": fused on TPUs, the only devices where it was timed, if it can run and agrees with the plain path there.
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
                f"model.{operation}='fused' cannot be had: it is a kernel for given devices, and none are given; "
                f"set model.{operation} to 'plain' or 'auto'"
            )
        return found

    def plain(self) -> Self:
        """Returns these settings without kernels: for initialisation, whose outputs are not used, and for attention weights,
        which the kernels never hold as a whole."""
        return dataclasses.replace(self, attention="plain", residual_norm="plain")

    @classmethod
    def exact(cls) -> tuple[str, ...]:
        """The fields that a continued run may change: they leave the result as it is, apart from the order and rounding of sums
        and, for fused attention, the random bits of its dropout."""
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
    attention_dropout: Dropout = 0.1
    initializer_range: Annotated[float, Interval(ge=0, le=1_000)] = 0.02
    """Standard deviation of the truncated normal (cut at two deviations, not rescaled) that initialises kernels and
    embeddings."""
    vocab_multiple: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """The rows of the word-embedding table are padded to a multiple of this number (128 suits a TPU's lanes). Padded rows have
    probability 0 and are not exported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("remat", "attention", "residual_norm"):
            value, only = getattr(self, name), getattr(Execution, name)
            if self.encoder != "transformer" and value != only:
                raise UserError(f"model.{name}={value} is not for model.encoder={self.encoder}; leave it out ({only})")

    @property
    def architecture(self) -> Architecture:
        """The function that it computes, without the rest."""
        return Architecture(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Architecture)})

    def without_kernels(self, rejected: Collection[str]) -> Self:
        """As for any `Execution`; a model that is no Transformer has no kernels."""
        return super().without_kernels(rejected if self.has_attention else ())

    def with_architecture(self, other: Architecture) -> ModelConfig:
        """These settings of execution and training for another architecture."""
        return dataclasses.replace(self, **dataclasses.asdict(other))

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word-embedding table: `vocab_size` rounded up to a multiple of `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(ModelConfig):
    """A model on the devices of a run: its settings, and the `Target` that its kernels are chosen for."""

    target: Target


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
    fixed = {"positions": "learned"}
    fixed |= {"direction": "both"} if c.encoder == "static" else {}
    for name, only in fixed.items():
        if getattr(c, name) != only:
            raise UserError(f"model.{name}={getattr(c, name)} is not for model.encoder={c.encoder}; leave it out ({only})")


# (layers, width) by the names of the paper (section 3) and of the miniatures' paper (arXiv:1908.08962); heads = width / 64.
PUBLISHED = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768), "large": (24, 1024)}
MINIATURE_LAYERS = (2, 4, 6, 8, 10, 12)
MINIATURE_WIDTHS = (128, 256, 512, 768)


def published_sizes() -> dict[str, tuple[int, int]]:
    """Every published size as name -> (layers, width): the six sizes with names and the 24 miniatures (`L-4_H-256` and so on)."""
    grid = {f"L-{n}_H-{d}": (n, d) for n in MINIATURE_LAYERS for d in MINIATURE_WIDTHS}
    return PUBLISHED | grid


def published(name: str) -> dict[str, int]:
    """The fields of `ModelConfig` of a published size, for example `published("mini")` or `published("L-4_H-256_A-4")`.

    Raises UserError with the most similar name for an unknown size.
    """
    sizes = published_sizes()
    key = re.sub(r"_A-\d+$", "", name)
    if key not in sizes:
        raise UserError(f"no published BERT is called {name!r}; {nearest(name, sizes)}")
    layers, width = sizes[key]
    return {"num_layers": layers, "hidden_size": width, "num_heads": width // 64, "intermediate_size": 4 * width}
