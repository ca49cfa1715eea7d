"""Token classification: named entities (CoNLL-2003, WNUT-17), parts of speech (CoNLL-U), and the user's own tags.

A word's predicted tag is the tag of its first piece (paper section 5.3). The tag does not depend on other predicted tags, so an
I may follow an O. With a CRF (`head.crf`), the tags of the words that a feature labels are predicted jointly. Every word of a
split is labelled in exactly one feature. A sentence that fits into `config.length` is one feature. A longer sentence is divided
between words into parts of at most half the length. The feature of a part also shows a quarter of the length on either side, if
the sentence has that many pieces there. With context="document", the rest of a feature shows the surrounding words of the
document, without separators."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.heads.outputs import MOST_CONSTANTS
from bert_jax.model.heads.token import TokenHead
from bert_jax.storage.formats import COMPRESSIONS
from bert_jax.storage.records import read_text, split_lines
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.entity_scores import as_tags, convert, entity_scores, is_tag, looks_like_tags
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.conll import conll_width, first_with_tag, read_conll
from bert_jax.tasks.readers.conllu import read_conllu
from bert_jax.tasks.readers.own_data import SPLITS, collect_labels, load_own_data
from bert_jax.tasks.readers.own_rows import COLUMNAR, suffix
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import ALIKE, Baseline, Constant, accuracy, constant_baseline, macro_f1, scorer
from bert_jax.tasks.task import predictions_file, usable_splits

Reader = Callable[[pathlib.Path], list[WordsExample]]

_FILES: Mapping[str, tuple[Reader, Mapping[str, tuple[str, ...]]]] = {
    "conll2003": (
        read_conll,
        {"train": ("train.txt", "eng.train"), "dev": ("valid.txt", "eng.testa"), "test": ("test.txt", "eng.testb")},
    ),
    "wnut17": (
        read_conll,
        {"train": ("wnut17train.conll",), "dev": ("emerging.dev.conll",), "test": ("emerging.test.annotated",)},
    ),
    "pos": (read_conllu, {split: tuple(f"*{split}.conllu{end}" for end in ("", *COMPRESSIONS)) for split in SPLITS}),
}
"""The reader and the file names of each task. If there are several patterns, the first pattern that matches is used."""
KIND = TokenHead.kind
"""The kind of the head."""
_ENTITIES = ("conll2003", "wnut17")
_word_scores = scorer({"accuracy": accuracy, "macro_f1": macro_f1})
_tag_scores = scorer({"accuracy": accuracy})


@dataclasses.dataclass(frozen=True)
class _LabelledWords:
    """The words that a feature labels, and their positions in the feature."""

    example: int
    size: int  # the length of the feature in tokens
    word: int  # the index of the first labelled word in its sentence
    columns: np.ndarray  # int64 [words]: the positions of the first pieces of the labelled words


@dataclasses.dataclass(frozen=True)
class TokenTask:
    """A token classification task. Call `features` before the methods that take logits, because it stores the positions of the
    words."""

    name: str
    config: TaskConfig
    splits: Mapping[str, Sequence[WordsExample]]
    labels: tuple[str, ...]
    has_entities: bool
    """Whether the tags mark entities, which are scored as a whole. Otherwise, the tags are classes of single words."""
    say: Say = note
    _labelled: dict[str, list[_LabelledWords]] = dataclasses.field(default_factory=dict)

    @property
    def head(self) -> TokenHead:
        """The head, with an output for each label."""
        return TokenHead(labels=self.labels)

    @property
    def metric(self) -> str:
        """F1 over entities, or accuracy over words."""
        return "f1" if self.has_entities else "accuracy"

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns the features of a split, in the order of sentences and their parts. Targets are -1 except at the first pieces
        of words whose label occurs in training.

        A word without a piece becomes [UNK], and a word longer than a feature is truncated. The first call for a split reports
        the number of such words.
        """
        examples, room = self.splits[split], self.config.length - 2
        ids_of = {label: i for i, label in enumerate(self.labels)}
        found: list[tuple[Feature, _LabelledWords]] = []
        unread, long = 0, 0
        for members in _texts(examples, self.config.context):
            words = [word for i in members for word in examples[i].words]
            pieces, firsts, counts = tokenizer.encode_words(words)
            unknown = (word for i, word in enumerate(words) if pieces[firsts[i]] == tokenizer.unk_id)
            unread += sum(not tokenizer.encode(word) for word in unknown)
            long += sum(count > room for count in counts)
            kept = [pieces[first : first + min(counts[i], room)] for i, first in enumerate(firsts)]
            ids = np.array(list(itertools.chain.from_iterable(kept)), np.int32)
            starts = np.cumsum([0, *map(len, kept)])
            end = 0
            for i in members:
                first, end = end, end + len(examples[i].words)
                labels = _targets(examples[i], ids_of, self.config.scheme)
                for a, b in _parts(starts, first, end, room):
                    begin, stop = _surrounded(starts, a, b, room)
                    shown = ids[starts[begin] : starts[stop]]
                    columns = 1 + starts[a:b] - starts[begin]
                    row = np.concatenate([[tokenizer.cls_id], shown, [tokenizer.sep_id]]).astype(np.int32)
                    target = None
                    if labels is not None:
                        target = np.full_like(row, -1)
                        target[columns] = labels[a - first : b - first]
                    feature = Feature(i, (row,), (np.zeros_like(row),), target, columns.astype(np.int32))
                    found.append((feature, _LabelledWords(i, len(row), a - first, columns)))
        if split not in self._labelled:
            if unread:
                self.say(
                    f"{self.name}, {split}: the tokenizer can read no character of {counted(unread, 'word')}; [UNK] is used "
                    "instead"
                )
            if long:
                self.say(
                    f"{self.name}, {split}: {counted(long, 'word')} longer than {counted(room, 'piece')}; only the first "
                    f"{counted(room, 'piece')} of such a word are read"
                )
        found.sort(key=lambda pair: pair[0].example)  # in the user's file, the sentences of a document need not follow each other
        self._labelled[split] = [place for _, place in found]
        return [feature for feature, _ in found]

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the scores. For entities, these are f1, precision, recall, the accuracy over tags, and f1_TYPE for each type
        in training or in the split. For other labels, they are accuracy and macro_f1. Sentences without labels do not count.

        The true entities always come from the tags in the file. The accuracy compares tags after they are converted to
        `config.scheme`."""
        return self._scored(split, self._predicted(split, logits))

    def baseline(self, split: str) -> Baseline:
        """Returns the scores of predicting one label for all words. The scores with the prefix `word_` predict each word's most
        frequent label in training. A word that is not in the training set then gets the most frequent label overall (O for
        entities)."""
        by_word: dict[str, Counter[str]] = {}
        for example in self.splits["train"]:
            labels = self._in_scheme(example)
            for i, word in enumerate(example.words):
                by_word.setdefault(word, Counter()).update([labels[i]])
        overall = sum(by_word.values(), Counter[str]())
        usual = min(overall, key=lambda label: (-overall[label], label))
        of_word = {word: min(counts, key=lambda label: (-counts[label], label)) for word, counts in by_word.items()}
        examples = self.splits[split]
        own = self._scored(split, [[of_word.get(word, usual) for word in example.words] for example in examples])
        if not own:
            return Baseline()

        def constant(label: str) -> Constant:
            return repr(label), self._scored(split, [[label] * len(example.words) for example in examples])

        here = Counter(label for example in examples for label in self._in_scheme(example))
        others = sorted(here, key=lambda label: (-here[label], label))[:MOST_CONSTANTS]
        same = constant_baseline(self.metric, split, constant(usual), map(constant, others))
        named = {"each word's most frequent label in training": own[self.metric]}
        return Baseline({**same.scores, **{f"word_{name}": score for name, score in own.items()}}, {**same.named, **named})

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns `ALIKE` if the same label is predicted for all words, otherwise ""."""
        return ALIKE if len({label for labels in self._predicted(split, logits) for label in labels}) < 2 else ""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes SPLIT.conll, the input of conlleval. The file has a line `word label prediction` for each word (without the
        label if it is unknown), and a blank line after each sentence. White space inside a word or label becomes "_". If
        `config.scheme` is set, the predictions are in IOB2, which conlleval accepts together with labels in any scheme."""
        lines = []
        for number, tags in enumerate(self._predicted(split, logits)):
            example = self.splits[split][number]
            tags = convert(tags, "IOB2") if self.config.scheme else tags
            columns = [example.words, tags] if example.labels is None else [example.words, example.labels, tags]
            lines += [" ".join(re.sub(r"\s", "_", column[i]) for column in columns) for i in range(len(tags))]
            lines.append("")
        return [predictions_file(directory, f"{split}.conll", "".join(f"{line}\n" for line in lines))]

    def _in_scheme(self, example: WordsExample) -> Sequence[str]:
        return _in_scheme(example.labels or (), self.config.scheme)

    def _predicted(self, split: str, logits: Sequence[np.ndarray]) -> list[list[str]]:
        """Returns the predicted label of every word of every sentence."""
        if split not in self._labelled:
            raise ValueError(f"call features({split!r}, tokenizer) first: it stores the positions of the words")
        predicted = [[""] * len(example.words) for example in self.splits[split]]
        for place, values in zip(self._labelled[split], logits, strict=True):
            best = values[place.columns].argmax(1)
            predicted[place.example][place.word : place.word + len(best)] = [self.labels[i] for i in best.tolist()]
        return predicted

    def _scored(self, split: str, predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        """Returns the scores of `predictions`, the labels of every sentence in the split, in the scheme used for training."""
        known = [(example, predictions[i]) for i, example in enumerate(self.splits[split]) if example.labels is not None]
        if not known:
            return {}
        words = [label for _, tags in known for label in tags]
        words += [label for example, _ in known for label in self._in_scheme(example)]
        answers, true = np.unique(words, return_inverse=True)[1].reshape(2, -1)
        if not self.has_entities:
            return _word_scores(split, answers, true)
        overall, types = entity_scores([tags for _, tags in known], [example.labels or () for example, _ in known])
        scores = {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
        scores |= _tag_scores(split, answers, true)
        kinds = sorted({*types, *(label.partition("-")[2] for label in self.labels)} - {""})
        return scores | {f"f1_{kind}": types[kind].f1 if kind in types else 0.0 for kind in kinds}


def load(config: TaskConfig, say: Say = note) -> TokenTask:
    """Returns the task `config.name` from its files.

    The official files are in `config.data_dir`. If `data_dir` is empty, the examples come from the tfds catalogue. The test set
    may be absent. The labels are all labels in the training file, even if `train_rows` is set. A label that occurs only in
    another official file is reported, and its words count as wrong. In the user's own files, such a label is an error. A test
    set may have no tags. Its files then have one column fewer than the training file. In CoNLL-U, all tags are then "_". Raises
    UserError for missing or invalid files, if an entity task has a label that is not a tag, or if `config.scheme` is set but
    the labels are not tags."""
    labels: tuple[str, ...] = ()
    if config.name == "own/token":
        data = load_own_data(config.own, KIND, say=say)
        splits, labels = {split: getattr(data, split) for split in SPLITS}, data.labels
        paths = {split: pathlib.Path(getattr(config.own, split)) for split in SPLITS if getattr(config.own, split)}
    else:
        paths = _official_files(config)
        splits = _official(config, paths, say)
    splits = {split: examples for split, examples in splits.items() if examples}
    usable_splits(config, splits)  # raises UserError if train or dev is absent
    labels = labels or collect_labels(splits.get("train", ()))
    tags = sorted(set(labels).union(*(example.labels or () for examples in splits.values() for example in examples)))
    meant = as_tags(tags)
    words_only = [] if meant else [label for label in tags if not is_tag(label)]
    if words_only and (config.scheme or config.name in _ENTITIES):
        remedy = 'set config.task.scheme=""' if config.scheme else "correct the file, or give another file"
        where = next(filter(None, (_first_line(config, path, words_only[0]) for path in paths.values())), config.name)
        raise UserError(f"{where} has the label {words_only[0]!r}, not an entity tag such as O or B-PER; {remedy}")
    if words_only and looks_like_tags(tags):
        where = next(filter(None, (_first_line(config, path, words_only[0]) for path in paths.values())), config.name)
        say(
            f"WARNING: {where} has the label {words_only[0]!r}, which is not an entity tag such as O, B-PER or I-PER, so the "
            "metric is accuracy over words; to get F1 over entities, correct this label"
        )
    elif words_only:
        given = [label for example in splits.get("train", ()) for label in example.labels or ()]
        if 2 * given.count("O") > len(given):
            say(
                f"WARNING: {config.name}: {given.count('O') / len(given):.0%} of the words of train are O, but labels such as "
                f"{words_only[0]!r} have no B- or I-, so the metric is accuracy over words; to get F1 over entities, write "
                f"I-{words_only[0]}, and words in a row with the same label are one entity"
            )
    if other := {label: tag for label, tag in meant.items() if label != tag}:
        say(f"{config.name}: the tags {', '.join(other)} are read as {', '.join(other.values())}")
        splits = {split: [_renamed(example, meant) for example in examples] for split, examples in splits.items()}
        labels = tuple(dict.fromkeys(meant.get(label, label) for label in labels))
    if config.scheme:
        labels = collect_labels(dataclasses.replace(e, labels=_in_scheme(e.labels or (), config.scheme)) for e in splits["train"])
    for split, examples in splits.items():
        given = [label for e in examples for label in e.labels or ()]
        asked = [label for e in examples for label in _in_scheme(e.labels or (), config.scheme)]
        strange = [(given[i], label) for i, label in enumerate(asked) if label not in labels]
        if strange:
            named = ", ".join(sorted({label for _, label in strange}))
            first = next((label for label, tag in meant.items() if tag == strange[0][0]), strange[0][0])
            where = (_first_line(config, paths[split], first) if split in paths else "") or f"{config.name}, {split}"
            say(
                f"{where}: the training set has no {named}, so {counted(len(strange), 'word')} of {split} cannot be predicted "
                "correctly; correct the label, or add training examples with this label"
            )
        if config.context == "document" and len({example.document for example in examples}) == len(examples):
            say(f'{config.name}, {split}: no document has two sentences, so context="document" has no effect')
    has_entities = not words_only and (config.name in _ENTITIES or tags != ["O"])
    return TokenTask(config.name, config, usable_splits(config, splits), labels, has_entities, say)


def _official_files(config: TaskConfig) -> dict[str, pathlib.Path]:
    """Returns the file of each split in `config.data_dir`, or {} if `data_dir` is empty. The test set may be absent."""
    found: dict[str, pathlib.Path] = {}
    directory, (_, names) = pathlib.Path(config.data_dir), _FILES[config.name]
    for split in SPLITS if config.data_dir else ():
        paths = next(filter(None, (sorted(directory.glob(pattern)) for pattern in names[split])), [])
        if len(paths) > 1:
            raise UserError(
                f"{directory} has both {paths[0].name} and {paths[1].name} for the {split} split; remove one of the two"
            )
        if not paths and split != "test":
            looked = " or ".join(names[split])
            raise UserError(
                f"config.task.data_dir={directory} has no {looked}, the {split} split of {config.name}; give another "
                "directory"
            )
        if paths:
            found[split] = paths[0]
    return found


def _official(config: TaskConfig, paths: Mapping[str, pathlib.Path], say: Say) -> dict[str, list[WordsExample]]:
    if not paths:
        return {split: catalogue.examples(config.name, split, say=say) for split in SPLITS}
    if _FILES[config.name][0] is read_conllu:
        return {split: read_conllu(path, may_lack_tags=split == "test", say=say) for split, path in paths.items()}
    untagged = "test" in paths and conll_width(paths["test"]) < conll_width(paths["train"])
    return {split: read_conll(path, tag=None if untagged and split == "test" else -1, say=say) for split, path in paths.items()}


def _first_line(config: TaskConfig, path: pathlib.Path, label: str) -> str:
    """Returns the first line of a file with this label, as "PATH, line 3". Returns "" if there is no such line, or if the file
    is not a text file."""
    if not path.is_file() or suffix(path) in COLUMNAR:
        return ""

    def has(line: str) -> bool:
        if config.name == "own/token":
            return label in re.split(r"[\s,;|\"\[\]]+", line)
        return line.split("\t")[3:4] == [label]

    if config.name in _ENTITIES:
        found = first_with_tag(path, label)
    else:
        found = next((i for i, line in enumerate(split_lines(read_text(path)), 1) if has(line)), None)
    return "" if found is None else f"{path}, line {found}"


def _renamed(example: WordsExample, tags: Mapping[str, str]) -> WordsExample:
    return dataclasses.replace(example, labels=None if example.labels is None else tuple(tags[label] for label in example.labels))


def _in_scheme(labels: Sequence[str], scheme: str) -> tuple[str, ...]:
    return tuple(convert(labels, scheme) if scheme else labels)


def _targets(example: WordsExample, ids_of: Mapping[str, int], scheme: str) -> np.ndarray | None:
    """Returns the label ids of a sentence, int32 [words], or None if the sentence has no labels. Labels that are not in the
    training set have the id -1."""
    if example.labels is None:
        return None
    return np.array([ids_of.get(label, -1) for label in _in_scheme(example.labels, scheme)], np.int32)


def _texts(examples: Sequence[WordsExample], context: str) -> Iterable[list[int]]:
    """Returns, for each text, the indices of its examples. A text is a document or a single sentence."""
    if context == "sentence":
        return ([i] for i in range(len(examples)))
    documents: dict[int, list[int]] = {}
    for i, example in enumerate(examples):
        documents.setdefault(example.document, []).append(i)
    return documents.values()


def _parts(starts: np.ndarray, first: int, end: int, room: int) -> list[tuple[int, int]]:
    """Divides the words [first, end) of a sentence into ranges. A feature labels the words of one range. `starts` are the
    indices of the first pieces of all words in the text. `room` is the number of pieces in a feature."""
    if starts[end] - starts[first] <= room:
        return [(first, end)] if end > first else []
    parts = []
    while first < end:
        fitting = int(np.searchsorted(starts, starts[first] + room // 2, side="right")) - 1
        stop = min(max(fitting, first + 1), end)
        parts.append((first, stop))
        first = stop
    return parts


def _surrounded(starts: np.ndarray, first: int, end: int, room: int) -> tuple[int, int]:
    """Returns the range of words that a feature shows. This is [first, end), extended in both directions by as many words as
    fit. Both sides get the same number of pieces, unless the text ends on one side."""
    free = room - int(starts[end] - starts[first])
    before = max(free // 2, free - int(starts[-1] - starts[end]))
    begin = int(np.searchsorted(starts, starts[first] - before))
    return begin, int(np.searchsorted(starts, starts[begin] + room, side="right")) - 1
