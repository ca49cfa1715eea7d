"""The choice of heads, on made-up counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.analysis.bootstrap import poisson_weights
from bert_jax.analysis.coreference.figures import best_figure, write_coreference
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.coreference.measure import THREE_WAY, Antecedents, CoreferenceScores, best_heads, halves
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.named_array import NamedArray
from bert_jax.errors import UserError

OPTIONS = Coreference(replicates=400, seed=1)


def made_up(seed: int, documents: int = 12, most: int = 6) -> Antecedents:
    """Returns counts of four heads and one rule in two groups."""
    rng = np.random.default_rng(seed)
    n = rng.integers(0, most + 1, (documents, 2))
    right = rng.integers(0, n[:, :, None] + 1, (documents, 2, 5))
    names = {"document": [f"d{i}" for i in range(documents)], "group": ("all", "pronoun")}
    return Antecedents(
        right=NamedArray(right, {**names, "chooser": ("1-1", "1-2", "2-1", "2-2", "rule")}),
        n=NamedArray(n, names),
        outside=NamedArray(np.zeros_like(n), names),
        attention=None,
        heads=4,
        windows=documents,
    )


def test_a_head_is_chosen_on_some_documents_and_reported_on_the_others():
    choice, reported = halves(made_up(0, documents=20))
    assert choice.n["document"] == [f"d{i}" for i in range(0, 20, 2)]
    for g, best in enumerate(best_heads(choice, reported, OPTIONS)):
        rates = choice.right.values[:, g, :4].sum(0) / choice.n.values[:, g].sum()
        head = int(rates.argmax())
        own = reported.right.values[:, g].sum(0) / reported.n.values[:, g].sum()
        assert best.head.chooser == ("1-1", "1-2", "2-1", "2-2")[head]
        assert (best.head.accuracy, best.head.on_choice) == pytest.approx((own[head], rates[head]))
        assert (best.rules[0].accuracy, best.rules[0].gain) == pytest.approx((own[4], own[head] - own[4]))
        assert (best.n, best.n_choice) == (reported.n.values[:, g].sum(), choice.n.values[:, g].sum())
        assert best.documents == (reported.n.values[:, g] > 0).sum()
        assert best.head.low < best.head.accuracy < best.head.high


def test_reported_documents_do_not_influence_the_choice_of_a_head():
    """The same heads are chosen if every head's answers on the documents to report are inverted."""
    choice, reported = halves(made_up(1, documents=20))
    n = reported.n.values[:, :, None]
    right = np.where(np.arange(reported.right.shape[-1]) < reported.heads, n - reported.right.values, reported.right.values)
    adverse = dataclasses.replace(reported, right=dataclasses.replace(reported.right, values=right))
    found, other = (best_heads(choice, part, Coreference()) for part in (reported, adverse))
    assert [best.head.chooser for best in found] == [best.head.chooser for best in other]
    assert [best.head.on_choice for best in found] == [best.head.on_choice for best in other]
    names = list(reported.right["chooser"])
    best_there = [
        names[int(reported.right.values[:, list(reported.n["group"]).index(best.group), : reported.heads].sum(0).argmax())]
        for best in found
    ]
    assert best_there != [best.head.chooser for best in found], "another head is the best of the reported documents"


def test_the_interval_is_close_to_bootstrap_samples():
    found = made_up(3, documents=60)
    (best, _) = best_heads(found, found, dataclasses.replace(OPTIONS, replicates=2000))
    column = list(found.right["chooser"]).index(best.head.chooser)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 60, (2000, 60))
    rates = found.right.values[drawn, 0, column].sum(1) / found.n.values[drawn, 0].sum(1)
    np.testing.assert_allclose([best.head.low, best.head.high], np.quantile(rates, (0.025, 0.975)), atol=0.03)


def one_question(seed: int, documents: int) -> Antecedents:
    """Returns texts with one question. The answer to a third of them is neither name; attention is lower if the answer is
    wrong."""
    rng = np.random.default_rng(seed)
    neither = rng.random(documents) < 0.3
    right = (rng.random((documents, 5)) < 0.7) & ~neither[:, None]
    names = {"document": list(range(documents)), "group": ("all", "neither")}
    attention = rng.random((documents, 4)) * np.where(right[:, :4], 1.0, 0.5)
    return Antecedents(
        right=NamedArray(np.stack([right, np.zeros_like(right)], 1).astype(int), {**names, "chooser": (*"1234", "rule")}),
        n=NamedArray(np.stack([~neither, neither], 1).astype(int), names),
        outside=NamedArray(np.zeros((documents, 2), int), names),
        attention=NamedArray(attention, {"document": list(range(documents)), "head": tuple("1234")}),
        heads=4,
        windows=documents,
    )


@pytest.mark.parametrize("levels", [1 << 20, 3], ids=["distinct", "equal"])
def test_neither_is_predicted_below_the_threshold_of_the_choosing_documents(levels: int):
    """No threshold separates texts with equal attention, so it separates none of them."""
    choice, reported = one_question(0, 40), one_question(1, 31)
    for part in (choice, reported):
        part.attention.values[:] = np.ceil(part.attention.values * levels) / levels
    reported.n.values[30] = 0  # a text without a question
    unasked, reported = reported, reported.part(range(30))
    best = {best.group: best for best in best_heads(choice, unasked, OPTIONS)}
    assert set(best) == {"all", THREE_WAY}

    def rate(part: Antecedents, head: int, threshold: float) -> float:
        said = part.attention.values[:, head] < threshold
        neither = part.n.values[:, 1] > 0
        return float(np.mean([n if s else r for s, n, r in zip(said, neither, part.right.values[:, 0, head], strict=True)]))

    tried = {(head, t): rate(choice, head, t) for head in range(4) for t in [*choice.attention.values[:, head], 2.0]}
    three = best[THREE_WAY]
    head = int(three.head.chooser) - 1
    assert three.head.on_choice == pytest.approx(max(tried.values())) == pytest.approx(rate(choice, head, three.threshold))
    assert three.head.accuracy == pytest.approx(rate(reported, head, three.threshold))
    assert three.rules[0].accuracy == pytest.approx(reported.right.values[:, 0, 4].mean())
    assert (three.n, three.n_choice) == (30, 40)
    same = best_heads(choice, choice, OPTIONS)[-1].head
    assert same.accuracy == pytest.approx(same.on_choice), "an attention equal to the threshold is an answer in both parts"


def test_neither_is_always_predicted_if_no_name_is_right():
    choice = one_question(0, 12)
    choice.right.values[:] = 0
    choice.n.values[:] = (0, 1)
    best = {best.group: best for best in best_heads(choice, choice, OPTIONS)}[THREE_WAY]
    most = choice.attention.values[:, 0].max()
    assert (best.head.chooser, best.head.accuracy, best.head.on_choice, best.outside) == ("1", 1, 1, 0)
    assert most < best.threshold < most * (1 + 1e-9)
    assert (best.documents, best.rules[0].on_choice) == (12, 0)


def test_groups_of_only_one_half_have_no_head():
    choice, reported = halves(made_up(0))
    choice.n.values[:, 1] = 0
    assert [best.group for best in best_heads(choice, reported, OPTIONS)] == ["all"]
    choice, reported = halves(made_up(0))
    reported.n.values[:, 0] = 0
    assert [best.group for best in best_heads(choice, reported, OPTIONS)] == ["pronoun"]
    reported.n.values[:] = 0
    with pytest.raises(UserError, match="no group of mentions has antecedents in both parts"):
        best_heads(choice, reported, OPTIONS)


def test_texts_that_ask_nothing_in_one_half_have_no_head():
    choice, reported = one_question(0, 4), one_question(1, 4)
    reported.n.values[:] = 0
    for parts in ((choice, reported), (reported, choice)):
        with pytest.raises(UserError, match="no group of mentions has antecedents in both parts"):
            best_heads(*parts, OPTIONS)


def test_gains_of_rules_are_resampled_with_the_head():
    choice, reported = halves(made_up(0, documents=20))
    best = best_heads(choice, reported, OPTIONS)[0]
    column = list(choice.right["chooser"]).index(best.head.chooser)
    weights = poisson_weights(OPTIONS.seed, range(10), OPTIONS.replicates).astype(float)
    own, rule, n = (values @ weights for values in (*reported.right.values[:, 0, [column, 4]].T, reported.n.values[:, 0]))
    ends = np.nanquantile((own - rule) / n, (0.025, 0.975))
    assert (best.rules[0].gain_low, best.rules[0].gain_high) == pytest.approx(tuple(ends))
    assert (best.head.gain, best.head.gain_low, best.head.gain_high, best.outside) == (0, 0, 0, 0)
    assert best.rules[0].on_choice == pytest.approx(choice.right.values[:, 0, 4].sum() / choice.n.values[:, 0].sum())


@pytest.mark.parametrize(("documents", "first", "second"), [(2, [0], [1]), (3, [0, 2], [1]), (5, [0, 2, 4], [1, 3])])
def test_heads_are_chosen_on_every_other_document_from_the_first_on(documents, first, second):
    parts = halves(made_up(0, documents))
    assert [part.n["document"] for part in parts] == [[f"d{i}" for i in some] for some in (first, second)]
    assert parts[0].attention is None


@pytest.mark.usefixtures("figures")
def test_every_number_of_a_table_has_its_n_and_every_figure_its_table(tmp_path):
    choice, reported = halves(made_up(0))
    found = CoreferenceScores(tuple(best_heads(choice, reported, OPTIONS)), choice, reported)
    folder = Folder(tmp_path / "out")
    write_coreference(folder, found, {"random-weights": found})
    assert {path.stem for path in folder.path.glob("*.png")} == {path.stem for path in folder.path.glob("*.tsv")}
    for table in folder.path.glob("*.tsv"):
        header, *rows = (line.split("\t") for line in table.read_text().splitlines())
        n = header.index("n")
        assert rows
        assert all(int(row[n]) > 0 for row in rows)
    kinds = [line.split("\t")[2] for line in (folder.path / "coreference.tsv").read_text().splitlines()[1:]]
    assert kinds == ["head", "rule", "random-weights"] * 2
    assert (folder.path / "coreference_heads.png").stat().st_size == 4  # two grids, each with a colour bar
    (axes,) = best_figure(found, {}).axes
    assert len(axes.patches) == 4


@pytest.mark.parametrize("groups", [1, 2])
def test_the_title_of_the_figure_is_not_cut_and_does_not_overlap_the_legend(groups):
    choice, reported = halves(made_up(0))
    found = CoreferenceScores(tuple(best_heads(choice, reported, OPTIONS)[:groups]), choice, reported)
    figure = best_figure(found, {"random-weights": found})
    figure.canvas.draw()
    title, legend = figure.texts[0].get_window_extent(), figure.legends[0].get_window_extent()
    assert title.x1 <= figure.bbox.x1
    assert legend.y1 < title.y0
