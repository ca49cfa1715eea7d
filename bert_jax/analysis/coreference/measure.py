"""Measures how often each head finds antecedents. The answer of a head is the candidate that the head attends to most
(arXiv:1906.04341, section 4.3).

For each group of mentions, a head is chosen on some documents. The accuracy of this head is measured on the other documents
with bootstrap intervals, and compared with rules."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int, Int32, Num

from bert_jax.analysis.bootstrap import interval, poisson_weights
from bert_jax.analysis.controls import engine_with_random_weights
from bert_jax.analysis.coreference.documents import NEITHER, Document, Section, Text, TextFile, sections
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.maps import Batch, Params, from_chosen_words, word_slots
from bert_jax.analysis.named_array import Axes, NamedArray
from bert_jax.analysis.reading import Show, in_silence
from bert_jax.analysis.windows import grouped
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.bert import attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.questions import NOT_FINITE

SECTIONS = 64
"""The number of windows per device that are measured together."""


@dataclasses.dataclass(frozen=True, eq=False)
class Antecedents:
    """The number of antecedents that each head and each rule finds, in each document and for each group of mentions."""

    right: NamedArray
    """[document, group, chooser]: the number of mentions whose chosen candidate is an antecedent, int32. The choosers are the
    heads, named LAYER-HEAD, followed by the rules."""
    n: NamedArray
    """[document, group]: the number of mentions with an antecedent in the window."""
    outside: NamedArray
    """[document, group]: the number of mentions that have antecedents, but none in their window. They are not counted in
    `n`."""
    attention: NamedArray | None
    """[document, head]: the attention to the chosen candidate, float32. None unless every text has at most one question
    (GAP)."""
    heads: int
    """The number of heads. The remaining choosers are rules."""
    windows: int

    def part(self, documents: Sequence[int]) -> Antecedents:
        """Returns the counts of the documents with these indices."""

        def some(array: NamedArray) -> NamedArray:
            names = [array["document"][i] for i in documents]
            return NamedArray(array.values[list(documents)], {**array.axes, "document": names})

        attention = None if self.attention is None else some(self.attention)
        return dataclasses.replace(self, right=some(self.right), n=some(self.n), outside=some(self.outside), attention=attention)


def measure_antecedents(
    engine: Engine, file: TextFile, options: Coreference, say: Callable[[str], None] = lambda note: None
) -> Antecedents:
    """Counts the antecedents that heads and rules find in the texts of a file. The texts are read one by one. `say` is called
    with the number of mentions so far.

    Raises UserError if no mention has an antecedent, or if the model returns numbers that are not finite.
    """
    if options.control == "random-weights":
        engine = engine_with_random_weights(engine, options.seed)
    heads = tuple(head_names(engine.config.num_layers, engine.config.num_heads))
    names: list[str] = []
    right: list[Int32[np.ndarray, "groups _"]] = []
    asked: list[Int32[np.ndarray, " groups"]] = []
    outside: list[Int32[np.ndarray, " groups"]] = []
    attention: list[Float32[np.ndarray, " heads"]] = []

    def places(groups: Sequence[str]) -> list[int]:
        return [file.groups.index(group) for group in groups]

    def read() -> Iterator[tuple[int, Section]]:
        """Yields (index of the document, section) for all texts, and counts the mentions whose antecedents are outside their
        window."""
        for document, text in enumerate(file):
            names.append(text.name)
            right.append(np.zeros((len(file.groups), len(heads) + len(file.rules)), np.int32))
            asked.append(np.zeros(len(file.groups), np.int32))
            outside.append(np.zeros(len(file.groups), np.int32))
            attention.append(np.zeros(len(heads), np.float32))
            for section in sections(engine, text if options.singletons else coreferent(text), options.tokens):
                for groups in section.outside:
                    outside[document][places(groups)] += 1
                yield document, section

    rng = np.random.default_rng(options.seed)
    windows = 0
    for group in grouped(read(), SECTIONS * engine.mesh.size):
        windows += len(group)
        group = [(document, section) for document, section in group if section.questions]
        orders = (section.shuffled(rng) if options.control == "shuffled-words" else None for _, section in group)
        items = [section.item(engine.config.has_segments, order) for (_, section), order in zip(group, orders, strict=False)]
        for (document, section), (ranks, weights) in zip(group, engine.run(favourites, items, "position"), strict=True):
            if not np.isfinite(weights).all():
                raise UserError(f"{engine.name} returns {NOT_FINITE}")
            for question, chosen, own in zip(section.questions, ranks, weights, strict=True):
                answers = [*(chosen.ravel() + section.first - 1), *question.guesses]
                asked[document][places(question.groups)] += 1
                right[document][places(question.groups)] += np.isin(answers, [*question.right])
                attention[document] = own.ravel()
        say(counted(int(sum(n[0] for n in asked)), "mention"))
    if not any(n.any() for n in asked):
        raise UserError(
            f"{file.path} has no mention with an antecedent; give CoNLL-U with Entity= in MISC, CoNLL-2012 or GAP with labels"
        )
    by_group: Axes = {"document": names, "group": file.groups}
    return Antecedents(
        right=NamedArray(np.stack(right), {**by_group, "chooser": (*heads, *file.rules)}),
        n=NamedArray(np.stack(asked), by_group),
        outside=NamedArray(np.stack(outside), by_group),
        attention=NamedArray(np.stack(attention), {"document": names, "head": heads}) if file.asks_once else None,
        heads=len(heads),
        windows=windows,
    )


def coreferent(text: Text) -> Text:
    """Returns a document without the mentions of entities that are mentioned only once."""
    if not isinstance(text, Document):
        return text
    counts = collections.Counter(mention.entity for mention in text.mentions)
    several = {entity for entity, count in counts.items() if count > 1}
    return dataclasses.replace(text, mentions=tuple(mention for mention in text.mentions if mention.entity in several))


@compiled
def favourites(params: Params, batch: Batch, *, config: ModelConfig) -> tuple[Int[Array, "X N H"], Float[Array, "X N H"]]:
    """Returns the rank of the candidate that each head attends to most, for every query. Also returns the attention to this
    candidate, float32.

    The batch is built by `Section.item`. A query without candidates gets rank 0, the rank of [CLS]. So does a head that attends
    to no candidate, e.g. if all candidates are beyond the radius of a sliding layer.
    """
    slots = word_slots(batch)
    rows, columns = jnp.divmod(batch["query_positions"], batch["input_ids"].shape[1])
    ranks, sequence = batch["candidates"][rows], slots.sequence[rows]
    own = slots.sequence[rows, columns][:, None]
    allowed = (sequence == own) & (ranks > 0) & (ranks < batch["targets"][:, None])
    chosen, weights = [], []
    for layer in attention_weights(params, config, Tokens.of(batch)):
        attention = jnp.where(allowed[:, None], from_chosen_words(layer, slots, rows, columns), -jnp.inf)
        most = attention.max(-1)
        chosen.append(jnp.where(most > 0, jnp.take_along_axis(ranks, attention.argmax(-1), axis=1), 0))
        weights.append(most)
    return jnp.stack(chosen, axis=1), jnp.stack(weights, axis=1)


THREE_WAY = "A, B or neither"


@dataclasses.dataclass(frozen=True)
class Rate:
    """The accuracy of one head or rule, with its 95 % interval from a bootstrap over documents."""

    chooser: str
    """A head as LAYER-HEAD, or the name of a rule."""
    accuracy: float
    low: float
    high: float
    gain: float
    """The accuracy of the chosen head minus this accuracy, on the same documents."""
    gain_low: float
    gain_high: float
    on_choice: float
    """The accuracy on the documents on which the head was chosen."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The chosen head for a group of mentions, and the rules."""

    group: str
    head: Rate
    rules: tuple[Rate, ...]
    n: int
    """The number of mentions."""
    documents: int
    """The number of documents with mentions of this group."""
    n_choice: int
    outside: int
    """The number of mentions that are left out because their antecedents are outside their window."""
    threshold: float = np.nan
    """If the attention to the chosen name is below this threshold, the answer is neither name. The threshold is chosen together
    with the head. NaN in other groups."""


@dataclasses.dataclass(frozen=True, eq=False)
class CoreferenceScores:
    """The scores of heads and rules on antecedents."""

    best: tuple[Best, ...]
    """The scores by group of mentions. GAP has the additional group THREE_WAY, in which "neither name" is a possible answer."""
    choice: Antecedents
    """The counts over the documents on which heads are chosen."""
    reported: Antecedents
    """The counts over the documents for which accuracies are reported."""


def score_coreference(
    engine: Engine,
    file: TextFile,
    choosing: TextFile | None,
    options: Coreference,
    progress: Show = in_silence,
) -> CoreferenceScores:
    """Chooses the heads that find antecedents, and scores these heads on the documents of `file`. Heads are chosen on the
    documents of `choosing`. If `choosing` is None, heads are chosen on every other document of `file`, starting with the first,
    and scored on the other documents. `progress` shows notes for each file (see `reading.Show`).

    Raises UserError if the model has no attention, if one of the two parts has no mention with an antecedent, or if the formats
    of the two files differ."""
    engine.require_attention("that could find antecedents")
    if choosing is not None and choosing.groups != file.groups:
        raise UserError(f"{choosing.path} and {file.path} have different formats; give two files of the same format")
    with progress(file) as say:
        reported = measure_antecedents(engine, file, options, say)
    if choosing is None:
        choice, reported = halves(reported)
    else:
        with progress(choosing) as say:
            choice = measure_antecedents(engine, choosing, options, say)
    return CoreferenceScores(tuple(best_heads(choice, reported, options)), choice, reported)


def halves(found: Antecedents) -> tuple[Antecedents, Antecedents]:
    """Splits the documents in two halves. The first half has every other document, starting with the first, and is for choosing
    heads. The second half has the other documents and is for scoring heads. Raises UserError if there is only one document."""
    count = len(found.n["document"])
    if count < 2:
        raise UserError(
            "there is only one document, but heads are chosen on some documents and scored on others; give several documents, or "
            "--choose"
        )
    return found.part(range(0, count, 2)), found.part(range(1, count, 2))


def best_heads(choice: Antecedents, reported: Antecedents, options: Coreference) -> list[Best]:
    """Returns the best head in `choice` and its accuracy in `reported`, for each group of mentions that occurs in both. If
    several heads are equally good, the first one is chosen."""
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
    if choice.attention is not None and reported.attention is not None and _asked(choice) and _asked(reported):
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
    """Returns the accuracy of each column of `right`. The gain of a column is the accuracy of the first column minus the
    accuracy of this column."""
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (right.T @ weights) / (n @ weights)
    rates = right.sum(0) / n.sum()
    low, high = interval(drawn)
    gain_low, gain_high = interval(drawn[:1] - drawn)
    columns = np.stack([rates, low, high, rates[0] - rates, gain_low, gain_high, np.full(len(names), np.nan)])
    return [Rate(name, *map(float, column)) for name, column in zip(names, columns.T, strict=True)]


def _three_way(choice: Antecedents, reported: Antecedents, weights: Float64[np.ndarray, "units replicates"]) -> Best:
    """Returns the scores for texts with one question if "neither name" is a third possible answer. A head gives this answer if
    its attention to the chosen name is below a threshold. The head and the threshold are chosen together, so that the most
    answers in `choice` are correct."""
    asked = _asked(reported)
    choice, reported, weights = choice.part(_asked(choice)), reported.part(asked), weights[asked]
    assert choice.attention is not None
    assert reported.attention is not None
    answers, attention = _names_right(choice), choice.attention.values
    neither = choice.n.values[:, list(choice.n["group"]).index(NEITHER)] > 0
    order = attention.argsort(0)
    levels = np.take_along_axis(attention, order, 0)
    # at threshold k, the answer is "neither" for the k examples with the least attention
    gained = np.where(neither[order], 1, 0) - np.take_along_axis(answers, order, 0)
    right = answers.sum(0) + np.concatenate([np.zeros((1, gained.shape[1])), gained.cumsum(0)])
    right[1:-1][levels[1:] == levels[:-1]] = -1  # no threshold separates equal attentions
    k, head = (int(i) for i in np.unravel_index(right.argmax(), right.shape))
    threshold = float(np.append(levels[:, head], np.nextafter(levels[-1, head], np.inf))[k])
    own_neither = reported.n.values[:, list(reported.n["group"]).index(NEITHER)] > 0
    said = reported.attention.values[:, head] < threshold
    found = np.where(said, own_neither, _names_right(reported)[:, head])
    rules = reported.right.values[:, 0, reported.heads :]
    names = [str(name) for name in reported.right["chooser"]]
    n = np.ones(len(found))
    rates = _rates([names[head], *names[reported.heads :]], np.column_stack([found, rules]).astype(np.float64), n, weights)
    at = [right[k, head], *choice.right.values[:, 0, choice.heads :].sum(0)]
    rates = [dataclasses.replace(rate, on_choice=float(x) / len(order)) for rate, x in zip(rates, at, strict=True)]
    outside = int(reported.outside.values[:, 0].sum())
    return Best(THREE_WAY, rates[0], tuple(rates[1:]), len(found), len(found), len(order), outside, threshold)


def _asked(found: Antecedents) -> list[int]:
    """Returns the indices of the texts that have a question."""
    return [int(i) for i in np.flatnonzero(found.n.values.any(1))]


def _names_right(found: Antecedents) -> Num[np.ndarray, "units heads"]:
    """Returns int [document, head]: 1 if the chosen name is the antecedent."""
    return found.right.values[:, 0, : found.heads]
