"""The embedded corpus: prose is extracted from documentation, code and tables are not, and nothing is downloaded or imported."""

from __future__ import annotations

import pathlib
import re
import sys
import types

import pytest

from bert_jax import files
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


def test_documents_have_300_characters_and_no_earlier_paragraph(monkeypatch):
    long, other = "x" * 300, "y" * 298
    found = [("a", [long, long]), ("b", ["z", long]), ("c", ["v" * 299]), ("d", [long, "u", other]), ("e", ["w", other])]
    monkeypatch.setattr(embedded_dataset_builder, "_documents", lambda: found)
    made = list(embedded_dataset_builder.Builder._generate_examples(None))
    assert made == [("a", {"name": "a", "text": long}), ("d", {"name": "d", "text": f"u\n{other}"})]


def test_sources_come_from_python_and_packages_without_their_tests(monkeypatch, tmp_path, capsys):
    def package(name: str, *files: str) -> str:
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(f'"""The text of {file} is here, with words."""')
        return str(tmp_path / name)

    stdlib = package("stdlib", "b.py", "a.py", "test_a.py", "conftest.py", "deep/c.py", "deep/test_c.py", "tests/d.py", "x.txt")
    numpy = package("numpy", "__init__.py", "test_tools/e.py")
    specs = {
        "numpy": types.SimpleNamespace(submodule_search_locations=[numpy]),
        "click": types.SimpleNamespace(submodule_search_locations=None),  # a single file
    }
    monkeypatch.setattr(embedded_dataset_builder.sysconfig, "get_path", lambda name: stdlib if name == "stdlib" else "")
    monkeypatch.setattr(embedded_dataset_builder.importlib.util, "find_spec", specs.get)
    assert embedded_dataset_builder._installed() == {"numpy": tmp_path / "numpy"}
    names = ["python.a", "python.b", "python.deep.c", "numpy.__init__", "numpy.test_tools.e"]
    assert [name for name, _ in embedded_dataset_builder._source_files()] == names
    topics, sources = [], []
    for name, paragraphs in embedded_dataset_builder._documents():
        (topics if name.startswith("topics.") else sources).append((name, paragraphs))
    assert topics == sorted(topics)
    assert [name for name, _ in sources] == names
    assert sources[2][1] == ["The text of deep/c.py is here, with words."]
    assert capsys.readouterr().err.splitlines()[-1] == "reading installed documentation: 5/5 files"


def test_the_corpus_is_made_by_one_process_at_a_time_in_a_directory_named_by_versions(monkeypatch, tmp_path):
    made = []

    class Builder:
        def __init__(self, data_dir, file_format):
            self.directory = data_dir
            made.append((data_dir, file_format))

        def download_and_prepare(self):
            assert files.is_locked(self.directory / ".lock")
            print("tfds says that it downloads")
            made.append("prepared")

    monkeypatch.setattr(embedded_dataset_builder, "Builder", Builder)
    monkeypatch.setattr(embedded_dataset_builder, "_fingerprint", lambda: "abc")
    assert isinstance(embedded_dataset_builder.prepared(tmp_path / "new" / "cache"), Builder)
    assert made == [(tmp_path / "new" / "cache" / "embedded-abc", "array_record"), "prepared"]


@pytest.fixture(scope="module")
def source_files() -> list[tuple[str, pathlib.Path]]:
    return embedded_dataset_builder._source_files()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory) -> tfds_text.TextSet:
    return tfds_text.open_text_set(tfds_text.EMBEDDED, str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def documents(embedded) -> list[str]:
    return [text.decode() for text in embedded.texts(0, len(embedded))]


def test_the_corpus_is_megabytes_of_english_in_many_documents(documents):
    assert len(documents) > 800
    assert sum(map(len, documents)) > 2_500_000
    words = re.findall(r"[a-z]+", " ".join(documents).lower())
    assert 0.04 < words.count("the") / len(words) < 0.12
    assert all(len(text) >= 300 for text in documents)


def test_paragraphs_are_unique(documents):
    paragraphs = [paragraph for text in documents for paragraph in text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert not any(">>>" in paragraph or "    " in paragraph for paragraph in paragraphs)


def test_the_corpus_is_reproducible(source_files, monkeypatch, tmp_path):
    some = source_files[:60]
    monkeypatch.setattr(embedded_dataset_builder, "_source_files", lambda: some)
    first, second = (tfds_text.open_text_set(tfds_text.EMBEDDED, str(tmp_path / name)) for name in ("a", "b"))
    assert len(first) > 50
    assert list(first.texts(0, len(first))) == list(second.texts(0, len(second)))


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
    monkeypatch.setattr(embedded_dataset_builder.importlib.metadata, "version", lambda name: "0.0.1")
    assert embedded_dataset_builder._fingerprint() != before
