"""A small BERT (2 layers, 128 wide) on the English that every Python installation carries: the first thing to run.

    tpu_scripts/run.sh

Hardware: a laptop; 2 CPU cores are enough. Duration: XX minutes of training. Expect: XX

The shape is BERT-Tiny's. Kernels begin at 1/sqrt(width) instead of 0.02: a model this narrow would otherwise spend its first
thousand steps at word frequencies. The rate is 30 times the paper's, and there is no dropout: nothing is overfitted in minutes.
"""

from ml_collections import ConfigDict

from bert_jax.model.settings import published


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
                {"steps": 700, "length": 128, "batch_size": 64, "max_predictions": 20, "learning_rate": 3e-3, "warmup_steps": 50}
            ],
            "evaluation": {"every": 100, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 100},
            "log_every": 20,
        }
    )
