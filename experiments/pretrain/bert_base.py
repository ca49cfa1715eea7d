r"""BERT-Base with the settings of the paper.

12 layers of width 768, 109.5 M parameters, 256 rows per step, a million steps.

    tpu_scripts/run.sh corpus --source=tfds:wikipedia/20230601.en --vocab=bert-base-uncased-vocab.txt --lowercase \
        --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/bert_base.py --workdir=runs/bert_base

Hardware: v5e:4x4, 16 chips. Duration: 5.8 hours by the estimate of `aot` (31 % of the chips' peak at 128 tokens, 56 % at 512;
2.4e+19 model FLOPs). It has not been measured. Expected: held-out MLM perplexity 3.99 (paper, Table 6); GLUE test average 79.6
after fine-tuning (Table 1).

The settings are from section A.2 of the paper and from the released code (google-research/bert, optimization.py and
create_pretraining_data.py). 90 % of the steps have rows of 128 tokens and the rest rows of 512, on one learning-rate schedule;
Adam has no bias correction."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {**published("base"), "dtype": "bfloat16", "vocab_multiple": 128},
            "optimizer": {"name": "bert_adam"},
            "mesh": {"reduce_dtype": "bfloat16"},
            "phases": [
                {
                    "steps": 900_000,
                    "length": 128,
                    "batch_size": 256,
                    "max_predictions": 20,
                    "learning_rate": 1e-4,
                    "warmup_steps": 10_000,
                },
                {"steps": 100_000, "length": 512, "batch_size": 256, "max_predictions": 77, "continue_schedule": True},
            ],
            "evaluation": {"every": 10_000, "rows": 10_000, "batch_size": 256},
            "checkpoints": {"every": 2_000, "keep": 3},
            "log_every": 100,
        }
    )
