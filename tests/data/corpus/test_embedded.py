"""The embedded corpus: prose is extracted from documentation, code and tables are not, and nothing is downloaded or imported."""

from __future__ import annotations

import concurrent.futures
import fcntl
import importlib.machinery
import importlib.metadata
import importlib.util
import pathlib
import re
import shutil
import sys
import sysconfig
from pydoc_data import topics

import pytest

from bert_jax.data.corpus import tfds_text
from bert_jax.data.corpus.embedded import embedded_dataset_builder, prose


def test_summary_and_description_are_kept_and_wrapped_lines_joined():
    text = "Return the value of the thing.\n\nThe value is computed from the other\nthings, and it may be cached for a while."
    assert prose.paragraphs(text) == [
        "Return the value of the thing.",
        "The value is computed from the other things, and it may be cached for a while.",
    ]


def test_numpy_style_keeps_descriptions_and_drops_names_types_and_examples():
    text = """Return the sum of all the elements over an axis.

Parameters
----------
a : array_like, shape (n,)
    The array whose elements are to be summed up.
axis : int, optional

Returns
-------
total : float
    A number which is the sum of all elements.

See Also
--------
mean : The mean of all the elements of an array.

Examples
--------
This is an example with some words in it.
>>> total([1, 2])
3
"""
    assert prose.paragraphs(text) == [
        "Return the sum of all the elements over an axis.",
        "The array whose elements are to be summed up.",
        "A number which is the sum of all elements.",
    ]


def test_google_style_keeps_descriptions_without_the_names():
    text = """Adds two numbers and returns what comes out.

Args:
  first: The number that comes first in the sum.
  second (int): The number that is added to the first,
    which may be negative as well.
  *rest: Further numbers that are added one by one.

Returns:
  The sum of the two numbers and all others.
"""
    assert prose.paragraphs(text) == [
        "Adds two numbers and returns what comes out.",
        "The number that comes first in the sum.",
        "The number that is added to the first, which may be negative as well.",
        "Further numbers that are added one by one.",
        "The sum of the two numbers and all others.",
    ]


def test_fields_and_bullets_open_paragraphs():
    text = "A function that does many things:\n\n- The first thing that it does here.\n- The second thing that it does.\n"
    text += "\n:param x: The value that is used for this.\n:type x: The type of the value of it.\n"
    assert prose.paragraphs(text) == [
        "The first thing that it does here.",
        "The second thing that it does.",
        "The value that is used for this.",
    ]


@pytest.mark.parametrize(
    ("paragraph", "kept"),
    [
        ("This has just six plain words.", True),
        ("This has five plain words.", False),
        ("This has six of x_1 and y_2 here.", True),  # 6 of 8 are plain
        ("This has five of x_1 y_2 z_3 so.", False),  # 5 of 8
        ("this begins with a small letter.", False),
        ("This ends without an end mark", False),
        ("Does this end with a question?", True),
        ("What an end this one has!", True),
        ("This ends before its end mark. )", False),
    ],
)
def test_prose_needs_a_capital_six_mostly_plain_words_and_an_end_mark(paragraph, kept):
    assert prose.paragraphs(paragraph) == [paragraph] * kept


@pytest.mark.parametrize("end", ["", "\n", "\nThis is the text below the title."])
def test_titles_are_not_prose(end):
    assert prose.paragraphs(f"This is a title of seven words.\n======{end}") == [end.strip()] * bool(end.strip())


def test_a_note_is_a_separate_paragraph():
    text = "The text that stands before the note.\n.. note:: The first words of a note are kept."
    assert prose.paragraphs(text) == ["The text that stands before the note.", "The first words of a note are kept."]


def test_text_resumes_at_the_indentation_before_a_block_of_code():
    text = "    For example, this is what is written::\n\n        This looks like prose but is code.\n"
    text += "    This is as deep as the text before it.\n"
    assert prose.paragraphs(text) == ["This is as deep as the text before it."]


@pytest.mark.parametrize(
    "code",
    [
        ">>> x = The(1)\nThis is the output of the call, a sentence.\n",
        "For example::\n\n    This looks like prose but is a literal block.\n\n",
        ".. code-block:: python\n\n    This looks like prose but is a literal block.\n\n",
        "```python\nThis looks like prose but is inside a fence.\n```\n",
        "+-----+-----+\n| The | table has words in it, you see. |\n+-----+-----+\n",
        "x = f(a, b)[0] + self.y * 2.0 ** z - w.\n",
        "The f(x) = g(y) for x_1 in h(z_2), q[i:j] != r.\n",
    ],
)
def test_code_tables_and_formulas_are_not_prose(code):
    assert prose.paragraphs(f"{code}\nThis paragraph of prose is what should remain.") == [
        "This paragraph of prose is what should remain."
    ]


def test_markup_is_removed_from_words():
    text = "Use :func:`~a.b.name` or ``other`` with *care*, see `the guide <https://x.y>`_ and [this](https://z) too [1]_."
    assert prose.paragraphs(text) == ["Use a.b.name or other with care, see the guide and this too."]


def test_only_docstrings_are_extracted():
    source = '''"""Module."""
# a comment with """ in it
X = """not a docstring"""

def f():
    r"""Function
    in two lines."""
    return f"""{X}"""

class C:
    \'\'\'Class.\'\'\'
add_newdoc("numpy", "x",
    """
    Text.
    """)
'''
    assert list(prose.docstrings(source)) == ["Module.", "Function\nin two lines.", "Class.", "Text."]
    assert list(prose.docstrings('f"""not one"""\nu"""One."""\n"""Not ended')) == ["One."]
    assert list(prose.docstrings("\n\"\"\"A.\"\"\"\n'''B.'''")) == ["A.", "B."]


def install(monkeypatch: pytest.MonkeyPatch, stdlib: pathlib.Path, **packages: list[str] | None) -> None:
    """Imitates an installation with this standard library, without topics, and with packages in these directories (None: a
    module in a single file)."""

    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        if name not in packages:
            return None if name in embedded_dataset_builder.PACKAGES else found(name)
        spec = importlib.machinery.ModuleSpec(name, None)
        spec.submodule_search_locations = packages[name]
        return spec

    found, get_path = importlib.util.find_spec, sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(stdlib) if name == "stdlib" else get_path(name))
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(topics, "topics", {})


def test_documents_have_300_characters_and_no_earlier_paragraph(monkeypatch, tmp_path):
    def prose_of(letter: str, length: int) -> str:
        words = "This text has words of all kinds in it and one that is "
        return words + letter * (length - len(words) - 1) + "."

    long, other, short = prose_of("x", 300), prose_of("y", 250), prose_of("z", 299)
    found = {"a": [long, long], "b": [prose_of("v", 99), long], "c": [short], "d": [long, prose_of("u", 80), other]}
    for name, paragraphs in found.items():
        (tmp_path / f"{name}.py").write_text('"""' + "\n\n".join(paragraphs) + '"""\n')
    install(monkeypatch, tmp_path)
    made = list(embedded_dataset_builder.Builder._generate_examples(None))
    expected = {"python.a": long, "python.d": f"{prose_of('u', 80)}\n{other}"}
    assert made == [(name, {"name": name, "text": text}) for name, text in expected.items()]


def test_sources_come_from_python_and_packages_without_their_tests(monkeypatch, tmp_path, capsys):
    def package(name: str, *files: str) -> pathlib.Path:
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(f'"""The text of {file} is here, with words."""')
        return tmp_path / name

    stdlib = package("stdlib", "b.py", "a.py", "test_a.py", "conftest.py", "deep/c.py", "deep/test_c.py", "tests/d.py", "x.txt")
    numpy = package("numpy", "__init__.py", "test_tools/e.py")
    with monkeypatch.context() as patch:
        install(patch, stdlib, numpy=[str(numpy)], click=None)
        patch.setattr(topics, "topics", {"B": "This is the second of the topics.", "A": "This is the first of the topics."})
        documents = dict(embedded_dataset_builder._documents())
    names = ["topics.A", "topics.B", "python.a", "python.b", "python.deep.c", "numpy.__init__", "numpy.test_tools.e"]
    assert [*documents] == names
    assert documents["topics.A"] == ["This is the first of the topics."]
    assert documents["python.deep.c"] == ["The text of deep/c.py is here, with words."]
    assert capsys.readouterr().err.splitlines()[-1] == "reading installed documentation: 5/5 files"


@pytest.fixture(scope="module")
def source_files() -> list[tuple[str, pathlib.Path]]:
    return embedded_dataset_builder._source_files()


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stdlib(source_files, tmp_path_factory) -> pathlib.Path:
    """Returns a directory with every twentieth source file of this installation."""
    path = tmp_path_factory.mktemp("stdlib")
    for number, (_, file) in enumerate(source_files[::20]):
        shutil.copy(file, path / f"{number}.py")
    return path


@pytest.fixture(scope="module")
def embedded(stdlib, cache) -> tfds_text.TextSet:
    with pytest.MonkeyPatch.context() as patch:
        install(patch, stdlib)
        return tfds_text.open_text_set(tfds_text.EMBEDDED, str(cache / "tfds"))


@pytest.fixture(scope="module")
def documents(embedded) -> list[str]:
    return [text.decode() for text in embedded.texts(0, len(embedded))]


def test_packages_that_only_a_part_of_the_users_install_are_no_source():
    lines = (pathlib.Path(__file__).resolve().parents[3] / "requirements.txt").read_text().splitlines()
    always = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line and "extra ==" not in line}
    sources = {name.lower().replace("_", "-") for name in embedded_dataset_builder.PACKAGES.values()}
    assert sources - always == {"pip"}, "every environment of tpu_scripts/ has pip"


def test_the_corpus_is_megabytes_of_english_in_many_documents(documents):
    assert len(documents) > 40  # in a twentieth of the files
    assert sum(map(len, documents)) > 125_000
    words = re.findall(r"[a-z]+", " ".join(documents).lower())
    assert 0.04 < words.count("the") / len(words) < 0.12
    assert all(len(text) >= 300 for text in documents)


def test_paragraphs_are_unique(documents):
    paragraphs = [paragraph for text in documents for paragraph in text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert not any(">>>" in paragraph or "    " in paragraph for paragraph in paragraphs)


def test_the_corpus_is_made_once_by_one_process_in_the_given_directory_or_the_cache(
    embedded, stdlib, cache, monkeypatch
):
    install(monkeypatch, stdlib)
    (directory,) = (cache / "tfds").iterdir()
    assert re.fullmatch("embedded-[0-9a-f]{12}", directory.name)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*.array_record*")}
    monkeypatch.setenv("BERT_JAX_CACHE", str(cache))
    with concurrent.futures.ThreadPoolExecutor(1) as pool, (directory / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        again = pool.submit(tfds_text.open_text_set, tfds_text.EMBEDDED, None)
        assert not concurrent.futures.wait([again], timeout=0.1).done, "another process may be making it"
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert len(again.result()) == len(embedded)
    assert before
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*.array_record*")} == before


def test_the_corpus_is_reproducible(embedded, stdlib, monkeypatch, tmp_path, capsys):
    install(monkeypatch, stdlib)
    second = tfds_text.open_text_set(tfds_text.EMBEDDED, str(tmp_path))
    assert list(embedded.texts(0, len(embedded))) == list(second.texts(0, len(second)))
    assert capsys.readouterr().out == "", "tfds says that it downloads"


def test_documentation_is_read_without_importing_it(source_files):
    before = set(sys.modules)
    for _, path in source_files[:100]:
        prose.module_prose(path)
    assert {name.split(".")[0] for name in set(sys.modules) - before} <= {"pydoc_data"}


def test_another_package_version_makes_another_corpus(monkeypatch):
    before = embedded_dataset_builder._fingerprint()
    assert embedded_dataset_builder._fingerprint() == before
    assert re.fullmatch("[0-9a-f]{12}", before)
    with monkeypatch.context() as other:
        found = []
        for version in ("3.99.0 (main, today)", "3.99.0 (main, now)", "3.99.1 (main, now)"):
            other.setattr(sys, "version", version)
            found.append(embedded_dataset_builder._fingerprint())
        assert found[0] == found[1] != found[2]
    with monkeypatch.context() as other:
        other.setattr(embedded_dataset_builder, "_REVISION", embedded_dataset_builder._REVISION + 1)
        assert embedded_dataset_builder._fingerprint() != before, "another extraction"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    assert embedded_dataset_builder._fingerprint() != before
