r"""SICK: entailment (three labels) or relatedness (a score from 1 to 5) of two sentences.

    tpu_scripts/run.sh finetune --config=experiments/finetune/sick.py:entailment --workdir=runs/sick \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds SICK.txt; its TRAIN rows are the training set, its TRIAL rows dev, its TEST rows the test set.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: training on the 4,439 pairs takes minutes; the score
is above that of the most frequent label, NEUTRAL.
"""

from ml_collections import ConfigDict


def get_config(question: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": f"sick/{question}", "length": 64},
            "training": {"batch_size": 32, "learning_rate": 3e-5, "epochs": 4},
        }
    )
