r"""A small model that learns from the words of a text and from a larger model's answers (arXiv:1910.01108, arXiv:1909.10351).

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/distil.py --workdir=runs/distilled --config.teacher=runs/laptop

The teacher is a masked language model with the vocabulary of the corpus. Here the teacher is `laptop.py`, with 4 layers of
width 256; the student has 2 layers of width 128. Half of the loss on masked words compares the student's probabilities with the
teacher's at temperature 2. The hidden states of the student are projected to the teacher's width and compared with the
teacher's hidden states. To start from some of the teacher's layers instead of random weights, set `--config.init_from` to a
model made by `convert --keep-layers=0,2`. `distil.py:alone` is the same student without a teacher.

Hardware: 2 CPU cores, 2 GiB; larger models on a TPU. Duration in bfloat16 on one core (AVX512-BF16): 12 minutes without a
teacher, 23 minutes with a teacher as large as the student, and longer with a larger teacher. Expected: a held-out accuracy
between the teacher's accuracy and the accuracy of the same student without a teacher. Measured figures are in
`experiments/results/pretraining.md`."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config(part: str = "taught") -> ConfigDict:
    taught = {
        "teacher": "runs/laptop",
        "distillation": {"temperature": 2.0, "soft_weight": 0.5, "hidden_weight": 0.1},
    }
    return ConfigDict(
        {
            **{"taught": taught, "alone": {}}[part],
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {
                **published("tiny"),
                "vocab_size": 8_192,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "initializer_range": 0.09,
            },
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [
                {
                    "steps": 4_000,
                    "length": 32,
                    "batch_size": 128,
                    "max_predictions": 5,
                    "learning_rate": 2e-3,
                    "warmup_steps": 100,
                }
            ],
            "evaluation": {"every": 500, "rows": 2_048, "batch_size": 256},
            "checkpoints": {"every": 500},
            "log_every": 100,
        }
    )
