"""Continuations of a left-to-right model, compared with transformers' BertLMHeadModel and its `generate` on random weights:
`tests/golden/causal_golden.npz`, made by `make_causal_golden.py`."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from bert_jax.interop.names import params_from_tensors
from bert_jax.model.cached_decoding import empty_cache, read_tokens
from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import unstacked_layers
from bert_jax.prediction.decoding import (
    Continued,
    Decoding,
    Knobs,
    Prompts,
    Search,
    _largest,
    _most_probable,
    allowed_logits,
    continued,
    next_tokens,
)
from tests.random_rows import outputs_of

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "causal_golden.npz"
SEP, ROOM = 3, 14


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def config(golden) -> ModelConfig:
    return ModelConfig(
        vocab_size=97,
        hidden_size=20,
        num_layers=3,
        num_heads=4,
        intermediate_size=44,
        max_position=40,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        direction="left_to_right",
    )


@pytest.fixture(scope="module")
def params(golden, config):
    tensors = {name.removeprefix("parameters/"): x for name, x in golden.items() if name.startswith("parameters/")}
    return params_from_tensors(tensors, config, "the golden file")


def prompts_of(golden) -> Prompts:
    """Returns the prompts of the golden file, padded on the left to 12 tokens."""
    ids, real = np.zeros((6, 12), np.int32), np.zeros((6, 12), bool)
    for row, length in enumerate(golden["lengths"]):
        ids[row, 12 - length :], real[row, 12 - length :] = golden["input_ids"][row, :length], True
    keys = jax.vmap(jax.random.key)(jnp.arange(6))
    return Prompts(jnp.asarray(ids), jnp.asarray(real), keys)


def run(params, config, prompts: Prompts, limit: int = ROOM, **settings) -> Continued:
    knobs = Knobs(limit, **{name: settings.pop(name) for name in Knobs._fields if name in settings})
    decoding = Decoding(end_id=SEP, pad_id=0, **settings)
    found = continued(unstacked_layers(params), prompts, knobs, config=config, decoding=decoding, room=ROOM)
    return jax.device_get(found)


def logits_of(config, params, ids: np.ndarray) -> np.ndarray:
    """Returns the logits at every position, from the whole model, which reads 6 texts of 26 tokens each time."""
    whole = np.zeros((6, 12 + ROOM), np.int32)
    whole[: len(ids), : ids.shape[1]] = ids
    columns = np.broadcast_to(np.arange(whole.shape[1], dtype=np.int32), whole.shape)
    batch = {
        "input_ids": whole,
        "token_type_ids": np.zeros_like(whole),
        "position_ids": columns,
        "sequence_ids": np.ones_like(whole),
        "masked_positions": columns,
        "cls_positions": np.zeros((6, 1), np.int32),
    }
    rest = {"pooler": {"dense": {"kernel": np.zeros((20, 20)), "bias": np.zeros(20)}}}
    rest["nsp_head"] = {"dense": {"kernel": np.zeros((20, 2)), "bias": np.zeros(2)}}
    return np.asarray(outputs_of(config, params | rest, batch, None)["mlm_logits"])[: len(ids), : ids.shape[1]]


def test_a_left_to_right_bert_equals_transformers(golden, config, params):
    ours = logits_of(config, params, golden["input_ids"])
    assert np.abs(ours - golden["logits"]).max() < 1e-6 * np.abs(golden["logits"]).max()


def test_reading_with_a_cache_gives_the_logits_of_the_whole_text(golden, config, params):
    ids, layers = golden["input_ids"], unstacked_layers(params)
    read = jax.jit(read_tokens, static_argnums=1)
    cache, end = empty_cache(config, 6, 13), 0
    for count in (5, 5):
        columns = slice(end, end + count)
        logits, cache = read(layers, config, cache, ids[:, columns], np.ones((6, count), bool))
        end += count
        np.testing.assert_allclose(logits, golden["logits"][:, end - 1], atol=2e-5)


@pytest.mark.parametrize(("name", "settings"), [("greedy", {}), ("beams_4_long", {"beams": 4, "length_penalty": 2.0})])
def test_prompts_of_several_lengths_are_continued_as_by_transformers(golden, config, params, name, settings):
    found = run(params, config, prompts_of(golden), **settings)
    np.testing.assert_array_equal(found.ids, golden[name])


def test_the_golden_texts_end_early_and_late(golden):
    ended = np.stack([(golden[name] == SEP).any(1) for name in ("greedy", "beams_4_long")])
    assert 2 < ended.sum() < 10


@pytest.mark.parametrize("settings", [{}, {"beams": 4, "length_penalty": -1.0}])
def test_log_probabilities_cover_the_new_tokens_and_beams_have_scores(golden, config, params, settings):
    found = run(params, config, prompts_of(golden), **settings)
    whole, ends = np.zeros((6, 12 + ROOM), np.int32), []
    for row, (length, new) in enumerate(zip(golden["lengths"], found.ids, strict=True)):
        count = int(np.argmax(new == SEP)) + 1 if (new == SEP).any() else ROOM
        ends.append((length, length + count))
        whole[row, : length + count] = [*golden["input_ids"][row, :length], *new[:count]]
    assert len({end - length for length, end in ends}) > 1, "some texts end earlier than others"
    each = scipy.special.log_softmax(logits_of(config, params, whole), axis=-1)
    for row, (length, end) in enumerate(ends):
        total = float(each[row, np.arange(length, end) - 1, whole[row, length:end]].sum())
        assert found.log_probability[row] == pytest.approx(total, abs=1e-3)
        if settings:
            assert found.score[row] == pytest.approx(total * (end - length), abs=1e-3)
        else:
            assert found.score is None


def test_a_draw_among_one_token_or_at_a_low_temperature_is_the_most_probable_token(golden):
    logits = golden["logits"].reshape(-1, 97).astype(np.float32)
    keys = jax.vmap(jax.random.key)(jnp.arange(len(logits)))
    for knobs, options in (({}, {"top_k": 1}), ({"top_p": 1e-6}, {"nucleus": True}), ({"temperature": 1e-4}, {})):
        decoding = Decoding(end_id=SEP, pad_id=0, sample=True, **options)
        found = jax.jit(next_tokens, static_argnums=3)(logits, keys, Knobs(1, **knobs), decoding)
        np.testing.assert_array_equal(found, logits.argmax(-1))


def test_top_k_and_nucleus_keep_the_tokens_that_their_definitions_name():
    logits = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32) * 3
    decoding = Decoding(end_id=SEP, pad_id=0, sample=True, top_k=12, nucleus=True)
    allowed = jax.jit(allowed_logits, static_argnums=2)(logits, Knobs(1, 1.0, 0.8), decoding)
    for row, kept in zip(logits, np.isfinite(allowed), strict=True):
        best = np.argsort(-row)[:12]
        shares = np.exp(row[best]) / np.exp(row[best]).sum()
        count = int(np.searchsorted(np.cumsum(shares), 0.8)) + 1
        assert sorted(np.flatnonzero(kept)) == sorted(best[:count])


@pytest.mark.parametrize("columns", [7, 200, 640, 1_001])
def test_the_best_words_of_a_large_vocabulary_equal_those_of_a_full_sort(columns):
    """Rounded logits have ties, and the first of the tied words counts as the best. Barred words are -inf."""
    logits = np.round(np.random.default_rng(2).standard_normal((5, columns)), 1).astype(np.float32)
    logits[1, columns // 2 :], logits[2] = -np.inf, 0.0
    values, chosen = jax.jit(_largest, static_argnums=1)(logits, 6)
    wanted = np.argsort(-logits, axis=1, kind="stable")[:, :6]
    np.testing.assert_array_equal(chosen, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, wanted, axis=1))


def test_a_nucleus_contains_the_first_token_and_none_without_probability():
    decoding = Decoding(end_id=SEP, pad_id=0, sample=True, nucleus=True)
    for top_p in (1.0, 0.5, 0.0):
        kept = jax.jit(allowed_logits, static_argnums=2)(np.float32([[-200.0, 0.0]]), Knobs(1, 1.0, top_p), decoding)
        assert np.isfinite(kept).tolist() == [[False, True]]


TEXTS, PIECES = 4_000, 90


def drawn(params, config, seeds: np.ndarray, first: int | np.ndarray = 2, limit: int = 2) -> Continued:
    """Returns two tokens after texts of one token, drawn from a model of one layer. The last 7 of the 97 ids have no piece."""
    ids = np.broadcast_to(np.int32(first), TEXTS)[:, None]
    prompts = Prompts(ids, np.ones((TEXTS, 1), bool), jax.vmap(jax.random.key)(seeds))
    layers = unstacked_layers(params)
    layers["encoder"] = layers["encoder"] | {"layers": layers["encoder"]["layers"][:1]}
    decoding = Decoding(end_id=SEP, pad_id=0, sample=True, pieces=PIECES)
    config = dataclasses.replace(config, num_layers=1)
    return jax.device_get(continued(layers, prompts, Knobs(limit), config=config, decoding=decoding, room=2))


def test_draws_have_their_frequencies_among_ids_with_a_piece_and_their_probability_among_all(config, params):
    bias = np.array(params["mlm_head"]["bias"])
    bias[PIECES:] += 9.0  # by far the most probable ids
    found = drawn(params | {"mlm_head": params["mlm_head"] | {"bias": bias}}, config, np.arange(TEXTS), limit=1)
    chosen, first, counts = np.unique(found.ids[:, 0], return_index=True, return_counts=True)
    assert chosen.max() < PIECES
    shares = np.exp(found.log_probability[first])
    assert len(chosen) > 80
    assert shares.sum() < 0.1, "most of the probability is that of the ids without a piece"
    wanted = shares / shares.sum()
    assert np.abs(counts / TEXTS - wanted).max() < 5 * np.sqrt(wanted.max() / TEXTS)


def test_draws_follow_the_seed_of_their_text_only(config, params):
    first = np.random.default_rng(4).integers(4, 97, TEXTS)
    together = drawn(params, config, np.arange(TEXTS), first).ids
    np.testing.assert_array_equal(drawn(params, config, np.arange(TEXTS)[::-1], first[::-1]).ids[::-1], together)
    assert (drawn(params, config, np.arange(TEXTS) + TEXTS, first).ids != together).any()


def test_the_tokens_of_a_text_are_drawn_independently_of_each_other(config, params):
    """A model without weights gives all tokens the same probability after any text; the test counts pairs of tokens."""
    found = drawn(jax.tree.map(np.zeros_like, params), config, np.arange(TEXTS)).ids
    first, second = found[found[:, 0] != SEP].T
    counts = np.histogram2d(first % 4, second % 4, bins=4)[0]
    assert counts.min() > TEXTS / 16 / 2
    assert scipy.stats.chi2_contingency(counts).pvalue > 1e-4
    assert (first == second).mean() < 0.05


def test_beams_read_no_id_without_a_piece_and_the_others_keep_their_probability():
    logits = np.random.default_rng(6).standard_normal((5, 97)).astype(np.float32)
    logits[:, PIECES:] += 9.0
    decoding = Decoding(end_id=SEP, pad_id=0, beams=3, pieces=PIECES)
    best, tokens = jax.jit(_most_probable, static_argnums=(1, 2))(logits, np.int32(1), Search(Knobs(9), decoding, 9, print))
    np.testing.assert_array_equal(tokens, np.argsort(-logits[:, :PIECES], axis=1)[:, :6])
    np.testing.assert_allclose(best, np.take_along_axis(scipy.special.log_softmax(logits, axis=1), tokens, axis=1), rtol=1e-4)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.5, 0, None), (1.5, 8, 0.8)]
)
def test_draws_have_the_frequencies_of_temperature_top_k_and_nucleus(temperature, top_k, top_p):
    """There are 20,000 draws; each count is within 5 of its standard deviations, and within 5 if less than one is expected. Two
    of the 30 ids have no piece."""
    draws, logits = 20_000, np.random.default_rng(3).standard_normal(30).astype(np.float32) * 2
    shares = np.exp(np.float64(logits) / temperature)
    best = np.argsort(-shares[:28])
    kept = best[: top_k or 28]
    if top_p is not None:
        of_kept = shares[kept] / shares[kept].sum()
        kept = kept[: int(np.searchsorted(np.cumsum(of_kept), top_p)) + 1]
    wanted = np.where(np.isin(np.arange(30), kept), shares, 0.0)
    wanted /= wanted.sum()
    decoding = Decoding(end_id=SEP, pad_id=0, sample=True, top_k=top_k, nucleus=top_p is not None, pieces=28)
    knobs = Knobs(1, temperature, 1.0 if top_p is None else top_p)
    keys = jax.vmap(jax.random.key)(jnp.arange(draws))
    found = jax.jit(next_tokens, static_argnums=3)(jnp.broadcast_to(logits, (draws, 30)), keys, knobs, decoding)
    seen, expected = np.bincount(found, minlength=30), draws * wanted
    assert (seen[wanted == 0] == 0).all()
    off = np.abs(seen - expected) / np.sqrt(np.maximum(expected * (1 - wanted), 1.0))
    assert off.max() < 5, list(zip(seen, expected, off, strict=True))


def test_greedy_decoding_is_the_default():
    assert Knobs(3) == Knobs(3, temperature=1.0, top_p=1.0, length_penalty=1.0)
    everything = {"sample": False, "top_k": 0, "nucleus": False, "beams": 1}
    assert Decoding(end_id=SEP, pad_id=0) == Decoding(end_id=SEP, pad_id=0, **everything)


def test_the_number_of_new_tokens_is_limited(golden, config, params):
    found = run(params, config, prompts_of(golden), limit=3)
    np.testing.assert_array_equal(found.ids[:, :3], golden["greedy"][:, :3])
    assert (found.ids[:, 3:] == 0).all()
