from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import random

import numpy as np
import pytest

from bert_jax.data.rows import assemble_features, pack_features, row_shape
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.mention_task import LABELS, MentionTask, load, nearest_tokens, read_mentions
from tests.random_features import LAYOUTS

HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(pathlib.Path(__file__).parents[1] / "data" / "tiny_vocab.txt")


def example(text: str, pronoun: str = "she", a: str = "ann", b: str = "bo", label: str | None = "A", id: str = "x-1"):
    gender = {"she": "feminine", "her": "feminine", "he": "masculine", "his": "masculine"}.get(pronoun)
    starts = (text.index(name) for name in (pronoun, a, b))
    pronoun_start, a_start, b_start = starts
    return PronounExample(id, text, pronoun, pronoun_start, a, a_start, b, b_start, label, gender)


def task(*dev: PronounExample, train: tuple[PronounExample, ...] = (), length: int = 128, say=lambda message: None):
    return MentionTask("gap", length, {"train": train or dev, "dev": dev}, say)


def saying(*answers: int) -> list[np.ndarray]:
    return [np.eye(3, dtype=np.float32)[answer] * 4 for answer in answers]


# Mentions begin where words do. The text before them shifts offsets between text and tokens.
ADVERSARIAL = (
    "ann saw bo and she ran",
    "e\u0301é ann\u0301 caf\u00e9 bo: she",  # combining marks of their own, one of them on a name
    "İı ann ßß bo ﬁ she",  # lower-casing and decomposing change the lengths of these
    "😀 ann 😀😀 bo 👩‍👩‍👧 she",
    "中文ann中bo文she中",  # each ideograph is a word, so names need no space before them
    "한국 ann 각\u1100\u1161 bo she",  # Hangul is decomposed
    "\ufeffann\u00a0bo\u2003she\tun\u200bable",
    "(ann),'bo'—“she”",
    "a\u200bn ann \x01 bo \ufffd she",  # removed altogether
    "bo saw ann's she-",
    "hé\u0300\u0301\u0302 ann, ال bo ש she",
)


@pytest.mark.parametrize("text", ADVERSARIAL)
def test_marks_are_at_the_first_tokens_of_mentions(tiny: Tokenizer, text: str):
    said: list[str] = []
    asked = example(text)
    [feature] = task(asked, say=said.append).features("dev", tiny)
    assert feature.read_positions is not None
    assert feature.read_positions.dtype == np.int32
    assert said == []
    for mark, start in zip(feature.read_positions, (asked.pronoun_start, asked.a_start, asked.b_start), strict=True):
        # the feature's tokens from the mention on are those of the text from there on
        assert feature.ids[0][mark:-1].tolist() == tiny.encode(text[start:])


def test_a_feature_has_the_text_and_its_label(tiny: Tokenizer):
    examples = (example("ann saw bo and she ran", label=label) for label in ("A", "B", "neither", None))
    features = task(*examples).features("dev", tiny)
    assert [feature.target for feature in features] == [0, 1, 2, None]
    assert features[0].ids[0].tolist() == [tiny.cls_id, *tiny.encode("ann saw bo and she ran"), tiny.sep_id]
    assert features[0].types[0].tolist() == [0] * features[0].size


def test_mentions_move_with_the_feature_in_a_packed_row(tiny: Tokenizer):
    texts = ("ann saw bo and she ran", "hello bo: she is ann", "she, bo, ann")
    features = task(*map(example, texts)).features("dev", tiny)
    shape = row_shape(features, LAYOUTS["mention"])
    rows = pack_features(features, shape)
    batch = assemble_features(features, rows, len(rows), shape, tiny.pad_id)
    for r, members in enumerate(rows):
        for u, i in enumerate(members):
            read_positions = features[i].read_positions
            assert read_positions is not None
            assert (batch["input_ids"][r, batch["read_positions"][r, u]] == features[i].ids[0][read_positions]).all()
            assert (batch["position_ids"][r, batch["read_positions"][r, u]] == read_positions).all()
            assert (batch["sequence_ids"][r, batch["read_positions"][r, u]] == u + 1).all()


def test_a_mention_inside_of_a_token_is_reported_and_marked_at_the_nearest(tiny: Tokenizer):
    inside = example("hello ☃ann bo she")  # one unknown word
    silent = PronounExample("x-2", "she \u200b bo", "she", 0, "\u200b", 4, "bo", 6, "A", "feminine")
    nothing = PronounExample("x-3", "\u200b\u200c\u200d", "\u200b", 0, "\u200c", 1, "\u200d", 2, "A", "feminine")
    said: list[str] = []
    asked = task(example("ann saw bo and she ran"), inside, silent, nothing, say=said.append)
    features = asked.features("dev", tiny)
    assert asked.features("dev", tiny)[1].read_positions is not None
    assert len(said) == 1
    assert said[0].startswith("gap, dev: in 3 texts, a mention starts inside a token or has no token")
    assert said[0].endswith("the first text is x-1")
    assert features[1].ids[0][features[1].read_positions[1]] == tiny.unk_id  # type: ignore[index]
    assert tiny.tokens(features[2].ids[0][features[2].read_positions]) == ["s", "##e", "b"]  # type: ignore[index]
    assert features[3].ids[0].tolist() == [tiny.cls_id, tiny.unk_id, tiny.sep_id]
    assert features[3].read_positions.tolist() == [1, 1, 1]  # type: ignore[union-attr]


def test_a_mention_without_a_token_is_marked_by_the_nearest_end_of_a_token(tiny: Tokenizer):
    def marked(text: str, start: int) -> str:
        asked = PronounExample("x", text, "s", 0, text[start], start, "b", text.index("b"), "A", "feminine")
        reading = read_mentions(tiny, asked, 20)
        assert not reading.exact
        return text[slice(*reading.offsets[reading.mention_starts[1]])]

    assert marked("she\u200b bo", 3) == "e"  # the token before it is adjacent
    assert marked("s b she  \u200bhello", 9) == "hello"  # the next token begins one character later
    nothing = PronounExample("x-3", "\u200b\u200c\u200d", "\u200b", 0, "\u200c", 1, "\u200d", 2, "A", "feminine")
    assert read_mentions(tiny, nothing, 20).offsets == ((0, 3),)


def test_a_text_one_token_too_long_counts_as_broken(tiny: Tokenizer):
    asked = example("ann saw bo she", "she")
    count = len(tiny.encode("ann saw bo s"))  # to the first piece of the pronoun
    asked = dataclasses.replace(asked, text="ann saw bo s", pronoun="s")
    assert [read_mentions(tiny, asked, room).is_broken for room in (count - 1, count)] == [True, False]


@pytest.mark.parametrize("room", [28, 29])
def test_a_long_text_is_read_in_a_window_around_its_mentions(tiny: Tokenizer, room: int):
    text = "hello " * 30 + "ann hello bo hello she," + " world" * 30
    said: list[str] = []
    [feature] = task(example(text), length=room + 2, say=said.append).features("dev", tiny)
    inside = tiny.encode("ann hello bo hello she")
    before = (room - len(inside) + 1) // 2
    after = tiny.encode("," + " world" * room)[: room - len(inside) - before]
    assert feature.ids[0].tolist() == [tiny.cls_id, *tiny.encode("hello") * before, *inside, *after, tiny.sep_id]
    assert said == []


def test_mentions_too_far_apart_for_one_window_are_read_and_reported(tiny: Tokenizer):
    text = "ann " + "hello " * 50 + "bo " + "world " * 50 + "she"
    said: list[str] = []
    [feature] = task(example(text), length=32, say=said.append).features("dev", tiny)
    assert feature.size == 32
    for mark, name in zip(feature.read_positions, ("she", "ann", "bo"), strict=True):  # type: ignore[arg-type]
        pieces = tiny.encode(name)
        assert feature.ids[0][mark : mark + len(pieces)].tolist() == pieces
    assert len(said) == 1
    assert "in 1 text, mentions are more than 30 tokens apart" in said[0]


def test_the_nearest_tokens_are_kept_in_one_window_if_possible():
    draw = random.Random(0)
    for _ in range(500):
        count = draw.randint(3, 60)
        spans = [(a, min(count - 1, a + draw.randint(0, 4))) for a in (draw.randrange(count) for _ in range(3))]
        room = draw.randint(3, 70)
        kept = nearest_tokens(count, spans, room).tolist()
        assert kept == sorted(set(kept))
        assert len(kept) == min(count, room)
        assert {a for a, _ in spans} <= set(kept)
        first, last = min(a for a, _ in spans), max(b for _, b in spans)
        if last - first < room:
            assert kept == list(range(kept[0], kept[-1] + 1))
            assert kept[0] <= first <= last <= kept[-1]
            left, right = first - kept[0], kept[-1] - last
            assert abs(left - right) <= 1 or kept[0] == 0 or kept[-1] == count - 1
        else:
            firsts = {a for a, _ in spans}
            far = [-1 if i in firsts else min(max(a - i, i - b, 0) for a, b in spans) for i in range(count)]
            assert kept == sorted(sorted(range(count), key=lambda i: (far[i], i))[:room])


def test_scores_equal_the_official_scorer_on_the_written_file(tmp_path: pathlib.Path):
    """The counts are made from the written file as in gap_scorer.py: every name is a decision, by gender of the pronoun."""
    draw = random.Random(1)
    text = "ann saw bo and PRONOUN ran"
    examples = []
    for i in range(40):
        pronoun = draw.choice(("she", "her", "he", "his"))
        made = example(text.replace("PRONOUN", pronoun), pronoun, label=draw.choice(LABELS), id=f"dev-{i}")
        examples.append(made)
    asked = task(*examples)
    answers = [draw.randrange(3) for _ in examples]
    table, _ = asked.write_predictions(tmp_path, "dev", saying(*answers))
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file, ["ID", "A-coref", "B-coref"], delimiter="\t"))
    assert [row["ID"] for row in rows] == [f"dev-{i}" for i in range(40)]

    def f1(which: str | None) -> float:
        right = said = true = 0
        for row, made in zip(rows, examples, strict=True):
            if which in (None, made.gender):
                for name in ("A", "B"):
                    says, is_it = row[f"{name}-coref"] == "TRUE", made.label == name
                    right, said, true = right + (says and is_it), said + says, true + is_it
        precision, recall = right / said, right / true
        return 2 * precision * recall / (precision + recall)

    scores = asked.scores("dev", saying(*answers))
    assert scores[asked.metric] == pytest.approx(f1(None))
    assert scores["masculine_f1"] == pytest.approx(f1("masculine"))
    assert scores["feminine_f1"] == pytest.approx(f1("feminine"))
    assert scores["bias"] == pytest.approx(f1("feminine") / f1("masculine"))
    assert scores["accuracy"] == np.mean([LABELS[a] == made.label for a, made in zip(answers, examples, strict=True)])


def test_log_loss_uses_the_written_probabilities(tmp_path: pathlib.Path):
    examples = [example("ann saw bo and she ran", label=label, id=f"d-{label}") for label in LABELS]
    logits = [np.log(np.array(row, np.float32)) for row in ([0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4])]
    asked = task(*examples)
    _, table = asked.write_predictions(tmp_path, "dev", logits)
    assert table.read_text() == (
        "ID,A,B,NEITHER\nd-A,0.500000,0.300000,0.200000\nd-B,0.100000,0.800000,0.100000\nd-neither,0.300000,0.300000,0.400000\n"
    )
    assert asked.scores("dev", logits)["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.8) + math.log(0.4)) / 3)
    nan = [np.full(3, np.nan, np.float32)] * 3
    assert asked.scores("dev", nan)["log_loss"] == pytest.approx(math.log(3))
    assert asked.degeneracy("dev", nan)
    with pytest.raises(ValueError, match="zip"):
        asked.write_predictions(tmp_path, "dev", logits[:2])


def test_the_baseline_predicts_the_usual_answer_with_its_frequency():
    dev = [example("ann saw bo and she ran", label=label) for label in ("A", "B", "B")]
    train = [example("ann saw bo and she ran", label=label) for label in ("B", "A", "B", "B")]
    scores = task(*dev, train=tuple(train)).baseline("dev").scores
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx(2 / 3)
    assert scores["log_loss"] == pytest.approx(-(math.log(1 / 4) + 2 * math.log(3 / 4)) / 3)
    unlabelled = [dataclasses.replace(made, label=None) for made in dev]
    blind = task(*unlabelled, train=tuple(train))
    assert blind.baseline("dev").scores == blind.scores("dev", saying(0, 1, 2)) == {}


def test_a_single_answer_for_all_is_degenerate():
    asked = task(example("ann saw bo and she ran"))
    assert asked.degeneracy("dev", saying(2, 2, 2))
    assert asked.degeneracy("dev", saying(2, 2))
    assert not asked.degeneracy("dev", saying(2)), "a single answer means nothing"
    assert not asked.degeneracy("dev", saying(2, 0, 2))


def test_gap_has_train_dev_and_optionally_test_files(tmp_path: pathlib.Path):
    def put(name: str, *rows: str) -> None:
        (tmp_path / name).write_text("\n".join([HEADER, *rows]) + "\n")

    def row(i: int, pronoun: str = "she") -> str:
        return f"x-{i}\tann saw bo and {pronoun} ran\t{pronoun}\t15\tann\t0\tTRUE\tbo\t8\tFALSE\turl"

    put("gap-development.tsv", row(1), row(2), row(3))
    config = TaskConfig(name="gap", data_dir=str(tmp_path), train_rows=2)
    with pytest.raises(UserError, match=r"gap-validation\.tsv cannot be read"):
        load(config)
    put("gap-validation.tsv", row(4))
    assert {split: [made.id for made in examples] for split, examples in load(config).splits.items()} == {
        "train": ["x-1", "x-2"],
        "dev": ["x-4"],
    }
    put("gap-test.tsv", row(5))
    loaded = load(config)
    assert list(loaded.splits) == ["train", "dev", "test"]
    assert (loaded.head.kind, loaded.head.labels, loaded.metric) == ("mention", LABELS, "f1")
    put("gap-test.tsv", row(5), row(6, "they"))
    with pytest.raises(UserError, match=r"gap-test\.tsv: the pronoun 'they' of x-6 is neither masculine nor feminine; remove"):
        load(config)


def test_every_mention_of_the_real_gap_is_recovered_from_its_mark(shared_data: pathlib.Path):
    """In all 7,362 mentions, the tokens from the mark on are the tokens of the mention, and start at its first character."""
    vocab, length = shared_data / "vocab" / "bert-base-uncased-vocab.txt", 40
    if not (shared_data / "gap").is_dir() or not vocab.is_file():
        pytest.skip("needs gap and vocab in ../shared/data")
    tokenizer = load_tokenizer(vocab)
    loaded = load(TaskConfig(name="gap", data_dir=str(shared_data / "gap")))
    found, lost = 0, []
    for made in (*loaded.splits["train"], *loaded.splits["dev"]):
        reading = read_mentions(tokenizer, made, length - 2)
        mentions = ((made.pronoun_start, made.pronoun), (made.a_start, made.a), (made.b_start, made.b))
        assert len(reading.ids) <= length - 2
        for mark, (start, name) in zip(reading.mention_starts, mentions, strict=True):
            pieces = tokenizer.encode(name)
            is_there = reading.ids[mark : mark + len(pieces)].tolist() == pieces and reading.offsets[mark][0] == start
            found += is_there
            lost += [] if is_there else [(made.id, name)]
    assert lost == []
    assert found == 3 * (2000 + 454)
