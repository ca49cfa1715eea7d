"""The windows of documents, and the questions asked in them."""

from __future__ import annotations

import pytest

from bert_jax.analysis.coreference.documents import Document, Question, Section, sections, spans
from bert_jax.analysis.coreference.mentions import Mention
from bert_jax.analysis.coreference.readers import GapFile, PronounText, pronoun_text
from bert_jax.analysis.windows import Kind, Window, Word
from bert_jax.prediction.engine import Engine
from bert_jax.tasks.examples import PronounExample
from tests.analysis.coreference.written import write
from tests.data.tokenizers.test_json_tokenizer import SPECIALS, plain
from tests.interop.tiny import as_model, make_model


@pytest.mark.parametrize(
    ("sizes", "sentences", "room", "expected"),
    [
        ([1] * 12, (0, 3, 6, 9), 6, [(0, 0, 6), (3, 6, 9), (6, 9, 12)]),
        ([1] * 12, (0, 3, 6, 9), 7, [(0, 0, 6), (3, 6, 9), (6, 9, 12)]),  # half of seven is three
        ([1] * 12, (0, 5), 6, [(0, 0, 5), (5, 5, 11), (8, 11, 12)]),  # no sentence starts there: half of the room before
        ([1] * 4, (0, 2), 6, [(0, 0, 4)]),
        ([1] * 4, (0,), 4, [(0, 0, 4)]),
        ([1, 1, 1, 5, 1], (0,), 6, [(0, 0, 3), (2, 3, 4), (4, 4, 5)]),  # the next word needs the room
        ([1, 6, 1], (0,), 6, [(0, 0, 1), (1, 1, 2), (2, 2, 3)]),
    ],
)
def test_windows_overlap_by_half_and_end_between_sentences_if_possible(sizes, sentences, room, expected):
    assert list(spans(sizes, sentences, room)) == expected


def document() -> Document:
    """Returns a document with mentions of 1 at the words 0, 3, 6; of 2 at 1, 6 (with the same head word as a mention of 1) and 7;
    of 3 at 5."""

    def mention(entity: str, *words: int, kind: str = "common") -> Mention:
        return Mention(entity, words, words[-1], kind)

    mentions = [mention("1", 0), mention("2", 1), mention("1", 2, 3, kind="proper"), mention("3", 4, 5), mention("1", 5, 6)]
    mentions += [mention("2", 6), mention("2", 7, kind="pronoun")]
    return Document("d", (*tuple("abcdefg"), "It"), (0, 4), tuple(mentions))


def test_every_mention_but_the_first_is_a_question_about_the_earlier_ones():
    text = document()
    asked, outside = text.questions(0, 0, 8)
    assert [(one.head, one.limit, one.right, one.guesses, one.groups) for one in asked] == [
        (3, 3, {0}, (1, 1, 1), ("all", "proper")),
        (6, 6, {0, 3}, (5, 5, 5), ("all", "common")),
        (6, 6, {1}, (5, 5, 5), ("all", "common")),
        (7, 7, {1, 6}, (6, 6, 6), ("all", "pronoun", "he, she, it, they", "it")),
    ]
    assert outside == []
    assert text.candidates(0, 8) == (0, 1, 3, 5, 6, 7)
    assert text.candidates(1, 7) == (1, 3, 5, 6)


def test_a_window_asks_about_its_new_words_with_the_candidates_in_it():
    asked, outside = document().questions(2, 6, 7)
    assert [(one.head, one.right) for one in asked] == [(6, {3})]
    assert outside == [("all", "common")]  # 1 is before the window


def test_queries_limits_and_candidates_of_a_section_are_at_first_pieces_of_words():
    words = [Word("[CLS]", (2,), Kind.CLS), *(Word(str(i), (10 + i,) * (1 + i % 2), Kind.WORD) for i in range(4))]
    window = Window((*words, Word("[SEP]", (3,), Kind.SEP)))
    questions = (Question(11, 11, frozenset(), (), ()), Question(12, 30, frozenset(), (), ()))
    item = Section(window, 10, (10, 12), questions).item()  # word 10 of the text is word 1
    assert list(item.ids) == [2, 10, 11, 11, 12, 13, 13, 3]
    assert (item.query_positions, item.targets) == ((2, 4), (2, 6))
    assert item.columns["candidates"] == [0, 1, 0, 0, 3, 0, 0, 0]
    item = Section(window, 10, (10, 12), questions).item(order=[3, 2, 1, 0])
    assert list(item.ids) == [2, 13, 13, 12, 11, 11, 10, 3]
    assert (item.query_positions, item.targets) == ((4, 3), (2, 6))
    assert item.columns["candidates"] == [0, 0, 0, 3, 0, 0, 1, 0]


def test_sections_are_filled_to_their_token_limit(analyser):
    text = Document("d", ("the",) * 100, (0,), ())
    assert [(each.first, len(each.window.words)) for each in sections(analyser.engine, text, 12)][:2] == [(0, 12), (5, 12)]
    assert len(next(sections(analyser.engine, text, 1000)).window.item().ids) == 40


def test_a_section_has_the_pieces_of_the_whole_text_although_its_first_word_follows_no_space(tmp_path):
    path = plain(tmp_path, SPECIALS)
    engine = Engine(as_model(*make_model(path), path))
    text, tokenizer = Document("d", ("and", "an") * 40, (0,), ()), engine.model.tokenizer
    found = list(sections(engine, text, 40))
    assert len(tokenizer.encode("and")) > len(tokenizer.encode(" and"))
    assert len(found) > 2
    assert all(len(each.window.item().ids) <= 40 for each in found)
    assert {each.window.words[1].ids for each in found[1:]} <= {tuple(tokenizer.encode(" and")), tuple(tokenizer.encode(" an"))}


# ---------------------------------------------------------------------------------------------------------------------------- GAP


def example(text: str, pronoun: str, a: str, b: str, label: str | None = "A", gender: str | None = "feminine") -> PronounExample:
    return PronounExample(
        id="i", text=text, pronoun=pronoun, pronoun_start=text.index(pronoun), a=a, a_start=text.index(a), b=b,
        b_start=text.index(b), label=label, gender=gender,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "pronoun", "a", "b", "words"),
    [
        ('"Ada", "She" and Bob.', "She", "Ada", "Bob", ("She", "Ada", "Bob")),  # between signs without spaces
        ("Jr met King Jr., his II", "his", "Jr", "King Jr", ("his", "Jr", "King")),  # a name that consists only of "Jr"
        ("Ada B. C met herself, Bob-Jim IV", "herself", "Ada B. C", "Bob-Jim IV", ("herself", "C", "Jim")),
        ("Mary Ann's brother met Bob O'Neil; hers", "hers", "Mary Ann", "Bob O'Neil", ("hers", "Ann", "Neil")),
    ],
)
def test_the_head_word_of_a_name_is_its_last_word_before_suffixes(text, pronoun, a, b, words):
    found = pronoun_text(example(text, pronoun, a, b))
    assert (found.words[found.pronoun], *(found.words[name] for name in found.names)) == words
    assert (found.name, found.sentences) == ("i", (0,))


def test_a_pronoun_is_asked_about_in_the_window_that_has_it_as_a_new_word():
    text = PronounText("i", tuple("0123456789"), (0,), 4, (2, 7), "B", None)
    ((question,), _) = text.questions(2, 4, 8)
    assert (question.head, question.limit, question.right, question.guesses, question.groups) == (4, 10, {7}, (2, 2, 2), ("all",))
    assert text.questions(2, 3, 8)[0] == [question]
    assert text.questions(2, 5, 8) == text.questions(2, 3, 4) == ([], [])
    assert text.questions(3, 4, 8) == text.questions(2, 4, 7) == ([], [("all",)])
    after = PronounText("i", text.words, (0,), 1, (5, 3), "A", "masculine")
    ((question,), _) = after.questions(0, 0, 10)
    assert (question.right, question.guesses, question.groups) == ({5}, (3, 3, 3), ("all", "masculine"))
    between = PronounText("i", text.words, (0,), 4, (7, 0), "A", "masculine")
    ((question,), _) = between.questions(0, 0, 10)
    assert question.guesses == (7, 0, 0)
    assert PronounText("i", text.words, (0,), 4, (2, 7), None, None).questions(0, 0, 10) == ([], [])


def test_progress_through_gap_counts_lines_including_the_header(tmp_path):
    header = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    row = "Ada met Bob and she left.\tshe\t16\tAda\t0\tTRUE\tBob\t8\tFALSE\tu\n"
    file = GapFile(write(tmp_path, f"{header}1\t{row}2\t{row}"))
    assert (file.count(), file.file.st_size > 0, file.asks_once) == (3, True, True)
    assert [file.line for _ in file] == [2, 3]
