"""The flags of `analyse attention`."""

from __future__ import annotations

import argparse

from bert_jax.analysis.flags import FORMATS, text_flags
from bert_jax.interface.flags import names_with_commas, nonempty


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the verb."""
    text_flags(parser)
    form, help_of_format = names_with_commas(("html", *FORMATS)), "html: a page; png, pdf, svg: pictures (html)"
    parser.add_argument("--format", type=form, default=("html",), metavar="F,F", help=help_of_format)
    head_help = "a picture of it, where the page opens; may be repeated"
    parser.add_argument("--head", type=nonempty, action="append", default=[], metavar="LAYER-HEAD", help=head_help)
    parser.add_argument("--pieces", action="store_true", help="pictures of pieces instead of words")
