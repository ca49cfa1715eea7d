"""Multiple choice, i.e. choosing one of several continuations of a prompt: SWAG (paper section 4.4), CODAH, and the user's own
data.

Every candidate is a separate sequence, `[CLS] prompt [SEP] candidate [SEP]`, truncated to `config.length` tokens. All
candidates of an example are in one feature. The prediction is the candidate with the highest score."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.outputs import softmax
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import ChoiceExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.own_data import SPLITS, load_own_data
from bert_jax.tasks.readers.swag import read_codah, read_swag
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import ALIKE, Baseline, Constant, accuracy, constant_baseline
from bert_jax.tasks.task import all_equal, encode_pair, predictions_file, table_text, usable_splits

_FILES: Mapping[str, tuple[Callable[[pathlib.Path], list[ChoiceExample]], Mapping[str, str]]] = {
    "swag": (read_swag, {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}),
    "codah": (read_codah, {split: f"{split}.tsv" for split in SPLITS}),
}
KIND = ChoiceHead.kind
"""The kind of the head."""


@dataclasses.dataclass(frozen=True)
class ChoiceTask:
    """A multiple-choice task. The number of candidates may differ between examples."""

    name: str
    length: int
    """The maximum length of a sequence in tokens."""
    splits: Mapping[str, Sequence[ChoiceExample]]
    first_choice: int = 0
    """The number that the first candidate has in the files."""
    metric: str = "accuracy"

    @property
    def head(self) -> ChoiceHead:
        """A score for each candidate."""
        return ChoiceHead()

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns one feature for each example, in order. A feature has a sequence for each candidate."""
        return [self._feature(i, example, tokenizer) for i, example in enumerate(self.splits[split])]

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the accuracy over the examples with a label, or {} if no example has a label."""
        known, labels = self._labels(split)
        return {"accuracy": accuracy(_best(logits)[known], labels)} if known else {}

    def baseline(self, split: str) -> Baseline:
        """Returns the scores of choosing the candidate with the same index in every example."""
        known, labels = self._labels(split)
        if not known:
            return Baseline()

        def constant(place: np.ndarray) -> Constant:
            return f"candidate {int(place) + self.first_choice}", {"accuracy": accuracy(np.full_like(labels, place), labels)}

        usual, *_ = self.head.outputs.constants(self._labels("train")[1])
        return constant_baseline(self.metric, split, constant(usual), map(constant, self.head.outputs.constants(labels)))

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns `ALIKE` if the predicted candidate has the same index in every example, although the right ones differ (or are
        unknown); otherwise ""."""
        right = {example.label for example in self.splits[split]}
        return ALIKE if all_equal(_best(logits)) and (len(right) > 1 or None in right) else ""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes SPLIT.tsv with the columns id, prediction, label (empty if unknown) and the probability of each candidate,
        such as P(0). It is empty if the example has fewer candidates. For SWAG's test set, also writes SPLIT.csv in the format
        of the authors' script, with the row index and `pred`."""
        best, most = _best(logits), max(map(len, logits))
        rows = [["id", "prediction", "label", *(f"P({i + self.first_choice})" for i in range(most))]]
        for example, choice, values in zip(self.splits[split], best.tolist(), logits, strict=True):
            label = "" if example.label is None else str(example.label + self.first_choice)
            probabilities = [*(f"{p:.6f}" for p in softmax(values)), *[""] * (most - len(values))]
            rows.append([example.id, str(choice + self.first_choice), label, *probabilities])
        paths = [predictions_file(directory, f"{split}.tsv", table_text(rows))]
        if self.name == "swag" and split == "test":
            lines = [",pred", *(f"{i},{choice}" for i, choice in enumerate(best.tolist()))]
            paths.append(predictions_file(directory, f"{split}.csv", "".join(f"{line}\n" for line in lines)))
        return paths

    def _feature(self, number: int, example: ChoiceExample, tokenizer: Tokenizer) -> Feature:
        prompt = tokenizer.encode(example.prompt)
        pairs = [encode_pair(tokenizer, prompt, tokenizer.encode(choice), self.length) for choice in example.choices]
        ids, types = zip(*pairs, strict=True)
        return Feature(number, ids, types, None if example.label is None else np.asarray(example.label, np.int32))

    def _labels(self, split: str) -> tuple[list[int], np.ndarray]:
        """Returns the indices of the examples with a label, and their labels."""
        labels = {i: example.label for i, example in enumerate(self.splits[split]) if example.label is not None}
        return list(labels), np.array(list(labels.values()))


def _best(logits: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the index of the best candidate in each example, int [E]. If several candidates are equally good, the first of
    them is the best."""
    return np.array([int(values.argmax()) for values in logits])


def load(config: TaskConfig, say: Say = note) -> ChoiceTask:
    """Returns the task `config.name` from `config.data_dir` or `config.own`. The test set may be absent.

    Raises UserError for missing or invalid files.
    """
    if config.name == "own/choice":
        data = load_own_data(config.own, KIND, say=say)
        splits = {split: getattr(data, split) for split in SPLITS}
        return ChoiceTask(config.name, config.length, usable_splits(config, splits), config.own.first_choice)
    if not config.data_dir:
        catalogue.examples(config.name, "train")  # raises UserError, because the catalogue has neither task
    read, files = _FILES[config.name]
    paths = {split: pathlib.Path(config.data_dir) / name for split, name in files.items()}
    splits = {split: read(path) for split, path in paths.items() if split != "test" or path.is_file()}
    return ChoiceTask(config.name, config.length, usable_splits(config, splits))
