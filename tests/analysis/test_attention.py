from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib

import numpy as np
import pytest

from bert_jax.analysis.attention import page as pages
from bert_jax.analysis.attention.figures import head_figure, overview_figure
from bert_jax.analysis.attention.measure import Attention, attention_arrays, read_head
from bert_jax.analysis.attention.page import attention_page, thumbnail
from bert_jax.analysis.folder import Folder
from bert_jax.errors import UserError
from tests.analysis.browser import Page, find_browser
from tests.analysis.made_up import attention

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


@pytest.mark.parametrize(("beyond", "bound"), [(0, 2e-5), (1, 4e-3)])
def test_a_page_stores_every_weight_with_the_documented_precision(found, monkeypatch, beyond, bound):
    monkeypatch.setattr(pages, "PRECISE", found.pieces.values.size - beyond)
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


def test_a_missing_head_is_refused_with_a_hint_if_there_are_few_heads():
    assert read_head("1-1", 2, 3) == (1, 1)
    assert read_head("2-3", 2, 3) == (2, 3)
    for name in ("0-3", "3-1", "2-4", "1-0"):
        with pytest.raises(
            UserError, match=f"--head={name} does not exist: the model has layers 1 to 2, each with heads 1 to 3; did you mean"
        ):
            read_head(name, 2, 3)
    with pytest.raises(UserError, match="heads 1 to 20; did you mean '20-20'"):
        read_head("20-202", 20, 20)
    with pytest.raises(UserError, match=r"heads 1 to 401$"):
        read_head("1-402", 1, 401)
    with pytest.raises(UserError, match=r"heads 1 to 3$"):
        read_head("99-88", 2, 3)
    for name in ("2", "810", "8-10-1", "-1-2"):
        with pytest.raises(UserError, match=f"--head={name} is not the name of a head: LAYER-HEAD, such as 1-1$"):
            read_head(name, 1, 1)
    with pytest.raises(UserError, match=r"such as 1-2$"):
        read_head("2", 1, 3)


def test_a_page_describes_each_piece_and_has_thumbnails_of_all_heads():
    found = attention()
    text = attention_page([found], "1-2")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    side = {
        "tokens": list(found.rows.tokens), "words": list(found.rows.words), "wordOf": [0, 1, 2, 2, 3, 4],
        "segments": [0, 0, 0, 0, 0, 1], "specials": [True, False, False, False, True, True],
    }  # fmt: skip
    part = {"name": "", "layers": 2, "heads": 3, "thumbnail": [6, 6], "rows": side, "columns": side}
    assert data == {"parts": [part], "bits": 16, "head": "1-2"}
    assert re.findall(r'id="weights-([^"]*)"', text) == ["1-1", "1-2", "1-3", "2-1", "2-2", "2-3"]
    assert "<title>Attention of runs/m</title>" in text
    small = b"".join(thumbnail(head).tobytes() for layer in found.pieces.values for head in layer)
    assert base64.b64encode(zlib.compress(small)).decode() in text
    assert "é" in attention_page([dataclasses.replace(found, rows=dataclasses.replace(found.rows, tokens=("é",) * 6))])


def test_attention_arrays_are_complete():
    found = attention()
    arrays = attention_arrays([found])
    np.testing.assert_array_equal(arrays["words"], found.words.values)
    np.testing.assert_array_equal(arrays["pieces"], found.pieces.values)
    assert arrays["tokens"].tolist() == ["[CLS]", "the", "$1", "$1#", "[SEP]", "[SEP]"]
    assert arrays["word_texts"].tolist() == list(found.rows.words)
    assert (arrays["word_of_token"].tolist(), arrays["word_of_token"].dtype) == ([0, 1, 2, 2, 3, 4], np.int32)
    assert (arrays["segments"].tolist(), arrays["segments"].dtype) == ([0, 0, 0, 0, 1], np.int32)
    assert arrays["kinds"].tolist() == ["CLS", "WORD", "WORD", "SEP", "SEP"]


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
