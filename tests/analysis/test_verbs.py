"""The verbs of `analyse` without a model: their flags, what they ask for, and the lines that they print."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert_jax import analyse
from bert_jax.analysis import verb
from bert_jax.analysis.attention import verb as attention
from bert_jax.analysis.compare import verb as compare
from bert_jax.analysis.coreference import verb as coreference
from bert_jax.analysis.dependencies import verb as dependencies
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads import verb as heads
from bert_jax.analysis.probe import verb as probe
from bert_jax.errors import UserError
from bert_jax.prediction.streams import Field, read_records
from tests.analysis import made_up
from tests.analysis.test_probe_figures import FOUND as PROBES
from tests.looked_at import assert_lines_as_looked_at

NEEDED = {
    "attention": [], "heads": [], "neighbours": ["bank"], "dependencies": ["--input=i"], "coreference": ["--input=i"],
    "probe": ["--input=i", "--eval=e"], "compare": ["--with=o"], "vocabulary": [],
}  # fmt: skip


def parsed(name: str, *flags: str) -> dict[str, Any]:
    parser = analyse._parser(name)
    return vars(parser.parse_args(["--model=m", "--output=d", *NEEDED[name], *flags]))


TEXTS = {"texts": [], "input": None, "jsonl": False}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("attention", TEXTS | {"format": ("html",), "head": [], "pieces": False}),
        ("heads", TEXTS | {"in_words": True, "reach": 16, "divergence_words": 10_000}),
        (
            "neighbours",
            {"words": ["bank"], "input": None, "jsonl": False, "layers": [], "count": 10, "senses": 2, "occurrences": 200},
        ),
        ("dependencies", {"input": "i", "choose": None, "control": [], "reach": 10, "least": 100, "replicates": 1000, "seed": 0}),
        (
            "coreference",
            {"input": "i", "choose": None, "control": [], "tokens": 2**20, "singletons": True, "replicates": 1000, "seed": 0},
        ),
        (
            "probe",
            {"input": "i", "eval": "e", "column": -1, "probes": (), "words": 50_000, "rank": 64, "epochs": 10, "passes": 2,
             "seeds": 3, "seed": 0, "control": ""},
        ),
        ("compare", TEXTS | {"other": "o", "control": None, "masked": 0.15, "seed": 0, "divergence_words": 10_000}),
        ("vocabulary", {"corpus": None, "new_words": None, "names": None}),
    ],
)  # fmt: skip
def test_a_verb_has_these_flags_with_these_defaults(name: str, values: dict[str, Any]):
    assert parsed(name) == {"model": "m", "output": "d", "format": ("png",)} | values


MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("name", "flag", "least", "most"),
    [
        ("heads", "divergence-words", 0, MOST), ("neighbours", "layer", 0, MOST), ("neighbours", "count", 1, 1_000),
        ("neighbours", "senses", 1, 10), ("neighbours", "occurrences", 2, 5_000), ("dependencies", "least", 0, MOST),
        ("dependencies", "seed", 0, MOST), ("probe", "column", -100, 100), ("probe", "words", 1, 10_000_000),
        ("probe", "rank", 1, 4_096), ("probe", "epochs", 1, 10_000), ("probe", "passes", 1, 10_000), ("probe", "seeds", 1, 100),
        ("probe", "seed", 0, 2**32 - 1), ("compare", "seed", 0, MOST), ("compare", "divergence-words", 0, MOST),
        ("vocabulary", "new-words", 1, 100_000),
    ],
)  # fmt: skip
def test_a_number_may_be_at_its_limits_and_not_beyond(name: str, flag: str, least: int, most: int):
    field = {"layer": "layers"}.get(flag, flag.replace("-", "_"))
    for value in (least, most):
        found = parsed(name, f"--{flag}={value}")[field]
        assert found in (value, [value])
    for value in (least - 1, most + 1):
        with pytest.raises(UserError, match=f"{flag}={value}"):
            parsed(name, f"--{flag}={value}")


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        ("probe", ["--input=", "--eval=e"], "--input"),
        ("probe", ["--probes=labels,tree"], r"--probes=labels,tree is unknown: .*structure"),
        ("attention", ["--format=html,pgn"], r"--format=html,pgn is unknown: did you mean 'png'\?"),
        ("compare", ["--control=random-weights"], "not allowed with"),
    ],
)
def test_a_flag_that_names_nothing_is_refused(name: str, flags: list[str], says: str):
    with pytest.raises(UserError, match=says):
        parsed(name, *flags)
    assert parsed("probe", "--probes=labels,parsers")["probes"] == ("labels", "parsers")
    assert parsed("attention", "--format=png,html")["format"] == ("png", "html")


@pytest.mark.parametrize(
    ("name", "flags"), [("probe", ["--input=i"]), ("probe", ["--eval=e"]), ("compare", []), ("coreference", [])]
)
def test_what_a_verb_cannot_do_without_is_required(name: str, flags: list[str]):
    with pytest.raises(UserError, match="required"):
        analyse._parser(name).parse_args(["--model=m", "--output=d", *flags])


# --------------------------------------------------------------------------------------------------------------------- printed
def of_documents() -> tuple[Any, Any]:
    return made_up.coreference_scores()


def comparison(**changes: Any) -> Any:
    return dataclasses.replace(made_up.comparison((2, 3), (2, 3), made_up.PREDICTIONS), **changes)


PRINTED: dict[str, Callable[[], object]] = {
    "heads": lambda: heads.print_strongest(made_up.head_statistics(2, 3)),
    "dependencies": lambda: dependencies.print_scores(
        made_up.dependency_scores(4, 7), {"permuted-heads": made_up.dependency_scores(1, 2, is_control=True)}, 30
    ),
    "dependencies, all frequent": lambda: dependencies.print_scores(made_up.dependency_scores(4, 7), {}, 0),
    "dependencies, none frequent": lambda: dependencies.print_scores(made_up.dependency_scores(4, 7), {}, 2_000),
    "coreference": lambda: coreference.print_scores(of_documents()[0], {"random-weights": of_documents()[1]}),
    "comparison": lambda: compare.print_comparison(comparison()),
    "comparison of shapes": lambda: compare.print_comparison(made_up.comparison((2, 1), (1, 3), made_up.OF_TWO_VOCABULARIES)),
    "comparison without predictions and heads": lambda: compare.print_comparison(
        comparison(predictions=None, missing="they were not asked for", n_divergence=0)
    ),
    "probes": lambda: probe.print_found(PROBES),
}


def test_the_lines_on_the_terminal_are_those_that_were_looked_at(capsys: pytest.CaptureFixture[str]):
    lines: list[str] = []
    for name, say in PRINTED.items():
        say()
        lines += [f"---- {name}", *capsys.readouterr().out.splitlines()]
    assert_lines_as_looked_at(lines, "analyse_printed")


@pytest.mark.parametrize(("low", "says"), [(0.01, "beaten by 1.0 to 2.0"), (0.0, "not beaten: 0.0 to 2.0")])
def test_a_control_is_beaten_where_the_interval_is_above_0(monkeypatch: pytest.MonkeyPatch, low: float, says: str):
    given: list[Any] = []
    monkeypatch.setattr(dependencies, "beaten", lambda *asked: given.append(asked) or (low, 0.02))
    found, control = made_up.dependency_scores(1, 2), made_up.dependency_scores(2, 2, is_control=True)
    assert dependencies._beaten(found, control, found.best[1]) == says
    assert given == [(found, control, "nsubj")]


def test_a_rule_that_a_head_does_not_beat_is_named_also_where_they_are_equal(capsys: pytest.CaptureFixture[str]):
    found, _ = of_documents()
    best = found.best[0]
    for gain in (0.0, 0.5):
        rules = tuple(dataclasses.replace(rule, gain_low=gain) for rule in best.rules)
        coreference.print_scores(dataclasses.replace(found, best=(dataclasses.replace(best, rules=rules),)), {})
        assert ("does not beat: nearest, same" in capsys.readouterr().out) == (gain == 0)


def test_what_is_not_in_the_numbers_of_coreference_is_told(capsys: pytest.CaptureFixture[str]):
    found, _ = of_documents()
    file: Any = types.SimpleNamespace(asks_once=True, notes=["a note"])
    outside = 2 * (900 // 3 + 800 // 3)
    assert coreference._left_out(file, found) == [
        f"{outside:,} mentions left out: the antecedents are in no window that holds the mention",
        "28 pronouns of neither name: counted only where neither is an answer",
        "a note",
    ]
    inside = dataclasses.replace(found.choice, outside=dataclasses.replace(found.choice.outside, values=np.zeros((2, 7), int)))
    none = dataclasses.replace(found, reported=inside, choice=inside)
    assert coreference._left_out(types.SimpleNamespace(asks_once=False, notes=[]), none) == []  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- what is asked
def test_dependencies_are_asked_for_with_every_control_once_and_bad_sentences_fail(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []
    failed = {"i": 0, "c": 0}
    found, control = made_up.dependency_scores(1, 2), made_up.dependency_scores(1, 2, is_control=True)

    def treebank(path: str, needs_heads: bool) -> Any:
        assert needs_heads
        return types.SimpleNamespace(path=path, file=None, failed=failed.get(path, 0))

    def score(engine: Any, own: Any, choosing: Any, options: Any, progress: Any) -> Any:
        asked.append((engine, own.path, choosing and choosing.path, options))
        return control if options.control else dataclasses.replace(found, across=across[0])

    across = [0, 38]
    monkeypatch.setattr(dependencies, "Treebank", treebank)
    monkeypatch.setattr(dependencies, "score_dependencies", score)
    monkeypatch.setattr(dependencies, "write_dependencies", lambda folder, *of: asked.append(of))
    monkeypatch.setattr(dependencies, "load_analyser", lambda flags: types.SimpleNamespace(engine="engine"))
    given = parsed("dependencies", "--reach=3", "--replicates=100", "--seed=5", "--least=7", "--control=permuted-heads",
                   "--control=permuted-heads")  # fmt: skip
    flags = argparse.Namespace(**given | {"output": tmp_path / "out"})
    assert dependencies.run(flags) == 0
    said = capsys.readouterr().out
    assert "left out" not in said
    assert said.endswith(f"written to {tmp_path / 'out'}: \n")
    across.pop(0)
    plain, with_control, written = asked
    options = dependencies.Dependencies(3, 100, "", 5)
    assert plain == ("engine", "i", None, options)
    assert with_control == ("engine", "i", None, dataclasses.replace(options, control="permuted-heads"))
    assert (written[1], written[2]) == ({"permuted-heads": control}, 7)
    flags.choose = "c"
    for bad in ({"i": 1, "c": 0}, {"i": 0, "c": 1}, {"i": 1, "c": 1}):
        failed |= bad
        assert dependencies.run(flags) == 1
    assert "\n38 dependents left out: their heads are in other windows of" in capsys.readouterr().out
    assert asked[-2][2] == "c"
    flags.choose = "./i"
    with pytest.raises(UserError, match=r"--choose=./i is --input too; without --choose, half of its sentences are chosen on"):
        dependencies.run(flags)


def test_coreference_is_asked_for_with_every_control_once_and_bad_mentions_fail(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []
    failed = {"i": 0, "c": 0}
    found, control = of_documents()

    def texts(path: str) -> Any:
        return types.SimpleNamespace(path=path, file=None, failed=failed[path], asks_once=False, notes=[])

    def score(engine: Any, own: Any, choosing: Any, options: Any, progress: Any) -> Any:
        asked.append((engine, own.path, choosing and choosing.path, options))
        return control if options.control else found

    monkeypatch.setattr(coreference, "open_texts", texts)
    monkeypatch.setattr(coreference, "score_coreference", score)
    monkeypatch.setattr(coreference, "write_coreference", lambda folder, *of: asked.append(of))
    monkeypatch.setattr(coreference, "load_analyser", lambda flags: types.SimpleNamespace(engine="engine"))
    given = parsed("coreference", "--replicates=100", "--seed=5", "--control=random-weights", "--coreferent", "--window=64")
    flags = argparse.Namespace(**given | {"output": tmp_path / "out"})
    assert coreference.run(flags) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 documents; heads were chosen on 2 others\n")
    assert said.endswith(f"holds the mention\nwritten to {tmp_path / 'out'}: \n")
    options = coreference.Coreference(64, False, "", 100, 5)
    assert asked[:2] == [
        ("engine", "i", None, options), ("engine", "i", None, dataclasses.replace(options, control="random-weights")),
    ]  # fmt: skip
    assert asked[2] == (found, {"random-weights": control})
    flags.tokens, flags.singletons, flags.choose, flags.control = 2**20, True, "c", []
    for bad in ({"i": 1, "c": 0}, {"i": 0, "c": 1}, {"i": 1, "c": 1}):
        failed |= bad
        assert coreference.run(flags) == 1
    default = coreference.Coreference()
    assert asked[-2] == ("engine", "i", "c", coreference.Coreference(default.tokens, True, "", 100, 5))
    flags.choose = "i"
    with pytest.raises(UserError, match=r"--choose=i is --input too; without --choose, half of its documents are chosen on"):
        coreference.run(flags)


def test_a_control_of_probes_has_a_folder_of_its_own_and_bad_sentences_fail(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []
    failed = {"i": 0, "e": 0}
    own = types.SimpleNamespace(name="runs/m")

    def file(path: str, column: int) -> Any:
        asked.append((path, column))
        return types.SimpleNamespace(path=path, file=None, failed=failed.get(path, 0))

    def measure(engine: Any, training: Any, evaluation: Any, options: Any, progress: Any) -> Any:
        asked.append((engine, training.path, evaluation.path, options))
        return PROBES

    def write(folder: Folder, found: Any) -> None:
        folder.write("labels.tsv", b"")

    monkeypatch.setattr(probe, "AnnotatedFile", file)
    monkeypatch.setattr(probe, "measure_probes", measure)
    monkeypatch.setattr(probe, "write_probes", write)
    monkeypatch.setattr(probe, "engine_with_random_weights", lambda engine, seed: ("random", engine, seed))
    monkeypatch.setattr(probe, "load_analyser", lambda flags: types.SimpleNamespace(engine=own))
    given = parsed("probe", "--column=2", "--seed=5", "--rank=7", "--epochs=3", "--passes=4", "--seeds=6", "--words=99",
                   "--probes=labels", "--control=random-weights")  # fmt: skip
    out = tmp_path / "out"
    assert probe.run(argparse.Namespace(**given | {"output": out})) == 0
    options = probe.Probing(probes=("labels",), words=99, rank=7, epochs=3, passes=4, seeds=6, seed=5)
    assert asked == [("i", 2), ("e", 2), (own, "i", "e", options), (("random", own, 5), "i", "e", options)]
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.tsv")} == {"labels.tsv", "random-weights/labels.tsv"}
    said = capsys.readouterr().out
    assert said.startswith("runs/m: trained on 1,193 words")
    assert "\nrandom-weights: trained on 1,193 words" in said
    assert said.count("written to ") == 2
    failed["e"] = 1
    assert probe.run(argparse.Namespace(**given | {"output": out, "control": ""})) == 1


def test_the_folder_of_a_control_is_checked_before_the_model_is_loaded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("i", "e"):
        (tmp_path / name).write_text("a X\n\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "random-weights").write_text("")
    monkeypatch.setattr(probe, "load_analyser", lambda flags: pytest.fail("the model was loaded"))
    files = {"input": str(tmp_path / "i"), "eval": str(tmp_path / "e"), "output": str(tmp_path / "out")}
    with pytest.raises(UserError, match="out/random-weights is a file; name a directory"):
        probe.run(argparse.Namespace(**parsed("probe", "--control=random-weights") | files))


def test_a_comparison_with_random_weights_draws_them_by_the_seed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []
    own = types.SimpleNamespace(engine=types.SimpleNamespace(model="model"))
    monkeypatch.setattr(compare, "load_analyser", lambda flags: own)
    monkeypatch.setattr(compare, "random_weights", lambda model, seed: (model, seed))
    monkeypatch.setattr(compare, "Engine", lambda model: ("engine of", model))
    monkeypatch.setattr(compare.Analyser, "load", lambda path: types.SimpleNamespace(engine=f"engine of {path}"))
    monkeypatch.setattr(compare, "paired_windows", lambda *given: asked.append(given) or iter(()))
    monkeypatch.setattr(compare, "write_comparison", lambda folder, found: asked.append(found))

    def compared(engine: Any, other: Any, pairs: Any, options: Any, say: Any) -> Any:
        assert list(pairs) == []
        asked.append((engine, other, options))
        return comparison(windows=1, words=3)

    monkeypatch.setattr(compare, "compare_models", compared)
    given = parsed("compare", "--seed=5", "--masked=0.5", "--divergence-words=9", "the river")
    flags = argparse.Namespace(**given | {"output": tmp_path / "out"})
    assert compare.run(flags) == 0
    said = capsys.readouterr().out
    assert "\nagreement: 0.300 (n = 55)\n" in said
    assert said.endswith(f"written to {tmp_path / 'out'}: \n")
    options = compare.Comparing(masked=0.5, seed=5, divergence_words=9)
    assert asked[0] == (own.engine, "engine of o", "the river")
    assert asked[1] == (own.engine, "engine of o", options)
    asked.clear()
    flags.control, flags.other = "random-weights", None
    assert compare.run(flags) == 0
    random = ("engine of", ("model", 5))
    assert (asked[0], asked[1]) == ((own.engine, random, "the river"), (own.engine, random, options))


# ---------------------------------------------------------------------------------------------------------------- what they share
def only(texts: list[str], *, jsonl: bool = False) -> Any:
    return attention.the_only(read_records(texts, None, (Field("text"),), jsonl=jsonl))


def test_a_page_shows_one_text():
    assert only(["the river"]).values["text"] == "the river"
    with pytest.raises(UserError, match="there are several texts, and a page shows one; give one, or two arguments as a pair"):
        only(["a", "b"])
    with pytest.raises(UserError, match="there are several texts"):
        only(["a", "b", "c"])


def test_a_page_of_a_line_that_cannot_be_read_is_refused(tmp_path: pathlib.Path):
    for content, says in ((b"\xff\n", r"line 1: byte 1 is not UTF-8"), (b"", "there is no text; give one, or two as a pair")):
        (tmp_path / "in.txt").write_bytes(content)
        with pytest.raises(UserError, match=says):
            attention.the_only(read_records((), str(tmp_path / "in.txt"), (Field("text"),)))


def test_an_output_that_is_the_model_itself_is_refused_and_an_assumed_activation_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    model = types.SimpleNamespace(notes=["the activation is assumed to be gelu", "nothing else"])
    engine = types.SimpleNamespace(name=str(tmp_path), model=model)
    monkeypatch.setattr(verb.Analyser, "load", lambda path: types.SimpleNamespace(engine=engine))
    with pytest.raises(UserError, match="is the directory of the model itself; choose another --output"):
        verb.load_analyser(argparse.Namespace(model="m", place=f"{tmp_path}/x/.."))
    verb.load_analyser(argparse.Namespace(model="m", place=f"{tmp_path}/x"))
    assert capsys.readouterr().err == "the activation is assumed to be gelu\n"
