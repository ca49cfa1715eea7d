"""Bad inputs of `predict`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence

from tests.bad_inputs.case import Case, Spoil, Table
from tests.bad_inputs.corpus import bytes_vocabulary
from tests.bad_inputs.damage import cut, extra_tensors, flip, keys, remove, turned_round
from tests.compressed import zstd

CLASSIFY = "classify --model=$classifier"
RESOLVE = "resolve --model=$resolver"
OUTPUT = "embed --output"
MODULES = (
    '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, '
    '{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
)
SENTENCES = {"model/modules.json": MODULES, "model/1_Pooling/config.json": '{"pooling_mode": "cls"}'}
"""Files that make a model one of sentence-transformers."""


def scored(name: str, says: str, spoil: Spoil | Sequence[Spoil] = (), files: Mapping[str, str] | None = None) -> Case:
    """Returns a case in which a damaged copy of the model scores a text."""
    return Case(name, "score --model=model x", says, copies="model", spoil=spoil, files=files or {})


CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "a command that is none",
        "fil-mask",
        "unknown command 'fil-mask': did you mean 'fill-mask'?; python -m bert_jax.predict --help",
        without="--model",
    ),
    Case(
        "a flag before the command",
        "--json embed x",
        "--json must come after the command: python -m bert_jax.predict ... commands are fill-mask, next-sentence, score, "
        "generate,",
    ),
    Case("an input in a mistyped bucket", "embed --input=gs:/bucket/x", "--input=gs:/bucket/x: ... did you mean gs://bucket/x?"),
    Case("an output in a mistyped bucket", "embed --output=gs:/b/x x", "--output=gs:/b/x: ... did you mean gs://b/x?"),
    Case("an output at nobody's home", "embed --output=~no.body/x x", "--output=~no.body/x: there is no user 'no.body', so ~"),
    Case("a model in a mistyped bucket", "embed --model=gs:/bucket/m x", "MODEL=gs:/bucket/m: ... did you mean gs://bucket/m?"),
    Case("a profile that is not a range", "embed --profile=all x", "--profile=all must be FIRST:LAST, two whole numbers"),
    Case(
        "a profile of batches after the last",
        "embed --profile=5:9 --json x",
        "--profile=5:9 starts after the last of 1 batch; give earlier batches",
    ),
    Case(
        "fewer references than texts",
        "translate --model=$translator --input=in.txt --references=ref.txt --output=out.jsonl",
        "--references=ref.txt has 1 line, but the input has 2 texts; give one reference for each text",
        files={"in.txt": b"the house\n\xff, which is reported too\n\n", "ref.txt": "das Haus\n"},
    ),
    Case(
        "the end of a search without a search",
        "translate --model=$translator --beams=1 --early-stopping the",
        "--early-stopping ends a beam search, but --beams=1 does not search; leave one of the two out",
    ),
    Case("no model", "fill-mask 'x [MASK]'", "the following arguments are required: --model", without="--model"),
    Case("an unknown flag", "fill-mask --topk=3 [MASK]", "unknown argument --topk=3: did you mean '--top-k'?"),
    Case(
        "an unknown flag of another command", "embed --poling=cls x", "unknown argument --poling=cls: did you mean '--pooling'?"
    ),
    Case("a word for a number", "fill-mask --top-k=three [MASK]", "--top-k=three must be a whole number, at least 1"),
    Case("no candidates", "fill-mask --top-k=0 [MASK]", "--top-k=0 must be at least 1 and at most 2,147,483,647"),
    Case("a margin of no number", "answer --model=$reader --no-answer-threshold=nan who x", "=nan must be a finite number"),
    Case("candidates beyond any machine", "fill-mask --top-k=10000000000000 [MASK]", "=10000000000000 must be at least 1"),
    Case(
        "an array of another form",
        "embed --output=$here/x.npz x",
        "answers cannot be written as .npz; give a name that ends in .jsonl",
    ),
    Case(
        "vectors as text",
        "embed --output=$here/x.txt x",
        "--output=$here/x.txt: answers cannot be written as .txt; give a name that ends in .jsonl (JSON lines) or a .npy",
    ),
    Case("one name twice", f"{RESOLVE} 'she saw ada and eve' she ada ada", "a and b are both 'ada' at character 8; give", exit=1),
    Case(
        "more candidates than words",
        "fill-mask --top-k=100000 [MASK]",
        "--top-k=100000 must be between 1 and the vocabulary's size 91",
    ),
    Case("no pieces", "fill-mask --pieces=0 [MASK]", "--pieces=0 must be at least 1 and at most 8"),
    Case("too many pieces", "fill-mask --pieces=9 [MASK]", "--pieces=9 must be at least 1 and at most 8"),
    Case(
        "a layer that is not there",
        "embed --layers=99 x",
        "--layers=99 is outside [-2, 1]: the model has 1 layer (0: embeddings)",
    ),
    Case("layers that are not numbers", "embed --layers=last x", "argument --layers: 'last' is not a comma-separated list"),
    Case("no layers", "embed --layers= x", "argument --layers: '' is not a comma-separated list of numbers"),
    Case(
        "layers without the sign of equality",
        "embed --layers -1,-2 x",
        "argument --layers: expected one argument; write --flag=VALUE, with the equals sign",
    ),
    Case(
        "a pooling that is none",
        "embed --pooling=sum x",
        "argument --pooling: invalid choice: 'sum' (choose from 'mean', 'cls', 'pooler')",
    ),
    Case(
        "a combination that is none",
        "embed --combine=median x",
        "argument --combine: invalid choice: 'median' (choose from 'mean', 'sum', 'concat')",
    ),
    Case(
        "other layers for the pooler",
        "embed --pooling=pooler --layers=0 x",
        "--pooling=pooler reads the last layer only, so --layers has no effect; leave one of the two out",
    ),
    Case(
        "a pooling of words",
        "embed --pooling=cls --words x",
        "--words gives every word a vector, so --pooling has no effect; leave one of the two out",
    ),
    Case("a window of nothing", "answer --model=$reader --length=0 who 'it was ada'", "--length=0 must be at least 8"),
    Case("a stride of nothing", "answer --model=$reader --doc-stride=0 who 'it was ada'", "--doc-stride=0 must be at least 1"),
    Case("no answers", "answer --model=$reader --n-best=0 who 'it was ada'", "--n-best=0 must be at least 1"),
    Case("answers of no tokens", "answer --model=$reader --max-answer=0 who 'it was ada'", "--max-answer=0 must be at least 1"),
    Case(
        "a window shorter than its question",
        "answer --model=$reader --length=8 'who was it that was by the river' 'it was ada'",
        "rows of 8 tokens leave no room for the context next to a question of 11 ... make the rows longer, or cut questions",
        exit=1,
    ),
    *(
        Case(
            f"subtitles as {name}",
            f"{CLASSIFY} --input={name}",
            f"{name} is a file of subtitles, not text; write the sentences to a text file first, without the times",
            files={name: text},
        )
        for name, text in {
            "x.srt": "1\n00:00:01,000 --> 00:00:02,500\nit was fine\n",
            "x.txt": "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\nit was fine\r\n",
            "x.vtt": "WEBVTT\n\n00:01.000 --> 00:02.500 align:start\nit was fine\n",
        }.items()
    ),
    Case(
        "annotations of brat",
        "tag --model=$tagger --input=x.ann",
        "x.ann holds annotations by their characters, as written by brat; give the file of the text",
        files={"x.ann": "T1\tPerson 7 10\tada\n"},
    ),
    Case(
        "the output of WikiExtractor",
        f"{CLASSIFY} --input=x.txt",
        "x.txt is written by WikiExtractor, with its tags; give the texts as JSON lines (wikiextractor --json)",
        files={"x.txt": '<doc id="12" url="u" title="Ada">\nAda\n\nit was fine\n</doc>\n'},
    ),
    Case(
        "objects on several lines each",
        f"{CLASSIFY} --input=x.jsonl",
        "x.jsonl has objects on several lines; write each on a line of its own (jq -c . x.jsonl > lines.jsonl",
        files={"x.jsonl": '{\n "text": "it was"\n}\n{\n "text": "we"\n}\n'},
    ),
    Case(
        "a comma after each line of JSON",
        f"{CLASSIFY} --input=x.jsonl",
        "x.jsonl, line 1: not JSON ... remove the comma at its end",
        exit=1,
        files={"x.jsonl": '{"text": "it was"},\n{"text": "we"},\n'},
    ),
    Case(
        "columns of one object",
        f"{CLASSIFY} --input=x.json",
        'x.json, item 1: its text is ["it was", "we"]; the object holds whole columns; write one object per row',
        exit=1,
        files={"x.json": '{"text": ["it was", "we"], "label": ["good", "poor"]}'},
    ),
    Case(
        "a table in Markdown",
        f"{CLASSIFY} --input=x.psv",
        "x.psv, line 2: the line belongs to a table in Markdown; remove it",
        exit=1,
        files={"x.psv": "| text | label |\n|---|---|\n| it was fine | good |\n"},
    ),
    # -------------------------------------------------------------------------------------------------------------- the output
    Case(
        "an array for words",
        f"{OUTPUT}=x.npy --words x",
        "--output=x.npy: only `embed` of whole texts returns one array of vectors; give a name that ends in .jsonl",
    ),
    Case(
        "an array for what is not a vector",
        "fill-mask --output=x.npy [MASK]",
        "--output=x.npy: only `embed` of whole texts returns one array of vectors; give a name that ends in .jsonl",
    ),
    Case(
        "a packed array",
        f"{OUTPUT}=x.npy.zst x",
        "--output=x.npy.zst: a .npy file cannot be compressed here; give a name that ends in .jsonl",
    ),
    Case(
        "an output in a directory that is not there",
        f"{OUTPUT}=nowhere/x.npy x",
        "--output=nowhere/x.npy: there is no directory nowhere (looked for in $here); create it first",
    ),
    Case(
        "an output that is a directory", f"{OUTPUT}=. x", "--output=. cannot be written: Is a directory; choose another --output"
    ),
    Case(
        "a full disk",
        f"{OUTPUT}=x.jsonl " + "'the old house' " * 40,
        "--output=x.jsonl cannot be written: File too large; choose another --output",
        file_size=500,
    ),
    Case(
        "a full disk for an array",
        f"{OUTPUT}=x.npy " + "'the old house' " * 40,
        "--output=x.npy cannot be written: File too large; choose another --output",
        file_size=500,
    ),
    # ---------------------------------------------------------------------------------------------------------------- the input
    Case("an input that is not there", "fill-mask --input=nofile", "--input=nofile (looked for in ... cannot be read: No such"),
    Case("an input that is a directory", "fill-mask --input=.", "--input=. cannot be read: Is a directory"),
    Case("a device for a file", "embed --input=/dev/zero", "--input=/dev/zero is a device, not a file of texts; name a file"),
    Case(
        "texts and an input",
        "fill-mask --input=nofile [MASK]",
        "both texts and --input are given; give the texts as arguments, or --input=FILE, not both",
    ),
    Case(
        "the name of a file for a text",
        f"{CLASSIFY} in.txt",
        "in.txt is the name of a file; read it with --input=in.txt",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "the name of a file for a context",
        "answer --model=$reader who context.txt",
        "context.txt is the name of a file; read it with --input=context.txt",
        files={"context.txt": "the house\n"},
    ),
    Case(
        "a label between TABs for a text",
        f"{CLASSIFY} --input=in.tsv",
        "in.tsv, line 1: 'good' seems to be a label, not a text_b, but the model must not read labels; leave the label out, or "
        "give",
        exit=1,
        files={"in.tsv": "it was fine\tgood\n"},
    ),
    Case(
        "the number of a label for a text",
        f"{CLASSIFY}",
        "standard input, line 1: '1' seems to be a label, not a text_b",
        exit=1,
        stdin="it was fine\t1\n",
    ),
    Case(
        "two texts for a model of single ones",
        "classify --model=$run --input=in.tsv",
        "in.tsv, line 1: two texts, 'it was fine' and 'it was fun', but ... was trained on single texts; give one text",
        exit=1,
        files={"in.tsv": "it was fine\tit was fun\n"},
    ),
    Case(
        "a label between TABs for a part of a text",
        "embed --input=in.tsv",
        "in.tsv, line 1: 2 texts between TABs, but only 1 field: text; name the columns in the first line",
        exit=1,
        files={"in.tsv": "it was fine\tgood\n"},
    ),
    Case(
        "the number of the right choice for a choice",
        "choose --model=$chooser --input=in.tsv",
        "in.tsv, line 1: '0' seems to be a label, not a choices",
        exit=1,
        files={"in.tsv": "it was\tfine\tbad\t0\n"},
    ),
    *(
        Case(
            f"words in columns for sentences: {flags}",
            f"tag --model=$tagger {flags}",
            "in.txt, line 1: 'B-PER' seems to be the tag of a word, not part of the text; give a sentence per line, or",
            exit=1,
            files={"in.txt": "ada\tB-PER\n"},
        )
        for flags in ("--input=in.txt", "--words --input=in.txt")
    ),
    *(
        Case(
            f"words on lines for sentences{flags}",
            f"tag --model=$tagger --input=in.txt{flags}",
            "in.txt has a word on each line and empty lines between sentences, but a sentence is expected on each line; write "
            "each sentence on a line (awk -v RS= '{$1=$1}1'), and give --words; if each line is a sentence, remove the "
            "empty lines",
            files={"in.txt": "ada\r\nwas\r\n\r\nthe\r\nhouse\r\n"},
        )
        for flags in ("", " --words")
    ),
    Case(
        "words in columns of a text file for sentences",
        "tag --model=$tagger --input=in.tsv --words",
        "in.tsv has a word on each line in 2 columns and empty lines between sentences, but ... take the column of the words",
        files={"in.tsv": "ada\tNNP\nwas\tVBD\n\nthe\tDT\n"},
    ),
    Case(
        "a file of words in columns",
        "tag --model=$tagger --input=in.conll",
        "--input=in.conll holds annotated words, one per line, but a text is expected on each line; write the texts to another",
        files={"in.conll": "ada B-PER\n"},
    ),
    Case(
        "a table without the column of texts",
        f"{CLASSIFY} --input=in.csv",
        "in.csv is read as a table, but its first line has no column 'text' (it is 'review,label'); name the column text, or",
        files={"in.csv": "review,label\nit was fine,good\n"},
    ),
    Case(
        "a table without quotes that match",
        f"{CLASSIFY} --input=in.csv",
        "in.csv, line 2: the quotes in this row are not balanced (unexpected end of data); double every quote inside quotes",
        files={"in.csv": 'text,label\n"it was fine,good\n'},
    ),
    Case(
        "a text after the quotes of a cell",
        f"{CLASSIFY} --input=in.csv",
        "in.csv, line 3: the quotes in this row are not balanced ... double every quote inside quotes",
        exit=1,
        files={"in.csv": 'text,label\nit was fine,good\n"it" was bad,poor\nit was fun,good\n'},
    ),
    Case(
        "JSON that holds no records",
        f"{CLASSIFY} --input=in.json",
        "in.json holds one object, with texts; give a list of objects with 'text', or such an object per line",
        files={"in.json": '{"texts": ["it was fine"]}\n'},
    ),
    Case(
        "a damaged Parquet file",
        f"{CLASSIFY} --input=in.parquet",
        "in.parquet cannot be read as Parquet ... copy or make it again",
        files={"in.parquet": b"PAR1 it was fine"},
    ),
    Case(
        "nothing to read",
        "fill-mask",
        "there is no text: standard input is closed; give texts as arguments, or --input=FILE",
        closed=(0,),
    ),
    Case(
        "a Parquet file for texts",
        "embed --input=in.txt",
        "in.txt cannot be read as Parquet (Parquet magic bytes not found in footer. ... copy or make it again",
        files={"in.txt": b"PAR1\x15\x04\x15\x10\n"},
    ),
    Case(
        "zstd that is cut short",
        "embed --input=in.jsonl.zst",
        "--input=in.jsonl.zst cannot be read: it is not a whole zstd file (Truncated compressed stream); copy or make it again",
        files={"in.jsonl.zst": zstd(b'{"text": "the house"}\n' * 1_000)[:-20]},
    ),
    Case(
        "a tar archive on standard input",
        "embed",
        "standard input is a tar archive, not text; unpack it first (tar -xf)",
        stdin=b"in.txt".ljust(257, b"\0") + b"ustar\x0000",
    ),
    Case(
        "a gzip that is none",
        "embed --input=in.txt.gz",
        "--input=in.txt.gz cannot be read: it is not a whole gzip file (Not a gzipped file (b'th'))",
        files={"in.txt.gz": "the house\n"},
    ),
    Case(
        "a gzip that is cut short",
        "embed --input=in.txt.gz",
        "--input=in.txt.gz cannot be read: it is not a whole gzip file (Compressed file ended before the end-of-stream",
        files={"in.txt.gz": gzip.compress(b"the house\n" * 1_000)[:-20]},
    ),
    Case("a text without a mask", "fill-mask 'the house'", "no [MASK] in 'the house'; write [MASK] in place of a word", exit=1),
    Case("a text without a token", "score ''", "its text is empty", exit=1),
    Case(
        "a text that is too long",
        f"score '{'the house ' * 40}'",
        "'the house the house the house the house the house the hou...' is 82 tokens with its ... shorten it, or pass --truncate",
        exit=1,
    ),
    Case("a question without a context", "answer --model=$reader who", "no context: the arguments are question context", exit=1),
    Case("a single choice", "choose --model=$chooser 'it was' fine", "1 choice for 'it was'; give two or more", exit=1),
    Case(
        "a mention that is not there",
        f"{RESOLVE} 'she saw ada and eve' she ada bob",
        "'bob' does not occur in 'she saw ada and eve'; give a mention as it appears in the text",
        exit=1,
    ),
    Case(
        "a mention that is empty",
        f"{RESOLVE} --jsonl",
        "standard input, line 1: its a is empty",
        exit=1,
        stdin=json.dumps({"text": "she saw ada and eve", "pronoun": "she", "a": "", "b": "eve"}),
    ),
    Case(
        "a mention that occurs twice",
        f"{RESOLVE} 'she saw ada and ada and eve' she ada eve",
        "'ada' occurs 2 times in 'she saw ada and ada and eve'; choose one, for example 'ada#1'",
        exit=1,
    ),
    Case(
        "a mention that is counted from 0",
        f"{RESOLVE} 'she saw ada and ada and eve' she 'ada#0' eve",
        "'ada#0': 'ada' occurs 2 times in 'she saw ada and ada and eve'; give a number from 1 to 2",
        exit=1,
    ),
    Case(
        "a mention of more digits than Python reads",
        f"{RESOLVE} 'she saw ada and ada and eve' she 'ada#{'9' * 5000}' eve",
        "'ada' occurs 2 times in 'she saw ada and ada and eve'; give a number from 1 to 2",
        exit=1,
    ),
    Case(
        "a name that is the pronoun",
        f"{RESOLVE} 'she saw ada and eve' she she eve",
        "a='she' is the pronoun itself; give the two names that it may refer to",
        exit=1,
    ),
    Case(
        "a line that is not JSON",
        "embed --jsonl",
        "standard input, line 1: not JSON (Expecting value: line 1 column 1 (char 0)): 'the house'",
        exit=1,
        stdin="the house\n",
    ),
    Case(
        "JSON that is not an object",
        "embed --jsonl",
        "standard input, line 1: a JSON list, not an object with 'text'",
        exit=1,
        stdin="[1]\n",
    ),
    Case(
        "words for a text",
        "tag --model=$tagger --input=in.jsonl",
        "in.jsonl, line 1: no field 'text'; known: words; --words reads the field words",
        exit=1,
        files={"in.jsonl": '{"words": ["the", "house"]}\n'},
    ),
    Case(
        "texts with labels in fastText's format",
        "classify --model=$classifier --input=in.txt",
        "in.txt is in fastText's format; leave out its labels, which the model must not read (sed -E",
        files={"in.txt": "__label__good it was fine\n"},
    ),
    Case(
        "lists of words for texts",
        "tag --model=$tagger --input=in.txt",
        "in.txt, line 1: a JSON list, not an object with 'text'; --words reads the field words",
        exit=1,
        files={"in.txt": '["the", "house"]\n["a", "house"]\n'},
    ),
    Case(
        "words of another name",
        "tag --model=$tagger --words --input=in.jsonl",
        "in.jsonl, line 1: no field 'words'; known: tokens; put the words of each sentence in the field words",
        exit=1,
        files={"in.jsonl": '{"tokens": ["the", "house"]}\n'},
    ),
    Case(
        "questions in the format of MRQA",
        "answer --model=$reader --input=in.jsonl",
        "in.jsonl, line 1: there is no field 'question', but a list of questions about one context, as in MRQA; give one "
        "question per line (jq -c 'select(.qas) | {context} + .qas[]' in.jsonl)",
        files={"in.jsonl": '{"header": {}}\n{"context": "it was", "qas": [{"question": "how", "answers": ["fine"]}]}\n'},
    ),
    Case(
        "a table of words for texts",
        "tag --model=$tagger --input=in.csv",
        "in.csv is read as a table, but its first line has no column 'text' (it is 'words,labels'); name the column text, or "
        "give the texts as JSON lines, or one per line in a .txt file; --words reads the field words",
        files={"in.csv": "words,labels\nthe house,O O\n"},
    ),
    Case(
        "a field of another name",
        "embed --jsonl",
        "standard input, line 1: no field 'text'; did you mean 'txt'?",
        exit=1,
        stdin='{"txt": "the house"}\n',
    ),
    Case(
        "a number for a text", "embed --jsonl", "standard input, line 1: its text is 3, not text", exit=1, stdin='{"text": 3}\n'
    ),
    Case(
        "half a surrogate pair",
        "embed --jsonl",
        "standard input, line 1: its text holds half a surrogate pair, or a byte that is not UTF-8; convert it with iconv",
        exit=1,
        stdin='{"text": "\\ud800"}\n',
    ),
    Case(
        "JSON that nests without end",
        "embed --jsonl",
        "standard input, line 1: not JSON (brackets are nested too deep):",
        exit=1,
        stdin="[" * 100_000 + "\n",
    ),
    Case(
        "bytes that are not text",
        "embed",
        "standard input, line 1: byte 4 is not UTF-8; convert the text with iconv",
        exit=1,
        stdin=b"caf\xe9\n",
    ),
    *(
        Case(
            f"{command} of a text in UTF-16",
            f"{command} --input=a.txt",
            "a.txt is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
            files={"a.txt": "was it fine\n".encode("utf-16")},
        )
        for command in ("embed", CLASSIFY, "fill-mask")
    ),
    Case(
        "a text in UTF-32",
        "classify --model=$classifier --input=a.txt",
        "a.txt is not UTF-8: it starts like UTF-32; convert it (iconv -f UTF-32 -t UTF-8)",
        files={"a.txt": "was it fine\n".encode("utf-32")},
    ),
    Case(
        "a NUL in a text",
        "embed",
        "standard input, line 1: byte 2 is NUL, which no text holds; give text in UTF-8, one per line",
        exit=1,
        stdin=b"a\0b\n",
    ),
    Case(
        "a text of control characters",
        "embed",
        "standard input, line 1: '\\x01\\x02' has no tokens; give text",
        exit=1,
        stdin=b"\1\2\n",
    ),
    Case(
        "a threshold that is not a number",
        "answer --model=$reader --no-answer-threshold=nan who 'it was ada'",
        "--no-answer-threshold=nan must be a finite number",
    ),
    Case(
        "another kind of array",
        f"{OUTPUT}=x.npz x",
        "--output=x.npz: answers cannot be written as .npz; give a name that ends in .jsonl (JSON lines) or a .npy",
    ),
    Case(
        "an output that is its input",
        "embed --input=in.txt --output=in.txt",
        "--output=in.txt: answers cannot be written as .txt; give a name that ends in .jsonl (JSON lines) or a .npy",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "an output that is its input by another name",
        "embed --input=in.txt --output=./in.txt",
        "--output=./in.txt: answers cannot be written as .txt; give a name that ends in .jsonl (JSON lines) or a .npy",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "the same name twice",
        f"{RESOLVE} 'she saw ada and eve' she ada ada",
        "a and b are both 'ada' at character 8; give the two names that the pronoun may refer to",
        exit=1,
    ),
    # --------------------------------------------------------------------------------------------------------------- the model
    Case(
        "a model that does not exist",
        "fill-mask --model=nowhere [MASK]",
        "there is no nowhere ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a directory that is not a model",
        "fill-mask --model=. [MASK]",
        ". is not a model directory, because it has no config.json and no model.safetensors",
    ),
    Case(
        "a model that is a file",
        "fill-mask --model=$train [MASK]",
        "$train is a file; name the directory that holds config.json and model.safetensors",
    ),
    Case(
        "word vectors",
        "embed --model=vectors x",
        "vectors holds vectors.bin.gz; convert it first: python -m bert_jax.convert --from=vectors --to=DIR",
        files={"vectors/vectors.bin.gz": b""},
    ),
    Case("an empty model", "fill-mask --model= [MASK]", "--model= is empty; give a name, or leave the flag out"),
    Case(
        "a model of the hub that is not available",
        "fill-mask --model=no/such-model [MASK]",
        "there is no directory no/such-model (looked for in ... and no model of that name ... check the network, or name",
        environment={"HF_HUB_OFFLINE": "1"},
    ),
    Case(
        "a checkpoint of the original",
        "fill-mask --model=$tf1 [MASK]",
        "$tf1 is a TensorFlow checkpoint; convert it first: python -m bert_jax.convert --from=$tf1 --to=DIR",
    ),
    Case(
        "a model without the head",
        "classify x",
        "$model has no sequence_head, so it cannot classify (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model that reads both sides, to go on with a text",
        "generate x",
        "$model reads both sides of a token, so it cannot generate text; name a model trained with config.model.direction",
    ),
    Case(
        "a model without a decoder, to translate",
        "translate x",
        "$model is not an encoder-decoder, so it cannot translate; name a model trained with",
    ),
    Case(
        "a source over the limit of a translator",
        f"translate --model=$translator '{'the ' * 24}'",
        "is 25 tokens with its end token, more than the 24 positions of $translator; split it into sentences",
        exit=1,
    ),
    Case("a gap for a translator", "fill-mask --model=$translator [MASK]", "$translator is an encoder-decoder, and its encoder"),
    Case("vectors of a translator", "embed --model=$translator x", "$translator is an encoder-decoder, and its encoder reads no"),
    Case("a beam of nothing", "translate x --beams=0", "--beams=0 must be at least 1 and at most 64"),
    Case("a negative length penalty", "translate x --length-penalty=-1", "--length-penalty=-1 must be at least 0 and at most 10"),
    Case(
        "a penalty that is none",
        "translate x --penalty=google",
        "argument --penalty: invalid choice: 'google' (choose from 'transformers', 'gnmt')",
    ),
    Case(
        "a model that reads from left to right, for a gap",
        "fill-mask --model=model [MASK]",
        "model reads from left to right, so it cannot fill a [MASK]; name a model trained with config.model.direction=both",
        copies="model",
        spoil=keys("model/config.json", is_decoder=True),
    ),
    Case(
        "a model without the head of masks",
        "fill-mask --model=$classifier [MASK]",
        "$classifier has no mlm_head, so it cannot fill a [MASK] (it has pooler, sequence_head); name a model that can",
    ),
    Case(
        "a model without the head of pairs",
        "next-sentence --model=$classifier one two",
        "$classifier has no nsp_head, so it cannot predict whether one sentence follows another (it ... name a model that can",
    ),
    Case(
        "a model without the head of spans",
        "answer who 'it was ada'",
        "$model has no span_head, so it cannot answer questions (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of tags",
        "tag x",
        "$model has no token_head, so it cannot tag words (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of choices",
        "choose x a b",
        "$model has no choice_head, so it cannot choose (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of mentions",
        "resolve 'she saw ada and eve' she ada eve",
        "$model has no mention_head, so it cannot resolve pronouns (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    scored(
        "a model without its configuration",
        "model is not a model directory, because it has no config.json",
        spoil=remove("model/config.json"),
    ),
    scored(
        "a model without its weights",
        "model is not a model directory, because it has no model.safetensors",
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "a model without its vocabulary",
        "model holds neither vocab.txt nor spiece.model nor tokenizer.json",
        spoil=[remove("model/vocab.txt"), remove("model/tokenizer.json")],
    ),
    scored(
        "weights that are cut short",
        "model/model.safetensors (24,864 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        spoil=cut("model/model.safetensors", 100),
    ),
    scored(
        "weights without a beginning",
        "model/model.safetensors (24,964 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        spoil=flip("model/model.safetensors", 0),
    ),
    Case(
        "weights that are none",
        "score --model=model x",
        "model/model.safetensors (3,000 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        copies="model model/model.safetensors=noise",
    ),
    scored(
        "a configuration that is not JSON",
        "model/config.json cannot be read as JSON (Unterminated string starting at: line 24 column ... copy the model again",
        spoil=cut("model/config.json", 9),
    ),
    scored(
        "a configuration that is a list",
        "model/config.json must hold a JSON object, but holds []; copy the model again",
        files={"model/config.json": "[]"},
    ),
    scored(
        "a configuration of another model",
        "model/model.safetensors does not contain the BERT that its config.json describes: other shapes than in config.json",
        spoil=keys("model/config.json", hidden_size=32),
    ),
    scored(
        "a configuration without a shape",
        "model/config.json: hidden_size is missing, so the shape of the model is unknown; copy the whole file",
        spoil=keys("model/config.json", hidden_size=None),
    ),
    scored(
        "a configuration with another activation",
        "model/config.json: hidden_act='mish' cannot be represented ... known: gelu, gelu_fast, gelu_new, gelu_python,",
        spoil=keys("model/config.json", hidden_act="mish"),
    ),
    scored(
        "a configuration with words for a number",
        "model/config.json: num_hidden_layers='one' must be a whole number",
        spoil=keys("model/config.json", num_hidden_layers="one"),
    ),
    scored(
        "a configuration of something else",
        "model/config.json: model_type='gpt2' cannot be represented; known: bert, modernbert, eurobert, nomic_bert",
        spoil=keys("model/config.json", architectures=["GPT2LMHeadModel"], model_type="gpt2"),
    ),
    scored(
        "relative positions",
        "model/config.json: position_embedding_type='relative_key' ... only position_embedding_type='absolute' is supported",
        spoil=keys("model/config.json", position_embedding_type="relative_key"),
    ),
    scored(
        "a decoder that does not say whether it is one",
        "model/config.json: is_decoder='maybe' cannot be represented; known: False, True",
        spoil=keys("model/config.json", is_decoder="maybe"),
    ),
    scored(
        "one token type in place of two",
        "model/model.safetensors does not contain the BERT that its config.json describes: other shapes than in config.json",
        spoil=keys("model/config.json", type_vocab_size=1),
    ),
    *(
        Case(
            f"a model with tensors of another class for {command}",
            f"{command} --model=model x",
            "not part of this model: mine.bias, mine.weight; to leave them out, use `convert --drop='mine.*'`",
            copies="model",
            spoil=(extra_tensors("model", "mine.bias", "mine.weight"), keys("model/config.json", architectures=["MyBert"])),
        )
        for command in ("embed", "score")
    ),
    Case(
        "ids of labels that do not count",
        "classify --model=model x",
        "model/config.json: the ids of id2label are [0, 2]; they must count 0, 1, 2, ...",
        copies="model=classifier",
        spoil=keys("model/config.json", id2label={"0": "no", "2": "yes"}),
    ),
    Case(
        "labels that are a list",
        "classify --model=model x",
        'model/config.json: id2label=[\'no\', \'yes\'] must be an object such as {"0": "no", "1": "yes"}',
        copies="model=classifier",
        spoil=keys("model/config.json", id2label=["no", "yes"]),
    ),
    Case(
        "a problem that is none",
        "classify --model=model x",
        "model/config.json: problem_type='guessing' is unknown ... known: single_label_classification,",
        copies="model=classifier",
        spoil=keys("model/config.json", problem_type="guessing"),
    ),
    Case(
        "a vocabulary of another model",
        "score --model=model x",
        "model: the vocabulary has 132 entries, but the vocab_size of the model is 91; use the vocabulary that the model",
        copies="model model/vocab.txt=vocabulary",
        spoil=remove("model/tokenizer.json"),
    ),
    scored(
        "bytes for a model of words",
        "model: the model was trained with another vocabulary ... than the vocabulary in this directory ... restore the",
        spoil=[remove("model/vocab.txt"), keys("model/tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")],
        files={"model/tokenizer.json": bytes_vocabulary()},
    ),
    scored(
        "a vocabulary in another order",
        "model: id 5 is '.' in vocab.txt, but is missing in tokenizer.json (transformers would use ... "
        "remove the file that the model was not",
        spoil=turned_round("model/vocab.txt", 5),
    ),
    scored(
        "a tokenizer that is not JSON",
        "model/tokenizer.json cannot be read as JSON (Expecting property name enclosed in double ... copy the file again",
        files={"model/tokenizer.json": "{"},
    ),
    scored(
        "an index of weights that is none",
        "model/model.safetensors.index.json must hold a JSON object, but holds []; copy the model again",
        spoil=remove("model/model.safetensors"),
        files={"model/model.safetensors.index.json": "[]"},
    ),
    scored(
        "an index of weights that leaves the directory",
        "model/model.safetensors.index.json names '../x.safetensors', which is not a weights file in its directory;",
        files={"model/model.safetensors.index.json": json.dumps({"weight_map": {"a": "../x.safetensors"}})},
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "an index of weights that are not there",
        "model/model.safetensors.index.json names 1 file, but b.safetensors is missing; copy the whole model",
        files={"model/model.safetensors.index.json": json.dumps({"weight_map": {"a": "b.safetensors"}})},
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "a configuration that nests without end",
        "model/config.json cannot be read as JSON (brackets are nested too deep); copy the model again",
        files={"model/config.json": "[" * 100_000},
    ),
    Case(
        "one label twice",
        "classify --model=model x",
        "model/config.json: id2label has the same label 'no' for the outputs 0, 1; give each output its own label",
        copies="model=classifier",
        spoil=keys("model/config.json", id2label={"0": "no", "1": "no"}, label2id=None),
    ),
    scored(
        "a tokenizer that nests without end",
        "model/tokenizer.json cannot be read as JSON (brackets are nested too deep); copy the file again",
        files={"model/tokenizer.json": "[" * 100_000},
    ),
    *(
        Case(
            f"a limit of {shown} tokens in a text",
            "embed --model=model x",
            f"model/sentence_bert_config.json: max_seq_length={shown} must be a whole number of tokens, at least 3 ([CLS]",
            copies="model",
            files=SENTENCES | {"model/sentence_bert_config.json": f'{{"max_seq_length": {shown}}}'},
        )
        for shown in ('"5"', "16.0", "2")
    ),
    Case(
        "a module outside of its model",
        "embed --model=model x",
        "model/modules.json names model/../../etc, which is outside the directory of the model; copy the model again",
        copies="model",
        files=SENTENCES | {"model/modules.json": MODULES.replace("1_Pooling", "../../etc")},
    ),
    *(
        Case(
            f"an empty file of JSON, {shown}",
            f"{CLASSIFY} --input=a.json",
            "a.json is empty; give a list of objects with 'text', or such an object per line",
            files={"a.json": content},
        )
        for shown, content in (("no byte", ""), ("blank lines", "\n \n"), ("a byte order mark", "\ufeff"))
    ),
    Case(
        "two tables joined",
        f"{CLASSIFY} --input=a.csv",
        "a.csv, line 3: the row repeats the names of the columns, as if files had been joined",
        exit=1,
        files={"a.csv": "text,n\nit was fine,1\n\ufefftext,n\n"},
    ),
]
TABLE = Table("predict", "--model=$model", CASES)
