"""Pronoun resolution: a pronoun refers to the name A, to the name B, or to neither (GAP; Webster et al. 2018).

A text is one sequence. The head reads the first piece of the pronoun and of each name. If a text is too long, only a window
around these three mentions is read. If the mentions are too far apart for one window, only the tokens nearest to each mention
are read. As GAP's authors intend, the development file is the training set, and the validation file is the dev set."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.outputs import softmax
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import ALIKE, Baseline, Constant, accuracy, constant_baseline, gap_scores, log_loss
from bert_jax.tasks.task import all_equal, predictions_file, table_text, usable_splits

LABELS = ("A", "B", "neither")
KIND = MentionHead.kind
"""The kind of the head."""
_FILES = {"train": "gap-development.tsv", "dev": "gap-validation.tsv", "test": "gap-test.tsv"}
_LEAST = 1e-15  # the minimum of a probability, so that its logarithm is finite


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """The tokens of a text, and the positions of the mentions. `ids` are int32 [tokens], without [CLS] and [SEP].
    `mention_starts` are the indices of the mentions' first pieces in `ids`."""

    ids: np.ndarray
    mention_starts: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    """The characters [start, end) of each token in the text."""
    exact: bool
    """Whether every mention starts at the start of its first subword."""
    is_broken: bool
    """Whether tokens between the mentions are omitted."""


@dataclasses.dataclass(frozen=True)
class MentionTask:
    """The task of pronoun resolution on GAP."""

    name: str
    length: int
    """The maximum length of a sequence in tokens."""
    splits: Mapping[str, Sequence[PronounExample]]
    say: Say = note
    metric: str = "f1"
    _told: set[str] = dataclasses.field(default_factory=set)

    @property
    def head(self) -> MentionHead:
        """A logit for A, B and neither."""
        return MentionHead(labels=LABELS)

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns one feature for each example, in order. The first call for a split reports how many texts have mentions
        inside a token, and in how many texts tokens between mentions are omitted."""
        features, inexact, broken = [], [], []
        for i, example in enumerate(self.splits[split]):
            reading = read_mentions(tokenizer, example, self.length - 2)
            inexact += [] if reading.exact else [example.id]
            broken += [example.id] if reading.is_broken else []
            ids = np.array([tokenizer.cls_id, *reading.ids, tokenizer.sep_id], np.int32)
            target = None if example.label is None else np.asarray(LABELS.index(example.label), np.int32)
            features.append(Feature(i, (ids,), (np.zeros_like(ids),), target, np.array(reading.mention_starts, np.int32) + 1))
        if split not in self._told:
            self._tell(split, inexact, broken)
            self._told.add(split)
        return features

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns `gap_scores`, the accuracy over the three labels, and log_loss (lower is better). Only the examples with a
        label count. Returns {} if no example has a label."""
        stacked = np.stack(logits)
        return self._scored(split, stacked.argmax(1), np.nan_to_num(softmax(stacked), nan=1))

    def baseline(self, split: str) -> Baseline:
        """Returns the scores of always predicting A, B or neither. The probabilities are the label frequencies in the training
        set."""
        labels = [example.label for example in self.splits["train"]]
        counts = np.array([labels.count(label) for label in LABELS])
        prior = np.maximum(counts, _LEAST)  # log_loss normalises the counts
        shape = (len(self.splits[split]),)

        def constant(answer: int) -> Constant:
            return repr(LABELS[answer]), self._scored(split, np.full(shape, answer), np.broadcast_to(prior, (*shape, len(prior))))

        usual = constant(int(counts.argmax()))
        return constant_baseline(self.metric, split, usual, map(constant, range(len(LABELS)))) if usual[1] else Baseline()

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns `ALIKE` if all predictions are the same (A, B or neither), otherwise ""."""
        return ALIKE if all_equal(np.stack(logits).argmax(1)) else ""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes SPLIT.tsv for gap_scorer.py (`ID<TAB>A-coref<TAB>B-coref`, TRUE or FALSE, no header). Also writes SPLIT.csv
        with the probabilities (ID,A,B,NEITHER), in the format of the competition that uses log loss."""
        stacked, examples = np.stack(logits), self.splits[split]
        rows, lines = [], ["ID,A,B,NEITHER"]
        for example, corefers, row in zip(examples, _corefers(stacked.argmax(1)), softmax(stacked), strict=True):
            rows.append([example.id, *("TRUE" if name else "FALSE" for name in corefers)])
            lines.append(",".join([example.id, *(f"{p:.6f}" for p in row)]))
        return [
            predictions_file(directory, f"{split}.tsv", table_text(rows)),
            predictions_file(directory, f"{split}.csv", "".join(f"{line}\n" for line in lines)),
        ]

    def _scored(self, split: str, predictions: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
        """Returns the scores of `predictions` (int [E], indices of LABELS) with `probabilities` (float [E, 3])."""
        examples = self.splits[split]
        known = [i for i, example in enumerate(examples) if example.label is not None]
        if not known:
            return {}
        labels = np.array([LABELS.index(examples[i].label or "") for i in known])
        feminine = np.array([examples[i].gender == "feminine" for i in known])
        scores = gap_scores(_corefers(predictions[known]), _corefers(labels), feminine)
        return scores | {"accuracy": accuracy(predictions[known], labels), "log_loss": log_loss(probabilities[known], labels)}

    def _tell(self, split: str, inexact: Sequence[str], broken: Sequence[str]) -> None:
        """Reports the ids of two kinds of texts. The `EncodedText` of a text in `inexact` is not `exact`. The `EncodedText` of
        a text in `broken` has `is_broken` set."""
        where, room = f"{self.name}, {split}", self.length - 2
        if inexact:
            self.say(
                f"{where}: in {counted(len(inexact), 'text')}, a mention starts inside a token or has no token, so the nearest "
                f"token is read instead; the first text is {inexact[0]}"
            )
        if broken:
            self.say(
                f"{where}: in {counted(len(broken), 'text')}, mentions are more than {room} tokens apart, so some tokens "
                f"between them are not read; the first text is {broken[0]}. To read these tokens, raise config.task.length"
            )


def read_mentions(tokenizer: Tokenizer, example: PronounExample, room: int) -> EncodedText:
    """Returns at most `room` tokens of a text, with the indices of the first pieces of the pronoun, A and B. `room` is at least
    3.

    If a mention has no piece, the piece nearest to its first character is used instead. If a mention starts inside a piece
    (e.g. a name inside an unknown word), this piece is used."""
    ids, offsets = tokenizer.encode_with_offsets(example.text)
    if not ids:  # the text has only control characters
        ids, offsets = [tokenizer.unk_id], [(0, len(example.text))]
    mentions = (
        (example.pronoun_start, example.pronoun),
        (example.a_start, example.a),
        (example.b_start, example.b),
    )
    spans = [_pieces(offsets, start, start + len(text)) for start, text in mentions]
    kept = nearest_tokens(len(ids), spans, room)
    mention_starts = tuple(int(np.searchsorted(kept, first)) for first, _ in spans)
    exact = all(offsets[spans[i][0]][0] == start for i, (start, _) in enumerate(mentions))
    is_broken = bool((np.diff(kept) > 1).any())
    return EncodedText(np.array(ids, np.int32)[kept], mention_starts, tuple(offsets[i] for i in kept), exact, is_broken)


def _pieces(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Returns the first and the last piece with characters in [start, end). If there is no such piece, returns the nearest
    piece twice."""
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
    if inside:
        return inside[0], inside[-1]
    only = min(range(len(offsets)), key=lambda i: (max(offsets[i][0] - start, start - offsets[i][1], 0), i))
    return only, only


def nearest_tokens(count: int, spans: Sequence[tuple[int, int]], room: int) -> np.ndarray:
    """Chooses at most `room` of `count` tokens, and returns their indices in ascending order. The chosen tokens are nearest to
    `spans`. A span is given as (first, last token).

    If all spans fit into one window of `room` tokens, the result is one window. The first token of every span is included. If
    two tokens are at the same distance, the earlier token is preferred.
    """
    first, last = min(a for a, _ in spans), max(b for _, b in spans)
    around = [(first, last)] if last - first < room else spans
    token = np.arange(count)
    distance = np.min([np.maximum(np.maximum(a - token, token - b), 0) for a, b in around], axis=0)
    distance[[a for a, _ in spans]] = -1
    return np.sort(np.argsort(distance, kind="stable")[:room])


def _corefers(answers: np.ndarray) -> np.ndarray:
    """Converts predictions, int [E], to whether the pronoun refers to A and whether it refers to B, bool [E, 2]."""
    return answers[:, np.newaxis] == np.arange(2)


def load(config: TaskConfig, say: Say = note) -> MentionTask:
    """Loads GAP from `config.data_dir`, or from the tfds catalogue if `data_dir` is empty. The test set may be missing.

    Raises UserError for missing or invalid files. Also raises it for a pronoun without a gender, since GAP's scores are
    computed by gender."""
    paths = {split: pathlib.Path(config.data_dir) / name for split, name in _FILES.items()} if config.data_dir else {}
    if paths:
        splits = {split: read_gap(path) for split, path in paths.items() if split != "test" or path.is_file()}
    else:
        splits = {split: catalogue.examples(config.name, split, say=say) for split in _FILES}
    for split, examples in splits.items():
        if strange := [example for example in examples if example.gender is None]:
            raise UserError(
                f"{paths.get(split, f'gap, {split}')}: the pronoun {strange[0].pronoun!r} of {strange[0].id} is neither "
                "masculine nor feminine; remove the row, because GAP is scored by gender"
            )
    return MentionTask(config.name, config.length, usable_splits(config, splits), say)
