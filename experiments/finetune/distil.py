r"""A smaller model that learns a task from a larger one as well (Hinton et al., arXiv:1503.02531; Sun et al., arXiv:1908.09355).

    python -m bert_jax.convert --from=MODEL --to=runs/half --layers=3
    python -m bert_jax.finetune --config=experiments/finetune/distil.py:glue/mrpc --workdir=runs/mrpc_half \
        --config.init_from=runs/half --config.distillation.teacher=runs/mrpc --config.task.data_dir=DIR

The teacher is the workdir of a run on the same task. Half of the loss compares with its answers, both divided by a temperature of
2; with equal widths a tenth as much compares the hidden states, layer by layer.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: between the small model alone and its teacher.
"""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "training": {"batch_size": 32, "learning_rate": 5e-5, "epochs": 4},
            "distillation": {"teacher": "runs/teacher", "temperature": 2.0, "soft_weight": 0.5, "hidden_weight": 0.1},
        }
    )
