"""A small BERT (2 layers of width 128) on the English text that comes with every Python: the first experiment to run.

    tpu_scripts/run.sh

Hardware: 2 CPU cores, 2 GiB: a laptop. Duration: 4 minutes of training. Expected: held-out MLM accuracy 30.1 %, which is 4.8
times as much as word frequency alone reaches (6.3 %).

The shape is BERT-Tiny's. The standard deviation of the initial kernels is 1/sqrt(width) instead of 0.02. With 0.02, a model of
this width predicts nothing but word frequencies for the first thousand steps. Rows are short, because attention to neighbours has
to be learned at each position; with rows of 128 this takes four times as many words. The learning rate is 20 times the paper's,
and there is no dropout."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/embedded_corpus"},
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
                    "steps": 1_800,
                    "length": 32,
                    "batch_size": 128,
                    "max_predictions": 5,
                    "learning_rate": 2e-3,
                    "warmup_steps": 100,
                }
            ],
            "evaluation": {"every": 200, "rows": 2_048, "batch_size": 256},
            "checkpoints": {"every": 200},
            "log_every": 50,
        }
    )
