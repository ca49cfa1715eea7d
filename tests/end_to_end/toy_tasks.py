"""Writes tiny labelled data in published formats, each with a rule that a model of a few thousand weights can learn, and the
initial model.

Every function writes the files of one task into a directory, as its reader expects them. The rules depend on single words ("fine"
and "bad", the names of a few people), so they are learned in seconds. Labels are about equally frequent, so always giving the
most frequent answer scores low.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.model.heads.head import TaskHead
from tests.interop.tiny import SPECIALS, make_labelled_model, make_model

TRAIN, DEV, TEST = 96, 40, 8
"""The number of examples in each split."""
ROWS = {"train": TRAIN, "dev": DEV, "test": TEST}
FILLER = ("the", "a", "old", "new", "house", "town", "road", "river", "by", "near", "it", "was", "said", "people", "saw")
NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay")
PLACES = ("rome", "oslo", "kiev", "bern")
WORDS = (*FILLER, *NAMES, *PLACES, "fine", "bad", "odd", "who", "where", "she", "he", "?", ".")


def write_vocabulary(directory: pathlib.Path) -> pathlib.Path:
    """Writes a tokenizer directory with every word used here, and letters for all others."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    source = directory.with_suffix(".txt")
    source.write_text("\n".join([*SPECIALS, *letters, *(f"##{x}" for x in letters), *WORDS]) + "\n")
    load_tokenizer(source, lowercase=True).save(directory)
    return directory


def write_model(directory: pathlib.Path, *, head: TaskHead | None = None, parts: Sequence[str] = (), **fields: Any) -> Model:
    """Writes a random BERT that is `easily_tuned`: 2 layers, 32 wide, 64 positions, by default with the heads of pretraining."""
    vocabulary = write_vocabulary(directory.with_name(f"{directory.name}-vocabulary"))
    shape = {"hidden_size": 32, "intermediate_size": 64, "max_position": 64, "num_heads": 2, "type_vocab_size": 2, **fields}
    if head is not None:
        model = make_labelled_model(vocabulary, head, parts, **shape)
    else:
        params, config = make_model(vocabulary, **shape)
        model = Model(params=params, config=config, tokenizer=load_tokenizer(vocabulary))
    model = dataclasses.replace(model, params=easily_tuned(model.params))
    export_model(directory, model)
    return model


def easily_tuned(params: Any) -> Any:
    """Returns random weights at scales that fine-tune quickly with any seed: plain LayerNorms, no biases, products that keep the
    size of their input, and words three times as large as positions and types."""
    scales = {"scale": 0.0, "bias": 0.0, "word_embeddings/embedding": 1.0 / 0.3}  # `make_model` draws with a deviation of 0.3
    flat = flatten_dict(params, sep="/")

    def scaled(path: str, x: Any) -> Any:
        factor = next((factor for end, factor in scales.items() if path.endswith(end)), 1.0 if "embedding" in path else 0.6)
        return np.float32(factor) * x + np.float32(path.endswith("scale"))

    return unflatten_dict({path: scaled(path, x) for path, x in flat.items()}, sep="/")


def sentence(rng: random.Random, *words: str, length: int = 6) -> str:
    """Returns filler with `words`, in their order, at some of its places."""
    drawn = rng.choices(FILLER, k=length)
    for place, word in zip(sorted(rng.sample(range(length + 1), len(words))), words, strict=True):
        drawn.insert(place, word)
    return " ".join(drawn)


def sentiment(directory: pathlib.Path) -> None:
    """Writes GLUE's SST-2: 1 if the sentence contains "fine", 0 if it contains "bad"."""
    rng = random.Random(1)
    for split in ROWS:
        labels = _balanced(rng, split, "01")
        texts = [sentence(rng, ("bad", "fine")[int(label)]) for label in labels]
        rows = enumerate(texts) if split == "test" else zip(texts, labels, strict=True)
        header = ("index", "sentence") if split == "test" else ("sentence", "label")
        _table(directory / "SST-2" / f"{split}.tsv", [header, *rows])


def inference(directory: pathlib.Path) -> None:
    """Writes GLUE's MNLI: "fine" in the hypothesis is an entailment, "bad" a contradiction, "odd" neutral."""
    rng = random.Random(2)
    words = {"entailment": "fine", "contradiction": "bad", "neutral": "odd"}
    for split, of in {"train": "train", "dev_matched": "dev", "dev_mismatched": "dev"}.items():
        rows = [(sentence(rng), sentence(rng, words[label]), label) for label in _balanced(rng, of, tuple(words))]
        _table(directory / "MNLI" / f"{split}.tsv", [("sentence1", "sentence2", "gold_label"), *rows])


def relatedness(directory: pathlib.Path) -> None:
    """Writes SICK: sentences are related (5) if the second contains "fine", unrelated (1) if it contains "bad"."""
    rng = random.Random(3)
    header = ("pair_ID", "sentence_A", "sentence_B", "entailment_label", "relatedness_score", "SemEval_set")
    rows: list[tuple[object, ...]] = [header]
    for split, name in {"train": "TRAIN", "dev": "TRIAL", "test": "TEST"}.items():
        for label in _balanced(rng, split, "15"):
            second = sentence(rng, *["fine" if label == "5" else "bad"] * 3, length=2)
            entails = "ENTAILMENT" if label == "5" else "NEUTRAL"
            rows.append((len(rows), sentence(rng), second, entails, label, name))
    _table(directory / "SICK.txt", rows)


def topics(directory: pathlib.Path) -> None:
    """Writes a user's own texts with any number of labels as JSON lines: "person" if a name occurs, "place" if a place does."""
    rng = random.Random(4)
    for split in ROWS:
        lines = []
        for kinds in _balanced(rng, split, ((), (), ("person",), ("place",), ("person", "place"))):
            words = [rng.choice(NAMES if kind == "person" else PLACES) for kind in kinds]
            lines.append({"text": sentence(rng, *words), "label": kinds})
        _lines(directory / f"{split}.jsonl", lines)


def own_pairs(directory: pathlib.Path) -> None:
    """Writes a user's own pairs with a value as JSON lines: 2 if the second text contains "fine", 0.5 for "odd", -1 for "bad"."""
    rng = random.Random(14)
    words = {2: "fine", 0.5: "odd", -1: "bad"}
    for split in ROWS:
        labels = _balanced(rng, split, tuple(words))
        rows = [{"text": sentence(rng), "text_b": sentence(rng, words[label]), "label": label} for label in labels]
        _lines(directory / f"{split}.jsonl", rows)


def entities(directory: pathlib.Path) -> None:
    """Writes CoNLL-2003: a first name is B-PER and the surname after it I-PER, a place B-LOC; two sentences per document."""
    rng = random.Random(5)
    for split, name in {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}.items():
        lines = []
        for n in range(ROWS[split]):
            words = sentence(rng, rng.choice(PLACES), length=4).split()
            at = rng.randrange(len(words) + 1)
            words[at:at] = rng.choice(NAMES[:3]), rng.choice(NAMES[3:])
            tags = ["B-LOC" if word in PLACES else "O" for word in words]
            tags[at : at + 2] = "B-PER", "I-PER"
            lines += [] if n % 2 else ["-DOCSTART- -X- -X- O", ""]
            lines += [f"{word} NN B-NP {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
        _write(directory / name, "\n".join(lines))


def parts_of_speech(directory: pathlib.Path) -> None:
    """Writes CoNLL-U: every word has one universal tag, the last two are written as one token, and the XPOS are not labels."""
    rng = random.Random(11)
    closed = {"DET": "the a", "ADJ": "old new", "ADP": "by near", "PRON": "it", "VERB": "was said saw", "PROPN": " ".join(NAMES)}
    tags = {word: tag for tag, words in closed.items() for word in words.split()}
    for split in ("train", "dev"):
        lines = []
        for _ in range(ROWS[split]):
            words = sentence(rng, *rng.choices(NAMES, k=2)).split()
            rows = [f"{i}\t{word}\t_\t{tags.get(word, 'NOUN')}\tX\t_\t_\t_\t_\t_" for i, word in enumerate(words, 1)]
            last = len(rows)
            rows.insert(last - 2, f"{last - 1}-{last}\t{''.join(words[-2:])}" + "\t_" * 8)
            lines += [f"# text = {' '.join(words)}", *rows, ""]
        _write(directory / f"toy-{split}.conllu", "\n".join(lines) + "\n")


def questions(directory: pathlib.Path, version: str = "v1.1") -> None:
    """Writes SQuAD: the question asks for a person, and the answer is the name in the context; in 2.0 half of the contexts have
    none."""
    rng = random.Random(6)
    for split in ("train", "dev"):
        entries = []
        for n in range(ROWS[split]):
            name = rng.choice(NAMES) if version == "v1.1" or n % 2 else ""
            context = sentence(rng, *filter(None, [name]))
            answers = [{"text": name, "answer_start": context.index(name)}] if name else []
            entry = {"id": f"{split}{n}", "question": "who was it ?", "answers": answers}
            entry |= {"is_impossible": not name} if version == "v2.0" else {}
            entries.append({"context": context, "qas": [entry]})
        data = [{"title": "a town", "paragraphs": entries}]
        _write(directory / f"{split}-{version}.json", json.dumps({"version": version, "data": data}))


def own_questions(directory: pathlib.Path) -> None:
    """Writes a user's own questions as JSON lines, with the answers of `questions`."""
    rng = random.Random(12)
    for split in ROWS:
        names = rng.choices(NAMES, k=ROWS[split])
        rows = [{"question": "who was it ?", "context": sentence(rng, name), "answers": [name]} for name in names]
        _lines(directory / f"{split}.jsonl", rows)


def continuations(directory: pathlib.Path) -> None:
    """Writes SWAG: the correct one of four endings contains "fine", the others "bad"."""
    rng = random.Random(7)
    header = ["", "video-id", "sent1", "sent2", "gold-source", *(f"ending{i}" for i in range(4)), "label"]
    for split, name in {"train": "train.csv", "dev": "val.csv"}.items():
        rows: list[Sequence[object]] = [header]
        for n, label in enumerate(_balanced(rng, split, range(4))):
            endings = [sentence(rng, "fine" if i == label else "bad", length=2) for i in range(4)]
            rows.append([n, "v", sentence(rng, length=2), "she", "gold", *endings, label])
        write_csv(directory / name, rows)


def own_choices(directory: pathlib.Path) -> None:
    """Writes three or four choices as JSON lines; as in `continuations`, the correct one contains "fine"."""
    rng = random.Random(13)
    for split in ROWS:
        lines = []
        for label, count in _balanced(rng, split, ((0, 3), (1, 3), (2, 4), (3, 4))):
            choices = [sentence(rng, "fine" if i == label else "bad", length=2) for i in range(count)]
            lines.append({"prompt": sentence(rng, length=2), "choices": choices, "label": label})
        _lines(directory / f"{split}.jsonl", lines)


def pronouns(directory: pathlib.Path) -> None:
    """Writes GAP: "she" is the one of the two people who is ada, eve or fay; if neither is, the answer is neither."""
    rng = random.Random(8)
    women, men = ("ada", "eve", "fay"), ("bob", "cyd", "dan")
    header = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")
    for split, name in {"train": "development", "dev": "validation"}.items():
        rows: list[Sequence[object]] = [header]
        for n, label in enumerate(_balanced(rng, split, ("A", "B", "neither"))):
            a = rng.choice(women if label == "A" else men)
            b = rng.choice(women if label == "B" else [man for man in men if man != a])
            text = sentence(rng, a, b, "she", length=4)
            places = [text.split().index(word) for word in ("she", a, b)]
            she, first, second = (sum(len(word) + 1 for word in text.split()[:place]) for place in places)
            is_a, is_b = (str(label == x).upper() for x in "AB")
            rows.append((f"{name}-{n + 1}", text, "she", she, a, first, is_a, b, second, is_b, "-"))
        _table(directory / f"gap-{name}.tsv", rows)


def own_texts(directory: pathlib.Path) -> None:
    """Writes train.csv and dev.csv with the columns text and label: "good" if the text contains "fine", "poor" if it contains
    "bad"."""
    rng = random.Random(9)
    for split in ("train", "dev"):
        labels = _balanced(rng, split, ("good", "poor"))
        rows = [(sentence(rng, "fine" if label == "good" else "bad"), label) for label in labels]
        write_csv(directory / f"{split}.csv", [("text", "label"), *rows])


WRITERS: Mapping[str, Callable[[pathlib.Path], None]] = {
    "glue/sst2": sentiment,
    "glue/mnli": inference,
    "sick/relatedness": relatedness,
    "conll2003": entities,
    "pos": parts_of_speech,
    "squad/v1.1": questions,
    "squad/v2.0": lambda directory: questions(directory, "v2.0"),
    "swag": continuations,
    "gap": pronouns,
    "own/sequence": topics,
    "own/sequence, values of pairs": own_pairs,
    "own/span": own_questions,
    "own/choice": own_choices,
}
"""By the name of the task; a suffix after a comma distinguishes two tasks of one name."""


def write_csv(path: pathlib.Path, rows: Iterable[Sequence[object]]) -> None:
    """Writes CSV, with quotes where they are needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _balanced(rng: random.Random, split: str, labels: Sequence[Any]) -> list[Any]:
    """Returns a label for each row of the split, all about equally often, shuffled."""
    drawn = [labels[n % len(labels)] for n in range(ROWS[split])]
    rng.shuffle(drawn)
    return drawn


def _table(path: pathlib.Path, rows: Iterable[Sequence[object]]) -> None:
    _write(path, "".join("\t".join(map(str, row)) + "\n" for row in rows))


def _lines(path: pathlib.Path, values: Iterable[object]) -> None:
    _write(path, "".join(json.dumps(value) + "\n" for value in values))


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
