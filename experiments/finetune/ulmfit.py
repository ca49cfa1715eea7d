r"""A text classifier trained as ULMFiT's (Howard and Ruder, arXiv:1801.06146), on top of BERT.

    python -m bert_jax.finetune --config=experiments/finetune/ulmfit.py:glue/sst2 --workdir=runs/ulmfit \
        --config.init_from=MODEL --config.task.data_dir=DIR

Discriminative rates (2.6 times less a layer, section 3.2), the slanted triangular schedule (section 3.2), gradual unfreezing (one
layer more each epoch, section 3.3), and [CLS], mean and maximum side by side for the head (section 3.3).

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: about what plain fine-tuning reaches; it is here
to be compared with.
"""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128},
            "head": {"pooling": "concat"},
            "training": {
                "batch_size": 32,
                "learning_rate": 1e-4,
                "epochs": 8,
                "schedule": "slanted_triangular",
                "layer_decay": 1 / 2.6,
                "gradual_unfreezing": True,
            },
        }
    )
