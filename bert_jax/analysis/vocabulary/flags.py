"""The options of `analyse vocabulary`, and its flags."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.interface.flags import FlagParser, add_option_flags, flag, format_flag


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
    """The options of the command `vocabulary`."""

    corpus: str | None = flag(None, "a corpus built by the command `corpus`, to count the pieces in", "DIR")
    new_words: Annotated[int, Interval(ge=1, le=100_000)] | None = flag(
        None, "list the N most frequent words of the corpus that the vocabulary splits", "N"
    )
    names: str | None = flag(None, "names to look for among the pieces, one per line", "FILE")


def add_flags(parser: FlagParser) -> None:
    """Adds the flags of the command."""
    format_flag(parser.group("output"))
    add_option_flags(parser.group("vocabulary"), VocabularyOptions)
