r"""A text classifier from a table of one's own: the file to copy for one's own task.

    python -m bert_jax.finetune --config=experiments/finetune/own_text.py --workdir=runs/own \
        --config.init_from=MODEL --config.task.own.train=train.csv --config.task.own.dev=dev.csv

The tables are CSV, TSV or JSON lines with the columns `text` and `label`; `OwnDataConfig` lists every other key (pairs of texts,
numbers or several labels to predict, other names of columns). "own/token", "own/span" and "own/choice" learn tags, answers and
multiple choice the same way.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models and data. Expected: above the most frequent label, which
results.json states.
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
