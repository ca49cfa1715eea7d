r"""One task of GLUE, with the paper's settings (section 4.1): batches of 32, 3 epochs.

    tpu_scripts/run.sh finetune --config=experiments/finetune/glue.py:mrpc --workdir=runs/mrpc \
        --config.init_from=MODEL --config.task.data_dir=DIR

The argument is cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli. DIR holds a folder for each task, as in GLUE's download;
without `data_dir` the data is fetched from the catalogue of tfds. The paper selects the learning rate on dev among 5e-5, 4e-5,
3e-5 and 2e-5: --config.sweep.learning_rates='[5e-5, 4e-5, 3e-5, 2e-5]'.

Hardware: v5e:1x1, one chip of any TPU or GPU; a laptop for small models. Expected on dev with BERT-Base
(google-research/bert's README and the paper's Table 1): MRPC 88.9 F1, MNLI 84.6/83.4, SST-2 93.5.
"""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": f"glue/{task}", "length": 128},
            "training": {"batch_size": 32, "learning_rate": 2e-5, "epochs": 3},
        }
    )
