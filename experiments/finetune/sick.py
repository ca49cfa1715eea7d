r"""SICK: entailment (three labels) or relatedness (a score from 1 to 5) of two sentences.

    python -m bert_jax.finetune --config=experiments/finetune/sick.py:entailment --workdir=runs/sick \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds SICK.txt; its TRAIN rows train, its TRIAL rows are dev, its TEST rows test.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: 4,439 pairs train in minutes; the most frequent
label is NEUTRAL.
"""

from ml_collections import ConfigDict


def get_config(question: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": f"sick/{question}", "length": 64},
            "training": {"batch_size": 32, "learning_rate": 3e-5, "epochs": 4},
        }
    )
