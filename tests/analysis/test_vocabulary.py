from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.analyse import main
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.vocabulary.figures import lengths, lengths_figure, parameters_figure, write_vocabulary
from bert_jax.analysis.vocabulary.measure import Vocabulary, count_parameters, groups, letter_script, read_vocabulary
from bert_jax.corpus import main as build_corpus
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.interop.tiny import make_vocabulary


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


def test_names_are_capitalised_words_without_a_lower_case_form_or_come_from_a_list(found, analyser, model, tmp_path):
    def names(tour: Vocabulary) -> set[str]:
        return {piece.piece for piece in tour.pieces if piece.is_name}

    assert names(found) == {"Apfel"}  # "paris" is in the vocabulary as well
    assert names(analyser.vocabulary(names=["PARIS", "Ada"])) == {"Paris", "paris"}
    gap = make_vocabulary(tmp_path / "gap", cased=True)  # an empty line is a piece without text
    (gap / "vocab.txt").write_text((gap / "vocab.txt").read_text().rstrip("\n") + "\n\n[unused9]\n")
    (gap / "tokenizer.json").unlink(missing_ok=True)
    with_gap = read_vocabulary(dataclasses.replace(model, tokenizer=load_tokenizer(gap)))
    assert [piece.is_name for piece in with_gap.pieces if not piece.piece] == [False]
    uncased = load_tokenizer(make_vocabulary(tmp_path / "uncased", cased=False))
    pieces = read_vocabulary(dataclasses.replace(model, tokenizer=uncased)).pieces
    assert {piece.is_name for piece in pieces} == {None}


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
    assert count_parameters(characters)["embeddings"] == {"symbols (fixed)": 15, "characters": 6}
    static = {"skip_gram_head": {"context_embeddings": {"embedding": table}, "counts": width}}
    assert count_parameters(static)["skip_gram_head"] == {"context_embeddings": 15, "counts (fixed)": 3}


@pytest.fixture(scope="module")
def corpus(directory: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Builds a corpus of 14 documents of two sentences with the vocabulary of the model."""
    path = tmp_path_factory.mktemp("corpus")
    documents = (f"gradient of Paris is {i}.\ngradient is the tensor of {i} of {i * i}." for i in range(14))
    (path / "text.txt").write_text("\n\n".join(documents))
    flags = ["--shards=1", "--workers=1", "--eval-fraction=0.2", f"--output={path / 'corpus'}"]
    assert build_corpus([f"--source=text:{path / 'text.txt'}", f"--vocab={directory}", *flags]) in (0, None)
    return path / "corpus"


@pytest.mark.usefixtures("two_devices", "figures")
def test_pieces_and_split_words_are_counted_in_a_corpus(directory, corpus, tmp_path, capsys):
    opened, out = open_corpus(corpus), tmp_path / "out"
    documents = len(opened.document_offsets) - 1
    (tmp_path / "names.txt").write_text(" Ada \nParis\n")
    flags = [f"--corpus={corpus}", "--new-words=1", f"--names={tmp_path / 'names.txt'}", f"--output={out}"]
    assert main(["vocabulary", f"--model={directory}", *flags]) == 0
    header, *rows = (line.split("\t") for line in (out / "vocabulary.tsv").read_text().splitlines())
    counts = {row[1]: int(row[header.index("count")]) for row in rows}
    assert (counts["the"], counts["Paris"], counts["river"]) == (documents, documents, 0)
    assert [*counts.values()] == opened.token_counts.tolist()
    assert {int(row[-1]) for row in rows} == {sum(counts.values())}
    unseen = [line.split("\t")[1] for line in (out / "unseen.tsv").read_text().splitlines()[1:]]
    assert unseen == [row[1] for row in rows if row[2] != "reserved" and counts[row[1]] == 0]
    assert (out / "words.txt").read_text() == "gradient\n"
    assert [line.split("\t")[0] for line in (out / "splits.tsv").read_text().splitlines()[1:]] == ["gradient", "tensor"]
    said = {line[:32].strip(): line[32:].split() for line in capsys.readouterr().out.splitlines()}
    assert said["words that it splits"] == ["2", "gradient", "tensor"]
    assert said["name yes"] == ["2", "paris", "Paris"]
    assert int(said["in the corpus never"][0]) == len(unseen)


def test_a_corpus_of_another_vocabulary_is_refused(model, corpus, tmp_path):
    uncased = load_tokenizer(make_vocabulary(tmp_path / "uncased", cased=False))
    with pytest.raises(UserError, match=r"has a different vocabulary than .*; name a corpus that was built with --vocab="):
        read_vocabulary(dataclasses.replace(model, tokenizer=uncased), str(corpus))


@pytest.mark.usefixtures("figures")
def test_tables_list_every_piece_and_figures_show_the_counts(found, tmp_path):
    write_vocabulary(folder := Folder(tmp_path), found)
    rows = [line.split("\t") for line in (tmp_path / "vocabulary.tsv").read_text().splitlines()]
    assert [row[1] for row in rows[1:]] == [piece.piece for piece in found.pieces]
    assert {len(row) for row in rows} == {8}
    names = {path.name for path in folder.written}
    assert {pathlib.Path(name).with_suffix(".tsv").name for name in names if name.endswith(".png")} < names
    whole, inside = lengths(found)
    heights = [patch.get_height() for patch in lengths_figure(found).axes[0].patches]
    assert sum(heights) == whole.total() + inside.total() == len(found.pieces) - 5
    assert sum(patch.get_width() for patch in parameters_figure(found).axes[0].patches) == found.num_parameters
