"""Task heads. A task head is the layer that a labelled task puts on top of the encoder, with its loss.

In: hidden states of packed rows, and their labels. Out: logits, the loss and the accuracy of every label.

Each kind of head is a class in its own file. The class defines the positions that the head reads, the label arrays, the loss
and accuracy, and the name of the layer in original checkpoints. Code in other folders only calls the methods of a head and
never checks its kind. To add a kind, write a file such as `token.py`, and add it to the list below and to `KINDS`.

    pretraining_heads.py  the pooler, and the heads for masked language modelling and next sentence prediction
    outputs.py            Outputs: the loss, accuracy and predictions of classification, multi-label classification and regression
    head.py               TaskHead: the interface of all kinds; the defaults are for a head that reads the [CLS] of each text
    sequence.py           SequenceHead: classification or regression of a text or a pair
    token.py              TokenHead: a label for every token
    span.py               SpanHead: the first and the last token of an answer
    choice.py             ChoiceHead: a score for each candidate
    mention.py            MentionHead: the name that a pronoun refers to
    bert_with_head.py     BertWithHead: the encoder with a task head, and its initial parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from bert_jax.interface.named import load_named
from bert_jax.interface.ranges import OneOf, check_value

if TYPE_CHECKING:  # loaded with the first head that is used
    from bert_jax.model.heads.head import TaskHead

KINDS: Mapping[str, str] = {
    "sequence": "bert_jax.model.heads.sequence:SequenceHead",
    "token": "bert_jax.model.heads.token:TokenHead",
    "span": "bert_jax.model.heads.span:SpanHead",
    "choice": "bert_jax.model.heads.choice:ChoiceHead",
    "mention": "bert_jax.model.heads.mention:MentionHead",
}
"""Kind of head -> location of the class."""
HEAD_PARTS = tuple(f"{kind}_head" for kind in KINDS)
"""The branches of the parameter tree that are task heads (`TaskHead.subtree`)."""
PROBLEMS = ("classification", "regression", "multi_label")
"""The names in `outputs.OUTPUTS`."""

# The accepted values of a head's settings.
POOLINGS = ("pooler", "concat", "last_token", "cls", "mean", "late")
CRFS = ("none", "free", "iob2")
INPUTS = ("pooling", "layers", "lstm", "mix_at", "crf")
"""The fields that make the head's layer or the input of the layer differ from the paper."""
MIX_PLACES = ("input", "output", "both")
LAYERS = (
    "last", "second_to_last", "embeddings", "last_four_sum", "last_four_concat", "all_sum", "scalar_mix", "last_four_mix",
    "embeddings_and_last",
)  # fmt: skip


def head_class(kind: str) -> type[TaskHead]:
    """Returns the class of a kind of head. Raises UserError for an unknown kind."""
    check_value("head.kind", kind, Annotated[str, OneOf(tuple(KINDS))])
    found: type[TaskHead] = load_named(kind, KINDS, "head.kind")
    return found


def head_classes() -> dict[str, type[TaskHead]]:
    """Returns the classes of all kinds of heads, by name."""
    return {kind: head_class(kind) for kind in KINDS}


def make_head(kind: str, **fields: Any) -> TaskHead:
    """Returns a head of this kind with the given `TaskHead` fields. Raises UserError if the kind is unknown, or if it does not
    support the combination of fields."""
    return head_class(kind)(**fields)
