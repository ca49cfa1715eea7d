"""`translate`: the translation of sources by an encoder-decoder, greedy or by beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.decoding import Decoding, Knobs, translated
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import power_of_two, row_length

PENALTIES = ("transformers", "gnmt")
"""How a hypothesis of n tokens is compared with others: its log-probability divided by n^a, or by ((5 + n) / 6)^a (Wu et al.,
arXiv:1609.08144, equation 14)."""
BEYOND = 50
"""Tokens of a target beyond those of its source, by default (arXiv:1706.03762, section 6.1)."""


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of a source."""

    ids: tuple[int, ...]
    """The ids of its tokens, without the end."""
    log_probability: float
    """The natural logarithm of its probability, without an end that the limit forced."""
    score: float
    """What hypotheses were compared by: the log-probability divided by the length penalty."""


def translate(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    beams: int = 4,
    length_penalty: float = 0.6,
    penalty: str = "gnmt",
    early_stopping: bool = False,
    max_length: int | None = None,
) -> list[Translation]:
    """Translates sources, which are ids with the end of the text as their last one.

    The defaults are the paper's (arXiv:1706.03762, section 6.1): a beam of 4, GNMT's length penalty of 0.6, and at most 50 tokens
    more than the source. `max_length` is the limit of all targets, their end included. The padding is never chosen, and a target
    at its limit is made to end, as by transformers' Marian. Sources of similar lengths are translated together.

    Raises UserError for a model that does not translate, a source that is empty or longer than the model's positions, and options
    out of range.
    """
    config, tokenizer = engine.config, engine.model.tokenizer
    if config.encoder != "encoder_decoder":
        raise UserError(f"{engine.name} does not translate: it has no decoder; use a model with encoder=encoder_decoder")
    if penalty not in PENALTIES:
        raise UserError(f"penalty={penalty!r} is unknown; use one of {', '.join(PENALTIES)}")
    if not 1 <= beams <= config.of_decoder.vocab_size // 2:
        raise UserError(f"beams={beams} must be between 1 and half of the {config.of_decoder.vocab_size:,} words of the target")
    most = config.max_position - 1
    if max_length is not None and not 1 <= max_length <= most:
        raise UserError(f"max_length={max_length} must be between 1 and {most}, the positions of {engine.name} after the start")
    for source in sources:
        if not 1 <= len(source) <= config.max_position:
            raise UserError(
                f"a source has {counted(len(source), 'token')}, and {engine.name} reads 1 to {config.max_position}; split it "
                "into sentences"
            )
    limits = [min(most, len(source) + BEYOND) if max_length is None else max_length for source in sources]
    pieces = None if config.decoder_vocab_size else tokenizer.size
    decoding = Decoding(
        tokenizer.sep_id, tokenizer.pad_id, beams=beams, gnmt_penalty=penalty == "gnmt", early_stopping=early_stopping,
        barred=(tokenizer.pad_id,), forced_end=True, pieces=pieces,
    )  # fmt: skip
    found: list[Translation] = [Translation((), 0.0, 0.0)] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    while order:
        length = row_length(len(sources[order[-1]]))
        room = row_length(max(limits[i] for i in order))
        rows = engine.mesh.size * max(1, engine.tokens // length)
        some, order = order[-rows:], order[:-rows]
        width = engine.mesh.size * power_of_two(-(-len(some) // engine.mesh.size))
        ids, real = np.zeros((width, length), np.int32), np.zeros((width, length), np.int32)
        real[:, 0] = 1  # rows without a source
        ends = np.ones(width, np.int32)
        for row, i in enumerate(some):
            ids[row, : len(sources[i])], real[row, : len(sources[i])], ends[row] = sources[i], 1, limits[i]
        columns = np.broadcast_to(np.minimum(np.arange(length, dtype=np.int32), config.max_position - 1), ids.shape)
        read = Tokens(*(engine.on_devices(x) for x in (ids, np.zeros_like(ids), columns, real)))
        knobs = Knobs(engine.on_devices(ends), length_penalty=length_penalty)
        chosen = jax.device_get(
            translated(
                engine.params, read, knobs, config=config, decoding=decoding, start_id=tokenizer.pad_id, room=room
            )
        )
        engine.batch_count += 1
        for row, i in enumerate(some):
            tokens = chosen.ids[row]
            end = int(np.flatnonzero(tokens == decoding.end_id)[0])
            total = float(chosen.log_probability[row])
            score = total if chosen.score is None else float(chosen.score[row])
            found[i] = Translation(tuple(tokens[:end].tolist()), total, score)
    return found
