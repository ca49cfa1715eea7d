"""Experiment files and task modules: what they define, and the errors about unusable ones."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.python_files import CHECKOUT, file_errors_explained, find_module, load, load_module, loaded_for

NESTED = """
from __future__ import annotations
import dataclasses, ml_collections
@dataclasses.dataclass
class Size:
    width: int = 3
def get_config():
    return ml_collections.ConfigDict({"a": {"b": (1, [2, {"c": None}])}, "width": Size().width})
"""


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Writes mine.py in the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def refusal(given: str, flag: str = "--with") -> str:
    with pytest.raises(UserError) as error:
        load(given, flag)
    return str(error.value)


def test_settings_are_plain_dicts_lists_and_values(file: pathlib.Path):
    file.write_text(NESTED)
    assert load("mine.py") == {"a": {"b": [1, [2, {"c": None}]]}, "width": 3}
    file.write_text("def get_config(): return {1: {2: (3,)}}")
    assert load(str(file)) == {"1": {"2": [3]}}


@pytest.mark.parametrize(
    ("text", "argument", "size"),
    [
        ("def get_config(size): return {'size': size}", ":big:one", "big:one"),
        ("def get_config(size): return {'size': size}", ":", ""),
        ("def get_config(size='small'): return {'size': size}", "", "small"),
        ("def get_config(size='small'): return {'size': size}", ":big", "big"),
        ("import functools\nget_config = functools.partial(dict, size=4)", "", 4),
    ],
)
def test_the_text_after_a_colon_is_the_argument(file: pathlib.Path, text: str, argument: str, size: object):
    file.write_text(text)
    assert load(f"mine.py{argument}") == {"size": size}


SIZES = "{'base': 12, 'tiny': 2}"
TINNY = "{file}:tinny: its get_config does not accept 'tinny';"


@pytest.mark.parametrize(
    ("text", "argument", "says"),
    [
        ("get_config = {}", "", "{file} has no function get_config(); see experiments/pretrain/quickstart.py for an example"),
        ("def get_config(): return {}", ":x", "{file}:x: its get_config does not take an argument; leave `:x` out"),
        (
            "import functools\nget_config = functools.partial(dict)",
            ":x",
            "{file}:x: its get_config does not take an argument; leave `:x",
        ),
        ("def get_config(a): return {}", "", "mine.py needs an argument, --with=mine.py:ARG; its docstring lists the arguments"),
        ("'mine.py:big'\ndef get_config(a): 1", "", "mine.py needs an argument, --with=mine.py:ARG; for example mine.py:big"),
        ("def get_config(a): return {}[a]", ":x", "{file}:x: its get_config does not accept 'x'; see its docstring"),
        ("def get_config(a): raise ValueError('no')", ":x", "{file}:x: its get_config does not accept 'x' (no); see its"),
        (f"def get_config(a): return {{'size': {SIZES}[a]}}", ":tinny", f"{TINNY} did you mean 'tiny'? It accepts base, tiny."),
        (f"S = {SIZES}\ndef get_config(a):\n    return {{'size': S[\n  a]}}", ":tinny", f"{TINNY} did you mean 'tiny'?"),
        (f"def get_config(a):\n    b = {SIZES}\n    return b[a]", ":x", "{file}:x: its get_config does not accept 'x'; known: b"),
        ("def get_config(a): return a", ":x", "{file}: its get_config returns 'x'; it must return a ConfigDict or a dict"),
        ("def get_config(:\n", "", "{file}, line 1: invalid syntax"),
        ("def get_config(): exit(3)", "", "{file} ended the program (sys.exit(3)); correct"),
        ("def get_config(a): exit(3)", ":x", "{file} ended the program (sys.exit(3)); correct"),
    ],
)
def test_an_experiment_file_without_settings_is_refused(file: pathlib.Path, text: str, argument: str, says: str):
    file.write_text(text)
    assert refusal(f"mine.py{argument}").startswith(f"--with={says.format(file=file)}")


def test_a_file_is_read_anew_without_leaving_compiled_files(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Python would mistake an earlier compiled file for one of the same second and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for rate in (1, 2):
        file.write_text(f"def get_config(): return {{'rate': {rate}}}")
        os.utime(file, (1e9, 1e9))
        assert load("mine.py") == {"rate": rate}
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(("head", "argument"), [("", ""), ("def get_config(): ", ""), ("def get_config(a): ", ":x")])
def test_an_exception_in_a_file_shows_only_its_own_lines(file: pathlib.Path, head: str, argument: str):
    file.write_text(f"def inner(): return 1 / 0\n{head}inner()\n")
    first, *lines, last = refusal(f"mine.py{argument}").splitlines()
    assert first == f"--with={file} raises ZeroDivisionError; correct the file here:"
    assert [line.split(",")[:2] for line in lines if line.startswith("  File")] == [
        [f'  File "{file}"', " line 2"],
        [f'  File "{file}"', " line 1"],
    ]
    assert last == "ZeroDivisionError: division by zero"


def test_a_user_error_raised_by_the_file_is_passed_on(file: pathlib.Path):
    file.write_text("from bert_jax.errors import UserError\ndef get_config(): raise UserError('no')")
    assert refusal("mine.py") == "no"


def test_a_relative_file_is_searched_in_the_current_directory_then_in_the_checkout(file: pathlib.Path):
    there = pathlib.Path("experiments/pretrain/quickstart.py")
    assert load(str(there)) == load(str(CHECKOUT / there))
    assert find_module(str(there), "--with", "a") == CHECKOUT / there
    (file.parent / there).parent.mkdir(parents=True)
    (file.parent / there).write_text("def get_config(): return {'mine': 1}")
    assert load(str(there)) == {"mine": 1}
    assert find_module(str(there), "--with", "a") == file.parent / there


def test_a_missing_file_is_refused_with_the_searched_places_and_the_nearest(file: pathlib.Path):
    looked = f"there is no file quikstart.py in {file.parent} or {CHECKOUT}; "
    assert refusal("quikstart.py:x") == f"--with=quikstart.py:x: {looked}did you mean 'experiments/pretrain/quickstart.py'?"
    absolute = file.parent / "qqqq.py"
    known = (
        refusal(str(absolute)).removeprefix(f"--with={absolute}: there is no file {absolute}; the experiments are ").split(", ")
    )
    assert known == sorted(known)
    assert {"quickstart", "bert_base", "glue"} < {*known}


def test_a_module_must_be_an_existing_python_file(file: pathlib.Path):
    file.write_text("X = 1 / 0")
    for given, says in (
        ("mine.txt", f"--with=mine.txt (looked for in {file.parent}; did you mean mine.py?) is not a file; give one"),
        ("notes", f"--with={file.parent / 'notes'} is not a Python file"),
        ("mine.py", f'--with={file} raises ZeroDivisionError; correct the file here:\n  File "{file}", line 1'),
    ):
        if given == "notes":
            (file.parent / given).write_text("X = 1")
        with pytest.raises(UserError) as error:
            load_module(find_module(given, "--with", "give one"), "--with")
        assert str(error.value).startswith(says)


def test_a_later_exception_belongs_to_the_file_if_it_passes_through_it(file: pathlib.Path):
    file.write_text(
        "def half(x): return 1 / x\ndef refuse(): raise UserError('no')\nfrom bert_jax.errors import UserError\n"
        "def leave(): raise SystemExit(0)\ndef stop():\n    yield 1\n    raise StopIteration"
    )
    module = load_module(file, "--with")
    with pytest.raises(ZeroDivisionError), file_errors_explained():
        module.half(0)
    loaded_for(file, "--with")
    with pytest.raises(UserError) as error, file_errors_explained():
        module.half(0)
    assert str(error.value).startswith(f'--with={file} raises ZeroDivisionError; correct the file here:\n  File "{file}", line 1')
    with pytest.raises(UserError, match=r"^no$"), file_errors_explained():
        module.refuse()
    for action, says in (
        (module.leave, r"mine\.py ended the program \(sys\.exit\(0\)\); correct"),
        (lambda: list(module.stop()), r"mine\.py raises StopIteration; correct"),
    ):
        with pytest.raises(UserError, match=says), file_errors_explained():
            action()
    with pytest.raises(ZeroDivisionError), file_errors_explained():
        1 / 0  # noqa: B018
    for flag in ("--with", "--other"):
        loaded_for(file, flag)
    with pytest.raises(UserError, match=rf"^--with and --other={file} raises ZeroDivisionError"), file_errors_explained():
        module.half(0)


@pytest.fixture(autouse=True)
def forgotten():
    """Removes the modules of experiments from `sys.modules` after each test."""
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith("experiment_"):
            del sys.modules[name]
