r"""A left-to-right language model of BERT-Tiny's shape, which predicts every next token and generates text.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=wordpiece --vocab-size=8192 --lowercase \
        --alphabet=1000 --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/left_to_right.py --workdir=runs/left_to_right
    tpu_scripts/run.sh predict generate --model=runs/left_to_right "The river" --tokens=30 --temperature=0.8 --top-k=20

Hardware: 2 CPU cores, 2 GiB. Duration: about a quarter of an hour on one core of an AMD EPYC. Expected after 10.2 M tokens of
Wikipedia: it predicts 20.3 to 20.5 % of the next tokens of held-out rows of 128 (three seeds; word frequency alone: 4.9 %), with
a perplexity of 164 to 166.

All tokens of a row are predicted, 6 times as many as with masks, so the model learns more from the same rows. On the other hand
the vocabulary head computes 6 times as many rows, so a step takes longer than in `laptop.py:tiny`.
`tests/benchmarks/benchmark_step.py --left-to-right` measures how much longer a step takes. It also measures the difference if
both models make equally many predictions (`--config.phases.0.max_predictions=5`). Each row has one text, without segments and
next sentence prediction, because the [CLS] of a left-to-right model sees no other token."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    long = {"length": 128, "batch_size": 32, "max_predictions": 127, "learning_rate": 1e-3, "warmup_steps": 100}
    short = {"length": 32, "batch_size": 32, "max_predictions": 31, "learning_rate": 1e-3, "warmup_steps": 800}
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("tiny"),
                "direction": "left_to_right",
                "vocab_size": 8_192,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "initializer_range": 0.09,
            },
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [{"steps": 8_000, **short}, {"steps": 500, **long}],
            "evaluation": {"every": 1_000, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 1_000},
            "log_every": 100,
        }
    )
