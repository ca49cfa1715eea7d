"""Objects that a configuration names: the project's own by their names, or FILE.py:NAME in the user's own file."""

from __future__ import annotations

import hashlib
import pathlib
import re
import sys
from typing import Annotated

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.flags import FlagParser
from bert_jax.interface.named import file_record, is_in_file, load_named, read_files_again, require_call, source_file, split_named
from bert_jax.interface.ranges import NamedIn, check_value

KNOWN = {"square_root": "math:sqrt", "ceiling": "math:ceil"}
KEY = "config.function"


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text("import math\ndef half(x): return x / 2\nclass Third: pass\n_HIDDEN = 1\n")
    return path


def refusal(value: str) -> str:
    with pytest.raises(UserError) as error:
        load_named(value, KNOWN, KEY)
    return str(error.value)


def test_a_known_name_is_imported_only_when_loaded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "late_module.py").write_text("X = 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_named("square_root", KNOWN, KEY)(4) == 2
    assert "late_module" not in sys.modules
    assert load_named("late", {"late": "late_module:X"}, KEY) == 1
    del sys.modules["late_module"]


def test_a_name_in_a_file_is_the_same_object_until_the_next_command_parses_its_flags(file: pathlib.Path):
    half = load_named("mine.py:half", KNOWN, KEY)
    assert half(3) == 1.5
    assert load_named("mine.py:half", KNOWN, KEY) is half
    assert load_named(f"{file}:half", KNOWN, "config.other") is half
    record = file_record("mine.py:half")
    file.write_text("def half(x): return x // 2\n")
    for _ in range(2):  # edited, then removed
        assert load_named(f"{file}:half", KNOWN, KEY) is load_named("mine.py:half", KNOWN, KEY) is half
        assert file_record("mine.py:half") == record
        file.unlink(missing_ok=True)
    file.write_text("def half(x): return x // 2\n")
    FlagParser(prog="command").parse_args([])
    assert load_named(f"{file}:half", KNOWN, KEY)(3) == 1
    assert file_record("mine.py:half") != record


def test_the_recorded_content_is_executed_even_if_the_file_is_edited_before_it_is_loaded(file: pathlib.Path):
    assert "x / 2" in file_record("mine.py:half")["source"]
    file.write_text("def half(x): return x // 2\n")
    assert load_named("mine.py:half", KNOWN, KEY)(3) == 1.5


@pytest.fixture
def imports(file: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files that mine.py imports, directly and through a package."""
    file.write_text(
        "from slopes import SLOPE\nfrom pkg.inner import base\nimport bert_jax.errors, numpy, csv, time\n"
        "def half(x): return SLOPE * x + base()\n"
    )
    for name, text in (
        ("slopes.py", "SLOPE = 2\n"),
        ("pkg/inner.py", "from .deep import Base\ndef base(): return Base.value\n"),
        ("pkg/deep.py", "class Base: value = 1\n"),
    ):
        (file.parent / name).parent.mkdir(exist_ok=True)
        (file.parent / name).write_text(text)
    return [file.parent / name for name in ("slopes.py", "pkg/inner.py", "pkg/deep.py")]


def test_a_file_imports_the_files_in_its_folder_and_its_record_has_them(file: pathlib.Path, imports: list[pathlib.Path]):
    for name in ("csv", "time"):
        (file.parent / f"{name}.py").write_text("never executed, since Python's own module is imported")
    record = file_record("mine.py:half")
    assert record is not None
    assert record["imports"] == {str(path): path.read_text() for path in imports}
    for path in imports:
        path.write_text(path.read_text().replace("2", "3").replace("1", "5"))
    assert load_named("mine.py:half", KNOWN, KEY)(10) == 21  # the contents of the record
    read_files_again()
    assert load_named("mine.py:half", KNOWN, KEY)(10) == 35
    assert file_record("mine.py:half")["sha256"] != record["sha256"]
    assert not [*file.parent.rglob("__pycache__")]
    assert str(file.parent) not in sys.path


def test_a_folder_without_modules_does_not_hide_a_file_of_its_name(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("own/shapes", "slopes", "shapes"):
        (file.parent / folder).mkdir(parents=True)
    monkeypatch.syspath_prepend(file.parent)
    (file.parent / "own/slopes.py").write_text("SLOPE = 7\n")
    (file.parent / "own/shapes/inner.py").write_text("SIDE = 2\n")
    (file.parent / "own/mine.py").write_text(
        "from slopes import SLOPE\nfrom shapes.inner import SIDE\ndef half(x): return SLOPE * SIDE * x\n"
    )
    assert load_named("own/mine.py:half", KNOWN, KEY)(10) == 140
    own = [str(file.parent / "own" / name) for name in ("slopes.py", "shapes/inner.py")]
    assert [*file_record("own/mine.py:half")["imports"]] == own


def test_files_of_two_folders_import_their_own_module_of_one_name(file: pathlib.Path, imports: list[pathlib.Path]):
    half = load_named("mine.py:half", KNOWN, KEY)
    (file.parent / "other").mkdir()
    (file.parent / "other" / "slopes.py").write_text("SLOPE = 7\n")
    (file.parent / "other" / "mine.py").write_text("from slopes import SLOPE\ndef half(x): return SLOPE * x\n")
    assert (load_named("other/mine.py:half", KNOWN, KEY)(10), half(10)) == (70, 21)


def test_files_of_the_same_name_do_not_collide(file: pathlib.Path):
    (file.parent / "other").mkdir()
    (file.parent / "other" / "mine.py").write_text("class Third: other = True\n")
    one, other = (load_named(f"{folder}mine.py:Third", KNOWN, KEY) for folder in ("", "other/"))
    assert sys.modules[one.__module__].Third is one
    assert sys.modules[other.__module__].Third is other


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "squareroot",
            "config.function='squareroot': did you mean 'square_root'?; config.function=FILE.py:NAME loads your own",
        ),
        ("mine.py:hlf", "config.function=mine.py:hlf: mine.py has no 'hlf'; did you mean 'half'?"),
        ("mine.py:zzz", "config.function=mine.py:zzz: mine.py has no 'zzz'; known: Third, half"),
        ("mine.py", "write config.function=mine.py:NAME (it defines half, Third)"),
        ("mine.py:", "write config.function=mine.py:NAME (it defines half, Third)"),
        ("mime.py:half", "config.function=mime.py (looked for in "),
    ],
)
def test_missing_names_are_refused_with_the_nearest(file: pathlib.Path, value: str, says: str):
    assert says in refusal(value)


def test_a_file_that_does_not_import_is_refused_with_its_traceback(file: pathlib.Path):
    file.write_text("def inner(): return 1 / 0\ninner()\n")
    message = refusal("mine.py:half")
    assert message.startswith(f"config.function={file} raises ZeroDivisionError; correct the file here:\n")
    assert message.endswith("ZeroDivisionError: division by zero")
    file.write_text("def half(x: return\n")
    assert re.match(rf"config.function={re.escape(str(file))}, line 1: ", refusal("mine.py:half"))


def test_a_value_is_split_into_file_and_name():
    assert [split_named(value) for value in ("a", "a:b", "x/y.py:N", "y.py:N:talks/*.srt", "gs:/b.py:N")] == [
        ("", "a", None),
        ("", "a", "b"),
        ("x/y.py", "N", None),
        ("y.py", "N", "talks/*.srt"),
        ("gs:/b.py", "N", None),
    ]
    assert [is_in_file(value) for value in ("a", "a.py", "a.py:N", "a.pyx:N")] == [False, True, True, False]
    assert (source_file("a"), source_file("b/a.py:N")) == ("", "b/a.py")


def test_a_user_function_must_accept_the_arguments_and_may_need_more_only_if_they_are_given():
    def of_two(a: int, b: int) -> None: ...
    def of_three(a: int, b: int, c: int) -> None: ...

    require_call(of_two, "a, b", KEY)
    require_call(of_three, "a, b", KEY, more=True)
    require_call(min, "a, b", KEY)  # written in C, without a signature
    for function, more in ((of_three, {}), (lambda a: a, {}), (lambda a: a, {"more": True})):
        with pytest.raises(UserError, match=rf"^{KEY} must be a function of \(a, b\), but it cannot be called with them \("):
            require_call(function, "a, b", KEY, **more)


def test_a_run_stores_path_hash_and_source_of_a_file(file: pathlib.Path):
    assert file_record("square_root") is None
    text = file.read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert file_record("mine.py:half") == {"path": str(file), "sha256": digest, "source": text}


def test_the_range_of_a_key_allows_known_names_and_files():
    hint = Annotated[str, NamedIn(tuple(KNOWN))]
    for value in ("ceiling", "mine.py:half"):
        check_value(KEY, value, hint)
    wrong = "config.function='cieling' is not one of square_root, ceiling; did you mean 'ceiling'?; FILE.py:NAME loads your own"
    with pytest.raises(UserError, match=re.escape(wrong)):
        check_value(KEY, "cieling", hint)
