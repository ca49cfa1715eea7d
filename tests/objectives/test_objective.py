"""The contract of objectives: the project's own fulfil it, and an objective that does not is rejected in one sentence."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.named import load_named
from bert_jax.model.config import ModelConfig
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.flops import model_row_flops
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Model, another_seed, apply_dense, dense, gumbel, sampled, unboxed, with_predictions
from bert_jax.objectives.objective import Objective, abstract_rows
from bert_jax.objectives.scores import majority_baseline, perplexity_formula, sum_formula
from tests.model.lowbias32 import hashed
from tests.objectives.scored import MODELS, ONE_LAYER, objective_of
from tests.random_rows import TINY, random_batch

OWN = "experiments/extensions/replaced_tokens.py:ReplacedTokens"
ORDERS = "experiments/extensions/sentence_order.py"


def drawn(objective: Objective) -> Any:
    """Returns random parameters of an objective; NumPy draws them, since they would take longer to compile than to draw."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: 0.1 * rng.random(x.shape, np.float32), unboxed(objective.abstract_parameters()))


@pytest.mark.parametrize(("measure", "pairs"), [*((measure, False) for measure in MODELS), ("mlm", True)])
def test_the_built_in_objectives_fulfil_the_contract(measure: str, pairs: bool):
    objective = objective_of(measure, pairs)
    objective.check("it")
    params, rows = unboxed(objective.abstract_parameters()), abstract_rows(1, 16, 4, targets=objective.rows)
    names = jax.eval_shape(lambda p, b: objective.sums(p, b, jnp.uint32(1)) | objective.counts(b), params, rows)
    scores = objective.summarise({name: np.float32(1) for name in names}).keys()
    assert {f"{measure}_loss", f"{measure}_accuracy", "loss"} <= scores
    assert ("nsp_accuracy" in scores) == pairs


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


def across_rows(self: Objective, params: Any, batch: Any, seed: Any) -> Any:
    """Returns the sum of a contrastive loss of the texts of all rows, inside a function that is differentiated and compiled."""

    @jax.jit
    @jax.checkpoint
    def contrasted(x: Any) -> Any:
        return jnp.einsum("bpd,bqd->bpq", x, x).sum()

    return {"mine": contrasted(batch["input_ids"].astype(jnp.float32)[None])}


def test_a_minimal_objective_fulfils_the_contract():
    objective = changed()
    objective.check("it")
    scores = objective.summarise({"mine": 6.0, "masked": 3.0, "tokens": 9.0, "rows": 1.0})
    assert scores == {"my_loss": 2.0, "loss": 2.0}
    assert objective.summarise({}) == objective.summarise({"mine": 6.0}) == {}, "nothing was predicted"
    assert (objective.shown_scores()["my_loss"].from_zero, objective.judges_pairs) == (False, False)


@pytest.mark.parametrize(
    ("rows", "counts", "predicted"),
    [
        ("masked", {"masked", "pairs"}, "masked_targets"),
        ("next", {"masked", "pairs"}, "masked_targets"),
        ("centres", {"pairs"}, "centres"),
        ("translated", set(), "targets"),
    ],
)
def test_an_objective_needs_no_own_counts_for_any_rows(rows: str, counts: set[str], predicted: str):
    parts = {"scores": {"my loss": ("mine", "rows")}, "loss": lambda self, sums, counts: sums["mine"] / counts["rows"]}
    objective = changed(rows=rows, **parts)
    objective.check("it")
    batch = {name: np.zeros(array.shape, np.int32) for name, array in abstract_rows(1, 16, 4, targets=rows).items()}
    assert jax.eval_shape(objective.counts, batch).keys() == counts | {"tokens", "rows"}
    assert objective.predicted(batch) is batch[predicted]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"parameters": lambda self, model, key: {"mine": {"kernel": jnp.zeros((3, 1))}}},
            "the parameter mine/kernel of Mine has no axis names, which are needed to shard it; make it with `dense`",
        ),
        (
            {"parameters": lambda self, model, key: {"mine": [dense(3, 1, key)]}},
            "the parameters mine of Mine are not nested dicts with texts as keys; write lists as dicts, such as {'mine_1': ...,",
        ),
        ({"__hash__": lambda self: hash({})}, "it: the settings must be hashable (unhashable type: 'dict'); make a list a tuple"),
        ({"scores": {"my loss": ("mene", "masked")}}, "it: the score 'my loss' needs 'mene', which neither sums nor"),
        ({"scores": {"my loss": ("mine", "maskd")}}, "which neither sums nor counts returns; did you mean 'masked'?"),
        ({"scores": {}}, "it has no scores; give it one"),
        (
            {"scores": {**Good.scores, "loss": sum_formula("my_los")}},
            "it: the formula of the score 'loss' reads 'my_los', which is not a score before it; did you mean 'my_loss'?",
        ),
        ({"scores": {**Good.scores, "perplexity": perplexity_formula("mine_loss")}}, "'perplexity' reads 'mine_loss', which"),
        ({"scores": {**Good.scores, "mean": lambda scores: scores["half"] / 2}}, "the score 'mean' reads 'half', which is not a"),
        ({"scores": {"loss": sum_formula("my_loss"), **Good.scores}}, "'my_loss', which is not a score before it; move the"),
        ({"scores": {**Good.scores, "mean": lambda: 0.0}}, "'mean' must be a function of (scores), but it cannot be called"),
        (
            {"baselines": {"my lss": majority_baseline("mine", "tokens")}},
            "'my lss', which is not a score; did you mean 'my loss'?",
        ),
        ({"baselines": {"my loss": majority_baseline("yes", "tokens")}}, "the baseline of 'my loss' needs 'yes', which neither"),
        ({"sums": lambda self, *inputs: {"mine": jnp.zeros(3)}}, "sums must return a dict of scalars (name -> sum"),
        (
            {"sums": lambda self, *inputs: {"mine": jnp.zeros((), jnp.bfloat16)}},
            "sums returns 'mine' in bfloat16, in which a sum over many steps becomes wrong; sums and counts must be",
        ),
        ({"counts": lambda self, batch: {"masked": jnp.zeros((), jnp.int32)}}, "counts returns 'masked' in int32; sums and"),
        ({"sums": lambda self, *inputs: {"masked": jnp.zeros(())}}, "'masked' is both a sum and a count; give"),
        ({"sums": lambda self, *inputs: {"steps": jnp.zeros(())}}, "sums returns 'steps', a name that is reserved for the "
                                                                   "training"),
        ({"counts": lambda self, batch: {"masked": jnp.ones(())}}, "counts lacks 'tokens'; start it with `super().counts("),
        ({"sums": across_rows}, "it: sums makes an array of rows x rows, so the loss of a row would depend on the other rows"),
        ({"loss": lambda self, sums, counts: jnp.ones(2) * sums["mine"]}, "loss must return a scalar, not an array (2,)"),
        ({"loss": lambda self, sums, counts: sums["mine"] ** 2}, "loss is not linear in the sums, so microbatches would not"),
    ],
)  # fmt: skip
def test_objectives_that_break_the_contract_are_refused_by_name(parts: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        changed(**parts).check("it")
    assert says in str(error.value)


@pytest.mark.parametrize("size", [211, 2 * 10_007])
def test_an_array_that_is_not_rows_x_rows_is_accepted_whatever_its_size(size: int):
    def sums(self: Objective, params: Any, batch: Any, seed: Any) -> Any:
        flat = jnp.arange(len(batch["input_ids"])) * 16 + jnp.int32(len(batch["input_ids"]) * 16 * 30_000)
        return {"mine": (flat[:, None] + jnp.zeros((1, size))).sum()}

    own = changed(sums=sums)
    own.check("it")
    assert own.sums({}, {"input_ids": np.zeros((2, 16), np.int32)}, None)["mine"].shape == ()


def test_random_words_of_a_part_of_the_batch_equal_those_of_the_whole():
    @jax.jit
    def words(logits):
        def part(i):
            return sampled(logits[i : i + 2], {"rows": jnp.arange(i, i + 2, dtype=jnp.uint32)}, jnp.uint32(5))

        return *(sampled(logits, {}, jnp.uint32(seed)) for seed in (5, 6)), [part(i) for i in range(0, 8, 2)]

    whole, of_another_seed, parts = jax.device_get(words(np.random.default_rng(0).standard_normal((8, 4, 64), np.float32)))
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert (whole != of_another_seed).mean() > 0.5


def test_words_are_drawn_with_softmax_frequencies():
    logits = np.broadcast_to(np.log(np.float32([0.7, 0.2, 0.1])), (4_000, 5, 3))
    words = jax.jit(lambda logits: sampled(logits, {}, jnp.uint32(1)))(logits)
    found = np.bincount(np.asarray(words).ravel(), minlength=3) / 20_000
    np.testing.assert_allclose(found, [0.7, 0.2, 0.1], atol=0.02)


def test_the_largest_and_the_smallest_random_word_have_finite_noise():
    noise = np.asarray(jax.jit(gumbel)(np.array([0, 2**31, 2**32 - 1], np.uint32)))
    assert np.isfinite(noise).all()
    assert (np.diff(noise) > 0).all()


def test_seeds_of_further_draws_and_of_evaluations_are_fixed():
    @jax.jit
    def words(seed, logits):
        seeds = (None, jnp.uint32(int.from_bytes(b"samp", "big")))
        return [another_seed(seed, number) for number in (1, 3)], [sampled(logits, {}, seed) for seed in seeds]

    seeds, (evaluated, drawn) = words(np.uint32(7), np.zeros((4, 20), np.float32))
    assert [int(seed) for seed in seeds] == [hashed(7 + n * 0x9E3779B9) for n in (1, 3)]
    assert another_seed(None, 1) is None
    np.testing.assert_array_equal(evaluated, drawn)


def test_predictions_replace_the_words_of_used_slots_even_if_the_target_is_word_0():
    ids, positions, targets = (np.int32([row]) for row in ([5, 6, 7, 8], [2, 1, 0], [0, 9, -1]))
    batch = {"input_ids": ids, "masked_positions": positions, "masked_targets": targets}
    assert jax.jit(with_predictions)(batch, np.int32([[20, 21, 22]])).tolist() == [[5, 21, 20, 8]]


@pytest.mark.parametrize(
    ("fields", "fraction", "sizes"),
    [
        ({}, 0.25, (192, 3, 768, 0)),
        ({}, 0.1, (77, 1, 307, 0)),
        ({}, 1e-4, (1, 1, 1, 0)),
        ({"num_key_value_heads": 6}, 0.5, (384, 6, 1_536, 3)),
        ({"num_key_value_heads": 1}, 0.5, (384, 6, 1_536, 1)),
        ({"num_key_value_heads": 6}, 0.25, (192, 3, 768, 1)),  # two heads would not divide three
        ({"positions": "rotary"}, 0.25, (192, 3, 768, 0)),
        ({"positions": "rotary"}, 0.1, (78, 1, 307, 0)),  # an even head
        ({"encoder": "bilm"}, 0.25, (192, 3, 768, 0)),
        ({"encoder": "bilm"}, 0.1, (78, 1, 307, 0)),  # two equal directions
    ],
)
def test_a_narrower_model_has_scaled_widths_and_heads_and_the_same_layers(
    fields: dict[str, Any], fraction: float, sizes: tuple[int, ...]
):
    config = ModelConfig(**fields)
    found = Model(config, pairs=True).scaled(fraction)
    assert found.pairs
    narrow = found.config
    assert (narrow.hidden_size, narrow.num_heads, narrow.intermediate_size, narrow.num_key_value_heads) == sizes
    assert (narrow.num_layers, narrow.vocab_size) == (config.num_layers, config.vocab_size)


def test_replaced_tokens_detects_the_words_changed_by_its_generator():
    kind = load_named(OWN, {}, "config.objective")
    objective, batch = dataclasses.replace(kind(), generator_size=0.5).for_model(Model(ONE_LAYER)), random_batch()
    sums = jax.jit(lambda p, b: objective.sums(p, b, jnp.uint32(3)) | objective.counts(b))(drawn(objective), batch)
    counts = {name: sums.pop(name) for name in jax.eval_shape(objective.counts, batch)}
    masked = np.asarray(batch["masked_targets"]) >= 0
    assert 0 < float(sums["replaced"]) <= masked.sum() == float(counts["masked"])
    found = objective.summarise({**sums, **counts})
    assert found["rtd_accuracy"] == pytest.approx(float(sums["rtd_right"] / counts["tokens"]))
    assert objective.baseline_scores(sums | counts)["rtd_accuracy_baseline"] == pytest.approx(
        1 - float(sums["replaced"] / counts["tokens"])
    )


def packed_pairs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns 16 rows of two pairs of different words, each with a mask at the end of A and at the start of B."""
    rows, length = 16, 40
    batch = {name: np.zeros((rows, length), np.int32) for name in ("input_ids", "token_type_ids", "sequence_ids", "position_ids")}
    batch |= {"masked_positions": np.zeros((rows, 6), np.int32), "masked_targets": np.full((rows, 6), -1, np.int32)}
    batch |= {"cls_positions": np.zeros((rows, 3), np.int32), "nsp_labels": np.full((rows, 3), -1, np.int32)}
    for row in range(rows):
        column = 0
        for example in (1, 2):
            a, b = rng.integers(1, 8, 2)
            ids = [1, *(100 * example + np.arange(a)), 2, *(100 * example + 50 + np.arange(b)), 2]
            here = slice(column, column + len(ids))
            batch["input_ids"][row, here], batch["sequence_ids"][row, here] = ids, example
            batch["position_ids"][row, here] = np.arange(len(ids))
            batch["token_type_ids"][row, here] = np.arange(len(ids)) > a + 1
            batch["cls_positions"][row, example - 1], batch["nsp_labels"][row, example - 1] = column, 0
            for slot, position in enumerate((column + a, column + a + 2), 2 * (example - 1)):
                batch["masked_positions"][row, slot] = position
                batch["masked_targets"][row, slot] = batch["input_ids"][row, position]
            column += len(ids)
    return batch


def test_sentence_order_swaps_the_texts_of_half_of_the_pairs_with_their_masks():
    batch = packed_pairs(np.random.default_rng(3))
    own = jax.jit(load_named(f"{ORDERS}:with_orders", {}, "config.objective"))
    found = jax.device_get(own(batch, jnp.uint32(2)))
    labels = found["nsp_labels"]
    assert (labels[:, 2] == -1).all()
    assert 6 < (labels[:, :2] == 1).sum() < 26
    for row in range(len(labels)):
        for example in (1, 2):
            (ids, types), (before, kinds) = (
                (x["input_ids"][row][here], x["token_type_ids"][row][here])
                for x in (found, batch)
                for here in [x["sequence_ids"][row] == example]
            )
            a, b = before[1:][kinds[1:] == 0], before[kinds == 1]  # each with its [SEP]
            first, second = (b, a) if labels[row, example - 1] else (a, b)
            assert ids.tolist() == [1, *first, *second]
            assert types.tolist() == [0] * (1 + len(first)) + [1] * len(second)
        used = found["masked_targets"][row] >= 0
        there = found["input_ids"][row][found["masked_positions"][row]]
        assert there[used].tolist() == found["masked_targets"][row][used].tolist()
    random = batch | {"nsp_labels": np.where(batch["nsp_labels"] == 0, 1, -1)}
    kept = jax.device_get(own(random, None))
    np.testing.assert_array_equal(kept["input_ids"], batch["input_ids"])
    assert (kept["nsp_labels"] == -1).all()


@pytest.mark.parametrize("encoder", ["transformer", "bilm"])
def test_flops_of_an_own_objective_are_those_of_its_gradient_for_a_row_with_one_example(encoder: str):
    """A layer of 16 inputs and one output, at every [CLS], adds its own."""
    model = Model(dataclasses.replace(TINY, encoder=encoder, num_layers=1))

    def flops(dense: bool) -> float:
        def sums(self: Any, params: Any, batch: Any, seed: Any) -> Any:
            hidden = self.model.encode(params, batch, seed)[:, : batch["cls_positions"].shape[1]]
            return {"mine": (apply_dense(params["mine"], hidden) if dense else hidden).sum()}

        return type("Mine", (Good,), {"sums": sums})().for_model(model).flops(8, 2)

    without = flops(False)
    assert flops(True) - without == 6 * 16
    assert without >= model_row_flops(model.config, 8)


class SameSums(MlmNsp):
    def sums(self, params: Any, batch: Any, seed: Any) -> Any:
        return super().sums(params, batch, seed)


class Stated(SameSums):
    def row_flops(self, length: int, predictions: int) -> float:
        return 7.0


@pytest.mark.parametrize(("counted", "own"), [(1.0, None), (1e12, 1e12)])
def test_a_subclass_of_a_built_in_objective_that_may_compute_more_has_counted_flops_if_they_are_more(
    counted: float, own: float | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bert_jax.objectives.objective.gradient_flops", lambda *_: counted)
    known = model_row_flops(ONE_LAYER, 16, 2)
    expected = {MlmNsp: known, SameSums: own or known, Stated: 7.0}
    assert {kind: kind().for_model(Model(ONE_LAYER)).flops(16, 2) for kind in expected} == expected


def test_pairs_add_a_pooler_and_a_head_to_the_model_and_to_its_exported_class():
    whole = {"mlm_head", "pooler", "nsp_head"}
    for pairs, parts, exported in ((False, {"mlm_head"}, "BertForMaskedLM"), (True, whole, "BertForPreTraining")):
        objective = objective_of("mlm", pairs)
        assert objective.abstract_parameters().keys() - {"embeddings", "encoder"} == parts
        assert objective.exported == exported


def test_row_losses_are_means_over_their_targets_whether_from_the_sums_of_an_objective_or_from_the_logits():
    """The last row predicts nothing."""
    batch = {name: np.array(x) for name, x in random_batch().items()}
    batch["masked_targets"][-1] = batch["nsp_labels"][-1] = -1
    plain, own = (kind().for_model(Model(ONE_LAYER, pairs=True)) for kind in (MlmNsp, SameSums))
    params = drawn(plain)
    losses, sums = jax.jit(lambda p, b: (plain.row_losses(p, b), plain.sums(p, b, None)))(params, batch)
    of_sums = jax.jit(own.row_losses)(params, batch)
    targets = {"mlm_loss": np.sum(batch["masked_targets"] >= 0, axis=1), "nsp_loss": np.sum(batch["nsp_labels"] >= 0, axis=1)}
    assert losses.keys() == targets.keys()
    assert 1 in targets["mlm_loss"]
    np.testing.assert_allclose(losses["mlm_loss"], of_sums["mlm_loss"], rtol=1e-5)
    for name, counts in targets.items():
        assert float(losses[name] @ counts) == pytest.approx(float(sums[name]), rel=1e-5)
        assert float(losses[name][-1]) == 0
    without_pairs = MlmNsp().for_model(Model(ONE_LAYER))
    assert jax.eval_shape(without_pairs.row_losses, drawn(without_pairs), batch).keys() == {"mlm_loss"}


def test_formulas_may_read_scores_that_a_model_lacks_and_need_not_be_defined_for_all_numbers():
    """Without pairs, the loss of BERT's objective is a sum with the missing score "nsp_loss"."""
    plain = objective_of("mlm", False)
    taught = Distillation(plain, PretrainingDistillation()).for_model(plain.model)
    options = {
        "gain": lambda scores: 1 / (scores["my_loss"] - 1),
        "total": sum_formula("my_loss", "aux_loss"),
        "shared": lambda scores: scores["mlm_loss"] if "mlm_loss" in scores else scores["my_loss"],
    }
    own = (changed(scores={**Good.scores, name: formula}) for name, formula in options.items())
    for objective in (plain, taught, *own, changed(scores=property(lambda self: Good.scores))):
        objective.check_formulas("it")
    assert [formula({"my_loss": 3.0}) for formula in options.values()] == [0.5, 3.0, 3.0]


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
