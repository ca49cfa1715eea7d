"""Bad inputs of `analyse`."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import not_finite

HEADS = "heads 'the house'"

CASES = [
    # ---------------------------------------------------------------------------------------------------- the command line
    Case("a verb that is none", "head", "unknown verb 'head': did you mean 'heads'?; python -m bert_jax.analyse --help"),
    Case("a flag before the verb", "--model=$model heads", "--model=$model comes after the verb: python -m bert_jax.analyse"),
    Case("no model", HEADS, "the following arguments are required: --model", without=("--model",)),
    Case("no output", HEADS, "the following arguments are required: --output", without=("--output",)),
    Case("an unknown flag", f"{HEADS} --piece", "unknown argument --piece: did you mean '--pieces'?"),
    Case("a reach of nothing", f"{HEADS} --reach=0", "--reach=0 must be at least 1 and at most 512"),
    Case("a number of words that is none", f"{HEADS} --divergence-words=all", "--divergence-words=all must be a whole number"),
    # --------------------------------------------------------------------------------------------------------- what it reads
    Case(
        "a model that is not there",
        f"{HEADS} --model=nothing",
        "there is no nothing ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a model whose weights are not finite",
        f"{HEADS} --model=model",
        "is of no use: NaN or infinity in embeddings/layer_norm",
        copies={"model": "model"},
        spoil=not_finite("model"),
    ),
    Case(
        "texts that are not there",
        "heads --input=nowhere.txt",
        "--input=nowhere.txt (looked for in $here) cannot be read: No such file or directory; name an existing file",
    ),
    Case(
        "a text beside an input",
        f"{HEADS} --input=$text",
        "both texts and --input are given; give the texts as arguments, or --input=FILE, not both",
    ),
    Case(
        "no text at all",
        "heads --input=in.txt",
        "there is no word to measure attention on; give text",
        files={"in.txt": "\n \n"},
    ),
    # ------------------------------------------------------------------------------------------------------- what it writes
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
        copies={"model": "model"},
    ),
    Case(
        "an input that would be replaced",
        "heads --input=out/heads.tsv",
        "--output=out/heads.tsv is the file that the texts are read from, which answers would replace; choose another --output",
        files={"out/heads.tsv": "the house\n"},
    ),
]


TABLE = Table("analyse", "--model=$model --output=out", CASES)
