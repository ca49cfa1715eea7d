"""Bad inputs of `corpus`."""

from __future__ import annotations

import gzip

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import cut

GZIP = gzip.compress(b"A sentence of some words.\n" * 2_000)
BAD = {"bad.txt": b"A sentence.\n\nA caf\xe9.\n"}
TRAIN = "--train-vocab=wordpiece --vocab-size=80"
NO_VOCAB = ("--vocab", "--lowercase")

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case("an unknown flag", "--sorce=embedded", "unknown argument --sorce=embedded: did you mean '--source'?"),
    Case(
        "a flag nearly right",
        "--held-out-fraction=0.1",
        "unknown argument --held-out-fraction=0.1: did you mean '--heldout-fraction'?",
    ),
    Case("a word too many", "embedded", "unexpected 'embedded': every argument is a flag, --name=value"),
    Case("no source", says="--source is missing, for example --source=text:books/*.txt", without=("--source",)),
    Case("no output", says="--output is missing, for example --output=corpora/books", without=("--output",)),
    Case(
        "a source that is none",
        "--source=txt:a",
        "--source=txt:a: no source 'txt'; did you mean 'text'? (embedded, text:GLOB, jsonl:GLOB, tfds:NAME)",
    ),
    Case("a source without its files", "--source=text:", "--source=text:: write text:GLOB"),
    Case(
        "a source without a kind",
        "--source=$text",
        "--source=$text: no source '$text'; known: embedded, jsonl, text, tfds (embedded, text:GLOB, jsonl:GLOB, tfds:NAME)",
    ),
    Case("an embedded source with a name", "--source=embedded:x", "--source=embedded:x: embedded takes no name"),
    Case(
        "a part of a corpus in a bucket",
        "--output=gs://bucket/corpus --shard=0/8",
        "--shard=0/8 with --output=gs://bucket/corpus: hosts build in a directory that all of them mount; name one, and upload",
    ),
    Case(
        "an output in a mistyped bucket",
        "--output=gs:/bucket/corpus",
        "--output=gs:/bucket/corpus: a path in a bucket begins with gs://; did you mean gs://bucket/corpus?",
    ),
    Case(
        "texts at the home of nobody", "--source=text:~no.body/*.txt", "--source=text:~no.body/*.txt: there is no user 'no.body'"
    ),
    Case(
        "a source in a mistyped bucket",
        "--source=text:gs:/bucket/*.txt",
        "--source=text:gs:/bucket/*.txt: a path in a bucket begins with gs://; did you mean gs://bucket/*.txt?",
    ),
    Case(
        "a layout that is none",
        "--layout=sentence",
        "argument --layout: invalid choice: 'sentence' (choose from 'auto', 'sentences', 'paragraphs', 'book', 'lines')",
    ),
    Case("a rule that is none", "--keep=markup-line", "--keep=markup-line: no such rule; did you mean 'markup-lines'?"),
    Case("everything held out", "--heldout-fraction=1", "--heldout-fraction=1 must be at least 0 and below 1"),
    Case(
        "a fraction that is not a number",
        "--heldout-fraction=nan",
        "--heldout-fraction=nan must be a finite number, at least 0 and below 1",
    ),
    Case(
        "a negative fraction",
        "--heldout-fraction=-0.1",
        "--heldout-fraction=-0.1 must be at least 0 and below 1",
    ),
    Case("no shards", "--shards=0", "--shards=0 must be at least 1 and at most 99,999"),
    Case("a shard that is not there", "--shard=2/2", "--shard=2/2 must be I/N with N at most 99,999 and I from 0 to N-1, as 0/8"),
    Case(
        "a shard that is no fraction", "--shard=one", "--shard=one must be I/N with N at most 99,999 and I from 0 to N-1, as 0/8"
    ),
    Case("no workers", "--workers=0", "--workers=0 must be at least 1 and at most 4,096"),
    Case("a word for a number of workers", "--workers=all", "--workers=all must be a whole number, at least 1 and at most 4,096"),
    Case("lower-cased and cased", "--lowercase --cased", "--lowercase and --cased contradict each other; give one of them"),
    Case(
        "a vocabulary alone that is there already",
        "--vocab-only",
        "--vocab-only trains a new vocabulary: give --train-vocab instead of --vocab",
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
        "--train-vocab=bpe",
        "argument --train-vocab: invalid choice: 'bpe' (choose from 'wordpiece', 'sentencepiece')",
        without=NO_VOCAB,
    ),
    Case(
        "a vocabulary that every host trains",
        f"{TRAIN} --shard=0/2",
        "--train-vocab with --shard: train once, with --vocab-only, then give all hosts --vocab=corpus/tokenizer",
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
        "--vocab-size=6 is less than the 51 pieces that the text's characters need",
        without=NO_VOCAB,
        leaves=("corpus*",),
    ),
    Case(
        "pieces smaller than their letters",
        "--train-vocab=sentencepiece --vocab-size=6",
        "SentencePiece cannot make 6 pieces from this text: INTERNAL: src/trainer_interface.cc(638)",
        without=NO_VOCAB,
        leaves=("corpus*",),
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
        "--source=text:nowhere/*.txt: no file matches nowhere/*.txt (in $here); quote the pattern; ** matches",
    ),
    Case(
        "a directory for a pattern",
        "--source=text:$tables",
        "--source=text:$tables: $tables is a directory ... write 'text:$tables/*' for the files in it, or",
    ),
    Case("an empty file", "--source=text:a.txt", "the corpus is empty: there is no text in text:a.txt", files={"a.txt": ""}),
    Case(
        "a file of blank lines",
        "--source=text:a.txt",
        "the corpus is empty: of 0 documents none was kept (the sources hold no text); see --keep",
        files={"a.txt": "\n\n \n"},
        leaves=("corpus*",),
    ),
    Case(
        "bytes that are no text",
        "--source=text:bad.txt",
        "bad.txt is not UTF-8 at byte 18 (0xe9) ... convert it (iconv -f LATIN1 -t UTF-8), or pass --on-bad-bytes=replace",
        files=BAD,
        leaves=("corpus*",),
    ),
    Case(
        "noise",
        "--source=text:$noise",
        "$noise is not UTF-8 at byte 0 (0xcd) ... convert it (iconv -f LATIN1 -t UTF-8), or pass --on-bad-bytes=replace",
        leaves=("corpus*",),
    ),
    Case(
        "text in UTF-16",
        "--source=text:a.txt",
        "a.txt is not UTF-8 at byte 0 (0xff): it begins like UTF-16 ... convert it (iconv -f UTF-16 -t UTF-8), or pass",
        files={"a.txt": "A sentence of words.\n".encode("utf-16")},
        leaves=("corpus*",),
    ),
    Case(
        "a gzip that is none",
        "--source=text:a.txt.gz",
        "a.txt.gz is not a whole gzip file (Not a gzipped file (b'A ')); fetch it again",
        files={"a.txt.gz": "A sentence.\n"},
        leaves=("corpus*",),
    ),
    Case(
        "a gzip that is cut short",
        "--source=text:a.txt.gz",
        "a.txt.gz is not a whole gzip file (Compressed file ended before the end-of-stream marker was reached); fetch it again",
        files={"a.txt.gz": GZIP[:-20]},
        leaves=("corpus*",),
    ),
    Case(
        "a line that is no JSON",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 24 is bad: not JSON (Expecting value: line 1 ... correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"text": "A sentence."}\nA sentence.\n'},
        leaves=("corpus*",),
    ),
    Case(
        "a line of JSON that is no object",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: a JSON list, not an object; correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": "[1, 2]\n"},
        leaves=("corpus*",),
    ),
    Case(
        "a record without a text",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: no field 'text' ... correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"body": "A sentence."}\n'},
        leaves=("corpus*",),
    ),
    Case(
        "a record with a number for a text",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: its field 'text' is 7, not text; correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": '{"text": 7}\n'},
        leaves=("corpus*",),
    ),
    Case(
        "a data set with a name that is none",
        "--source=tfds:a:b:c",
        "tfds:a is not prepared in ... tensorflow_datasets, and cannot be ... or use --source=embedded, text: or jsonl:",
    ),
    # ---------------------------------------------------------------------------------------------------------- the vocabulary
    Case(
        "a vocabulary that is not there",
        "--vocab=nowhere.txt",
        "vocabulary nowhere.txt (looked for in ... does not exist; give a vocab.txt, a spiece.model, or a directory with",
    ),
    Case(
        "a vocabulary of another directory",
        "--vocab=$tables",
        "$tables holds neither vocab.txt nor spiece.model nor tokenizer.json",
    ),
    Case(
        "an empty vocabulary",
        "--vocab=vocab.txt",
        "vocabulary vocab.txt is empty ... copy the one that the model was trained with, or make one:",
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
        "vocab.txt: 0 of its 3 pieces have capitals, which does not show its casing; give --lowercase or --cased",
        files={"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n.\n"},
        without=("--lowercase",),
    ),
    Case("a vocabulary of noise", "--vocab=$noise", "vocabulary $noise is not UTF-8 at byte 0; convert it with iconv"),
    Case(
        "a SentencePiece model of noise",
        "--vocab=spiece.model",
        "spiece.model is not a SentencePiece model (INTERNAL: src/sentencepiece_processor.cc(109)",
        copies={"spiece.model": "noise"},
    ),
    # ------------------------------------------------------------------------------------------------- what is there already
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
        "--output=corpus --heldout-fraction=0.5",
        "corpus was begun with other settings: shards was 2, is 1 ... heldout_fraction was 0.2, is 0.5. Choose another --output,",
        copies={"corpus": "corpus"},
    ),
    Case(
        "a corpus of another source",
        "--output=corpus --source=text:a.txt --heldout-fraction=0.2 --shards=2",
        "corpus was begun with other settings: sources was ... files was [['$text', 'bytes', 19573, 'sentences']], is [['a.txt',",
        copies={"corpus": "corpus"},
        files={"a.txt": "A sentence.\n"},
    ),
    Case(
        "a corpus of another vocabulary",
        "--output=corpus --vocab=$model --heldout-fraction=0.2 --shards=2",
        "corpus was begun with other settings: vocabulary size was 132, is ... vocabulary sha256 was ... Choose another",
        copies={"corpus": "corpus"},
    ),
    Case(
        "a corpus of a damaged tokenizer",
        "--output=corpus --heldout-fraction=0.2 --shards=2",
        "corpus/tokenizer/tokenizer_config.json cannot be read as JSON (Expecting property name ... copy the file again",
        copies={"corpus": "corpus"},
        files={"corpus/tokenizer/tokenizer_config.json": "{"},
    ),
    Case(
        "a corpus of damaged settings",
        "--output=corpus --heldout-fraction=0.2 --shards=2",
        "corpus/settings.json cannot be read as JSON (Unterminated string starting ... remove it and run the same command again",
        copies={"corpus": "corpus"},
        spoil=cut("corpus/settings.json", 20),
    ),
    Case("an empty output", "--output=", "--output= is empty; give a name"),
    Case(
        "JSON that nests without end",
        "--source=jsonl:a.jsonl",
        "a.jsonl: the record at byte 0 is bad: not JSON (brackets are nested too ... correct it, or pass --on-bad-records=skip",
        files={"a.jsonl": "[" * 100_000 + "\n"},
        leaves=("corpus*",),
    ),
    Case(
        "a full disk",
        says="corpus cannot be written: File too large; choose another --output",
        file_size=2_000,
        leaves=("corpus*",),
    ),
]
TABLE = Table("corpus", "--source=text:$text --vocab=$vocabulary --lowercase --output=corpus --workers=1", CASES)
