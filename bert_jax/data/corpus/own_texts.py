"""The source FILE.py:NAME[:ARGUMENT]: what a function in the user's own file yields, a string for each document."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator

from bert_jax.data.corpus.sentences import paragraphs
from bert_jax.data.corpus.sources import Document, Item, ReadOptions, Say, Source, SourceKind, Span, parts_of
from bert_jax.errors import UserError
from bert_jax.interface.named import load_named, split_named
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.interface.words import counted


def _check(source: Source) -> None:
    load_named(source.name, {}, source.flag)


def _items(source: Source, options: ReadOptions, say: Say) -> list[Item]:
    """Returns the documents of a user's function as one item. Reads all documents to count them."""
    sizes = [len(text) for text in own_texts(source.name, source.flag)]
    if not sizes:
        return []
    return [Item("own", source.name, "records", len(sizes), max(1.0, sum(sizes)), cuts=parts_of(len(sizes)), is_file=False)]


def own_texts(value: str, flag: str = "--source") -> Iterator[str]:
    """Yields the documents of FILE.py:NAME[:ARGUMENT], where `NAME(ARGUMENT)` yields one string per document.

    The order and number of the documents must depend only on the files that the function reads. The function is called once to
    count the documents. It is called again for each part of the corpus, in other processes. Raises UserError if the function
    raises an exception, or if it yields anything other than strings.
    """
    function, argument = load_named(value, {}, flag), split_named(value)[2]
    arguments = () if argument is None else (argument,)
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        takes = "an argument" if argument is None else f"the argument {argument!r}"
        raise UserError(
            f"{flag}={value}: the function cannot be called {'without' if argument is None else 'with'} {takes} ({error}); "
            "write FILE.py:NAME:ARGUMENT if the function has one argument (a string), FILE.py:NAME if it has none"
        ) from error
    with file_errors_explained():  # this may run in a worker process
        texts = function(*arguments)
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            kind = "a string" if isinstance(texts, str) else type(texts).__name__
            raise UserError(f"{flag}={value}: the function returns {kind}; it must yield one string per document")
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise UserError(
                    f"{flag}={value}: document {number:,} has the type {type(text).__name__}; yield one string per document"
                )
            yield text


def _read(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    number = -1
    for number, text in enumerate(own_texts(span.item.path)):
        if number >= span.stop:
            return
        if number >= span.start:
            yield Document(paragraphs(text), False, (number + 1 - span.start) / (span.stop - span.start))
    if number + 1 < span.stop:
        raise UserError(
            f"{span.item.path}: the function first yielded {counted(span.item.length, 'document')}, but then "
            f"{number + 1:,}; it must yield the same documents in the same order every time"
        )


OWN = SourceKind("FILE.py:NAME:ARGUMENT", _items, _read, check=_check)
