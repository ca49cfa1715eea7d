"""The candidate that every head attends to most, and how often it is an antecedent (arXiv:1906.04341, section 4.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jaxtyping import Array, Float, Float32, Int, Int32

from bert_jax.analysis.controls import CONTROLS as OF_WORDS
from bert_jax.analysis.controls import engine_with_random_weights
from bert_jax.analysis.coreference.documents import Document
from bert_jax.analysis.coreference.mentions import Text, TextFile
from bert_jax.analysis.coreference.sections import Section, sections
from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.maps import Batch, Params, from_chosen_words, word_slots
from bert_jax.analysis.named import Axes, NamedArray
from bert_jax.analysis.windows import grouped
from bert_jax.errors import UserError, nearest
from bert_jax.interface.ranges import Seed, check_ranges
from bert_jax.interface.words import counted
from bert_jax.model.bert import attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.questions import NOT_FINITE

CONTROLS = {
    "random-weights": OF_WORDS["random-weights"],
    "shuffled-words": "the words of each window in a random order, which the model reads; candidates and answers stay",
}
"""Control -> its description."""
TOKENS = Interval(ge=8, le=2**20)
REPLICATES = Interval(ge=100, le=100_000)
SECTIONS = 64
"""Windows per device that are measured together."""


@dataclasses.dataclass(frozen=True)
class Coreference:
    """The options of the verb `coreference`."""

    tokens: Annotated[int, TOKENS] = 2**20
    """Most tokens of a window; the position table is the limit."""
    singletons: bool = True
    """Whether mentions of entities that are mentioned once are candidates; CoNLL-2012 does not annotate them."""
    control: str = ""
    """One of CONTROLS; none if it is empty."""
    replicates: Annotated[int, REPLICATES] = 1000
    """Replicates of the bootstrap over documents."""
    seed: Seed = 0
    """Of the bootstrap and of the control."""

    def __post_init__(self) -> None:
        check_ranges(self, "coreference")
        if self.control and self.control not in CONTROLS:
            raise UserError(f"coreference.control={self.control!r} is unknown: {nearest(self.control, CONTROLS)}")


@dataclasses.dataclass(frozen=True, eq=False)
class Antecedents:
    """The number of antecedents that each head and each rule finds, by document and group of mentions."""

    right: NamedArray
    """[document, group, chooser]: mentions whose chosen candidate is an antecedent; int32. The choosers are the heads, named
    LAYER-HEAD, then the rules."""
    n: NamedArray
    """[document, group]: mentions with an antecedent in the window."""
    outside: NamedArray
    """[document, group]: mentions with antecedents, but none in the window; they are not in `n`."""
    attention: NamedArray | None
    """[document, head] for texts with one question (GAP), else None: the attention to the chosen candidate; float32."""
    heads: int
    """The number of heads: the choosers after them are rules."""
    windows: int

    def part(self, documents: Sequence[int]) -> Antecedents:
        """The documents of these numbers."""

        def some(array: NamedArray) -> NamedArray:
            names = [array["document"][i] for i in documents]
            return NamedArray(array.values[list(documents)], {**array.axes, "document": names})

        attention = None if self.attention is None else some(self.attention)
        return dataclasses.replace(self, right=some(self.right), n=some(self.n), outside=some(self.outside), attention=attention)


def measure_antecedents(
    engine: Engine, file: TextFile, options: Coreference, say: Callable[[str], None] = lambda note: None
) -> Antecedents:
    """The antecedents that heads and rules find in the texts of a file, which are read as they are needed. `say` is told the
    number of mentions so far.

    Raises UserError where no mention has an antecedent, and where the model gives numbers that are not finite.
    """
    if options.control == "random-weights":
        engine = engine_with_random_weights(engine, options.seed)
    counts = _Counts(head_names(engine.config.num_layers, engine.config.num_heads), file)
    rng = np.random.default_rng(options.seed)
    of_pairs = engine.config.has_segments
    windows = 0
    for group in grouped(_read(engine, file, counts, options), SECTIONS * engine.mesh.size):
        windows += len(group)
        group = [(document, section) for document, section in group if section.questions]
        orders = (section.shuffled(rng) if options.control == "shuffled-words" else None for _, section in group)
        items = [section.item(of_pairs, order) for (_, section), order in zip(group, orders, strict=False)]
        for (document, section), (ranks, attention) in zip(group, engine.run(favourites, items, "position"), strict=True):
            if not np.isfinite(attention).all():
                raise UserError(f"{engine.name} gives {NOT_FINITE}")
            counts.add(document, section, ranks, attention)
        say(counted(int(sum(n[0] for n in counts.asked)), "mention"))
    if not any(n.any() for n in counts.asked):
        raise UserError(
            f"{file.path} holds no mention with an antecedent; give CoNLL-U with Entity= in MISC, CoNLL-2012 or GAP with labels"
        )
    return counts.result(windows)


class _Counts:
    """The sums of `Antecedents`, document by document."""

    def __init__(self, heads: Sequence[str], file: TextFile):
        self._heads, self._file = tuple(heads), file
        self.names: list[str] = []
        self.right: list[Int32[np.ndarray, "groups _"]] = []
        self.asked: list[Int32[np.ndarray, " groups"]] = []
        self.outside: list[Int32[np.ndarray, " groups"]] = []
        self.attention: list[Float32[np.ndarray, " heads"]] = []

    def begin(self, name: str) -> int:
        """Begins a document. Returns its number."""
        groups = len(self._file.groups)
        self.names.append(name)
        self.right.append(np.zeros((groups, len(self._heads) + len(self._file.rules)), np.int32))
        self.asked.append(np.zeros(groups, np.int32))
        self.outside.append(np.zeros(groups, np.int32))
        if self._file.asks_once:
            self.attention.append(np.zeros(len(self._heads), np.float32))
        return len(self.names) - 1

    def skip(self, document: int, section: Section) -> None:
        """Counts the mentions of a section whose antecedents are outside."""
        for groups in section.outside:
            self.outside[document][self._places(groups)] += 1

    def add(
        self, document: int, section: Section, ranks: Int32[np.ndarray, "X N H"], attention: Float32[np.ndarray, "X N H"]
    ) -> None:
        """Counts the answers of all heads, and those of the rules."""
        for question, chosen, weights in zip(section.questions, ranks, attention, strict=True):
            places = self._places(question.groups)
            answers = [*(chosen.ravel() + section.first - 1), *question.guesses]
            self.asked[document][places] += 1
            self.right[document][places] += np.isin(answers, [*question.right])
            if self._file.asks_once:
                self.attention[document] = weights.ravel()

    def result(self, windows: int) -> Antecedents:
        """The counts as arrays."""
        documents = {"document": self.names}
        by_group: Axes = {**documents, "group": self._file.groups}
        return Antecedents(
            right=NamedArray(np.stack(self.right), {**by_group, "chooser": (*self._heads, *self._file.rules)}),
            n=NamedArray(np.stack(self.asked), by_group),
            outside=NamedArray(np.stack(self.outside), by_group),
            attention=NamedArray(np.stack(self.attention), {**documents, "head": self._heads}) if self.attention else None,
            heads=len(self._heads),
            windows=windows,
        )

    def _places(self, groups: Sequence[str]) -> list[int]:
        return [self._file.groups.index(group) for group in groups]


def _read(engine: Engine, file: TextFile, counts: _Counts, options: Coreference) -> Iterator[tuple[int, Section]]:
    """(number of the document, section) of all texts."""
    for text in file:
        document = counts.begin(text.name)
        for section in sections(engine, text if options.singletons else coreferent(text), options.tokens):
            counts.skip(document, section)
            yield document, section


def coreferent(text: Text) -> Text:
    """A document without the mentions of entities that are mentioned once."""
    if not isinstance(text, Document):
        return text
    entities = [mention.entity for mention in text.mentions]
    several = {entity for entity in {*entities} if entities.count(entity) > 1}
    return dataclasses.replace(text, mentions=tuple(mention for mention in text.mentions if mention.entity in several))


@compiled
def favourites(params: Params, batch: Batch, *, config: ModelConfig) -> tuple[Int[Array, "X N H"], Float[Array, "X N H"]]:
    """For every query the rank of the candidate that each head attends to most, and the attention to it, float32.

    The batch is that of `Section.item`. A query without a candidate has rank 0, that of [CLS] at the beginning of its row.
    """
    slots = word_slots(batch)
    rows, columns = jnp.divmod(batch["query_positions"], batch["input_ids"].shape[1])
    ranks, sequence = batch["candidates"][rows], slots.sequence[rows]
    own = slots.sequence[rows, columns][:, None]
    allowed = (sequence == own) & (ranks > 0) & (ranks < batch["targets"][:, None])
    chosen, weights = [], []
    for layer in attention_weights(params, config, batch):
        attention = jnp.where(allowed[:, None], from_chosen_words(layer, slots, rows, columns), -jnp.inf)
        chosen.append(jnp.take_along_axis(ranks, attention.argmax(-1), axis=1))
        weights.append(attention.max(-1))
    return jnp.stack(chosen, axis=1), jnp.stack(weights, axis=1)
