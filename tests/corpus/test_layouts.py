"""Telling the layout of a text file by looking at it."""

from __future__ import annotations

import pytest

from bert_jax.corpus.layouts import detect_layout, is_wrapped, unwrap

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
def test_the_layout_is_told_by_looking(text, layout):
    assert detect_layout(text) == layout
    assert detect_layout(text.replace("\n", "\r\n")) == layout


def test_the_originals_sample_is_one_sentence_a_line(shared_data):
    assert detect_layout((shared_data / "sample_text.txt").read_text("utf-8")) == "sentences"


def test_lists_and_verse_are_not_taken_for_wrapped_prose():
    assert not is_wrapped(["Alabama", "Alaska", "Arizona", "Arkansas", "California"] * 3)
    assert not is_wrapped([f"This line is a sentence of its own, and it is number {k}." for k in range(9)])


def test_unwrapping_gives_a_line_a_paragraph():
    paragraphs = unwrap(WRAPPED)
    assert len(paragraphs) == 2
    assert paragraphs[0].startswith("It was a bright cold day in the middle of the month, and all the clocks")
