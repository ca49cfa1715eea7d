r"""The paper's grid (appendix A.3) on a small task: batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4 epochs.

    python -m bert_jax.finetune --config=experiments/finetune/grid.py:glue/rte --workdir=runs/rte_grid \
        --config.init_from=MODEL --config.task.data_dir=DIR --config.sweep.seeds='[0, 1, 2]'

18 runs for each seed, side by side on the devices of all hosts; results.json has best, mean, standard deviation and median for
each setting, and counts the runs that answer everything alike. model/ and predictions/ are those of the best run on dev.

Hardware: v5e:2x4, a run a chip: 8 chips do the grid in about the time of three runs. Expected: what the paper reports is
the best on dev.
"""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "sweep": {"batch_sizes": [16, 32], "learning_rates": [5e-5, 3e-5, 2e-5], "epochs": [2, 3, 4], "seeds": [0]},
        }
    )
