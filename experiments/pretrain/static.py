r"""Word vectors by skip-gram with negative sampling (word2vec) on your own text, on a CPU.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=wordpiece --vocab-size=8192 --lowercase \
        --alphabet=1000 --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/static.py --workdir=runs/static
    tpu_scripts/run.sh analyse neighbours king paris monday --model=runs/static --output=runs/static/neighbours
    tpu_scripts/run.sh convert --from=runs/static --to=runs/static/vectors --format=word2vec

Each subword of the vocabulary has a vector of width 256, and a second one for its use as a context: 4.2 M parameters in all.
The last command writes the vectors in word2vec's text format.

Hardware: 2 CPU cores, 2 GiB. Duration: 4 minutes of one core (AMD EPYC), for 33 M tokens of Wikipedia. Expected: a held-out loss
of 2.39 per pair (three seeds: 2.388, 2.389, 2.389); untrained vectors have 2.70 (-ln 1/6 - 5 ln 5/6)."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                "encoder": "static",
                "vocab_size": 8_192,
                "hidden_size": 256,
                "num_layers": 0,
                "initializer_range": 0.03,
            },
            "optimizer": {"name": "adamw", "b2": 0.98, "weight_decay": 0.0},
            "phases": [
                {
                    "steps": 4_000,
                    "length": 128,
                    "batch_size": 64,
                    "max_predictions": 127,
                    "learning_rate": 2e-3,
                    "warmup_steps": 100,
                }
            ],
            "evaluation": {"every": 500, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 1_000},
            "log_every": 100,
        }
    )
