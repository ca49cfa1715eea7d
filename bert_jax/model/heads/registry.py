"""The kinds of task heads by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from bert_jax.interface.named import load_named
from bert_jax.interface.ranges import OneOf, check_value
from bert_jax.model.heads import KINDS
from bert_jax.model.heads.head import TaskHead

HEADS: Mapping[str, type[TaskHead]] = {kind: load_named(kind, KINDS, "head.kind") for kind in KINDS}


def head_class(kind: str) -> type[TaskHead]:
    """Returns the class of a kind of head. Raises UserError for an unknown kind."""
    check_value("head.kind", kind, Annotated[str, OneOf(tuple(HEADS))])
    return HEADS[kind]


def make_head(kind: str, **fields: Any) -> TaskHead:
    """Returns a head of this kind with the given `TaskHead` fields. Raises UserError for an unknown kind or a combination of
    fields that the kind does not support."""
    return head_class(kind)(**fields)
