r"""A text classifier trained on your own table: copy this file for your own task.

    tpu_scripts/run.sh finetune --config=experiments/finetune/own_text.py --workdir=runs/own \
        --config.init_from=MODEL --config.task.own.train=train.csv --config.task.own.dev=dev.csv

The tables are CSV, TSV, JSON lines, Parquet or Arrow with the columns `text` and `label`. `OwnDataConfig` lists the keys for
pairs of texts, for numbers or several labels, and for other column names. The tasks "own/token", "own/span" and "own/choice"
train tagging, question answering and multiple choice in the same way.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models and data. Expected: above the score of the most frequent label,
which is in results.json.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "task": {
                "name": "own/sequence",
                "length": 128,
                "own": {"train": "train.csv", "dev": "dev.csv", "text": "text", "label": "label"},
            },
            "training": {"batch_size": 32, "learning_rate": 3e-5, "epochs": 3},
        }
    )
