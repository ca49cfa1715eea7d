from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model, without_parts
from bert_jax.prediction.language import Candidate, FillMask, NextSentence, Score, fill
from bert_jax.prediction.packing import Item
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.questions import encoded
from tests.interop.tiny import as_model, make_model
from tests.prediction.reference import WITHIN, engine_on, mixed_texts, pretrained_outputs, with_specials

pytestmark = pytest.mark.usefixtures("one_shape")

SOME = (0, 3, 17, 39)


def assert_same_candidates(ours: tuple[Candidate, ...], theirs: tuple[Candidate, ...]) -> None:
    assert [c.ids for c in ours] == [c.ids for c in theirs]
    np.testing.assert_allclose([c.probability for c in ours], [c.probability for c in theirs], atol=WITHIN)


@pytest.fixture(scope="module")
def blanks() -> list[str]:
    return mixed_texts(40, blank="[MASK]")


def test_candidates_are_sorted_by_the_softmax_of_the_unpacked_model(predictor, pretrained, blanks):
    answers = predictor.fill_mask(blanks, top_k=5)
    assert {len(a.masks) for a in answers} == {1, 2, 3}
    for text, answer in list(zip(blanks, answers, strict=True))[::4]:
        ids, _ = with_specials(pretrained, text)
        p = pretrained_outputs(pretrained, ids)["mlm"]
        places = [i for i, token in enumerate(ids) if token == pretrained.tokenizer.mask_id]
        assert len(answer.masks) == len(places) == text.count("[MASK]")
        for candidates, place in zip(answer.masks, places, strict=True):
            best = np.argsort(-p[place])[:5]
            assert [c.ids for c in candidates] == [(i,) for i in best]
            assert [c.token for c in candidates] == pretrained.tokenizer.tokens(best)
            np.testing.assert_allclose([c.probability for c in candidates], p[place, best], atol=WITHIN)


def test_rows_without_a_piece_are_never_predicted_but_count_in_the_softmax(vocabulary, tmp_path):
    pieces = load_tokenizer(vocabulary).size
    params, config = make_model(vocabulary, vocab_size=pieces + 5, num_layers=1)
    params["mlm_head"]["bias"][pieces : pieces + 5] += 3.0
    model = as_model(params, config, vocabulary)
    export_model(tmp_path / "model", model)
    predictor = Predictor(engine_on(tmp_path / "model"))
    ((found,),) = (answer.masks for answer in predictor.fill_mask(["the [MASK] of"], top_k=pieces))
    ids, _ = with_specials(model, "the [MASK] of")
    p = pretrained_outputs(model, ids)["mlm"][2]
    assert p.argmax() >= pieces
    assert sorted(i for c in found for i in c.ids) == list(range(pieces))
    np.testing.assert_allclose([c.probability for c in found], p[[c.ids[0] for c in found]], atol=WITHIN)
    with pytest.raises(UserError, match=rf"--top-k={pieces + 1} must be between 1 and the vocabulary's size {pieces}"):
        predictor.fill_mask(["the [MASK] of"], top_k=pieces + 1)
    assert "[PAD]" not in predictor.fill_mask(["the [MASK]"], top_k=2, pieces=3)[0].filled


@pytest.mark.parametrize(("more", "warns"), [(1_024, False), (1_025, True)])
def test_a_vocabulary_much_smaller_than_the_model_gives_a_warning(vocabulary, tmp_path, caplog, more, warns):
    pieces = load_tokenizer(vocabulary).size
    export_model(tmp_path / "model", as_model(*make_model(vocabulary, vocab_size=pieces + more), vocabulary))
    engine_on(tmp_path / "model")
    doubt = f"model have {pieces + more:,} rows for {pieces} pieces; is this the vocabulary that it was trained with?"
    assert any(doubt in message for message in caplog.messages) == warns


def test_a_mask_is_filled_the_same_alone_and_among_others(predictor, blanks):
    together = predictor.fill_mask(blanks, top_k=5)
    for i in SOME:
        (alone,) = predictor.fill_mask([blanks[i]], top_k=5)
        assert alone.filled == together[i].filled
        for ours, theirs in zip(together[i].masks, alone.masks, strict=True):
            assert_same_candidates(ours, theirs)


def words_by_beam(model, ids: list[int], place: int, length: int, width: int) -> list[tuple[tuple[int, ...], float]]:
    """Returns the `width` best words of `length` pieces, by a beam search that runs the plain model on one text after the
    other."""
    beam: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for step in range(length):
        grown = []
        for pieces, log_p in beam:
            slots = [*pieces, *[model.tokenizer.mask_id] * (length - step)]
            p = pretrained_outputs(model, [*ids[:place], *slots, *ids[place + 1 :]])["mlm"][place + step]
            for i, x in enumerate(p):
                if model.tokenizer.continuation_table[i] == (step > 0):
                    grown.append(((*pieces, i), log_p + math.log(x)))
        beam = sorted(grown, key=lambda h: -h[1])[:width]
    return beam


@pytest.mark.parametrize("text", ["the [MASK] of France is [MASK].", "[MASK]"])
def test_words_of_up_to_three_pieces_equal_a_beam_search_by_hand(predictor, pretrained, text):
    (answer,) = predictor.fill_mask([text], top_k=5, pieces=3)
    ids, _ = with_specials(pretrained, text)
    places = [i for i, token in enumerate(ids) if token == pretrained.tokenizer.mask_id]
    for candidates, place in zip(answer.masks, places, strict=True):
        found = [(pieces, math.exp(p / n)) for n in (1, 2, 3) for pieces, p in words_by_beam(pretrained, ids, place, n, 5)]
        found.sort(key=lambda word: -word[1])
        assert [c.ids for c in candidates] == [pieces for pieces, _ in found[:5]]
        np.testing.assert_allclose([c.probability for c in candidates], [p for _, p in found[:5]], atol=WITHIN)
        for c in candidates:
            first, *others = pretrained.tokenizer.tokens(c.ids)
            assert all(piece.startswith("##") for piece in others)
            assert c.token == first + "".join(piece[2:] for piece in others)


def test_longer_words_are_the_same_alone_and_among_others(predictor, blanks):
    together = predictor.fill_mask(blanks[:12], top_k=5, pieces=3)
    for i in (0, 7, 11):
        (alone,) = predictor.fill_mask([blanks[i]], top_k=5, pieces=3)
        assert len(together[i].masks) == len(alone.masks) == blanks[i].count("[MASK]") > 0
        for ours, theirs in zip(together[i].masks, alone.masks, strict=True):
            assert_same_candidates(ours, theirs)


@pytest.mark.parametrize(
    ("text", "tokens", "wanted"),
    [
        ("the river [MASK] of [MASK].", ["##s", "Paris"], "the rivers of Paris."),
        ("[MASK] [MASK]", ["[MASK]", "of"], "[MASK] of"),
        ("[MASK]", ["##s"], "s"),
        ("a[MASK]b", ["Paris"], "a Paris b"),
        ("to a[MASK]", ["Paris"], "to a Paris"),
    ],
)
def test_the_filled_text_has_the_best_candidates_and_joins_pieces(predictor, text, tokens, wanted):
    ids = {piece: i for i, piece in enumerate(predictor.engine.model.tokenizer.pieces)}
    masks = [(Candidate(token, (ids[token],), 0.5), Candidate("never", (2,), 0.4)) for token in tokens]
    assert fill(predictor.engine, text, masks) == wanted


def test_as_many_candidates_as_pieces_can_be_requested(predictor):
    size = predictor.engine.config.vocab_size
    ((candidates,),) = (answer.masks for answer in predictor.fill_mask(["the [MASK]"], top_k=size))
    assert sorted(c.ids[0] for c in candidates) == list(range(size))
    assert sum(c.probability for c in candidates) == pytest.approx(1, abs=WITHIN)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return list(zip(mixed_texts(40, longest=18, seed=2), mixed_texts(40, longest=18, seed=3), strict=True))


def test_next_sentence_probabilities_equal_the_unpacked_model(predictor, pretrained, pairs):
    answers = predictor.next_sentence(pairs)
    for (a, b), answer in list(zip(pairs, answers, strict=True))[::4]:
        p = pretrained_outputs(pretrained, *with_specials(pretrained, a, b))["nsp"]
        assert answer["probability"] == pytest.approx(p[0], abs=WITHIN)
        assert answer["is_next"] == (p[0] >= p[1])
        assert (answer["text"], answer["text_b"]) == (a, b)
    assert len({round(answer["probability"], 4) for answer in answers}) > 30, "the model distinguishes the pairs"


def test_a_pair_is_judged_the_same_alone_and_among_others(predictor, pairs):
    together = predictor.next_sentence(pairs)
    for i in SOME:
        assert predictor.next_sentence([pairs[i]])[0]["probability"] == pytest.approx(together[i]["probability"], abs=WITHIN)


def score_by_hand(model, ids: list[int]) -> list[float]:
    """Returns ln p of every token but [CLS] and [SEP], each masked alone in a pass of its own."""
    found = []
    for i in range(1, len(ids) - 1):
        masked = [*ids[:i], model.tokenizer.mask_id, *ids[i + 1 :]]
        found.append(math.log(pretrained_outputs(model, masked)["mlm"][i, ids[i]]))
    return found


def test_a_score_is_the_sum_over_masked_tokens(predictor, pretrained):
    texts = mixed_texts(40, longest=20, seed=4)
    answers = predictor.score(texts)
    for i in SOME:
        ids, _ = with_specials(pretrained, texts[i])
        wanted, answer = score_by_hand(pretrained, ids), answers[i]
        np.testing.assert_allclose([t["log_probability"] for t in answer["tokens"]], wanted, atol=WITHIN)
        assert [t["token"] for t in answer["tokens"]] == pretrained.tokenizer.tokens(ids[1:-1])
        assert answer["pseudo_log_likelihood"] == pytest.approx(sum(wanted), abs=len(wanted) * WITHIN)
        assert answer["pseudo_perplexity"] == pytest.approx(math.exp(-sum(wanted) / len(wanted)), rel=WITHIN)
        assert predictor.score([texts[i]])[0]["pseudo_log_likelihood"] == pytest.approx(
            answer["pseudo_log_likelihood"], abs=len(wanted) * WITHIN
        )


def test_a_model_without_token_types_scores_pairs(vocabulary, tmp_path):
    model = as_model(*make_model(vocabulary, type_vocab_size=1, num_layers=1), vocabulary)
    export_model(tmp_path / "m", model)
    (answer,) = Predictor(engine_on(tmp_path / "m")).next_sentence([("the river", "is Paris")])
    p = pretrained_outputs(model, with_specials(model, "the river", "is Paris")[0])["nsp"]
    assert answer["probability"] == pytest.approx(p[0], abs=WITHIN)


def test_a_model_saved_without_pooler_and_nsp_head_fills_masks(pretrained, predictor, tmp_path):
    export_model(tmp_path / "m", without_parts(pretrained, ["pooler", "nsp_head"]))
    (found,) = Predictor(engine_on(tmp_path / "m")).fill_mask(["the [MASK]"])
    assert len(found.masks) == 1
    assert_same_candidates(found.masks[0], predictor.fill_mask(["the [MASK]"])[0].masks[0])


def test_too_long_pairs_are_truncated_at_the_end_of_the_longer_text(predictor):
    for a, b in itertools.product((1, 10, 18, 19, 60), repeat=2):
        pair = ("the " * a, "of " * b)
        left, right = a, b
        while left + right > 37:
            left, right = (left - 1, right) if left > right else (left, right - 1)
        (cut,) = predictor.next_sentence([pair], truncate=True)
        (whole,) = predictor.next_sentence([("the " * left, "of " * right)])
        assert cut["probability"] == whole["probability"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.fill_mask(["no blank"]), r"no \[MASK\] in 'no blank'; write \[MASK\] in place of a word"),
        (lambda p: p.fill_mask(["a [mask]"]), r"no \[MASK\] in 'a \[mask\]'; write it in capitals"),
        (lambda p: p.fill_mask(["[MASK] " * 39]), r"is 41 tokens with its \[CLS\] .* than the 40 of .* table; shorten it$"),
        (lambda p: p.fill_mask(["[MASK] " * 37], pieces=3), "leaves no room for 3 pieces in a mask; shorten it, or lower"),
        (lambda p: p.fill_mask(["[MASK]"], top_k=0), "--top-k=0 must be between 1 and the vocabulary's"),
        (lambda p: p.fill_mask(["[MASK]"], pieces=9), "--pieces=9 must be between 1 and 8"),
        (lambda p: p.next_sentence([("the " * 20, "of " * 18)]), "is 41 tokens .*; shorten it, or pass --truncate"),
        (lambda p: p.next_sentence([("the", "\u200b")]), r"'\\u200b' has no tokens; give text"),
        (lambda p: p.score(["the", "\x01"]), r"text 2 of 2: '\\x01' has no tokens; give text"),
    ],
)
def test_unanswerable_questions_are_refused_with_a_remedy(predictor, ask, message):
    with pytest.raises(UserError, match=message):
        ask(predictor)


def test_text_output_lists_the_candidates_of_each_mask(predictor):
    question = FillMask(top_k=5)
    one, two = predictor.fill_mask(["the [MASK].", "[MASK] is [MASK]"], top_k=5)
    lines = question.as_text(one).splitlines()
    assert lines[0] == "the [MASK]."
    assert [line.split()[0][-1] for line in lines[1:]] == ["%"] * 5
    assert question.as_text(two).splitlines()[:2] == ["[MASK] is [MASK]", "  [MASK] 1"]
    assert len(question.as_text(two).splitlines()) == 1 + 2 * 6
    line_end = dataclasses.replace(one, masks=((Candidate("\n", (7,), 0.5),),))
    assert question.as_text(line_end).splitlines() == ["the [MASK].", "   50.00%  '\\n'"]
    scored = {"text": "a", "log_likelihood": -2.0, "perplexity": 4.0}
    assert Score().as_text(scored) == "log-likelihood     -2.000  perplexity      4.00 a token  a"
    pseudo = {"text": "a", "pseudo_log_likelihood": -2.0, "pseudo_perplexity": 4.0}
    assert Score().as_text(pseudo) == Score().as_text(scored)


def test_a_text_and_its_masks_may_fill_the_position_table(predictor):
    (_, item), (_, longer) = (
        FillMask(pieces=pieces).prepare(predictor.engine, {"text": "[MASK] " * count}) for count, pieces in ((38, 1), (36, 3))
    )
    assert (len(item.ids), len(longer.query_positions)) == (40, 36)


def engine_that_says(predictor: Predictor, *found: Any) -> Any:
    """Returns the engine with forward passes that return the items of `found` one after the other."""
    engine, results = copy.copy(predictor.engine), iter(found)
    engine.run = engine.stream = lambda *_, **__: next(results)
    return engine


def test_pieces_without_probability_are_not_candidates(predictor):
    """A probability of 0 occurs if more candidates are requested than there are subwords that begin a word."""
    first = (np.int32([[7, 8]]), np.float32([[1, 0]]))
    engine = engine_that_says(predictor, [first], [first], [(np.int32([[9, 10]]), np.float32([[0.25, 0]]))])
    item = encoded(predictor.engine, "the [MASK]", with_specials=True)
    item = dataclasses.replace(item, query_positions=(2,))
    (answer,) = FillMask(top_k=2, pieces=2).answer(engine, [("the [MASK]", item)])
    assert [(candidate.ids, candidate.probability) for candidate in answer.masks[0]] == [((7,), 1.0), ((7, 9), 0.5)]


@pytest.mark.parametrize(
    "second", [[], [(np.int32([[7, 8]]), np.float32([[0.5]]))]], ids=["a hypothesis is lost", "a probability is lost"]
)
def test_lost_candidates_are_an_error(predictor, second):
    engine = engine_that_says(predictor, [(np.int32([[7]]), np.float32([[1]]))], second)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        FillMask(top_k=1, pieces=2).answer(engine, [("the [MASK]", Item([2, 7, 4, 3], query_positions=(2,)))])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        fill(predictor.engine, "no mask", [[Candidate("the", (7,), 0.5)]])


def test_equal_probabilities_count_as_next_sentence(predictor):
    engine = engine_that_says(predictor, [np.array([0.5, 0.5])])
    assert NextSentence().answer(engine, [({}, None)]) == [{"is_next": True, "probability": 0.5}]


def test_the_perplexity_of_an_impossible_text_is_finite(predictor):
    engine = engine_that_says(predictor, [np.array([-2000.0])] * 2)
    (answer,) = Score().answer(engine, [("t", Item([2, 7, 8, 3]))])
    assert (answer["pseudo_log_likelihood"], answer["pseudo_perplexity"]) == (-4000, math.exp(700))
