"""FNet (Lee-Thorp et al., arXiv:2105.03824): Fourier transforms mix the tokens of a text, instead of attention.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/fourier \
        --config.model.encoder=experiments/extensions/fourier.py:Fourier
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from bert_jax.model.encoder import FeedForward, WholeRows, layer_seeds
from bert_jax.model.layers import Norm, dropout
from bert_jax.model.tokens import Layer


class Fourier(WholeRows):
    """Post-norm layers of a Fourier mixing, which has no parameters, and a feed-forward."""

    @nn.compact
    def __call__(self, x, tokens, seed):
        """Returns (output of the last layer, outputs of all layers)."""
        c, outputs = self.config, []
        width = np.arange(c.hidden_size)
        of_width = 2 * np.pi * np.outer(width, width) / c.hidden_size
        same = tokens.sequence_ids[:, :, None] == tokens.sequence_ids[:, None, :]  # a row may hold several texts
        turns = tokens.positions[:, :, None] * tokens.positions[:, None, :] / same.sum(-1, keepdims=True)
        cos, sin = (jnp.where(same, f(2 * np.pi * (turns % 1)), 0).astype(c.dtype) for f in (jnp.cos, jnp.sin))
        for n in range(c.num_layers):
            mixed = cos @ (x @ np.cos(of_width).astype(x.dtype)) - sin @ (x @ np.sin(of_width).astype(x.dtype))
            x = Norm(c, name=f"mixing_norm_{n}")(x + mixed)
            (own,) = layer_seeds(seed, Layer(jnp.uint32(n)), 1)
            y = dropout(FeedForward(c, name=f"feed_forward_{n}")(x), tokens.dropout(c.hidden_dropout, own))
            x = Norm(c, name=f"feed_forward_norm_{n}")(x + y)
            outputs.append(x)
        return x, jnp.stack(outputs)
