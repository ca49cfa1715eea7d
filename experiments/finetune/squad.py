r"""Extractive question answering: SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3).

    tpu_scripts/run.sh finetune --config=experiments/finetune/squad.py:v1.1 --workdir=runs/squad \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds train-v1.1.json and dev-v1.1.json (or v2.0). Contexts are read in windows of 384 tokens with a stride of 128. The
settings for Base come from the README of the released code: 2 epochs, batches of 12, learning rate 3e-5. The paper's settings
differ: 3 epochs, batches of 32 and 5e-5 for 1.1; 2 epochs, batches of 48 and 5e-5 for 2.0. For 2.0 the threshold of "no answer"
is tuned on dev in the same run.

Hardware: v5e:1x1, one chip of any TPU or GPU. Expected on dev with BERT-Base: EM 81.25, F1 88.41 (google-research/bert's
README).
"""

from ml_collections import ConfigDict


def get_config(version: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": f"squad/{version}", "length": 384, "doc_stride": 128, "max_question": 64, "max_answer": 30},
            "training": {"batch_size": 12, "learning_rate": 3e-5, "epochs": 2},
        }
    )
