r"""ModernBERT-large with its published recipe: 28 layers of width 1,024, 395.9 M parameters, 2.0 T tokens.

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/modern_large.py --workdir=runs/modern_large

Hardware: v5e:4x4 or larger. A chip should compute 7 rows of 1,024 tokens or one of 8,192 at a time. With more chips, lower
`phases.*.accumulation` (the same result, with other dropout masks). Duration: it has not been run. `aot` estimates 5.58 s for a
step of phase 10 on v5e:4x4 (66 % of the peak, 9.5 of 16 GiB per chip), 279 hours for its 909 G tokens. For phase 12, in rows of
8,192, it estimates 7.98 s (65 % of the peak, 9.9 of 16 GiB), 108 hours for 250 G tokens.
Expected: the scores of the released model, which nobody has checked here. Corpus and sources are the same as in `modern_base.py`.
Differences:

- Phases (section 2.2.2, Table 3): 919 G tokens at 5e-4 after a warmup of 2 G. Then the run was rolled back, and the last 800 G of
  1,719 G were trained at 5e-5, with a weight decay of 1e-6. Then 250 G in rows of 8,192 at 5e-5, constant, and 50 G from 5e-5 to
  0 by 1-sqrt.
- The batch grows from 448 to 4,928 rows over 10 G tokens. The paper does not give the sizes in between; here these are
  multiples of 448. Table 3 gives 77 and 78 rows of 8,192 for each of 8 GPUs, 616 and 624 in all. 616 rows cannot be divided
  over 16 chips, so both phases have 624 here.
- The warmup takes 2 G tokens. It ends after 78 of the 396 steps of the fifth batch size. Here the rate rises linearly in steps,
  in the paper linearly in tokens.
- The weight decay of 1e-5 at 5e-4, and of 1e-6 at 5e-5, is 0.02 times the learning rate in all phases.
- The released model was initialised by tiling ModernBERT-base (appendix A.3): `--config.init_from=runs/modern_base
  --config.init_tiled=true`.
"""

from ml_collections import ConfigDict

from bert_jax.configs.pretraining import batch_ramp
from bert_jax.model.config import published

G = 10**9
MASKS = {"masked_fraction": 0.3}
SHORT = {"length": 1_024, "packed_examples": 16, "max_predictions": 315, "rotary_theta": 10_000.0, **MASKS}
LONG = {"length": 8_192, "packed_examples": 64, "max_predictions": 2_489, "rotary_theta": 160_000.0, **MASKS}
SIZES = range(448, 4_928, 448)
CHIP_ROWS = 16 * 7
"""Rows of 1,024 that 16 chips compute at once."""
WARMUP = 4 * round(10 * G / (sum(SIZES) * 1_024)) + round(0.18 * G / (5 * 448 * 1_024))
"""The length of the warmup in steps. The first four batch sizes take 1.82 G tokens together."""


def get_config() -> ConfigDict:
    pretraining = {**SHORT, "batch_size": 4_928, "learning_rate": 5e-4, "accumulation": 4_928 // CHIP_ROWS}
    long = {**LONG, "batch_size": 624, "learning_rate": 5e-5, "accumulation": 624 // 16}
    return ConfigDict(
        {
            "corpus": {"directory": "runs/modern_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("modernbert-large"),
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "attention_output_dropout": 0.1,
                "initializer": "modernbert",
                "dtype": "bfloat16",
                "vocab_multiple": 128,
            },
            "optimizer": {
                "name": "stable_adamw",
                "b1": 0.9,
                "b2": 0.98,
                "epsilon": 1e-6,
                "weight_decay": 0.02,
                "clip_norm": 0.0,
                "schedule": "constant",
            },
            "mesh": {"reduce_dtype": "bfloat16"},
            "phases": [
                *batch_ramp({**pretraining, "tokens": 919 * G, "warmup_steps": WARMUP}, sizes=SIZES, tokens=10 * G),
                {**pretraining, "tokens": 800 * G, "learning_rate": 5e-5},
                {**long, "tokens": 250 * G},
                {**long, "tokens": 50 * G, "schedule": "1-sqrt"},
            ],
            "evaluation": {"every": 5_000, "rows": 10_000, "batch_size": 256},
            "checkpoints": {"every": 2_000, "keep": 3},
            "log_every": 100,
        }
    )
