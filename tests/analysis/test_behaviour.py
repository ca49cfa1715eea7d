from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from bert_jax.analysis.analyser import MOST_TOKENS, Analyser
from bert_jax.analysis.divergence import plane, tree
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads import measure
from bert_jax.analysis.heads.figures import write_heads
from bert_jax.analysis.heads.flags import Heads
from bert_jax.analysis.heads.measure import STATISTICS
from bert_jax.analysis.windows import Kind, read_windows
from bert_jax.errors import UserError
from bert_jax.prediction.engine import Engine
from tests.analysis.reference import in_words, sources, weights_of

TEXTS = ["the capital of France is Paris.", "cab", "of the river, xyz (Apfel) is!", "the cab " * 12]
REACH = 3


@pytest.fixture(scope="module")
def found(analyser):
    """Measures texts, the last of which is longer than the position table. The divergences use every word."""
    return analyser.heads(TEXTS, reach=REACH, sampled=40)


@pytest.fixture(scope="module")
def by_hand(analyser, model):
    """Returns [(windows, attention between words [N, H, words, words])], each window in a row of its own."""
    windows = [window for text in TEXTS for window in read_windows(analyser.engine, text)]
    return [(window, in_words(weights_of(model, window), window)) for window in windows]


def mean_over_words(by_hand, value) -> tuple[np.ndarray, int]:
    """Returns (mean, n) of value(window, attention, i) over all words of the texts; words for which it is None are left out."""
    values = [value(window, attention, i) for window, attention in by_hand for i in sources(window)]
    there = [value for value in values if value is not None]
    return np.mean(there, axis=0), len(there)


def to_kind(kind):
    def value(window, attention, i):
        chosen = [j for j, word in enumerate(window.words) if word.kind == kind]
        return attention[:, :, i, chosen].sum(-1)

    return value


def to_distance(distance):
    def value(window, attention, i):
        return attention[:, :, i, i + distance] if i + distance in sources(window) else None

    return value


BY_HAND = {
    "entropy": lambda window, attention, i: entropy(attention[:, :, i], axis=-1),
    "cls": to_kind(Kind.CLS),
    "sep": to_kind(Kind.SEP),
    "punctuation": to_kind(Kind.PUNCTUATION),
    "self": to_distance(0),
    "previous": to_distance(-1),
    "next": to_distance(1),
}


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_of_every_head_equal_a_loop_over_words(found, by_hand, statistic):
    expected, n = mean_over_words(by_hand, BY_HAND[statistic])
    np.testing.assert_allclose(found.statistics.sel(statistic=statistic).values, expected, atol=1e-5)
    assert found.n.sel(statistic=statistic).values == n
    even = [(window, np.full_like(attention[:1, :1], 1 / len(window.words))) for window, attention in by_hand]
    uniform, _ = mean_over_words(even, BY_HAND[statistic])
    np.testing.assert_allclose(found.uniform.sel(statistic=statistic).values, uniform[0, 0], atol=1e-6)


def test_the_distance_profile_equals_a_loop_over_words(found, by_hand):
    assert found.profile["distance"] == range(-REACH, REACH + 1)
    for distance in found.profile["distance"]:
        expected, n = mean_over_words(by_hand, to_distance(distance))
        np.testing.assert_allclose(found.profile.sel(distance=distance).values, expected, atol=1e-5)
        assert found.n_profile.sel(distance=distance).values == n


def test_the_divergence_of_two_heads_equals_scipy(found, by_hand):
    def pairs(window, attention, i):
        p = attention[:, :, i].reshape(8, -1)
        return np.array([[jensenshannon(a, b) ** 2 for b in p] for a in p])

    expected, n = mean_over_words(by_hand, pairs)
    np.testing.assert_allclose(found.divergence.values, np.nan_to_num(expected), atol=2e-6)
    assert found.n_divergence == n
    assert found.divergence["head"][:5] == ["1-1", "1-2", "1-3", "1-4", "2-1"]


def test_a_loaded_model_reads_batches_of_limited_size(directory):
    loaded = Analyser.load(directory)
    engine = loaded.engine
    assert (engine.tokens <= MOST_TOKENS, loaded.show_progress) == (True, False)
    engine.tokens = 10 * MOST_TOKENS
    assert Analyser(engine).engine.tokens == MOST_TOKENS


def test_windows_are_counted_and_options_are_checked(found, analyser):
    assert found.windows == 5
    with pytest.raises(UserError, match=r"heads.reach=0 must be at least 1"):
        Heads(reach=0)
    with pytest.raises(UserError, match="there is no word"):
        analyser.heads([])
    with pytest.raises(UserError, match=r"one text, not a list of texts; give \[text\]"):
        analyser.heads("the")


def test_words_are_read_in_groups_and_texts_without_a_token_are_left_out(found, analyser, monkeypatch):
    monkeypatch.setattr(measure, "WINDOWS", 1)
    again = analyser.heads([TEXTS[0], " ", *TEXTS[1:]], reach=REACH, sampled=40, divergence_words=8)
    np.testing.assert_allclose(again.statistics.values, found.statistics.values, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(again.n.values, found.n.values)
    assert again.windows == found.windows
    assert again.n_divergence == 8, "two windows on two devices contain enough words"


def test_a_model_that_returns_infinite_numbers_is_named(model, monkeypatch):
    params = jax.tree.map(np.array, {part: model.params[part] for part in ("embeddings", "encoder")})
    params["encoder"]["layers"]["attention"]["query"]["kernel"][:] = np.float32(3e38)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:2])
    with pytest.raises(UserError, match="returns numbers that are not finite"):
        Analyser(Engine(dataclasses.replace(model, params=params))).heads(TEXTS[:1])


def test_heads_that_attend_to_a_known_position_are_found(pointing):
    texts = ["the capital of France is Paris", "the cab of Apfel", "is the of the"]
    found = pointing.heads(texts, reach=2, divergence_words=0, in_words=False)  # positions count subwords
    assert found.n.sel(statistic="self").values == 16
    looks = {"previous": (1, 1), "next": (1, 2), "self": (2, 1), "cls": (2, 2)}
    for statistic, (layer, head) in looks.items():
        values = found.statistics.sel(statistic=statistic).values
        assert values[layer - 1, head - 1] > 0.999, statistic
        assert np.delete(values.ravel(), 2 * (layer - 1) + head - 1).max() < 0.5, statistic
    assert found.statistics.sel(statistic="entropy").values.max() < 0.02
    assert found.n_divergence == 0
    assert np.isnan(found.divergence.values).all()


def test_the_tree_joins_the_nearest_heads_and_the_plane_keeps_distances():
    points = np.array([[0.0, 0.0], [0.1, 0.0], [3.0, 1.0], [3.0, 1.3], [9.0, -4.0]])
    squares = ((points[:, None] - points) ** 2).sum(-1)
    assert [{int(a), int(b)} for a, b in tree(squares)[:2, :2]] == [{0, 1}, {2, 3}]
    placed = plane(squares)
    np.testing.assert_allclose(((placed[:, None] - placed) ** 2).sum(-1), squares, atol=1e-9)


@pytest.mark.usefixtures("figures")
def test_every_number_of_a_table_has_its_n_and_every_figure_its_table(found, tmp_path):
    folder = Folder(tmp_path / "new" / "out")
    write_heads(folder, found)
    names = {path.name for path in folder.path.iterdir()}
    assert {path.stem for path in folder.path.glob("*.png")} <= {path.stem for path in folder.path.glob("*.tsv")}
    assert names == {path.name for path in folder.written}
    for table in folder.path.glob("*.tsv"):
        header, *rows = (line.split("\t") for line in table.read_text().splitlines())
        assert header[-1] == "n"
        assert rows
        assert all(len(row) == len(header) and int(row[-1]) > 0 for row in rows), table.name
    heads = [line.split("\t") for line in (folder.path / "heads.tsv").read_text().splitlines()[1:]]
    ((value, uniform, n),) = [row[4:] for row in heads if row[0] == "2-3" and row[3] == "sep"]
    assert float(value) == pytest.approx(found.statistics.sel(statistic="sep", layer=2, head=3).values, rel=1e-5)
    assert float(uniform) == pytest.approx(found.uniform.sel(statistic="sep").values, rel=1e-5)
    assert int(n) == found.n.values[0]
