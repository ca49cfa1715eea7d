r"""BoolQ: yes or no questions about a passage (Clark et al., arXiv:1905.10044).

    tpu_scripts/run.sh finetune --config=experiments/finetune/boolq.py --workdir=runs/boolq \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds train.jsonl and dev.jsonl of the authors, or train.jsonl, val.jsonl and test.jsonl of SuperGLUE. The predictions for
SuperGLUE's test set are written to predictions/BoolQ.jsonl, in the format of the leaderboard. Question and passage are one pair
of at most 256 tokens.

Hardware: v5e:1x1, one chip of any TPU or GPU. Expected on dev: an accuracy clearly above 62 %, the share of the most frequent
answer. After training on MNLI first (`glue.py:mnli`), the accuracy is several points higher, as in the paper."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": "boolq", "length": 256},
            "training": {"batch_size": 24, "learning_rate": 1e-5, "epochs": 5},
        }
    )
