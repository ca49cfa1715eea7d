"""The flags of `analyse attention`."""

from __future__ import annotations

from annotated_types import Interval

from bert_jax.analysis.flags import text_flags
from bert_jax.interface.flags import FlagParser, format_flag, names_with_commas, nonempty
from bert_jax.interface.ranges import InRange

PARTS = {
    "encoder": "source words attend to source words",
    "decoder": "target words attend to themselves and to earlier target words",
    "cross": "target words attend to source words",
}
"""Maps each part of the attention of an encoder-decoder (arXiv:1706.03762, section 3.2.3) to its description."""
_LAYER = Interval(ge=1, le=2**31 - 1)


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    text_flags(parser)
    format_flag(parser.group("output"), pages=True)
    own = parser.group("attention")
    of_head = "a head to draw; the page opens with it; may be repeated"
    own.add_argument("--head", type=nonempty, action="append", default=[], metavar="LAYER-HEAD", help=of_head)
    own.add_argument("--pieces", action="store_true", help="draw figures of pieces instead of words")
    of_pair = parser.group("encoder-decoders", "The texts are a source and a target; without a target, the model translates.")
    of_part = "the attention of the encoder, of the decoder, or of the decoder on the encoder (default: encoder,decoder,cross)"
    of_pair.add_argument("--part", type=names_with_commas([*PARTS]), metavar="P,P", help=of_part)
    of_layer = "the layer of the decoder whose mean over heads aligns the words (default: the one with the largest weights)"
    of_pair.add_argument("--alignment-layer", type=InRange(int, _LAYER), metavar="N", help=of_layer)
