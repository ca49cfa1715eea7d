"""`TaskHead`: what every kind of task head answers, with the answers of a head that reads the [CLS] of each text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from jaxtyping import Array, Float, Int, Num, Shaped

from bert_jax.errors import UserError
from bert_jax.examples.labelled import LabelLayout
from bert_jax.heads.outputs import OUTPUTS, PROBLEMS, Outputs
from bert_jax.interface.ranges import Dropout, OneOf, check_ranges
from bert_jax.model.config import MOST_WIDE
from bert_jax.model.layers import gather_positions

Batch = Mapping[str, Shaped[Array, " ..."]]
"""The arrays of a batch by their names (`examples/labelled.py`, `prediction/packing.py`)."""
Pooling = Callable[[Float[Array, "B P D"]], Float[Array, "B P D"]]
"""The pooler, a function of the [CLS] of each sequence."""
POOLINGS = ("pooler", "concat")
LAYERS = (
    "last", "second_to_last", "embeddings", "last_four_sum", "last_four_concat", "all_sum", "scalar_mix", "last_four_mix",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskHead:
    """The layer that a labelled task puts on top of the encoder (paper section 4 and Figure 4), and what it reads.

    The defaults are the paper's fine-tuning; `layers` and `lstm` are its feature-based approach (section 5.3, Table 7). A kind of
    head is a subclass in a file of its own, listed in `registry.py`; everything that differs between kinds is answered here or
    overridden there, so no other module asks for the kind.

    Raises UserError on a problem, labels and inputs that do not go together.
    """

    kind: ClassVar[str]
    """What settings, tasks and the model's `config.json` call it, and `part` is made of."""
    has_labels: ClassVar[bool] = False
    """Whether its outputs have names, the labels."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Those of the settings `problem`, `pooling` and `lstm` that this kind has; the others keep their defaults."""
    per_token: ClassVar[bool] = False
    """Whether it answers for every token; else for every text."""
    has_dropout: ClassVar[bool] = True
    """Whether the model's hidden dropout applies before the layer where `dropout` is None."""
    reads_pairs: ClassVar[bool] = False
    """Whether a text may be a pair, so that a model says whether it was trained on pairs."""

    question: ClassVar[str]
    """What `predict` asks it, the end of "so it cannot ...": "classify"."""

    architecture: ClassVar[str] = ""
    """transformers' class of it; "" where no class has it."""
    module: ClassVar[str] = ""
    """The module of that class that is the layer."""
    original_variable: ClassVar[str] = ""
    """The layer's kernel in a checkpoint of the original; "" where the original has no such head."""

    typical_labels: ClassVar[int] = 0
    """Labels of a head that stands for any task's where costs are estimated: their number does not change what counts."""
    typical_candidates: ClassVar[int] = 1
    """Sequences of one of its examples, likewise."""

    labels: tuple[str, ...] = ()
    """The names of the outputs of a sequence, token or mention head, by id; a regression has one."""
    problem: Annotated[str, OneOf(PROBLEMS)] = "classification"
    """What a sequence head's outputs are: "classification" (one label of several), "multi_label" (any number), "regression"."""
    dropout: Dropout | None = None
    """Dropout before the layer; None is the model's `hidden_dropout`, and for a span head no dropout."""
    pooling: Annotated[str, OneOf(POOLINGS)] = "pooler"
    """How a sequence head reads a text: "pooler", the trained layer on its [CLS], or "concat", the [CLS], the mean and the
    maximum of its tokens side by side (ULMFiT, arXiv:1801.06146, section 3.3)."""
    layers: Annotated[str, OneOf(LAYERS)] = "last"
    """Whose hidden states are read: those of the "last", the "second_to_last" or no layer ("embeddings"), the sum of the last
    four or of all layers, the last four side by side ("last_four_concat"), or a trained average of the last four
    ("last_four_mix") or of embeddings and all layers ("scalar_mix": ELMo, arXiv:1802.05365, section 3.2)."""
    lstm: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    """Width of each direction of a two-layer bidirectional LSTM between the encoder and a token head; 0 is none."""

    def __post_init__(self) -> None:
        check_ranges(self, "head")
        if self.has_labels and not self.labels:
            raise UserError(f"a {self.kind} head needs labels; name at least one")
        if not self.has_labels and self.labels:
            raise UserError(f"a {self.kind} head has no labels, but was given {len(self.labels)}; leave them out")
        for name in ("problem", "pooling", "lstm"):
            if name not in self.settings and getattr(self, name) != getattr(TaskHead, name):
                owners = " or ".join(kind.kind for kind in TaskHead.__subclasses__() if name in kind.settings)
                raise UserError(
                    f"head.{name}={getattr(self, name)!r} is for a {owners} head, not for a {self.kind} head; leave it out"
                )
        if self.layers == "last_four_concat" and self.reads_pooler:
            raise UserError(
                "head.layers='last_four_concat' is four times as wide as what the pooler reads; set head.layers='last_four_sum'"
                + (" or head.pooling='concat'" if "pooling" in self.settings else "")
            )

    @classmethod
    def typical(cls) -> TaskHead:
        """A head that stands for any task's where costs are estimated."""
        return cls(labels=tuple(map(str, range(cls.typical_labels))))

    # ------------------------------------------------------------------------------------------------------ names and sizes

    @property
    def part(self) -> str:
        """The branch of the parameter tree that the layer is."""
        return f"{self.kind}_head"

    @property
    def num_outputs(self) -> int:
        """C, the outputs of the layer."""
        return len(self.labels)

    @property
    def reads_pooler(self) -> bool:
        """Whether its input is the pooled [CLS]."""
        return False

    @property
    def reads_last_at_positions(self) -> bool:
        """Whether it reads the last layer, and that at few positions of a row only."""
        return not self.per_token and self.pooling == "pooler" and self.layers == "last"

    @property
    def is_plain(self) -> bool:
        """Whether it is the one layer of the paper's Figure 4 on what the last layer gives, as transformers' class is."""
        return bool(self.architecture) and (self.pooling, self.layers, self.lstm) == ("pooler", "last", 0)

    @property
    def results_per(self) -> Literal["text", "place", "token"]:
        """What `prediction/engine.py` gets logits for: every token, every group of `read_positions`, or every text."""
        return "token" if self.per_token else "place" if self.layout.read_positions else "text"

    def mixed_layers(self, num_layers: int) -> int:
        """How many hidden states it weighs, 0 where it weighs none."""
        return {"scalar_mix": num_layers + 1, "last_four_mix": 4}.get(self.layers, 0)

    def token_width(self, hidden_size: int) -> int:
        """I, the width of what it reads of a token."""
        return hidden_size * (4 if self.layers == "last_four_concat" else 1)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of what the layer itself reads."""
        return 2 * self.lstm if self.lstm else self.token_width(hidden_size)

    def has_same_answers(self, other: TaskHead) -> bool:
        """Whether the outputs of both mean the same, whatever they read."""
        return (self.kind, self.labels, self.problem) == (other.kind, other.labels, other.problem)

    # ------------------------------------------------------------------------------------------------------------- its rows

    @property
    def outputs(self) -> Outputs:
        """How its logits become a loss and predictions."""
        return OUTPUTS[self.problem]

    @property
    def layout(self) -> LabelLayout:
        """Which arrays the labels of packed rows are."""
        return LabelLayout()

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch, pooler: Pooling) -> Float[Array, "B _ O"]:
        """What the layer reads, [B, P, O] or of every token [B, L, O], from the features of all tokens."""
        if self.per_token:
            return tokens
        return self.inputs_at(gather_positions(tokens, self.positions(batch)), pooler)

    def positions(self, batch: Batch) -> Int[Array, "B Q"]:
        """The positions that a head which reads few tokens reads."""
        return batch["cls_positions"]

    def inputs_at(self, tokens: Float[Array, "B Q I"], pooler: Pooling) -> Float[Array, "B P O"]:
        """What the layer reads from the features of the tokens at `positions`."""
        return pooler(tokens) if self.reads_pooler else tokens

    # ----------------------------------------------------------------------------------------------------------- its training

    def feature_counts(self, batch: Batch) -> Num[Array, "B ..."]:
        """How many features (`examples/labelled.py`) with a label are in a batch, as an array whose sum that is."""
        return batch["label_weights"]

    def answer_scores(self, logits: Float[Array, "B _ C"], batch: Batch) -> Float[Array, "B ..."]:
        """Logits with the answers to choose from on the last axis, and EXCLUDED where an answer does not exist."""
        return logits

    def loss(self, scores: Float[Array, "B ..."], labels: Num[Array, "B ..."], smoothing: float) -> Float[Array, "B ..."]:
        """The loss of every label, in the shape of the batch's label_weights, from `answer_scores`."""
        return self.outputs.loss(scores, labels, smoothing)

    def soft_loss(
        self, scores: Float[Array, "*shape"], teacher_scores: Float[Array, "*shape"], temperature: float
    ) -> Float[Array, "B ..."]:
        """The loss against a teacher's `answer_scores`, in the same shape."""
        return self.outputs.soft_loss(scores, teacher_scores, temperature)

    def correct(self, scores: Float[Array, "B ..."], labels: Num[Array, "B ..."]) -> Float[Array, "B ..."]:
        """1 for a right answer, else 0, in the same shape; the mean is the accuracy that training logs."""
        return self.outputs.correct(scores, labels)
