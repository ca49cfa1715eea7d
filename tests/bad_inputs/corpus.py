"""Bad inputs of `corpus`."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import cut, link
from tests.compressed import zstd


def parquet(columns: dict[str, Any]) -> bytes:
    """Writes a Parquet file with these columns."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def arrow(columns: dict[str, Any]) -> bytes:
    """Writes an Arrow stream in the format of `save_to_disk`."""
    table, file = pyarrow.table(columns), io.BytesIO()
    with pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def tar(name: str, data: bytes) -> bytes:
    """Writes a tar archive with one file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zipped(name: str, data: bytes) -> bytes:
    """Writes a zip archive with one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def bytes_vocabulary(specials: str = "[PAD] [UNK] [CLS] [SEP] [MASK]", **parts: Any) -> str:
    """Returns a tokenizer.json for byte-level BPE with these special tokens, the lower-case letters and no merges."""
    ids = {piece: i for i, piece in enumerate([*specials.split(), *"\u0120abcdefghijklmnopqrstuvwxyz"])}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": ids[token], "content": token, "special": True, **flags} for token in specials.split()]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": ids, "merges": []}
    content = {"added_tokens": added, "normalizer": None, "pre_tokenizer": split, "decoder": split, "model": model}
    return json.dumps({"version": "1.0", "post_processor": None} | content | parts)


LINES = b"A sentence of some words.\n" * 200
RECORDS = b'{"text": "A sentence of some words."}\n' * 200
PARQUET = parquet({"text": ["A sentence of some words."] * 20, "id": list(range(20))})
GZIP = gzip.compress(b"A sentence of some words.\n" * 2_000)
SIDES = {
    "a.en": "A cat sits.\nA dog runs.\nA bird flies.\n",
    "a.de": "Eine Katze sitzt.\nEin Hund rennt.\nEin Vogel fliegt.\n",
}
BAD = {"bad.txt": b"A sentence.\n\nA caf\xe9.\n"}
TRAIN = "--train-vocab=wordpiece --vocab-size=80"
WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n.\n"
"""A vocabulary that does not show its casing."""
NO_VOCAB = "--vocab --lowercase"

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case("an unknown flag", "--sorce=embedded", "unknown argument --sorce=embedded: did you mean '--source'?"),
    Case(
        "a flag nearly right",
        "--held-out-fraction=0.1",
        "unknown argument --held-out-fraction=0.1: did you mean '--eval-fraction'?",
    ),
    Case("a word too many", "embedded", "unexpected 'embedded': every argument is a flag, --name=value"),
    Case("no source", says="--source is missing, for example --source=text:books/*.txt", without="--source"),
    Case("no output", says="--output is missing, for example --output=corpora/books", without="--output"),
    Case(
        "a source that is none",
        "--source=txt:a",
        "--source=txt:a: there is no source 'txt'; did you mean 'text'? (embedded, text:GLOB, jsonl:GLOB, parquet:GLOB,",
    ),
    Case("a source without its files", "--source=text:", "--source=text: is incomplete; write text:GLOB"),
    Case(
        "a source without a kind",
        "--source=$text",
        "--source=$text: there is no source '$text'; known: arrow, embedded, jsonl, parallel, parquet, text, tfds (embedded,",
    ),
    Case("an embedded source with a name", "--source=embedded:x", "--source=embedded:x must not have a name; write embedded"),
    Case(
        "a part of a corpus in a bucket",
        "--output=gs://bucket/corpus --shard=0/8",
        "--shard=0/8 does not work with --output=gs://bucket/corpus, because several hosts can only build in a directory that "
        "all of them mount; give such a directory, and upload",
    ),
    Case(
        "an output in a mistyped bucket",
        "--output=gs:/bucket/corpus",
        "--output=gs:/bucket/corpus: a path in a bucket starts with gs://; did you mean gs://bucket/corpus?",
    ),
    Case(
        "texts at the home of nobody", "--source=text:~no.body/*.txt", "--source=text:~no.body/*.txt: there is no user 'no.body'"
    ),
    Case(
        "a source in a mistyped bucket",
        "--source=text:gs:/bucket/*.txt",
        "--source=text:gs:/bucket/*.txt: a path in a bucket starts with gs://; did you mean gs://bucket/*.txt?",
    ),
    Case(
        "a layout that is none",
        "--layout=sentence",
        "argument --layout: invalid choice: 'sentence' (choose from 'auto', 'sentences', 'paragraphs', 'book', 'lines')",
    ),
    Case("a rule that is none", "--keep=markup-line", "--keep=markup-line names no cleaning rule; did you mean 'markup-lines'?"),
    Case("everything held out", "--eval-fraction=1", "--eval-fraction=1 must be at least 0 and below 1"),
    Case(
        "a fraction that is not a number",
        "--eval-fraction=nan",
        "--eval-fraction=nan must be a finite number, at least 0 and below 1",
    ),
    Case("a negative fraction", "--eval-fraction=-0.1", "--eval-fraction=-0.1 must be at least 0 and below 1"),
    Case("no shards", "--shards=0", "--shards=0 must be at least 1 and at most 99,999"),
    Case(
        "a shard that is not there",
        "--shard=2/2",
        "--shard=2/2 must be I/N with N at most 99,999 and I from 0 to N-1, for example 0/8",
    ),
    Case(
        "a shard that is not a fraction",
        "--shard=one",
        "--shard=one must be I/N with N at most 99,999 and I from 0 to N-1, for example 0/8",
    ),
    Case("no workers", "--workers=0", "--workers=0 must be at least 1 and at most 4,096"),
    Case("a word for a number of workers", "--workers=all", "--workers=all must be a whole number, at least 1 and at most 4,096"),
    Case("lower-cased and cased", "--lowercase --cased", "--lowercase and --cased contradict each other; give one of them"),
    Case(
        "a vocabulary alone that is there already",
        "--vocab-only",
        "--vocab-only trains a new vocabulary; give --train-vocab instead of --vocab",
    ),
    Case(
        "a vocabulary and a new one",
        "--train-vocab=wordpiece",
        "give either --vocab=PATH for an existing vocabulary or --train-vocab=wordpiece for a new one",
    ),
    Case(
        "no vocabulary",
        says="give either --vocab=PATH for an existing vocabulary or --train-vocab=wordpiece for a new one",
        without=NO_VOCAB,
    ),
    Case(
        "a trainer that is none",
        "--train-vocab=bytes",
        "argument --train-vocab: invalid choice: 'bytes' (choose from 'wordpiece', 'sentencepiece', 'bpe', 'characters')",
        without=NO_VOCAB,
    ),
    *(
        Case(
            f"a setting of a new vocabulary for one that is there already, {flag}",
            flag,
            f"{flag.partition('=')[0]} is a setting of a new vocabulary, but --vocab=$vocabulary gives an existing one; leave",
        )
        for flag in ("--vocab-size=100", "--vocab-megabytes=9", "--alphabet=9", "--splitting=gpt2", "--nfc", "--unused-tokens=0")
    ),
    Case(
        "long words of a tokenizer.json",
        "--vocab=tokenizer.json --max-word-characters=9",
        "--max-word-characters=9 sets the limit of a WordPiece vocabulary, but tokenizer.json (bpe) has rules of its own; leave",
        files={"tokenizer.json": bytes_vocabulary()},
        without="--lowercase",
    ),
    Case(
        "a splitting that is none",
        "--train-vocab=bpe --splitting=gpt5",
        "argument --splitting: invalid choice: 'gpt5' (choose from 'gpt2', 'gpt4')",
        without=NO_VOCAB,
    ),
    Case(
        "a splitting of WordPiece",
        f"{TRAIN} --splitting=gpt4",
        "--splitting applies to --train-vocab=bpe, not to wordpiece; leave it out",
        without=NO_VOCAB,
    ),
    Case(
        "unused tokens of SentencePiece",
        "--train-vocab=sentencepiece --unused-tokens=9",
        "--unused-tokens applies to --train-vocab=bpe, not to sentencepiece; leave it out",
        without=NO_VOCAB,
    ),
    Case(
        "an alphabet of bytes",
        "--train-vocab=bpe --alphabet=10",
        "--alphabet applies to WordPiece, but byte-level BPE has all bytes; leave it out",
        without=NO_VOCAB,
    ),
    Case(
        "long words of bytes",
        "--train-vocab=bpe --max-word-characters=10",
        "--max-word-characters applies to WordPiece, but byte-level BPE has no such limit; leave it out",
        without=NO_VOCAB,
    ),
    Case(
        "a vocabulary smaller than the bytes",
        "--train-vocab=bpe --vocab-size=100",
        "--vocab-size=100 is less than the 261 pieces of the special tokens, the bytes and --unused-tokens=0",
        without=NO_VOCAB,
        leaves="corpus*",
    ),
    Case(
        "a vocabulary that every host trains",
        f"{TRAIN} --shard=0/2",
        "--train-vocab does not work with --shard; train the vocabulary once with --vocab-only, then give all hosts "
        "--vocab=corpus/tokenizer",
        without=NO_VOCAB,
    ),
    Case(
        "a vocabulary of nothing",
        "--train-vocab=wordpiece --vocab-size=0",
        "--vocab-size=0 must be at least 1 and at most 10,000,000",
        without=NO_VOCAB,
    ),
    Case(
        "a vocabulary smaller than its letters",
        "--train-vocab=wordpiece --vocab-size=6",
        "--vocab-size=6 is less than the 50 pieces that the text's characters need",
        without=NO_VOCAB,
        leaves="corpus*",
    ),
    Case(
        "a new vocabulary that would lose marks",
        f"{TRAIN} --source=text:a.txt",
        "by default, which changes 100.0% of the letters of this text ( ... ); give --cased to keep accents and marks, or",
        files={"a.txt": "나는 오늘 아침에 새로 나온 책을 읽었다.\n"},
        without=NO_VOCAB,
    ),
    Case(
        "a misspelt source of held-out text before a vocabulary is trained",
        f"{TRAIN} --eval-source=text:dev.txt",
        "--eval-source=text:dev.txt: no file matches dev.txt",
        without=NO_VOCAB,
    ),
    *(
        Case(
            f"a directory with {name} before a vocabulary is trained",
            TRAIN,
            f"corpus holds other files ({name}) and is not a corpus; choose an empty --output",
            files={f"corpus/{file}": WORDS},
            without=NO_VOCAB,
        )
        for name, file in (("thesis.txt", "thesis.txt"), ("tokenizer", "tokenizer/vocab.txt"))
    ),
    Case(
        "a directory with another tokenizer and no corpus",
        "--vocab=corpus/tokenizer/vocab.txt",
        "corpus/tokenizer holds files, but no tokenizer_config.json, so it is not the tokenizer of a corpus; choose another "
        "--output, or move this directory",
        files={"corpus/tokenizer/vocab.txt": WORDS},
        without="--vocab",
    ),
    Case(
        "an alphabet of nothing",
        f"{TRAIN} --alphabet=0",
        "--alphabet=0 must be at least 1 and at most 10,000,000",
        without=NO_VOCAB,
    ),
    Case(
        "an alphabet of SentencePiece",
        "--train-vocab=sentencepiece --alphabet=10",
        "--alphabet is a setting of WordPiece, but SentencePiece always keeps the characters that cover 99.95 % of the text;",
        without=NO_VOCAB,
    ),
    Case(
        "pieces smaller than their letters",
        "--train-vocab=sentencepiece --vocab-size=6",
        "SentencePiece cannot make 6 pieces from this text: INTERNAL: src/trainer_interface.cc(638)",
        without=NO_VOCAB,
        leaves="corpus*",
    ),
    Case(
        "a sentence of no characters",
        "--max-sentence-characters=0",
        "--max-sentence-characters=0 must be at least 1 and at most 2,147,483,647",
    ),
    Case(
        "bad bytes handled in no way",
        "--on-bad-bytes=skip",
        "argument --on-bad-bytes: invalid choice: 'skip' (choose from 'error', 'replace')",
    ),
    Case(
        "bad records handled in no way",
        "--on-bad-records=replace",
        "argument --on-bad-records: invalid choice: 'replace' (choose from 'error', 'skip')",
    ),
    # ------------------------------------------------------------------------------------------------------------- the sources
    Case(
        "no file of a pattern",
        "--source='text:nowhere/*.txt'",
        "--source=text:nowhere/*.txt: no file matches nowhere/*.txt (in $here); quote the pattern, and write ** to match",
    ),
    *(
        Case(
            f"a link to nothing, {name}",
            f"--source={source}",
            f"{path} (a link to gone, which does not exist) cannot be read; restore its target, or remove the link",
            files={f"d/a.{suffix}": "A sentence of words.\n"},
            spoil=link(path, "gone"),
        )
        for name, source, path, suffix in (
            ("by its name", "text:d/b.txt", "d/b.txt", "txt"),
            ("among the files of a pattern", "text:d/*.txt", "d/b.txt", "txt"),
            ("among the Parquet files of a directory", "parquet:d", "d/b.parquet", "parquet"),
        )
    ),
    Case(
        "a directory for a pattern",
        "--source=text:$tables",
        "--source=text:$tables: $tables is a directory ... write 'text:$tables/*' for the files in it, or",
    ),
    Case(
        "a pipe",
        "--source=text:a.txt",
        "--source=text:a.txt: a.txt is a pipe or a device, but text is read in several parts; write it to a file",
        spoil=lambda root: os.mkfifo(root / "a.txt"),
    ),
    Case("an empty file", "--source=text:a.txt", "the corpus is empty: there is no text in text:a.txt", files={"a.txt": ""}),
    Case(
        "a file of blank lines",
        "--source=text:a.txt",
        "the corpus is empty: 0 documents read, none kept (the sources hold no text); switch off",
        files={"a.txt": "\n\n \n"},
        leaves="corpus*",
    ),
    Case(
        "bytes that are not text",
        "--source=text:bad.txt",
        "bad.txt is not UTF-8 at byte 18 (0xe9) ... convert it (iconv -f WINDOWS-1252 ... or pass --on-bad-bytes=replace",
        files=BAD,
        leaves="corpus*",
    ),
    Case(
        "noise",
        "--source=text:$noise",
        "$noise is not UTF-8 at byte 0 (0xcd) ... convert it (iconv -f WINDOWS-1252 -t UTF-8 ... or pass --on-bad-bytes=replace",
        leaves="corpus*",
    ),
    Case(
        "a field of plain text",
        "--text-field=body",
        "--text-field=body would have no effect, because it only applies to jsonl:, parquet: and arrow: sources (the text of "
        "tfds:NAME is chosen by tfds:NAME@FEATURE); leave it out",
    ),
    Case(
        "a layout of JSON lines",
        "--source=jsonl:a.jsonl --layout=lines",
        "--layout=lines would have no effect, because it only applies to text: sources; leave it out",
        files={"a.jsonl": RECORDS},
    ),
    Case(
        "text in UTF-16",
        "--source=text:a.txt",
        "--source=text:a.txt: a.txt is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
        files={"a.txt": "A sentence of words.\n".encode("utf-16")},
    ),
    *(
        Case(
            f"text in {encoding}, {source.partition(':')[0]}",
            f"--source={source} --on-bad-bytes=replace",
            f"a.txt is not UTF-8: it starts like UTF-32; convert it (iconv -f {encoding} -t UTF-8)",
            files={"a.txt": "A sentence of words.\n".encode(encoding), "b.txt": "Ein Satz.\n"},
        )
        for encoding, source in (
            ("UTF-32", "text:a.txt"),
            ("UTF-32LE", "jsonl:a.txt"),
            ("UTF-32BE", "parallel:a.txt:b.txt"),
        )
    ),
    Case(
        "text of many zeros",
        "--source=text:a.txt",
        "--source=text:a.txt: a.txt is not text, because 67% of its bytes are zero; give a text file",
        files={"a.txt": b"ab\0\0\0\0" * 50},
    ),
    Case(
        "a gzip that is none",
        "--source=text:a.txt.gz",
        "a.txt.gz is not a whole gzip file (Not a gzipped file (b'A ')); fetch it again",
        files={"a.txt.gz": "A sentence.\n"},
        leaves="corpus*",
    ),
    Case(
        "a gzip that is cut short",
        "--source=text:a.txt.gz",
        "a.txt.gz is not a whole gzip file (Compressed file ended before the end-of-stream marker was reached); fetch it again",
        files={"a.txt.gz": GZIP[:-20]},
        leaves="corpus*",
    ),
    Case(
        "a Parquet file as text",
        "--source='text:*.parquet'",
        "--source=text:*.parquet: a.parquet is a Parquet file, not text; write --source=parquet:*.parquet",
        files={"a.parquet": PARQUET},
    ),
    Case(
        "a Parquet file as JSON lines",
        "--source=jsonl:a.parquet --on-bad-bytes=replace --on-bad-records=skip",
        "--source=jsonl:a.parquet: a.parquet is a Parquet file, not text; write --source=parquet:a.parquet",
        files={"a.parquet": PARQUET},
    ),
    Case(
        "an Arrow file as text",
        "--source='text:saved/*.arrow'",
        "saved/data-00000-of-00001.arrow is an Arrow file, not text; write --source=arrow:saved",
        files={"saved/data-00000-of-00001.arrow": arrow({"text": ["a"]}), "saved/state.json": "{}"},
    ),
    Case(
        "a Parquet file as Arrow",
        "--source=arrow:a.parquet",
        "a.parquet is a Parquet file, not an Arrow file; write --source=parquet:a.parquet",
        files={"a.parquet": PARQUET},
    ),
    Case(
        "JSON lines as Parquet",
        "--source='parquet:a.*'",
        """a.jsonl is not a Parquet file, because it starts with b'{"text": "A ... write --source=jsonl:a.*, or fetch""",
        files={"a.jsonl": RECORDS},
    ),
    Case(
        "two formats in one pattern",
        "--source='parquet:*'",
        "b.jsonl is not a Parquet file, because it starts with ... write --source=jsonl:*, or fetch the file again",
        files={"a.parquet": PARQUET, "b.jsonl": RECORDS},
    ),
    Case(
        "a Parquet file that is cut short",
        "--source=parquet:a.parquet",
        "a.parquet is not a whole Parquet file (Parquet magic bytes not found in footer); fetch it again",
        files={"a.parquet": PARQUET[:-20]},
    ),
    Case(
        "a Parquet file with damaged pages",
        "--source=parquet:a.parquet",
        "a.parquet is not a whole Parquet file ( ... ); fetch it again",
        files={"a.parquet": PARQUET[:4] + bytes(60) + PARQUET[64:]},
    ),
    Case(
        "a Parquet file with a codec that is not read",
        "--source=parquet:a.parquet",
        "a.parquet has an unsupported codec (While LZO compression is supported by ... ); rewrite it with zstd",
        files={"a.parquet": PARQUET.replace(b"\x04text\x15\x02", b"\x04text\x15\x06")},
    ),
    Case(
        "a Parquet file with a codec that nobody knows",
        "--source=parquet:a.parquet",
        "a.parquet has an unsupported codec (Unsupported compression codec value: 21); rewrite it with zstd",
        files={"a.parquet": PARQUET.replace(b"\x04text\x15\x02", b"\x04text\x15\x2a")},
    ),
    Case(
        "a data set of the hub that is not here",
        "--source=parquet:owner/name",
        "no file matches owner/name ... hf download owner/name --repo-type=dataset --local-dir=DIR",
    ),
    Case(
        "a directory of Parquet files as JSON lines",
        "--source=jsonl:set",
        "--source=jsonl:set: set is a directory with Parquet files; write parquet:set",
        files={"set/data/train-00000-of-00001.parquet": PARQUET},
    ),
    Case(
        "a table as text",
        "--source=text:a.csv.gz",
        "a.csv.gz has the name of a table; write its texts to Parquet or JSON lines, or rename it",
        files={"a.csv.gz": gzip.compress(b"id,text\n1,A sentence.\n")},
    ),
    Case(
        "a treebank as text",
        "--source=text:a.conllu",
        "a.conllu has the name of a file of annotated words; write the sentences to a text file, or rename it to end in .txt if",
        files={"a.conllu": "# text = A sentence.\n1\tA\ta\tDET\t_\t_\t0\troot\t_\t_\n"},
    ),
    Case(
        "an Arrow stream that is cut short",
        "--source=arrow:a.arrow",
        "a.arrow is not a whole Arrow file (the mark at the end is missing); fetch it again",
        files={"a.arrow": arrow({"text": ["A sentence of some words."] * 20})[:-8].rstrip(b"\0")},
    ),
    Case(
        "a pointer of Git LFS",
        "--source=parquet:a.parquet",
        "a.parquet is a pointer of Git LFS, not the file itself, not a Parquet file; fetch the file (git lfs pull)",
        files={"a.parquet": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"},
    ),
    Case(
        "a column that is not there",
        "--source=parquet:a.parquet --text-field=texts",
        "a.parquet has no column 'texts'; did you mean 'text'? (--text-field)",
        files={"a.parquet": PARQUET},
    ),
    Case(
        "a column of numbers",
        "--source=parquet:a.parquet --text-field=id",
        "a.parquet: the column 'id' holds int64, not text; name a column of text with --text-field (text)",
        files={"a.parquet": PARQUET},
    ),
    Case(
        "a column of lists",
        "--source=parquet:a.parquet",
        "a.parquet has no column of texts (text: lists of texts); write the texts to one column, one document per row",
        files={"a.parquet": parquet({"text": [["a", "b"], ["c"]]})},
    ),
    Case(
        "a column of objects",
        "--source=arrow:a.arrow --text-field=translation",
        "a.arrow: the column 'translation' holds objects with de, en, not text; write the texts to another column",
        files={"a.arrow": arrow({"translation": [{"de": "a", "en": "b"}]})},
    ),
    Case(
        "several columns of texts",
        "--source=parquet:a.parquet",
        "a.parquet has several columns of texts: premise, hypothesis; choose the column of the documents with --text-field=NAME",
        files={"a.parquet": parquet({"premise": ["a"], "hypothesis": ["b"]})},
    ),
    Case(
        "a row without text",
        "--source=parquet:a.parquet",
        "a.parquet: row 2 has no text (the column 'text' is null there); fill in a text, or pass --on-bad-records=skip",
        files={"a.parquet": parquet({"text": ["A sentence of some words.", None]})},
        leaves="corpus*",
    ),
    Case(
        "bytes in a table that are not text",
        "--source=parquet:a.parquet --text-field=b",
        "a.parquet: row 1 of the column 'b' is not UTF-8 (byte 4 is 0xe9); write the table again in UTF-8, or pass",
        files={"a.parquet": parquet({"b": [b"caf\xe9"]})},
        leaves="corpus*",
    ),
    Case(
        "a table without rows",
        "--source=parquet:a.parquet",
        "the corpus is empty: there is no text in parquet:a.parquet",
        files={"a.parquet": parquet({"text": pyarrow.array([], pyarrow.string())})},
    ),
    Case(
        "a directory without tables",
        "--source=parquet:set",
        "--source=parquet:set: the directory has no .parquet file; write --source=arrow:set",
        files={"set/data-00000-of-00001.arrow": arrow({"text": ["a"]})},
    ),
    Case(
        "a split that is not there",
        "--source=parquet:set:dev",
        "--source=parquet:set:dev: there is no split 'dev'; known: test, train",
        files={"set/data/train-00000-of-00001.parquet": PARQUET, "set/data/test-00000-of-00001.parquet": PARQUET},
    ),
    Case(
        "splits of which none is for training",
        "--source=parquet:set",
        "--source=parquet:set has the splits test, validation, but no 'train'; write --source=parquet:set:SPLIT, or",
        files={"set/data/validation-00000-of-00001.parquet": PARQUET, "set/data/test-00000-of-00001.parquet": PARQUET},
    ),
    Case(
        "several data sets in a directory",
        "--source=parquet:set",
        "--source=parquet:set holds 2 data sets (de, en); give the folder of one data set, or 'parquet:' with a pattern",
        files={f"set/{name}/train-00000-of-00001.parquet": PARQUET for name in ("de", "en")},
    ),
    Case(
        "xz without its name",
        "--source=jsonl:a.jsonl",
        "a.jsonl is compressed with xz, not text; give it a name that ends in .xz, or decompress it first",
        files={"a.jsonl": lzma.compress(RECORDS)},
    ),
    Case(
        "bzip2 without its name, with bad bytes replaced",
        "--source=text:a.txt --on-bad-bytes=replace",
        "a.txt is compressed with bzip2, not text; give it a name that ends in .bz2, or decompress it first",
        files={"a.txt": bz2.compress(LINES)},
    ),
    Case(
        "a compression that is not read",
        "--source=text:a.txt.br",
        "a.txt.br is compressed with brotli, not text; decompress it first",
        files={"a.txt.br": b"\x0b\x02\x80A sentence\xff\xfe of words\x03" * 40},
    ),
    Case(
        "zstd that is cut short",
        "--source=jsonl:a.jsonl.zst",
        "a.jsonl.zst is not a whole zstd file (Truncated compressed stream); fetch it again",
        files={"a.jsonl.zst": zstd(RECORDS)[:-9]},
    ),
    Case(
        "xz that is cut short",
        "--source=jsonl:a.jsonl.xz",
        "a.jsonl.xz is not a whole xz file (Compressed file ended before the end-of-stream marker was reached); fetch it again",
        files={"a.jsonl.xz": lzma.compress(RECORDS)[:-40]},
    ),
    Case(
        "bzip2 that is none",
        "--source=text:a.txt.bz2",
        "a.txt.bz2 is not a whole bzip2 file (Invalid data stream); fetch it again",
        files={"a.txt.bz2": LINES},
    ),
    Case(
        "gzip with something after it",
        "--source=text:a.txt.gz",
        "a.txt.gz is not a whole gzip file (Not a gzipped file (b'so')); fetch it again",
        files={"a.txt.gz": gzip.compress(LINES) + b"something else"},
    ),
    Case(
        "a tar archive",
        "--source=text:a.tar",
        "a.tar is a tar archive, not text; unpack it first (tar -xf)",
        files={"a.tar": tar("a.txt", LINES)},
    ),
    Case(
        "a compressed tar archive",
        "--source=text:a.tar.gz",
        "a.tar.gz is a tar archive, not text; unpack it first (tar -xf)",
        files={"a.tar.gz": gzip.compress(tar("a.txt", LINES))},
    ),
    *(
        Case(f"{what[3:]} as text", "--source=text:x.txt", f"x.txt {what}, not text; {remedy}", files={"x.txt": text})
        for what, remedy, text in (
            ("is a mailbox (mbox)", "write the texts", "From a@b Mon Jan  1 00:00:00 2024\nSubject: it\n\nit was\n"),
            ("is an XML file", "write its text to", '<?xml version="1.0"?>\n<TEI><p>it was fine by the river</p></TEI>\n'),
            ("is a dump of a wiki", "write its texts to a file of JSON", '<mediawiki xml:lang="en">\n<page>it was</page>\n'),
            ("is a file of subtitles", "write the sentences", "1\n00:00:01,000 --> 00:00:02,500\nit was fine\n"),
        )
    ),
    Case(
        "a table with pipes as text",
        "--source=text:x.psv",
        "x.psv has the name of a table; write its texts to Parquet or JSON lines, or rename it to end in .txt if it contains",
        files={"x.psv": "id|text\n1|it was fine by the river\n"},
    ),
    Case(
        "annotations of brat as text",
        "--source=text:x.ann",
        "x.ann has the name of a file of annotated words; write the sentences to a text file, or rename it",
        files={"x.ann": "T1\tPerson 7 10\tada\n"},
    ),
    Case(
        "a zip archive",
        "--source=jsonl:a.zip",
        "a.zip is a zip archive or an Excel workbook, not text; unpack it first (unzip)",
        files={"a.zip": zipped("a.jsonl", RECORDS)},
    ),
    Case(
        "JSON lines as text",
        "--source=text:a.jsonl",
        "--source=text:a.jsonl: a.jsonl holds JSON, one object per line, not text; write jsonl: instead of text:",
        files={"a.jsonl": '{"id": 1, "body": "A sentence."}\n{"id": 2, "body": "Another one."}\n'},
    ),
    Case(
        "a long line of JSON as text",
        "--source=text:a.txt",
        "a.txt holds JSON, one object per line, not text; write jsonl: instead of text:",
        files={"a.txt": '{"text": "' + "A sentence of some words. " * 20_000 + '"}\n'},
    ),
    Case("a name that is too long", f"--source=text:{'a' * 5_000}", "a: no file matches aaa"),
    Case(
        "the home of a user who is not there",
        "--source='text:~nobody-here/*.txt'",
        "--source=text:~nobody-here/*.txt: there is no user 'nobody-here' ... write the full path",
    ),
    Case(
        "compressed JSON lines as text",
        "--source=text:a.jsonl.zst",
        "a.jsonl.zst holds JSON, one object per line, not text; write jsonl:",
        files={"a.jsonl.zst": zstd(RECORDS)},
    ),
    Case(
        "a JSON list as JSON lines",
        "--source=jsonl:a.json",
        "a.json is a JSON list, not one object per line; write each record on its own line (jq -c '.[]' a.json",
        files={"a.json": '[{"text": "A sentence."},\n {"text": "Another one."}]\n'},
    ),
    Case(
        "a JSON list as text",
        "--source=text:a.json",
        "a.json is a list of JSON objects, not text; write each object on its own line, then use jsonl: instead of text:",
        files={"a.json": '[\n  {"text": "A sentence."}\n]\n'},
    ),
    Case(
        "text in UTF-16 without its mark",
        "--source=text:a.txt",
        "a.txt is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16LE -t UTF-8)",
        files={"a.txt": "A sentence of words.\n".encode("utf-16-le")},
    ),
    Case(
        "lines that end in CR alone",
        "--source=text:a.txt",
        r"the lines of a.txt end in CR, which is not recognised as a line end here; convert the file (tr '\r' '\n')",
        files={"a.txt": b"A sentence of words.\r\rAnother one.\r"},
    ),
    Case(
        "a line that is not JSON",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 24 is bad: it is not JSON (Expecting value: line 1 ... correct it, or "
        "pass --on-bad-records=skip",
        files={"a.jsonl": '{"text": "A sentence."}\nA sentence.\n'},
        leaves="corpus*",
    ),
    Case(
        "a line of JSON that is not an object",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: it is a JSON list, not an object; correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": "[1, 2]\n"},
        leaves="corpus*",
    ),
    Case(
        "a record without a text",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: it has no field 'text' ... correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"body": "A sentence."}\n'},
        leaves="corpus*",
    ),
    Case(
        "a record with a number for a text",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: the field 'text' is 7, not a text; correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"text": 7}\n'},
        leaves="corpus*",
    ),
    Case(
        "a data set with a name that is none",
        "--source=tfds:a:b:c",
        "tfds:a is not prepared in ... tensorflow_datasets, and it cannot be ... or use another source, such as "
        "embedded, text: or jsonl:",
    ),
    # ------------------------------------------------------------------------------------------------------------ parallel text
    Case(
        "pairs of three sides",
        "--source=parallel:a.en:a.de:a.fr",
        "--source=parallel:a.en:a.de:a.fr needs one or two patterns; write parallel:GLOB.en:GLOB.de for files of lines, or "
        "parallel:GLOB.tsv or",
    ),
    Case(
        "pairs without a file",
        "--source=parallel:",
        "--source=parallel: is incomplete; write parallel:GLOB.en:GLOB.de",
    ),
    Case(
        "pairs in a file of one language",
        "--source=parallel:a.en",
        "--source=parallel:a.en: a.en is not a file of pairs: its name must end in .tsv (columns ... or give the files of both "
        "languages: parallel:GLOB.en:",
        files=SIDES,
    ),
    Case(
        "a side whose file is not there",
        "--source=parallel:a.en:b.de",
        "--source=parallel:b.de: no file matches b.de",
        files=SIDES,
    ),
    Case(
        "both sides the same file",
        "--source=parallel:a.en:a.en",
        "--source=parallel:a.en:a.en: both sides are the same file a.en; name the file with the translations second",
        files=SIDES,
    ),
    Case(
        "sides of unlike numbers of files",
        "--source='parallel:*.en:a.de'",
        "--source=parallel:*.en:a.de: the first pattern matches 2 files, the second 1; give exactly one file of "
        "translations for each file of texts (the first two files are a.en and",
        files=SIDES | {"b.en": "One.\n"},
    ),
    Case(
        "sides of unlike numbers of lines",
        "--source=parallel:a.en:b.de",
        '--source=parallel:a.en:b.de: a.en has 3 lines, but b.de has 2; line 3 of a.en ("A bird flies.") is the first line '
        "without a partner in b.de. Line N of one file must translate line N of the other file",
        files=SIDES | {"b.de": "Eine Katze.\nEin Hund.\n"},
    ),
    Case(
        "a side that is empty",
        "--source=parallel:a.en.gz:b.de",
        'a.en.gz has 3 lines, but b.de has 0; line 1 of a.en.gz ("A cat sits.") is the first line without a partner in b.de',
        files={"a.en.gz": gzip.compress(SIDES["a.en"].encode()), "b.de": ""},
    ),
    Case(
        "a side of blank lines",
        "--source=parallel:a.en:b.de",
        "--source=parallel:a.en:b.de: b.de has 3 lines without any text, so this language is empty; give a file with text",
        files=SIDES | {"b.de": "\n \n\n"},
    ),
    Case(
        "a side of a table that is empty",
        "--source=parallel:a.tsv",
        "the corpus is empty: 2 documents read, none kept (2 empty-sides)",
        files={"a.tsv": "A cat.\t\nA dog.\t \n"},
        leaves="corpus*",
    ),
    Case(
        "a table without a second column",
        "--source=parallel:a.tsv",
        "a.tsv: line 1 has 1 column, but --pair-fields=1,2 needs 2 columns; correct it, or pass --on-bad-records=skip",
        files={"a.tsv": "A cat.\n"},
        leaves="corpus*",
    ),
    Case(
        "columns by name",
        "--source=parallel:a.tsv --pair-fields=en,de",
        "--pair-fields=en,de: columns are numbered from 1, as in --pair-fields=1,2",
        files={"a.tsv": "A cat.\tEine Katze.\n"},
    ),
    Case(
        "one field for both",
        "--source=parallel:a.tsv --pair-fields=1",
        "--pair-fields=1 must name two fields, the text and its translation: en,de, or 1,2 for columns",
        files={"a.tsv": "A cat.\tEine Katze.\n"},
    ),
    Case(
        "fields of files of lines",
        "--source=parallel:a.en:a.de --pair-fields=en,de",
        "--pair-fields=en,de would have no effect, because it only applies to files that hold both languages (parallel:GLOB.tsv "
        "or parallel:GLOB.jsonl) and to translations in tfds:; leave it out",
        files=SIDES,
    ),
    Case(
        "pairs of which the first is not JSON",
        "--source=parallel:a.jsonl",
        "--source=parallel:a.jsonl: the first record of a.jsonl is not JSON (Expecting value: line 1 ... correct it, or name the",
        files={"a.jsonl": 'A dog runs.\n{"en": "a", "de": "b"}\n'},
    ),
    Case(
        "records of three texts",
        "--source=parallel:a.jsonl",
        "the first record of a.jsonl has 3 fields with text (en, de, fr); choose two fields with --pair-fields=SOURCE,TARGET",
        files={"a.jsonl": '{"en": "A cat.", "de": "Eine Katze.", "fr": "Un chat."}\n'},
    ),
    Case(
        "a field that is not there",
        "--source=parallel:a.jsonl --pair-fields=en,dee",
        "a.jsonl: line 1 has no field 'dee'; did you mean 'de'? (--pair-fields); correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"en": "A cat.", "de": "Eine Katze."}\n'},
        leaves="corpus*",
    ),
    Case(
        "two directions",
        "--source=parallel:a.en:a.de --source=parallel:a.de:a.en",
        "a.de is de to en, but a.en is en to de; build one corpus for each direction",
        files=SIDES,
    ),
    Case(
        "pairs and documents",
        "--source=parallel:a.en:a.de --source=text:$text",
        "a.en holds pairs of a text and its translation, but $text holds documents; build one corpus for each",
        files=SIDES,
    ),
    Case(
        "documents held out of pairs",
        "--source=parallel:a.en:a.de --eval-source=text:$text",
        "--eval-source has documents, but --source has pairs, en to de; give an --eval-source of the same kind",
        files=SIDES,
    ),
    Case(
        "held-out texts chosen twice",
        "--eval-source=text:$text --eval-fraction=0.1",
        "--eval-source=text:$text and --eval-fraction=0.1 both select the held-out documents; give only one of them",
    ),
    Case(
        "held-out texts that are not there",
        "--eval-source=text:a.txt",
        "there is no text in text:a.txt (--eval-source)",
        files={"a.txt": ""},
    ),
    Case("held-out texts without a name", "--eval-source=", "--eval-source=: there is no source ''; known: "),
    Case(
        "held-out texts of an unknown kind", "--eval-source=txt:a",
        "--eval-source=txt:a: there is no source 'txt'; did you mean "
        "'text'?"
    ),
    Case("held-out texts without files", "--eval-source=text:", "--eval-source=text: is incomplete; write text:GLOB"),
    Case("held-out texts that no file has", "--eval-source=text:b.txt", "--eval-source=text:b.txt: no file matches b.txt"),
    Case(
        "held-out pairs of unlike numbers of lines",
        "--source=parallel:a.en:a.de --eval-source=parallel:a.en:b.de",
        '--eval-source=parallel:a.en:b.de: a.en has 3 lines, but b.de has 1; line 2 of a.en ("A dog runs.") is the first '
        "line without a",
        files=SIDES | {"b.de": "Eine Katze.\n"},
    ),
    Case(
        "a ratio for documents",
        "--max-length-ratio=2",
        "--max-length-ratio=2 would have no effect, because it only applies to texts and their translations; leave it out",
    ),
    Case("a ratio below one", "--max-length-ratio=0.5", "--max-length-ratio=0.5 must be at least 1 and at most 1,000"),
    Case("pairs of no tokens", "--max-pair-tokens=0", "--max-pair-tokens=0 must be at least 1 and at most 2,147,483,647"),
    Case(
        "a vocabulary of one language",
        "--source=parallel:a.en:a.el",
        "the vocabulary fits only one of the two languages: 67% of the tokens are unknown in el (more than 10%), 0.0% in en; "
        "train a vocabulary on",
        files=SIDES | {"a.el": "Μια γάτα.\nΈνα σκυλί.\nΈνα πουλί.\n"},
        leaves="corpus*",
    ),
    # ---------------------------------------------------------------------------------------------------------- the vocabulary
    Case(
        "a vocabulary that is not there",
        "--vocab=nowhere.txt",
        "vocabulary nowhere.txt (looked for in ... does not exist; give a vocab.txt, a spiece.model, a directory with one of "
        "them, or a model of the hub as OWNER/NAME",
    ),
    Case(
        "a vocabulary of the hub by its old name",
        "--vocab=bert-base-uncased",
        "vocabulary bert-base-uncased (looked ... or a model of the hub as google-bert/bert-base-uncased",
    ),
    Case(
        "a vocabulary of Japanese rules",
        "--vocab=words",
        'words/config.json: tokenizer_class="BertJapaneseTokenizer" is not supported, because its rules differ from BERT',
        files={"words/vocab.txt": WORDS, "words/config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'},
    ),
    Case(
        "a vocabulary of XLM-R",
        "--vocab=words",
        'words/tokenizer_config.json: tokenizer_class="XLMRobertaTokenizer" is not supported, because its '
        'ids are ... shifted by one',
        files={"words/sentencepiece.bpe.model": "", "words/tokenizer_config.json": '{"tokenizer_class": "XLMRobertaTokenizer"}'},
    ),
    Case(
        "a casing in quotation marks",
        "--vocab=words",
        'words/tokenizer_config.json: do_lower_case="true" must be true, false or null, without quotation marks',
        files={"words/vocab.txt": WORDS, "words/tokenizer_config.json": '{"do_lower_case": "true"}'},
    ),
    Case(
        "a vocabulary of another directory",
        "--vocab=$tables",
        "$tables holds neither vocab.txt nor spiece.model nor tokenizer.json",
    ),
    Case(
        "an empty vocabulary",
        "--vocab=vocab.txt",
        "vocabulary vocab.txt is empty ... copy the model's vocabulary again, or train a new one:",
        files={"vocab.txt": ""},
    ),
    Case(
        "a vocabulary without special tokens",
        "--vocab=vocab.txt",
        "the vocabulary of 2 pieces has no [PAD]; BERT needs [PAD], [UNK], [CLS], [SEP], [MASK]",
        files={"vocab.txt": "a\nb\n"},
    ),
    Case(
        "a vocabulary that does not show its casing",
        "--vocab=vocab.txt",
        "vocab.txt is unclear, because 0 of its 3 pieces have capitals; give --lowercase or --cased",
        files={"vocab.txt": WORDS},
        without="--lowercase",
    ),
    Case(
        "a tokenizer without a mask",
        "--vocab=words",
        "words/tokenizer.json: no piece is known as [MASK] ... name one of the 31 pieces in the tokenizer_config.json next to",
        files={"words/tokenizer.json": bytes_vocabulary("[PAD] [UNK] [CLS] [SEP]")},
        without="--lowercase",
    ),
    Case(
        "a mask that is not a piece",
        "--vocab=words",
        "the files next to words/tokenizer.json have mask_token='<mask>', but this piece is not in the vocabulary; correct one",
        files={"words/tokenizer.json": bytes_vocabulary(), "words/special_tokens_map.json": '{"mask_token": "<mask>"}'},
        without="--lowercase",
    ),
    Case(
        "a broken tokenizer",
        "--vocab=words/tokenizer.json",
        "words/tokenizer.json cannot be read as JSON (Unterminated string ... copy the file again",
        files={"words/tokenizer.json": bytes_vocabulary()[:-40]},
        without="--lowercase",
    ),
    Case(
        "merges of what is not a piece",
        "--vocab=words/tokenizer.json",
        "words/tokenizer.json: the library tokenizers ... cannot read it ( ... copy the file again, or choose another model",
        files={"words/tokenizer.json": bytes_vocabulary(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]})},
        without="--lowercase",
    ),
    Case(
        "a normaliser that is none",
        "--vocab=words",
        "words/tokenizer.json: its normalizer (Fold) is unknown to the library tokenizers ... or choose another model",
        files={"words/tokenizer.json": bytes_vocabulary(normalizer={"type": "Fold"})},
        without="--lowercase",
    ),
    Case(
        "a casing that is not the tokenizer's",
        "--vocab=words",
        "--lowercase does not fit the vocabulary words/tokenizer.json, because the normalizer of "
        "tokenizer.json keeps capitals; use",
        files={"words/tokenizer.json": bytes_vocabulary()},
    ),
    Case(
        "a tokenizer.json that its class does not heed",
        "--vocab=words",
        "words/tokenizer.json: it holds a BPE model, but the class BertTokenizer ignores this; take all files from one model",
        files={"words/tokenizer.json": bytes_vocabulary(), "words/tokenizer_config.json": '{"tokenizer_class": "BertTokenizer"}'},
        without="--lowercase",
    ),
    Case("a vocabulary of noise", "--vocab=$noise", "vocabulary $noise is not UTF-8 at byte 0; convert it with iconv"),
    Case(
        "a SentencePiece model of noise",
        "--vocab=spiece.model",
        "spiece.model is not a SentencePiece model (INTERNAL: src/sentencepiece_processor.cc(109)",
        copies="spiece.model=noise",
    ),
    # ---------------------------------------------------------------------------------------------------- an existing corpus
    Case(
        "a directory of other things",
        "--output=.",
        ". holds other files (thesis.txt) and is not a corpus; choose an empty --output",
        files={"thesis.txt": "years of work"},
    ),
    Case(
        "a place under a file",
        "--output=file/corpus",
        "file/corpus cannot be written: Not a directory; choose another --output",
        files={"file": ""},
    ),
    Case(
        "a place that is a file",
        "--output=file",
        "file cannot be written: File exists; choose another --output",
        files={"file": ""},
    ),
    Case(
        "a corpus of other settings",
        "--output=corpus --shards=1 --eval-fraction=0.5",
        "corpus was started with other settings: shards was 2, is 1 ... eval_fraction was 0.2, is 0.5. Choose another --output,",
        copies="corpus",
    ),
    Case(
        "a corpus of another source",
        "--output=corpus --source=text:a.txt --eval-fraction=0.2 --shards=2",
        "corpus was started with other settings: sources was ... files was [['$text', 'bytes', 19573, 'sentences']], is [['a.txt",
        copies="corpus",
        files={"a.txt": "A sentence.\n"},
    ),
    Case(
        "a corpus of another vocabulary",
        "--output=corpus --vocab=$model --eval-fraction=0.2 --shards=2",
        "corpus was started with other settings: vocabulary size was 132, is ... vocabulary sha256 was ... Choose another",
        copies="corpus",
    ),
    Case(
        "a corpus of a damaged tokenizer",
        "--output=corpus --eval-fraction=0.2 --shards=2",
        "corpus/tokenizer/tokenizer_config.json cannot be read as JSON (Expecting property name ... copy the file again",
        copies="corpus",
        files={"corpus/tokenizer/tokenizer_config.json": "{"},
    ),
    Case(
        "a corpus of damaged settings",
        "--output=corpus --eval-fraction=0.2 --shards=2",
        "corpus/settings.json cannot be read as JSON (Unterminated string starting ... remove it and run the same command again",
        copies="corpus",
        spoil=cut("corpus/settings.json", 20),
    ),
    Case("an empty output", "--output=", "--output= is empty; give a name"),
    Case(
        "JSON that nests without end",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: it is not JSON (brackets are nested too ... correct it, or "
        "pass --on-bad-records=skip",
        files={"a.jsonl": "[" * 100_000 + "\n"},
        leaves="corpus*",
    ),
    Case(
        "a full disk", says="corpus cannot be written: File too large; choose another --output", file_size=2_000, leaves="corpus*"
    ),
    Case(
        "a function that ends the program",
        "--source=m.py:f",
        "--source=$here/m.py ended the program (sys.exit(0)); correct the file",
        files={"m.py": "def f():\n    raise SystemExit(0)\n    yield ''\n"},
    ),
    Case(
        "a function that stops too early",
        "--source=m.py:f",
        "--source=$here/m.py raises StopIteration; correct the file here:",
        files={"m.py": "def f():\n    raise StopIteration\n    yield ''\n"},
    ),
    Case(
        "pairs below the names of their columns",
        "--source=parallel:a.tsv",
        "the first row of a.tsv has column names (en, de), which would be read as a pair; remove this row (tail -n +2)",
        files={"a.tsv": "en\tde\nthe river\tder Fluss\n"},
    ),
    Case(
        "pairs in double quotes",
        "--source=parallel:a.tsv",
        "the texts of a.tsv are in double quotes, and the quotes would become part of the texts; write the table without",
        files={"a.tsv": '"the river"\t"der Fluss"\n' * 10},
    ),
    Case(
        "a vocabulary from a pipe",
        "--vocab=pipe",
        "pipe is a pipe or a device, but this file is read several times; save it to a file first",
        spoil=lambda directory: os.mkfifo(directory / "pipe"),
    ),
    Case(
        "a vocabulary of JSON",
        "--vocab=v.txt",
        "vocabulary v.txt is JSON instead of one piece per line; if it is a tokenizer.json, give it a name that ends",
        files={"v.txt": '{"[PAD]": 0, "the": 1}'},
    ),
    Case(
        "a vocabulary with counts",
        "--vocab=v.txt",
        "vocabulary v.txt, line 6: 'the\\t5' has a TAB; give one piece per line, without its count or score (cut -f1)",
        files={"v.txt": WORDS.replace("the", "the\t5")},
    ),
    Case(
        "a vocabulary in UTF-16",
        "--vocab=v.txt",
        "vocabulary v.txt is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
        files={"v.txt": WORDS.encode("utf-16")},
    ),
    Case(
        "a new vocabulary of text that is dropped",
        f"{TRAIN} --source=text:a.txt",
        "there is no text to train a vocabulary on: of 1 document, 0 are held out for evaluation and 1 have no sentence after",
        files={"a.txt": "1 2 3\n"},
        without=NO_VOCAB,
    ),
    Case(
        "a vocabulary of pieces and ids alone",
        "--vocab=vocab.json",
        "vocabulary vocab.json has no 'model', so it is not a tokenizer.json; give a tokenizer.json or its directory",
        files={"vocab.json": '{"[PAD]": 0, "the": 1}'},
    ),
]
TABLE = Table("corpus", "--source=text:$text --vocab=$vocabulary --lowercase --output=corpus --workers=1", CASES)
