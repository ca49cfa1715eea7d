"""Extractive question answering: SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), and the user's own questions.

A long context is split into windows, and each window is a feature. The target of a window is the first answer that consists of
whole tokens of the context. The target is [CLS] if the window does not contain the whole answer, or if the question has no
answer (run_squad.py). `best_spans` predicts the answer to a question from all windows of the question.

In SQuAD 2.0, the prediction is "no answer" if the margin of "no answer" exceeds a threshold. For the dev set, `scores` and
`write_predictions` tune this threshold for F1, on the logits that are passed to them. All other splits use the last tuned
threshold, so the dev set must be scored first, with the same model. Before that, the threshold is 0, as in the original. Each
thread has a threshold of its own, because the runs of a sweep train in parallel, each in a thread."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted, cut
from bert_jax.model.heads.span import SpanHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.own_data import SPLITS, load_own_data
from bert_jax.tasks.readers.squad import read_squad
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import (
    Baseline,
    Constant,
    constant_baseline,
    find_threshold,
    normalise,
    question_scores,
    squad1_scores,
    squad2_scores,
)
from bert_jax.tasks.spans import Answer, Context, SpanSearch, Window, best_spans, windows
from bert_jax.tasks.task import all_equal, predictions_file, usable_splits

_VERSIONS = {"squad/v1.1": "v1.1.json", "squad/v2.0": "v2.0.json"}
KIND = SpanHead.kind
"""The kind of the head."""


@dataclasses.dataclass(frozen=True)
class _EncodedQuestion:
    """The windows of a question, and the characters [start, end) of every token in its context. Each window is a feature."""

    windows: list[Window]
    offsets: np.ndarray  # int64 [tokens, 2]


@dataclasses.dataclass(frozen=True)
class _Predictions:
    """The predictions for a split, by question id. The prediction is "no answer" if the margin exceeds the threshold."""

    answers: dict[str, Answer]
    texts: dict[str, str]  # the best spans
    margins: dict[str, float]  # the margins of "no answer"
    threshold: float


@dataclasses.dataclass(frozen=True)
class SpanTask:
    """A question answering task. Call `features` before the methods that take logits, because `features` stores the windows of
    a split. The last tuned threshold of "no answer" is also stored."""

    name: str
    config: TaskConfig
    splits: Mapping[str, Sequence[QuestionExample]]
    may_be_unanswerable: bool
    """Whether questions may have no answer. If so, the metrics of SQuAD 2.0 are used."""
    say: Say = note
    _encoded: dict[str, list[_EncodedQuestion]] = dataclasses.field(default_factory=dict)
    _tuned: threading.local = dataclasses.field(default_factory=threading.local, compare=False)
    in_percent: ClassVar[bool] = True
    """Whether the scores are in percent."""

    @property
    def head(self) -> SpanHead:
        """A start and an end logit for each token."""
        return SpanHead()

    @property
    def metric(self) -> str:
        """F1 over words, in percent. For SQuAD 2.0, the tuned threshold is applied."""
        return "f1"

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns the windows of every question, in order. Each window is a feature. A feature has no target if the answers are
        unknown, or if no token of the context belongs to an answer. The first call for "train" reports how many questions have
        no answer in the context, and how many answers start or end inside a token."""
        contexts: dict[str, tuple[list[int], np.ndarray]] = {}  # most contexts have several questions
        features: list[Feature] = []
        questions: list[_EncodedQuestion] = []
        inexact: list[str] = []
        lost: list[str] = []
        for i, example in enumerate(self.splits[split]):
            if example.context not in contexts:
                found, places = tokenizer.encode_with_offsets(example.context)
                contexts[example.context] = found, np.array(places, np.int64).reshape(-1, 2)
            ids, offsets = contexts[example.context]
            own = self._windows(tokenizer, example.question, ids)
            questions.append(_EncodedQuestion(own, offsets))
            tokens, is_exact = first_answer(example, offsets)
            if example.answers and not is_exact:
                (inexact if tokens else lost).append(example.id)
            known = tokens is not None or example.is_impossible
            features += [Feature(i, (w.input_ids,), (w.token_type_ids,), _target(w, tokens) if known else None) for w in own]
        if split == "train" and split not in self._encoded:  # only training needs answers made of whole tokens
            where = f"{self.name}, {split}"
            if inexact:
                self.say(
                    f"{where}: for training, answers that start or end inside a token are extended to whole tokens "
                    f"({counted(len(inexact), 'answer')}, the first is {inexact[0]})"
                )
            if lost:
                self.say(
                    f"{where}: questions without an answer in the context are not used in training "
                    f"({counted(len(lost), 'question')}, the first is {lost[0]})"
                )
        self._encoded[split] = questions
        return features

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the official metrics in percent, over the questions with known answers.

        The metrics of SQuAD 1.1 are f1 and exact_match. The metrics of 2.0 are f1 and exact at `threshold`. They are computed
        for all questions, for the questions with an answer (HasAns_), and for the questions without an answer (NoAns_).
        best_f1, best_exact and their thresholds follow the official script. This script may separate questions with equal
        margins, and reports a threshold of 0 if "no answer" to every question is best. best_f1 and best_exact may therefore be
        scores that no threshold attains."""
        predicted = self._predictions(split, logits)
        gold = _gold(self.splits[split])
        if not gold:
            return {}
        if not self.may_be_unanswerable:
            return _main_first(squad1_scores(gold, predicted.texts))
        scores = squad2_scores(gold, predicted.texts, predicted.margins, predicted.threshold)
        return _main_first(scores) | {"threshold": predicted.threshold}

    def baseline(self, split: str) -> Baseline:
        """Returns the scores of giving the same answer to every question. The text "" means "no answer"."""
        gold = _gold(self.splits[split])
        if not gold:
            return Baseline()

        def constant(text: str) -> Constant:
            scores = (squad2_scores if self.may_be_unanswerable else squad1_scores)(gold, dict.fromkeys(gold, text))
            return repr(text) if text else "no answer", _main_first(scores)

        usual = [*_usual_texts(_gold(self.splits["train"])), ""][0]
        return constant_baseline(self.metric, split, constant(usual), map(constant, ["", *_usual_texts(gold)[:3]]))

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns a description of degenerate predictions, or "" for other predictions. Predictions are degenerate if the best
        start is [CLS] in every window, or if the best start and end are at the same positions in every window. In SQuAD 2.0,
        they are also degenerate if "no answer" is predicted for every question, although some questions have an answer."""
        best = np.array([values.argmax(0) for values in logits])
        if all_equal(best[:, 0]) and not best[:, 0].any():
            return "every predicted span starts at [CLS], which is not an answer"
        if all_equal(best):
            return "every predicted span is at the same position"
        if not self.may_be_unanswerable or not any(_gold(self.splits[split]).values()):
            return ""
        predicted = self._predictions(split, logits)
        none = all(margin > predicted.threshold for margin in predicted.margins.values())
        return 'the prediction is "no answer" for every question' if none else ""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes two files, or three files for SQuAD 2.0. SPLIT_predictions.json has {id: text}, with "" for "no answer".
        SPLIT_nbest_predictions.json has {id: entries}. Each entry has the four fields of the original, and the characters
        [start, end) of the context. For 2.0, SPLIT_null_odds.json has {id: margin of "no answer"}. The official scripts read
        the first and the last file."""
        predicted = self._predictions(split, logits)
        given = {q: "" if predicted.margins[q] > predicted.threshold else text for q, text in predicted.texts.items()}
        entry = ("text", "probability", "start_logit", "end_logit", "start", "end")
        best = {q: [{name: getattr(s, name) for name in entry} for s in answer.spans] for q, answer in predicted.answers.items()}
        files = {"predictions.json": given, "nbest_predictions.json": best}
        if self.may_be_unanswerable:  # the margin is infinite if there is no span, but JSON has no infinity
            files["null_odds.json"] = {q: min(margin, sys.float_info.max) for q, margin in predicted.margins.items()}
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
            special_ids=(tokenizer.cls_id, tokenizer.sep_id),
        )

    def _answers(self, split: str, logits: Sequence[np.ndarray]) -> Iterator[tuple[str, Answer]]:
        """Yields the id and the `best_spans` of each question, before the tuned threshold is applied."""
        if split not in self._encoded:
            raise ValueError(f"call features({split!r}, tokenizer) first: it makes the windows")
        questions = self._encoded[split]
        if len(logits) != sum(len(question.windows) for question in questions):
            raise ValueError(f"logits of {len(logits)} features do not belong to {split}")
        c = self.config
        search = SpanSearch(c.n_best, c.n_best, c.max_answer, may_be_unanswerable=self.may_be_unanswerable)
        rest = iter(logits)
        for i, example in enumerate(self.splits[split]):
            question = questions[i]
            own = [next(rest) for _ in question.windows]
            yield example.id, best_spans(
                [values[:, 0] for values in own],
                [values[:, 1] for values in own],
                question.windows,
                Context(example.context, question.offsets),
                search,
            )

    def _predictions(self, split: str, logits: Sequence[np.ndarray]) -> _Predictions:
        answers = dict(self._answers(split, logits))
        texts = {q: next((span.text for span in answer.spans if span.text), "") for q, answer in answers.items()}
        margins = {q: answer.no_answer_margin for q, answer in answers.items()}
        threshold = getattr(self._tuned, "threshold", 0.0) if self.may_be_unanswerable else math.inf
        if self.may_be_unanswerable and split == "dev" and (gold := _gold(self.splits[split])):
            f1 = question_scores(gold, texts, exact=False)
            _, threshold = find_threshold(f1, gold, texts, margins, attainable=True)
            self._tuned.threshold = threshold
        return _Predictions(answers, texts, margins, threshold)


def first_answer(example: QuestionExample, offsets: np.ndarray) -> tuple[tuple[int, int] | None, bool]:
    """Returns `answer_tokens` of the target answer. This is the first answer that consists of whole tokens. If there is no such
    answer, it is the first answer that overlaps a token."""
    around = None
    for text, start in example.answers:
        if start is not None:
            tokens, is_exact = answer_tokens(example.context, offsets, text, start)
            if is_exact:
                return tokens, True
            around = around or tokens
    return around, False


def answer_tokens(context: str, offsets: np.ndarray, text: str, start: int) -> tuple[tuple[int, int] | None, bool]:
    """Returns the first and the last token of the answer `text` at character `start`, and whether the answer consists of whole
    tokens.

    offsets: int64 [tokens, 2], the characters [start, end) of each token in `context`. If the answer starts or ends inside a
    token, `start` may be wrong. In some files it is the first match of the text, such as "ten" in "contenders". The other
    matches of the text are then tried, and the nearest match is tried first. If no match consists of whole tokens, the tokens
    that cover the answer at `start` are returned. If the tokenizer drops all characters of the answer, no token covers the
    answer, and None is returned instead of the tokens."""

    def held(place: int) -> tuple[tuple[int, int] | None, bool]:
        tokens = np.flatnonzero((offsets[:, 0] < place + len(text)) & (offsets[:, 1] > place))
        if not len(tokens):
            return None, False
        first, last = int(tokens[0]), int(tokens[-1])
        return (first, last), context[offsets[first, 0] : offsets[last, 1]].strip() == text.strip()

    around, is_exact = held(start)
    if is_exact or not text.strip():
        return around, is_exact
    spans = [(context[begin:end], begin, end) for begin, end in offsets.tolist()]
    begins = sorted({begin + len(piece) - len(piece.lstrip()) for piece, begin, _ in spans})
    ends = {end - len(piece) + len(piece.rstrip()) for piece, _, end in spans}
    wanted, before = text.strip(), len(text) - len(text.lstrip())
    elsewhere = [at - before for at in begins if at + len(wanted) in ends and context.startswith(wanted, at)]
    for place in sorted(elsewhere, key=lambda place: abs(place - start)):
        tokens, is_exact = held(place)
        if is_exact:
            return tokens, True
    return around, False


def load(config: TaskConfig, say: Say = note) -> SpanTask:
    """Returns the task `config.name` from its files.

    SQuAD's files in `config.data_dir` are train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json. If
    `data_dir` is empty, the examples come from the tfds catalogue. The user's own questions are scored as SQuAD 2.0 if any of
    them is impossible. Raises UserError for missing or invalid files, and for impossible questions in SQuAD 1.1.
    """
    splits = _own(config, say) if config.name == "own/span" else _squad(config, say)
    impossible = [example for examples in splits.values() for example in examples if example.is_impossible]
    if impossible and config.name == "squad/v1.1":
        first = impossible[0].id
        raise UserError(
            f"question {cut(first)} has no answer, which SQuAD 1.1 does not allow; remove the question, or set "
            "config.task.name=squad/v2.0 and use train-v2.0.json and dev-v2.0.json"
        )
    for split, examples in splits.items():
        if unknown := sum(not example.answers and not example.is_impossible for example in examples):
            say(
                f"{config.name}, {split}: questions without an answer in the file are used neither in training nor in scores "
                f"({counted(unknown, 'question')})"
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
        counts = Counter(example.id for example in examples)
        name = max(counts, key=counts.__getitem__, default="")
        if (count := counts[name]) > 1:
            raise UserError(
                f"{getattr(config.own, split)}: {counted(count, 'question')} share the id {name!r}; give each question an id "
                "of its own"
            )
    return splits


def _target(window: Window, tokens: tuple[int, int] | None) -> np.ndarray:
    """Returns the positions of an answer in a window, int32 [2]. `tokens` are the first and the last token of the answer in the
    context. Returns (0, 0), the position of [CLS], if `tokens` is None or the window does not contain the whole answer."""
    if tokens is None or tokens[0] < window.context_start or tokens[1] >= window.context_start + window.context_length:
        return np.zeros(2, np.int32)
    return np.array(tokens, np.int32) + np.int32(window.offset - window.context_start)


def _gold(examples: Sequence[QuestionExample]) -> dict[str, list[str]]:
    """Returns the answers by question id, for the questions with known answers."""
    return {e.id: [text for text, _ in e.answers] for e in examples if e.answers or e.is_impossible}


def _usual_texts(gold: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the distinct answers, the most frequent first. The text "" means "no answer". Answers that differ only in case,
    punctuation and articles count as the same answer. Only the first of these answers is returned."""
    texts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for answers in gold.values():
        own = {normalise(answer): answer for answer in reversed(answers)} or {"": ""}
        counts.update(own.keys())
        for key, text in own.items():
            texts.setdefault(key, text)
    return [texts[key] for key, _ in counts.most_common()]


def _main_first(scores: Mapping[str, float]) -> dict[str, float]:
    """Puts "f1" first, and drops the counts of questions."""
    return {"f1": scores["f1"]} | {name: score for name, score in scores.items() if not name.endswith("total")}
