"""Bad inputs of `predict`: what it is asked, what it reads and writes."""

from __future__ import annotations

import gzip
import json

from tests.bad_inputs.case import Case, Table
from tests.compressed import zstd

CLASSIFY = "classify --model=$classifier"
RESOLVE = "resolve --model=$resolver"
OUTPUT = "embed --output"

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case(
        "a verb that is none",
        "fil-mask",
        "unknown verb 'fil-mask': did you mean 'fill-mask'?; python -m bert_jax.predict --help",
        without=("--model",),
    ),
    Case(
        "a flag before the verb",
        "--json embed x",
        "--json comes after the verb: python -m bert_jax.predict ... verbs are fill-mask, next-sentence, score, generate,",
    ),
    Case("an input in a mistyped bucket", "embed --input=gs:/bucket/x", "--input=gs:/bucket/x: ... did you mean gs://bucket/x?"),
    Case("an output in a mistyped bucket", "embed --output=gs:/b/x x", "--output=gs:/b/x: ... did you mean gs://b/x?"),
    Case(
        "an output at nobody's home", "embed --output=~no.body/x x", "--output=~no.body/x: there is no user 'no.body', so ~ sta"
    ),
    Case("a model in a mistyped bucket", "embed --model=gs:/bucket/m x", "MODEL=gs:/bucket/m: ... did you mean gs://bucket/m?"),
    Case("a profile that is no range", "embed --profile=all x", "--profile=all must be FIRST:LAST, two whole numbers"),
    Case(
        "a profile of batches after the last",
        "embed --profile=5:9 --json x",
        "--profile=5:9 begins after the last of 1 batch; name earlier ones",
    ),
    Case("no model", "fill-mask 'x [MASK]'", "the following arguments are required: --model", without=("--model",)),
    Case("an unknown flag", "fill-mask --topk=3 [MASK]", "unknown argument --topk=3: did you mean '--top-k'?"),
    Case("an unknown flag of another verb", "embed --poling=cls x", "unknown argument --poling=cls: did you mean '--pooling'?"),
    Case("a word for a number", "fill-mask --top-k=three [MASK]", "--top-k=three must be a whole number, at least 1"),
    Case("no candidates", "fill-mask --top-k=0 [MASK]", "--top-k=0 must be at least 1 and at most 2,147,483,647"),
    Case("a margin of no number", "answer --model=$reader --no-answer-threshold=nan who x", "=nan must be a finite number"),
    Case("candidates beyond any machine", "fill-mask --top-k=10000000000000 [MASK]", "=10000000000000 must be at least 1"),
    Case("an array of another form", "embed --output=$here/x.npz x", "answers are not written as .npz; name a .jsonl"),
    Case(
        "vectors as text",
        "embed --output=$here/x.txt x",
        "--output=$here/x.txt: answers are not written as .txt; name a .jsonl (JSON lines) or a .npy",
    ),
    Case("one name twice", f"{RESOLVE} 'she saw ada and eve' she ada ada", "a and b are both 'ada' at character 8; give", exit=1),
    Case(
        "more candidates than words",
        "fill-mask --top-k=100000 [MASK]",
        "--top-k=100000 must be between 1 and the vocabulary's 91",
    ),
    Case("no pieces", "fill-mask --pieces=0 [MASK]", "--pieces=0 must be at least 1 and at most 8"),
    Case("too many pieces", "fill-mask --pieces=9 [MASK]", "--pieces=9 must be at least 1 and at most 8"),
    Case(
        "a layer that is not there",
        "embed --layers=99 x",
        "--layers=99 is outside [-2, 1]: the model has 1 layer (0: embeddings)",
    ),
    Case(
        "layers that are no numbers", "embed --layers=last x", "argument --layers: 'last' is not numbers with commas between them"
    ),
    Case("no layers", "embed --layers= x", "argument --layers: '' is not numbers with commas between them"),
    Case(
        "layers without the sign of equality",
        "embed --layers -1,-2 x",
        "argument --layers: expected one argument; write --flag=VALUE, with the sign",
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
    Case("a stride of nothing", "answer --model=$reader --stride=0 who 'it was ada'", "--doc-stride=0 must be at least 1"),
    Case("no answers", "answer --model=$reader --n-best=0 who 'it was ada'", "--n-best=0 must be at least 1"),
    Case(
        "answers of no tokens",
        "answer --model=$reader --max-answer=0 who 'it was ada'",
        "--max-answer=0 must be at least 1",
    ),
    Case(
        "a window shorter than its question",
        "answer --model=$reader --length=8 'who was it that was by the river' 'it was ada'",
        "rows of 8 tokens leave no room for the context beside a question of 11 ... allow longer rows, or cut questions shorter",
        exit=1,
    ),
    # ------------------------------------------------------------------------------------------------------ what it writes to
    Case(
        "an array for words",
        f"{OUTPUT}=x.npy --words x",
        "--output=x.npy: only `embed` of whole texts gives one array of vectors; name a .jsonl",
    ),
    Case(
        "an array for what is no vector",
        "fill-mask --output=x.npy [MASK]",
        "--output=x.npy: only `embed` of whole texts gives one array of vectors; name a .jsonl",
    ),
    Case("a packed array", f"{OUTPUT}=x.npy.gz x", "--output=x.npy.gz: a .npy is not compressed here; name a .jsonl"),
    Case(
        "an output in a directory that is not there",
        f"{OUTPUT}=nowhere/x.npy x",
        "--output=nowhere/x.npy: there is no directory nowhere (looked for in $here); make it first",
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
    # ------------------------------------------------------------------------------------------------------------ what it reads
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
        "in.txt is the name of a file, and not read as a text; read it with --input=in.txt",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "the name of a file for a context",
        "answer --model=$reader who context.txt",
        "context.txt is the name of a file, and not read as a text; read it with --input=context.txt",
        files={"context.txt": "the house\n"},
    ),
    Case(
        "a label between TABs for a text",
        f"{CLASSIFY} --input=in.tsv",
        "in.tsv, line 1: 'good' seems to be a label, not a text_b, and the model must not read it; leave the label out, or give",
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
        "two texts as JSON for a model of single ones",
        "classify --model=$run --jsonl",
        "standard input, line 1: two texts, 'it was fine' and 'good', but ... was trained on single texts; give one text",
        exit=1,
        stdin='{"text": "it was fine", "text_b": "good"}\n',
    ),
    Case(
        "a label between TABs for a part of a text",
        "embed --input=in.tsv",
        "in.tsv, line 1: 2 texts between TABs, more than the 1 of text; name the columns in the first line",
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
            "in.txt, line 1: 'B-PER' seems to be the tag of a word, which is no part of the text; give a sentence per line, or",
            exit=1,
            files={"in.txt": "ada\tB-PER\n"},
        )
        for flags in ("--input=in.txt", "--words --input=in.txt")
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
        "in.csv is read as a table, and its first line names no column 'text' (it is 'review,label'); name the column text, or",
        files={"in.csv": "review,label\nit was fine,good\n"},
    ),
    Case(
        "a table without quotes that match",
        f"{CLASSIFY} --input=in.csv",
        "in.csv, line 2: the quotes of this row do not match (unexpected end of data); double a quote inside quotes",
        files={"in.csv": 'text,label\n"it was fine,good\n'},
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
    Case(
        "a text without a mask",
        "fill-mask 'the house'",
        "no [MASK] in 'the house'; write [MASK] in place of a word",
        exit=1,
    ),
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
        "'bob' does not occur in 'she saw ada and eve'; give a mention as the text has it",
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
        "'ada' occurs 2 times in 'she saw ada and ada and eve'; say which, for example 'ada#1'",
        exit=1,
    ),
    Case(
        "a mention that is counted from 0",
        f"{RESOLVE} 'she saw ada and ada and eve' she 'ada#0' eve",
        "'ada#0': 'ada' occurs 2 times in 'she saw ada and ada and eve'; count from 1",
        exit=1,
    ),
    Case(
        "a mention of more digits than Python reads",
        f"{RESOLVE} 'she saw ada and ada and eve' she 'ada#{'9' * 5000}' eve",
        "'ada' occurs 2 times in 'she saw ada and ada and eve'; count from 1",
        exit=1,
    ),
    Case(
        "a name that is the pronoun",
        f"{RESOLVE} 'she saw ada and eve' she she eve",
        "a='she' is the pronoun itself; give the two names it may mean",
        exit=1,
    ),
    Case(
        "a line that is no JSON",
        "embed --jsonl",
        "standard input, line 1: not JSON (Expecting value: line 1 column 1 (char 0)): 'the house'",
        exit=1,
        stdin="the house\n",
    ),
    Case(
        "a line of JSON that is no object",
        "embed --jsonl",
        "standard input, line 1: a JSON list, not an object with 'text'",
        exit=1,
        stdin="[1]\n",
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
        "bytes that are no text",
        "embed",
        "standard input, line 1: byte 4 is not UTF-8; convert the text with iconv",
        exit=1,
        stdin=b"caf\xe9\n",
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
        "standard input, line 1: '\\x01\\x02' holds no token; give text",
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
        "--output=x.npz: answers are not written as .npz; name a .jsonl (JSON lines) or a .npy",
    ),
    Case(
        "an output that is its input",
        "embed --input=in.txt --output=in.txt",
        "--output=in.txt: answers are not written as .txt; name a .jsonl (JSON lines) or a .npy",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "an output that is its input by another name",
        "embed --input=in.txt --output=./in.txt",
        "--output=./in.txt: answers are not written as .txt; name a .jsonl (JSON lines) or a .npy",
        files={"in.txt": "the house\n"},
    ),
    Case(
        "the same name twice",
        f"{RESOLVE} 'she saw ada and eve' she ada ada",
        "a and b are both 'ada' at character 8; give the two names it may mean",
        exit=1,
    ),
]


TABLE = Table("predict", "--model=$model", CASES)
