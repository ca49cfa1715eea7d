"""No regular expression takes quadratic time: a text of twice the length takes about twice as long.

The patterns are found in the source, also in f-strings and in bytes, with the methods by which the source uses them. Each text
makes a pattern backtrack: it starts with a string that the pattern matches before its first repetition, repeats a string that
the pattern or a part of it matches, and ends with a character that matches nothing.
"""

from __future__ import annotations

import ast
import pathlib
import re
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.analysis.coreference.readers import read_brackets
from bert_jax.files import parse_json
from bert_jax.prediction.pronouns import find_mention
from bert_jax.storage.formats import _BY_FIRST_BYTES
from bert_jax.storage.records import Line
from bert_jax.tasks.readers.conllu import read_blocks
from bert_jax.tasks.readers.tables import read_table
from bert_jax.tasks.span_task import answer_tokens
from tests.linear import is_slow, seconds

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "bert_jax"
METHODS = ("match", "search", "fullmatch", "split", "findall", "finditer", "sub")
APART = ("data/corpus/sentences.py", "data/corpus/embedded/", "tpu/costs/", "training/compilation.py")
"""Modules that are left out. Their patterns are tested together with the sentences that they find, or their texts do not come
from users: docstrings of installed packages, and programs as XLA writes them."""
REPEATS = 24
"""So many repetitions take seconds if each doubles the time."""
CLASSES = {
    "CATEGORY_DIGIT": "1",
    "CATEGORY_SPACE": " ",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_NOT_WORD": "!",
    "CATEGORY_NOT_DIGIT": "a",
}


def letters(members: Iterable[Any]) -> list[str]:
    """Returns some characters of a class."""
    found, is_negated = [], False
    for kind, value in members:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                found.append(chr(value))
            case "RANGE":
                found.append(chr(value[0]))
            case "CATEGORY":
                found.append(CLASSES[str(value)])
    return [letter for letter in "a 1!<" if letter not in found][:2] if is_negated else found[:3]


def samples(parsed: Iterable[Any], parts: set[str]) -> list[str]:
    """Returns some texts that a parsed pattern matches, and adds to `parts` texts that its parts match."""
    found = [""]
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                own = [chr(value)]
            case "NOT_LITERAL":
                own = ["b" if chr(value) == "a" else "a"]
            case "IN":
                own = letters(value)
            case "ANY":
                own = ["a"]
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                own = [text * max(1, value[0]) for text in samples(value[2], parts)][:3]
            case "SUBPATTERN":
                own = samples(value[3], parts)
            case "ATOMIC_GROUP":
                own = samples(value, parts)
            case "BRANCH":
                own = [text for branch in value[1] for text in samples(branch, parts)][:8]
            case "GROUPREF":
                own = ["="]
            case _:  # of zero width
                own = [""]
        parts.update(own)
        found = [text + more for text in found for more in own][:8]
    return found


def written(expression: ast.expr) -> str:
    """Returns the text of a pattern in the source, with "a" for each value in an f-string, or "" if it is not written there."""
    match expression:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(text)):
            return text.decode("latin-1")
        case ast.JoinedStr(values=parts):
            return "".join(part.value if isinstance(part, ast.Constant) else "a" for part in parts)
    return ""


def patterns() -> Iterator[tuple[str, str, list[str]]]:
    """Returns (file and line, pattern, methods that use it) for every pattern in the source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if name.startswith(APART) or not re.search(r"\bre\.", source):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        uses: dict[str, set[str]] = {}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                uses.setdefault(node.value.id, set()).add(node.attr)
        assigned = {id(node.value): node.targets[0] for node in nodes if isinstance(node, ast.Assign)}
        for node in nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[expression, *_]):
                    if not (text := written(expression)):
                        continue
                    if method == "compile":
                        target = assigned.get(id(node))
                        used = uses.get(target.id, set()) if isinstance(target, ast.Name) else set()
                        if name == "data/tokenizers/json_tokenizer.py":  # held in a table, and called as `_words_of`
                            used = used or {"findall"}
                        methods = sorted(used.intersection(METHODS)) or ["search", "fullmatch"]
                    else:
                        methods = [method]
                    if set(methods) <= set(METHODS):
                        yield f"{name}:{node.lineno}", text, methods


def pumps_of(parsed: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Returns (texts to repeat, texts of the whole pattern)."""
    parts: set[str] = set()
    whole = [sample for sample in samples(parsed, parts) if sample]
    pumps = {*parts, *whole, *(sample[:-1] for sample in whole)} - {""}
    ordered = sorted(pumps, key=lambda pump: (len(pump), pump))
    singles = [pump for pump in ordered if len(pump) == 1]
    return singles[:16] + ordered[len(singles) :][:16], whole


def calls(pattern: re.Pattern[str], method: str) -> Callable[[str], object]:
    match method:
        case "sub":
            return lambda text: pattern.sub("", text)
        case "finditer":
            return lambda text: sum(1 for _ in pattern.finditer(text))
    found: Callable[[str], object] = getattr(pattern, method)
    return found


def slow_texts(text: str, methods: list[str]) -> Iterator[str]:
    """Returns the texts on which a pattern takes quadratic time."""
    pattern = re.compile(text)
    parsed = parser.parse(text)
    pumps, whole = pumps_of(parsed)
    before = [samples(parsed[:i], set())[-1] for i, (kind, _) in enumerate(parsed) if str(kind).endswith("REPEAT")]
    heads = list(dict.fromkeys(["", *sorted({sample[:1] for sample in whole})[:3], *before[:2]]))
    for method in methods:
        call = calls(pattern, method)
        for pump in pumps:
            for head in heads:
                for end in ("\0", " ", "\n"):
                    if is_slow(call, lambda n, pump=pump, head=head, end=end: head + pump * (n // len(pump)) + end):
                        yield f"{method} on {head!r} + {pump!r} * n + {end!r}"


def test_regular_expressions_take_linear_time():
    found = list(patterns())
    assert len(found) > 100
    assert [f"{where}: {slow}" for where, text, methods in found for slow in slow_texts(text, methods)] == []


@pytest.mark.parametrize("first", [pytest.param(first, id=found.kind) for first, found in _BY_FIRST_BYTES])
def test_the_format_of_a_file_is_recognised_at_once(first: re.Pattern[bytes]):
    """Only the first HEAD_BYTES are matched, so quadratic time is short, but 46 comments took years."""
    for pump in pumps_of(parser.parse(first.pattern.decode("latin-1")))[0]:
        for end in ("\0", " ", "<"):
            assert seconds(first.match, f"{pump * REPEATS}{end}".encode("latin-1")) < 0.1, f"{pump!r} many times, {end!r}"


@pytest.mark.parametrize("unit", ["a", "(", ")", "|", "(a", "a)", "(a)", "(a|", "()", ")("])
def test_brackets_are_parsed_in_linear_time(unit: str):
    assert not is_slow(read_brackets, lambda n: unit * n)


@pytest.mark.parametrize("unit", ["a", "a ", "ab"])
def test_mentions_are_found_in_linear_time(unit: str):
    assert not is_slow(lambda text: find_mention(text, f"{unit * (len(text) // len(unit) // 2 - 1)}!"), lambda n: unit * n + "!")


def test_answers_inside_of_tokens_are_found_in_linear_time():
    def look(text: str) -> None:
        offsets = np.array([(match.start(), match.end()) for match in re.finditer(r"\S+", text)], np.int64)
        assert answer_tokens(text, offsets, "a", 0) == ((0, 0), False)

    assert not is_slow(look, lambda n: "aa " * (n // 3))


def test_a_repeated_key_is_found_in_linear_time():
    def read(text: str) -> None:
        with pytest.raises(ValueError, match="occurs twice"):
            parse_json(text)

    assert not is_slow(read, lambda n: f'{{{"".join(f"{chr(34)}{i}{chr(34)}:0," for i in range(n // 8))}"{n // 8 - 1}":0}}')


def test_names_of_columns_are_compared_in_linear_time(tmp_path: pathlib.Path):
    def read(text: str) -> None:
        (tmp_path / "a.tsv").write_text(text.replace(" ", "\t"))
        read_table(tmp_path / "a.tsv")
        list(read_blocks([Line("", f"# global.columns = ID FORM {text}")]))

    assert not is_slow(read, lambda n: " ".join(map(str, range(n // 8))))


def test_a_quadratic_pattern_would_be_found():
    assert is_slow(re.compile(r"a+b").search, lambda n: "a" * n)
    assert not is_slow(re.compile(r"a+").search, lambda n: "a" * n)
