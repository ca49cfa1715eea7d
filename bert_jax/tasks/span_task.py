"""Questions whose answer is a span of a context: SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), and questions of one's own.

A context that is too long is read in windows, each a feature. A window is to find the first answer that is some tokens of the
context; one that does not hold all of it is to point at [CLS], as is every window of a question without an answer
(run_squad.py). What is said of a question is `best_spans` over its windows.

In 2.0 "no answer" is said where its margin exceeds a threshold. That is tuned for F1 on the dev set in the call that scores it:
from the logits given, and from them alone. Every other split takes the threshold found last, so the dev set is to be scored by
the same model before; until then it is 0, the original's default.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_jax.corpus.tokenizer import Tokenizer
from bert_jax.errors import UserError, nearest
from bert_jax.examples.labelled import Feature
from bert_jax.heads.span import SpanHead
from bert_jax.interface.words import counted
from bert_jax.tasks.baselines import Baseline, Constant, constant_baseline
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.own_data import SPLITS, load_own_data
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.spans import Answer, Context, SpanSearch, best_spans
from bert_jax.tasks.squad_scores import find_threshold, normalise, question_scores, squad1_scores, squad2_scores
from bert_jax.tasks.task import TaskConfig, all_equal, predictions_file, usable_splits
from bert_jax.tasks.windows import Window, windows

_VERSIONS = {"squad/v1.1": "v1.1.json", "squad/v2.0": "v2.0.json"}
NAMES = (*_VERSIONS, "own/span")
KIND = SpanHead.kind
"""Of its head."""
EXPERIMENTS = {name: name.replace("squad/", "squad.py:") for name in _VERSIONS}


@dataclasses.dataclass(frozen=True)
class _Reading:
    """How a question was laid out: its windows, a feature each, and the characters of every token of its context."""

    windows: list[Window]
    offsets: np.ndarray  # int64 [C, 2]


@dataclasses.dataclass(frozen=True)
class _Verdicts:
    """What is said of a split, by question; "" is said instead of a text where its margin exceeds the threshold."""

    answers: dict[str, Answer]
    texts: dict[str, str]  # of the best span
    margins: dict[str, float]
    threshold: float


@dataclasses.dataclass(frozen=True)
class SpanTask:
    """A task of questions. It remembers how `features` laid out a split, which the methods that take logits need, and the
    threshold of "no answer" tuned last; nothing else."""

    name: str
    config: TaskConfig
    splits: Mapping[str, Sequence[QuestionExample]]
    may_be_unanswerable: bool
    """Whether "no answer" is an answer, and scores are those of SQuAD 2.0."""
    say: Say = note
    _readings: dict[str, list[_Reading]] = dataclasses.field(default_factory=dict, repr=False)
    _tuned: dict[str, float] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def head(self) -> SpanHead:
        """A start and an end logit for each token."""
        return SpanHead()

    @property
    def metric(self) -> str:
        """F1 over words, in percent; of 2.0 at the tuned threshold."""
        return "f1"

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """The windows of every question, in order. A question without a target is one whose answers are not known, or stand
        nowhere in the tokens of its context; these are said, once, as are answers that begin or end inside a token."""
        contexts: dict[str, tuple[list[int], np.ndarray]] = {}  # most are asked about several times
        features: list[Feature] = []
        readings: list[_Reading] = []
        inexact: list[str] = []
        lost: list[str] = []
        for i, example in enumerate(self.splits[split]):
            if example.context not in contexts:
                found, places = tokenizer.encode_with_offsets(example.context)
                contexts[example.context] = found, np.array(places, np.int64).reshape(-1, 2)
            ids, offsets = contexts[example.context]
            own = self._windows(tokenizer, example.question, ids)
            readings.append(_Reading(own, offsets))
            tokens, is_exact = first_answer(example, offsets)
            if example.answers and not is_exact:
                (inexact if tokens else lost).append(example.id)
            known = tokens is not None or example.is_impossible
            features += [Feature(i, (w.input_ids,), (w.token_type_ids,), _target(w, tokens) if known else None) for w in own]
        if split not in self._readings:
            where = f"{self.name}, {split}"
            if inexact:
                self.say(
                    f"{where}: {counted(len(inexact), 'answer')} beginning or ending inside a token, learnt with it, "
                    f"first {inexact[0]}"
                )
            if lost:
                self.say(
                    f"{where}: {counted(len(lost), 'question')} without an answer in the context, not learnt, first {lost[0]}"
                )
        self._readings[split] = readings
        return features

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """In percent. SQuAD 1.1: f1 and exact_match. 2.0: f1 and exact at `threshold`, also of the questions with an answer
        (HasAns_) and without (NoAns_); best_f1 and best_exact with their thresholds are what the official script finds, whose
        sweep may stop among equal margins, or at 0, where no threshold gives its score. Questions whose answers are not known
        do not count."""
        verdicts = self._verdicts(split, logits)
        gold = _gold(self.splits[split])
        if not gold:
            return {}
        if not self.may_be_unanswerable:
            return _main_first(squad1_scores(gold, verdicts.texts))
        scores = squad2_scores(gold, verdicts.texts, verdicts.margins, verdicts.threshold)
        return _main_first(scores) | {"threshold": verdicts.threshold}

    def baseline(self, split: str) -> Baseline:
        """Of one text for every question, whether its context holds it or not; "" is no answer."""
        gold = _gold(self.splits[split])
        if not gold:
            return Baseline()

        def constant(text: str) -> Constant:
            scores = (squad2_scores if self.may_be_unanswerable else squad1_scores)(gold, dict.fromkeys(gold, text))
            return repr(text) if text else "no answer", _main_first(scores)

        usual = [*_usual_texts(_gold(self.splits["train"])), ""][0]
        return constant_baseline(self.metric, split, constant(usual), map(constant, ["", *_usual_texts(gold)[:3]]))

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Whether the best start is [CLS] in every window, which is never an answer, or all windows say the same two columns, or,
        in 2.0, every question is said to have no answer though some have one."""
        best = np.array([values.argmax(0) for values in logits])
        if all_equal(best[:, 0]) and bool(best[0, 0] == 0):
            return "every answer begins at [CLS], which is never one"
        if all_equal(best):
            return "every answer is at the same place"
        if not self.may_be_unanswerable or not any(_gold(self.splits[split]).values()):
            return ""
        verdicts = self._verdicts(split, logits)
        none = all(margin > verdicts.threshold for margin in verdicts.margins.values())
        return "every question is said to have no answer" if none else ""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """SPLIT_predictions.json, {id: text}, "" for no answer; SPLIT_nbest_predictions.json, {id: entries}, each with the four
        fields of the original's and its characters [start, end) of the context; and of 2.0 SPLIT_null_odds.json, {id: margin of
        "no answer"}. The official scripts read the first and the last."""
        verdicts = self._verdicts(split, logits)
        given = {q: "" if verdicts.margins[q] > verdicts.threshold else text for q, text in verdicts.texts.items()}
        entry = ("text", "probability", "start_logit", "end_logit", "start", "end")
        best = {q: [{name: getattr(s, name) for name in entry} for s in answer.spans] for q, answer in verdicts.answers.items()}
        files = {"predictions.json": given, "nbest_predictions.json": best}
        if self.may_be_unanswerable:  # JSON knows no infinity, the margin where there is no span at all
            files["null_odds.json"] = {q: min(margin, sys.float_info.max) for q, margin in verdicts.margins.items()}
        return [
            predictions_file(directory, f"{split}_{name}", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            for name, content in files.items()
        ]

    def _windows(self, tokenizer: Tokenizer, question: str, context_ids: Sequence[int]) -> list[Window]:
        return windows(
            tokenizer.encode(question),
            context_ids,
            length=self.config.length,
            stride=self.config.doc_stride,
            max_question=self.config.max_question,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
        )

    def _answers(self, split: str, logits: Sequence[np.ndarray]) -> Iterator[Answer]:
        """What is said of each question, before any threshold."""
        if split not in self._readings:
            raise ValueError(f"call features({split!r}, tokenizer) first: it says where the windows are")
        readings = self._readings[split]
        if len(logits) != sum(len(reading.windows) for reading in readings):
            raise ValueError(f"logits of {len(logits)} features are not those of {split}")
        c = self.config
        search = SpanSearch(c.n_best, c.n_best, c.max_answer, may_be_unanswerable=self.may_be_unanswerable)
        rest = iter(logits)
        for example, reading in zip(self.splits[split], readings, strict=True):
            own = [next(rest) for _ in reading.windows]
            yield best_spans(
                [values[:, 0] for values in own],
                [values[:, 1] for values in own],
                reading.windows,
                Context(example.context, reading.offsets),
                search,
            )

    def _verdicts(self, split: str, logits: Sequence[np.ndarray]) -> _Verdicts:
        names = (example.id for example in self.splits[split])
        answers = dict(zip(names, self._answers(split, logits), strict=True))
        texts = {q: next((span.text for span in answer.spans if span.text), "") for q, answer in answers.items()}
        margins = {q: answer.no_answer_margin for q, answer in answers.items()}
        threshold = self._tuned.get("threshold", 0.0) if self.may_be_unanswerable else math.inf
        if self.may_be_unanswerable and split == "dev" and (gold := _gold(self.splits[split])):
            f1 = question_scores(gold, texts, exact=False)
            _, threshold = find_threshold(f1, gold, texts, margins, attainable=True)
            self._tuned["threshold"] = threshold
        return _Verdicts(answers, texts, margins, threshold)


def first_answer(example: QuestionExample, offsets: np.ndarray) -> tuple[tuple[int, int] | None, bool]:
    """`answer_tokens` of the answer to learn: the first that is exactly some tokens, else the first that has any."""
    around = None
    for text, start in example.answers:
        if start is not None:
            tokens, is_exact = answer_tokens(example.context, offsets, text, start)
            if is_exact:
                return tokens, True
            around = around or tokens
    return around, False


def answer_tokens(context: str, offsets: np.ndarray, text: str, start: int) -> tuple[tuple[int, int] | None, bool]:
    """The first and the last token of the answer `text` at `start`, and whether these are the answer, no character more.

    offsets: int64 [C, 2], the characters [start, end) of `context` of each token. Where the answer begins or ends inside a token
    ("ten" in "contenders": some files say the first place where the text stands), it is looked for elsewhere, nearest first; if
    nowhere it has tokens of its own, they are those that hold it at `start`. None where no token does: the answer is of
    characters that the tokenizer drops.
    """

    def held(place: int) -> tuple[tuple[int, int] | None, bool]:
        tokens = np.flatnonzero((offsets[:, 0] < place + len(text)) & (offsets[:, 1] > place))
        if not len(tokens):
            return None, False
        first, last = int(tokens[0]), int(tokens[-1])
        return (first, last), context[offsets[first, 0] : offsets[last, 1]].strip() == text.strip()

    around, is_exact = held(start)
    if not is_exact:
        elsewhere = (match.start() for match in re.finditer(f"(?={re.escape(text)})", context))
        for place in sorted(elsewhere, key=lambda place: abs(place - start)):
            tokens, is_exact = held(place)
            if is_exact:
                return tokens, True
    return around, is_exact


def load(config: TaskConfig, say: Say = note) -> SpanTask:
    """The task `config.name`, one of NAMES, from its files.

    SQuAD's are train-v1.1.json and dev-v1.1.json, or v2.0, in `config.data_dir`; without it, examples are those of tfds's
    catalogue. Questions of one's own are scored as SQuAD 2.0 where any of them is impossible. Raises UserError for files that are
    missing or faulty, and for impossible questions in SQuAD 1.1.
    """
    if config.name not in NAMES:
        raise UserError(f"config.task.name={config.name!r} is no task of questions; {nearest(config.name, NAMES)}")
    splits = _own(config, say) if config.name == "own/span" else _squad(config, say)
    impossible = [example for examples in splits.values() for example in examples if example.is_impossible]
    if impossible and config.name == "squad/v1.1":
        raise UserError(f"question {impossible[0].id} is impossible, as none of SQuAD 1.1 is; set config.task.name=squad/v2.0")
    for split, examples in splits.items():
        if unknown := sum(not example.answers and not example.is_impossible for example in examples):
            say(
                f"{config.name}, {split}: {counted(unknown, 'question')} without an answer in the file, neither "
                f"learnt nor counted"
            )
    return SpanTask(config.name, config, usable_splits(config, splits), bool(impossible) or config.name == "squad/v2.0", say)


def _squad(config: TaskConfig, say: Say) -> dict[str, list[QuestionExample]]:
    if not config.data_dir:
        return {split: catalogue.examples(config.name, split, say=say) for split in ("train", "dev")}
    directory = pathlib.Path(config.data_dir)
    return {split: read_squad(directory / f"{split}-{_VERSIONS[config.name]}", say=say) for split in ("train", "dev")}


def _own(config: TaskConfig, say: Say) -> dict[str, list[QuestionExample]]:
    data = load_own_data(config.own, KIND, say=say)
    splits = {split: getattr(data, split) for split in SPLITS}
    for split, examples in splits.items():
        name, count = next(iter(Counter(example.id for example in examples).most_common(1)), ("", 0))
        if count > 1:
            raise UserError(
                f"{getattr(config.own, split)}: the id {name!r} is that of {counted(count, 'question')}; each needs its own"
            )
    return splits


def _target(window: Window, tokens: tuple[int, int] | None) -> np.ndarray:
    """int32 [2], the columns of the context's `tokens`; [CLS] twice where there are none, or the window has not all of them."""
    if tokens is None or tokens[0] < window.context_start or tokens[1] >= window.context_start + window.context_length:
        return np.zeros(2, np.int32)
    return np.array(tokens, np.int32) + np.int32(window.offset - window.context_start)


def _gold(examples: Sequence[QuestionExample]) -> dict[str, list[str]]:
    """The answers of the questions of which they are known."""
    return {e.id: [text for text, _ in e.answers] for e in examples if e.answers or e.is_impossible}


def _usual_texts(gold: Mapping[str, Sequence[str]]) -> list[str]:
    """The answers by the number of questions they answer, most first; "" is that of a question without one. Those that differ in
    case, punctuation and articles alone are one, the first of them."""
    texts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for answers in gold.values():
        own = {normalise(answer): answer for answer in reversed(answers)} or {"": ""}
        counts.update(own.keys())
        for key, text in own.items():
            texts.setdefault(key, text)
    return [texts[key] for key, _ in counts.most_common()]


def _main_first(scores: Mapping[str, float]) -> dict[str, float]:
    """Without the numbers of questions."""
    return {"f1": scores["f1"]} | {name: score for name, score in scores.items() if not name.endswith("total")}
