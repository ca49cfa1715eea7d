"""The mistakes that `run.py` makes are mistakes, are drawn by their seed, and are either caught or listed."""

from __future__ import annotations

import ast
import pathlib

import pytest

from tests.mutations import run
from tests.mutations.known import EQUIVALENT, SEEN, Equivalent
from tests.mutations.mistakes import Mistake, mistakes, sample

SOURCE = '''
"""A module with 7 in its docstring."""
WIDTH: int = 3

def area(width, height, axis=-1):
    if width < height and axis:
        total = width * height + 1
        log.info("3 + 4", width)
        fill(width, height)
    raise UserError(f"{width + 1} is 2")
'''


def changed(kind: str) -> set[tuple[str, str]]:
    """Returns (line, its text afterwards) for every mistake of a kind in SOURCE."""
    return {(m.old.strip(), m.new.strip()) for m in mistakes("area.py", SOURCE) if m.kind == kind}


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("operator", "total = width * height + 1", "total = width * height - 1"),
        ("factor dropped", "total = width * height + 1", "total = width + 1"),
        ("comparison", "if width < height and axis:", "if width <= height and axis:"),
        ("and for or", "if width < height and axis:", "if width < height or axis:"),
        ("condition turned round", "if width < height and axis:", "if not (width < height and axis):"),
        ("constant", "WIDTH: int = 3", "WIDTH: int = 4"),
        ("sign or negation dropped", "def area(width, height, axis=-1):", "def area(width, height, axis=1):"),
        ("arguments swapped", "fill(width, height)", "fill(height, width)"),
        ("wrong name", "fill(width, height)", "fill(height, height)"),
        ("statement removed", "fill(width, height)", "pass"),
    ],
)
def test_the_usual_mistakes_are_made(kind: str, old: str, new: str):
    assert (old, new) in changed(kind)


def test_texts_for_people_are_not_changed():
    touched = {mistake.old.strip() for mistake in mistakes("area.py", SOURCE)}
    assert not any(word in line for line in touched for word in ("docstring", "log.info", "UserError"))


def test_words_of_comments_are_not_changed():
    source = "use(\n    width  # up and down\n    and height\n)\n"
    assert [mistake.new for mistake in mistakes("area.py", source) if mistake.kind == "and for or"] == ["    or height"]


def test_assertions_and_symmetric_arguments_are_not_changed():
    source = "for a, b in zip(rows, others, strict=True):\n    total = max(a, b)\n    fill(a, b)\n"
    made = {mistake.new.strip() for mistake in mistakes("loop.py", source)}
    assert made == {"for a, b in zip(others, rows, strict=True):", "fill(b, a)", "pass"}


def test_every_mistake_changes_the_program_and_stays_valid_python():
    for mistake in mistakes("area.py", SOURCE):
        made = mistake.made(SOURCE)
        assert ast.dump(ast.parse(made)) != ast.dump(ast.parse(SOURCE))
        assert made.count("\n") == SOURCE.count("\n")


def test_the_drawn_mistakes_follow_the_seed():
    sources = {"one.py": SOURCE, "two.py": SOURCE}
    drawn = sample(sources, 6, 1)
    assert drawn == sample(sources, 6, 1)
    assert drawn != sample(sources, 6, 2)
    assert len({(mistake.file, mistake.line) for mistake in drawn}) == 6


def test_every_known_mistake_can_still_be_made():
    for mistake in SEEN:
        ast.parse(mistake.made((run.REPOSITORY / mistake.file).read_text()))
    for known in EQUIVALENT:
        assert known.old in " ".join((run.REPOSITORY / known.file).read_text().split()), known


def test_the_own_tests_of_a_file_come_first_and_those_that_import_it_indirectly_last(tmp_path: pathlib.Path):
    files = {
        "bert_jax/data/rows.py": "",
        "bert_jax/model/encoder.py": "from bert_jax.data.rows import LENGTH",
        "tests/data/test_batches.py": "from bert_jax.data import rows",
        "tests/data/test_rows.py": "",
        "tests/model/test_encoder.py": "import bert_jax.model.encoder",
        "tests/model/test_layers.py": "",
        "tests/test_far.py": "import bert_jax.data.rows",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tests = [f"tests/{name}.py" for name in ("data/test_rows", "data/test_batches", "test_far", "model/test_encoder")]
    assert run.tests_of("bert_jax/data/rows.py", tmp_path) == tests


def test_a_mistake_is_caught_unseen_or_known_to_make_no_difference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "bert_jax").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "bert_jax" / "__init__.py").touch()
    (tmp_path / "bert_jax" / "sizes.py").write_text("def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n")
    (tmp_path / "tests" / "test_sizes.py").write_text(
        "from bert_jax.sizes import double, half\n\n\ndef test_double():\n    assert double(2) == 4\n    half(2)\n"
    )
    file = "bert_jax/sizes.py"
    made = [Mistake(file, 2, "2 * x", "3 * x"), Mistake(file, 6, "x / 2", "x / 3"), Mistake(file, 6, "x / 2", "2 / x")]
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    monkeypatch.setattr(run, "SEEN", made)
    monkeypatch.setattr(run, "EQUIVALENT", [Equivalent(file, "x / 2", "2 / x", "both are halves")])
    monkeypatch.setattr(run, "files_of", lambda root: ["bert_jax/__init__.py", "bert_jax/sizes.py", "tests/test_sizes.py"])
    assert run.main(["--table"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines[:3]] == ["caught", "UNSEEN", "no difference"]
    assert lines[0].endswith("[tests/test_sizes.py::test_double]")
    assert "1 of 2 caught, 50 %; 1 make no difference" in lines[-1]
