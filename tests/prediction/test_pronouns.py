from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.pronouns import Resolve, find_mention
from bert_jax.prediction.streams import read_records
from tests.interop.tiny import WORDS
from tests.prediction.reference import WITHIN, label_outputs, mixed_texts, softmax

HEAD = MentionHead(labels=("A", "B", "neither"))


def test_the_answer_equals_the_unpacked_model(labelled):
    model, predictor = labelled(HEAD)
    draw = random.Random(5)
    asked, mention_positions = [], []
    for text in mixed_texts(60, longest=20, seed=4):
        words = [*text.split(), "the", "capital", "of"]  # at least three words, of one token each
        places = sorted(draw.sample(range(len(words)), 3), key=lambda _: draw.random())
        named = [f"{words[p]}#{words[: p + 1].count(words[p])}" for p in places]
        asked.append((" ".join(words), *named))
        mention_positions.append(np.array(places) + 1)  # after [CLS]
    t = model.tokenizer
    for answer, (text, *_), positions in zip(predictor.resolve(asked), asked, mention_positions, strict=True):
        expected = softmax(label_outputs(model, [t.cls_id, *t.encode(text), t.sep_id], mention_positions=positions))
        np.testing.assert_allclose([answer["probabilities"][label] for label in HEAD.labels], expected, atol=WITHIN)
        assert answer["label"] == HEAD.labels[expected.argmax()]
        assert answer["means"] == {"A": answer["a"], "B": answer["b"], "neither": None}[answer["label"]]
        assert text[answer["pronoun_start"] :].startswith(answer["pronoun"])


def test_a_text_longer_than_the_position_table_is_read_around_its_mentions(labelled):
    model, predictor = labelled(HEAD)
    around = "river of France is Paris"
    text = f"{'the ' * 60}{around}{' the' * 60}"
    (answer,) = predictor.resolve([(text, "is", "France", "Paris")])
    room, t = model.config.max_position - 2, model.tokenizer
    first = 60 + 2 - (room - 2) // 2  # the window is centred on the mentions
    ids = t.encode(text)[first : first + room]
    mention_positions = np.array([ids.index(t.encode(word)[0]) for word in ("is", "France", "Paris")]) + 1
    expected = softmax(label_outputs(model, [t.cls_id, *ids, t.sep_id], mention_positions=mention_positions))
    np.testing.assert_allclose([answer["probabilities"][label] for label in HEAD.labels], expected, atol=WITHIN)


@pytest.mark.parametrize(
    ("text", "mention", "place"),
    [
        ("the sheep and she", "she", (14, 17)),  # a complete word is preferred to a part of one
        ("she said she", "she#1", (0, 3)),
        ("she said she", "she#2", (9, 12)),
        ("C#2 is not C#3", "C#2", (0, 3)),  # unchanged
        ("彼女は彼と", "彼と", (3, 5)),
        ("Ann-Marie's dog", "Ann-Marie", (0, 9)),
        ("a (b) c", "(b)", (2, 5)),
    ],
)
def test_a_mention_is_found_in_the_text(text, mention, place):
    assert find_mention(text, mention) == place


@pytest.mark.parametrize(
    ("text", "mention", "message"),
    [
        ("the river", "she", "'she' does not occur in 'the river'; give a mention as it appears in the text"),
        ("she said she", "she", "'she' occurs 2 times in 'she said she'; choose one, for example 'she#1'"),
        ("she said she", "she#3", "'she#3': 'she' occurs 2 times in 'she said she'; give a number from 1 to 2"),
        ("she said she", "she#0", "give a number from 1 to 2"),
        ("she said", "  ", "a mention is empty; give its words as in the text"),
    ],
)
def test_a_mention_that_is_not_in_the_text_is_refused(text, mention, message):
    with pytest.raises(UserError, match=message):
        find_mention(text, mention)


def test_an_offset_selects_among_equal_mentions(labelled):
    _, predictor = labelled(HEAD)
    text = "the river is the capital of the river"
    record = {"text": text, "pronoun": "is", "a": "river", "b": "capital"}
    for number, start in ((1, 4), (2, 32)):
        by_number, by_offset = predictor.ask(Resolve(), [record | {"a": f" river#{number} "}, record | {"a_start": start}])
        assert by_offset == by_number
        assert by_offset["a_start"] == start
    for start, there in ((5, "'iver '"), (37, "nothing after 37 characters")):
        with pytest.raises(UserError, match=f"a_start={start}: the text has {there} there, not 'river'; count characters from 0"):
            predictor.ask(Resolve(), [record | {"a_start": start}])


def test_offsets_are_read_from_json_and_must_be_counts(tmp_path):
    record = {"text": "she and I", "pronoun": "she", "a": "I", "b": "and"}
    starts = [0, None, "0", -1, True, 1.0]
    file = tmp_path / "asked.jsonl"
    file.write_text("".join(json.dumps(record | {"pronoun_start": start}) + "\n" for start in starts))
    read = list(read_records([], str(file), Resolve.fields))
    assert [r.values["pronoun_start"] for r in read[:2]] == [0, None]
    assert [r.problem for r in read[:2]] == [None, None]
    assert [r.problem for r in read[2:]] == [
        f"its pronoun_start is {given}, not a character offset, 0 or more" for given in ('"0"', "-1", "true", "1.0")
    ]
    (line,) = read_records(["she and I\tshe\tI\tand\t0"], None, Resolve.fields)
    assert line.problem == "5 texts between TABs, but only 4 fields: text TAB pronoun TAB a TAB b"


def test_equal_names_and_models_without_a_trained_mention_head_are_refused(labelled):
    model, predictor = labelled(HEAD)
    with pytest.raises(UserError, match="b='is' is the pronoun itself; give the two names that it may refer to"):
        predictor.resolve([(" ".join(WORDS), "is", "river", "is")])
    with pytest.raises(
        UserError,
        match=r"a and b are both 'river' at character [0-9]+; give the two names that the pronoun "
        r"may refer to",
    ):
        predictor.resolve([(" ".join(WORDS), "is", "river", "river")])
    with pytest.raises(UserError, match="has no mention_head, so it cannot resolve pronouns"):
        labelled(SpanHead())[1].resolve([("a b c", "a", "b", "c")])
    fresh = Predictor(Engine(dataclasses.replace(model, untrained=frozenset(["mention_head"]))))
    with pytest.raises(UserError, match="the mention_head of this model was never trained, so it cannot resolve pronouns"):
        fresh.resolve([("a b c", "a", "b", "c")])


def test_text_output_shows_the_name(labelled):
    (answer,) = labelled(HEAD)[1].resolve([("the river is Paris", "is", "river", "Paris")])
    shown = Resolve().as_text({**answer, "means": "river", "probability": 0.5})
    assert shown.split() == ["50.00%", "is", "=", "river", "the", "river", "is", "Paris"]
    assert " is = neither " in Resolve().as_text({**answer, "means": None})
