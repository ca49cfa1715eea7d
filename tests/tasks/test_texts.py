"""The texts of a task's training examples, as documents of a corpus."""

from __future__ import annotations

import json
import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.examples import ChoiceExample, PronounExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.texts import documents, write_texts

SST2 = "sentence\tlabel\n"


def test_only_training_texts_are_written_one_document_per_line(tmp_path: pathlib.Path):
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text(SST2 + "it was fine\t1\nit was bad\t0\n")
    (tmp_path / "SST-2" / "dev.tsv").write_text(SST2 + "nobody reads this\t1\n")
    (tmp_path / "out.jsonl").write_text("old\n")
    (tmp_path / "old").hardlink_to(tmp_path / "out.jsonl")
    assert write_texts("glue/sst2", str(tmp_path), tmp_path / "out.jsonl") == 2
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "it was fine"}, {"text": "it was bad"}]
    assert (tmp_path / "old").read_text() == "old\n", "the file was overwritten, so an error would have left half of it"
    with pytest.raises(UserError, match=r"--output=\S+out.jsonl: there is no directory \S+none; create it first"):
        write_texts("glue/sst2", str(tmp_path), tmp_path / "none" / "out.jsonl")


def test_own_tasks_are_refused_since_their_files_are_texts(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"the texts of --task=own/sequence are in your own files; pass the files to"):
        write_texts("own/sequence", "", tmp_path / "out.jsonl")


def test_repeated_texts_are_left_out():
    asked = [QuestionExample(str(i), f"question {i}", "the context") for i in range(2)]
    assert list(documents(example.texts for example in [*asked, asked[0]])) == ["the context\nquestion 0", "question 1"]


def test_every_kind_of_example_gives_its_texts_without_wrong_choices():
    assert TextExample("0", "a\nb", "c").texts == ("a\nb", "c")
    assert list(documents([("a\nb", "c", " ")])) == ["a b\nc"]
    assert WordsExample("0", ("it", "was"), None, 0).texts == ("it was",)
    assert ChoiceExample("0", "it", ("was", "is"), 1).texts == ("it", "is")
    assert PronounExample("0", "ada saw her", "her", 8, "ada", 0, "ada", 0, None, None).texts == ("ada saw her",)
