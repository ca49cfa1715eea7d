r"""GAP: whom an ambiguous pronoun refers to, one of two names or neither.

    python -m bert_jax.finetune --config=experiments/finetune/gap.py --workdir=runs/gap \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds gap-development.tsv (2,000 snippets to learn from) and gap-validation.tsv (454, dev); gap-test.tsv is predicted where it
is there. The states of the pronoun's and the names' first pieces, and the products of the pronoun's with each name's, go into
one layer. The scores are the official scorer's F1, by gender too, their ratio, and the log-loss of the three answers.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: well above the share of the most frequent
answer; several seeds, the set is small.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": "gap", "length": 256},
            "training": {"batch_size": 16, "learning_rate": 5e-5, "epochs": 4},
        }
    )
