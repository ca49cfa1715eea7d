r"""The big model of "Attention Is All You Need" (arXiv:1706.03762), which translates from English to German. It is trained on
WMT14 with exactly the paper's settings.

    tpu_scripts/run.sh corpus --source=tfds:wmt14_translate/de-en --eval-source=tfds:wmt14_translate/de-en:validation \
        --pair-fields=en,de --train-vocab=bpe --vocab-size=37000 --output=runs/wmt14_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/transformer_big.py --workdir=runs/transformer_big
    tpu_scripts/run.sh convert --from=runs/transformer_big --last=20 --to=runs/transformer_big_mean

It is like `transformer_base.py`, but 1,024 wide, 4,096 in the feed-forward, with 16 heads, dropout 0.3 and 300,000 steps. The
result is the mean of the last 20 checkpoints, which are 600 steps apart. Each checkpoint takes 2.6 GB.

Hardware: v5e:2x4. Duration: 14.7 hours or 118 chip-hours by the estimate of `aot` (176 ms a step, 5.8 of 16 GiB, 13 % of the
chips' peak: the paper's batch is small for 8 chips). It has not been run; in the paper it took 3.5 days (84 hours) on 8 GPUs
(P100). Expected: 28.4 BLEU on newstest2014, but only if BLEU is computed as in the paper, on tokenised text with compounds
split."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    width, warmup = 1_024, 4_000
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wmt14_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("transformer_big"),
                "vocab_multiple": 128,
                "hidden_dropout": 0.3,
                "attention_dropout": 0.0,
                "initializer_range": width**-0.5,
            },
            "objective_options": {"label_smoothing": 0.1},
            "optimizer": {
                "name": "adamw", "b1": 0.9, "b2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0, "clip_norm": 0.0,
                "schedule": "inverse_sqrt",
            },
            "phases": [
                {
                    "steps": 300_000, "length": 256, "batch_size": 104, "packed_examples": 32,
                    "learning_rate": (width * warmup) ** -0.5, "warmup_steps": warmup,
                },
            ],
            "evaluation": {"every": 5_000, "rows": 1_000, "batch_size": 104},
            "checkpoints": {"every": 600, "keep": 20},
        }
    )  # fmt: skip
