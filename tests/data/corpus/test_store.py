"""Opening a corpus: what its readers get, and what is rejected."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import resource
import shutil

import numpy as np
import pytest

from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus import store as store_module
from bert_jax.data.corpus.store import (
    CorruptedCorpus,
    ShardedOffsets,
    TokenStore,
    WordStarts,
    corpus_sources,
    open_corpus,
    open_splits,
    token_dtype,
)
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from tests.data.conftest import english
from tests.data.corpora import corpus_from_arrays


@pytest.fixture(scope="module")
def built(tmp_path_factory, build):
    """Builds a corpus, next to its text."""
    directory = tmp_path_factory.mktemp("built")
    (directory / "a.txt").write_text("\n\n".join(english(300)) + "\n")
    build(directory / "corpus", f"text:{directory}/a.txt")
    return directory


@pytest.fixture
def text_file(built):
    return built / "a.txt"


@pytest.fixture
def directory(tmp_path, built):
    """Copies the corpus."""
    return shutil.copytree(built / "corpus", tmp_path / "corpus")


def test_tokens_are_memory_mapped_and_small(directory):
    corpus = open_corpus(directory)
    assert all(isinstance(shard, np.memmap) for shard in corpus.tokens.shards)
    assert corpus.tokens.dtype == np.uint16
    assert token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32


def test_a_vocabulary_beyond_65536_pieces_uses_wider_tokens(tmp_path, build, tiny):
    many = [*tiny.pieces, *(f"{k:x}zz" for k in range(1 << 16)), "redtree"]
    (tmp_path / "vocab.txt").write_text("\n".join(many) + "\n")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", lowercase=True)
    (tmp_path / "a.txt").write_text("The redtree was not here.\nIt was there.\n\n" + "\n\n".join(english(10)))
    build(tmp_path / "corpus", f"text:{tmp_path}/a.txt", shards=1, tokenizer=tokenizer, eval_fraction=0.0)
    corpus = open_corpus(tmp_path / "corpus")
    assert corpus.tokens.dtype == np.uint32
    assert corpus.tokens[0:10].max() == len(many) - 1


def test_offsets_are_global_and_no_sentence_crosses_a_shard(directory):
    corpus = open_corpus(directory)
    assert corpus.sentence_offsets.dtype == corpus.document_offsets.dtype == np.int64
    assert corpus.sentence_offsets[0] == corpus.document_offsets[0] == 0
    assert corpus.sentence_offsets[-1] == corpus.num_tokens == len(corpus.tokens)
    assert corpus.document_offsets[-1] == corpus.num_sentences
    assert np.all(np.diff(corpus.sentence_offsets) > 0)
    assert np.all(np.diff(corpus.document_offsets) > 0)
    assert np.isin(corpus.tokens.bounds, corpus.sentence_offsets[corpus.document_offsets]).all()
    assert len(corpus.tokens.shards) == 4


def test_both_splits_have_the_token_counts_of_the_train_split(directory):
    train, eval_split = open_corpus(directory), open_corpus(directory, "eval")
    assert train.token_counts.sum() == train.num_tokens
    assert np.array_equal(train.token_counts, np.bincount(train.tokens[:], minlength=train.vocabulary.size))
    assert np.array_equal(train.token_counts, eval_split.token_counts)


def test_the_vocabulary_is_stored_with_the_corpus(directory, tiny):
    corpus = open_corpus(directory)
    assert corpus.vocabulary == tiny.vocabulary
    assert (directory / "tokenizer" / "vocab.txt").read_text("utf-8").split("\n")[:-1] == tiny.pieces


def test_slices_may_cross_shards():
    parts = (np.arange(5, dtype=np.uint16), np.zeros(0, np.uint16), np.arange(5, 9, dtype=np.uint16))
    store = TokenStore(parts, np.array([0, 5, 5, 9]))
    for start in range(10):
        for stop in range(start, 10):
            assert store[start:stop].tolist() == list(range(start, stop))
    assert store[:].dtype == np.uint16
    assert np.shares_memory(store[6:8], parts[2])


@pytest.mark.parametrize("more", [0, 1])
def test_offsets_of_a_large_split_stay_memory_mapped(directory, monkeypatch, more):
    tokens = open_corpus(directory).num_tokens
    monkeypatch.setattr(store_module, "BLOCK_TOKENS", tokens - more)
    for split, joined in (("train", more == 0), ("eval", True)):
        corpus = open_corpus(directory, split)
        assert isinstance(corpus.sentence_offsets, ShardedOffsets) is not joined
        assert isinstance(corpus.document_offsets, ShardedOffsets) is not joined


@pytest.mark.parametrize("name", ["sentence_offsets", "document_offsets"])
def test_descending_document_offsets_are_refused(directory, name):
    corpus = open_corpus(directory)
    offsets = getattr(corpus, name).copy()
    offsets[3] = offsets[4]
    damaged = dataclasses.replace(corpus, **{name: offsets})
    says = rf"corrupted corpus: {directory}: the offsets of documents 0 to 4 of the train split do not ascend; check"
    with pytest.raises(CorruptedCorpus, match=says):
        damaged.part([(0, 5)])
    part = damaged.part([(200, 210), (100, 103)])
    assert part.num_documents == 13
    ends = corpus.sentence_offsets[corpus.document_offsets]
    expected = np.concatenate([corpus.tokens[ends[200] : ends[210]], corpus.tokens[ends[100] : ends[103]]])
    assert np.array_equal(part.tokens[:], expected)


def test_a_corpus_may_be_empty(directory):
    nothing = open_corpus(directory).part([])
    assert (nothing.num_documents, nothing.num_sentences, nothing.num_tokens) == (0, 0, 0)


def test_a_corpus_is_pickled_by_its_path(directory):
    corpus = open_corpus(directory, "eval")
    sent = pickle.dumps(corpus)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert again.split == "eval"
    assert np.array_equal(again.tokens[:], corpus.tokens[:])


def test_a_corpus_can_be_made_in_memory(tiny):
    corpus = corpus_from_arrays(np.array([5, 6, 7, 5]), np.array([0, 2, 4]), np.array([0, 1, 2]), tiny.vocabulary)
    assert (corpus.num_documents, corpus.num_sentences, corpus.num_tokens) == (2, 2, 4)
    assert corpus.token_counts[5] == 2
    assert pickle.loads(pickle.dumps(corpus)).tokens[1:3].tolist() == [6, 7]


def test_a_path_without_a_corpus_is_refused_in_one_sentence(tmp_path, directory):
    with pytest.raises(UserError, match=r"does not exist; build a corpus with python -m bert_jax.corpus"):
        open_corpus(tmp_path / "absent")
    with pytest.raises(UserError, match=r"is not a corpus \(it has no manifest.json\)"):
        open_corpus(tmp_path)
    with pytest.raises(UserError, match="no split 'evla'; did you mean 'eval'"):
        open_corpus(directory, "evla")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file is a file; give the directory that python -m bert_jax.corpus"):
        open_corpus(tmp_path / "file")
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UserError, match=r"is unfinished \(not all shards are done\)"):
        open_corpus(tmp_path)


def test_a_truncated_or_missing_file_is_named_on_opening(directory):
    path = directory / "shard-00001-of-00004" / "train.tokens.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(
        UserError, match=rf"corrupted corpus: .*{path.name} has .* bytes instead of .*; remove .*shard-00001-of-00004"
    ):
        open_corpus(directory)
    path.unlink()
    with pytest.raises(UserError, match=rf"corrupted corpus: .*{path.name} is missing"):
        open_corpus(directory)


def changed(path, **changes):
    """Rewrites a JSON file with other values."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["../../..", "/etc", "shard-00000-of-00004/../../x", "", None, 7])
def test_a_shard_path_outside_of_the_corpus_is_refused_without_advice_to_delete(directory, name):
    shards = json.loads((directory / "manifest.json").read_text())["shards"]
    changed(directory / "manifest.json", shards=[*shards[:3], shards[3] | {"name": name}])
    with pytest.raises(UserError, match=r"names the shard .*expected 'shard-00003-of-00004'\. .* forged or damaged") as raised:
        open_corpus(directory)
    assert "remove" not in str(raised.value)


def test_a_manifest_that_lists_some_of_the_shards_is_refused(directory, text_file, build):
    shards = json.loads((directory / "manifest.json").read_text())["shards"]
    for listed in (shards[:3], shards[1:], shards[::-1], [shards[0]] * 4):
        changed(directory / "manifest.json", shards=listed)
        with pytest.raises(
            UserError, match=r"manifest\.json: it lists \d shards, and .* \d is .*; expected 4 shards.*\. Copy .*or re"
        ):
            open_corpus(directory)
    (directory / "manifest.json").unlink()  # the remedy
    build(directory, f"text:{text_file}")
    assert open_corpus(directory).num_documents > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"splits": {}}, r"\"splits\" for train is None; expected documents, tokens, sentences, numbers from 0"),
        ({"splits": {"train": {"documents": -1, "sentences": 5, "tokens": 9}}}, '"splits" for train is .*; expected'),
        ({"shards": []}, '"shards" is \\[\\]; expected a list of shards'),
        ({"shards": {"name": "a"}}, '"shards" is .*; expected a list of shards'),
        ({"shards": [7]}, '"shards" is .*; expected a list of shards'),
        ({"splits": 7}, r"\"splits\" for train is None; expected documents, tokens, sentences, numbers from 0"),
        ({"splits": {"train": 7}}, r"\"splits\" for train is 7; expected documents, tokens, sentences, numbers from 0"),
        ({"splits": {"train": {"documents": True, "sentences": 1, "tokens": 1}}}, '"splits" for train is .*; expected'),
        ({"vocabulary": {"size": 5}}, '"vocabulary" is .*; expected cls_id, kind'),
        ({"vocabulary": 5}, '"vocabulary" is 5; expected cls_id, kind'),
    ],
)
def test_a_manifest_with_wrong_types_is_refused_with_found_and_expected(directory, wrong, message):
    changed(directory / "manifest.json", **wrong)
    with pytest.raises(UserError, match=f"manifest.json: {message}.*\\. Copy the whole corpus again"):
        open_corpus(directory)


@pytest.mark.parametrize(("split", "name"), [("train", "documents"), ("train", "tokens"), ("eval", "sentences")])
def test_counts_that_do_not_add_up_are_refused(directory, split, name):
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["splits"][split][name] += 1
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=rf"the {split} split has [\d,]+ {name}; expected [\d,]+, the sum of its shards"):
        open_corpus(directory)
    for shard in manifest["shards"]:
        shard["splits"][split][name] = -5
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"\"splits\" of shard-00000-of-00004 for .* is .*-5.*; expected .*numbers from 0"):
        open_corpus(directory)


@pytest.mark.parametrize("listed", [None, {}, {"../../secret": {"bytes": 1, "sha256": "0" * 64}}])
def test_a_shard_has_exactly_the_written_files(directory, listed):
    shards = json.loads((directory / "manifest.json").read_text())["shards"]
    shards[2]["files"] = {**shards[2]["files"], **listed} if listed else listed
    changed(directory / "manifest.json", shards=shards)
    with pytest.raises(UserError, match=r"the files of shard-00002-of-00004 are .*; expected document_hashes\.npy, eval"):
        open_corpus(directory)


@pytest.mark.parametrize(
    "facts",
    [
        7,
        {"bytes": -1},
        {"bytes": True},
        {"bytes": "1"},
        {"sha256": 5},
        {"sha256": "0" * 63},
        {"sha256": "g" * 64},
        {"sha256": None},
    ],
)
def test_sizes_and_checksums_of_files_are_validated(directory, facts):
    shards = json.loads((directory / "manifest.json").read_text())["shards"]
    recorded = shards[2]["files"]["train.tokens.npy"]
    shards[2]["files"]["train.tokens.npy"] = recorded | facts if isinstance(facts, dict) else facts
    changed(directory / "manifest.json", shards=shards)
    says = r"manifest.json: shard-00002-of-00004/train.tokens.npy has .*; expected a size in bytes and a sha256. Copy"
    with pytest.raises(UserError, match=says):
        open_corpus(directory)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train.sentences", lambda a: a[::-1], "offsets from .*; expected offsets that ascend from 0"),
        ("train.documents", lambda a: np.concatenate([a[:2], a[1:-1]]), "offsets from"),
        ("train.sentences", lambda a: np.concatenate([a[:2], a[1:2], a[3:]]), "offsets from 0 to"),  # an empty sentence
        ("eval.documents", lambda a: a + 1, "offsets from 1 to"),
        ("train.sentences", lambda a: a.view(np.uint64), "an array of .* type uint64; expected .* numbers of type int64"),
        ("train.tokens", lambda a: a.reshape(-1, 1), r"an array of shape \(.*, 1\)"),
        ("token_counts", lambda a: np.concatenate([[-1, a[0] + a[1] + 1], a[2:]]), "counts from -1"),
        ("token_counts", lambda a: a + 1, "counts from 1 that sum to"),
    ],
)
def test_arrays_with_impossible_contents_are_refused(directory, name, damage, message):
    path = directory / "shard-00001-of-00004" / f"{name}.npy"
    before = path.stat().st_size
    np.save(path, damage(np.load(path)))
    path.write_bytes(path.read_bytes()[:before])
    with pytest.raises(UserError, match=rf"corrupted corpus: .*{name}\.npy holds {message}.*; remove .*shard-00001-of-00004 and"):
        open_splits(directory)


def test_a_file_that_is_not_an_array_is_refused(directory):
    path = directory / "shard-00001-of-00004" / "train.documents.npy"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(
        UserError, match=r"train\.documents\.npy holds no array \(.*\); expected .* numbers of type int64; remove"
    ):
        open_corpus(directory)


def test_a_corpus_with_more_files_than_may_be_open_is_not_called_corrupted(directory, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest_free := os.dup(0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 3, hard))
        with pytest.raises(UserError, match=r"shard-.*npy cannot be mapped: .*; allow more open files \(ulimit -n\)") as found:
            open_splits(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(found.value, CorruptedCorpus)

    def without_memory(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(np, "load", without_memory)
    with pytest.raises(UserError, match=r"Cannot allocate memory; allow more memory maps \(sysctl vm.max_map_count\), or"):
        open_splits(directory)


def test_a_vocabulary_in_another_order_is_refused(directory):
    path = directory / "tokenizer" / "vocab.txt"
    lines = path.read_text("utf-8").split("\n")[:-1]
    path.write_text("\n".join([*lines[:5], *reversed(lines[5:])]) + "\n", "utf-8")
    expected = r"the vocabulary that the text was tokenised with \(sha256 [0-9a-f]{12}"
    with pytest.raises(UserError, match=rf"tokenizer does not hold {expected}.* id 5 is .*; .*copy .*tokenizer again from the"):
        open_corpus(directory)
    (directory / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=rf"tokenizer holds the vocabulary with sha256 [0-9a-f]{{12}}...; expected {expected}"):
        open_corpus(directory)


def test_a_vocabulary_with_another_casing_is_refused(directory):
    (directory / "tokenizer" / "tokenizer.json").unlink()
    changed(directory / "tokenizer" / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(
        UserError,
        match=r"tokenizer has lowercase=False, but the text was tokenised with lowercase=True; "
        r"copy",
    ):
        open_corpus(directory)


def test_a_corpus_of_another_format_is_refused(directory):
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(UserError, match="has format 99, but this version of bert_jax reads format 1"):
        open_corpus(directory)


def test_a_damaged_manifest_is_named(directory):
    (directory / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json cannot be read as JSON"):
        open_corpus(directory)


def test_the_manifest_records_the_sources_and_settings(directory, text_file, tiny):
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["sources"] == [f"text:{text_file}"]
    assert manifest["vocabulary"]["sha256"] == tiny.vocabulary.sha256
    assert manifest["vocabulary"]["lowercase"] is True
    assert manifest["splits"]["train"]["documents"] + manifest["splits"]["eval"]["documents"] == 300
    assert {len(facts["sha256"]) for shard in manifest["shards"] for facts in shard["files"].values()} == {64}


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_truncated_while_mapped_ends_the_run_with_one_sentence(directory, monkeypatch, whole):
    """Without the check the process ends with "Bus error", since whole pages of the map are missing."""
    if not whole:
        monkeypatch.setattr(store_module, "BLOCK_TOKENS", 100)  # offsets are read in place
    corpus = open_corpus(directory)
    source = BatchSource(corpus, ExampleConfig(length=32, max_predictions=4), 4, seed=0)
    source.at(0)
    for name in ("tokens", *([] if whole else ["sentences"])):
        for shard in directory.glob("shard-*"):
            os.truncate(shard / f"train.{name}.npy", 100)
        said = rf"train\.{name}\.npy was cut from .* to 100 bytes while it was in use, .*rerun the command that built the corpus"
        with pytest.raises(CorruptedCorpus, match=said):
            source.at(1) if name == "tokens" else corpus.joined_offsets()
    with pytest.raises(CorruptedCorpus, match=r"was cut from .* to 100 bytes"):
        corpus.tokens[0:10]


@pytest.mark.parametrize("languages", ["en", ["en"], ["en", "de", "fr"], ["en", 5]])
def test_languages_that_are_not_two_names_are_refused(directory, languages):
    changed(directory / "manifest.json", languages=languages)
    with pytest.raises(UserError, match=r"manifest.json: \"languages\" is .*; expected two names"):
        open_corpus(directory)
    changed(directory / "manifest.json", languages=["en", "de"])
    assert open_corpus(directory).languages == ("en", "de")


def test_the_sources_of_a_corpus_are_known_while_its_directory_exists(directory, text_file):
    corpus = open_corpus(directory)
    assert corpus_sources(corpus) == [f"text:{text_file}"]
    assert corpus_sources(dataclasses.replace(corpus, directory=None)) == []
    shutil.rmtree(directory)
    assert corpus_sources(corpus) == []


def test_no_word_starts_in_an_empty_corpus():
    starts = WordStarts((), np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert starts.at(np.array([[0, 5]])).tolist() == [[False, False]]
