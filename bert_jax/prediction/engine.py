"""`Engine` holds a loaded model and runs items through a jitted function on all local devices."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int8

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model, import_model
from bert_jax.model.bert import attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.model.encoder import unstacked_layers
from bert_jax.model.kernels.dispatch import resolve
from bert_jax.model.tokens import INPUTS, Tokens
from bert_jax.prediction.packing import BatchShape, Item, Packed, full_batches, pack
from bert_jax.runtime.profile import Profile
from bert_jax.sharding.config import DATA
from bert_jax.sharding.device_errors import MemoryAdvice, fits_in_memory

log = logging.getLogger(__name__)

Per = Literal["text", "position", "token"]

TOKENS = {"cpu": 1024}
"""Tokens per batch and device, by platform. With 1,024 tokens, a batch fits in the caches of a CPU. With 4,096 tokens,
each token takes a quarter longer."""
TOKENS_ELSEWHERE = 16_384
IN_FLIGHT = 2
"""The number of concurrent batches. On a single CPU device, each batch has its own thread. While one batch is between two
parallel regions, the other batch uses the cores, which is 14 % faster on 2 cores. In all other cases, a single thread starts
the batches, since several devices must receive their programs in the same order. A batch is transferred while the previous
batch is computed and fetched."""
GROUP = 1024
"""The number of items per device that are packed together. This many items fill rows well and need little memory."""
GROUP_AHEAD = 256
"""The number of items per device that are packed together if leftover items can go to the next group. It is smaller than GROUP,
because the computation waits until the first group is packed."""


SPARE_ROWS = 1024
"""`Engine.load` warns if the word embeddings have more unused rows than this. Published models have up to 1,000 rows of
padding."""
START, CONTINUATION, NO_PIECE = range(3)
"""The kinds of rows of the word embeddings: subwords that start a word, subwords that continue a word, and unused rows."""


def piece_kinds(model: Model) -> Int8[np.ndarray, " V"]:
    """Returns the kind of every row of the word embeddings. Rows beyond the vocabulary, and rows without a subword, are unused
    and never predicted."""
    kinds = np.full(model.config.padded_vocab_size, NO_PIECE, np.int8)
    kinds[: model.tokenizer.size] = np.where(model.tokenizer.continuation_table, CONTINUATION, START)
    kinds[[i for i, piece in enumerate(model.tokenizer.pieces) if not piece]] = NO_PIECE
    return kinds


class Engine:
    """A model whose parameters are on all local devices. The rows of a batch are split over the devices.

    XLA splits the programs over the devices. XLA cannot split Pallas kernels, so predictions do not use the fused kernels
    (`dispatch.resolve`)."""

    def __init__(self, model: Model):
        self.model = model
        devices = jax.local_devices()
        self.config: ModelConfig = resolve(model.config, devices[0], len(devices))
        self.mesh = Mesh(np.array(devices), (DATA,))
        self.tokens = TOKENS.get(devices[0].platform, TOKENS_ELSEWHERE)
        with fits_in_memory(self._memory_advice):
            self.params = jax.device_put(unstacked_layers(model.params), NamedSharding(self.mesh, PartitionSpec()))
        self._rows = NamedSharding(self.mesh, PartitionSpec(DATA))
        self._whole = NamedSharding(self.mesh, PartitionSpec())
        self._kinds = jax.device_put(piece_kinds(model), self._whole)
        self._waits = devices[0].platform == "cpu" and len(devices) == 1
        self.profile = Profile()
        self.batch_count = 0
        """The number of batches computed so far."""
        self._workers = concurrent.futures.ThreadPoolExecutor(IN_FLIGHT if self._waits else 1, thread_name_prefix="batch")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Engine:
        """Loads a Hugging Face directory, a workdir or a model of the hub. Raises UserError if `path` is none of them."""
        model = import_model(path)
        spare = model.config.vocab_size - model.tokenizer.size
        if spare > SPARE_ROWS:  # padding to a round size adds fewer rows
            log.warning(
                "the word embeddings of %s have %s for %s; is this the vocabulary that it was trained with?",
                path,
                counted(model.config.vocab_size, "row"),
                counted(model.tokenizer.size, "piece"),
            )
        return cls(model)

    @property
    def name(self) -> str:
        """The name of the model, for messages."""
        return self.model.source or "this model"

    @functools.cached_property
    def has_attention(self) -> bool:
        """Whether the model's layers return attention weights. Layers from a user's file are traced once to find out."""
        if not is_in_file(self.config.encoder):
            return self.config.has_attention
        batch = dict.fromkeys(INPUTS, jax.ShapeDtypeStruct((1, 8), np.int32))
        try:
            jax.eval_shape(lambda params, batch: attention_weights(params, self.config, Tokens.of(batch)), self.params, batch)
        except UserError:
            return False
        return True

    @property
    def group_size(self) -> int:
        """The number of items that are packed together."""
        return GROUP * self.mesh.size

    def require(self, part: str, what: str) -> None:
        """Raises UserError if the model does not have the `part`, or if the part was never trained. Random weights would return
        answers that look plausible.

        part: a subtree of the parameters, e.g. "mlm_head". what: the purpose of the part, for the message, e.g. "fill a
            [MASK]".
        """
        model = self.model
        if part not in model.params:
            has = ", ".join(model.parts) or "no head"
            raise UserError(f"{self.name} has no {part}, so it cannot {what} (it has {has}); name a model that can")
        if part in model.untrained:
            raise UserError(f"the {part} of {self.name} was never trained, so it cannot {what}; train it first")

    def require_direction(self, direction: str, what: str) -> None:
        """Raises UserError if `ModelConfig.direction` of the model is not `direction`. `what` is explained in `require`."""
        if self.config.direction != direction:
            reads = "reads from left to right" if direction == "both" else "reads both sides of a token"
            if self.config.kind.is_static:
                reads = "has the same vector for a token in every text"
            raise UserError(
                f"{self.name} {reads}, so it cannot {what}; name a model trained with config.model.direction={direction}"
            )

    def require_encoder(self) -> None:
        """Raises UserError for an encoder-decoder, because the sources that its encoder reads have no [CLS]."""
        if self.config.translates:
            raise UserError(
                f"{self.name} is an encoder-decoder, and its encoder reads no [CLS]; name an encoder, or use `predict translate` "
                "or `analyse attention`"
            )

    def require_attention(self, what: str, instead: str = "") -> None:
        """Raises UserError if the model has no attention or is an encoder-decoder. In the message, `what` is the purpose of the
        attention ("to measure"), and `instead` is a second remedy besides naming another model."""
        self.require_encoder()
        if not self.has_attention:
            remedy = f", or {instead}" if instead else ""
            raise UserError(
                f"{self.name} is a {self.config.encoder} model, which has no attention {what}; name a Transformer{remedy}"
            )

    def on_devices(self, rows: np.ndarray) -> jax.Array:
        """Splits the rows of an array over the devices. The number of rows must be a multiple of the number of devices."""
        return jax.device_put(rows, self._rows)

    def run(self, function: Callable[..., Any], items: Sequence[Item], per: Per, **static: Any) -> list[Any]:
        """Calls `function(params, batch, config=..., **static)` on batches of `items`. Returns one result per item, in order.

        function: decorated with `compiled`; it returns an array or a tuple of arrays.
        per: the meaning of the leading axes of these arrays. "text": [T, ...], one element per item; "position": [X, ...], one
            element per query position; "token": [B, L, ...], one element per token.
        """
        return list(self.stream(function, items, per, **static))

    def stream(self, function: Callable[..., Any], items: Iterable[Item], per: Per, **static: Any) -> Iterator[Any]:
        """Like `run`, but reads `items` in groups of `group_size`, so that memory does not grow with the number of items."""
        waiting = iter(items)
        while group := list(itertools.islice(waiting, self.group_size)):
            answers: list[Any] = [None] * len(group)
            with fits_in_memory(lambda: self._memory_advice(f"{counted(self.tokens, 'token')} per batch and device")):
                for packed, result in self._results(function, pack(group, self._batch_shape()), static):
                    _unpack(packed, result, group, per, answers)
            yield from answers

    def batches(self, function: Callable[..., Any], items: Iterable[Item], **static: Any) -> Iterator[Any]:
        """Like `stream`, but yields one result per batch instead of one result per item. It is meant for sums over a batch.

        A thread makes and packs the items while earlier batches are computed.
        """
        with fits_in_memory(lambda: self._memory_advice(f"{counted(self.tokens, 'token')} per batch and device")):
            yield from (result for _, result in self._results(function, self._packed_ahead(iter(items)), static))

    def _packed_ahead(self, items: Iterator[Item]) -> Iterator[Packed]:
        """Yields the batches of `items`. The next group is packed ahead, and leftover items go to the next group."""
        shape = self._batch_shape()

        def groups() -> Iterator[list[Packed]]:
            left: list[Item] = []
            while group := list(itertools.islice(items, GROUP_AHEAD * self.mesh.size)):
                packs, left = full_batches([*left, *group], shape)
                yield packs
            yield list(pack(left, shape))

        made = groups()
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="packing") as worker:
            coming = worker.submit(next, made, None)
            while (packs := coming.result()) is not None:
                coming = worker.submit(next, made, None)
                yield from packs

    def _memory_advice(self, batch: str = "") -> MemoryAdvice:
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        remedies = [] if on_cpu else ["JAX_PLATFORMS=cpu in the environment, which predicts on the CPU in smaller batches"]
        return MemoryAdvice(
            self.name, batch, [*remedies, *([f"from Python, engine.tokens below {self.tokens:,}"] if batch else [])]
        )

    def _results(
        self, function: Callable[..., Any], packs: Iterator[Packed], static: dict[str, Any]
    ) -> Iterator[tuple[Packed, Any]]:
        """Yields every batch with its result on the host. IN_FLIGHT batches run concurrently."""
        running: collections.deque[concurrent.futures.Future[tuple[Packed, Any]]] = collections.deque()

        def oldest() -> tuple[Packed, Any]:
            packed, result = running.popleft().result()
            return packed, jax.device_get(result)

        def wait(step: int) -> None:
            jax.block_until_ready([future.result()[1] for future in running])

        for packed in self.profile.trace_steps(packs, self.batch_count, wait):
            self.batch_count += 1
            if len(running) == IN_FLIGHT:
                yield oldest()
            running.append(self._workers.submit(self._run_batch, function, packed, static))
        while running:
            yield oldest()

    def _batch_shape(self) -> BatchShape:
        pad_id = self.model.tokenizer.pad_id
        return BatchShape(longest=self.config.max_position, tokens=self.tokens, devices=self.mesh.size, pad_id=pad_id)

    def _run_batch(self, function: Callable[..., Any], packed: Packed, static: dict[str, Any]) -> tuple[Packed, Any]:
        check_ids(self.config, **{k: packed.arrays[k] for k in ("input_ids", "token_type_ids", "position_ids")})
        batch = {name: jax.device_put(x, self._rows if x.ndim == 2 else self._whole) for name, x in packed.arrays.items()}
        batch["piece_kinds"] = self._kinds
        result = function(self.params, batch, config=self.config, **static)
        return packed, jax.block_until_ready(result) if self._waits else result


def _unpack(packed: Packed, result: Any, items: Sequence[Item], per: Per, answers: list[Any]) -> None:
    """Writes the part of `result` that belongs to item i to `answers[i]`. `result` is an array or a tuple of arrays."""
    if isinstance(result, tuple):
        parts = [answers.copy() for _ in result]
        for n, part in enumerate(parts):
            _unpack(packed, result[n], items, per, part)
        for i in packed.items:
            answers[i] = tuple(part[i] for part in parts)
        return
    flat = result.reshape(-1, *result.shape[2:]) if per == "token" else result
    for slot, i in enumerate(packed.items):
        if per == "text":
            answers[i] = flat[slot]
        elif per == "position":
            answers[i] = flat[packed.query_positions[slot]]
        else:
            answers[i] = flat[packed.starts[slot] : packed.starts[slot] + len(items[i].ids)]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Jits `function(params, batch, *, config, **static)`. Arguments after the batch are static unless they are arrays."""
    hints = function.__annotations__.items()
    names = [name for name, hint in hints if name not in ("params", "batch", "return") and "[Array" not in str(hint)]
    return functools.wraps(function)(jax.jit(function, static_argnames=names))
