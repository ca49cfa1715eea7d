"""R-Drop (arXiv:2106.14448): each batch is read twice, with different dropout masks, and the two predictions should agree.

    tpu_scripts/run.sh finetune --config=experiments/finetune/glue.py:rte --workdir=runs/rte_r_drop --config.init_from=MODEL \
        --config.task.data_dir=glue --config.objective=experiments/extensions/r_drop.py:RDrop

It works for every head without a CRF. A training step takes twice the time. The model is used as usual.
"""

import dataclasses

import jax.numpy as jnp

from bert_jax.objectives.labels import Labels
from bert_jax.objectives.model import another_seed


@dataclasses.dataclass(frozen=True)
class RDrop(Labels):
    """The mean of the two losses plus the divergence of the two predictions, which is half of the loss in the paper (equation
    4)."""

    alpha: float = 1.0
    """The weight of the divergence in the paper."""

    scores = {**Labels.scores, "divergence": ("divergence", "labels")}

    def sums(self, params, batch, seed):
        passes = [self.outputs(params, batch, one) for one in (seed, another_seed(seed, 1))]
        first, second = (self.output_sums(outputs, batch) for outputs in passes)
        p, q = (self.head.answer_scores(outputs["logits"].astype(jnp.float32), batch) for outputs in passes)
        divergence = (self.head.soft_loss(p, q, 1.0) + self.head.soft_loss(q, p, 1.0)) / 2  # of each label
        means = {name: (first[name] + second[name]) / 2 for name in first}
        return means | {"divergence": (batch["label_weights"] * divergence).sum()}

    def loss(self, sums, counts):
        return super().loss(sums, counts) + self.alpha / 2 * sums["divergence"] / jnp.maximum(counts["labels"], 1.0)
