"""The head that finds most antecedents in some documents, and its accuracy in others, beside rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Num

from bert_jax.analysis.bootstrap import interval, poisson_weights
from bert_jax.analysis.coreference.measure import Antecedents, Coreference, measure_antecedents
from bert_jax.analysis.coreference.mentions import TextFile
from bert_jax.analysis.progress import Show, in_silence
from bert_jax.errors import UserError
from bert_jax.prediction.engine import Engine

NEITHER = "neither"
THREE_WAY = "A, B or neither"


@dataclasses.dataclass(frozen=True)
class Rate:
    """The accuracy of one chooser, with the ends of the 95 % interval from a bootstrap over documents."""

    chooser: str
    """A head, LAYER-HEAD, or a rule."""
    accuracy: float
    low: float
    high: float
    gain: float
    """The accuracy of the chosen head less this one, in the same documents."""
    gain_low: float
    gain_high: float
    on_choice: float
    """The accuracy in the documents that the head was chosen on."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The chosen head of a group of mentions, and the rules."""

    group: str
    head: Rate
    rules: tuple[Rate, ...]
    n: int
    """The number of mentions that the rates are of."""
    documents: int
    """The number of documents that hold them."""
    n_choice: int
    outside: int
    """Mentions that are left out, since their antecedents are in none of the windows that hold them."""
    threshold: float = np.nan
    """Of the attention to a name below which the answer is neither of the two; chosen too. NaN in other groups."""


@dataclasses.dataclass(frozen=True, eq=False)
class CoreferenceScores:
    """The antecedents that heads and rules find."""

    best: tuple[Best, ...]
    """By group of mentions; for GAP also with neither name as an answer (THREE_WAY)."""
    choice: Antecedents
    """Of the documents that heads are chosen on."""
    reported: Antecedents
    """Of the documents that rates are reported for."""


def score_coreference(
    engine: Engine,
    file: TextFile,
    choosing: TextFile | None,
    options: Coreference,
    progress: Show = in_silence,
) -> CoreferenceScores:
    """The heads that find antecedents in the documents of a file, chosen on those of `choosing`; None: on every other document of
    the file, from the first on. `progress` gives for each file a function that shows a note.

    Raises UserError for a model without attention, where a part has no mention with an antecedent, and for two files of different
    formats.
    """
    engine.require_attention("that could find antecedents")
    if choosing is not None and choosing.groups != file.groups:
        raise UserError(f"{choosing.path} and {file.path} are of different formats; choose heads on texts of the same kind")
    with progress(file) as say:
        reported = measure_antecedents(engine, file, options, say)
    if choosing is None:
        choice, reported = halves(reported)
    else:
        with progress(choosing) as say:
            choice = measure_antecedents(engine, choosing, options, say)
    return CoreferenceScores(tuple(best_heads(choice, reported, options)), choice, reported)


def halves(found: Antecedents) -> tuple[Antecedents, Antecedents]:
    """Every other document, from the first on, to choose heads on; and the documents between them. Raises UserError for one."""
    count = len(found.n["document"])
    if count < 2:
        raise UserError("there is one document, and heads are chosen on some and measured on others; give several, or --choose")
    return found.part(range(0, count, 2)), found.part(range(1, count, 2))


def best_heads(choice: Antecedents, reported: Antecedents, options: Coreference) -> list[Best]:
    """For each group of mentions that both parts hold: the head that is best in `choice` (of equal ones the first), and its
    accuracy in `reported`."""
    units = range(len(reported.n["document"]))
    weights = poisson_weights(options.seed, units, options.replicates).astype(np.float64)
    found = []
    for g, group in enumerate(reported.n["group"]):
        if group != NEITHER and choice.n.values[:, g].any() and reported.n.values[:, g].any():
            own, other = (part.right.values[:, g].astype(np.float64) for part in (reported, choice))
            n, m = reported.n.values[:, g], choice.n.values[:, g]
            chosen = int(other[:, : choice.heads].sum(0).argmax())
            columns = [chosen, *range(reported.heads, own.shape[1])]
            rates = _rates([str(reported.right["chooser"][i]) for i in columns], own[:, columns], n, weights)
            at_choice = other[:, columns].sum(0) / m.sum()
            rates = [dataclasses.replace(rate, on_choice=float(at)) for rate, at in zip(rates, at_choice, strict=True)]
            outside = int(reported.outside.values[:, g].sum())
            found.append(Best(str(group), rates[0], tuple(rates[1:]), int(n.sum()), int((n > 0).sum()), int(m.sum()), outside))
    if choice.attention is not None and reported.attention is not None:
        found.append(_three_way(choice, reported, weights))
    if not found:
        raise UserError("no group of mentions has antecedents in both parts of the documents; give more documents")
    return found


def _rates(
    names: Sequence[str],
    right: Float64[np.ndarray, "units chosen"],
    n: Num[np.ndarray, " units"],
    weights: Float64[np.ndarray, "units replicates"],
) -> list[Rate]:
    """The rate of each column of `right`; the gain is that of the first column."""
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (right.T @ weights) / (n @ weights)
    rates = right.sum(0) / n.sum()
    low, high = interval(drawn)
    gain_low, gain_high = interval(drawn[:1] - drawn)
    columns = np.stack([rates, low, high, rates[0] - rates, gain_low, gain_high, np.full(len(names), np.nan)])
    return [Rate(name, *map(float, column)) for name, column in zip(names, columns.T, strict=True)]


def _three_way(choice: Antecedents, reported: Antecedents, weights: Float64[np.ndarray, "units replicates"]) -> Best:
    """Texts with one question, neither name being an answer too: the answer is neither where the attention to the chosen name
    is below a threshold. Head and threshold are those with most right answers in `choice`."""
    asked = _asked(reported)
    choice, reported, weights = choice.part(_asked(choice)), reported.part(asked), weights[asked]
    assert choice.attention is not None
    assert reported.attention is not None
    answers, attention = _names_right(choice), choice.attention.values
    neither = choice.n.values[:, list(choice.n["group"]).index(NEITHER)] > 0
    order = attention.argsort(0)
    # at threshold k the k examples with the least attention are said to be neither
    gained = np.where(neither[order], 1, 0) - np.take_along_axis(answers, order, 0)
    right = answers.sum(0) + np.concatenate([np.zeros((1, gained.shape[1])), gained.cumsum(0)])
    k, head = (int(i) for i in np.unravel_index(right.argmax(), right.shape))
    levels = np.sort(attention[:, head])
    threshold = float(np.append(levels, np.nextafter(levels[-1], np.inf))[k])
    own_neither = reported.n.values[:, list(reported.n["group"]).index(NEITHER)] > 0
    said = reported.attention.values[:, head] < threshold
    found = np.where(said, own_neither, _names_right(reported)[:, head])
    rules = reported.right.values[:, 0, reported.heads :]
    names = [str(name) for name in reported.right["chooser"]]
    n = np.ones(len(found))
    rates = _rates([names[head], *names[reported.heads :]], np.column_stack([found, rules]).astype(np.float64), n, weights)
    at = [right[k, head], *choice.right.values[:, 0, choice.heads :].sum(0)]
    rates = [dataclasses.replace(rate, on_choice=float(x) / len(order)) for rate, x in zip(rates, at, strict=True)]
    return Best(THREE_WAY, rates[0], tuple(rates[1:]), len(found), len(found), len(order), 0, threshold)


def _asked(found: Antecedents) -> list[int]:
    """The numbers of the texts whose question was asked."""
    return [int(i) for i in np.flatnonzero(found.n.values.any(1))]


def _names_right(found: Antecedents) -> Num[np.ndarray, "units heads"]:
    """int [document, head]: 1 where the chosen name is the antecedent."""
    return found.right.values[:, 0, : found.heads]
