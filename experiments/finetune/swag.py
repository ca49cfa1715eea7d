r"""Four-way multiple choice: SWAG (paper section 4.4), or CODAH.

    tpu_scripts/run.sh finetune --config=experiments/finetune/swag.py:swag --workdir=runs/swag \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds train.csv and val.csv of SWAG, or for `:codah` train.tsv and dev.tsv. A candidate is the pair (prompt, ending); its
score is a linear function of its pooled vector, and the prediction is a softmax over the scores of the four candidates.

Hardware: v5e:1x1, one chip of any TPU or GPU. Expected on dev with BERT-Base: accuracy 81.6 (paper Table 4). CODAH is small, so
use several seeds: --config.sweep.seeds='[0, 1, 2, 3, 4]'.
"""

from ml_collections import ConfigDict


def get_config(task: str = "swag") -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "training": {"batch_size": 16, "learning_rate": 2e-5, "epochs": 3},
        }
    )
