"""The options of `analyse attention`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.analysis.flags import text_flags
from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag
from bert_jax.interface.ranges import OneOf

PARTS = {
    "encoder": "source words attend to source words",
    "decoder": "target words attend to themselves and to earlier target words",
    "cross": "target words attend to source words",
}
"""Maps each part of the attention of an encoder-decoder (arXiv:1706.03762, section 3.2.3) to its description."""


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """The options of the command `attention`."""

    heads: tuple[str, ...] = flag((), "a head to draw; the page opens with it; may be repeated", "LAYER-HEAD", "--head")
    """The names of the heads to draw. () writes all heads to the JSON file, and draws only the overview."""
    in_words: bool = flag(True, "draw figures of pieces instead of words", name="--pieces")
    parts: tuple[Annotated[str, OneOf(tuple(PARTS))], ...] = flag(
        (),
        "the attention of the encoder, of the decoder, or of the decoder on the encoder (default: encoder,decoder,cross)",
        "P,P",
        "--part",
    )
    """The parts of the attention of an encoder-decoder. () means all PARTS."""
    alignment_layer: Annotated[int, Interval(ge=1, le=2**31 - 1)] | None = flag(
        None, "the layer of the decoder whose mean over heads aligns the words (default: the one with the largest weights)", "N"
    )


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    text_flags(parser)
    format_flag(parser.group("output"), pages=True)
    add_option_flags(parser.group("attention"), AttentionOptions, "heads", "in_words")
    of_pair = parser.group("encoder-decoders", "The texts are a source and a target; without a target, the model translates.")
    add_option_flags(of_pair, AttentionOptions, "parts", "alignment_layer")
