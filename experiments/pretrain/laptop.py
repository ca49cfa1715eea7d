"""BERT-Mini (4 layers, 256 wide) on some tens of millions of words of your own, on a CPU, in about an hour.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --vocab=vocab.txt --lowercase \\
        --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/laptop

Hardware: 2 CPU cores, 2 GiB. Duration: 65 minutes beside other work, 35 alone (about 40 rows/s). Expect, on 28.7 M tokens of
Wikipedia: held-out MLM accuracy 14.6 % (word frequency alone: 5.4 %), perplexity 725, NSP accuracy 69.8 %; the model is then
only leaving the plateau where it knows which words go together but not yet their order. On a CPU with AMX,
`--config.model.dtype=bfloat16 --config.phases.0.steps=7200 --config.phases.0.warmup_steps=300` takes 51 minutes alone (75 rows/s)
and gives 15.4 %, perplexity 635, NSP accuracy 80.6 %.

The published shape, with three changes that suit 77,000 rows instead of 256 million: kernels begin at about 1/sqrt(width)
instead of 0.02, which shortens the plateau at word frequencies from thousands of steps to hundreds; the rate is ten times
the paper's; and there is no dropout, since no row is seen twice.
"""

from ml_collections import ConfigDict

from bert_jax.model.settings import published


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {**published("mini"), "hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.05},
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [
                {
                    "steps": 2_400,
                    "length": 128,
                    "batch_size": 32,
                    "max_predictions": 20,
                    "learning_rate": 1e-3,
                    "warmup_steps": 200,
                }
            ],
            "evaluation": {"every": 200, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 200},
            "log_every": 20,
        }
    )
