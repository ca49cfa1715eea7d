r"""A model of BERT-Mini's shape (4 layers of width 256), pretrained on a CPU in an hour or two, on tens of millions of words of
your own.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=wordpiece --vocab-size=8192 --lowercase \
        --alphabet=1000 --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py --workdir=runs/laptop
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/laptop.py:more --workdir=runs/laptop_more \
        --config.init_from=runs/laptop --config.seed=1

Hardware: 2 CPU cores, 2 GiB. Duration in bfloat16 (`--config.model.dtype=bfloat16`): 44 minutes on two cores of a CPU with AMX
while other programs ran (530 rows/s of 32 tokens, 120 rows/s of 128; in float32 240 and 36, more than twice as long), or 50 to
57 minutes on one core of an AMD EPYC (400 and 90 rows/s). The last command takes 16 minutes on the CPU with AMX. Expected on
33.9 M tokens of Wikipedia: held-out MLM accuracy 29.4 to 30.4 % (three seeds; word frequency alone: 4.6 %), perplexity 69 to
75, NSP accuracy 75.8 to 76.5 %. The last command trains this model further, with other pairs and masks. It reaches an accuracy
of 32.4 %, a perplexity of 57 and an NSP accuracy of 78.0 %.

Five settings make this little computation sufficient. Most steps have rows of 32 tokens, because the model then learns
attention to neighbours soonest. (With rows of 128 alone, the model only learns word frequencies in the same time: an accuracy
of 15 % and a perplexity of 635.) The last fifth of the steps trains longer rows and next sentence prediction. The vocabulary
has only 8,192 subwords, so each of them occurs often. (`--alphabet=1000` is the setting of these measurements. Leave it out for
text of your own.) The standard deviation of the initial kernels is 1/sqrt(width) instead of
0.02. The learning rate is ten times the paper's. There is no dropout, since no row occurs twice.

`laptop.py:tiny` has BERT-Tiny's shape, 2 layers of width 128, for CPUs without AMX. On such CPUs, the studies use it. It takes
about a quarter of an hour on one core of an AMD EPYC in float32. Three seeds reached an MLM accuracy of 30.0 to 30.9 %, a
perplexity of 64 to 72 and an NSP accuracy of 74.2 to 76.9 %: after 9,000 steps, the larger model is not yet better."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config(part: str = "whole") -> ConfigDict:
    long = {"length": 128, "batch_size": 32, "max_predictions": 20, "learning_rate": 1e-3, "warmup_steps": 100}
    short = {"length": 32, "batch_size": 128, "max_predictions": 5, "learning_rate": 1.5e-3, "warmup_steps": 200}
    whole = [{"steps": 7_000, **short}, {"steps": 2_000, **long}]
    phases = {"whole": whole, "more": [{"steps": 3_500, **long}], "tiny": whole}
    size, initializer_range = ("tiny", 0.09) if part == "tiny" else ("mini", 0.0625)
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {
                **published(size),
                "vocab_size": 8_192,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "initializer_range": initializer_range,
            },
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": phases[part],
            "evaluation": {"every": 500, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 500},
            "log_every": 100,
        }
    )
