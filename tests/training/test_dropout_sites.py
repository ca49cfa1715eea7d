"""Every dropout site of a model exists, has its own rate, and has its own seed in every step and microbatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.finetuning.program import finetuning_program
from bert_jax.model import attention, bilm, embeddings, layers, pretraining
from bert_jax.model.config import ModelConfig, Resolved, Target
from bert_jax.model.heads import bert_with_head
from bert_jax.model.layers import Dropout
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import Distillation, TaskDistillation
from bert_jax.objectives.labels import LabelLoss, Labels
from bert_jax.objectives.model import Model
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.pretraining import replay
from bert_jax.pretraining.program import pretraining_program, teacher_config
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.steps import StepSeed, gradients
from tests.model import test_encoder_decoder
from tests.random_features import HEADS, random_features, random_label_parameters
from tests.random_rows import TINY, drawn_parameters, objective_for, random_batch, random_parameters, teacher_of

HIDDEN, ATTENTION, HEAD = 0.25, 0.125, 0.375
CONFIG = dataclasses.replace(TINY, hidden_dropout=HIDDEN, attention_dropout=ATTENTION)
ENCODER = [
    ("embeddings", HIDDEN),
    *[("attention", ATTENTION), ("residual", HIDDEN), ("residual", HIDDEN)] * CONFIG.num_layers,
]
"""The sites and rates of a pass through the encoder, in order: one after the embeddings, three in every layer."""

Site = tuple[str, float, Any]


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    """Records the sites at which dropout is applied, (site, rate, seed), in the order of the calls; nothing is really dropped."""
    seen: list[Site] = []

    def watch(module: Any, site: str) -> None:
        def dropout(x: Any, settings: Dropout) -> Any:
            if settings.seed is not None:  # e.g. when Flax infers the shapes of parameters
                seen.append((site, settings.rate, settings.seed))
            return x

        monkeypatch.setattr(module, "dropout", dropout)

    sites = {
        "embeddings": embeddings, "attention": attention, "residual": layers, "head": bert_with_head,
        "lstm": bilm, "softmax": pretraining,
    }  # fmt: skip
    for site, module in sites.items():
        watch(module, site)
    return seen


def with_kernels(config: ModelConfig, seen: list[Site]) -> Resolved:
    """Returns the model with kernels of attention and residuals that record the dropout that they get."""

    def note(site: str, dropout: Dropout) -> None:
        assert dropout.seed is not None
        seen.append((site, dropout.rate, dropout.seed))

    class Attention:
        def computes(self, model: ModelConfig, length: int, selects: bool = False, masks: bool = False) -> bool:
            return not selects

        def rotates(self, model: ModelConfig) -> bool:
            return False

        def __call__(self, qkv: Any, sequence_ids: Any, *, num_heads: int, dropout: Dropout, radius: Any, queried: Any) -> Any:
            note("attention", dropout)
            return qkv[0]

    class Norm:
        def computes(self, model: ModelConfig) -> bool:
            return True

        def __call__(self, x: Any, y: Any, norm: Any, dropout: Dropout) -> Any:
            note("residual", dropout)
            return x + y

    return Resolved(**dataclasses.asdict(config), target=Target(attention=Attention(), residual_norm=Norm()))


def check_sites(sites: list[Site], wanted: list[tuple[str, float]], objective: Objective, params: Any, batch: Any) -> None:
    """Traces the passes for the gradients of a step of two microbatches. Asserts that each has the `wanted` sites and rates, and
    that no two sites of two steps have the same seed. Only the seeds are computed.

    The backward pass has no sites and takes most of the time, so it is left out.
    """

    def forward(loss: Any, has_aux: bool) -> Any:
        return lambda params, *rest: (params, loss(params, *rest)[1])

    @jax.jit
    def seeds(params: Any, batch: Any, step: Any) -> list[Any]:
        with jax.disable_jit():  # without a loop, whose seeds would not be known outside
            gradients(objective, params, batch, objective.counts(batch), StepSeed(0, step), 2)
        return [seed for _, _, seed in sites]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "grad", forward)
        drawn = [int(seed) for step in range(2) for seed in seeds(params, batch, np.int32(step))]
    assert [(site, rate) for site, rate, _ in sites] == wanted * 2
    assert len(set(drawn)) == len(drawn), "two masks are drawn from one seed"


@pytest.mark.parametrize("kernels", [False, True])
def test_pretraining_dropout_sites_have_their_rates_and_unique_seeds(kernels: bool, sites: list[Site]):
    config = with_kernels(CONFIG, sites) if kernels else CONFIG
    check_sites(sites, ENCODER, objective_for(config), random_parameters(), random_batch(rows=4))


@pytest.mark.parametrize("kind", ["sequence", "token"])  # a head that reads some tokens, and one that reads all
def test_a_task_head_has_its_own_dropout_rate_and_seed(kind: str, sites: list[Site]):
    head = dataclasses.replace(HEADS[kind], dropout=HEAD)
    rows = assemble_features(random_features(kind, 2), [[0], [1]], 2, RowShape(head.layout, 32, 1), 0)
    batch = {name: jnp.asarray(array, array.dtype) for name, array in rows.items()}
    check_sites(sites, [*ENCODER, ("head", HEAD)], Labels(CONFIG, head, LabelLoss()), random_label_parameters(head), batch)


def test_lstm_dropout_sites_have_their_rates_and_unique_seeds(sites: list[Site]):
    config = dataclasses.replace(CONFIG, encoder="bilm")
    wanted = [*[("lstm", HIDDEN)] * config.num_layers, ("softmax", HIDDEN)]
    check_sites(sites, wanted, objective_for(config, False), random_parameters(config), random_batch(rows=4))


def test_translation_dropout_sites_have_their_rates_and_unique_seeds(sites: list[Site]):
    """An encoder of one layer and a decoder of two; attention is followed by another rate than the feed-forward."""
    config = dataclasses.replace(
        test_encoder_decoder.TINY, hidden_dropout=HIDDEN, attention_dropout=ATTENTION, attention_output_dropout=HEAD
    )
    attended, feed_forward = [("attention", ATTENTION), ("residual", HEAD)], [("residual", HIDDEN)]
    wanted = [("embeddings", HIDDEN), *attended, *feed_forward]
    wanted += [("embeddings", HIDDEN), *(attended * 2 + feed_forward) * 2]
    batch = test_encoder_decoder.pairs(config, (9, 8, 7, 6), (7, 5, 3, 1))
    batch["targets"] = np.where(batch["decoder_sequence_ids"] > 0, batch["decoder_input_ids"], -1)
    batch = {name: jnp.asarray(array, array.dtype) for name, array in batch.items()}
    check_sites(sites, wanted, objective_for(config, False), drawn_parameters(config), batch)


# ------------------------------------------------------------------------------------------------------- passes without dropout

ROWS = random_batch(rows=4)
LABELLED_HEAD = dataclasses.replace(HEADS["sequence"], dropout=0.0)
LABELLED = {
    name: jnp.asarray(array, array.dtype)
    for name, array in assemble_features(
        random_features("sequence", 4), [[0], [1], [2], [3]], 4, RowShape(LABELLED_HEAD.layout, 32, 1), 0
    ).items()
}
ONE_DEVICE = make_mesh(MeshConfig(), jax.devices()[:1])


def with_rate(rate: float, **changed: Any) -> ModelConfig:
    return dataclasses.replace(TINY, hidden_dropout=rate, attention_dropout=rate, **changed)


def pretraining_of(rate: float, **changed: Any) -> PretrainingExperiment:
    model = dataclasses.asdict(with_rate(rate, **changed))
    pairs = "none" if changed else "original"
    phase = {"steps": 1, "length": 16, "batch_size": 4, "max_predictions": 4}
    return PretrainingExperiment.from_dict({"model": model, "examples": {"pairs": pairs}, "phases": [phase]})


def teacher_of_pretraining(rate: float) -> None:
    """The teacher of a student without dropout."""
    settings = PretrainingDistillation(hidden_weight=1.0, attention_weight=1.0)
    params = random_parameters()
    config = teacher_config(with_rate(rate), pretraining_of(0.0))
    objective = Distillation(objective_for(TINY), settings, teacher_of(config, params)).for_model(Model(TINY, True))
    jax.eval_shape(objective.sums, params, ROWS, jnp.uint32(1))


def teacher_of_a_task(rate: float) -> None:
    config = with_rate(rate)
    params = random_label_parameters(LABELLED_HEAD)
    teacher = Teacher(Labels(config, dataclasses.replace(LABELLED_HEAD, dropout=rate)), params)
    plain = Labels(TINY, LABELLED_HEAD, LabelLoss())
    objective = TaskDistillation(plain, PretrainingDistillation(hidden_weight=1.0), teacher).for_model(Model(TINY))
    jax.eval_shape(objective.sums, params, LABELLED, jnp.uint32(1))


def frozen_encoder(rate: float) -> None:
    training = {"freeze_encoder": True}
    dropout = {"hidden_dropout": rate, "attention_dropout": rate}
    experiment = FinetuningExperiment.from_dict({"init_from": "m", "model": dropout, "training": training})
    config = experiment.model_config(with_rate(rate), "cpu")
    objective = Labels(config, LABELLED_HEAD, LabelLoss(), ("embeddings", "encoder"))
    jax.eval_shape(objective.sums, random_label_parameters(LABELLED_HEAD), LABELLED, jnp.uint32(1))


def evaluation_of(**changed: Any) -> Callable[[float], None]:
    def evaluation(rate: float) -> None:
        program = pretraining_program(pretraining_of(rate, **changed), ONE_DEVICE)
        jax.eval_shape(program.evaluation_step, program.state.params, ROWS)

    return evaluation


def logits_of_a_task(rate: float) -> None:
    experiment = FinetuningExperiment.from_dict({"init_from": "m"})
    head = dataclasses.replace(LABELLED_HEAD, dropout=rate)
    program = finetuning_program(experiment, with_rate(rate), head, LabelLoss(), 1, ONE_DEVICE)
    jax.eval_shape(program.evaluation_step, program.state.params, LABELLED)


def losses_of_replayed_rows(rate: float) -> None:
    program = pretraining_program(pretraining_of(rate), ONE_DEVICE)
    replay._row_losses(program, random_parameters(), {name: np.asarray(array) for name, array in ROWS.items()})


@pytest.mark.parametrize(
    "computed",
    [
        pytest.param(teacher_of_pretraining, id="the teacher of a pretraining"),
        pytest.param(teacher_of_a_task, id="the teacher of a task"),
        pytest.param(frozen_encoder, id="a frozen encoder"),
        pytest.param(evaluation_of(), id="the evaluation of BERT"),
        pytest.param(evaluation_of(direction="left_to_right"), id="the evaluation of a left-to-right model"),
        pytest.param(evaluation_of(encoder="bilm"), id="the evaluation of a biLM"),
        pytest.param(logits_of_a_task, id="the logits of a task"),
        pytest.param(losses_of_replayed_rows, id="the losses of replayed rows"),
    ],
)
def test_teachers_frozen_encoders_and_evaluations_run_without_dropout(computed: Callable[[float], None], sites: list[Site]):
    computed(0.5)
    assert not any(rate for _, rate, _ in sites)
