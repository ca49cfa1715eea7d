"""The fingerprint of a corpus, and the checks of a corpus against an experiment."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.parallel import UNNAMED
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.pretraining import splits
from bert_jax.pretraining.splits import check_corpus, fingerprint, open_phase_corpora
from tests.data.corpora import corpus_of, random_documents
from tests.end_to_end.runs import build_corpus

CORPUS = corpus_of(random_documents(20, seed=0))
OTHER = corpus_of(random_documents(5, seed=1))


def of_size(size: int, **values: object) -> PretrainingExperiment:
    return PretrainingExperiment.from_dict({"model": {"vocab_size": size}, "phases": [{"steps": 1}], **values})


def test_a_fingerprint_depends_on_vocabulary_splits_order_and_token_counts():
    counts = CORPUS.token_counts.copy()
    counts[[1_000, 1_001]] = counts[[1_001, 1_000]] + (1, -1)
    changed = {
        "the same": (CORPUS, OTHER),
        "other order": (OTHER, CORPUS),
        "one split": (CORPUS,),
        "other split": (CORPUS, CORPUS),
        "other counts": (dataclasses.replace(CORPUS, token_counts=counts), OTHER),
        "other counts held out": (CORPUS, dataclasses.replace(OTHER, token_counts=OTHER.token_counts + 1)),
        "other sentences": (dataclasses.replace(CORPUS, sentence_offsets=CORPUS.sentence_offsets[1:]), OTHER),
        "other vocabulary": (
            dataclasses.replace(CORPUS, vocabulary=dataclasses.replace(CORPUS.vocabulary, sha256="5e0c")),
            OTHER,
        ),
    }
    assert fingerprint(CORPUS, OTHER) == fingerprint(CORPUS, OTHER)
    assert len({fingerprint(*splits) for splits in changed.values()}) == len(changed)
    assert not np.array_equal(counts, CORPUS.token_counts)


def test_a_corpus_of_another_vocabulary_is_refused_with_a_remedy():
    size = CORPUS.vocabulary.size
    with pytest.raises(
        UserError,
        match=rf"config\.model\.vocab_size=9, but .* leave model.vocab_size out \(default: "
        rf"{size}\), or build",
    ):
        check_corpus(of_size(9), CORPUS, OTHER)
    with pytest.raises(UserError, match=rf"config\.model\.vocab_size={size + 8:,}, but"):
        check_corpus(of_size(size + 8), CORPUS, OTHER)
    with pytest.raises(UserError, match=r"config\.init_from=models/a has a vocabulary of 9 entries.* --vocab=models/a"):
        check_corpus(of_size(9, init_from="models/a"), CORPUS, OTHER)
    check_corpus(of_size(size), CORPUS, CORPUS)
    check_corpus(of_size(size + 8, init_from="models/a"), CORPUS, CORPUS)  # a table padded to a round size


def test_a_held_out_split_without_pairs_is_refused():
    with pytest.raises(UserError, match="document"):
        check_corpus(of_size(CORPUS.vocabulary.size), CORPUS, corpus_of([[5]]))


@pytest.mark.parametrize("words", [0, 9, "all"])
def test_the_embedding_table_of_the_target_has_the_size_of_the_vocabulary(words):
    corpus = dataclasses.replace(corpus_of([[3, 4]] * 8), languages=("en", "de"))
    size = corpus.vocabulary.size
    model = {**published("transformer_base"), "vocab_size": size, "decoder_vocab_size": size if words == "all" else words}
    experiment = PretrainingExperiment.from_dict({"model": model, "phases": [{"steps": 1}], "examples": {"pairs": "none"}})
    if words != 9:
        check_corpus(experiment, corpus, corpus)
        return
    says = rf"config\.model\.decoder_vocab_size=9, but the corpus .* of {size:,} entries for both languages; set {size}, or 0"
    with pytest.raises(UserError, match=says):
        check_corpus(experiment, corpus, corpus)


def test_each_corpus_of_the_phases_is_opened_once(tmp_path: pathlib.Path):
    a, b = (str(build_corpus(tmp_path / name, documents=12)) for name in "ab")
    small = str(build_corpus(tmp_path / "small", documents=2, seed=5))  # one document, and one held out
    (train,) = open_splits(a, ["train"])

    def of(*names: str) -> PretrainingExperiment:
        return of_size(train.vocabulary.size, phases=[{"steps": 1, "corpus": name} for name in names])

    found = open_phase_corpora(of(a, "", b, a), train)
    assert {phase: str(corpus.directory) for phase, corpus in found.items()} == {0: a, 2: b, 3: a}
    assert {corpus.split for corpus in found.values()} == {"train"}
    assert found[0] is found[3]
    with pytest.raises(UserError, match=rf"^config\.phases\.1\.corpus={a} has a different vocabulary than config"):
        open_phase_corpora(of("", a), OTHER)
    with pytest.raises(UserError, match="document"):
        open_phase_corpora(of("", small), train)


@pytest.mark.parametrize(
    ("there", "here", "says"),
    [
        (("en", "de"), ("de", "en"), "de to en, .* from en to de, .*; build it with the texts in de as the translations"),
        (("en", "de"), ("en", "fr"), "en to fr, .* from en to de, .*; name a corpus of this direction"),
        (("en", "de"), ("en", "de"), ""),
        (("en", "de"), UNNAMED, ""),
        (UNNAMED, ("de", "en"), ""),
    ],
)
def test_the_corpus_of_a_phase_translates_in_the_direction_of_the_others(
    there: tuple[str, str], here: tuple[str, str], says: str, monkeypatch: pytest.MonkeyPatch
):
    train, other = (dataclasses.replace(corpus_of([[3, 4]] * 8), languages=languages) for languages in (there, here))
    monkeypatch.setattr(splits, "open_splits", lambda *_: [other])
    values = {"examples": {"pairs": "none"}, "phases": [{"steps": 1}, {"steps": 1, "corpus": "b"}], "corpus": {"directory": "a"}}
    model = {**published("transformer_base"), "vocab_size": train.vocabulary.size}
    experiment = PretrainingExperiment.from_dict({"model": model, **values})
    if says:
        says = rf"^config\.phases\.1\.corpus=b holds translations from {says}"
        with pytest.raises(UserError, match=says):
            open_phase_corpora(experiment, train)
    else:
        assert open_phase_corpora(experiment, train) == {1: other}
    bert = PretrainingExperiment.from_dict({"model": {"vocab_size": train.vocabulary.size}, **values})
    assert open_phase_corpora(bert, train) == {1: other}, "masked words have no direction"


def of_pairs(*lengths: int, split: str = "train") -> Corpus:
    return dataclasses.replace(corpus_of([[length, length] for length in lengths]), languages=("en", "de"), split=split)


LONG, LATE, HELD_OUT = of_pairs(*[9] * 70), of_pairs(*[9] * 70, 2), of_pairs(9, 2, split="eval")


@pytest.mark.parametrize(
    ("train", "held_out", "other", "says"),
    [
        (LONG, HELD_OUT, None, r"config\.phases\.1: no pair of the train split .* fits into rows of 8 tokens; raise length"),
        (LATE, of_pairs(9, split="eval"), None, r"config\.phases\.1: no pair of the eval split .* fits into rows of 8 tokens"),
        (LONG, HELD_OUT, LONG, r"config\.phases\.1\.corpus=b: no pair of the train split .* fits into rows of 8 tokens"),
        (LATE, HELD_OUT, None, ""),
        (LONG, HELD_OUT, LATE, ""),
    ],
)
def test_rows_that_a_later_phase_cannot_make_are_refused_before_the_run(
    train: Corpus, held_out: Corpus, other: Corpus | None, says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(splits, "open_splits", lambda *_: [dataclasses.replace(other or LONG, vocabulary=train.vocabulary)])
    phases = [{"steps": 1, "length": 16}, {"steps": 1, "length": 8, "corpus": "b" if other else ""}]
    model = {**published("transformer_base"), "vocab_size": train.vocabulary.size}
    experiment = PretrainingExperiment.from_dict({"model": model, "examples": {"pairs": "none"}, "phases": phases})

    def check() -> None:
        check_corpus(experiment, train, held_out)
        open_phase_corpora(experiment, train)

    if says:
        with pytest.raises(UserError, match=f"^{says}"):
            check()
    else:
        check()


def test_a_mask_policy_is_tried_on_the_corpora_of_phases(monkeypatch: pytest.MonkeyPatch):
    tried: list[tuple[Corpus, int]] = []
    monkeypatch.setattr(splits, "open_splits", lambda *_: [CORPUS])
    monkeypatch.setattr(splits, "check_own_rows", lambda corpus, config: tried.append((corpus, config.length)))
    phases = [{"steps": 1}, {"steps": 1, "length": 64, "corpus": "b"}]
    open_phase_corpora(of_size(CORPUS.vocabulary.size, phases=phases), CORPUS)
    assert tried == [(CORPUS, 64)]
