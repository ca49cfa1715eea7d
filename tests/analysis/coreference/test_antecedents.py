"""The candidates that heads attend to, compared with loops over the weights and counts by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.controls import engine_with_random_weights
from bert_jax.analysis.coreference import measure as antecedents
from bert_jax.analysis.coreference.documents import sections, spans
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.coreference.measure import measure_antecedents
from bert_jax.analysis.coreference.readers import open_texts
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model
from tests.analysis.coreference.written import PARIS, conllu, looking_model, write
from tests.analysis.reference import in_words, weights_of
from tests.prediction.reference import engine_on


def summed(found) -> dict[str, tuple[dict[str, int], int, int]]:
    """Returns group -> (chooser -> number of mentions for which it is right, n, outside), over all documents."""
    return {
        group: (
            dict(zip(found.right["chooser"], found.right.sel(group=group).values.sum(0).tolist(), strict=True)),
            int(found.n.sel(group=group).values.sum()),
            int(found.outside.sel(group=group).values.sum()),
        )
        for group in found.n["group"]
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """Writes two documents, longer than the 40 positions."""
    return write(tmp_path_factory.mktemp("texts"), PARIS + PARIS.replace("id = d", "id = e").replace("saw", "s"))


@pytest.fixture(scope="module")
def found(analyser, path):
    return measure_antecedents(analyser.engine, open_texts(path), Coreference())


def by_hand(analyser, model, path, tokens: int = 1000) -> tuple[np.ndarray, int, int]:
    """Returns (the number of mentions for which each head is right [heads], n, outside), from loops over the weights of one
    window at a time."""
    right, n, outside = np.zeros(8, int), 0, 0
    for document in open_texts(path):
        for section in sections(analyser.engine, document, tokens):
            maps = in_words(weights_of(model, section.window), section.window).reshape(8, *[len(section.window.words)] * 2)
            outside += len(section.outside)
            for question in section.questions:
                before = [mention for mention in document.mentions if section.first <= mention.head < question.head]
                (own,) = {m.entity for m in document.mentions if m.head == question.head}
                n += 1
                for head in range(8):
                    row = maps[head, question.head - section.first + 1]
                    best = max(before, key=lambda mention: row[mention.head - section.first + 1])
                    right[head] += best.entity == own
    return right, n, outside


def test_counts_of_every_head_equal_a_loop_over_the_weights(found, analyser, model, path):
    right, n, outside = by_hand(analyser, model, path)
    counts, asked, left_out = summed(found)["all"]
    assert [*counts.values()][:8] == right.tolist()
    assert (asked, left_out) == (n, outside) == (8, 0)
    assert len({*right.tolist()}) > 1


def test_accuracies_of_rules_equal_counts_by_hand(found):
    groups = summed(found)
    rules = {group: [*counts.values()][8:] for group, (counts, _, _) in groups.items()}
    # The choices of the rules in each of the two documents: for "It", the nearest mention, "river", which agrees with it; for
    # "The river", "river", with the same head; for "France", the same name; for "its", the nearest mention, "France". The sieve
    # also chooses "France" for "its", since it agrees.
    assert rules["all"] == [0, 4, 4]
    assert rules["common"] == rules["proper"] == [0, 2, 2]
    assert rules["pronoun"] == rules["it"] == [0, 0, 0]
    assert {group: n for group, (_, n, _) in groups.items()} == {
        "all": 8, "pronoun": 4, "proper": 2, "common": 2, "other": 0, "he, she, it, they": 4, "it": 4,
    }  # fmt: skip


def test_singletons_can_be_left_out(analyser, tmp_path):
    path = write(tmp_path, conllu("Paris/PROPN/0/(1-place-1) France/PROPN/1/(2-place-1) it/PRON/1/(1-place-1)"))
    found = [measure_antecedents(analyser.engine, open_texts(path), Coreference(singletons=alone)) for alone in (True, False)]
    assert [summed(counts)["all"][0]["nearest mention"] for counts in found] == [0, 1]


GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
GAP += "1\tParis met France and she left.\tshe\t21\tParis\t0\tTRUE\tFrance\t10\tFALSE\tu\n"
GAP += "2\tThe river met Paris and France, his.\this\t32\tParis\t14\tFALSE\tFrance\t24\tFALSE\tu\n"
GAP += "3\t" + "the " * 50 + "Paris met France and he left.\the\t221\tParis\t200\tFALSE\tFrance\t210\tTRUE\tu\n"


def test_single_question_texts_keep_attention_by_head_when_windows_are_read_in_groups(analyser, model, tmp_path, monkeypatch):
    monkeypatch.setattr(antecedents, "SECTIONS", 1)
    says: list[str] = []
    file = open_texts(write(tmp_path, GAP))
    found = measure_antecedents(analyser.engine, file, Coreference(), says.append)
    # the third text has three windows; the last one holds both names and the pronoun
    assert (found.n["document"], found.windows, found.heads) == (["1", "2", "3"], 5, 8)
    assert says == ["1 mention", "1 mention", "2 mentions"]
    assert found.n.values.tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]]
    assert found.outside.values.sum() == 0
    right, attention = [], []
    for text in file:
        ((section, question),) = [(own, one) for own in sections(analyser.engine, text, 1000) for one in own.questions]
        maps = in_words(weights_of(model, section.window), section.window).reshape(8, *[len(section.window.words)] * 2)
        shares = maps[:, question.head - section.first + 1][:, [word - section.first + 1 for word in section.candidates]]
        right.append([section.candidates[i] in question.right for i in shares.argmax(1)])
        attention.append(shares.max(1))
    # the rules: the name nearest to the pronoun, the nearest one before it, the first one
    rules = [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert found.right.sel(group="all").values.tolist() == [[*own, *by] for own, by in zip(right, rules, strict=True)]
    assert any(right[0] + right[2])
    assert found.right.sel(group="neither").values.sum() == 0
    np.testing.assert_allclose(found.attention.values, attention, atol=1e-5)
    part = found.part([2])
    np.testing.assert_array_equal(part.attention.values, found.attention.values[2:])


def test_antecedents_outside_of_the_window_are_counted_separately(analyser, model, path):
    found = measure_antecedents(analyser.engine, open_texts(path), Coreference(tokens=14))
    right, n, outside = by_hand(analyser, model, path, 14)
    counts, asked, left_out = summed(found)["all"]
    assert [*counts.values()][:8] == right.tolist()
    assert (asked, left_out) == (n, outside)
    assert n + outside == 8
    assert outside > 0


def test_shuffling_words_changes_attention_but_not_candidates_or_answers(analyser, model, path):
    rng = np.random.default_rng(3)
    found = measure_antecedents(analyser.engine, open_texts(path), Coreference(control="shuffled-words", seed=3))
    right = np.zeros(8, int)
    for document in open_texts(path):
        for section in sections(analyser.engine, document, 1000):
            words, order = section.window.words, section.shuffled(rng)
            placed = type(section.window)((words[0], *(words[i + 1] for i in order), words[-1]))
            maps = in_words(weights_of(model, placed), placed).reshape(8, len(words), len(words))
            place = {word + section.first: i + 1 for i, word in enumerate(order)}
            for question in section.questions:
                before = [candidate for candidate in section.candidates if candidate < question.head]
                for head in range(8):
                    best = max(before, key=lambda word: maps[head, place[question.head], place[word]])
                    right[head] += best in question.right
    assert [*summed(found)["all"][0].values()][:8] == right.tolist()


@pytest.mark.usefixtures("two_devices")
def test_the_control_of_random_weights_follows_the_seed(analyser, path):
    given = measure_antecedents(analyser.engine, open_texts(path), Coreference(control="random-weights", seed=7))
    drawn = [engine_with_random_weights(analyser.engine, seed) for seed in (7, 8)]
    same, other = (measure_antecedents(own, open_texts(path), Coreference(seed=7)).right.values for own in drawn)
    np.testing.assert_array_equal(given.right.values, same)
    assert (same != other).any()


@pytest.fixture(scope="module")
def looking(vocabulary, tmp_path_factory) -> Analyser:
    path = tmp_path_factory.mktemp("looking") / "model"
    export_model(path, looking_model(vocabulary, {"x": "a", "y": "b", "z": "a", "w": "!"}))
    return Analyser(engine_on(path))


def test_a_head_that_attends_to_the_antecedent_is_found(looking, tmp_path):
    words = "a/PROPN/0/(1-x-1) b/PROPN/1/(2-x-1) c/PROPN/1/(3-x-1) x/PRON/1/(1-x-1) y/PRON/1/(2-x-1) z/PRON/1/(1-x-1)"
    path = write(tmp_path, conllu(words) + conllu(words, name="e") + conllu(words, name="f"))  # chosen on the first and third
    scores = looking.coreference(path)
    best = {best.group: best for best in scores.best}["pronoun"]
    assert (best.head.chooser, best.head.accuracy, best.head.on_choice) == ("1-2", 1.0, 1.0)
    assert (best.n, best.n_choice) == (3, 6)
    assert [rate.accuracy for rate in best.rules] == [0.0, 0.0, 0.0]
    assert best.rules[0].gain == best.rules[0].gain_low == 1.0


def test_a_head_without_attention_to_any_candidate_has_no_answer(looking, tmp_path):
    path = write(tmp_path, conllu("a/PROPN/0/(1-x-1) !/PUNCT/1 w/PRON/1/(1-x-1)"))
    found = measure_antecedents(looking.engine, open_texts(path), Coreference())
    assert found.right.sel(group="all").values.tolist() == [[1, 0, 1, 1, 1]], "head 1-2 attends only to the mark"


@pytest.mark.parametrize("room", [6, 9, 30])
def test_windows_are_full_start_between_sentences_and_own_every_word_once(room):
    rng = np.random.default_rng(room)
    for _ in range(20):
        sizes = rng.integers(1, room + 1 if room < 9 else 4, rng.integers(1, 40)).tolist()
        sentences = sorted({0, *rng.integers(0, len(sizes), 8).tolist()})
        found = list(spans(sizes, sentences, room))
        assert [*itertools.chain(*(range(own, last) for _, own, last in found))] == [*range(len(sizes))]
        for first, own, last in found:
            assert 0 <= first <= own < last
            assert sum(sizes[first:last]) <= room
            assert last == len(sizes) or last in sentences or not any(own < start <= last for start in sentences)


def test_texts_without_measurable_mentions_are_refused(analyser, tmp_path):
    alone = write(tmp_path, conllu("Paris/PROPN/0/(1-place-1)"))
    with pytest.raises(UserError, match="has no mention with an antecedent"):
        analyser.coreference(alone)
    with pytest.raises(UserError, match="there is only one document"):
        analyser.coreference(write(tmp_path, PARIS))
    with pytest.raises(UserError, match=r"coreference.control='words' is unknown"):
        Coreference(control="words")
