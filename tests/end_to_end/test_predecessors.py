"""The models before BERT, end to end: a biLM whose layers are the features of a tagger, one that reads characters, Flair and CoVe
as features, static vectors that are written for other programs, and cross-view training."""

from __future__ import annotations

import random
import signal

import jax
import numpy as np
import pytest

from bert_jax.data.corpus.store import open_corpus
from bert_jax.interop.huggingface import import_model
from bert_jax.interop.word2vec import read_vectors
from bert_jax.model.characters import piece_symbols
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED
from tests.end_to_end.forked import Commands, Signal
from tests.end_to_end.runs import REPOSITORY, assert_same_weights, records, results
from tests.end_to_end.test_finetuning_recovery import SMALL
from tests.end_to_end.toy_tasks import NAMES, PLACES, TRAIN, entities, sentence, write_vocabulary
from tests.flags import replacing

TINY = (
    "--config.model.hidden_size=16",
    "--config.model.intermediate_size=12",
    "--config.model.initializer_range=0.5",
    "--config.phases.0.steps=3",
    "--config.phases.0.length=32",
    "--config.phases.0.batch_size=8",
    "--config.phases.0.max_predictions=31",
    "--config.phases.0.warmup_steps=1",
    "--config.evaluation.rows=8",
    "--config.evaluation.batch_size=8",
    "--config.log_every=1",
)
"""Overrides of the shipped experiments."""
STOPPED = {"flair": ("flair", 1), "views": ("static_tagger", 5)}
"""Commands that are first stopped with SIGTERM and resumed -> the names of their workdirs, and the step, which no earlier command
reaches. Cross-view training is stopped between a step with labels and one without."""


@pytest.fixture(scope="module")
def predecessors(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("predecessors")
    vocabulary, rng = write_vocabulary(base / "vocabulary"), random.Random(0)
    documents = [[sentence(rng, rng.choice(NAMES), rng.choice(PLACES)) for _ in range(4)] for _ in range(40)]
    (base / "text.txt").write_text("\n\n".join("\n".join(sentences) for sentences in documents) + "\n")
    size = len((base / "vocabulary.txt").read_text().split())
    entities(base / "entities")

    def pretrain(name: str, experiment: str, *flags: str) -> list[str]:
        places = [f"--workdir={base / name}", f"--config.corpus.directory={base / 'corpus'}"]
        settings = replacing([*places, *TINY], f"--config.model.vocab_size={size}", *flags)
        return ["pretrain", f"--config={REPOSITORY}/experiments/pretrain/{experiment}.py", *settings]

    source = [f"--source=text:{base / 'text.txt'}", f"--vocab={vocabulary}", f"--output={base / 'corpus'}"]
    tagger = [f"--workdir={base / 'tagger'}", f"--config.init_from={base / 'bilm'}"]
    head = [f"--config.task.data_dir={base / 'entities'}", "--config.head.lstm=8", "--config.head.mix_at=both"]
    head += ["--config.training.epochs=12", "--config.training.learning_rate=6e-2"]
    features = f"--config={REPOSITORY}/experiments/finetune/ner_features.py:scalar_mix"
    characters = ("--config.model.character_cnn=true", "--config.model.tied_decoder=false", "--config.phases.0.steps=1")
    letters = [f"--source=text:{base / 'text.txt'}", "--train-vocab=characters", f"--output={base / 'letters'}"]
    of_letters = [f"--config.corpus.directory={base / 'letters'}", "--config.model.intermediate_size=8"]
    words = [line for document in documents for line in document]
    (base / "back.txt").write_text("\n".join(" ".join(line.split()[::-1]) for line in words) + "\n")
    (base / "there.txt").write_text("\n".join(words) + "\n")
    pairs = [f"--source=parallel:{base / 'there.txt'}:{base / 'back.txt'}", f"--vocab={vocabulary}", f"--output={base / 'pairs'}"]
    of_pairs = [f"--config.corpus.directory={base / 'pairs'}", "--config.phases.0.packed_examples=3"]
    of_pairs += ["--config.model.intermediate_size=8"]

    def features_of(name: str, layers: str, *flags: str) -> list[str]:
        places = [f"--workdir={base / name}_tagger", f"--config.init_from={base / name}"]
        own = ["--config.head.lstm=8", "--config.training.epochs=1", f"--config.task.data_dir={base / 'entities'}"]
        experiment = f"--config={REPOSITORY}/experiments/finetune/ner_features.py:{layers}"
        return ["finetune", experiment, *places, *replacing(SMALL, *own, *flags)]

    def stopped_before(name: str, line: list[str]) -> dict[str, list[str]]:
        whole = f"--workdir={base / STOPPED[name][0]}"
        again = [flag.replace(whole, f"--workdir={base / 'again' / name}") for flag in line]
        return {f"{name} stopped": again, f"{name} resumed": again, name: line}

    usual = ("--eval-fraction=0.2", "--shards=2", "--workers=1")
    views = ("--config.cross_view.batch_size=8", "--config.log_every=2", f"--config.cross_view.corpus={base / 'corpus'}")
    flair = [flag for flag in pretrain("flair", "flair", *of_letters) if "vocab_size" not in flag]
    cross_view = features_of("static", "last", *views)
    commands = {
        "letters": ["corpus", *letters, *usual],
        **stopped_before("flair", flair),
        "corpus": ["corpus", *source, *usual],
        "static": pretrain("static", "static"),
        "vectors": ["convert", f"--from={base / 'static'}", f"--to={base / 'vectors'}", "--format=word2vec"],
        **stopped_before("views", cross_view),
        "flair_tagger": features_of("flair", "last", "--config.task.length=64"),
        "pairs": ["corpus", *pairs, *usual],
        "cove": [flag for flag in pretrain("cove", "cove", *of_pairs) if "max_predictions" not in flag],
        "cove_tagger": features_of("cove", "embeddings_and_last"),
        "bilm": pretrain("bilm", "bilm", "--config.model.num_layers=1"),
        "characters": pretrain("characters", "bilm", "--config.model.num_layers=1", *characters),
        "tagger": ["finetune", features, *tagger, *replacing(SMALL, *head)],
        "tag": ["predict", "tag", f"--model={base / 'tagger'}", "ada fay saw oslo"],
    }
    stops = [Signal(ASKED, argument=step, number=signal.SIGTERM) for _, step in STOPPED.values()]
    return Commands(base, dict(zip(commands, forked.run(base, *commands.values(), at=stops), strict=True)))


def test_every_run_finishes(predecessors: Commands):
    for name, end in predecessors.ends.items():
        assert end.status == (128 + signal.SIGTERM if name.endswith("stopped") else 0), (name, end.output)
        assert "Traceback" not in end.output


def test_a_bilm_trains_both_directions_and_feeds_both_ends_of_a_tagger(predecessors: Commands):
    last = [record for record in records(predecessors.base / "bilm") if "train/loss" in record][-1]
    assert last["step"] == 3
    assert last["train/bilm_loss"] > 0
    before, after = (import_model(predecessors.base / name) for name in ("bilm", "tagger"))
    assert after.head is not None
    assert (after.config.encoder, after.head.mix_at, after.head.lstm) == ("bilm", "both", 8)
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, after.params[part], before.params[part])
    mixes = [after.params["token_head"][name]["weights"] for name in ("mix", "output_mix")]
    assert all(np.abs(weights).min() > 0 for weights in mixes), "each mix begins with zeros and is trained"
    assert not np.array_equal(*mixes)


def test_a_tagger_trains_on_bilm_features_and_predicts(predecessors: Commands):
    assert results(predecessors.base / "tagger")["scores"]["dev"]["f1"] > 0.5
    assert "oslo/B-LOC" in predecessors.ends["tag"].output


def test_static_vectors_store_the_word_counts_of_the_corpus(predecessors: Commands):
    corpus, model = open_corpus(predecessors.base / "corpus"), import_model(predecessors.base / "static")
    wanted = np.bincount(corpus.tokens[:], minlength=corpus.vocabulary.size)
    assert wanted.max() > 20
    np.testing.assert_array_equal(model.params["skip_gram_head"]["counts"], wanted)


def test_the_vector_file_holds_the_words_of_the_corpus(predecessors: Commands):
    pieces = open_corpus(predecessors.base / "corpus").tokenizer.pieces  # one of the subwords occurs twice
    words, vectors, notes = read_vectors(predecessors.base / "vectors" / "vectors.txt", pieces)
    assert (words, notes) == (list(pieces), ())
    assert set((predecessors.base / "text.txt").read_text().split()) <= set(words)
    trained = import_model(predecessors.base / "static").params["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(vectors, trained)


def test_a_character_model_stores_the_characters_of_each_piece(predecessors: Commands):
    model = import_model(predecessors.base / "characters")
    assert (model.config.encoder, model.config.character_cnn) == ("bilm", True)
    found, pieces = model.params["embeddings"]["characters"]["symbols"], model.tokenizer.pieces
    np.testing.assert_array_equal(found, piece_symbols(pieces, len(pieces)))
    assert bytes(found[pieces.index("house")][1:6].astype(np.uint8)) == b"house"


def test_flair_trains_on_characters_and_a_tagger_reads_its_word_states(predecessors: Commands):
    corpus, model = open_corpus(predecessors.base / "letters"), import_model(predecessors.base / "flair")
    assert max(map(len, corpus.tokenizer.pieces[5:])) == 1
    starts = model.params["encoder"]["word_starts"]
    assert [piece for piece, begins in zip(model.tokenizer.pieces, starts, strict=True) if begins] == [
        "<pad>", "[CLS]", "[SEP]", "[MASK]", "\u2581",
    ]  # fmt: skip
    after = import_model(predecessors.base / "flair_tagger")
    assert after.config.encoder == "flair"
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, after.params[part], model.params[part])
    assert results(predecessors.base / "flair_tagger")["scores"]["dev"]["accuracy"] > 0


def test_cove_trains_on_translation_and_a_tagger_reads_its_encoder_and_word_vectors(predecessors: Commands):
    last = [record for record in records(predecessors.base / "cove") if "train/loss" in record][-1]
    assert last["train/translation_loss"] > 0
    before, after = (import_model(predecessors.base / name) for name in ("cove", "cove_tagger"))
    assert {"decoder", "lm_head"} <= before.params.keys()
    assert (after.config.encoder, after.head.layers) == ("cove", "embeddings_and_last")
    assert "decoder" not in after.params
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, after.params[part], before.params[part])
    assert "not used by the task, left out: decoder, lm_head" in predecessors.ends["cove_tagger"].output


def test_cross_view_training_alternates_batches_and_exports_only_the_tagger(predecessors: Commands):
    workdir = predecessors.base / "static_tagger"
    assert not {part for part in import_model(workdir).params if "view" in part}
    trained = [record for record in records(workdir) if "train/loss" in record]
    assert all(record["train/view_loss"] > 0 for record in trained)
    steps = results(workdir)["steps_per_epoch"]
    assert steps == 2 * -(-TRAIN // 16)
    assert f"an epoch is {steps} steps" in predecessors.ends["views"].output


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_and_resumed_run_equals_the_uninterrupted_run_bit_for_bit(predecessors: Commands, name: str):
    workdir, step = STOPPED[name]
    assert f"step {step}" in predecessors.ends[f"{name} resumed"].output
    assert_same_weights(predecessors.base / "again" / name, predecessors.base / workdir)
