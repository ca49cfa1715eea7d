"""The reference for long rows computes the same model as ours."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.model.config import ModelConfig, modern_block
from tests.benchmarks import plain_modernbert
from tests.benchmarks.plain_modernbert import Size, splash
from tests.random_rows import forward, random_parameters

CONFIG = ModelConfig(
    **modern_block(4, radius=64),
    num_layers=4,
    hidden_size=128,
    num_heads=2,
    intermediate_size=192,
    vocab_size=96,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
LENGTH = 512


def as_plain(params: Any) -> Any:
    """Returns our parameters with the reference's names and shapes."""

    def layer(stacked: Any) -> Any:
        attention, feed_forward, d = stacked["attention"], stacked["feed_forward"], CONFIG.hidden_size
        return {
            "attention_norm": stacked["attention_layer_norm"]["scale"],
            "qkv": np.concatenate([attention[name]["kernel"].reshape(d, d) for name in ("query", "key", "value")], 1),
            "out": attention["output"]["kernel"].reshape(d, d),
            "norm": stacked["feed_forward_layer_norm"]["scale"],
            "wide": np.concatenate([feed_forward[name]["kernel"] for name in ("intermediate", "gate")], 1),
            "narrow": feed_forward["output"]["kernel"],
        }

    layers, head = params["encoder"]["layers"], params["mlm_head"]
    return {
        "layers": [layer(jax.tree.map(lambda x, n=n: x[n], layers)) for n in range(CONFIG.num_layers)],
        "words": params["embeddings"]["word_embeddings"]["embedding"],
        "words_norm": params["embeddings"]["layer_norm"]["scale"],
        "last_norm": params["encoder"]["final_layer_norm"]["scale"],
        "dense": head["transform"]["kernel"],
        "head_norm": head["layer_norm"]["scale"],
        "bias": head["bias"],
    }


def test_the_plain_modernbert_computes_our_logits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        splash, "make_splash_mha_single_device", functools.partial(splash.make_splash_mha_single_device, interpret=True)
    )
    size = Size(vocabulary=96, width=128, layers=4, heads=2, feed_forward=192, dropout=0.0, dtype=jnp.float32)
    rng, params = np.random.default_rng(0), jax.tree.map(np.asarray, random_parameters(CONFIG, scale=1.0))
    ids = np.sort(rng.integers(1, 3, (1, LENGTH)), axis=1)
    places = np.concatenate([np.arange(n) for n in np.unique(ids, return_counts=True)[1]])[None]
    tokens = rng.integers(5, 96, (1, LENGTH))
    chosen = np.sort(rng.choice(LENGTH, 20, replace=False))[None]
    batch = {
        "input_ids": tokens,
        "token_type_ids": 0 * tokens,
        "sequence_ids": ids,
        "position_ids": places,
        "positions": places,
        "masked_positions": chosen,
        "masked_targets": 0 * chosen,
        "cls_positions": np.zeros((1, 1)),
    }
    batch = {name: np.asarray(x, np.int32) for name, x in batch.items()}
    logits = jax.jit(forward, static_argnums=(0, 4))(CONFIG, params, batch, None, False)
    wanted = np.asarray(logits["mlm_logits"])
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    with jax.numpy_rank_promotion("allow"):
        compute = jax.jit(plain_modernbert.logits, static_argnums=(0, 1))
        found = np.asarray(compute(size, mesh, as_plain(params), batch, jax.random.key(0)))
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()
