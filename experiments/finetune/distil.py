r"""Distillation of a task into a smaller model (Hinton et al., arXiv:1503.02531; Sun et al., arXiv:1908.09355).

    tpu_scripts/run.sh convert --from=MODEL --to=runs/half --layers=3
    tpu_scripts/run.sh finetune --config=experiments/finetune/distil.py:glue/mrpc --workdir=runs/mrpc_half \
        --config.init_from=runs/half --config.distillation.teacher=runs/mrpc --config.task.data_dir=DIR

The teacher is the workdir of a run on the same task. Half of the loss comes from the labels; the other half compares the logits
of student and teacher at temperature 2. The mean squared difference of the hidden states is added with weight 0.1; if
the widths differ, set `--config.distillation.hidden_weight=0`.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: a score between the teacher's score and the score of
the small model trained on the labels alone. Measured on SICK, with half of MiniLM's layers: 0.671 alone and 0.754 with the
teacher, which itself reaches 0.840 (experiments/results/finetuning.md)."""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "training": {"batch_size": 32, "learning_rate": 5e-5, "epochs": 4},
            "distillation": {"teacher": "runs/teacher", "temperature": 2.0, "soft_weight": 0.5, "hidden_weight": 0.1},
        }
    )
