"""Recognises the format of a file by its first bytes, and reads and writes compressed files.

    with open_packed("a.jsonl.zst") as file:       # .gz, .bz2, .xz, .zst, and files that are not compressed
        for line in file: ...

The name of a file decides whether it is decompressed. The first bytes decide whether the content is text (`recognise`), since a
Parquet file or an archive must not be read as text."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import pathlib
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from bert_jax.errors import UserError
from bert_jax.files import GIT_LFS

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
"""Suffix -> compression."""
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""The exceptions raised while reading a file of `open_packed`."""
HEAD_BYTES = 512
"""The number of bytes that `recognise` needs."""
_BUFFER = 1 << 18
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def refuse_pipe(path: pathlib.Path) -> None:
    """Raises UserError if `path` is a pipe or a device. Callers read the file several times, which is not possible with a pipe.
    Also, opening a pipe that has no writer would never return."""
    try:
        mode = path.stat().st_mode
    except OSError:  # opening it will report the reason
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path} is a pipe or a device, but this file is read several times; save it to a file first")


@dataclass(frozen=True)
class Format:
    """A format other than text. In a message, `what` follows the file's name and `remedy` tells the user how to convert it."""

    kind: str
    what: str
    remedy: str


def _compressed(name: str, suffix: str = "") -> Format:
    give = f"give it a name that ends in {suffix}, or " if suffix else ""
    return Format(name, f"is compressed with {name}", f"{give}decompress it first")


_NAMED = "give it a name that ends in {}, or write its texts to a file of JSON lines first"
_SAVE = "save it as text, or the sheet as CSV, first"
_CONVERT = "convert it to text first (pandoc -f {} -t plain --wrap=none)"
_UNZIP = "unpack it first (unzip), or save the sheet as CSV"
_READ = "give a text file, for example the output of a character recognition program (tesseract)"
_PAGE = "fetch the file itself, or write the text of the page to a file first"
_TABLE = "write its texts to a file of JSON lines first"
_MAILBOX = "write the texts of its messages to JSON lines first (Python's mailbox module)"
_SUBTITLES = (
    "write the sentences to a text file first, without the times (or pass the file to `corpus` with --source="
    "experiments/extensions/transcripts.py:transcripts:FILE)"
)
_BY_FIRST_BYTES: tuple[tuple[re.Pattern[bytes], Format], ...] = tuple(
    (re.compile(first, re.DOTALL), found)
    for first, found in (
        (rb"\x1f\x8b", _compressed("gzip", ".gz")),
        (rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", _compressed("bzip2", ".bz2")),
        (rb"\xfd7zXZ\0", _compressed("xz", ".xz")),
        (rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", _compressed("zstd", ".zst")),
        (rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", _compressed("lz4")),
        (rb"\x1f\x9d", _compressed("compress (.Z)")),
        (rb"PK\x03\x04.{26}mimetypeapplication/epub", Format("epub", "is a book in EPUB", _CONVERT.format("epub"))),
        (rb"PK\x03\x04.{26}mimetypeapplication/vnd\.oasis", Format("odt", "is a file of LibreOffice", _SAVE)),
        (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", Format("zip", "is a zip archive or an Excel workbook", _UNZIP)),
        (rb"\xd0\xcf\x11\xe0", Format("excel", "is an Excel workbook or a Word document", _SAVE)),
        (rb"7z\xbc\xaf\x27\x1c", Format("7z", "is a 7-Zip archive", "unpack it first (7z x)")),
        (rb"Rar!\x1a\x07", Format("rar", "is a RAR archive", "unpack it first (unrar x)")),
        (rb".{257}ustar[\0 ]", Format("tar", "is a tar archive", "unpack it first (tar -xf)")),
        (rb"PAR[1E](?:\Z|[\0-\x08\x0e-\x1f])|PARE.{,3}\0", Format("parquet", "is a Parquet file", _NAMED.format(".parquet"))),
        (rb"ARROW1\0\0|\xff\xff\xff\xff.{2}[\0-\x0f]\0.{3}\0", Format("arrow", "is an Arrow file", _NAMED.format(".arrow"))),
        (rb"Obj\x01", Format("avro", "is an Avro file", _TABLE)),
        (rb"SQLite format 3\0", Format("sqlite", "is an SQLite database", _TABLE)),
        (rb"\x89HDF\r\n\x1a\n", Format("hdf5", "is an HDF5 file", _TABLE)),
        (
            rb"(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^>]*+>\s*+|<!--(?:(?!-->).)*+-->\s*+)*+(?i:<!doctype html|<html[\s>])",
            Format("html", "is a web page", _PAGE),
        ),
        (
            rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<mediawiki[\s>]",
            Format("xml", "is a dump of a wiki", "write its texts to a file of JSON lines first (wikiextractor --json)"),
        ),
        (rb"(?:\xef\xbb\xbf)?\s*<\?xml\s", Format("xml", "is an XML file", "write its text to a file first, without the tags")),
        (rb"From \S+ [^\n]*\d\d:\d\d[^\n]*\n[A-Za-z-]+:", Format("mbox", "is a mailbox (mbox)", _MAILBOX)),
        (
            rb"(?:\xef\xbb\xbf)?(?:WEBVTT(?:\r?\n|[ \t].*?\n\r?\n)|\s*(?:\d+\s+)?(?:\d+:)?\d\d:\d\d[,.]\d{3} *--> *\d)",
            Format("subtitles", "is a file of subtitles", _SUBTITLES),
        ),
        (rb"\{\\rtf1", Format("rtf", "is a document in RTF", "save it as text first")),
        (rb"%PDF-", Format("pdf", "is a PDF", "write its text to a file first (pdftotext)")),
        (rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a.{3}[\0-\x08]", Format("image", "is an image", _READ)),
        (re.escape(GIT_LFS[0]), Format("lfs", *GIT_LFS[1:])),
    )
)
_SUFFIXES = {
    ".br": _compressed("brotli"),
    ".lz": _compressed("lzip"),
    ".lzma": _compressed("lzma"),
    ".lzo": _compressed("lzo"),
    ".sz": _compressed("snappy"),
}
"""Suffix -> a compression that has no signature at the start of the file."""


def recognise(head: bytes, name: str = "", *, unpacks: bool = True) -> Format | None:
    """Returns the format of a file, given its first HEAD_BYTES after decompression, or None if it looks like text.

    `name` is the name of the file. If the bytes are not UTF-8, it is used to recognise compressions without a signature.
    `unpacks` states whether the reader decompresses files according to their names. If so, a compressed file is reported in two
    cases: its name lacks the suffix of the compression (the remedy is another name), or the file is compressed twice."""
    found = next((found for first, found in _BY_FIRST_BYTES if first.match(head)), None)
    if found and found.kind in COMPRESSIONS.values() and (not unpacks or compression(name)):
        return _compressed(found.kind)
    if found and name.endswith((".parquet", ".arrow")) and found.remedy == _NAMED.format(f".{found.kind}"):
        return replace(found, remedy="write its content to a text file first")
    if found is None and (by_name := _SUFFIXES.get(pathlib.PurePath(name).suffix)) and not _is_utf8(head):
        return by_name
    return found


def is_text(head: bytes) -> bool:
    """Returns whether a file starts like text: UTF-8 without control characters."""
    return _is_utf8(head) and not re.search(rb"[\0-\x08\x0e-\x1f]", head)


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"  # `head` ends in the middle of a character
    return True


def unicode_encoding(head: bytes) -> str:
    """Returns the name of the encoding if a text starts like UTF-16 or UTF-32. Such a text has a byte order mark, or zero bytes
    between letters. Returns "" for other content."""
    for mark, name in ((codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), *((mark, "UTF-16") for mark in _UTF16)):
        if head.startswith(mark):
            return name
    units = len(head) // 4
    # the count of zero bytes at each of the four positions in a unit
    zeros = [head[i : 4 * units : 4].count(0) for i in range(4)]
    if units < 2 or min(zeros) > 0.1 * units:
        return ""
    if zeros[2] == zeros[3] == units:
        return "UTF-32LE"
    if zeros[0] == zeros[1] == units:
        return "UTF-32BE"
    first, second = zeros[0] + zeros[2], zeros[1] + zeros[3]
    if max(first, second) > units and min(first, second) < 0.1 * units:
        return "UTF-16LE" if first < second else "UTF-16BE"
    return ""


def conversion(head: bytes) -> str:
    """Returns the end of an error message about text that is not UTF-8. It explains how to convert the text, and names the
    encoding if the first bytes `head` show it."""
    if name := unicode_encoding(head):
        return f": it starts like {name[:6]}; convert it (iconv -f {name} -t UTF-8)"
    return "; convert it (iconv -f WINDOWS-1252 -t UTF-8, if it is Western European)"


def compression(name: str) -> str | None:
    """Returns the compression of a file by its name, or None for an uncompressed file."""
    return COMPRESSIONS.get(pathlib.PurePath(name).suffix.lower())


def bare_name(name: str) -> str:
    """Returns the name without its compression suffix: `a.jsonl` of `a.jsonl.zst`."""
    return name.removesuffix(pathlib.PurePath(name).suffix) if compression(name) else name


def open_packed(file: str | pathlib.Path | IO[bytes], name: str = "") -> IO[bytes]:
    """Opens a file for reading bytes, decompressing it according to its suffix. If `file` is an open file, `name` must be its
    name.

    Files compressed in several concatenated parts are read to the end. Opening or reading the file may raise an exception of
    `UNREADABLE`, which `damage` describes.
    """
    packed = compression(name or str(file))
    given: Any = file
    if packed == "gzip":
        return cast(IO[bytes], gzip.open(given, "rb"))
    if packed == "bzip2":
        return cast(IO[bytes], bz2.open(given, "rb"))
    if packed == "xz":
        return cast(IO[bytes], lzma.open(given, "rb"))
    if isinstance(file, str | pathlib.Path):
        given = pathlib.Path(file).open("rb")  # noqa: SIM115 - the caller closes it
    if packed == "zstd":
        import pyarrow  # the import takes 0.1 s

        return io.BufferedReader(cast(Any, pyarrow.CompressedInputStream(given, "zstd")), _BUFFER)
    return cast(IO[bytes], given)


def compressing(file: IO[bytes], name: str) -> IO[bytes]:
    """Returns a file that compresses what is written to it, and writes the result to `file`, according to the suffix of `name`.
    Without such a suffix, returns `file`.

    The result must be closed before `file`, which stays open. The same content always gives the same bytes. With gzip and zstd,
    `flush` makes everything written so far readable; bzip2 and xz only write whole blocks.
    """
    packed = compression(name)
    given: Any = file
    if packed == "gzip":
        return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=given, mtime=0))
    if packed == "bzip2":
        return cast(IO[bytes], bz2.open(given, "wb"))
    if packed == "xz":
        return cast(IO[bytes], lzma.open(given, "wb"))
    if packed == "zstd":
        import pyarrow

        own = os.fdopen(os.dup(file.fileno()), "wb")  # pyarrow closes the file that it writes to
        return cast(IO[bytes], pyarrow.CompressedOutputStream(own, "zstd"))
    return file


def damage(name: str, error: BaseException, remedy: str) -> str | None:
    """If `error` is about the content of a compressed file, returns a description of the damage and the remedy, e.g. "not a whole
    gzip file (...); fetch it again". Otherwise, returns None. `remedy` is the remedy for a damaged file."""
    packed = compression(name)
    if packed is None or (isinstance(error, OSError) and error.errno is not None):
        return None
    if "too much memory" in str(error):
        return (
            "compressed by zstd with a window of more than 128 MiB (--long), which is not supported; unpack it with "
            "zstd -d --long=31"
        )
    return f"not a whole {packed} file ({error}); {remedy}"


@contextlib.contextmanager
def reading_explained(name: str) -> Iterator[None]:
    """Converts the exceptions `UNREADABLE` in the `with` block to a UserError about the file `name`."""
    try:
        yield
    except UNREADABLE as error:
        if fault := damage(name, error, "fetch it again, or unpack the part that is intact"):
            raise UserError(f"{name} is {fault}") from error
        raise UserError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
