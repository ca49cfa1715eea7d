"""The flags of `analyse attention`."""

from __future__ import annotations

from bert_jax.analysis.flags import FORMATS, text_flags
from bert_jax.interface.flags import FlagParser, names_with_commas, nonempty


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the verb."""
    text_flags(parser)
    form, of_format = names_with_commas(("html", *FORMATS)), "html is a page; png, pdf and svg are figures"
    parser.group("output").add_argument("--format", type=form, default=("html",), metavar="F,F", help=of_format)
    own = parser.group("attention")
    of_head = "a head to draw, and with which the page opens; may be repeated"
    own.add_argument("--head", type=nonempty, action="append", default=[], metavar="LAYER-HEAD", help=of_head)
    own.add_argument("--pieces", action="store_true", help="draw figures of pieces instead of words")
