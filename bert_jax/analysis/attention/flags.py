"""The flags of `analyse attention`."""

from __future__ import annotations

from bert_jax.analysis.flags import text_flags
from bert_jax.interface.flags import FlagParser, format_flag, nonempty


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    text_flags(parser)
    format_flag(parser.group("output"), pages=True)
    own = parser.group("attention")
    of_head = "a head to draw, and to open the page with; may be repeated"
    own.add_argument("--head", type=nonempty, action="append", default=[], metavar="LAYER-HEAD", help=of_head)
    own.add_argument("--pieces", action="store_true", help="draw figures of pieces instead of words")
