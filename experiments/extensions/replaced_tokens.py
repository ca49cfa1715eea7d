"""Replaced-token detection (ELECTRA, arXiv:2003.10555): a small generator fills the masks, and the encoder finds the changed
tokens.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/replaced_tokens \
        --config.objective=experiments/extensions/replaced_tokens.py:ReplacedTokens

`--config.objective_options.weight=20` sets a field of the class. Both parts train together. The encoder and the head that finds
the changed tokens are exported as transformers' ElectraForPreTraining; an encoder that this class does not support is exported
alone. Unlike in the paper, the generator has its own embeddings.
"""

import dataclasses

import jax.numpy as jnp

from bert_jax.objectives.losses import binary_cross_entropy, cross_entropy
from bert_jax.objectives.model import another_seed, sampled, with_predictions
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import majority_baseline


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Objective):
    """The loss of the generator, plus `weight` times the loss of the detector over all tokens."""

    generator_size: float = 0.25
    """The width of the generator, as a fraction of the encoder's width."""
    weight: float = 50.0

    scores = {
        "RTD accuracy": ("rtd_right", "tokens"),
        "RTD loss": ("rtd_loss", "tokens"),
        "generator loss": ("mlm_loss", "masked"),
    }
    baselines = {"RTD accuracy": majority_baseline("replaced", "tokens")}
    exported = "ElectraForPreTraining"

    def parameters(self, model, key):
        small = model.scaled(self.generator_size)
        return {"generator": small.encoder(key) | {"head": small.mlm_head(key)}, "discriminator": model.discriminator(key)}

    def sums(self, params, batch, seed):
        generator = params["generator"]
        small = self.model.scaled(self.generator_size)
        logits = small.mlm_logits(generator, generator["head"], batch, another_seed(seed, 1))  # [B, M, V]
        original = with_predictions(batch, batch["masked_targets"])
        shown = with_predictions(batch, sampled(logits, batch, another_seed(seed, 2)))
        hidden = self.model.encode(params, batch | {"input_ids": shown}, seed)  # [B, L, D]
        scores = self.model.replaced_logits(params["discriminator"], hidden)  # [B, L]
        is_token, is_new = batch["sequence_ids"] != 0, shown != original
        return {
            "mlm_loss": cross_entropy(logits, batch["masked_targets"]).sum(),
            "rtd_loss": jnp.where(is_token, binary_cross_entropy(scores, is_new), 0.0).sum(),
            "rtd_right": (is_token & ((scores > 0) == is_new)).sum().astype(jnp.float32),
            "replaced": (is_token & is_new).sum().astype(jnp.float32),
        }

    def loss(self, sums, counts):
        generator = sums["mlm_loss"] / jnp.maximum(counts["masked"], 1.0)
        return generator + self.weight * sums["rtd_loss"] / jnp.maximum(counts["tokens"], 1.0)
