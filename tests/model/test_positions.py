"""Positions that are not learned: the sinusoids of "Attention Is All You Need", and none."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from bert_jax.model.positions import make_positions, sinusoids
from bert_jax.model.pretraining import count_parameters
from tests.random_rows import TINY, outputs_of, random_batch, random_parameters


@pytest.mark.parametrize("width", [16, 7])
def test_the_table_is_the_formula_of_the_paper_over_the_root_of_the_width(width: int):
    table = sinusoids(600, width)
    for position in (0, 1, 17, 599):
        for column in range(width):
            angle = position / 10_000 ** ((column - column % 2) / width)
            wanted = (math.cos(angle) if column % 2 else math.sin(angle)) / math.sqrt(width)
            assert table[position, column] == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_they_have_no_parameters_and_equal_a_learned_table_with_their_numbers(positions: str):
    config = dataclasses.replace(TINY, positions=positions)
    assert count_parameters(TINY).trained - count_parameters(config).trained == TINY.max_position * TINY.hidden_size
    batch, params = random_batch(), random_parameters(config)
    table = {"embedding": make_positions(config).table()}
    learned = {**params, "embeddings": {**params["embeddings"], "position_embeddings": table}}
    ours, theirs = (outputs_of(c, p, batch, None)["last"] for c, p in ((config, params), (TINY, learned)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_sinusoids_reach_further_than_the_texts_of_training_and_keep_their_rows():
    config = dataclasses.replace(TINY, positions="sinusoidal")
    longer = dataclasses.replace(config, max_position=64)
    params = random_parameters(config)
    batch = random_batch(length=16)
    np.testing.assert_array_equal(
        outputs_of(config, params, batch, None)["last"], outputs_of(longer, params, batch, None)["last"]
    )
    assert np.isfinite(outputs_of(longer, params, random_batch(length=64), None)["last"]).all()
