"""The kinds of task heads by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from bert_jax.interface.ranges import OneOf, check_value
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead

HEADS: Mapping[str, type[TaskHead]] = {
    head.kind: head for head in (SequenceHead, TokenHead, SpanHead, ChoiceHead, MentionHead)
}
HEAD_PARTS = tuple(f"{kind}_head" for kind in HEADS)
"""The branches of the parameter tree that are task heads (`TaskHead.part`)."""


def head_class(kind: str) -> type[TaskHead]:
    """The class of a kind of head. Raises UserError for an unknown kind."""
    check_value("head.kind", kind, Annotated[str, OneOf(tuple(HEADS))])
    return HEADS[kind]


def make_head(kind: str, **fields: Any) -> TaskHead:
    """A head of this kind with these fields of `TaskHead`. Raises UserError for an unknown kind, and for a combination of fields
    that the kind does not support."""
    return head_class(kind)(**fields)
