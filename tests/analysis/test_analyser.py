"""What an `Analyser` hands on to the functions of its folder."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from bert_jax.analysis import analyser as module
from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.compare.measure import Comparing
from bert_jax.analysis.coreference.measure import Coreference
from bert_jax.analysis.dependencies.measure import Dependencies
from bert_jax.analysis.heads.measure import Heads
from bert_jax.analysis.neighbours.measure import Neighbouring
from bert_jax.analysis.probe.measure import Probing
from bert_jax.analysis.reading import in_silence, progress_of, progress_of_stage


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """(name of a function, its arguments) of each call; a function returns its name and its first argument."""
    made: list[tuple[Any, ...]] = []

    def recorded(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> str:
            listed = [list(each) if isinstance(each, types.GeneratorType) else each for each in arguments]
            made.append((name, *(each for each in listed if getattr(each, "__name__", "") != "<lambda>"), *named.values()))
            return f"{name} {arguments[0]}"

        return call

    for name in (
        "measure_heads", "find_neighbours", "nearest_pieces", "read_attention", "read_window", "score_dependencies",
        "score_coreference", "measure_probes", "read_vocabulary", "compare_models", "Treebank", "open_texts", "AnnotatedFile",
        "load_model", "Engine",
    ):  # fmt: skip
        monkeypatch.setattr(module, name, recorded(name))
    monkeypatch.setattr(module, "read_windows", lambda engine, text: [(engine, text, i) for i in range(2)])
    monkeypatch.setattr(module, "paired_windows", lambda own, other, text: [(own, other, text)])
    return made


def engine(name: str, tokens: int = 9) -> Any:
    class Named(types.SimpleNamespace):
        def __repr__(self) -> str:
            return name

    tokenizer = types.SimpleNamespace(encode=str.split)
    return Named(tokens=tokens, model=Named(tokenizer=tokenizer))


TEXTS = ["a b", " ", "c"]


def test_texts_are_read_as_windows_without_those_that_hold_no_token(calls):
    own, other = engine("own"), engine("other", 8)
    analyser = Analyser(own)
    windows = [(own, text, i) for text in ("a b", "c") for i in range(2)]
    assert analyser.heads(TEXTS, reach=3) == "measure_heads own"
    analyser.neighbours(["w"], TEXTS, count=4)
    analyser.compare(Analyser(other), TEXTS, seed=2)
    assert calls == [
        ("measure_heads", own, windows, Heads(reach=3)),
        ("find_neighbours", own, ["w"], windows, Neighbouring(count=4)),
        ("compare_models", own, other, [(own, other, "a b"), (own, other, "c")], Comparing(seed=2)),
    ]


def test_files_are_read_and_without_one_to_choose_on_there_is_none(calls):
    own = engine("own")
    silent, telling = Analyser(own), Analyser(own, show_progress=True)
    silent.dependencies("t", seed=4)
    telling.dependencies("t", "c", seed=4)
    silent.coreference("t", seed=4)
    telling.coreference("t", "c", seed=4)
    silent.probes("t", "e")
    telling.probes("t", "e", 3)
    assert calls == [
        ("Treebank", "t", True),
        ("score_dependencies", own, "Treebank t", None, Dependencies(seed=4), in_silence),
        ("Treebank", "t", True), ("Treebank", "c", True),
        ("score_dependencies", own, "Treebank t", "Treebank c", Dependencies(seed=4), progress_of),
        ("open_texts", "t"),
        ("score_coreference", own, "open_texts t", None, Coreference(seed=4), in_silence),
        ("open_texts", "c"), ("open_texts", "t"),
        ("score_coreference", own, "open_texts t", "open_texts c", Coreference(seed=4), progress_of),
        ("AnnotatedFile", "t", -1), ("AnnotatedFile", "e", -1),
        ("measure_probes", own, "AnnotatedFile t", "AnnotatedFile e", Probing(), module.silent_stage),
        ("AnnotatedFile", "t", 3), ("AnnotatedFile", "e", 3),
        ("measure_probes", own, "AnnotatedFile t", "AnnotatedFile e", Probing(), progress_of_stage),
    ]  # fmt: skip


def test_one_text_words_and_the_vocabulary_are_handed_on(calls):
    own = engine("own")
    analyser = Analyser(own)
    analyser.attention("x", "y")
    analyser.attention("x")
    analyser.nearest_pieces(["w"])
    analyser.nearest_pieces(["w"], 3)
    analyser.vocabulary()
    analyser.vocabulary(pathlib.Path("c"), {"n"}, with_splits=True)
    assert calls == [
        ("read_window", own, "x", "y"), ("read_attention", own, "read_window own"),
        ("read_window", own, "x", None), ("read_attention", own, "read_window own"),
        ("nearest_pieces", own.model, ["w"], 10), ("nearest_pieces", own.model, ["w"], 3),
        ("read_vocabulary", own.model, None, None, False), ("read_vocabulary", own.model, "c", {"n"}, True),
    ]  # fmt: skip


def test_a_loaded_model_is_read_in_batches_of_at_most_so_many_tokens(calls, monkeypatch):
    engines = iter([engine("a", 100), engine("b", 9_999)])
    monkeypatch.setattr(module, "Engine", lambda model: calls.append(("Engine", model)) or next(engines))
    few, many = Analyser.load("m"), Analyser.load("m", show_progress=True)
    assert (few.engine.tokens, many.engine.tokens) == (100, 4_096)
    assert (few.show_progress, many.show_progress) == (False, True)
    assert calls == [("load_model", "m"), ("Engine", "load_model m")] * 2
