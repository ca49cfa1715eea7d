"""`TaskHead`, the interface of all task heads. The defaults are for a head that reads the [CLS] of each text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Bool, Float, Int, Num

from bert_jax.data.rows import LabelLayout
from bert_jax.errors import UserError
from bert_jax.interface.ranges import Dropout, OneOf, check_ranges
from bert_jax.model.config import MOST_WIDE, ModelConfig
from bert_jax.model.heads import CRFS, LAYERS, MIX_PLACES, POOLINGS, PROBLEMS, head_classes
from bert_jax.model.heads.outputs import OUTPUTS, Outputs
from bert_jax.model.layers import gather_positions
from bert_jax.model.tokens import Batch

CONCATENATED = {"last_four_concat": 4, "embeddings_and_last": 2}
"""Value of `TaskHead.layers` that concatenates hidden states -> the number of hidden states."""
Pooling = Callable[[Float[Array, "B P D"]], Float[Array, "B P D"]]
"""A pooler: (hidden states of the [CLS] tokens) -> pooled vectors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskHead:
    """The output layer of a labelled task (paper section 4 and Figure 4), and the settings that choose its input.

    The defaults are the paper's fine-tuning. `layers` and `lstm` are for the paper's feature-based approach (section 5.3, Table
    7). Each kind of head is a subclass in its own file, listed in `heads.KINDS`. A subclass overrides the properties and
    methods below that differ from these defaults, so that no other module compares kinds.

    Raises UserError if the kind does not support the combination of problem, labels and inputs.
    """

    kind: ClassVar[str]
    """The name of the kind, used in settings, tasks, the model's `config.json` and `subtree`."""
    has_labels: ClassVar[bool] = False
    """Whether the outputs are named labels."""
    settings: ClassVar[tuple[str, ...]] = ()
    """The settings among `problem`, `pooling`, `lstm`, `mix_at` and `crf` that this kind supports. The other settings keep
    their defaults."""
    per_token: ClassVar[bool] = False
    """Whether there are logits for every token instead of every text."""
    has_dropout: ClassVar[bool] = True
    """Whether the model's hidden dropout applies before the layer if `dropout` is None."""
    reads_pairs: ClassVar[bool] = False
    """Whether a text may be a pair. If so, the model's configuration records whether the model was trained on pairs."""

    action: ClassVar[str]
    """What `predict` does with this head, e.g. "classify". Messages use it, such as "so it cannot classify". The kinds with the
    same action are used by the same command of `predict`."""
    command: ClassVar[str]
    """The arguments of `predict` in the card of a model with this head. {} is the model's directory."""

    original_variable: ClassVar[str] = ""
    """The name of the layer's kernel in an original TensorFlow checkpoint. "" if there is none."""

    typical_labels: ClassVar[int] = 0
    """The number of labels of the head that `typical` returns. This number hardly affects the cost of a step."""
    typical_candidates: ClassVar[int] = 1
    """The number of sequences per example for the head that `typical` returns."""

    labels: tuple[str, ...] = ()
    """The label names of a sequence, token or mention head, by id. A regression has one name."""
    problem: Annotated[str, OneOf(PROBLEMS)] = "classification"
    """The problem type of a sequence head: "classification" (one of several labels), "multi_label" (any number of labels) or
    "regression"."""
    dropout: Dropout | None = None
    """Dropout before the layer. None: the model's `hidden_dropout`, or no dropout for a span head."""
    pooling: Annotated[str, OneOf(POOLINGS)] = "pooler"
    """The input of a sequence head. "pooler": the output of the pooler for [CLS]. "concat": the concatenation of the [CLS], the
    mean over the tokens of the text and the maximum over these tokens (ULMFiT, arXiv:1801.06146, section 3.3). With an `lstm`,
    the final states of both directions replace the pooler's output and the [CLS], and the pooler is not used. "last_token": the
    hidden state of the text's last token, [SEP], without the pooler. Use "last_token" for left-to-right models, because their
    [CLS] sees no text (GPT, Radford et al. 2018, section 3.2). For a sequence or choice head without an `lstm`, "cls", "mean"
    and "late" set the model's `classifier_pooling`. If the model already has one of these, "pooler" keeps it."""
    layers: Annotated[str, OneOf(LAYERS)] = "last"
    """The hidden states that the head reads. "last", "second_to_last": one layer. "embeddings": the input of the first layer.
    "last_four_sum": the sum of the last four layers. "all_sum": the sum of all layers. "last_four_concat": the concatenation of
    the last four layers. "embeddings_and_last": the concatenation of the embeddings and the last layer (CoVe, arXiv:1708.00107,
    section 4). "last_four_mix": a trained weighted average of the last four layers. "scalar_mix": a trained weighted average of
    the embeddings and all layers (ELMo, arXiv:1802.05365, section 3.2)."""
    lstm: Annotated[int, Interval(ge=0, le=MOST_WIDE)] = 0
    """The width of each direction of a two-layer bidirectional LSTM between the encoder and the output layer of a sequence,
    token or span head ("+ BiLSTM" in the paper's Table 5, and its section 5.3). 0: no LSTM. The state of the LSTM is reset
    between texts."""
    mix_at: Annotated[str, OneOf(MIX_PLACES)] = "input"
    """Where a token or span head with an `lstm` uses the hidden states of `layers`. "input": as the input of the LSTM.
    "output": concatenated with the output of the LSTM. The LSTM then reads the encoder's embeddings. "both": at both places.
    Each place has its own weighted average (TagLM, arXiv:1705.00108, section 2.4; ELMo, section 3.3)."""
    crf: Annotated[str, OneOf(CRFS)] = "none"
    """For token heads. "none": each word is predicted independently, as in the paper. "free": a conditional random field over the
    words of a text, trained by the log-likelihood of the label sequence and decoded with the Viterbi algorithm (arXiv:1508.01991;
    `model/crf.py`). "iob2": the same, but I-X is only predicted after B-X or I-X."""

    def __post_init__(self) -> None:
        check_ranges(self, "head")
        if self.has_labels and not self.labels:
            raise UserError(f"a {self.kind} head needs labels; name at least one")
        if not self.has_labels and self.labels:
            raise UserError(f"a {self.kind} head has no labels, but was given {len(self.labels)}; leave them out")
        for name in ("problem", "pooling", "lstm", "mix_at", "crf"):
            if name not in self.settings and getattr(self, name) != getattr(TaskHead, name):
                *others, last = sorted(kind.kind for kind in head_classes().values() if name in kind.settings)
                owners = f"{', '.join(others)} or {last}" if others else last
                raise UserError(
                    f"head.{name}={getattr(self, name)!r} is for a {owners} head, not for a {self.kind} head; leave it out"
                )
        if self.mix_at != "input" and not self.lstm:
            raise UserError(f"head.mix_at={self.mix_at!r} needs an LSTM; set head.lstm too")
        if self.layers in CONCATENATED and self.reads_pooler:
            times, other = {4: ("four times", "last_four_sum"), 2: ("twice", "last")}[CONCATENATED[self.layers]]
            raise UserError(
                f"head.layers={self.layers!r} is {times} as wide as the pooler's input; set head.layers={other!r}"
                + (" or head.pooling='concat'" if "pooling" in self.settings else "")
            )
        if self.pooling == "last_token" and self.lstm:
            raise UserError(
                f"head.lstm={self.lstm} reads the final state of each direction, so head.pooling=last_token has no "
                "effect; leave one of them out"
            )

    @classmethod
    def typical(cls) -> TaskHead:
        """Returns a head of this kind for cost estimates that have no task."""
        return cls(labels=tuple(map(str, range(cls.typical_labels))))

    # ------------------------------------------------------------------------------------------------------ names and sizes

    @property
    def subtree(self) -> str:
        """The key of the head's parameters."""
        return f"{self.kind}_head"

    @property
    def num_outputs(self) -> int:
        """C, the number of outputs of the layer."""
        return len(self.labels)

    @property
    def reads_pooler(self) -> bool:
        """Whether the input is the output of the pooler."""
        return False

    def has_pooler(self, config: ModelConfig) -> bool:
        """Returns whether the head uses the "pooler" parameters. Heads that read a pooled [CLS] use the pooler. If
        `classifier_pooling` is "cls" or "mean" and the MLM head has a dense layer and a norm, these layers are the pooler (see
        `Architecture.classifier_pooling`). Token-level heads then use the pooler too, unless they have an LSTM, a CRF or a
        value of `layers` other than "last"."""
        if config.classifier_pooling in ("cls", "mean") and config.mlm_head == "bert" and self.per_token:
            return self.is_plain
        return self.reads_pooler

    @property
    def reads_last_at_positions(self) -> bool:
        """Whether the head reads only the last layer, and only at a few positions per row."""
        return not self.per_token and self.pooling != "concat" and (self.layers, self.lstm) == ("last", 0)

    @property
    def is_plain(self) -> bool:
        """Whether the head is a single layer on the output of the last layer (paper Figure 4), as in the classes of
        transformers."""
        return (self.pooling, self.layers, self.lstm, self.crf) == ("pooler", "last", 0, "none")

    @property
    def has_crf(self) -> bool:
        """Whether a CRF predicts the labels of a text jointly."""
        return self.crf != "none"

    @property
    def results_per(self) -> Literal["text", "position", "token"]:
        """The unit that has its own logits in `prediction/engine.py`. It is a token, a position (a group of `read_positions`)
        or a text."""
        return "token" if self.per_token else "position" if self.layout.read_positions else "text"

    def mixed_layers(self, num_layers: int) -> int:
        """Returns the number of hidden states in the trained weighted average, or 0 if `layers` is not a weighted average."""
        return {"scalar_mix": num_layers + 1, "last_four_mix": 4}.get(self.layers, 0)

    def token_width(self, hidden_size: int) -> int:
        """I, the width of a token's features."""
        return hidden_size * CONCATENATED.get(self.layers, 1)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of the layer's input."""
        skipped = self.token_width(hidden_size) if self.mix_at != "input" else 0
        return 2 * self.lstm + skipped if self.lstm else self.token_width(hidden_size)

    def has_same_outputs(self, other: TaskHead) -> bool:
        """Returns whether the outputs of both heads have the same meaning. The inputs of the heads may differ."""
        return (self.kind, self.labels, self.problem) == (other.kind, other.labels, other.problem)

    # ------------------------------------------------------------------------------------------------------ inputs and labels

    @property
    def outputs(self) -> Outputs:
        """The `Outputs` of this head's `problem`, with its loss and its predictions."""
        return OUTPUTS[self.problem]

    @property
    def layout(self) -> LabelLayout:
        """The label arrays of packed rows. Default: labels int32 [B, P]."""
        return LabelLayout()

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch, pooler: Pooling) -> Float[Array, "B _ O"]:
        """Computes the input of the layer from the features of all tokens. The shape is [B, P, O], or [B, L, O] if the head has
        logits for every token."""
        if self.per_token:
            return tokens
        return self.inputs_at(gather_positions(tokens, self.positions(batch)), pooler)

    def positions(self, batch: Batch) -> Int[Array, "B Q"]:
        """Returns the positions of the tokens that the head reads. Only heads without logits for every token use this. Default:
        the [CLS] tokens."""
        return batch["cls_positions"]

    def inputs_at(self, tokens: Float[Array, "B Q I"], pooler: Pooling) -> Float[Array, "B P O"]:
        """Computes the input of the layer from the features of the tokens at `positions`."""
        return pooler(tokens) if self.reads_pooler else tokens

    def excluded_transitions(self) -> tuple[Bool[np.ndarray, "C C"], Bool[np.ndarray, " C"]]:
        """Returns the transitions that a CRF never predicts. The first array is True if label `after` may not follow label
        `before` [before, after]. The second array is True if a label may not start a text. Default: all transitions are
        allowed."""
        return np.zeros((self.num_outputs, self.num_outputs), bool), np.zeros(self.num_outputs, bool)

    # -------------------------------------------------------------------------------------------------------------- training

    def feature_counts(self, batch: Batch) -> Num[Array, "B ..."]:
        """Returns an array whose sum is the number of labelled features (`data/rows.py`) in a batch."""
        return batch["label_weights"]

    def answer_scores(self, logits: Float[Array, "B _ C"], batch: Batch) -> Float[Array, "B ..."]:
        """Returns the logits with the possible answers on the last axis. Answers that do not exist have the logit EXCLUDED."""
        return logits

    def loss(
        self,
        scores: Float[Array, "B ..."],
        labels: Num[Array, "B ..."],
        smoothing: float,
        class_weights: Sequence[float] = (),
    ) -> Float[Array, "B ..."]:
        """Returns the loss of every label, with the class weights applied, in the shape of the batch's label_weights. `scores`
        are the `answer_scores`."""
        return self.outputs.loss(scores, labels, smoothing, class_weights)

    def soft_loss(
        self, scores: Float[Array, "*shape"], teacher_scores: Float[Array, "*shape"], temperature: float
    ) -> Float[Array, "B ..."]:
        """Returns the distillation loss against the `answer_scores` of a teacher, in the shape of the batch's label_weights."""
        return self.outputs.soft_loss(scores, teacher_scores, temperature)

    def correct(self, scores: Float[Array, "B ..."], labels: Num[Array, "B ..."]) -> Float[Array, "B ..."]:
        """Returns 1 for each correct prediction and 0 for each wrong one, in the shape of the batch's label_weights. The mean
        is the accuracy in the training log."""
        return self.outputs.correct(scores, labels)
