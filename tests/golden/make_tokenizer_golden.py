"""Writes tests/golden/tokenizer_golden.json: the tokens of transformers' BERT tokenizers for tests/data/hostile_strings.txt.

    python tests/golden/make_tokenizer_golden.py VOCABULARIES        # a directory with bert-base-uncased-vocab.txt and bert-
    base-cased-vocab.txt

Run in an environment with transformers (checked with 5.23.0, Python 3.11); the project itself does not need it. The tokens of
each string are joined by spaces, which no token contains. The published vocabularies are not part of the project. Two small
made-up ones are, so the tests on them always run.

"words" are the words before any vocabulary is applied, for settings that differ from the published models'. "directories" are the
files that `save_pretrained` writes for a vocabulary of the strings' own characters, without that vocabulary, and the tokens that
`AutoTokenizer` reads with them.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import transformers
from transformers import AutoTokenizer, BertTokenizer
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parent / "data"
MAX_WORD_CHARACTERS = 200  # the original's; transformers' own default is 100


def tokens(vocabulary: pathlib.Path, lowercase: bool, strings: list[str]) -> list[str]:
    pieces = {line.strip(): i for i, line in enumerate(vocabulary.read_text("utf-8").split("\n")[:-1])}
    basic = BasicTokenizer(do_lower_case=lowercase)
    wordpiece = WordpieceTokenizer(pieces, "[UNK]", MAX_WORD_CHARACTERS)
    return [" ".join(piece for word in basic.tokenize(text) for piece in wordpiece.tokenize(word)) for text in strings]


def words(lowercase: bool, strip_accents: bool, split_cjk: bool, strings: list[str]) -> list[str]:
    basic = BasicTokenizer(do_lower_case=lowercase, strip_accents=strip_accents, tokenize_chinese_chars=split_cjk)
    return [" ".join(basic.tokenize(text)) for text in strings]


def spelling_vocabulary(strings: list[str]) -> list[str]:
    """Returns the made-up cased pieces, and every character of the strings as the beginning and as the continuation of a word."""
    pieces = (CORPUS / "tiny_cased_vocab.txt").read_text("utf-8").split("\n")[:-1]
    characters = sorted({c for text in strings for c in text if not c.isspace()})
    return list(dict.fromkeys([*pieces, *characters, *("##" + c for c in characters)]))


def saved_directory(lowercase: bool, strip_accents: bool | None, split_cjk: bool, strings: list[str]) -> dict:
    vocabulary = {piece: i for i, piece in enumerate(spelling_vocabulary(strings))}
    tokenizer = BertTokenizer(
        vocabulary, do_lower_case=lowercase, strip_accents=strip_accents, tokenize_chinese_chars=split_cjk, model_max_length=64
    )
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        tokenizer.save_pretrained(directory)
        (directory / "config.json").write_text('{"model_type": "bert"}')
        read = AutoTokenizer.from_pretrained(directory)
        saved = json.loads((directory / "tokenizer.json").read_text("utf-8"))
        assert saved["model"].pop("vocab") == vocabulary
        return {
            "tokenizer.json": saved,
            "tokenizer_config.json": json.loads((directory / "tokenizer_config.json").read_text("utf-8")),
            "tokens": [" ".join(read.tokenize(text)) for text in strings],
        }


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
        "words": {
            f"lowercase={lowercase} strip_accents={strip} split_cjk={split}": words(lowercase, strip, split, strings)
            for lowercase in (True, False)
            for strip in (True, False)
            for split in (True, False)
            if lowercase != strip or not split
        },
        "directories": [saved_directory(True, False, False, strings), saved_directory(False, True, True, strings)],
    }
    (HERE / "tokenizer_golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
