from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model
from bert_jax.prediction.language import Score
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.questions import encoded, is_finite, shortened
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.prediction.reference import WITHIN, mixed_texts
from tests.prediction.test_labelling import CHOICE, SEQUENCE, SPAN, TOKENS
from tests.prediction.test_pronouns import HEAD as MENTION

pytestmark = pytest.mark.usefixtures("one_shape")


def test_a_predictor_is_loaded_from_a_directory_or_its_workdir(directory: pathlib.Path, predictor):
    for path in (directory, str(directory), directory.parent):
        loaded = Predictor.load(path)
        assert loaded.engine.name == str(directory)
    np.testing.assert_allclose(loaded.embed(["the river"]), predictor.embed(["the river"]), atol=WITHIN)


def test_every_question_answers_in_order_and_returns_nothing_for_no_input(predictor, labelled):
    texts = ["of [MASK]", "[MASK] is the river", "[MASK]"]
    assert [a.text for a in predictor.fill_mask(texts)] == texts
    assert [a["text_b"] for a in predictor.next_sentence([("the", text) for text in texts])] == texts
    assert [a["text"] for a in predictor.score(texts)] == texts
    assert [a["text"] for a in labelled(SEQUENCE)[1].classify(texts)] == texts
    assert [a["text"] for a in labelled(TOKENS)[1].tag(texts)] == texts
    assert [a["words"] for a in labelled(TOKENS)[1].tag([["the", "river"], ["of"]])] == [["the", "river"], ["of"]]
    assert [a["question"] for a in labelled(SPAN)[1].answer([(text, "the river") for text in texts])] == texts
    assert [a["prompt"] for a in labelled(CHOICE)[1].choose([(text, ["the", "of"]) for text in texts])] == texts
    for ask in (predictor.fill_mask, predictor.next_sentence, predictor.score, predictor.embed_words):
        assert ask([]) == []
    assert labelled(TOKENS)[1].tag([]) == []
    assert predictor.embed([]).shape == (0, 16)
    assert predictor.embed([], layers=(-2, -1), combine="concat").shape == (0, 32)


def test_layers_may_be_a_python_list(predictor):
    np.testing.assert_array_equal(predictor.embed(["the"], layers=[0, 1]), predictor.embed(["the"], layers=(0, 1)))


def test_the_first_unanswerable_text_is_named(predictor):
    with pytest.raises(UserError, match=r"text 3 of 4: no \[MASK\] in 'of'"):
        predictor.fill_mask(["[MASK]", "[MASK]", "of", "the"])
    with pytest.raises(UserError, match=r"^no \[MASK\] in 'of'"):
        predictor.fill_mask(["of"])


@pytest.mark.parametrize("name", ["fill_mask", "score", "embed", "embed_words", "classify", "tag"])
def test_a_single_string_is_refused_as_a_list(predictor, name):
    with pytest.raises(UserError, match=r"one text, not a list of texts; give \[text\]"):
        getattr(predictor, name)("[MASK]")


def test_texts_and_lists_of_words_are_not_mixed_up(labelled):
    with pytest.raises(UserError, match="tag them separately"):
        labelled(TOKENS)[1].tag(["the river", ["the", "river"]])


def test_an_unknown_option_is_a_type_error(predictor):
    with pytest.raises(TypeError, match="top_p"):
        predictor.fill_mask(["[MASK]"], top_p=1)


def test_any_question_can_be_asked_of_records(predictor):
    (answer,) = predictor.ask(Score(), [{"text": "the river"}])
    assert answer == predictor.score(["the river"])[0]


def test_lower_cased_models_answer_capitals_alike(tmp_path):
    vocabulary = make_vocabulary(tmp_path / "v", cased=False)
    export_model(tmp_path / "m", as_model(*make_model(vocabulary), vocabulary))
    small, large = Predictor.load(tmp_path / "m").embed(["the river of paris", "The RIVER of Paris"])
    np.testing.assert_allclose(small, large, atol=WITHIN)


STRANGE = {
    "emoji": "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "ideographs": "中文字",
    "one character": "x",
    "combining marks": "e\u0301\u0301\u0301",
    "right to left": "\u202eשלום\u202c",
    "spaces of all kinds": "a\u3000b\u00a0c\u2028d",
    "a long word": "x" * 5000,
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE.keys())
def test_unusual_text_is_answered(predictor, text):
    (vector,) = predictor.embed([text], truncate=True)
    assert np.isfinite(vector).all()
    np.testing.assert_allclose(predictor.embed([*mixed_texts(50), text], truncate=True)[-1], vector, atol=WITHIN)


@pytest.mark.parametrize("text", ["", " ", "\x01\x02", "\u200b", "\x00"], ids=repr)
def test_a_text_without_a_token_is_refused(predictor, text):
    with pytest.raises(UserError, match="has no tokens; give text"):
        predictor.embed([text])


def test_a_megabyte_is_truncated_or_refused(predictor):
    text = "the river " * 100_000
    with pytest.raises(UserError, match=r"'the river the river .*' is 200,002 tokens") as error:
        predictor.embed([text])
    assert len(str(error.value)) < 250
    np.testing.assert_allclose(predictor.embed([text], truncate=True), predictor.embed(["the river " * 19]), atol=WITHIN)


def test_an_item_has_the_layout_cls_text_sep_text_b_sep(predictor):
    tokenizer = predictor.engine.model.tokenizer
    item = encoded(predictor.engine, "the river", "of Paris")
    assert tokenizer.tokens(item.ids) == ["[CLS]", "the", "river", "[SEP]", "of", "Paris", "[SEP]"]
    assert item.segment_b == 4
    assert encoded(predictor.engine, "the").segment_b == -1
    assert tokenizer.mask_id not in encoded(predictor.engine, "[MASK]").ids
    assert encoded(predictor.engine, "[MASK]", with_specials=True).ids[1] == tokenizer.mask_id


@pytest.mark.parametrize(
    ("longest", "limit"),
    [
        (None, "40 of the model's position table"),
        (39, "39 of the model directory's max_seq_length"),
        (40, "40 of the model's position table"),
        (999, "40 of the model's position table"),
    ],
)
def test_the_smaller_of_two_limits_is_named(predictor, longest, limit):
    with pytest.raises(UserError, match=f"is 41 tokens with its .CLS. and .SEP., more than the {limit}; shorten it, or pass"):
        encoded(predictor.engine, "the " * 39, truncate=False, longest=longest)


def test_a_text_of_sixty_characters_is_shown_in_full():
    assert shortened("a" * 60) == repr("a" * 60)
    assert shortened("a" * 61) == repr("a" * 57 + "...")


@dataclasses.dataclass
class Answer:
    text: str
    masks: tuple[float, ...]


def test_mentions_take_three_names_and_a_text(labelled):
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        labelled(MENTION)[1].resolve([("the of is", "the", "of")])


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("finite", "broken"),
    [
        (1.5, NAN),
        (np.float32(1.5), np.float32(INF)),
        (np.ones((2, 2)), np.array([[1, 2], [3, NAN]])),
        ({"a": 1, "b": [2.5]}, {"a": 1, "b": [-INF]}),
        (({"a": {"b": 1.5}}, "nan", None, True), ({"a": {"b": NAN}}, "nan", None, True)),
        (Answer("nan", (1.5,)), Answer("nan", (1.5, NAN))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_that_are_not_finite_are_found_anywhere_in_an_answer(finite, broken):
    assert is_finite(finite)
    assert not is_finite(broken)
