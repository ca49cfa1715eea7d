from __future__ import annotations

import base64
import json
import re
import zlib

import numpy as np
import pytest

from bert_jax.analysis.attention import page as pages
from bert_jax.analysis.attention.figures import head_figure, overview_figure
from bert_jax.analysis.attention.measure import Attention, attention_arrays
from bert_jax.analysis.attention.page import attention_page, thumbnail
from bert_jax.analysis.folder import Folder
from tests.analysis.browser import Page, find_browser

MARGIN, ROW = 84, 18
"""The size of the heat map and of the list of words, in pixels of the page."""


@pytest.fixture(scope="module")
def found(analyser) -> Attention:
    return analyser.attention("the cab of Paris, <b>", "is France @A@ xyz")


def test_the_words_of_both_texts_have_their_segment_and_weights_that_sum_to_one(found):
    assert found.rows.words[:4] == ("[CLS]", "the", "cab", "of")
    assert found.rows.tokens[2:5] == ("c", "##a", "##b")
    assert found.rows.word_of_token[2:6] == (2, 2, 2, 3)
    second = found.rows.words.index("is")
    assert found.rows.segments == (0,) * second + (1,) * (len(found.rows.words) - second)
    for weights in (found.pieces, found.words):
        assert weights.values.dtype == np.float32
        np.testing.assert_allclose(weights.values.sum(-1), 1, atol=1e-5)
    assert list(found.words.axes) == ["layer", "head", "from", "to"]
    assert attention_arrays([found])["pieces"].shape == (2, 4, len(found.rows.tokens), len(found.rows.tokens))


def stored(text: str, found: Attention) -> np.ndarray:
    """Returns the weights between pieces stored in a page, [heads, L, L]."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    (part,) = data["parts"]
    assert tuple(part["rows"]["words"]) == tuple(part["columns"]["words"]) == found.rows.words
    packed = re.findall(r'id="weights-[\d-]+">(.*?)</script>', text)
    codes = [np.frombuffer(zlib.decompress(base64.b64decode(head)), f"<u{data['bits'] // 8}") for head in packed]
    n = len(part["rows"]["tokens"])
    return (np.array(codes, np.float64) / (2 ** data["bits"] - 1)).reshape(-1, n, n) ** 2


@pytest.mark.parametrize(("precise", "bound"), [(pages.PRECISE, 2e-5), (0, 4e-3)])
def test_a_page_stores_every_weight_with_the_documented_precision(found, monkeypatch, precise, bound):
    monkeypatch.setattr(pages, "PRECISE", precise)
    text = attention_page([found])
    weights = found.pieces.values.reshape(-1, *found.pieces.shape[2:])
    assert (np.abs(stored(text, found) - weights) <= bound * np.sqrt(weights) + 1e-5).all()
    assert not re.search(r"(?:src|href)=|https?:|@import|url\(", text), "the page needs nothing but itself"
    assert "<b>" not in text


def test_a_thumbnail_of_a_long_text_keeps_the_largest_weight_of_each_block():
    weights = np.zeros((300, 300), np.float32)
    weights[7, 290] = 0.25
    small = thumbnail(weights)
    assert small.shape == (64, 64)
    assert (small.max(), np.count_nonzero(small)) == (128, 1)
    assert small[1, 62] == 128


def test_a_figure_is_a_png_for_any_letters(found, tmp_path):
    figure = head_figure(found, 1, 1)
    figure.set_layout_engine("none")
    figure.set_dpi(15)
    figure.axes[0].text(0, 0, "\u4e2d\u6587")
    Folder(tmp_path).figure("head.png", figure)
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")


def test_figures_show_words_or_pieces_and_lines_between_them(found):
    assert len(overview_figure(found).axes) == 8
    lines, heat_map, _ = head_figure(found, 2, 3).axes
    assert [tick.get_text() for tick in heat_map.get_yticklabels()] == list(found.rows.words)
    np.testing.assert_array_equal(heat_map.images[0].get_array(), found.words.sel(layer=2, head=3).values)
    assert len(lines.collections[0].get_segments()) == (found.words.sel(layer=2, head=3).values >= 0.01).sum()
    _, heat_map, _ = head_figure(found, 1, 1, in_words=False).axes
    assert len(heat_map.get_yticklabels()) == len(found.rows.tokens)


def test_a_browser_shows_the_clicked_head_for_words_and_pieces(found, tmp_path):
    browser = find_browser()
    if browser is None:
        pytest.skip("needs Chromium, which is not installed")
    file = tmp_path / "attention.html"
    file.write_text(attention_page([found], "1-2"), encoding="utf-8")
    with Page(browser, file, tmp_path / "profile") as page:
        words, pieces = found.words.sel(layer=2, head=3).values, found.pieces.sel(layer=2, head=3).values
        page.wait("document.body.dataset.shown", f"1-2 words {len(words)} {len(words)}")
        page.click("head-2-3")
        page.wait("document.body.dataset.shown", f"2-3 words {len(words)} {len(words)}")
        assert page.run("document.querySelector('#overview .chosen').id") == "head-2-3"
        check_details(page, words, found.rows.words, 2)
        check_heat_map(page, words, found.rows.words, 3, 5)
        page.click("unit-pieces")
        page.wait("document.body.dataset.shown", f"2-3 pieces {len(pieces)} {len(pieces)}")
        check_details(page, pieces, found.rows.tokens, 3)
        check_heat_map(page, pieces, found.rows.tokens, 2, 4)
        page.click("hide-special")
        page.wait("document.body.dataset.shown", f"2-3 pieces {len(pieces) - 3} {len(pieces) - 3}")
        check_details(page, pieces, found.rows.tokens, 3, hidden=1)
        page.click("unit-words")
        page.wait("document.body.dataset.shown", f"2-3 words {len(words) - 3} {len(words) - 3}")


def check_details(page: Page, weights: np.ndarray, labels: tuple[str, ...], chosen: int, hidden: int = 0) -> None:
    """Checks that a click on a word lists what it attends to and what attends to it. `hidden` words before it are not shown."""
    left, top, width, _ = page.box("lines")
    y = top + 5 + (chosen - hidden + 0.5) * ROW
    for x in (left + width - 30, left + 30):  # to that word, then from it
        page.mouse(x, y, click=True)
    for side, values in (("to", weights[chosen]), ("from", weights[:, chosen])):
        lines = f"[...document.querySelectorAll('#{side} li')]"
        listed = page.run(f"{lines}.map(line => [Number(line.dataset.index), ...line.innerText.split('\\n')])")
        assert len(listed) == min(15, len(labels) - 3 * (hidden > 0))
        for index, label, number in listed:
            assert label == labels[index]
            assert float(number) == pytest.approx(values[index], abs=2e-4)
        assert not hidden or {"[CLS]", "[SEP]"}.isdisjoint(label for _, label, _ in listed)
    assert page.run("document.getElementById('word').textContent").startswith(labels[chosen])


def check_heat_map(page: Page, weights: np.ndarray, labels: tuple[str, ...], i: int, j: int) -> None:
    """Checks that the mouse over a cell of the heat map shows its number."""
    left, top, _, _ = page.box("map")
    size = page.run("cell()")
    page.mouse(left + 1 + MARGIN + (j + 0.5) * size, top + 1 + MARGIN + (i + 0.5) * size)
    page.wait("document.getElementById('tip').style.display", "block")
    words, _, number = page.run("document.getElementById('tip').textContent").rpartition(": ")
    assert words == f"{labels[i]} \u2192 {labels[j]}"
    assert float(number) == pytest.approx(weights[i, j], abs=2e-4)
