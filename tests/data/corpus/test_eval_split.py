"""The held-out split: it is usable if the corpus allows it, and can be changed without tokenising again."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.data.corpus.shard import eval_limit, min_eval_documents, resplit_shard, usable_fraction
from bert_jax.data.corpus.store import open_corpus
from bert_jax.errors import UserError
from tests.data.conftest import english
from tests.data.corpus.test_build import contents, documents_of


def texts(tmp_path, documents: int) -> str:
    (tmp_path / "a.txt").write_text("\n\n".join(english(documents)) + "\n")
    return f"text:{tmp_path}/a.txt"


@pytest.mark.parametrize("documents", [4, 12, 60, 100, 300])
def test_a_small_corpus_holds_out_enough_documents_and_reports_it(tmp_path, build, documents):
    report = build(tmp_path / "c", texts(tmp_path, documents), layout="sentences", eval_fraction=0.01, enough_eval=True)
    wanted = min_eval_documents(documents)
    assert wanted <= report["splits"]["eval"]["documents"] <= 2 * wanted
    assert report["splits"]["train"]["documents"] >= 2
    assert not [warning for warning in report["warnings"] if "held out" in warning]
    assert "of the documents are held out: 1.0% would be too few to evaluate on;" in (tmp_path / "c" / "report.txt").read_text()
    assert open_corpus(tmp_path / "c", "eval").num_documents == report["splits"]["eval"]["documents"]


@pytest.mark.parametrize("fraction", [0.0, 0.005])
def test_a_requested_fraction_that_is_too_small_is_kept_with_a_warning(tmp_path, build, fraction):
    source = texts(tmp_path, 60)
    report = build(tmp_path / "c", source, layout="sentences", eval_fraction=fraction)
    (warning,) = (warning for warning in report["warnings"] if "held out" in warning)
    assert "too few to evaluate on; run the same command with --eval-fraction=" in warning
    asked = float(warning.split("--eval-fraction=")[1].split(" (no text is tokenised again)")[0])
    again = build(tmp_path / "c", source, layout="sentences", eval_fraction=asked)
    assert 6 <= again["splits"]["eval"]["documents"] <= 12
    assert not [warning for warning in again["warnings"] if "held out" in warning]


def test_changing_the_fraction_equals_a_new_build_without_tokenising(tmp_path, build, capsys):
    source = texts(tmp_path, 200)
    build(tmp_path / "directly", source, layout="sentences", eval_fraction=0.3)
    build(tmp_path / "c", source, layout="sentences", eval_fraction=0.1)
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xff" * file.stat().st_size)  # the text cannot be read again
    for fraction in (0.5, 0.02, 0.3):
        build(tmp_path / "c", source, layout="sentences", eval_fraction=fraction)
    assert "eval_fraction was 0.02, is 0.3: documents move between the splits" in capsys.readouterr().out
    assert contents(tmp_path / "c") == contents(tmp_path / "directly")


def test_duplicates_stay_dropped_when_the_split_changes(tmp_path, build):
    (tmp_path / "a.txt").write_text("\n\n".join([*english(100), *english(40)]))
    build(tmp_path / "c", f"text:{tmp_path}/a.txt", layout="sentences", eval_fraction=0.1)
    before = documents_of(tmp_path / "c")
    build(tmp_path / "c", f"text:{tmp_path}/a.txt", layout="sentences", eval_fraction=0.4)
    after = documents_of(tmp_path / "c")
    assert sorted(after["train"] + after["eval"]) == sorted(before["train"] + before["eval"])
    assert len(after["eval"]) > 20
    assert set(before["eval"]) < set(after["eval"])


def test_a_kill_while_the_split_changes_loses_nothing(tmp_path, build, monkeypatch):
    source = texts(tmp_path, 100)
    build(tmp_path / "c", source, layout="sentences", eval_fraction=0.1)
    rename, calls = pathlib.Path.rename, []

    def killed(self, target):
        calls.append(target)
        if len(calls) >= 8:  # a rewritten shard takes three; the old third one is aside, and nothing is renamed from now on
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "c", source, layout="sentences", eval_fraction=0.3)
    assert len(list((tmp_path / "c").glob("shard-*"))) == 3
    with pytest.raises(UserError, match="is unfinished"):
        open_corpus(tmp_path / "c")
    build(tmp_path / "c", source, layout="sentences", eval_fraction=0.3)
    build(tmp_path / "directly", source, layout="sentences", eval_fraction=0.3)
    assert contents(tmp_path / "c") == contents(tmp_path / "directly")


def test_the_least_usable_fraction_holds_out_enough_and_leaves_training_documents():
    draw = np.random.default_rng(0)
    for documents in (0, 1, 2, 3, 4, 5, 11, 60, 99, 1000, 5000):
        hashes = draw.integers(0, 2**64, documents, dtype=np.uint64)
        taken = int(np.sum(hashes < usable_fraction(hashes, 0.0) * 2.0**64))
        assert min_eval_documents(documents) <= taken <= max(2 * min_eval_documents(documents), 0)
        assert documents - taken >= min(documents, 1) if documents < 4 else documents - taken >= 2
    assert usable_fraction(hashes, 0.25) == 0.25


def test_the_wanted_number_of_held_out_documents_grows_with_the_corpus():
    wanted = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 29: 2, 30: 3, 99: 9, 100: 10, 119: 10, 5000: 10}
    assert {documents: min_eval_documents(documents) for documents in wanted} == wanted


def test_the_fraction_is_a_limit_on_document_hashes():
    assert [int(eval_limit(fraction)) for fraction in (0.0, 0.25, 0.5)] == [0, 1 << 62, 1 << 63]
    assert int(eval_limit(2.0**-64)) == int(eval_limit(0.6 * 2.0**-64)) == 1


def hashes_at(*fractions: float) -> np.ndarray:
    return np.array([int(fraction * 2.0**64) for fraction in fractions], np.uint64)


def test_a_hash_at_the_limit_of_the_fraction_is_not_held_out():
    rest = [0.6 + k / 1000 for k in range(28)]
    assert usable_fraction(hashes_at(0.1, 0.2, *rest[:6]), 0.25) == 0.25
    assert usable_fraction(hashes_at(0.1, 0.25, *rest[:6]), 0.25) == 0.251
    assert usable_fraction(hashes_at(0.1, 0.2, 0.25, *rest), 0.25) == 0.251


def test_the_least_usable_fraction_has_three_decimals_unless_that_holds_out_too_many():
    rest = [0.6 + k / 1000 for k in range(30)]
    assert usable_fraction(hashes_at(*((k + 0.9995) / 1000 for k in range(1000))), 0.0) == 0.01
    near = [k / 100_000 for k in range(1, 8)]  # all below 0.001
    assert usable_fraction(hashes_at(*near[:6], *rest[:24]), 0.0) == 0.001  # 6, while 3 are requested
    exact = usable_fraction(hashes_at(*near, *rest[:23]), 0.0)  # 7
    assert (0.00003 < exact < 0.00004, int(np.sum(hashes_at(*near) < eval_limit(exact)))) == (True, 3)
    assert usable_fraction(hashes_at(*near[:2], *rest[:2]), 0.0) == 0.001  # 2 of 4, which leaves 2 for training
    assert usable_fraction(hashes_at(*near[:3], *rest[:1]), 0.0) < 0.001  # otherwise 3 of 4
    assert 0.9995 < usable_fraction(hashes_at(*(0.9995 + x for x in near[:4])), 0.0) < 1
    steps = np.random.default_rng(0).permutation(100) * np.uint64(10_000)
    assert usable_fraction(steps, 0.0) * 2.0**64 == 90_000 + 4096  # more than the rounding error of float64


def test_the_least_usable_fraction_does_not_depend_on_the_order_of_the_documents():
    draw = np.random.default_rng(0)
    for _ in range(30):
        hashes = draw.integers(0, 2**54, 200, dtype=np.uint64)  # all below 0.001
        assert usable_fraction(hashes, 0.0) * 2.0**64 == int(np.sort(hashes)[9]) + 4096


def test_a_document_moves_with_its_sentences_and_one_at_a_limit_is_not_below_it():
    limit = 1 << 62
    hashes = np.array([limit, 2 * limit, limit - 1, limit + 1, 3 * limit], np.uint64)
    documents = [[[5, 6], [7]], [[8]], [[9, 9]], [[10], [11], [12]], [[13]]]

    def arrays(numbers: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sentences = [sentence for k in numbers for sentence in documents[k]]
        tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
        ends = [np.cumsum([0, *map(len, runs)]) for runs in (sentences, [documents[k] for k in numbers])]
        return tokens, ends[0], ends[1]

    quarter = {"train": arrays([0, 1, 3, 4]), "eval": arrays([2])}
    half = {"train": arrays([1, 4]), "eval": arrays([0, 2, 3])}
    for before, now, given, expected in ((0.25, 0.5, quarter, half), (0.5, 0.25, half, quarter)):
        found = resplit_shard(given, hashes, before, now)
        for split in ("train", "eval"):
            for mine, other in zip(found[split], expected[split], strict=True):
                np.testing.assert_array_equal(mine, other)
            assert found[split][0].dtype == np.uint16
