from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.vocabulary import measure as vocabularies
from bert_jax.analysis.vocabulary.figures import lengths, lengths_figure, parameters_figure, write_vocabulary
from bert_jax.analysis.vocabulary.measure import Vocabulary, groups, letter_script
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def found(analyser) -> Vocabulary:
    return analyser.vocabulary()


def test_every_piece_has_one_kind_and_one_script(found, analyser):
    of = {piece.piece: piece for piece in found.pieces}
    kinds = {
        "[CLS]": "reserved", "[MASK]": "reserved", "[": "character", "a": "character", "##a": "character inside words",
        "7": "character", "the": "word", "Paris": "word", "中": "character",
    }  # fmt: skip
    assert {piece: of[piece].kind for piece in kinds} == kinds
    assert (of["the"].script, of["中"].script, of["7"].script, of["!"].script) == ("latin", "cjk", "digits", "marks")
    assert sum(len(pieces) for name, _, pieces in groups(found) if name == "kind") == analyser.engine.model.tokenizer.size
    assert (of["##é"].text, of["##é"].continues) == ("é", True)


@pytest.mark.parametrize(
    ("text", "script"),
    [("Ωμέγα", "greek"), ("aя", "mixed"), ("1973", "digits"), ("½", "digits"), ("…", "marks"), ("µ", "other"), ("نص", "arabic")],
)
def test_a_piece_has_a_script_only_if_all_letters_share_it(text, script):
    assert letter_script(text) == script


def test_names_are_capitalised_words_without_a_lower_case_form_or_come_from_a_list(found, analyser, model):
    def names(tour: Vocabulary) -> set[str]:
        return {piece.piece for piece in tour.pieces if piece.is_name}

    assert names(found) == {"Apfel"}  # "paris" is in the vocabulary as well
    assert names(analyser.vocabulary(names=["PARIS", "Ada"])) == {"Paris", "paris"}
    lower = dataclasses.replace(model.tokenizer.vocabulary, lowercase=True)
    pieces = vocabularies._with_names(found.pieces, Lowered(lower), None)
    assert pieces == list(found.pieces)


@dataclasses.dataclass(frozen=True)
class Lowered:
    vocabulary: object


def test_all_parameters_are_counted_once_by_part(found, analyser):
    params = analyser.engine.model.params
    assert found.num_parameters == sum(x.size for x in jax.tree.leaves(params))
    assert list(found.parameters)[:3] == ["embeddings", "attention", "feed-forward"]
    assert found.parameters["attention"]["query"] == 2 * (16 * 16 + 16)
    assert found.parameters["feed-forward"] == {
        "intermediate": 2 * (16 * 24 + 24),
        "output": 2 * (24 * 16 + 16),
        "layer_norm": 64,
    }
    assert {"pooler", "mlm_head", "nsp_head"} < found.parameters.keys()


def test_tables_that_are_never_trained_are_named():
    table, width = np.zeros((5, 3)), np.zeros(3)
    characters = {"embeddings": {"characters": {"symbols": table, "embedding": width, "filters_1": {"bias": width}}}}
    assert vocabularies.count_parameters(characters)["embeddings"] == {"symbols (fixed)": 15, "characters": 6}
    static = {"skip_gram_head": {"context_embeddings": {"embedding": table}, "counts": width}}
    assert vocabularies.count_parameters(static)["skip_gram_head"] == {"context_embeddings": 15, "counts (fixed)": 3}


def test_unused_pieces_are_found_and_a_corpus_of_another_vocabulary_is_refused(analyser, found, tmp_path, monkeypatch):
    tokenizer = analyser.engine.model.tokenizer
    counts = [3 * (piece.piece in ("the", "of")) for piece in found.pieces]
    stored = Stored(tokenizer.vocabulary, counts)
    monkeypatch.setattr(vocabularies, "open_corpus", lambda directory: stored)
    tour = analyser.vocabulary(corpus=tmp_path)
    unseen = {piece.piece for piece in tour.unseen}
    assert unseen == {piece.piece for piece in found.pieces if piece.kind != "reserved"} - {"the", "of"}
    assert (tour.corpus_tokens, tour.splits) == (6, None)
    monkeypatch.setattr(vocabularies, "find_splits", lambda opened, own: (opened, own))
    assert analyser.vocabulary(corpus=tmp_path, with_splits=True).splits == (stored, tokenizer)
    write_all(Folder(tmp_path / "out"), tour, monkeypatch)
    assert len((tmp_path / "out" / "unseen.tsv").read_text().splitlines()) == len(unseen) + 1
    stored.vocabulary = dataclasses.replace(tokenizer.vocabulary, sha256="other")
    with pytest.raises(UserError, match=r"has a different vocabulary than .*; name a corpus that was built with --vocab="):
        analyser.vocabulary(corpus=tmp_path)


class Stored:
    """The parts of a corpus that are read."""

    def __init__(self, vocabulary: object, counts: list[int]):
        self.vocabulary, self.token_counts = vocabulary, np.array(counts)


def write_all(folder: Folder, tour: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "figure", lambda name, figure: folder.write(name, b"drawn"))
    write_vocabulary(folder, tour)


def test_tables_list_every_piece_and_figures_show_the_counts(found, tmp_path, monkeypatch):
    write_all(folder := Folder(tmp_path), found, monkeypatch)
    rows = [line.split("\t") for line in (tmp_path / "vocabulary.tsv").read_text().splitlines()]
    assert [row[1] for row in rows[1:]] == [piece.piece for piece in found.pieces]
    assert {len(row) for row in rows} == {8}
    names = {path.name for path in folder.written}
    assert {pathlib.Path(name).with_suffix(".tsv").name for name in names if name.endswith(".png")} < names
    whole, inside = lengths(found)
    heights = [patch.get_height() for patch in lengths_figure(found).axes[0].patches]
    assert sum(heights) == whole.total() + inside.total() == len(found.pieces) - 5
    assert sum(patch.get_width() for patch in parameters_figure(found).axes[0].patches) == found.num_parameters
