"""Bad inputs of `analyse`."""

from __future__ import annotations

import os

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import extra_tensors, link, not_finite

HEADS, ATTENTION = "heads 'the house'", "attention 'the house'"

TREE = "1\tthe\t_\t_\t_\t_\t0\troot\t_\t_\n"

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case("a command that is none", "head", "unknown command 'head': did you mean 'heads'?; python -m bert_jax.analyse --help"),
    Case(
        "a flag before the command", "--model=$model heads", "--model=$model must come after the command: python -m "
                                                             "bert_jax.analyse"
    ),
    Case("no model", HEADS, "the following arguments are required: --model", without="--model"),
    Case("no output", HEADS, "the following arguments are required: --output", without="--output"),
    Case("an unknown flag", f"{HEADS} --piece", "unknown argument --piece: did you mean '--pieces'?"),
    Case("an output in a mistyped bucket", f"{HEADS} --output=gs:/b/x", "--output=gs:/b/x: ... did you mean gs://b/x?"),
    Case(
        "an output at nobody's home", f"{HEADS} --output=~no.body/x", "--output=~no.body/x: there is no user 'no.body', so ~"
    ),
    Case("a reach of nothing", f"{HEADS} --reach=0", "--reach=0 must be at least 1 and at most 128"),
    Case("a number of words that is none", f"{HEADS} --divergence-words=all", "--divergence-words=all must be a whole number"),
    Case("new words of no text", "vocabulary --new-words=5", "--new-words=5 looks for words in a corpus; give one with "
                                                             "--corpus="),
    Case("a format that is none", f"{ATTENTION} --format=gif", "--format=gif is unknown: known: html, json, pdf, png, svg"),
    Case("a head without a layer", f"{ATTENTION} --head=7", "--head=7 is not the name of a head: LAYER-HEAD, such as 1-2"),
    Case(
        "a head of more digits than Python reads",
        f"{ATTENTION} --head=1-{'9' * 5000}",
        f"--head=1-{'9' * 55}... does not exist: the model has layers 1 to 1, each with heads 1 to 2",
    ),
    Case(
        "a layer out of range",
        f"{ATTENTION} --head=2-1",
        "--head=2-1 does not exist: the model has layers 1 to 1, each with heads 1 to 2; did you mean '1-1'?",
    ),
    Case("a head out of range", f"{ATTENTION} --head=1-0", "--head=1-0 does not exist: the model has layers 1 to 1, each with "
                                                           "heads"),
    Case("a part that is none", f"{ATTENTION} --part=encode", "--part=encode is unknown: did you mean 'encoder'?"),
    Case(
        "a part of a model without a decoder",
        f"{ATTENTION} --part=cross",
        "--part=cross is for encoder-decoders, and $model has no decoder; leave it out",
    ),
    Case(
        "an alignment by a model without a decoder",
        f"{ATTENTION} --alignment-layer=1",
        "--alignment-layer=1 is for encoder-decoders, and $model has no decoder; leave it out",
    ),
    Case(
        "an alignment by a layer that the decoder does not have",
        "attention --model=$translator --alignment-layer=3 'the house'",
        "--alignment-layer=3 does not exist: the decoder has layers 1 to 2",
    ),
    Case(
        "an alignment without the part that it is of",
        "attention --model=$translator --alignment-layer=1 --part=encoder 'the house'",
        "--alignment-layer=1 requires the part cross; give --part=encoder,cross",
    ),
    Case(
        "a head that one of the parts does not have",
        "attention --model=$translator --head=2-1 'the house'",
        "--head=2-1 does not exist: the encoder has layers 1 to 1, each with heads 1 to 2 ... or choose --part=decoder,cross",
    ),
    *(
        Case(
            f"an encoder-decoder for {command.split()[0]}",
            f"{command} --model=$translator",
            "$translator is an encoder-decoder, and its encoder reads no [CLS]; name an encoder, or use `predict translate`",
        )
        for command in (HEADS, "neighbours --input=$text house", "compare --control=random-weights 'the house'")
    ),
    # ------------------------------------------------------------------------------------------------------------- the input
    Case(
        "a model with tensors of another class",
        f"{HEADS} --model=model",
        "not part of this model: mine.bias, mine.weight; to leave them out, use `convert --drop='mine.*'`",
        copies="model",
        spoil=extra_tensors("model", "mine.bias", "mine.weight"),
    ),
    Case("three texts", "attention a b c", "there are several texts, but a page shows only one; give one text, or two "
                                           "arguments as a pair"),
    Case("no text", "attention --input=in.txt", "there is no text; give one text, or two as a pair", files={"in.txt": "\n"}),
    Case(
        "a source longer than the positions of a translator",
        f"attention --model=$translator '{'the ' * 24}'",
        "is 25 tokens with its end token, more than the 24 positions of $translator; split it into sentences",
    ),
    Case(
        "a target longer than the positions of a translator",
        f"attention --model=$translator the '{'the ' * 24}'",
        "is 25 tokens with its start token, more than the 24 positions of $translator; shorten it",
    ),
    Case("a target without a token", "attention --model=$translator the '\u200b'", "the target '\\u200b' has no tokens; give"),
    Case("a text without a token", "attention '\u200b'", "has no tokens; give text"),
    Case(
        "a text longer than the position table",
        f"attention '{'the house ' * 40}'",
        "is 82 tokens with its [CLS] and [SEP], more than the 64 of the model's position table; shorten it",
    ),
    Case(
        "a model that does not exist",
        f"{HEADS} --model=nothing",
        "there is no nothing ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a model whose weights are not finite",
        f"{HEADS} --model=model",
        "cannot be used because of NaN or infinity in embeddings/layer_norm",
        copies="model",
        spoil=not_finite("model"),
    ),
    Case(
        "texts that are not there",
        "heads --input=nowhere.txt",
        "--input=nowhere.txt (looked for in $here) cannot be read: No such file or directory; name an existing file",
    ),
    *(
        Case(
            f"a pipe for a file that is read several times: {flags}",
            flags,
            "=pipe is a pipe, but this file is read several times; save it to a file first",
            files={"in.conllu": TREE},
            spoil=lambda directory: os.mkfifo(directory / "pipe"),
        )
        for flags in (
            "dependencies --input=pipe",
            "dependencies --input=in.conllu --choose=pipe",
            "coreference --input=pipe",
            "probe --input=pipe --eval=in.conllu",
            "probe --input=in.conllu --eval=pipe",
        )
    ),
    *(
        Case(
            f"the name of a file for a text: {command}",
            f"{command} in.txt",
            "in.txt is the name of a file; read it with --input=in.txt",
            files={"in.txt": "the house\n"},
        )
        for command in ("attention", "heads", "compare --with=$model", "neighbours")
    ),
    Case(
        "a table without the column of texts",
        "heads --input=in.csv",
        "in.csv is read as a table, but its first line has no column 'text' (it is 'review,label'); name the column text, or",
        files={"in.csv": "review,label\nthe house,1\n"},
        leaves="out",
    ),
    Case(
        "a text and an input",
        f"{HEADS} --input=$text",
        "both texts and --input are given; give the texts as arguments, or --input=FILE, not both",
    ),
    Case(
        "no text at all", "heads --input=in.txt", "there is no word to measure attention on; give text", files={"in.txt": "\n \n"}
    ),
    Case(
        "a corpus that does not exist",
        "vocabulary --corpus=nowhere",
        "corpus nowhere ... does not exist; build a corpus with python -m bert_jax.corpus --output=nowhere ...",
    ),
    Case(
        "a corpus of another vocabulary",
        "vocabulary --model=$tf1 --corpus=$corpus",
        "--corpus=$corpus has a different vocabulary than $tf1 ... name a corpus that was built with --vocab=$tf1",
    ),
    Case(
        "names that are not there",
        "vocabulary --names=nowhere.txt",
        "nowhere.txt (looked for in $here) cannot be read: No such file or directory; name an existing file",
    ),
    Case("two words for one", "neighbours 'the house'", "'the house' is 2 words; give one word, or a sentence with one"),
    Case("a word in context without a text", "neighbours 'the [house]'", "words of a text; name the text with --input=FILE"),
    *(
        Case(
            f"{flag} for neighbours without a text",
            f"neighbours house {flag}",
            f"{flag} has no effect without a text; name the text with --input=FILE, or leave the flag out",
        )
        for flag in ("--jsonl", "--layer=1", "--senses=3", "--occurrences=9")
    ),
    Case(
        "a layer that does not exist",
        "neighbours house --input=$text --layer=2",
        "--layer=2 does not exist: the model has layers 0 (the embeddings) to 1",
    ),
    Case(
        "a treebank that does not exist",
        "dependencies --input=nowhere.conllu",
        "--input=nowhere.conllu (looked for in $here) cannot be read: No such file or directory; name an existing file",
    ),
    Case(
        "a treebank to choose on that is the treebank itself",
        "dependencies --input=x.conllu --choose=./x.conllu",
        "--choose=./x.conllu is the same file as --input; leave --choose out to choose on half of the sentences",
        files={"x.conllu": TREE},
    ),
    Case(
        "a treebank in UTF-16",
        "dependencies --input=x.conllu",
        "x.conllu is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
        files={"x.conllu": TREE.encode("utf-16")},
    ),
    Case("no treebank", "dependencies", "the following arguments are required: --input"),
    Case("an unknown control", "dependencies --input=x.conllu --control=noise", "--control: invalid choice: 'noise'"),
    Case("an offset of nothing", "dependencies --input=x.conllu --reach=0", "--reach=0 must be at least 1 and at most 128"),
    Case(
        "documents without coreference",
        "coreference --input=x.conllu",
        "x.conllu has no mention with an antecedent; give CoNLL-U with Entity= in MISC, CoNLL-2012 or GAP with labels",
        files={"x.conllu": TREE},
    ),
    Case(
        "documents to choose on of another format",
        "coreference --input=x.conllu --choose=$gap/gap-development.tsv",
        "gap-development.tsv and x.conllu have different formats; give two files of the same format",
        files={"x.conllu": TREE},
    ),
    Case("a window of nothing", "coreference --input=x.conllu --window=2", "--window=2 must be at least 8 and at most 1,048,576"),
    Case("no file to score probes on", "probe --input=x.conllu", "the following arguments are required: --eval"),
    Case("a probe that is none", "probe --input=x --eval=y --probes=tree", "--probes=tree is unknown: known: labels, parsers"),
    Case("probes trained never", "probe --input=x --eval=y --epochs=0", "--epochs=0 must be at least 1 and at most 10,000"),
    Case(
        "an evaluation file that does not exist",
        "probe --input=x.conllu --eval=y.conllu",
        "y.conllu (looked for in $here; did you mean x.conllu?) cannot be read: No such file or directory; name a CoNLL-U or",
        files={"x.conllu": TREE},
    ),
    Case(
        "probes scored on the file that they are trained on",
        "probe --input=x.conllu --eval=./x.conllu",
        "./x.conllu is also the training file; give another file to score the probes on",
        files={"x.conllu": TREE},
    ),
    Case(
        "a column that a file of tags lacks",
        "probe --input=x.txt --eval=x.txt --column=2",
        "x.txt has 2 columns, but no column tag=2; give an index from -2 to 1",
        files={"x.txt": "a X\n"},
    ),
    Case(
        "probes of word numbers",
        "probe --input=x.conll --eval=y.conll",
        "x.conll: the first column has word numbers, not words; give a file whose first column has the words, or the treebank "
        "itself with a name that ends in .conllu",
        files={"x.conll": "1\tit\tX\n2\twas\tY\n", "y.conll": "it X\nwas Y\n"},
    ),
    Case("no second model", "compare 'the house'", "one of the arguments --with --control is required"),
    Case("a second model that does not exist", "compare 'the house' --with=nothing", "there is no nothing ... name a directory"),
    Case("a share of no word", "compare 'the house' --with=$model --masked=0", "--masked=0 must be above 0 and at most 1"),
    # ------------------------------------------------------------------------------------------------------------ the output
    Case("an output that is a file", f"{HEADS} --output=file", "--output=file is a file; name a directory", files={"file": ""}),
    Case(
        "an output under a file",
        f"{HEADS} --output=file/out",
        "--output=file/out cannot be written: $here/file is a file; choose another --output",
        files={"file": ""},
    ),
    Case(
        "the model's own directory as output",
        f"{HEADS} --model=model --output=model",
        "--output=model is the directory of the model itself; choose another --output",
        copies="model",
    ),
    Case(
        "an input that would be replaced",
        "heads --input=out/heads.tsv",
        "--output=out/heads.tsv is the input file, which the answers would overwrite; choose another --output",
        files={"out/heads.tsv": "the house\n"},
    ),
    Case(
        "an output that is a link to nothing",
        f"{HEADS} --output=link",
        "--output=link cannot be written (a link to gone, which does not exist); create that directory, or choose another",
        spoil=link("link", "gone"),
    ),
    Case(
        "an output under a link to nothing",
        f"{HEADS} --output=link/out",
        "--output=link/out cannot be written (link is a link to gone, which does not exist); create that directory, or",
        spoil=link("link", "gone"),
    ),
    Case("a blank text", "attention ' '", "its text is empty; give text"),
    Case(
        "probes of a single label",
        "probe --input=x.conll --eval=y.conll --probes=labels",
        "no kind of label has two or more labels in x.conll and also occurs in y.conll; give two",
        files={"x.conll": "a X\nb X\n", "y.conll": "a X\nb Y\n"},
    ),
    *(
        Case(
            f"coreference in {name}",
            f"coreference --input={name}",
            f"{name}, line 1: ... does not begin a file of CoNLL-U with Entity=, of CoNLL-2012 ... or of GAP",
            files={name: text},
        )
        for name, text in {
            "x.jsonlines": '{"clusters": [[[0, 0], [2, 2]]], "sentences": [["it", "was", "it"]]}\n',
            "x.jsonl": '{"clusters": [], "sentences": [["it"]]}\n{"clusters": [], "sentences": [["it"]]}\n',
            "x.csv": "ID,Text,Pronoun,Pronoun-offset,A,A-offset,B,B-offset\nx,ada saw eve and she left,she,16,ada,0,eve,8\n",
        }.items()
    ),
    Case(
        "GAP with a comment above the names of its columns",
        "coreference --input=x.tsv",
        "x.tsv, line 1: the first line must have the column names, but it is a comment ('# by Ada'); remove the comment",
        files={"x.tsv": "# by Ada\nID\tText\tPronoun\n"},
    ),
]
TABLE = Table("analyse", "--model=$model --output=out", CASES)
