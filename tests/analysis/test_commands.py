"""The commands of `analyse` without a model: their flags, the calls that they make, and the lines that they print."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert_jax.analysis.attention import command as attention
from bert_jax.analysis.command import write_windows
from bert_jax.analysis.compare import command as compare
from bert_jax.analysis.coreference import command as coreference
from bert_jax.analysis.coreference.readers import open_texts
from bert_jax.analysis.dependencies import command as dependencies
from bert_jax.analysis.dependencies.figures import write_fits
from bert_jax.analysis.flags import flag_parser
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads import command as heads
from bert_jax.analysis.probe import command as probe
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_records
from tests.analysis import made_up
from tests.analysis.coreference.test_antecedents import GAP
from tests.analysis.coreference.written import PARIS, write
from tests.analysis.test_probe_figures import FOUND as PROBES
from tests.looked_at import assert_lines_as_looked_at

NEEDED = {
    "attention": [], "heads": [], "neighbours": ["bank"], "dependencies": ["--input=i"], "coreference": ["--input=i"],
    "probe": ["--input=i", "--eval=e"], "compare": ["--with=o"], "vocabulary": [],
}  # fmt: skip


def parsed(name: str, *flags: str) -> dict[str, Any]:
    parser = flag_parser(name)
    return vars(parser.parse_args(["--model=m", "--output=d", *NEEDED[name], *flags]))


TEXTS = {"texts": [], "input": None, "jsonl": False}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "attention",
            TEXTS | {"format": ("html",), "heads": [], "in_words": True, "parts": (), "alignment_layer": None},
        ),
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
def test_a_command_has_these_flags_with_these_defaults(name: str, values: dict[str, Any]):
    assert parsed(name) == {"model": "m", "output": "d", "format": ("png",)} | values


MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("name", "flag", "least", "most"),
    [
        ("heads", "divergence-words", 0, MOST), ("neighbours", "layer", 0, MOST), ("neighbours", "count", 1, 1_000),
        ("neighbours", "senses", 1, 10), ("neighbours", "occurrences", 2, 5_000), ("dependencies", "least", 0, MOST),
        ("dependencies", "seed", 0, MOST), ("probe", "column", -100, 100), ("probe", "words", 1, 10_000_000),
        ("probe", "rank", 1, 4_096), ("probe", "epochs", 1, 10_000), ("probe", "passes", 1, 10_000), ("probe", "seeds", 1, 100),
        ("probe", "seed", 0, 2**32 - 1), ("attention", "alignment-layer", 1, MOST), ("compare", "seed", 0, MOST),
        ("compare", "divergence-words", 0, MOST), ("vocabulary", "new-words", 1, 100_000),
    ],
)  # fmt: skip
def test_numbers_at_their_limits_are_accepted_and_beyond_refused(name: str, flag: str, least: int, most: int):
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
def test_required_flags_are_required(name: str, flags: list[str]):
    with pytest.raises(UserError, match="required"):
        flag_parser(name).parse_args(["--model=m", "--output=d", *flags])


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


def test_terminal_lines_equal_the_golden_ones(capsys: pytest.CaptureFixture[str]):
    lines: list[str] = []
    for name, say in PRINTED.items():
        say()
        lines += [f"---- {name}", *capsys.readouterr().out.splitlines()]
    assert_lines_as_looked_at(lines, "analyse_printed")


def test_a_control_is_beaten_if_the_interval_is_above_0(capsys: pytest.CaptureFixture[str]):
    found, control = made_up.dependency_scores(4, 7), made_up.dependency_scores(1, 2, is_control=True)
    for less, says in ((0.5, "beaten by 50.0 to 50.0"), (0.0, "not beaten: 0.0 to 0.0")):
        values = dataclasses.replace(found.replicates, values=found.replicates.values - less)
        dependencies.print_scores(found, {"permuted-heads": dataclasses.replace(control, replicates=values)}, 30)
        assert says in capsys.readouterr().out


def test_the_most_similar_layer_has_a_finite_similarity(capsys: pytest.CaptureFixture[str]):
    found = made_up.comparison((2, 1), (1, 3), None)
    values = found.cka.values.copy()
    values[0] = np.nan, -0.25
    compare.print_comparison(dataclasses.replace(found, cka=dataclasses.replace(found.cka, values=values)))
    assert "  0 | 1: -0.250\n" in capsys.readouterr().out


def test_a_rule_that_a_head_does_not_beat_is_named_even_if_equal(capsys: pytest.CaptureFixture[str]):
    found, _ = of_documents()
    best = found.best[0]
    for gain in (0.0, 0.5):
        rules = tuple(dataclasses.replace(rule, gain_low=gain) for rule in best.rules)
        coreference.print_scores(dataclasses.replace(found, best=(dataclasses.replace(best, rules=rules),)), {})
        assert ("does not beat: nearest, same" in capsys.readouterr().out) == (gain == 0)


def test_mentions_that_the_scores_do_not_cover_are_counted(tmp_path: pathlib.Path):
    found, _ = of_documents()
    outside = "1,132 mentions left out: their antecedents are outside their window"
    neither = "28 pronouns referring to neither name: counted only in the group that allows the answer 'neither'"
    assert coreference._left_out(open_texts(write(tmp_path, GAP)), found) == [outside, neither]
    assert coreference._left_out(open_texts(write(tmp_path, PARIS)), found) == [outside]


def test_the_windows_of_sliding_layers_are_listed_and_described(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    def config(radius: int, *layers: str) -> ModelConfig:
        return ModelConfig(
            vocab_size=9, hidden_size=4, num_layers=len(layers), num_heads=2, layer_types=layers, sliding_radius=radius
        )

    assert write_windows(Folder(tmp_path), config(2, "full", "sliding", "sliding"))
    rows = [line.split("\t") for line in (tmp_path / "windows.tsv").read_text().splitlines()]
    assert rows == [
        ["head", "layer", "number", "attention", "tokens"],
        ["1-1", "1", "1", "full", "all"], ["1-2", "1", "2", "full", "all"],
        ["2-1", "2", "1", "sliding", "5"], ["2-2", "2", "2", "sliding", "5"],
        ["3-1", "3", "1", "sliding", "5"], ["3-2", "3", "2", "sliding", "5"],
    ]  # fmt: skip
    assert capsys.readouterr().out == "the heads of layers 2, 3 see 2 tokens on each side, 5 in all\n"
    assert write_windows(Folder(tmp_path), config(1, "sliding", "full"))
    assert capsys.readouterr().out == "the heads of layer 1 see 1 token on each side, 3 in all\n"
    assert not write_windows(Folder(tmp_path / "none"), config(1, "full"))
    assert (capsys.readouterr().out, (tmp_path / "none").exists()) == ("", False)


def test_dependents_within_the_window_are_listed_and_printed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    found = made_up.dependency_scores(2, 3)
    found = dataclasses.replace(found, near=dataclasses.replace(found.near, values=np.array([650, 12, 0, 0])))
    write_fits(Folder(tmp_path), found)
    rows = [line.split("\t") for line in (tmp_path / "dependency_windows.tsv").read_text().splitlines()]
    assert rows == [["relation", "within_window", "n"], ["all", "650", "1300"], ["nsubj", "12", "30"]]
    for least, said in ((30, "all 50.0 %, nsubj 40.0 %"), (31, "all 50.0 %"), (2_000, "see dependency_windows.tsv")):
        dependencies.print_fits(found, least)
        assert capsys.readouterr().out == f"dependents whose heads are within the window: {said}\n"


ALIGNED = """\
                  [CLS] the 中  a [SEP]
  b́c    中  0.04      5   1  4  4     3
  中国  中  0.04      5   1  4  2     3
"""


def test_an_alignment_has_a_column_of_weights_for_each_source_word_if_it_fits(
    capsys: pytest.CaptureFixture[str],
):
    found = made_up.translation()
    rows = dataclasses.replace(found.cross.rows, words=("b\u0301c", "\u4e2d\u56fd", "</s>"))
    columns = dataclasses.replace(found.cross.columns, words=("[CLS]", "the", "\u4e2d", "a", "[SEP]"))
    found = dataclasses.replace(found, cross=dataclasses.replace(found.cross, rows=rows, columns=columns))
    attention._print_alignment(found, found.alignment(2))
    said = capsys.readouterr().out
    assert said == ALIGNED
    header, *lines = said.splitlines()
    more = 100 - (len(header) + 1)  # a wide letter takes two columns
    for longer, fits in ((more, True), (more + 1, False)):
        words = ("[CLS]", "the", "\u4e2d", "a" * (2 + longer), "[SEP]")  # the column of "a" is two wide
        cross = dataclasses.replace(found.cross, columns=dataclasses.replace(columns, words=words))
        wider = dataclasses.replace(found, cross=cross)
        attention._print_alignment(wider, wider.alignment(2))
        shown = capsys.readouterr().out.splitlines()
        if fits:
            assert len(shown[0]) + 1 == 100
            assert [line.split() for line in shown[1:]] == [line.split() for line in lines]
        else:
            assert shown == [line[: line.index("0.") + 4] for line in lines]


# ---------------------------------------------------------------------------------------------------------------- what they share
def only(texts: list[str], *, jsonl: bool = False) -> Any:
    return attention.the_only(read_records(texts, None, (Field("text"),), jsonl=jsonl))


def test_a_page_shows_one_text():
    assert only(["the river"]).values["text"] == "the river"
    with pytest.raises(
        UserError, match="there are several texts, but a page shows only one; give one text, or two arguments as a pair"
    ):
        only(["a", "b"])
    with pytest.raises(UserError, match="there are several texts"):
        only(["a", "b", "c"])


def test_an_unreadable_line_or_no_text_gives_no_page(tmp_path: pathlib.Path):
    for content, says in (
        (b"\xff\n", r"line 1: byte 1 is not UTF-8"),
        (b"", "there is no text; give one text, or two as a pair"),
    ):
        (tmp_path / "in.txt").write_bytes(content)
        with pytest.raises(UserError, match=says):
            attention.the_only(read_records((), str(tmp_path / "in.txt"), (Field("text"),)))
