"""Every place of a model that drops something: each is there, has its own rate, and in every step and microbatch a seed of its
own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.examples.labelled import RowShape, assemble_features
from bert_jax.heads import bert_with_head
from bert_jax.model import attention, bilm, embeddings, pretraining, residual_norm
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels.dispatch import Choice
from bert_jax.model.layers import Dropout
from bert_jax.training.label_losses import LabelLoss
from bert_jax.training.objectives import Objective, bilm_objective, label_objective, next_token_objective, pretraining_objective
from bert_jax.training.steps import StepSeed, gradients
from tests.random_features import CANDIDATES, HEADS, random_features, random_label_parameters
from tests.random_rows import TINY, random_batch, random_parameters

HIDDEN, ATTENTION, HEAD = 0.25, 0.125, 0.375
CONFIG = dataclasses.replace(TINY, hidden_dropout=HIDDEN, attention_dropout=ATTENTION)
ENCODER = [
    ("embeddings", HIDDEN),
    *[("attention", ATTENTION), ("residual", HIDDEN), ("residual", HIDDEN)] * CONFIG.num_layers,
]
"""The sites and rates of a pass through the encoder, in order: one behind the embeddings, three in every layer."""

Site = tuple[str, float, int]


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    """What was dropped at: (site, rate, seed), in the order of the calls; nothing is dropped in truth."""
    seen: list[Site] = []

    def watch(module: Any, site: str) -> None:
        def dropout(x: Any, settings: Dropout) -> Any:
            if settings.seed is not None:  # as where Flax asks for the shapes of parameters
                seen.append((site, settings.rate, int(settings.seed)))
            return x

        monkeypatch.setattr(module, "dropout", dropout)

    sites = {
        "embeddings": embeddings, "attention": attention, "residual": residual_norm, "head": bert_with_head,
        "lstm": bilm, "softmax": pretraining,
    }  # fmt: skip
    for site, module in sites.items():
        watch(module, site)
    return seen


def use_kernels(monkeypatch: pytest.MonkeyPatch, seen: list[Site]) -> None:
    """Lets kernels compute attention and residuals, and notes what dropout they are given."""

    def note(site: str, dropout: Dropout) -> None:
        assert dropout.seed is not None
        seen.append((site, dropout.rate, int(dropout.seed)))

    def attend(qkv: Any, sequence_ids: Any, *, dropout: Dropout, **others: Any) -> Any:
        note("attention", dropout)
        return qkv[0]

    def norm(x: Any, y: Any, norm: Any, dropout: Dropout) -> Any:
        note("residual", dropout)
        return x + y

    def choose_attention(config: ModelConfig, length: int, every_query: bool) -> Choice:
        return Choice("tpu" if every_query and config.attention != "plain" else None, "")

    def choose_residual_norm(config: ModelConfig) -> Choice:
        return Choice("tpu" if config.residual_norm != "plain" else None, "")

    monkeypatch.setattr(attention, "choose_attention", choose_attention)
    monkeypatch.setattr(residual_norm, "choose_residual_norm", choose_residual_norm)
    monkeypatch.setattr(attention, "fused_attention", attend)
    monkeypatch.setattr(residual_norm, "fused_residual_norm", norm)


def walk(objective: Objective, params: Any, batch: Any, steps: int, microbatches: int) -> None:
    """The passes through the model for the gradients of some steps, without compilation, so that seeds are numbers.

    The way back passes no site, and takes most of the time, so it is left out.
    """

    def forward(loss: Any, has_aux: bool) -> Any:
        return lambda params, *rest: (params, loss(params, *rest)[1])

    with jax.disable_jit(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "grad", forward)
        for step in range(steps):
            gradients(objective, params, batch, objective.counts(batch), StepSeed(0, jnp.int32(step)), microbatches)


def places(seen: list[Site]) -> list[tuple[str, float]]:
    return [(site, rate) for site, rate, _ in seen]


@pytest.mark.parametrize("kernels", [False, True])
def test_every_site_of_pretraining_has_its_rate_and_in_every_step_and_microbatch_a_seed_of_its_own(
    kernels: bool, sites: list[Site], monkeypatch: pytest.MonkeyPatch
):
    params = random_parameters()  # before the kernels are replaced: shapes are found without dropout, so without a seed
    if kernels:
        use_kernels(monkeypatch, sites)
    walk(pretraining_objective(CONFIG), params, random_batch(rows=4), steps=2, microbatches=2)
    assert places(sites) == ENCODER * 4
    assert len({seed for _, _, seed in sites}) == len(sites), "two masks are drawn from one seed"


@pytest.mark.parametrize("kind", HEADS)
def test_a_labelled_head_drops_at_its_own_rate_with_a_seed_of_its_own(kind: str, sites: list[Site]):
    head = dataclasses.replace(HEADS[kind], dropout=HEAD)
    shape = RowShape(head.layout, 32, 1, CANDIDATES if head.layout.logits_per_candidate else 1)
    rows = assemble_features(random_features(kind, 2), [[0], [1]], 2, shape, 0)
    batch = {name: jnp.asarray(array) for name, array in rows.items()}
    walk(label_objective(CONFIG, head, LabelLoss()), random_label_parameters(head), batch, steps=2, microbatches=1)
    assert places(sites) == [*ENCODER, ("head", HEAD)] * 2
    assert len({seed for _, _, seed in sites}) == len(sites), "two masks are drawn from one seed"


@pytest.mark.parametrize(("direction", "objective"), [("both", bilm_objective), ("left_to_right", next_token_objective)])
def test_every_site_of_dropout_in_an_lstm_has_its_rate_and_a_seed_of_its_own(
    direction: str, objective: Callable[[ModelConfig], Objective], sites: list[Site]
):
    config = dataclasses.replace(CONFIG, encoder="bilm", direction=direction)
    params, batch = random_parameters(config), random_batch(rows=4)
    walk(objective(config), params, batch, steps=2, microbatches=2)
    assert places(sites) == [*[("lstm", HIDDEN)] * config.num_layers, ("softmax", HIDDEN)] * 4
    assert len({seed for _, _, seed in sites}) == len(sites), "two masks are drawn from one seed"
