r"""The base model of "Attention Is All You Need" (arXiv:1706.03762), which translates from English to German. It is trained on
WMT14 with exactly the paper's settings.

    tpu_scripts/run.sh corpus --source=tfds:wmt14_translate/de-en --eval-source=tfds:wmt14_translate/de-en:validation \
        --pair-fields=en,de --train-vocab=bpe --vocab-size=37000 --output=runs/wmt14_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/transformer_base.py --workdir=runs/transformer_base
    tpu_scripts/run.sh convert --from=runs/transformer_base --last=5 --to=runs/transformer_base_mean

The model has six layers on each side, 512 wide, 2,048 in the feed-forward, with 8 heads. Both languages and the softmax share one
table of embeddings. Dropout is 0.1 on every sum, label smoothing 0.1, Adam has beta2 0.98 and epsilon 1e-9, and there are 100,000
steps. The learning rate in step n is 512^-0.5 * min(n^-0.5, n * 4000^-1.5). A batch has 104 rows of 256 tokens on each side.
Several pairs fill a row, so a batch has about 25,000 tokens of each language. Checkpoints are 1,400 steps apart, which took ten
minutes on the paper's hardware; the last five are averaged. Translate with 4 beams and GNMT's length penalty of 0.6.

Hardware: v5e:2x4. Duration: 1.7 hours by the estimate of `aot` (62.6 ms a step, 3.4 of 16 GiB, 11 % of the chips' peak: the
paper's batch is small for 8 chips). It has not been run; in the paper it took 12 hours on 8 GPUs (P100). Expected: 27.3 BLEU on
newstest2014, but only if BLEU is computed as in the paper, on tokenised text with compounds split. On detokenised text, as in
sacrebleu, the same translations have a lower score."""

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
