"""The contract of objectives: the project's own fulfil it, and an objective that does not is rejected in one sentence."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.named import load_named
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Model, dense, sampled, with_predictions
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import majority_baseline
from tests.objectives.scored import MODELS, objective_of
from tests.random_rows import TINY, random_batch, with_centres

OWN = "experiments/extensions/replaced_tokens.py:ReplacedTokens"


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("measure", MODELS)
def test_the_built_in_objectives_fulfil_the_contract(measure: str, pairs: bool):
    objective = objective_of(measure, pairs and measure == "mlm")
    objective.check("it")
    params = nn.unbox(jax.jit(objective.initial_parameters)(jax.random.key(0)))
    batch = with_centres(random_batch()) if measure == "skip_gram" else random_batch()
    scores = objective.summarise({**jax.jit(objective.sums)(params, batch, jnp.uint32(1)), **objective.counts(batch)})
    assert {f"{measure}_loss", f"{measure}_accuracy", "loss"} <= scores.keys()
    assert ("nsp_accuracy" in scores) == (pairs and measure == "mlm")
    assert np.isfinite(list(scores.values())).all()


class Good(Objective):
    scores: ClassVar[Any] = {"my loss": ("mine", "masked")}

    def parameters(self, model: Any, key: Any) -> Any:
        return {"mine": dense(model.hidden_size, 1, key)}

    def sums(self, params: Any, batch: Any, seed: Any) -> Any:
        return {"mine": params["mine"]["kernel"].sum()}

    def loss(self, sums: Any, counts: Any) -> Any:
        return sums["mine"] / jnp.maximum(counts["masked"], 1.0)


def changed(**parts: Any) -> Objective:
    """Returns `Good` with other parts, for a small model."""
    return type("Mine", (Good,), parts)().for_model(Model(TINY))


def test_a_minimal_objective_fulfils_the_contract():
    objective = changed()
    objective.check("it")
    scores = objective.summarise({"mine": 6.0, "masked": 3.0, "tokens": 9.0, "rows": 1.0})
    assert scores == {"my_loss": 2.0, "loss": 2.0}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"parameters": lambda self, model, key: {"mine": {"kernel": jnp.zeros((3, 1))}}},
            "the parameter mine/kernel of Mine has no axis names, which are needed to shard it; make it with `dense`",
        ),
        ({"scores": {"my loss": ("mene", "masked")}}, "it: the score 'my loss' needs 'mene', which neither sums nor"),
        ({"scores": {"my loss": ("mine", "maskd")}}, "which neither sums nor counts returns; did you mean 'masked'?"),
        ({"scores": {}}, "it has no scores; give it one"),
        (
            {"baselines": {"my lss": majority_baseline("mine", "tokens")}},
            "'my lss', which is not a score; did you mean 'my loss'?",
        ),
        ({"baselines": {"my loss": majority_baseline("yes", "tokens")}}, "the baseline of 'my loss' needs 'yes', which neither"),
        ({"sums": lambda self, *inputs: {"mine": jnp.zeros(3)}}, "sums must return a dict of scalars (name -> sum"),
        ({"sums": lambda self, *inputs: {"masked": jnp.zeros(())}}, "'masked' is both a sum and a count; give"),
        ({"sums": lambda self, *inputs: {"steps": jnp.zeros(())}}, "sums returns 'steps', a name that is reserved for the "
                                                                   "training"),
        ({"counts": lambda self, batch: {"masked": jnp.ones(())}}, "counts lacks 'tokens'; start it with `super().counts("),
        ({"loss": lambda self, sums, counts: jnp.ones(2) * sums["mine"]}, "loss must return a scalar, not an array (2,)"),
        ({"loss": lambda self, sums, counts: sums["mine"] ** 2}, "loss is not linear in the sums, so microbatches would not"),
    ],
)  # fmt: skip
def test_objectives_that_break_the_contract_are_refused_by_name(parts: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        changed(**parts).check("it")
    assert says in str(error.value)


def test_random_words_of_a_part_of_the_batch_equal_those_of_the_whole():
    logits, seed = jax.random.normal(jax.random.key(0), (8, 4, 64)), jnp.uint32(5)
    whole = sampled(logits, {}, seed)
    parts = [sampled(logits[i : i + 2], {"rows": jnp.arange(i, i + 2, dtype=jnp.uint32)}, seed) for i in range(0, 8, 2)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert (whole != sampled(logits, {}, jnp.uint32(6))).mean() > 0.5


def test_words_are_drawn_with_softmax_frequencies():
    logits = jnp.log(jnp.broadcast_to(jnp.array([0.7, 0.2, 0.1]), (4_000, 5, 3)))
    found = np.bincount(np.asarray(sampled(logits, {}, jnp.uint32(1))).ravel(), minlength=3) / 20_000
    np.testing.assert_allclose(found, [0.7, 0.2, 0.1], atol=0.02)


def test_replaced_tokens_detects_the_words_changed_by_its_generator():
    kind = load_named(OWN, {}, "config.objective")
    objective, batch = dataclasses.replace(kind(), generator_size=0.5).for_model(Model(TINY)), random_batch()
    objective.check("it")
    params = nn.unbox(jax.jit(objective.initial_parameters)(jax.random.key(0)))
    sums, counts = jax.jit(objective.sums)(params, batch, jnp.uint32(3)), objective.counts(batch)
    original, masked = with_predictions(batch, batch["masked_targets"]), np.asarray(batch["masked_targets"]) >= 0
    places = np.asarray(batch["masked_positions"])
    for row in range(len(masked)):
        np.testing.assert_array_equal(
            np.asarray(original)[row, places[row][masked[row]]], np.asarray(batch["masked_targets"])[row][masked[row]]
        )
    assert 0 < float(sums["replaced"]) <= masked.sum() == float(counts["masked"])
    found = objective.summarise({**sums, **counts})
    assert found["rtd_accuracy"] == pytest.approx(float(sums["rtd_right"] / counts["tokens"]))
    assert objective.baseline_scores(sums | counts)["rtd_accuracy_baseline"] == pytest.approx(
        1 - float(sums["replaced"] / counts["tokens"])
    )


@dataclasses.dataclass(frozen=True)
class WithTerm(MlmNsp):
    scores: ClassVar[Any] = {**MlmNsp.scores, "my term": ("term", "mlm_targets")}

    def loss(self, sums: Any, counts: Any) -> Any:
        return super().loss(sums, counts) + 0.5 * sums["term"] / counts["mlm_targets"]


def test_a_term_added_to_a_built_in_objective_is_in_its_loss_and_its_lines():
    model = Model(TINY, pairs=True)
    plain, own = (kind().for_model(model) for kind in (MlmNsp, WithTerm))
    sums = {"mlm_loss": 8.0, "mlm_correct": 1.0, "mlm_targets": 4.0, "nsp_loss": 1.0, "nsp_correct": 1.0, "nsp_examples": 2.0}
    sums = {name: np.float32(value) for name, value in sums.items()}
    scores = own.summarise(sums | {"term": np.float32(2.0)})
    assert plain.summarise(sums)["loss"] == 2.5
    assert (scores["loss"], scores["my_term"]) == (2.75, 0.5)
    baselines = {"unigram_accuracy": 0.1, "unigram_loss": 3.0, "nsp_majority_accuracy": 0.5}
    assert own.eval_line(scores | baselines) == (
        "MLM accuracy 25.0 % (word frequency alone 10.0 %), MLM loss 2.000 (3.000), perplexity 7.4, "
        "NSP accuracy 50.0 % (one answer for all pairs 50.0 %), my term 0.500"
    )
