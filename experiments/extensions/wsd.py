"""A learning-rate schedule with warmup, a stable part and a decay (arXiv:2404.06395); the decay is the square-root decay of
arXiv:2405.18392.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/wsd \
        --config.phases.0.schedule=experiments/extensions/wsd.py:warmup_stable_decay

The rate rises over the first tenth of the phase, stays at its peak, and falls to 0 over the last fifth. To extend a run later,
start again from a checkpoint before the decay. For fine-tuning, set it as config.training.schedule."""

import jax.numpy as jnp


def warmup_stable_decay(step, steps, warmup=0.1, decay=0.2):
    """Returns the factor by which the peak rate is multiplied at a step of the phase."""
    left = 1 - jnp.sqrt(jnp.maximum(step - (1 - decay) * steps, 0) / (decay * steps))
    return jnp.minimum(step / (warmup * steps), left)
