r"""A small encoder with a modern block and recipe, pretrained on a CPU on tens of millions of words of your own: `laptop.py` as a
ModernBERT.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=wordpiece --vocab-size=8192 --lowercase \
        --alphabet=1000 --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/modern_laptop.py --workdir=runs/modern_laptop

The block is ModernBERT's (arXiv:2412.13663): norms before attention and feed-forward, GeGLU, rotary positions, no biases. Of the
4 layers, the first and the last see the whole row; the two between them see 16 tokens on each side. The recipe is ModernBERT's
too: 30 % masked tokens and no next sentence prediction, StableAdamW without clipping, and a trapezoidal schedule (warmup,
constant, 1-sqrt), whose decay falls to 0 in the last phase. The rows and steps are the same as in `laptop.py`: short rows first.
The held-out rows have 15 % masked tokens, so that the model can be compared with `laptop.py`.

Hardware: 2 CPU cores, 2 GiB. Duration: 26 minutes for a third of the steps (`--config.steps=3000`) in bfloat16
(`--config.model.dtype=bfloat16`), on two cores of an AMD EPYC while tests ran. The whole run of 9,000 steps has not been made.
Expected: after a third of the steps, it is better than `laptop.py` after all steps. After 3,000 steps it reaches a held-out MLM
accuracy of 38.8 % and a perplexity of 33.6 (`laptop.py` after 9,000 steps: 29.4 to 30.4 %, 69 to 75).

A decay may branch off at a checkpoint while the main run continues:

    tpu_scripts/run.sh pretrain --config=experiments/pretrain/modern_laptop.py --workdir=runs/early --config.phases.1.steps=500 \
        --config.init_state=runs/modern_laptop@7500
    tpu_scripts/run.sh convert --from=runs/modern_laptop --average=runs/early --to=runs/mean
"""

from ml_collections import ConfigDict

from bert_jax.model.config import modern_block


def get_config() -> ConfigDict:
    short = {"length": 32, "batch_size": 128, "masked_fraction": 0.3, "max_predictions": 10, "learning_rate": 1.5e-3}
    long = {"length": 128, "batch_size": 32, "masked_fraction": 0.3, "max_predictions": 38, "learning_rate": 1e-3}
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **modern_block(4, radius=16),
                "num_layers": 4,
                "hidden_size": 256,
                "num_heads": 4,
                "intermediate_size": 384,  # 3/2 of the width, as in ModernBERT-base
                "max_position": 512,
                "vocab_size": 8_192,
                "rotary_theta": 10_000.0,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "initializer": "modernbert",
                "initializer_range": 0.0625,  # 1 / sqrt(width), as in laptop.py
            },
            "optimizer": {
                "name": "stable_adamw",
                "b2": 0.98,
                "epsilon": 1e-6,
                "weight_decay": 1e-5,
                "decouple_rate": True,
                "clip_norm": 0.0,
                "schedule": "constant",
            },
            "phases": [
                {"steps": 7_000, "warmup_steps": 200, **short},
                {"steps": 1_000, **long},
                {"steps": 1_000, "schedule": "1-sqrt", **long},
            ],
            "evaluation": {"every": 500, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 500, "keep_at": [7_500, 8_000]},
            "log_every": 100,
        }
    )
