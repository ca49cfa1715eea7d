r"""BERT-Large with the settings of the paper.

24 layers of width 1024, 335.1 M parameters, 256 rows per step, a million steps.

    tpu_scripts/run.sh corpus --source=tfds:wikipedia/20230601.en --vocab=bert-base-uncased-vocab.txt --lowercase \
        --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/bert_large.py --workdir=runs/bert_large

Hardware: v5e:4x4, 16 chips. Duration: 16.9 hours by the estimate of `aot` (37 % of the chips' peak at 128 tokens, 65 % at 512;
8.2e+19 model FLOPs). It has not been measured. A batch of 256 rows is too small to keep more chips busy: v5e:8x8, with four times
as many chips, takes 13.6 hours. Expected: held-out MLM perplexity 3.23 (paper, Table 6); GLUE test average 82.1 after fine-tuning
(Table 1).

The settings are from section A.2 of the paper and from the released code (google-research/bert, optimization.py and
create_pretraining_data.py). 90 % of the steps have rows of 128 tokens and the rest rows of 512, on one learning-rate schedule;
Adam has no bias correction."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {**published("large"), "dtype": "bfloat16", "vocab_multiple": 128},
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
