"""JSON that anyone may have written: what is no JSON, or no object, is a sentence, wherever it is read."""

from __future__ import annotations

import pytest

from bert_jax.corpus.files import parse_json, read_json, read_object
from bert_jax.corpus.store import open_corpus
from bert_jax.corpus.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_model_config
from bert_jax.interop.tensorflow import import_tf1
from bert_jax.interop.weights import read_weights
from bert_jax.runtime.workdir import stored_config
from bert_jax.tasks.readers.own_rows import read_own_rows
from bert_jax.tasks.readers.squad import read_squad

NESTED = "[" * 100_000


@pytest.mark.parametrize("text", [NESTED, '{"a": ' * 100_000, NESTED.encode(), "", "{", b"\xff", "1" * 5000])
def test_what_cannot_be_read_is_a_value_error_and_nothing_else(text):
    with pytest.raises(ValueError, match=r"nested too deep|Expecting|decode|digits"):
        parse_json(text)


def test_numbers_that_are_none_are_refused_where_only_json_counts():
    assert parse_json("[NaN, -Infinity]")[1] == float("-inf")
    for name in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(ValueError, match=f"{name} is not a JSON number"):
            parse_json(f'{{"a": {name}}}', strict=True)


def test_a_file_that_is_missing_damaged_or_no_object_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UserError, match=r"a\.json cannot be read as JSON \(.*No such file.*\); remove it"):
        read_json(path)
    path.write_text("[1, 2]")
    assert read_json(path) == [1, 2]
    with pytest.raises(UserError, match=r"a\.json holds no JSON object, but \[1, 2\]; copy it again"):
        read_object(path, "copy it again")


READERS = {
    "manifest.json": open_corpus,
    "tokenizer.json": load_tokenizer,
    "tokenizer_config.json": load_tokenizer,
    "config.json": read_model_config,
    "bert_config.json": import_tf1,
    "model.safetensors.index.json": lambda directory: read_weights(directory / "model.safetensors.index.json"),
    "train.json": lambda directory: read_squad(directory / "train.json"),
    "train.jsonl": lambda directory: list(read_own_rows(directory / "train.jsonl", None, quotes=None, columns=(), separator=" ")),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", [NESTED, "[]"], ids=["nested", "list"])
def test_every_reader_refuses_json_that_is_nested_without_end_and_a_list_for_an_object(tmp_path, tiny_vocabulary, name, text):
    if name == "tokenizer_config.json":
        (tmp_path / "vocab.txt").write_bytes(tiny_vocabulary.read_bytes())
    (tmp_path / "bert_model.ckpt.index").touch()
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        READERS[name](tmp_path)


def test_the_configuration_of_a_run_is_read_as_safely(tmp_path):
    (tmp_path / "config.json").write_text(NESTED)
    with pytest.raises(
        UserError, match=r"config\.json cannot be read as JSON \(brackets are nested too deep\); name another --w"
    ):
        stored_config(tmp_path)
