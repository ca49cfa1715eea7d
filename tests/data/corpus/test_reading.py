"""Reading: however the sources are divided, each document is read once and completely; errors name the position in the file."""

from __future__ import annotations

import gzip
import json
import pathlib
import random
import re
from collections import Counter

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import sources, text_files
from bert_jax.data.corpus.sources import Document, ReadOptions, Source, read_span
from bert_jax.errors import UserError
from tests.compressed import PACK


def read(source: str, shards: int = 1, counts: Counter[str] | None = None, **options) -> list[list[Document]]:
    """Returns the documents of each shard."""
    choices = ReadOptions(**options)
    items = sources.find_items([sources.parse_source(source)], choices)
    seen = Counter() if counts is None else counts
    return [[doc for span in spans for doc in read_span(span, choices, seen)] for spans in sources.cut(items, shards)]


def texts(shards: list[list[Document]]) -> list[str]:
    return ["\n".join(document.lines).strip("\n") for shard in shards for document in shard]


def some_documents(seed: int = 0, number: int = 120) -> list[str]:
    """Returns texts of 1 to 30 lines, with words of characters that take one to four bytes."""
    draw = random.Random(seed)
    words = ["the", "cat", "naïve", "中文", "😀", "sat.", "on", "a", "mat,"]
    lines = [[" ".join(draw.choices(words, k=draw.randint(1, 8))) for _ in range(draw.randint(1, 30))] for _ in range(number)]
    return ["\n".join(document) for document in lines]


@pytest.fixture
def set_sizes(monkeypatch):
    """Returns a function that sets the bytes of a piece and of the sample of a file, so that small files have many pieces."""

    def set_both(piece: int, sample: int = text_files.SAMPLE_BYTES) -> None:
        monkeypatch.setattr(text_files, "_PIECE", piece)
        monkeypatch.setattr(text_files, "SAMPLE_BYTES", sample)

    return set_both


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64, 500])
@pytest.mark.parametrize("glue", ["\n\n", "\n \t\n\n\n", "\r\n\r\n"])
def test_documents_between_blank_lines_are_read_once_wherever_the_file_is_cut(tmp_path, shards, glue):
    documents = some_documents()
    (tmp_path / "a.txt").write_bytes(("\n\n" + glue.join(documents) + "\n").encode())
    found = [text.replace("\r", "") for text in texts(read(f"text:{tmp_path}/a.txt", shards, layout="sentences"))]
    assert found == documents


@pytest.mark.parametrize("shards", [1, 2, 5, 61])
@pytest.mark.parametrize("ending", ["\n", ""])
def test_records_are_read_once_wherever_the_file_is_cut(tmp_path, shards, ending):
    documents = some_documents()
    records = "\n".join(json.dumps({"text": text}, ensure_ascii=bool(k % 2)) for k, text in enumerate(documents))
    (tmp_path / "a.jsonl").write_text(records + ending)
    assert texts(read(f"jsonl:{tmp_path}/a.jsonl", shards)) == documents


def test_lines_of_records_and_books_are_paragraphs_and_lines_of_sentence_files_sentences(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "It rained. It\nsnowed."}))
    (tmp_path / "a.txt").write_text("It rained.\nIt snowed.\n")
    for source, options, are_sentences in (
        ("jsonl:a.jsonl", {}, False),
        ("text:a.txt", {"layout": "book"}, False),
        ("text:a.txt", {"layout": "sentences"}, True),
    ):
        kind, name = source.split(":")
        ((document,),) = read(f"{kind}:{tmp_path}/{name}", **options)
        assert document.is_sentence is are_sentences, source


@pytest.mark.parametrize("shards", [1, 3, 40])
def test_lines_are_documents_with_the_documents_layout(tmp_path, shards):
    lines = [line for document in some_documents() for line in document.split("\n")]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert texts(read(f"text:{tmp_path}/a.txt", shards, layout="lines")) == lines


@pytest.mark.parametrize("shards", [1, 2, 3, 11])
def test_the_pieces_of_a_book_do_not_depend_on_the_cut_and_lose_nothing(tmp_path, set_sizes, shards):
    set_sizes(3000)
    paragraphs = some_documents()
    (tmp_path / "a.txt").write_text("\n \n" + "\n\n".join(paragraphs))
    whole = texts(read(f"text:{tmp_path}/a.txt", 1, layout="book"))
    assert len(whole) > 10
    assert texts(read(f"text:{tmp_path}/a.txt", shards, layout="book")) == whole
    assert "\n".join(whole).split("\n") == [" ".join(paragraph.split()) for paragraph in paragraphs]


@pytest.mark.parametrize("shards", [1, 2, 3, 11])
def test_a_file_without_blank_lines_is_cut_into_pieces_at_lines(tmp_path, set_sizes, shards):
    set_sizes(3000, sample=1 << 12)
    lines = [line for document in some_documents() for line in document.split("\n")]
    (tmp_path / "a.txt").write_text("\n" + "\n".join(lines))
    found = texts(read(f"text:{tmp_path}/a.txt", shards, layout="sentences"))
    assert len(found) > 10
    assert found == texts(read(f"text:{tmp_path}/a.txt", 1, layout="sentences"))
    assert "\n".join(found).split("\n") == lines


@pytest.mark.parametrize("shards", [1, 2, 4, 7])
def test_a_piece_begins_at_the_first_record_after_a_multiple_of_its_size(tmp_path, set_sizes, shards):
    set_sizes(500, sample=100)
    lines = [f"{k:02d}{'x' * 47}" for k in range(40)]  # with its newline, a line has 50 bytes
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    for layout in ("sentences", "book"):  # lines of a book that are not sentences become paragraphs
        found = texts(read(f"text:{tmp_path}/a.txt", shards, layout=layout))
        assert [len(re.findall("xx+", text)) for text in found] == [10, 10, 10, 10]
    (tmp_path / "a.txt").write_text("\n\n".join(["TITLE", *(f"{k:02d}{'x' * 46}" for k in range(40))]) + "\n")
    found = texts(read(f"text:{tmp_path}/a.txt", shards, layout="book"))
    assert [len(text.split("\n")) for text in found] == [11, 10, 10, 10]
    assert found[0].startswith("TITLE\n00x")


def test_a_document_is_cut_at_the_line_that_exceeds_a_piece(tmp_path, set_sizes):
    set_sizes(500)
    document = "\n".join(["x" * 49] * 25)
    (tmp_path / "a.txt").write_text(f"{document}\n\n{document}\n")
    found = texts(read(f"text:{tmp_path}/a.txt", layout="sentences"))
    assert [text.count("\n") + 1 for text in found] == [11, 11, 3, 11, 11, 3]


def test_wrapping_of_a_record_is_decided_by_its_first_4000_characters(tmp_path):
    lines = ["w" * 60] * 63 + ["v" * 156, "u"]
    assert len("\n".join(lines[:-1])) == 3999
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "\n".join(text)}) for text in (lines, ["w", *lines[1:]])))
    wrapped, lines_apart = read(f"jsonl:{tmp_path}/a.jsonl")[0]
    assert (len(wrapped.lines), len(lines_apart.lines)) == (1, 65)


def test_an_endless_document_is_cut_so_that_memory_stays_bounded(tmp_path, set_sizes):
    set_sizes(500)
    lines = [f"This is line {k} of a long document." for k in range(400)]
    (tmp_path / "a.txt").write_text("A short document.\n\n" + "\n".join(lines))
    found = texts(read(f"text:{tmp_path}/a.txt", 1, layout="sentences"))
    assert found[0] == "A short document."
    assert "\n".join(found[1:]).split("\n") == lines
    assert max(map(len, found)) < 600


@pytest.mark.parametrize("shards", [1, 4, 16])
@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_compressed_files_give_each_document_once_for_any_number_of_parts(tmp_path, monkeypatch, shards, kind, ending):
    monkeypatch.setattr(text_files, "_PART_BYTES", 2000)
    documents = some_documents()
    content = "\n\n".join(documents) if kind == "text" else "\n".join(json.dumps({"text": text}) for text in documents)
    half = len(content) // 2
    # concatenated: a file of two members or frames
    parts = (PACK[ending](part.encode()) for part in (content[:half], content[half:]))
    (tmp_path / f"a{ending}").write_bytes(b"".join(parts))
    read_shards = read(f"{kind}:{tmp_path}/a{ending}", shards, layout="sentences")
    assert sorted(texts(read_shards)) == sorted(documents)
    assert sum(bool(shard) for shard in read_shards) >= min(shards, 3)


def test_progress_fractions_grow_to_one(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(some_documents()))
    (tmp_path / "b.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in some_documents()))
    for name, shards in (("text:a.txt", 1), ("text:a.txt", 3), ("text:b.gz", 1), ("jsonl:c.jsonl", 2)):
        kind, file = name.split(":")
        for documents in read(f"{kind}:{tmp_path}/{file}", shards):
            fractions = [document.fraction for document in documents]
            assert fractions == sorted(fractions)
            assert 0.0 <= fractions[0] < 0.2 or file == "b.gz"
            assert 0.9 < fractions[-1] <= 1.0
    (book,) = read(f"text:{tmp_path}/a.txt", layout="book")[0]
    assert book.fraction == 0.0


def test_a_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfHello there.\n")
    assert texts(read(f"text:{tmp_path}/a.txt")) == ["Hello there."]
    (tmp_path / "a.jsonl").write_text('\ufeff\ufeff{"text": "Hello there."}\n', encoding="utf-8")
    assert texts(read(f"jsonl:{tmp_path}/a.jsonl")) == ["Hello there."]


def test_wrapped_prose_inside_a_record_becomes_paragraphs(tmp_path):
    wrapped = "The first paragraph of this text was wrapped at about sixty columns\nby someone who "
    wrapped += "wrote it in an editor of the old kind, which breaks\nlines where they end and not where sentences do, so that\n"
    wrapped += "joining them again is the only way to see whole sentences in\nit once more.\n\nThe second paragraph."
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": wrapped}))
    lines = read(f"jsonl:{tmp_path}/a.jsonl")[0][0].lines
    assert len(lines) == 2
    assert lines[1] == "The second paragraph."


@pytest.mark.parametrize("zipped", [False, True])
def test_invalid_bytes_are_refused_with_file_position_and_remedy(tmp_path, zipped):
    good, bad = "Good text. é\n\n".encode() * 100, b"caf\xe9 au lait\n\n"
    content = good + bad + good
    path = tmp_path / ("a.txt.gz" if zipped else "a.txt")
    path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
    where = rf"byte {len(good) + 3:,}{' of the unpacked file' if zipped else ''} \(0xe9\)"
    message = rf"{path.name} is not UTF-8 at {where}; convert it \(iconv -f WINDOWS-1252 .*\), or pass --on-bad-bytes=replace"
    with pytest.raises(UserError, match=message):
        read(f"text:{path}", layout="sentences")
    counts: Counter[str] = Counter()
    assert "caf\ufffd au lait" in texts(read(f"text:{path}", counts=counts, layout="sentences", on_bad_bytes="replace"))
    assert counts == {"replaced-bytes": 1}


def test_utf_16_is_recognised_and_the_conversion_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("Hello there.\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"UTF-16.*iconv -f UTF-16"):
        read(f"text:{tmp_path}/a.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "it is not JSON"),
        ('{"txt": "x"}', "it has no field 'text'; did you mean 'txt'"),
        ('{"text": 3}', "the field 'text' is 3, not a text;"),
        ('{"text": null}', "the field 'text' is null, not a text;"),
        ('["text"]', "it is a JSON list, not an object"),
        ('"text"', "it is a JSON str, not an object"),
    ],
)
def test_a_bad_record_is_refused_with_its_position_or_skipped_and_counted(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "One."}}\n{line}\n{{"text": "Two."}}\n')
    with pytest.raises(UserError, match=rf"a.jsonl: the record at byte 17 is bad: {message}.*--on-bad-records=skip"):
        read(f"jsonl:{tmp_path}/a.jsonl")
    counts: Counter[str] = Counter()
    assert texts(read(f"jsonl:{tmp_path}/a.jsonl", counts=counts, on_bad_records="skip")) == ["One.", "Two."]
    assert counts == {"bad-records": 1}


def test_the_text_field_can_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "One."}\n')
    assert texts(read(f"jsonl:{tmp_path}/a.jsonl", text_field="content")) == ["One."]


@pytest.mark.parametrize("content", [gzip.compress(b'{"text": "x"}\n' * 1000, mtime=0)[:-20], b"this is not gzip"])
def test_a_damaged_gzip_file_is_an_error_that_names_it(tmp_path, content):
    path = pathlib.Path(tmp_path / "a.jsonl.gz")
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jsonl\.gz is not a whole gzip file"):
        read(f"jsonl:{path}")


def test_an_endless_line_is_refused_before_memory_runs_out(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_MAX_LINE", 1 << 20)
    (tmp_path / "a.jsonl").write_bytes(b"x" * (1 << 21))
    with pytest.raises(UserError, match="there is no line end within 1 MiB after byte 0; give a text file"):
        read(f"jsonl:{tmp_path}/a.jsonl")


def test_several_sources_are_read_one_after_the_other(tmp_path):
    (tmp_path / "a.txt").write_text("From text.\n")
    (tmp_path / "b.jsonl").write_text('{"text": "From JSON."}\n')
    chosen = [Source("jsonl", f"{tmp_path}/b.jsonl"), Source("text", f"{tmp_path}/a.txt")]
    items = sources.find_items(chosen, ReadOptions())
    spans = sources.cut(items, 1)[0]
    found = [document for span in spans for document in read_span(span, ReadOptions(), Counter())]
    assert texts([found]) == ["From JSON.", "From text."]


def test_progress_counts_the_records_of_tables_pairs_and_own_sources(tmp_path):
    table = pyarrow.table({"text": ["One.", None, "Three.", "Four.", "Five."]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "own.py").write_text("def texts(name):\n    yield from [f'{name} {k}.' for k in range(5)]\n")
    for language in ("en", "de"):
        (tmp_path / f"a.{language}").write_text("".join(f"{language} {k}.\n" for k in range(5)))
    all_of, counts = [0.5, 1.0, 1 / 3, 2 / 3, 1.0], Counter()
    for source, fractions in (
        (f"parquet:{tmp_path}/a.parquet", [all_of[0], *all_of[2:]]),
        (f"{tmp_path}/own.py:texts:Number", all_of),
        (f"parallel:{tmp_path}/a.en:{tmp_path}/a.de", all_of),
    ):
        shards = read(source, 2, counts=counts, on_bad_records="skip")
        assert [document.fraction for shard in shards for document in shard] == fractions
        if source.startswith("parallel"):
            assert shards[1][0] == Document(["en 2.", "de 2."], True, 1 / 3, is_pair=True)
    assert counts == {"bad-records": 1}


def test_an_own_source_that_yields_fewer_documents_than_before_is_refused(tmp_path):
    program = f"import pathlib\ndef texts():\n    yield from pathlib.Path({str(tmp_path / 'a')!r}).read_text().split()\n"
    (tmp_path / "own.py").write_text(program)
    (tmp_path / "a").write_text("one two three")
    (item,) = sources.find_items([sources.parse_source(f"{tmp_path}/own.py:texts")], ReadOptions())
    assert (item.length, item.weight) == (3, 11.0)
    spans = [span for shard in sources.cut([item], 3) for span in shard]
    found = [document.lines for span in spans for document in read_span(span, ReadOptions(), Counter())]
    assert found == [["one"], ["two"], ["three"]]
    (tmp_path / "a").write_text("one two")
    assert len(list(read_span(spans[1], ReadOptions(), Counter()))) == 1
    with pytest.raises(UserError, match="the function first yielded 3 documents, but then 2; it must yield the same documents"):
        list(read_span(spans[2], ReadOptions(), Counter()))
    (tmp_path / "a").write_text(" ")
    assert sources.find_items([sources.parse_source(f"{tmp_path}/own.py:texts")], ReadOptions()) == []


@pytest.mark.parametrize(
    ("body", "name", "says"),
    [
        ("return 'a'", "texts", "the function returns a string; it must yield one string per document"),
        ("return 7", "texts", "the function returns int; it must yield"),
        ("yield 'a'; yield 7", "texts", "document 2 has the type int; yield one string per document"),
        ("yield 'a'", "texts:b", "the function cannot be called with the argument 'b'"),
    ],
)
def test_an_own_source_that_yields_no_strings_is_refused(tmp_path, body, name, says):
    (tmp_path / "own.py").write_text(f"def texts():\n    {body}\n")
    with pytest.raises(UserError, match=rf"^--eval-source={tmp_path}/own.py:{name}: {says}"):
        sources.find_items([sources.parse_source(f"{tmp_path}/own.py:{name}", "--eval-source")], ReadOptions())
