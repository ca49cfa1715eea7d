r"""BERT-Large with the recipe of the LAMB paper ("76 minutes"): batches of 65,536 and 32,768 rows, 8,601 steps.

    tpu_scripts/run.sh corpus --source=tfds:wikipedia/20230601.en --vocab=bert-base-uncased-vocab.txt --lowercase \
        --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/lamb_large.py --workdir=runs/lamb_large

Hardware: v5e:16x16, 256 chips. With fewer chips, raise `phases.*.accumulation` (the same result, with other dropout masks).
Duration: 1.2 hours or 306 chip-hours by the estimate of `aot` (419.8 and 862.2 ms per step). Expected: a final training loss of
about 1.25, and SQuAD 1.1 F1 of 90.6 after fine-tuning (the LAMB paper's 90.584).

The settings are from arXiv:1904.00962, with the learning rates, warmups and step counts of NVIDIA's open recipe
(DeepLearningExamples, BERT for PyTorch): the decay has power 0.5, and the second phase has its own warmup."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {**published("large"), "dtype": "bfloat16", "vocab_multiple": 128},
            "optimizer": {"name": "lamb", "decay_power": 0.5},
            "mesh": {"reduce_dtype": "bfloat16"},
            "phases": [
                {
                    "steps": 7_038,
                    "length": 128,
                    "batch_size": 65_536,
                    "accumulation": 4,
                    "max_predictions": 20,
                    "learning_rate": 6e-3,
                    "warmup_steps": 2_000,
                },
                {
                    "steps": 1_563,
                    "length": 512,
                    "batch_size": 32_768,
                    "accumulation": 8,
                    "max_predictions": 80,
                    "learning_rate": 4e-3,
                    "warmup_steps": 200,
                },
            ],
            "evaluation": {"every": 250, "rows": 10_000, "batch_size": 2_048},
            "checkpoints": {"every": 100, "keep": 3},
            "log_every": 10,
        }
    )
