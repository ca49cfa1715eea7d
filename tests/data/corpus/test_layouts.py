"""Recognises the layout of a text file from its content."""

from __future__ import annotations

import pytest

from bert_jax.data.corpus.sentences import detect_layout, is_wrapped, unwrap

SENTENCES = 'The rain had stopped.\nIt was late.\nShe said: "Go home!"\n\nAnother document begins here.\nIt goes on.\n'
PARAGRAPHS = (
    "The rain had stopped. It was late. She went home and slept.\nIn the morning it rained again. Nobody minded.\n\n"
    "Another document begins here. It goes on. It ends.\nWith a second paragraph. And a last sentence.\n"
)
SPACED = PARAGRAPHS.replace("\n\n", "\n").replace("\n", "\n\n")
WRAPPED = """It was a bright cold day in the middle of the month, and all the
clocks of the town were striking at the same time, which they had
never done before. The people in the streets stopped and looked up
at the towers, and some of them laughed, while others were afraid.

Nobody knew why it had happened, and nobody ever found out, although
a good deal was written about it in the newspapers of that year and
of the years that followed. It is still spoken of there.
"""


@pytest.mark.parametrize(
    ("text", "layout"),
    [(SENTENCES, "sentences"), (PARAGRAPHS, "paragraphs"), (SPACED, "book"), (WRAPPED, "book"), (SENTENCES.lower(), "sentences")],
)
def test_the_layout_is_recognised_from_the_text(text, layout):
    assert detect_layout(text) == layout
    assert detect_layout(text.replace("\n", "\r\n")) == layout


def test_the_sample_text_of_bert_has_one_sentence_per_line(shared_data):
    assert detect_layout((shared_data / "sample_text.txt").read_text("utf-8")) == "sentences"


def test_lists_and_verse_are_not_wrapped_prose():
    assert not is_wrapped(["Alabama", "Alaska", "Arizona", "Arkansas", "California"] * 3)
    assert not is_wrapped([f"This line is a sentence of its own, and it is number {k}." for k in range(9)])


def test_unwrapping_gives_one_line_per_paragraph():
    paragraphs = unwrap(WRAPPED)
    assert len(paragraphs) == 2
    assert paragraphs[0].startswith("It was a bright cold day in the middle of the month, and all the clocks")


def prose_of(length: int, lines: int = 4) -> list[str]:
    """Returns lines of one paragraph with `length` characters each, and a last line."""
    return [*[("word " * length)[: length - 1] + "s"] * lines, "The end."]


def test_wrapped_lines_are_recognised_from_four_lines_and_by_their_width():
    assert is_wrapped(prose_of(60))
    assert not is_wrapped(prose_of(60, lines=3))
    assert is_wrapped(prose_of(120))
    assert not is_wrapped(prose_of(121))
    assert is_wrapped(prose_of(45))
    assert not is_wrapped(prose_of(44))


def test_lines_are_not_wrapped_if_half_of_them_end_sentences():
    open_end, closed = "w" * 60, "w" * 59 + "."
    assert is_wrapped([open_end, open_end, open_end, closed, closed, "The end."])
    assert not is_wrapped([open_end, open_end, closed, closed, "The end."])


def test_last_lines_of_paragraphs_do_not_count_for_wrapping():
    lines = [*prose_of(60), "", "Short.", "", "Short.", "", "Short.", "", "Short.", "", "Short."]
    assert is_wrapped(lines)
    assert not is_wrapped(["", "w" * 60, "", "w" * 60, "", "w" * 60, "", "w" * 60, "", "w" * 60])


def test_lines_are_paragraphs_if_a_fifth_have_several_sentences():
    two, one = "It rained. It snowed.", "It was late."
    assert detect_layout("\n".join([two, one, one, one, one])) == "sentences"
    assert detect_layout("\n".join([two, one, one, one])) == "paragraphs"


def test_paragraphs_between_blank_lines_are_a_book_unless_half_of_them_have_another_line():
    one, two = "It rained. It snowed.", "It rained. It snowed.\nIt was late. They slept."
    assert detect_layout("\n\n".join([one, one, two])) == "book"
    assert detect_layout("\n\n".join([one, two])) == "paragraphs"
    assert detect_layout("\n\n".join([one, one])) == "book"
    assert detect_layout(one) == "paragraphs"


def test_only_the_first_2000_lines_decide_the_layout():
    lines = ["It rained."] * 2000
    assert detect_layout("\n".join([*lines, "It rained. " * 500])) == "sentences"
    assert detect_layout("\n".join([*lines[1:], "It rained. " * 500])) == "paragraphs"
