r"""The base model of "Attention Is All You Need" (arXiv:1706.03762): English to German on WMT14, its settings exactly.

    tpu_scripts/run.sh corpus --source=tfds:wmt14_translate/de-en --eval-source=tfds:wmt14_translate/de-en:validation \
        --pair-fields=en,de --train-vocab=bpe --vocab-size=37000 --output=runs/wmt14_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/transformer_base.py --workdir=runs/transformer_base
    tpu_scripts/run.sh convert --from=runs/transformer_base --last=5 --to=runs/transformer_base_mean

Six layers on each side, 512 wide, 2,048 in the feed-forward, 8 heads, one table for both languages and the softmax; dropout 0.1
on every sum, label smoothing 0.1, Adam with beta2 0.98 and epsilon 1e-9, 100,000 steps. The rate is 512^-0.5 * min(n^-0.5, n *
4000^-1.5) in step n. A batch is 104 rows of 256 tokens on each side, with about 25,000 tokens of each language: several pairs
fill a row. Checkpoints are 1,400 steps apart, ten minutes on the paper's hardware; the last five are averaged. Translate with 4
beams and GNMT's length penalty of 0.6.

Hardware: v5e:2x4. Not run; the paper: 12 hours on 8 GPUs (P100). Expect the paper's 27.3 BLEU on newstest2014 only with its
tokenised BLEU, after compounds are split; on detokenised text, as in sacrebleu, the same translations have a lower score.
"""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    width, warmup = 512, 4_000
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wmt14_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("transformer_base"),
                "vocab_multiple": 128,
                "hidden_dropout": 0.1,
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
                    "steps": 100_000, "length": 256, "batch_size": 104, "packed_examples": 32,
                    "learning_rate": (width * warmup) ** -0.5, "warmup_steps": warmup,
                },
            ],
            "evaluation": {"every": 5_000, "rows": 1_000, "batch_size": 104},
            "checkpoints": {"every": 1_400, "keep": 5},
        }
    )  # fmt: skip
