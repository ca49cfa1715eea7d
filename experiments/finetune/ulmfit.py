r"""A text classifier trained with the techniques of ULMFiT (Howard and Ruder, arXiv:1801.06146) on BERT.

    tpu_scripts/run.sh finetune --config=experiments/finetune/ulmfit.py:glue/sst2 --workdir=runs/ulmfit \
        --config.init_from=MODEL --config.task.data_dir=DIR

This is stage 3 of the recipe. For the whole recipe, MODEL is the result of stage 2: a language model that continued on the task's
texts. The commands of stage 2 are in experiments/pretrain/ulmfit_lm.py. The techniques of this stage are discriminative learning
rates (divided by 2.6 per layer, section 3.2), the slanted triangular schedule (section 3.2), gradual unfreezing (one more layer
in each epoch, section 3.3), and a head on the concatenation of [CLS], mean and maximum (section 3.3).

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: about the score of plain fine-tuning."""

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
