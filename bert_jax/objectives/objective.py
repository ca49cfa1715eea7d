"""`Objective`, the interface of everything that a model can be trained to do.

    @dataclasses.dataclass(frozen=True)
    class Mine(Objective):
        '''What it is, and where it comes from.'''

        weight: float = 1.0                                        # config.objective_options.weight

        scores = {"my loss": ("my_loss", "masked")}                # name in logs and figures: numerator, denominator

        def parameters(self, model, key):
            return {"my_head": dense(model.hidden_size, 2, key)}

        def sums(self, params, batch, seed):
            hidden = self.model.encode(params, batch, seed)        # [B, L, D]
            return {"my_loss": ...}

        def loss(self, sums, counts):
            return self.weight * sums["my_loss"] / counts["masked"]

`bert_jax/objectives/__init__.py` lists the built-in objectives. `config.objective=FILE.py:Mine` selects your own objective.
Everything else is derived from the class, such as log lines, metrics.jsonl, TensorBoard, figures, the held-out evaluation,
FLOPs, shardings, accumulation, checkpoints, `--replay`, `aot`, studies, the exported model and, with
`hard_loss` and `targets`, learning the predictions of a teacher.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bert_jax.data.config import rows_kind
from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import load_built_in, require_call
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Seed
from bert_jax.objectives.flops import computed_shapes, countable, counted_flops
from bert_jax.objectives.losses import IGNORED, Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params, unboxed
from bert_jax.objectives.scores import EvalRows, Formula, Majority, ReadScores, Score, score_name

if TYPE_CHECKING:  # training steps do not load a corpus
    from bert_jax.data.corpus.store import Corpus

_COUNTED_TARGETS = {"masked": "masked_targets", "pairs": "nsp_labels"}
COUNTED = ("tokens", "rows")
"""Counts (without padding) that every objective needs, since rates are computed from them."""
RESERVED = frozenset({"steps", "skipped", "skipped_in_a_row", "grad_norm", "learning_rate", "spikes", "spikes_in_a_row", "loss"})
"""Names that the training step itself uses (`training/steps.py`)."""


CHECKED_ROWS = (211, 223)
"""The rows of the abstract batches of `Objective.check`. They are primes, so a size that is a multiple of one of them is probably
not a multiple of the other one, unless the axis holds the rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """The model that a student learns from. Its parameters are an argument of the training step, not part of the state."""

    objective: Objective
    """The student's objective, for the teacher's model (see `distillation.py`)."""
    params: Params
    """The parameters that the student learns from, as arrays or as their shapes."""
    sha256: str = ""
    """The hash of the weights, in pretraining."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the teacher's model."""
        return self.objective.model.config


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """A loss that is defined by sums. The sums are added over microbatches and devices, and divided once at the end.

    The fields of a subclass are its settings. `self.model` is the model that the objective trains.
    """

    command: ClassVar[str] = "pretrain"
    """The command that trains the objective."""
    filled_in: ClassVar[tuple[str, ...]] = ()
    """The fields that are no settings, because a run fills them in."""
    rows: ClassVar[str | type] = "masked"
    """The kind of rows that the objective reads: a name of `data.ROWS`, or your own class (`data/kinds_of_rows.py`)."""
    judges_pairs: ClassVar[bool] = False
    """Whether the objective learns from "nsp_labels" if rows hold pairs of texts. Other objectives get one text per row unless
    `config.examples.pairs` is set."""
    needs_random_pairs: ClassVar[bool] = False
    """Whether the objective learns nothing from pairs without random second texts (`config.examples.pairs=successive`)."""
    trains: ClassVar[Sequence[str] | None] = None
    """The objective can train the models whose default objective is one of these; None: all models. A user's own encoder counts
    as a Transformer."""
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {}
    """Title -> (numerator, denominator), a Score, or a formula of the preceding scores. The name in metrics.jsonl is derived
    from the title: "mlm_loss" for "MLM loss". Fractions such as accuracies are shown in percent. Log lines show every score
    that is not a formula. The method `loss` computes the score "loss" if `scores` does not contain it, or if a subclass
    inherits this score but overrides the method."""
    baselines: ClassVar[Mapping[str, Majority]] = {}
    """Title of a score -> its baseline, computed on the same held-out rows."""
    exported: ClassVar[str | None] = None
    """The transformers class that the model is exported as, with all parameters of this class. None: only the encoder is
    exported. An encoder that ELECTRA's class does not support is also exported alone."""
    temporary: ClassVar[tuple[str, ...]] = ()
    """Parts of the parameters that are only needed for training."""
    hard_loss: ClassVar[tuple[str, str] | None] = None
    """(sum, count) of the loss that a teacher's soft targets replace in part (see `soft_loss`). None: a student can learn only
    the hidden states and the attention maps of a teacher."""

    model: ClassVar[Model]
    """The model to train. `for_model` sets it."""

    _counted: ClassVar[tuple[str, ...]] = COUNTED
    _reserved: ClassVar[frozenset[str]] = RESERVED
    _packed_by: ClassVar[str] = ", and pack several texts into a row with config.phases.0.packed_examples"

    # ---------------------------------------------------------------------------------------------------- what a subclass defines
    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the initial parameters that the objective adds to "embeddings" and "encoder". Each array is boxed with its
        axis names, as the function `dense` and the methods of `Model` return them."""
        return {}

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns sums over a batch, float32 scalars. The loss and the scores are quotients of these sums and of `counts`.
        `seed` determines dropout and all other randomness. It is None in evaluation. Numbers for rows are drawn by `sampled` or
        `random_words`, since `jax.random` would draw the same numbers on every device.

        The terms of a row must not depend on other rows, since a batch is divided over microbatches and devices. A contrastive
        loss therefore takes its negatives from the same row. An array of rows x rows is refused; other dependences, such as a
        mean over the rows, are not noticed.

        A class defines either this method, or `outputs` and `output_sums`, from which the sums then follow."""
        return self.output_sums(self.outputs(params, batch, seed), batch)

    def outputs(self, params: Params, batch: Batch, seed: Seed | None) -> Outputs:
        """Returns the predictions for a batch by name, such as the logits that `self.model.logits` returns. By default, there
        are none."""
        return {}

    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Computes the sums from the `outputs`. By default, there are none."""
        return {}

    def targets(self, batch: Batch) -> Mapping[str, Int[Array, " ..."]]:
        """Returns name of logits in `outputs` -> the ids of their targets, IGNORED where nothing is predicted. By default, there
        are none."""
        return {}

    def soft_loss(self, outputs: Outputs, taught: Outputs, batch: Batch, temperature: float) -> Float[Array, ""]:
        """Returns the summed loss of the predictions against the `taught` outputs of a teacher, float32. It is divided by the
        count in `hard_loss`. By default, it is KL(teacher || student) of the probabilities softened by the temperature, times
        temperature**2, at the `targets`. The teacher's `outputs` get no seed, so they must read the same tokens without one."""
        from bert_jax.objectives.distillation import soft_loss_sum  # only runs with a teacher need this module

        return soft_loss_sum(outputs, taught, self.targets(batch), temperature)

    def counts(self, batch: Batch) -> Sums:
        """Returns the sums over a batch that do not depend on the parameters, as float32 scalars. By default, they are "masked"
        (the predicted tokens), "pairs", "tokens" and "rows". Rows without targets have no "masked", and rows without labels of
        pairs have no "pairs"."""
        targets = {name: batch[array] for name, array in _COUNTED_TARGETS.items() if array in batch}
        return {name: (ids != IGNORED).sum().astype(jnp.float32) for name, ids in targets.items()} | row_counts(batch)

    @abc.abstractmethod
    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the loss to differentiate, from the total sums and counts. The loss must be linear in the sums, so that
        microbatches add up."""

    def refusal(self, length: int) -> str:
        """Returns "" if the objective can train on rows of `length` tokens. Otherwise, returns the reason and the remedy,
        worded as the end of a sentence about that length."""
        return ""

    def predicted(self, batch: Mapping[str, Int[np.ndarray, "B _"]]) -> Int[np.ndarray, "B _"]:
        """Returns the ids of all targets in a batch, -1 where nothing is predicted. If rows have centres instead, returns the
        positions of the centres."""
        return batch[rows_kind(self.rows).predicted]

    def eval_scores(self, rows: EvalRows) -> Mapping[str, float | Formula]:
        """Returns further scores of an evaluation on these rows. Baselines are returned as numbers, and other scores as
        formulas of the scores."""
        return {}

    def row_flops(self, length: int, predictions: int) -> float | None:
        """Returns the model FLOPs of a training step per row. If the result is None, the matrix products in the gradient of the
        loss are counted. They are also counted if a user's subclass of a built-in objective overrides `parameters`, `sums`,
        `outputs` or `output_sums`, but not this method; then the larger of the two numbers is used."""
        return None

    def corpus_parameters(self, corpus: Corpus) -> Mapping[tuple[str, ...], np.ndarray]:
        """Returns path -> array for parameters that describe the training corpus. If the phases train on several corpora,
        the token counts of `corpus` are the sums of theirs. Each array has the shape of its parameter, and is converted to the
        parameter's dtype.

        The arrays are initial values, and may be trained. An array that is never trained needs a name in
        `model.layers.VOCABULARY_ARRAYS`, such as "counts", since weight decay shrinks other arrays also without a gradient."""
        return {}

    def eval_line(self, scores: Mapping[str, float]) -> str:
        """Formats the held-out scores in a line."""
        parts = []
        for name, score in self.shown_scores().items():
            if name in scores:
                bar = scores.get(score.baseline)
                value = "" if bar is None else f" ({score.baseline_title} {_number(bar, score)})"
                parts.append(score.text(scores[name]) + value)
        return ", ".join(parts)

    def row_losses(self, params: Params, batch: Batch) -> dict[str, Float[Array, " B"]]:
        """Returns each row's mean losses without dropout, by name of the score."""
        losses = {name: score for name, score in self.shown_scores().items() if not score.is_share}

        def one_row(row: Batch) -> dict[str, Float[Array, ""]]:
            alone = jax.tree.map(lambda x: x[None], row)
            sums = self.sums(params, alone, None) | self.counts(alone)
            return {name: sums[one.numerator] / jnp.maximum(sums[one.denominator], 1.0) for name, one in losses.items()}

        return jax.lax.map(one_row, batch)

    # ------------------------------------------------------------------------------------------------------- what follows from it
    @classmethod
    def missing_methods(cls) -> list[str]:
        """Returns the names of the methods that the class must define but does not."""
        lacking = {name for name in ("outputs", "output_sums") if getattr(cls, name) is getattr(Objective, name)}
        if cls.sums is not Objective.sums:
            lacking = set()
        elif len(lacking) == 2:
            lacking = {"sums"}
        return sorted({*cls.__abstractmethods__} | lacking)

    @classmethod
    def no_soft_targets(cls) -> str:
        """Returns "" if a student can learn the predictions of a teacher. Otherwise, returns the reason, worded as the end of a
        sentence about the objective."""
        if cls.hard_loss is None:
            return "has no hard_loss, so it does not say which predictions to compare with a teacher's; define hard_loss"
        if cls.sums is not Objective.sums:
            return "overrides sums, so its predictions are not known; define outputs and output_sums instead"
        return ""

    def abstract_batch(self, rows: int, length: int = 16, predictions: int = 4) -> Mapping[str, Any]:
        """Returns the abstract arrays of a batch."""
        return abstract_rows(rows, length, predictions, targets=self.rows)

    def for_model(self, model: Model) -> Self:
        """Returns the objective with `self.model`."""
        bound = copy.copy(self)
        object.__setattr__(bound, "model", model)
        return bound

    def with_teacher(self, teacher: Teacher) -> Objective:
        """Returns the objective for a training step with a teacher. By default the teacher is ignored (see `distillation.py`)."""
        return self

    def settings(self) -> dict[str, Any]:
        """Returns the fields and their values, as in `config.objective_options`."""
        return dataclasses.asdict(self)

    def named_scores(self) -> dict[str, Score | Formula]:
        """Returns the scores by name in metrics.jsonl, with titles and baselines filled in."""
        found: dict[str, Score | Formula] = {}
        for title, given in self.scores.items():
            if title == "loss" and self._is_of_another_loss(given):
                continue
            if isinstance(given, tuple):
                given = Score(*given)
            if isinstance(given, Score):
                given = dataclasses.replace(given, title=given.title or title)
                if title in self.baselines:
                    baseline = f"{score_name(title)}_baseline"
                    given = dataclasses.replace(given, baseline=baseline, baseline_title=self.baselines[title].title)
            found[score_name(title)] = given
        return found

    def _is_of_another_loss(self, score: Any) -> bool:
        """Returns whether the score "loss" was inherited from a class whose method `loss` this objective overrides."""
        method = next(n for n, kind in enumerate(type(self).__mro__) if "loss" in vars(kind))
        return any(getattr(kind, "scores", {}).get("loss") is score for kind in type(self).__mro__[method + 1 :])

    def shown_scores(self) -> dict[str, Score]:
        """Returns the scores that log lines and figures show."""
        return {name: score for name, score in self.named_scores().items() if isinstance(score, Score) and score.shown}

    def compared(self, baselines: Mapping[str, float]) -> dict[str, float]:
        """Returns only the `baselines` that a score of this objective uses, since a subclass may omit some scores."""
        used = {score.baseline for score in self.named_scores().values() if isinstance(score, Score)}
        return {name: value for name, value in baselines.items() if name in used}

    def summarise(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes the scores from total sums and counts. Scores without a denominator are omitted."""
        scores: dict[str, float] = {}
        named = self.named_scores()
        for name, score in named.items():
            if isinstance(score, Score):
                total = float(sums.get(score.denominator, 0.0))
                value = float(sums[score.numerator]) / total if total and score.numerator in sums else None
            else:
                value = score(scores)
            if value is not None:
                scores[name] = value
        if scores and "loss" not in named:
            scores["loss"] = float(self.loss(dict(sums), dict(sums)))  # type: ignore[arg-type]
        return scores

    def baseline_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes the `baselines` from an evaluation's total sums and counts."""
        found = {f"{score_name(title)}_baseline": baseline.value(sums) for title, baseline in self.baselines.items()}
        return {name: value for name, value in found.items() if value is not None}

    def initial_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns all initial parameters, boxed. These are the encoder's parameters and the parameters that the objective
        adds."""
        return self.model.encoder(key) | self.parameters(self.model, key)

    def abstract_parameters(self) -> Boxed:
        """Returns the boxed shapes of `initial_parameters` without making arrays. Raises UserError for a parameter without
        axes."""
        return jax.tree.map(lambda shape: shape, _abstract_parameters(self, self.model))  # a copy that the caller may change

    def model_parameters(self) -> Boxed:
        """Returns the boxed shapes of the parameters that are not `temporary`."""
        return {part: tree for part, tree in self.abstract_parameters().items() if part not in self.temporary}

    def flops(self, length: int, predictions: int) -> float:
        """Returns the model FLOPs of a training step for a row of `length` tokens."""
        known = self.row_flops(length, predictions)
        if known is not None and not self._may_compute_more():
            return known
        return max(known or 0.0, gradient_flops(self, self.model, length, predictions))

    def _may_compute_more(self) -> bool:
        """Returns whether a user's class overrides a method of a built-in objective that computes, but not `row_flops`."""
        for kind in type(self).__mro__:
            if "row_flops" in vars(kind) or kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
                return False
            if {"parameters", "training_parameters", "sums", "outputs", "output_sums"} & vars(kind).keys():
                return True
        return False

    def check(self, key: str) -> None:
        """Raises UserError if a parameter has no axis names or is not in nested dicts, if a setting is not hashable, if the sums
        and counts do not fit the scores or are not float32, if a formula reads a score that does not exist, if rows are compared
        with each other, or if the loss is not linear in the sums. `key` names the objective in messages."""
        calls = {"parameters": "model, key", "sums": "params, batch, seed", "counts": "batch", "loss": "sums, counts"}
        calls |= {"outputs": "params, batch, seed", "output_sums": "outputs, batch"}
        for method, arguments in calls.items():
            require_call(getattr(self, method), arguments, f"{key}: {method}")
        try:
            hash(self)
        except TypeError as error:
            raise UserError(
                f"{key}: the settings must be hashable ({error}); make a list a tuple, and a dict a tuple of pairs (name, value)"
            ) from error
        params = unboxed(self.abstract_parameters())
        for rows in CHECKED_ROWS:
            batch = self.abstract_batch(rows)
            program, made = jax.make_jaxpr(lambda p, b: self.sums(p, b, jnp.uint32(0)), return_shape=True)(params, batch)
            sums = self._checked(key, "sums", made)
            if not any(sum(size and size % rows == 0 for size in shape) > 1 for shape in computed_shapes(program.jaxpr)):
                break
        else:
            raise UserError(
                f"{key}: sums makes an array of rows x rows, so the loss of a row would depend on the other rows, and on the "
                f"numbers of microbatches and devices; compare only the texts of one row{self._packed_by}"
            )
        counts = self._checked(key, "counts", jax.eval_shape(self.counts, batch))
        if again := sorted(sums & counts):
            raise UserError(f"{key}: {again[0]!r} is both a sum and a count; give one of them another name")
        if lacking := [name for name in self._counted if name not in counts]:
            raise UserError(f"{key}: counts lacks {lacking[0]!r}; start it with `super().counts(batch) | {{...}}`")

        scores = {title: score for title, score in self.named_scores().items() if isinstance(score, Score)}
        if not scores:
            raise UserError(f"{key} has no scores; give it one, such as scores = {{'my loss': ('my_loss', 'masked')}}")
        if unknown := [title for title in self.baselines if score_name(title) not in scores]:
            raise UserError(f"{key}: baselines has {unknown[0]!r}, which is not a score; {nearest(unknown[0], self.scores)}")
        needed = [(f"the score {one.title!r}", part) for one in scores.values() for part in (one.numerator, one.denominator)]
        needed += [(f"the baseline of {title!r}", part) for title, one in self.baselines.items() for part in (one.ones, one.of)]
        for what, part in needed:
            if part not in sums | counts:
                hint = nearest(part, sorted(sums | counts))
                raise UserError(f"{key}: {what} needs {part!r}, which neither sums nor counts returns; {hint}")
        self.check_formulas(key)

        def loss(scale: float, shift: float) -> Float[Array, ""]:
            numbers = {name: jnp.float32(scale * (3 + i) + shift * (1 + 5 * i % 7)) for i, name in enumerate(sorted(sums))}
            return self.loss(numbers, {name: jnp.float32(100 + i) for i, name in enumerate(sorted(counts))})

        first, last = loss(1, 0), loss(0, 1)
        if jnp.shape(first) != ():
            raise UserError(f"{key}: loss must return a scalar, not an array {jnp.shape(first)}")
        if not np.isclose(first + last, 2 * loss(0.5, 0.5), rtol=1e-3):
            raise UserError(
                f"{key}: loss is not linear in the sums, so microbatches would not add up to the whole batch; divide "
                "sums only by counts"
            )

    def check_formulas(self, key: str) -> None:
        """Raises UserError if a formula of `scores` reads a score that is computed only after the formula, or if it reads a score
        that does not exist. With `get` and `in`, it may read a score that the class defines but this model lacks, and names that
        are not misspelt if it also reads a score. `key` names the objective in messages."""
        named, before = self.named_scores(), dict[str, float]()
        optional = self.defined_scores() - named.keys() - {"loss"}
        for name, formula in named.items():
            if not isinstance(formula, Score):
                what = f"{key}: the formula of the score {name!r}"
                require_call(formula, "scores", what)
                scores = ReadScores(before, optional)
                with contextlib.suppress(ArithmeticError, ValueError):  # the formula may not be defined for these numbers
                    formula(scores)
                others, later = named.keys() - {name}, named.keys() - before.keys() - {name}
                wrong = [*scores.missing, *(part for part in scores.absent if part in later or not scores.has_found)]
                wrong += [part for part in scores.absent if difflib.get_close_matches(part, others, cutoff=0.9)]
                if wrong:
                    hint = "move the formula after it" if wrong[0] in later else nearest(wrong[0], others)
                    raise UserError(f"{what} reads {wrong[0]!r}, which is not a score before it; {hint}")
            before[name] = 1.0

    def defined_scores(self) -> set[str]:
        """Returns the names of all scores of this class and of the classes from which it inherits."""
        found = [self.scores, *(vars(kind).get("scores") for kind in type(self).__mro__)]
        return {score_name(title) for scores in found if isinstance(scores, Mapping) for title in scores}  # it may be a property

    def _checked(self, key: str, what: str, made: Any) -> set[str]:
        """Checks the sums or counts returned by `what`, and returns their names."""
        wrong = made if not isinstance(made, dict) else {name: x.shape for name, x in made.items() if x.shape != ()}
        if wrong:
            raise UserError(f"{key}: {what} must return a dict of scalars (name -> sum over the batch), but returns {wrong}")
        if narrow := sorted(name for name, x in made.items() if x.dtype != jnp.float32):
            dtype = made[narrow[0]].dtype
            rounds = ", in which a sum over many steps becomes wrong" if dtype in (jnp.bfloat16, jnp.float16) else ""
            raise UserError(
                f"{key}: {what} returns {narrow[0]!r} in {dtype}{rounds}; sums and counts must be float32: convert "
                "the terms with .astype(jnp.float32) before they are added"
            )
        if taken := sorted(made.keys() & self._reserved):
            raise UserError(
                f"{key}: {what} returns {taken[0]!r}, a name that is reserved for the training step; give it another name"
            )
        return {*made}


def row_counts(batch: Batch) -> Sums:
    """Returns the counts "tokens" and "rows"."""
    return {
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "rows": (batch["sequence_ids"] != 0).any(axis=1).sum().astype(jnp.float32),
    }


def abstract_rows(
    rows: int, length: int, predictions: int, examples: int = 1, targets: str | type = "masked"
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the abstract arrays of a pretraining batch of the kind `targets` (`Objective.rows`). The batch has `rows` rows of
    `length` tokens. Each row has at most `predictions` predicted tokens and at most `examples` packed examples."""
    widths = rows_kind(targets).widths(length, predictions, examples)
    return {name: jax.ShapeDtypeStruct((rows, width), jnp.int32) for name, width in widths.items()}


def _number(value: float, score: Score) -> str:
    return f"{100 * value:.1f} %" if score.is_share else f"{value:.3f}"


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.Partitioned)


@functools.lru_cache(maxsize=8)
def _abstract_parameters(objective: Objective, model: Model) -> Boxed:
    """Returns the boxed shapes of the initial parameters. Each model is traced only once, because a run needs the shapes six
    times, and tracing takes 0.2 s each time."""
    bound = objective.for_model(model)
    boxed: Boxed = jax.eval_shape(lambda: bound.initial_parameters(jax.random.key(0)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=_is_box):
        name = "/".join(str(getattr(key, "key", key)) for key in path)
        if not all(isinstance(getattr(key, "key", None), str) for key in path):
            part = path[0].key
            raise UserError(
                f"the parameters {part} of {type(objective).__name__} are not nested dicts with texts as keys; write lists as "
                f"dicts, such as {{'{part}_1': ..., '{part}_2': ...}}"
            )
        if not _is_box(leaf):
            raise UserError(
                f"the parameter {name} of {type(objective).__name__} has no axis names, which are needed to shard it; make it "
                "with `dense`, or box it with flax.linen.with_logical_partitioning(init, axes)"
            )
    return boxed


@functools.lru_cache(maxsize=64)
def gradient_flops(objective: Objective, model: Model, *size: Any) -> float:
    """Counts the matrix products in the gradient of the loss for a row of this size (see `abstract_batch`)."""
    bound = objective.for_model(dataclasses.replace(model, config=countable(model.config)))
    params = unboxed(bound.abstract_parameters())

    def gradient(params: Params, batch: Batch) -> Any:
        counts = bound.counts(batch)
        return jax.grad(lambda p: bound.loss(bound.sums(p, batch, jnp.uint32(0)), counts))(params)

    return counted_flops(gradient, params, bound.abstract_batch(1, *size))


def trains_sentence(objective: Objective, key: str, model: ModelConfig, natural: str) -> str:
    """Returns the error message if an objective does not train a model of this kind, otherwise "". `natural` is the name of the
    default objective."""
    if objective.trains is None or load_built_in(model.kind.layers).objectives[model.direction] in objective.trains:
        return ""
    kind = "direction" if model.has_attention and not model.translates else "encoder"
    return (
        f"{key} cannot train a model with {kind}={getattr(model, kind)}; leave it out (default: {natural}), or change "
        f"config.model.{kind}"
    )
