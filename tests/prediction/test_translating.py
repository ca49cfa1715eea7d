"""Targets from an encoder-decoder, greedy and by beam search, compared with transformers' `generate`; and the cache, compared
with no cache."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data import DECODER
from bert_jax.errors import UserError
from bert_jax.interop.families.marian import unapplied_settings
from bert_jax.interop.huggingface import Model
from bert_jax.model.cached_decoding import continue_targets, read_targets, start_targets
from bert_jax.model.encoder import unstacked_layers
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.decoding import Decoding, Knobs, _before_targets, _until_full, translated
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.translating import Translate, translate
from tests.interop.test_marian import batch_of, golden, imported
from tests.model.test_encoder_decoder import MODERN, TINY, outputs, pairs, parameters, side
from tests.prediction.reference import first_devices

PAD, END, NEW = 0, 3, 11
BOTH = ("encoder", "decoder")


@functools.cache
def shared() -> Model:
    return imported("shared")


def search(*, penalty: float = 1.0, limit: Any = NEW, **settings: Any) -> Any:
    """Returns the translations of the golden batch, in 16 columns."""
    model, (batch, _) = shared(), batch_of(golden("shared"))
    choice = Decoding(END, PAD, barred=(PAD,), forced_end=True, **settings)
    params = unstacked_layers(model.params)
    knobs = Knobs(np.broadcast_to(np.int32(limit), 4), length_penalty=penalty)
    return translated(params, Tokens.of(batch), knobs, config=model.config, decoding=choice, start_id=PAD, room=16)


def test_greedy_and_beam_search_choose_the_tokens_of_transformers():
    """Sources of different lengths are in one batch; padding is forbidden, and the end is forced at the limit. The test on eight
    devices stops early, with a model that has other tables."""
    stored = golden("shared")
    names = [name for name in stored if name.startswith("generated/") and not name.endswith("True")]
    assert len(names) == 5
    for name in names:
        _, *settings = name.removeprefix("generated/").split("_")
        if not settings:
            found = search()
        else:
            beams, penalty, _ = settings
            found = search(beams=int(beams), penalty=float(penalty))
        wanted = stored[name]
        ended = np.cumsum(wanted == END, axis=1) - (wanted == END) > 0  # transformers pads with other ids after the end
        np.testing.assert_array_equal(np.asarray(found.ids)[:, :NEW], np.where(ended, PAD, wanted), name)


@functools.cache
def shallow() -> Model:
    """Returns the model "shared" with its first layers only."""
    model = shared()
    first = {part: {**model.params[part], "layers": jax.tree.map(lambda x: x[:1], model.params[part]["layers"])} for part in BOTH}
    config = dataclasses.replace(model.config, num_layers=1, decoder_layers=1)
    return dataclasses.replace(model, params={**model.params, **first}, config=config)


def test_a_target_that_is_longer_than_its_source_has_the_tokens_of_a_cache_with_room_for_all():
    """The cache of the source of 4 tokens grows once during the search."""
    batch, _ = batch_of(golden("shared"))
    source = Tokens.of({name: np.asarray(array)[:, :4] for name, array in batch.items() if not name.startswith(DECODER)})
    params, knobs = unstacked_layers(shallow().params), Knobs(NEW)
    choice = Decoding(END, PAD, barred=(PAD, END), forced_end=True, beams=3)
    shapes: dict[str, Any] = {"config": shallow().config, "decoding": choice, "room": 16}
    grown = translated(params, source, knobs, start_id=PAD, **shapes)
    state = _before_targets(params, source, start_id=PAD, first_room=16, **shapes)
    roomy = _until_full(params, state, knobs, **shapes).texts()
    np.testing.assert_array_equal(grown.ids, roomy.ids)
    np.testing.assert_allclose(grown.log_probability, roomy.log_probability, rtol=1e-5)
    assert (np.asarray(grown.ids) != PAD).sum(1).min() > 6, "more than the first cache has room for"


@pytest.mark.parametrize("beams", [1, 4])
def test_each_source_may_have_its_own_token_limit(beams):
    limits = (4, NEW, 2, 7)
    together = np.asarray(search(beams=beams, limit=limits).ids)
    for row, limit in enumerate(limits):
        np.testing.assert_array_equal(together[row], np.asarray(search(beams=beams, limit=limit).ids)[row])


def test_decoding_with_a_cache_equals_decoding_without_one():
    """There are two hypotheses per source, and the second step may continue either of them."""
    config = dataclasses.replace(TINY, **MODERN, decoder_layers=1, decoder_vocab_size=47, tied_decoder=False)
    params, batch = jax.tree.map(np.asarray, parameters(config)), pairs(config)
    layers, read = unstacked_layers(params), jax.jit(read_targets, static_argnums=1)
    cache = jax.jit(start_targets, static_argnums=(1, 3, 4))(layers, config, Tokens.of(batch), 2, 5)
    rng, texts = np.random.default_rng(1), np.zeros((3, 2, 4), np.int32)  # 0 where nothing has been read yet
    for step in range(4):
        texts[:, :, step] = rng.integers(1, 40, (3, 2))
        found, cache = read(layers, config, cache, texts[:, :, step])
        for beam in range(2):
            whole = outputs(config, params, batch | side(texts[:, beam], DECODER, [step + 1] * 3))["logits"]
            np.testing.assert_allclose(found[:, beam], whole[:, step], atol=2e-5)
        parents = rng.integers(0, 2, (3, 2))
        cache = jax.jit(continue_targets)(cache, parents)
        texts = np.take_along_axis(texts, parents[..., None], axis=1)


def test_grouping_sources_by_length_does_not_change_translations_on_eight_devices():
    engine, stored = Engine(imported("untied")), golden("untied")
    sources = [ids[: real.sum()].tolist() for ids, real in zip(stored["input_ids"], stored["attention_mask"], strict=True)]
    for penalty in (0.0, 0.6, 1.0, 2.0):
        found = translate(engine, sources * 2, 4, penalty, "transformers", early_stopping=True, max_length=NEW)
        for one, wanted in zip(found, [*stored[f"generated/beams_4_{penalty}_True"]] * 2, strict=True):
            assert [*one.ids] == wanted[: (wanted == END).argmax()].tolist()


def with_generation(bias: float, generation: dict[str, Any]) -> Engine:
    """Returns an engine of a model with this bias of its padding token and this generation_config.json."""
    model = shallow()
    biases = model.params["lm_head"]["final_logits_bias"].copy()
    biases[PAD] = bias
    params = {**model.params, "lm_head": {**model.params["lm_head"], "final_logits_bias": biases}}
    with first_devices():
        return Engine(dataclasses.replace(model, params=params, generation=generation))


def test_probabilities_are_renormalised_without_the_padding_as_generation_config_says():
    """In the models of OPUS-MT, padding has a probability like other tokens. The search divides by GNMT's penalty."""
    sources = [[7, 9, 11, END], [8, END], [END]]
    renormalised, without, plain = (
        translate(with_generation(bias, {"renormalize_logits": said}), sources, 3, 0.6, "gnmt", max_length=NEW)
        for bias, said in ((4.0, True), (-1e4, False), (4.0, False))
    )
    assert [one.ids for one in renormalised] == [one.ids for one in without]
    np.testing.assert_allclose(*([one.score for one in found] for found in (renormalised, without)), rtol=1e-5)
    assert all(one.score < other.score - 0.1 for one, other in zip(plain, without, strict=True))
    for one in without:
        assert one.score == pytest.approx(one.log_probability / ((5 + len(one.ids) + 1) / 6) ** 0.6, rel=1e-5)
    short, long = (
        translate(with_generation(-1e4, {}), sources, 3, power, "gnmt", max_length=NEW) for power in (0.0, 3.0)
    )
    assert all(len(one.ids) <= len(other.ids) for one, other in zip(short, long, strict=True))
    assert [one.ids for one in short] != [one.ids for one in long]


def test_settings_of_generation_config_that_are_not_applied_are_reported(caplog):
    settings = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.0, "bad_words_ids": [[PAD], [7]], "num_beams": 6}
    settings["early_stopping"] = "never"
    Translate().check(with_generation(0.0, settings))
    named = "no_repeat_ngram_size=3, bad_words_ids=[[0], [7]], early_stopping=never"
    says = f"`translate` does not apply {named} of the model's generation settings"
    assert [record.message.partition(": ")[2] for record in caplog.records] == [says]
    caplog.clear()
    Translate().check(with_generation(0.0, {"bad_words_ids": [[PAD]], "max_length": 512, "early_stopping": True}))
    assert not caplog.records
    neutral = {
        "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "min_length": 0,
        "encoder_repetition_penalty": 1.0, "min_new_tokens": 0, "num_beam_groups": 1, "diversity_penalty": 0.0,
        "penalty_alpha": 0.0, "guidance_scale": 1.0, "do_sample": False,
    }  # fmt: skip
    assert unapplied_settings(neutral, PAD) == (), "the values with which transformers generates the same tokens"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"beams": 0}, "beams=0 must be at least 1 and at most 48, half of the target's vocabulary"),
        ({"penalty": "marian"}, "penalty='marian' is unknown"),
        ({"max_length": 30}, "max_length=30 must be between 1 and 29"),
        ({"sources": [[5] * 31]}, "a source has 31 tokens, but .* reads 1 to 30; split it"),
        ({"sources": [[]]}, "a source has 0 tokens"),
    ],
)
def test_options_out_of_range_and_too_long_sources_are_refused(arguments, says):
    with pytest.raises(UserError, match=says):
        translate(Engine(shared()), **{"sources": [[5, END]]} | arguments)
