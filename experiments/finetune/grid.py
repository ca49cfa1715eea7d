r"""The paper's grid (appendix A.3) on a small task: batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4 epochs.

    tpu_scripts/run.sh finetune --config=experiments/finetune/grid.py:glue/rte --workdir=runs/rte_grid \
        --config.init_from=MODEL --config.task.data_dir=DIR --config.sweep.seeds='[0, 1, 2]'

The grid has 18 runs for each seed, which are trained in parallel on the devices of all hosts. For each setting results.json has
the best score, the mean, the standard deviation and the median, and the number of runs that give every example the same answer.
model/ and predictions/ come from the best run on dev.

Hardware: v5e:2x4. Each of the 8 chips trains one run at a time, so the grid takes about as long as three runs for one seed, and
as seven runs for three seeds. Expected: the paper's score on dev; like the paper, report the best one of the grid."""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "sweep": {"batch_sizes": [16, 32], "learning_rates": [5e-5, 3e-5, 2e-5], "epochs": [2, 3, 4], "seeds": [0]},
        }
    )
