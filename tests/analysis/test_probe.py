"""The vectors of words, and all probes of a file."""

from __future__ import annotations

import dataclasses
import itertools
import lzma
import pathlib
import time
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.analyse import main
from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.controls import engine_with_random_weights
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.probe.annotated import Annotated, AnnotatedFile
from bert_jax.analysis.probe.figures import over_seeds
from bert_jax.analysis.probe.word_vectors import fit_scale, read_features
from bert_jax.analysis.windows import word_windows
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.prediction.engine import Engine
from bert_jax.storage import objects
from tests.analysis.reference import word_vectors_of
from tests.interop.tiny import as_model, make_model
from tests.prediction.reference import engine_on

WORDS = ("the", "river", "of", "Paris", "is", "dry")


def conllu(count: int, seed: int, tagged: bool = True) -> str:
    """Returns right-branching sentences. A word's part of speech is the word itself, and each sentence ends with a punctuation
    mark."""
    rng = np.random.default_rng(seed)
    text = ""
    for _ in range(count):
        words = [*rng.choice(WORDS, rng.integers(5, 8)), "."]
        for i, word in enumerate(words):
            pos = "PUNCT" if word == "." else word.upper() if tagged else "_"
            text += f"{i + 1}\t{word}\t_\t{pos}\t_\t_\t{i}\t{'dep' if i else 'root'}\t_\t_\n"
        text += "\n"
    return text


@pytest.fixture
def files(tmp_path) -> tuple[pathlib.Path, pathlib.Path]:
    training, held_out = tmp_path / "train.conllu.xz", tmp_path / "dev.conllu"
    training.write_bytes(lzma.compress(conllu(40, 1).encode()))
    held_out.write_text(conllu(10, 2))
    return training, held_out


def test_the_vector_of_a_word_is_the_mean_of_its_pieces_in_windows(analyser):
    engine = analyser.engine
    sentences = [Annotated(("the", "Apfelriver", "x"), {}), Annotated(("abc", "Paris") * 15, {})]
    features = read_features(engine, sentences, 33)
    assert features.cut == [False, True]
    assert features.starts.tolist() == [0, 3, 33]
    assert [len(own) for own in features.types[:3]] == [1, 6, 1]
    assert len(features.types) == 33
    windows = [window for sentence in sentences for window in word_windows(engine, sentence.words)]
    expected = np.moveaxis(np.concatenate([word_vectors_of(engine.model, window)[:, 1:-1] for window in windows], axis=1), 1, 0)
    np.testing.assert_allclose(features.vectors, expected, atol=5e-3)  # float16
    scale = fit_scale(features.vectors)
    np.testing.assert_allclose(scale.mean, expected.mean(0), atol=5e-3)
    np.testing.assert_allclose(scale.deviation, expected.std(0), atol=5e-3)


@pytest.mark.usefixtures("two_devices")
def test_vectors_too_large_for_float16_are_refused_without_a_numpy_warning(model):
    params = jax.tree.map(np.array, model.params)
    params["encoder"]["layers"]["feed_forward_layer_norm"]["scale"][-1] *= 1e6
    with pytest.raises(UserError, match="returns numbers that are not finite"):
        read_features(Engine(dataclasses.replace(model, params=params)), [Annotated(("the", "river"), {})], 2)


@pytest.mark.usefixtures("two_devices", "figures")
def test_all_probes_of_a_treebank_become_tables_and_figures(files, directory, tmp_path, capsys):
    files[1].write_text(files[1].read_text() + "1\tx\n")
    flags = [f"--input={files[0]}", f"--eval={files[1]}", f"--output={tmp_path / 'out'}", "--words=200", "--rank=2"]
    flags += ["--epochs=1", "--seeds=2", "--passes=1", "--control=random-weights"]
    assert main(["probe", f"--model={directory}", *flags]) == 1
    said, problems = capsys.readouterr()
    assert "dev.conllu, line" in problems
    assert "2 columns between TABs, not the 10 columns of CoNLL-U" in problems
    assert said.startswith(f"{directory}: trained on 193 words, scored on 73; their vectors are 0 MB\n")
    tables = {path.stem: table(path) for path in (tmp_path / "out").glob("*.tsv")}
    assert tables.keys() == {"labels", "mix", "structure", "parsers"}
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"labels", "structure", "parsers"}
    # the parts of speech are the words themselves: the usual label of a word is right, and the control task is as easy
    assert [row["probe"] for row in tables["labels"] if row["label"] == "upos"] == ["0", "1", "2", "mix"]
    assert {row["label"] for row in tables["labels"]} == {"upos", "relation"}
    embedded = tables["labels"][0]
    assert float(embedded["majority"]) == 1.0
    assert float(embedded["accuracy"]) > 0.9
    assert float(embedded["selectivity"]) == pytest.approx(float(embedded["accuracy"]) - float(embedded["control"]), abs=1e-5)
    assert (embedded["n"], embedded["n training"], embedded["seeds"]) == ("73", "193", "2")
    shares = [float(row["weight"]) for row in tables["mix"] if row["label"] == "upos"]
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    assert {row["right-branching"] for row in tables["structure"]} == {"1"}
    assert {(row["score"], row["n"]) for row in tables["structure"]} >= {("uuas", "53"), ("root accuracy", "10")}
    parsers = {row["parser"]: row for row in tables["parsers"]}
    assert parsers["right-branching"]["attachment"] == parsers["best fixed distance"]["attachment"] == "1"
    assert parsers["attention"]["n"] == "53"
    assert "parsers are left out" not in said
    assert "\nrandom-weights: trained on 193 words" in said
    assert said.count("written to ") == 2
    control = (tmp_path / "out" / "random-weights" / "mix.tsv").read_text()
    assert control.splitlines()[0] == (tmp_path / "out" / "mix.tsv").read_text().splitlines()[0]
    assert control != (tmp_path / "out" / "mix.tsv").read_text()


def table(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a table, by column name."""
    header, *rows = (line.split("\t") for line in path.read_text().splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_file_of_tags_has_only_probes_of_its_tags(analyser, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(time, "monotonic", itertools.count(step=5.0).__next__)
    for name, seed in (("train.txt", 1), ("dev.txt", 4)):
        words = np.random.default_rng(seed).choice(WORDS, 30)
        (tmp_path / name).write_text("".join(f"{word} {'O' if len(word) < 5 else 'B-X'}\n" for word in words))
    found = analyser.probes(tmp_path / "train.txt", tmp_path / "dev.txt", seeds=1, epochs=1)
    assert found.structure is None
    assert found.parsers is None
    assert found.labels.n["label"] == ["tag"]
    assert found.labels.n.values.tolist() == [30]
    assert (found.words, found.cut) == ((30, 30), 1 + 1)  # of one sentence each, of more pieces than the position table has
    assert found.size == (30 + 30) * 3 * 16 * 2  # float16 for the embeddings and two layers
    assert capsys.readouterr().err == ""
    again = Analyser(analyser.engine, show_progress=True).probes(tmp_path / "train.txt", tmp_path / "dev.txt", seeds=1, epochs=1)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:2] == ["reading the training words 30/30 words", "reading the evaluation words 30/30 words"]
    assert shown[-1] == "training probes of labels 1 of 1 8/8 probes"
    np.testing.assert_array_equal(again.labels.accuracy.values, found.labels.accuracy.values)


def test_probes_that_the_files_do_not_allow_are_refused(analyser, files, tmp_path):
    with pytest.raises(UserError, match="is also the training file; give another file to score the probes on"):
        analyser.probes(files[0], files[0])
    with pytest.raises(UserError, match=r"the limit of 2 words is too low for a sentence of .*; raise it \(--words\)"):
        analyser.probes(*files, words=2)
    with pytest.raises(UserError, match=r"probe\.words=0 must be at least 1"):
        analyser.probes(*files, words=0)
    tags = tmp_path / "tags.txt"
    tags.write_text("a X\nb Y\n")
    with pytest.raises(UserError, match="have no annotation in common; give two files of the same format"):
        analyser.probes(files[0], tags)
    with pytest.raises(UserError, match=r"no kind of label has two or more labels in .* and also occurs in .*; give two"):
        analyser.probes(files[0], tags, probes=("labels",))
    with pytest.raises(UserError, match=r"tags\.txt has no tree .* to train parsers on; give a treebank in CoNLL-U"):
        analyser.probes(files[0], tags, probes=("parsers",))


def test_training_does_not_see_the_scored_words(analyser, files, tmp_path):
    other = tmp_path / "other.conllu"
    other.write_text(conllu(3, 9).replace("river", "Paris").replace("dry", "Paris"))
    options: dict[str, Any] = {"words": 200, "seeds": 1, "epochs": 1, "probes": ("labels",)}
    found = [analyser.probes(files[0], held_out, **options) for held_out in (files[1], other)]
    np.testing.assert_array_equal(found[0].labels.mix.values, found[1].labels.mix.values)
    assert (found[0].labels.accuracy.values != found[1].labels.accuracy.values).any()


def test_sentences_of_one_word_have_only_label_probes(analyser, tmp_path):
    words = [("the", "DET"), ("river", "NOUN"), ("the", "DET")] * 10
    for name in ("train.conllu", "dev.conllu"):
        text = "".join(f"1\t{word}\t_\t{pos}\t_\t_\t0\troot\t_\t_\n\n" for word, pos in words)
        (tmp_path / name).write_text(text)
    files = tmp_path / "train.conllu", tmp_path / "dev.conllu"
    found = analyser.probes(*files, seeds=1, epochs=1)
    assert found.labels is not None
    assert (found.structure, found.parsers) == (None, None)
    with pytest.raises(UserError, match=r"train\.conllu has no tree with one root and two or more words to train structure on"):
        analyser.probes(*files, probes=("structure",))


def test_trees_of_sentences_longer_than_the_position_table_are_no_trees(analyser, tmp_path):
    path = tmp_path / "train.conllu"
    path.write_text("".join(f"{i + 1}\tthe\t_\t_\t_\t_\t{i}\t_\t_\t_\n" for i in range(39)) + "\n")
    (tmp_path / "dev.conllu").write_text(conllu(1, 1))
    for probes in (("structure",), ("parsers",)):
        with pytest.raises(UserError, match=r"train\.conllu has no tree .* that fit into the 40 positions of the model"):
            analyser.probes(path, tmp_path / "dev.conllu", probes=probes)
    with pytest.raises(UserError, match=r"no annotation in common; .* or with trees of sentences that fit into the 40 positions"):
        analyser.probes(path, tmp_path / "dev.conllu")


def test_a_model_of_characters_has_vectors_of_words_and_no_parsers(vocabulary, files, tmp_path):
    params, config = make_model(vocabulary, encoder="bilm", character_cnn=True, tied_decoder=False, num_layers=1)
    kept = {part: tree for part, tree in params.items() if part in ("embeddings", "encoder")}
    export_model(tmp_path / "m", Model(params=kept, config=config, tokenizer=load_tokenizer(vocabulary)))
    other = Analyser(engine_on(tmp_path / "m"))
    vectors = read_features(other.engine, list(AnnotatedFile(files[1])), 73).vectors
    assert vectors.shape[:2] == (73, 2)
    assert np.isfinite(vectors).all()
    with pytest.raises(UserError, match=r"has no attention that parsers can read; name a Transformer, or leave parsers out"):
        other.probes(*files, seeds=1, epochs=1, probes=("parsers",))


@pytest.mark.usefixtures("two_devices", "figures")
def test_parsers_that_are_left_out_for_want_of_attention_are_mentioned(vocabulary, files, tmp_path, capsys):
    encoder = "experiments/extensions/fourier.py:Fourier"
    params, config = make_model(vocabulary, encoder=encoder)
    kept = {part: tree for part, tree in params.items() if part in ("embeddings", "encoder")}
    export_model(tmp_path / "m", as_model(kept, config, vocabulary))
    flags = [f"--model={tmp_path / 'm'}", f"--input={files[0]}", f"--eval={files[1]}", "--epochs=1", "--seeds=1", "--rank=2"]
    mentioned = f"parsers are left out, since they read attention and a {encoder} model has none\n"
    for probes in ([], ["--probes=structure"]):
        assert main(["probe", *flags, "--words=200", f"--output={tmp_path / 'out'}", *probes]) == 0
        assert (mentioned in capsys.readouterr().out) == (not probes)


def test_static_vectors_with_random_weights_stay_static(vocabulary, tmp_path):
    params, config = make_model(vocabulary, encoder="static", num_layers=0)
    export_model(tmp_path / "m", as_model({"embeddings": params["embeddings"]}, config, vocabulary))
    assert engine_with_random_weights(engine_on(tmp_path / "m"), 0).config.encoder == "static"


def test_a_sentence_of_several_roots_has_labels_and_no_tree(tmp_path):
    (tmp_path / "x.conllu").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n2\tb\t_\tPUNCT\t_\t_\t0\troot\t_\t_\n")
    (sentence,) = AnnotatedFile(tmp_path / "x.conllu")
    assert (sentence.words, sentence.heads) == (("a", "b"), ())
    assert sentence.labels == {"upos": ("X", "PUNCT"), "xpos": ("_", "_"), "relation": ("root", "root")}


def test_a_file_in_a_bucket_is_read(analyser, bucket):
    objects.write(f"{bucket}/x.txt", b"a X\nb Z\n")
    objects.write(f"{bucket}/x.conllu", b"1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n")
    files = [AnnotatedFile(f"{bucket}/{name}") for name in ("x.txt", "x.conllu")]
    assert [[sentence.words for sentence in file] for file in files] == [[("a", "b")], [("a",)]]
    with pytest.raises(UserError, match=r"x\.txt is also the training file"):
        analyser.probes(f"{bucket}/x.txt", f"{bucket}/x.txt")


def test_tags_are_in_the_last_or_the_named_column(tmp_path):
    (tmp_path / "x.txt").write_text("a X Y\nb Z W\n")
    assert next(iter(AnnotatedFile(tmp_path / "x.txt"))).labels == {"tag": ("Y", "W")}
    file = AnnotatedFile(tmp_path / "x.txt", 1)
    assert ([sentence.labels["tag"] for sentence in file], file.failed) == ([("X", "Z")], 0)


def test_means_and_deviations_are_over_the_seeds():
    values = np.array([[1.0, 3.0], [2.0, 2.0]])
    mean, deviation = over_seeds(NamedArray(values, {"probe": [0, 1], "seed": [0, 1]}))
    assert mean.tolist() == [2.0, 2.0]
    assert deviation.tolist() == pytest.approx([2**0.5, 0.0])
    assert np.isnan(over_seeds(NamedArray(values[:, :1], {"probe": [0, 1], "seed": [0]}))[1]).all()
