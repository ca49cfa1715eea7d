r"""ModernBERT-base with its published recipe: 22 layers of width 768, 149.7 M parameters, 2.0 T tokens.

    tpu_scripts/run.sh corpus --source='parquet:texts' --vocab=tokenizer --output=runs/modern_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/modern_base.py --workdir=runs/modern_base

Hardware: v5e:4x4. A chip computes 8 rows of 1,024 tokens or one of 8,192 at a time, in 5 of its 16 GiB. With more chips, lower
`phases.*.accumulation` (the same result, with other dropout masks). This experiment has not been run. `aot` estimates nine days
for the first 1,719 G tokens, and two days for the 250 G tokens in rows of 8,192. Expected: unknown here; the paper's model was
trained for 1,964 hours on 8 H100 (section 2.2.2).

The sources are arXiv:2412.13663 (section, Table) and, for what the paper leaves open, AnswerDotAI/ModernBERT at 8c57a0f (file).

- Phases (section 2.2.2, Table 3). First: 1,719 G tokens in rows of 1,024 at 8e-4, constant after a warmup of 3 G tokens. Second:
  250 G in rows of 8,192 at 3e-4, constant. Third: 50 G in rows of 8,192, from 3e-4 to 0 by 1-sqrt (scheduler.py). The rotary base
  of full layers is 10,000 with the short rows, and 160,000 with the long rows. The base of sliding layers is always 10,000.
- The batch grows from 768 to 4,608 rows over 50 G tokens: 768, 1,536, 2,304, 3,072 and 3,840 rows, each for the same number of
  steps (sequence_packer.py). Table 3 gives 72 rows of 8,192. With 72 rows on each of 8 GPUs, a step has as many tokens as a
  step of 4,608 rows of 1,024, so a step has 576 rows here.
- 30 % of the tokens are masked in training and 15 % in the evaluation; there is no next sentence prediction (section 2.2.1).
- StableAdamW has betas 0.9 and 0.98, epsilon 1e-6, and a weight decay of 1e-5, which is decoupled from the learning rate and
  excludes norms and biases. There is no clipping (main.py). There is dropout of 0.1 only after attention (Table 3).
- The released model is the mean of four checkpoints, the three best of the decay and the last one (section A.5): see `--step` and
  `--average` of `convert`.
- Different from the paper: the order of the texts, which is not published; the packing, although it also fills 99 % of a row; and
  [CLS] and [SEP], which are never masked here.

`modern_base.py:early` ends the constant phase of long rows after 125 G tokens and then decays, as a branch of the long run:

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/modern_base.py:early --workdir=runs/early \
        --config.init_state=runs/modern_base@STEP
"""

from ml_collections import ConfigDict

from bert_jax.configs.pretraining import batch_ramp
from bert_jax.model.config import published

G = 10**9
MASKS = {"masked_fraction": 0.3}
SHORT = {"length": 1_024, "packed_examples": 16, "max_predictions": 315, "rotary_theta": 10_000.0, **MASKS}
LONG = {"length": 8_192, "packed_examples": 64, "max_predictions": 2_489, "rotary_theta": 160_000.0, **MASKS}
CHIP_ROWS = 16 * 8
"""The number of rows of 1,024 that 16 chips compute at once."""
WARMUP = round(3 * G / (768 * 1_024))
"""The length of the warmup in steps. The warmup ends within the first batch size, which lasts for 3.3 G tokens."""


def get_config(end: str = "whole") -> ConfigDict:
    pretraining = {**SHORT, "tokens": 1_719 * G, "batch_size": 4_608, "learning_rate": 8e-4, "warmup_steps": WARMUP}
    pretraining |= {"accumulation": 4_608 // CHIP_ROWS}
    long = {**LONG, "batch_size": 576, "learning_rate": 3e-4, "accumulation": 576 // (CHIP_ROWS // 8)}
    return ConfigDict(
        {
            "corpus": {"directory": "runs/modern_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("modernbert-base"),
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
                "weight_decay": 1e-5,
                "decouple_rate": True,
                "clip_norm": 0.0,
                "schedule": "constant",
            },
            "mesh": {"reduce_dtype": "bfloat16"},
            "phases": [
                *batch_ramp(pretraining, sizes=range(768, 4_608, 768), tokens=50 * G),
                {**long, "tokens": {"whole": 250, "early": 125}[end] * G},
                {**long, "tokens": 50 * G, "schedule": "1-sqrt"},
            ],
            "evaluation": {"every": 5_000, "rows": 10_000, "batch_size": 256},
            "checkpoints": {"every": 2_000, "keep": 3},
            "log_every": 100,
        }
    )
