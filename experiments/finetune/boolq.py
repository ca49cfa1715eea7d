r"""BoolQ: whether the answer to a question about a passage is yes (Clark et al., arXiv:1905.10044).

    python -m bert_jax.finetune --config=experiments/finetune/boolq.py --workdir=runs/boolq \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds train.jsonl and dev.jsonl of its authors, or train.jsonl, val.jsonl and test.jsonl of SuperGLUE, whose test set is
answered in predictions/BoolQ.jsonl, as its leaderboard takes it. Question and passage are one pair of at most 256 tokens.

Hardware: v5e:1x1, one chip of any TPU or GPU. Expected on dev: clearly above the most frequent answer, 62 % of the questions;
a model that has learned MNLI (`glue.py:mnli`) first does several points better, as the paper found.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": "boolq", "length": 256},
            "training": {"batch_size": 24, "learning_rate": 1e-5, "epochs": 5},
        }
    )
