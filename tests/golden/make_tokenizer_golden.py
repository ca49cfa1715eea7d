"""Writes tests/golden/tokenizer_golden.json: what transformers' Python BERT tokenizer makes of tests/corpus/hostile_strings.txt.

    python tests/golden/make_tokenizer_golden.py VOCABULARIES        # a directory with bert-base-uncased-vocab.txt and bert-
    base-cased-vocab.txt

Run in an environment with transformers (checked with 5.23.0, Python 3.11); the project itself does not need it. The tokens of
each string are joined by spaces, which no token contains. The published vocabularies are not part of the project; two small
made-up ones are, so their part always runs.
"""

from __future__ import annotations

import json
import pathlib
import sys

import transformers
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parent / "corpus"
MAX_WORD_CHARACTERS = 200  # the original's; transformers' own default is 100


def tokens(vocabulary: pathlib.Path, lowercase: bool, strings: list[str]) -> list[str]:
    pieces = {line.strip(): i for i, line in enumerate(vocabulary.read_text("utf-8").split("\n")[:-1])}
    basic = BasicTokenizer(do_lower_case=lowercase)
    wordpiece = WordpieceTokenizer(pieces, "[UNK]", MAX_WORD_CHARACTERS)
    return [" ".join(piece for word in basic.tokenize(text) for piece in wordpiece.tokenize(word)) for text in strings]


def main() -> None:
    published = pathlib.Path(sys.argv[1])
    lines = (CORPUS / "hostile_strings.txt").read_text("utf-8").split("\n")
    strings = [json.loads(line) for line in lines if line and not line.startswith("#")]
    golden = {
        "transformers": transformers.__version__,
        "strings": len(strings),
        "uncased": tokens(published / "bert-base-uncased-vocab.txt", True, strings),
        "cased": tokens(published / "bert-base-cased-vocab.txt", False, strings),
        "tiny uncased": tokens(CORPUS / "tiny_vocab.txt", True, strings),
        "tiny cased": tokens(CORPUS / "tiny_cased_vocab.txt", False, strings),
    }
    (HERE / "tokenizer_golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
