"""The keys of `config.distillation`. The keys of an objective, `config.objective_options`, are the fields of the objective's
class."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.interface.ranges import Fraction, OneOf, check_ranges
from bert_jax.model.config import DTYPES, MOST_WIDE

LAYER_MAPS = ("uniform", "last")
LossWeight = Annotated[float, Interval(ge=0, le=1e6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingDistillation:
    """The settings of distillation in pretraining. `config.teacher` names the teacher.

    The loss is (1 - soft_weight) x hard + soft_weight x soft targets + the rest + hidden_weight x hidden states +
    attention_weight x attention maps. "Hard" is the objective's own loss of the words, such as the MLM loss
    (`Objective.hard_loss`). "The rest" is not distilled, such as the NSP loss.
    """

    temperature: Annotated[float, Interval(ge=0.01, le=1_000)] = 2.0
    """The divisor of both models' logits in the soft-target loss. The loss is multiplied by temperature**2."""
    soft_weight: Fraction = 0.5
    """The weight of KL(teacher || student) at the predicted tokens. The objective's own loss of these tokens, such as the MLM
    loss, has the weight 1 - soft_weight. If soft_weight is 0, the teacher needs no head."""
    hidden_weight: LossWeight = 0.0
    """The weight of the mean squared difference of hidden states, through a learned projection if the widths differ."""
    attention_weight: LossWeight = 0.0
    """The weight of KL(teacher || student) of each token's attention, averaged over heads. Both models need the same number of
    heads, and the student needs plain attention, which keeps its attention maps in memory. If the teacher has at most half as
    many layers as the student, some layers of the student are matched with the teacher's embeddings. These layers learn no
    attention map."""
    layers: Annotated[str, OneOf(LAYER_MAPS)] = "uniform"
    """The layers whose hidden states and attention maps are compared. "uniform": every layer of the student is compared with a
    layer of the teacher, and the embeddings are compared too. The teacher's layers are evenly spaced. "last": only the last
    layers are compared."""
    dtype: Annotated[str, OneOf(("", *DTYPES))] = ""
    """The dtype of the teacher's matrix products. Empty: the student's dtype (`model.dtype`)."""
    teacher_width: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    """The teacher's hidden size, which determines the shape of the projection. Filled in by a run."""
    teacher_sha256: str = ""
    """The hash of the teacher's weights, filled in by a run. A resumed run must have the same teacher."""

    def __post_init__(self) -> None:
        check_ranges(self, "distillation")

    @property
    def compares_layers(self) -> bool:
        """Whether hidden states or attention maps are compared."""
        return bool(self.hidden_weight or self.attention_weight)

    def projects(self, hidden_size: int) -> bool:
        """Returns whether a student of this width has a learned projection."""
        return self.hidden_weight > 0 and self.teacher_width not in (0, hidden_size)
