r"""ALiBi (arXiv:2108.12409): attention scores decrease with the distance between two tokens, with a different slope for each
head.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/alibi \
        --config.model.positions=experiments/extensions/alibi.py:Alibi
"""

import jax.numpy as jnp
from jax import Array

from bert_jax.model.tokens import Layer, Tokens


class Alibi:
    """Adds -slope x distance to the scores, and changes neither the embeddings nor queries and keys."""

    def scores(self, scores: Array, tokens: Tokens, layer: Layer) -> Array:
        """Returns the scores [B, H, Q, L], before the mask."""
        heads = scores.shape[1]
        slopes = 2.0 ** (-8.0 * (1 + jnp.arange(heads)) / heads)
        return scores - slopes[None, :, None, None] * abs(tokens.offsets())
