"""Translation as an objective: its loss, the results derived from it, and its baseline."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.data import DECODER, INPUTS
from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig
from bert_jax.data.plan import plan_epoch
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig, published
from bert_jax.objectives import translation
from bert_jax.objectives.flops import counted_flops, model_row_flops
from bert_jax.objectives.model import Model, unboxed
from bert_jax.objectives.objective import abstract_rows
from bert_jax.objectives.scores import EvalRows
from bert_jax.objectives.translation import Translation
from tests.data.corpora import FIRST, corpus_of
from tests.random_rows import drawn_parameters

CONFIG = ModelConfig(
    **published("transformer_base")
    | {
        "vocab_size": 1_500, "vocab_multiple": 128, "hidden_size": 16, "num_layers": 1, "decoder_layers": 2, "num_heads": 2,
        "intermediate_size": 32, "max_position": 32, "hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.2,
        "scan_layers": True,
    }
)  # fmt: skip
SIZES = [[1 + n % 5, 1 + n % 7] for n in range(60)]
CORPUS = dataclasses.replace(corpus_of(SIZES), languages=("en", "de"))
PACKED = ExampleConfig(length=24, max_predictions=24, pairs="none", targets="translated", packed_examples=6)
ALONE = dataclasses.replace(PACKED, packed_examples=1)
OBJECTIVE = Translation().for_model(Model(CONFIG))


def epoch(config):
    """Returns (the number of rows, a batch of all rows and of empty ones, up to 60)."""
    rows = plan_epoch(CORPUS, config, seed=0, epoch=0).num_rows
    batch, empty = BatchSource(CORPUS, config, rows, seed=0).at(0), ((0, len(SIZES) - rows), (0, 0))
    return rows, {name: np.pad(x, empty, constant_values=-1 if name == "targets" else 0) for name, x in batch.items()}


BATCH = epoch(PACKED)[1]


@jax.jit
def outputs(params, batch):
    """Returns (logits, sums, row losses)."""
    logits = OBJECTIVE.model.logits(params, batch)["logits"]
    return logits, OBJECTIVE.sums(params, batch, None), OBJECTIVE.row_losses(params, batch)


@pytest.fixture(scope="module")
def computed():
    """Returns the `outputs` of `BATCH`."""
    return outputs(drawn_parameters(CONFIG), BATCH)


def test_the_loss_is_the_mean_smoothed_cross_entropy_over_target_tokens(computed):
    (logits, sums, _), batch = computed, BATCH
    logits = np.asarray(logits, np.float64)[..., :1_500]
    of_classes = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    used = batch["targets"] >= 0
    chosen = -np.take_along_axis(of_classes, np.maximum(batch["targets"], 0)[..., None], -1)[..., 0][used]
    smoothed = 0.9 * chosen + 0.1 * -of_classes.mean(-1)[used]
    counts = OBJECTIVE.counts(batch)
    assert float(OBJECTIVE.loss(sums, counts)) == pytest.approx(smoothed.mean(), rel=1e-5)
    scores = OBJECTIVE.summarise({name: float(value) for name, value in (sums | counts).items()})
    assert scores["translation_loss"] == pytest.approx(chosen.mean(), rel=1e-5)
    assert scores["loss"] == pytest.approx(smoothed.mean(), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(chosen.mean()), rel=1e-4)
    best = of_classes.argmax(-1)[used] == batch["targets"][used]
    assert scores["translation_accuracy"] == pytest.approx(best.mean())
    assert float(counts["translation_targets"]) == used.sum()
    both = sum(int((batch[f"{prefix}sequence_ids"] > 0).sum()) for prefix in ("", DECODER))
    assert float(counts["tokens"]) == both


def test_packed_pairs_have_the_loss_of_separate_pairs(computed):
    rows, alone = epoch(ALONE)
    assert (BATCH["sequence_ids"] > 0).any(axis=1).sum() < rows == 60
    _, sums, _ = outputs(drawn_parameters(CONFIG), alone)
    assert {name: float(x) for name, x in computed[1].items()} == pytest.approx(
        {name: float(x) for name, x in sums.items()}, rel=1e-6
    )


def test_the_loss_of_a_single_token_is_not_halved():
    assert OBJECTIVE.loss({"smoothed_loss": np.float32(3)}, {"translation_targets": np.float32(1)}) == 3


def test_row_losses_are_means_over_their_tokens(computed):
    _, sums, losses = computed
    total = (np.asarray(losses["translation_loss"]) * (BATCH["targets"] >= 0).sum(1)).sum()
    assert total == pytest.approx(float(sums["translation_loss"]), rel=1e-5)


def test_translation_fulfils_the_contract_of_an_objective():
    OBJECTIVE.check("config.objective=translation")
    shapes = abstract_rows(4, 24, 24, targets="translated")
    batch = BatchSource(CORPUS, PACKED, 4, seed=0).at(0)
    assert {name: array.shape for name, array in batch.items()} == {name: array.shape for name, array in shapes.items()}
    assert {*shapes} == {*INPUTS, *(DECODER + name for name in INPUTS), "targets"}


@pytest.mark.parametrize(("shards", "pairs_at_once"), [(1, 1 << 17), (3, 7)])
def test_the_baseline_is_the_frequency_of_target_tokens(shards: int, pairs_at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(translation, "_COUNTED", pairs_at_once)
    corpus = dataclasses.replace(corpus_of(SIZES, shards), languages=("en", "de"))
    plan = plan_epoch(corpus, PACKED, seed=0, epoch=0)
    held_out = BatchSource(corpus, PACKED, 4, seed=1).at(0)
    scores = OBJECTIVE.eval_scores(EvalRows(held_out["targets"], np.zeros((4, 0), np.int32), corpus, plan))
    frequency = np.zeros(CORPUS.vocabulary.size)
    sentences = CORPUS.sentence_offsets
    for target in range(1, len(sentences) - 1, 2):
        frequency[FIRST + np.arange(sentences[target], sentences[target + 1])] += 1
    frequency[CORPUS.vocabulary.sep_id] = 60
    used = held_out["targets"][held_out["targets"] >= 0]
    smoothed = (frequency + 1) / (frequency + 1).sum()
    assert scores["unigram_accuracy"] == (used == CORPUS.vocabulary.sep_id).mean()
    assert scores["unigram_loss"] == pytest.approx(-np.log(smoothed[used]).mean())


def test_row_flops_equal_the_matrix_products():
    objective = Translation().for_model(Model(dataclasses.replace(CONFIG, vocab_multiple=1, attention="plain")))
    abstract = unboxed(objective.abstract_parameters())
    batch = abstract_rows(1, 24, 24, targets="translated")
    forward = counted_flops(lambda p, b: objective.sums(p, b, None), abstract, batch)
    assert 3 * forward == pytest.approx(model_row_flops(objective.model.config, 24, 24), rel=1e-6)


def test_smoothing_out_of_range_is_refused():
    with pytest.raises(UserError, match=r"objective_options.label_smoothing=1.0 must be at least 0 and below 1"):
        Translation(label_smoothing=1.0)
