r"""GAP: the referent of an ambiguous pronoun: one of two names, or neither.

    tpu_scripts/run.sh finetune --config=experiments/finetune/gap.py --workdir=runs/gap \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds gap-development.tsv (2,000 snippets, for training) and gap-validation.tsv (454, dev); gap-test.tsv is predicted if it
exists. One layer reads the hidden states of the first subwords of the pronoun and of both names, and the product of the
pronoun's state with the state of each name. The scores are the F1 of the official scorer (overall and by gender), the ratio of
F1 between the genders, and the log-loss of the three classes.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: an accuracy well above the share of the most frequent
class; use several seeds, since the set is small."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": "gap", "length": 256},
            "training": {"batch_size": 16, "learning_rate": 5e-5, "epochs": 4},
        }
    )
