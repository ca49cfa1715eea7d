"""The first bytes of files, and compressed files."""

from __future__ import annotations

import bz2
import io
import os
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.errors import UserError
from bert_jax.storage.formats import (
    HEAD_BYTES,
    UNREADABLE,
    bare_name,
    compression,
    conversion,
    damage,
    is_text,
    open_packed,
    reading_explained,
    recognise,
    refuse_pipe,
    unicode_encoding,
)
from tests.compressed import PACK

LINES = b"".join(b"line %d\n" % k for k in range(20_000))
TABLE = pa.table({"text": ["a"]})


def written(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
    elif kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.txt", "a")
    elif kind == "parquet":
        pq.write_table(TABLE, file)
    else:
        make = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with make(file, TABLE.schema) as writer:
            writer.write_table(TABLE)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        *((pack(LINES), {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[end]) for end, pack in PACK.items()),
        (bz2.compress(b""), "bzip2"),
        (bz2.compress(LINES, 1), "bzip2"),
        *((written(kind), kind.partition(" ")[0]) for kind in ("tar", "zip", "parquet", "arrow file", "arrow stream")),
        (b"%PDF-1.7\n", "pdf"),
        (b"<!DOCTYPE html>\n<html>", "html"),
        (b"\xef\xbb\xbf\n <HTML lang=en>", "html"),
        (b"<html> is how a page begins.\n", "html"),
        (b'<?xml version="1.0"?>\n<!-- saved -->\n<!DOCTYPE html>\n', "html"),
        (b"<htmlx> a line\n", None),
        (b"<!-- a -- b -->" * 5 + b"<html>", "html"),
        (b"<!---->" * 73, None),
        (b'<?xml version="1.0"?>\n<!-- saved -->\n<TEI>\n', "xml"),
        (b"<mediawiki xml:lang=\"en\">\n", "xml"),
        (b"1\r\n00:00:01,000 --> 00:00:02,500\r\nit was\r\n", "subtitles"),
        (b"\xef\xbb\xbfWEBVTT\n\n00:01.000 --> 00:02.000\nit was\n", "subtitles"),
        (b"WEBVTT is how subtitles begin.\n", None),
        (b"1\n2\n3 --> 4\n", None),
        (b"From a@b Mon Jan  1 00:00:00 2024\nSubject: it\n\n", "mbox"),
        (b"From a letter of 12:30 h\nit was fine\n", None),
        (b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/epub+zip", "epub"),
        (b"{\\rtf1\\ansi a line}\n", "rtf"),
        (b'{"rtf1": 1}\n', None),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "image"),
        (b"GIF89a\x80\2\xe0\1\xf7\0\0", "image"),
        (b"GIF89a is how an image begins.\n", None),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "lfs"),
        (b"A line of text.\n", None),
        (b"PAR1 is how a Parquet file begins.\n", None),
        (b"PARENT_ID,text,label\n", None),
        (b"PARE", "parquet"),
        (b"PARE,\0\0\0\x9a", "parquet"),
        (b"BZh is how bzip2 begins.\n", None),
        ("Ein Stück Text.\n".encode(), None),
        (b"", None),
    ],
)
def test_formats_are_recognised_by_their_first_bytes(data, kind):
    found = recognise(data[:HEAD_BYTES])
    assert (found and found.kind) == kind


def test_a_compression_without_magic_bytes_is_recognised_by_name():
    found = recognise(b"\x0b\x02\x80\xff\xfe", "a.txt.br")
    assert found is not None
    assert found.what == "is compressed with brotli"
    assert recognise(b"text", "a.txt.br") is None
    found = [recognise(PACK[".gz"](b"text"), name) for name in ("a.txt", "a.txt.gz")]
    remedies = ["give it a name that ends in .gz, or decompress it first", "decompress it first"]
    assert [each and each.remedy for each in found] == remedies
    found = [recognise(written("parquet")[:HEAD_BYTES], name) for name in ("a.txt", "a.parquet")]
    assert [each and each.remedy.partition(" ")[0] for each in found] == ["give", "write"]
    for before in ("", "a"):  # one of the two puts the end of the head inside a character
        assert recognise((before + "ä" * HEAD_BYTES).encode()[:HEAD_BYTES], "a.br") is None


@pytest.mark.parametrize("ending", PACK)
def test_all_members_of_compressed_files_are_read_line_by_line(tmp_path, ending):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACK[ending](LINES) + PACK[ending](b"last\n"))
    with open_packed(path) as file:
        assert list(file) == [*LINES.splitlines(keepends=True), b"last\n"]
    with path.open("rb") as raw, open_packed(raw, path.name) as file:
        assert file.readline() == b"line 0\n"
    assert (compression(path.name), bare_name(path.name)) == (compression(str(path)), "a.txt")
    assert (compression(path.name.upper()), bare_name(path.name.upper())) == (compression(path.name), "A.TXT")


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: b"text that is not packed"])
def test_a_damaged_file_is_explained(tmp_path, ending, spoil):
    path = tmp_path / f"a{ending}"
    path.write_bytes(spoil(PACK[ending](LINES)))
    with pytest.raises(UNREADABLE) as raised, open_packed(path) as file:
        file.read()
    fault = damage(path.name, raised.value, "fetch it again")
    assert fault is not None
    assert fault.startswith(f"not a whole {compression(path.name)} file (")
    assert fault.endswith("); fetch it again")


def test_a_zstd_file_with_a_window_above_the_limit_is_explained(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\x90\x19\x00\x00abc")  # a whole frame of "abc" with a window of 256 MiB
    with pytest.raises(UNREADABLE) as raised, open_packed(path) as file:
        file.read()
    with pytest.raises(UserError) as explained, reading_explained(str(path)):
        raise raised.value
    assert str(explained.value) == (
        f"{path} is compressed by zstd with a window of more than 128 MiB (--long), which is not supported; unpack it with "
        "zstd -d --long=31"
    )


def test_a_missing_file_is_not_reported_as_damaged(tmp_path):
    for ending in ("", *PACK):
        with pytest.raises(FileNotFoundError) as raised:
            open_packed(tmp_path / f"a{ending}")
        assert damage(f"a{ending}", raised.value, "") is None


@pytest.mark.parametrize("text", ["It was fine.\n", "a\tb\nc", "\u0418\u0442 was \u4e2d\u6587 " + "plain " * 20])
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "UTF-32LE", "UTF-32BE"])
def test_text_in_utf_16_or_utf_32_is_recognised_with_and_without_its_mark(encoding: str, text: str):
    head = text.encode(encoding)
    if len(head) >= 8:
        assert unicode_encoding(head[:HEAD_BYTES]) == encoding
        assert conversion(head) == f": it starts like {encoding[:6]}; convert it (iconv -f {encoding} -t UTF-8)"


def test_other_text_and_bytes_are_not_utf_16():
    others = [b"It was fine.\n", "\u0418\u0442".encode("cp1251"), b"", b"ab", bytes(100), b"\x7fELF" + bytes(60)]
    assert [unicode_encoding(head) for head in [*others, bytes(range(256)), b"ab\0\0\0\0" * 50]] == [""] * 8


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        # 40 units of 4 bytes; the letter U+0100 has a zero byte where other letters have none
        (("ab" * 37 + "\u0100" * 2 + "ab" * 2).encode("utf-16-le"), "UTF-16LE"),
        (("ab" * 37 + "\u0100" * 6).encode("utf-16-le"), ""),
        (("ab" * 37 + "\u0100" * 6).encode("utf-16-be"), ""),
        (("a\u0418" * 40).encode("utf-16-le"), ""),  # half of the high bytes are zero
        (("a" * 36 + "\u0100" * 4).encode("utf-32-le"), "UTF-32LE"),
        (("a" * 36 + "\u0100" * 4).encode("utf-32-be"), "UTF-32BE"),
        (b"".join((k % 7).to_bytes(4, "little") for k in range(40)), ""),  # small numbers
    ],
)
def test_a_tenth_of_the_letters_may_have_a_zero_byte_of_their_own(head: bytes, encoding: str):
    assert unicode_encoding(head) == encoding


def test_bytes_look_like_text_without_control_characters():
    assert [is_text(head) for head in (b"", b"a\tb\r\n", "ä".encode(), "ä".encode()[:1])] == [True] * 4
    assert [is_text(head) for head in (b"a\0", b"\x08", b"\x0e", b"\xe4 b", b"\xe4 \0")] == [False] * 5


def test_a_reader_that_does_not_unpack_is_given_no_name_as_remedy():
    found = [recognise(PACK[".gz"](b"text"), name, unpacks=False) for name in ("a", "a.gz")]
    assert [each and each.remedy for each in found] == ["decompress it first"] * 2


def test_a_pipe_is_refused_where_a_file_or_a_directory_is_read(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe or a device, but this file is read several times; save it"):
        refuse_pipe(tmp_path / "pipe")
    for name in ("file", ".", "missing"):
        refuse_pipe(tmp_path / name)
