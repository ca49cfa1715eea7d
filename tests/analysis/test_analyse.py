"""The command `analyse`, run in this process."""

from __future__ import annotations

import itertools
import os
import pathlib
import time

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.analyse import main
from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.controls import random_weights
from bert_jax.errors import UserError
from bert_jax.prediction.engine import Engine
from tests.analysis.coreference.test_antecedents import GAP
from tests.analysis.coreference.written import PARIS, conllu, write
from tests.analysis.test_treebank import row
from tests.bad_inputs.places import REPOSITORY

pytestmark = pytest.mark.usefixtures("two_devices", "figures")


def captions(figures: list[Figure]) -> set[str]:
    """Returns the captions of the figures, as they are drawn."""
    return {text.get_text() for figure in figures for text in figure.texts if text.get_gid() == "caption"}


def test_an_analysis_keeps_its_compiled_programs_for_the_next_one(directory, tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        assert main(["vocabulary", f"--model={directory}", f"--output={tmp_path / 'out'}"]) == 0
        assert pathlib.Path(jax.config.jax_compilation_cache_dir).parent == tmp_path / "bert_jax"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_heads_of_a_file_become_tables_and_figures_and_only_the_bad_line_fails(directory, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"the river of Paris\n\n\xff\xfe\n" + b"the cab " * 20 + b"\n")
    out = tmp_path / "out"
    assert main(["heads", f"--model={directory}", f"--output={out}", f"--input={tmp_path / 'in.txt'}", "--reach=2"]) == 1
    said, problems = capsys.readouterr()
    assert "in.txt, line 3: byte 1 is not UTF-8" in problems
    assert said.startswith("2 texts, 44 words; texts longer than 40 tokens were cut: 4 windows\n")
    assert "to the word before" in said
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {"heads", "distances", "tree", "plane"}
    assert figures < {path.stem for path in out.glob("*.tsv")}


def test_attention_of_a_pair_is_written_as_page_figures_and_arrays(directory, tmp_path, capsys):
    out = tmp_path / "out"
    flags = [f"--model={directory}", f"--output={out}", "--head=2-3", "--head=1-1", "--format=png,html"]
    assert main(["attention", *flags, "the cab", "of Paris"]) == 0
    assert capsys.readouterr().out.startswith("7 words, 9 pieces, with [CLS] and [SEP]\n")
    names = ["attention.html", "attention.npz", "head_1-1.png", "head_2-3.png", "overview.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert '"head": "2-3"' in (out / "attention.html").read_text()
    with np.load(out / "attention.npz") as arrays:
        assert arrays["words"].shape == (2, 4, 7, 7)
        assert arrays["segments"].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_the_vocabulary_report_counts_the_words_of_a_list_of_names(directory, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("Paris\nAda\n")
    assert main(["vocabulary", f"--model={directory}", f"--output={tmp_path / 'out'}", f"--names={tmp_path / 'names.txt'}"]) == 0
    lines = {line[:32].strip(): line[32:].split() for line in capsys.readouterr().out.splitlines()}
    assert lines["name yes"] == ["2", "paris", "Paris"]
    assert lines["kind reserved"][0] == "5"
    assert lines["parameters of attention"][0] == "2,240"
    assert not (tmp_path / "out" / "unseen.tsv").exists()


def test_neighbours_are_pieces_without_a_text_and_words_with_one(directory, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["neighbours", f"--model={directory}", f"--output={out}", "Paris", "cab"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Paris: ")
    assert said[1].startswith("cab (c ##a ##b): ")
    assert [path.name for path in out.iterdir()] == ["pieces.tsv"]
    (tmp_path / "in.txt").write_text("the river of Paris\nthe cab of the river\n")
    flags = [f"--input={tmp_path / 'in.txt'}", "--layer=2", "--layer=1", "--count=2", "is the [river] of", "capital"]
    assert main(["neighbours", f"--model={directory}", f"--output={out}", *flags]) == 1
    said, problems = capsys.readouterr()
    assert "2 texts, 9 words\nlayer 2: the mean cosine of any two words is " in said
    assert "river: 2 occurrences\n" in said
    assert "'capital' is not in " in problems
    (tmp_path / "new").mkdir()
    for words, says in (
        (["--layer=3", "Paris"], "--layer=3 does not exist"),
        ([f"{tmp_path / 'in.txt'}"], "is the name of a file"),
    ):
        with pytest.raises(UserError, match=says):
            main(["neighbours", f"--model={directory}", f"--output={tmp_path / 'new'}", flags[0], *words])
    assert capsys.readouterr().out == "", "the layers are checked before the first line is printed"
    rows = (out / "neighbours.tsv").read_text().splitlines()
    assert [row.split("\t")[1] for row in rows[1:]] == ["1", "1", "2", "2"]
    assert {path.stem for path in out.glob("*.png")} == {"layers", "senses"}


def test_dependencies_writes_tables_a_figure_and_lines_for_controls(directory, tmp_path, capsys):
    good = row(1, "the", 2, "det") + row(2, "river", 0, "root") + row(3, "!", 2, "punct")
    long = "".join(row(i, "the", 59, "det") for i in range(1, 59)) + row(59, "cab", 0, "root")
    (tmp_path / "x.conllu").write_text("\n".join([*[good] * 9, row(1, "a", 1), long]))
    (tmp_path / "y.conllu").write_text("\n".join([good] * 9))
    flags = [f"--input={tmp_path / 'x.conllu'}", f"--choose={tmp_path / 'y.conllu'}", "--control=permuted-heads", "--least=10"]
    out = tmp_path / "out"
    assert main(["dependencies", f"--model={directory}", f"--output={out}", *flags, "--replicates=100"]) == 1
    said, problems = capsys.readouterr()
    assert "x.conllu, line 37: the heads of the words 1 -> 1 are a cycle, not a tree; correct the heads" in problems
    assert said.startswith("10 sentences; heads and offsets were chosen on 9 others\n")
    relations = [line.split()[0] for line in said.splitlines()[2:]]
    assert relations[:4] == ["all", relations[1], "det", relations[3]]
    assert "permuted-heads" in said
    assert "1 relation with fewer than 10 dependents: see dependencies.tsv" in said
    assert "38 dependents left out: the sentence was cut, and the head is in another window" in said
    names = {"dependencies.tsv", "dependencies.png", "dependency_heads.tsv", "dependency_offsets.tsv", "dependency_controls.tsv"}
    assert {path.name for path in out.iterdir()} == names | {"published.tsv"}


def test_a_model_compared_with_itself_is_identical(directory, tmp_path, capsys, figures):
    out = tmp_path / "out"
    flags = ["--masked=0.5", "the capital of France is Paris.", "the river of Paris is the cab"]
    assert main(["compare", f"--model={directory}", f"--with={directory}/.", f"--output={out}", *flags]) == 0
    said = capsys.readouterr().out
    assert "2 texts, 14 words\nheads: mean distance 0.000 between matched heads" in said
    assert "  8 of 8 are matched with the head of the same name" in said
    assert "  2 | 2: 1.000" in said
    assert "agreement: 1.000 (n = " in said
    assert "KL(first | second): 0.000 (n = " in said
    assert {path.stem for path in out.glob("*.png")} == {"divergences", "moved", "layers"}
    assert captions(figures) == {f"{directory} | {directory}/."}


def test_an_original_checkpoint_is_analysed_and_its_assumed_gelu_is_reported(tmp_path, capsys):
    path = REPOSITORY / "tests" / "golden" / "tf1" / "bert"
    assert main(["vocabulary", f"--model={path}", f"--output={tmp_path / 'out'}"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "activation" in note


def test_comparison_with_random_weights_follows_the_seed(directory, tmp_path, capsys, figures, analyser):
    text = "the capital of France is Paris."
    flags = ["--control=random-weights", "--seed=5", "--masked=0.5", text]
    assert main(["compare", f"--model={directory}", f"--output={tmp_path / 'out'}", *flags]) == 0
    drawn = Analyser(Engine(random_weights(analyser.engine.model, 5)))
    expected = analyser.compare(drawn, [text], seed=5)
    said = capsys.readouterr().out
    for layer in range(3):
        assert f"  {layer} | {layer}: {expected.cka.sel(layer=layer, other=layer).values:.3f}\n" in said
    assert "predictions are left out: " in said
    assert captions(figures) == {f"{directory} | random weights"}


def test_an_output_that_is_the_model_itself_is_refused(directory, tmp_path):
    with pytest.raises(UserError, match="is the directory of the model itself; choose another --output"):
        main(["heads", f"--model={directory}", f"--output={directory}/x/..", "the"])


@pytest.mark.parametrize(
    ("command", "units"), [("dependencies", "half of the sentences"), ("coreference", "half of the documents")]
)
def test_choose_must_be_another_file_than_input(command, units, tmp_path):
    path = write(tmp_path, PARIS)
    flags = [f"--input={path}", f"--choose={tmp_path}/../{tmp_path.name}/x.conllu"]
    with pytest.raises(UserError, match=f"--choose=.* is the same file as --input; leave --choose out to choose on {units}"):
        main([command, "--model=m", f"--output={tmp_path / 'out'}", *flags])


def test_a_damaged_line_of_the_choosing_file_fails(directory, tmp_path, capsys):
    good = row(1, "the", 2, "det") + row(2, "river", 0, "root")
    (tmp_path / "x.conllu").write_text("\n".join([*[good] * 3, row(1, "a", "_")]))
    (tmp_path / "y.conllu").write_text("\n".join([good, row(1, "a", 1)]))
    run = [f"--model={directory}", f"--output={tmp_path / 'out'}", "--replicates=100"]
    flags = [f"--input={tmp_path / 'x.conllu'}", f"--choose={tmp_path / 'y.conllu'}", *["--control=permuted-heads"] * 2]
    assert main(["dependencies", *run, *flags, "--least=1"]) == 1
    said, problems = capsys.readouterr()
    assert "y.conllu, line 4: " in problems
    assert "x.conllu, line 10: the sentence has no heads" in problems
    assert said.count("permuted-heads") == 2, "the control of each of two relations, once"
    write(tmp_path, PARIS + PARIS.replace("id = d", "id = e"))
    write(tmp_path, PARIS + conllu("a/NOUN/0/(1-x-1", name="f"), "y.conllu")
    assert main(["coreference", *run, *flags[:2]]) == 1
    said, problems = capsys.readouterr()
    assert "y.conllu, line " in problems
    assert said.startswith("2 documents; heads were chosen on 2 others\n")


def test_a_file_that_is_read_several_times_cannot_be_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    path, pipe = write(tmp_path, PARIS), tmp_path / "pipe"
    for flags in (
        ["dependencies", f"--input={pipe}"],
        ["coreference", f"--input={path}", f"--choose={pipe}"],
        ["probe", f"--input={pipe}", f"--eval={path}"],
        ["probe", f"--input={path}", f"--eval={pipe}"],
    ):
        with pytest.raises(UserError, match="pipe is a pipe, but this file is read several times; save it to a file first"):
            main([*flags, "--model=m", f"--output={tmp_path / 'out'}"])


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / "encoder_overview.png").mkdir()
    with pytest.raises(UserError, match=r"encoder_overview\.png cannot be written: Is a directory"):
        main(["attention", "--model=not-there", f"--output={tmp_path}", "--format=png", "the"])


def test_pronouns_of_neither_name_are_reported_for_a_single_question_file(directory, tmp_path, capsys):
    flags = [f"--input={write(tmp_path, GAP, 'x.tsv')}", f"--choose={write(tmp_path, GAP, 'y.tsv')}", "--replicates=100"]
    assert main(["coreference", f"--model={directory}", f"--output={tmp_path / 'out'}", *flags]) == 0
    assert (
        "1 pronoun referring to neither name: counted only in the group that allows the answer 'neither'\n"
    ) in capsys.readouterr().out
    flags[1] = f"--choose={write(tmp_path, PARIS)}"
    with pytest.raises(UserError, match=r"x\.conllu and .*x\.tsv have different formats; give two files of the same"):
        main(["coreference", f"--model={directory}", f"--output={tmp_path / 'out'}", *flags])


def test_a_control_whose_folder_is_a_file_is_refused_before_the_model_is_loaded(tmp_path):
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("the X Y\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "random-weights").write_text("")
    flags = [f"--output={tmp_path / 'out'}", f"--input={tmp_path / 'train.txt'}", f"--eval={tmp_path / 'dev.txt'}"]
    with pytest.raises(UserError, match="out/random-weights is a file; name a directory"):
        main(["probe", *flags, "--control=random-weights", "--model=not-there"])


def test_coreference_writes_tables_figures_and_lines_for_rules_and_controls(directory, tmp_path, capsys):
    damaged = conllu("a/NOUN/0/(1-x-1", name="f")
    path = write(tmp_path, PARIS + PARIS.replace("id = d", "id = e") + damaged)
    out = tmp_path / "out"
    flags = [f"--output={out}", f"--input={path}", "--control=shuffled-words", "--window=24"]
    assert main(["coreference", f"--model={directory}", *flags]) == 1
    said, problems = capsys.readouterr()
    assert "the mention (1 is never closed; it is left out" in problems
    assert said.startswith("1 document; heads were chosen on 2 others\n")
    lines = {line[:19].strip(): line.split() for line in said.splitlines()}
    rows = [line.split("\t") for line in (out / "coreference.tsv").read_text().splitlines()[1:]]
    ((head, accuracy, n),) = [(row[1], float(row[3]), row[10]) for row in rows if row[0] == "all" and row[2] == "head"]
    assert lines["all"][1:3] == [head, f"{100 * accuracy:.1f}"]
    assert n == "3"
    assert "2 mentions left out: their antecedents are outside their window" in said
    assert "shuffled-words" in lines
    names = {"coreference.tsv", "coreference.png", "coreference_heads.tsv", "coreference_heads.png"}
    assert {path.name for path in out.iterdir()} == names


def test_an_analyser_shows_its_progress_and_the_time_left(analyser, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(time, "monotonic", itertools.count(step=5.0).__next__)
    monkeypatch.setattr("bert_jax.analysis.heads.measure.WINDOWS", 1)
    shown = Analyser(analyser.engine, show_progress=True)
    texts = ["the river of Paris"] * 3
    shown.heads(texts, reach=2)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "read 2/3 texts, 8 words", "each of two devices reads one"
    assert last == "read 3/3 texts, 12 words"
    shown.heads(iter(texts), reach=2)
    assert capsys.readouterr().err.splitlines()[-1] == "read 3 texts, 12 words"
    path = tmp_path / "x.conllu"
    path.write_text("\n".join([row(1, "the", 2, "det") + row(2, "river", 0, "root")] * 4))
    shown.dependencies(path, replicates=100)
    assert capsys.readouterr().err.splitlines()[-1] == "read 11/11 lines, 2 dependents"
    analyser.heads(texts, reach=2)
    assert capsys.readouterr().err == ""


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "  attention " in text
    assert "  heads " in text
    assert "  vocabulary " in text
    assert "  coreference " in text
    assert "  compare " in text
