"""The head for token classification (paper Figure 4d), applied to every token."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Bool, Num

from bert_jax.data.rows import LabelLayout
from bert_jax.errors import UserError
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.tokens import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenHead(TaskHead):
    """Predicts a label for every token, with logits [B, L, C].

    If crf is "iob2", raises UserError if the labels follow another scheme, or if no label may start a text.
    """

    kind = "token"
    has_labels = True
    settings = ("lstm", "mix_at", "crf")
    per_token = True
    action = "tag words"
    command = 'tag --model={} "A text."'
    typical_labels = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crf != "iob2":
            return
        if others := [label for label in self.labels if label != "O" and label[:2] not in ("B-", "I-")]:
            raise UserError(
                f"head.crf='iob2' requires labels O, B-X and I-X, not {others[0]!r}; set head.crf='free', or "
                "config.task.scheme='IOB2' to convert tags of other schemes"
            )
        if all(label.startswith("I-") for label in self.labels):
            raise UserError("head.crf='iob2' needs a label that may start a text, O or B-X; set head.crf='free'")

    def excluded_transitions(self) -> tuple[Bool[np.ndarray, "C C"], Bool[np.ndarray, " C"]]:
        """Returns the transitions that a CRF never predicts. The first array is True if label `after` may not follow label
        `before` [before, after]. The second array is True if a label may not start a text."""
        inside = np.array([self.crf == "iob2" and label.startswith("I-") for label in self.labels])
        types = np.array([label[2:] if label != "O" else None for label in self.labels])
        return inside & (types[:, None] != types), inside

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, L]."""
        return LabelLayout(per_token=True, logits_per_token=True)

    def feature_counts(self, batch: Batch) -> Num[Array, "B ..."]:
        """Returns the number of sequences in each row, [B]. Each sequence is a feature. Sequence ids start at 1, so this number
        is the largest id in the row."""
        return batch["sequence_ids"].max(axis=1)
