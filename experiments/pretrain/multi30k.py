r"""A small Transformer that translates image captions from English to German, trained on Multi30k on a CPU within an hour.

    tpu_scripts/run.sh corpus --source=parallel:multi30k/train.en.gz:multi30k/train.de.gz \
        --eval-source=parallel:multi30k/val.en.gz:multi30k/val.de.gz --train-vocab=bpe --vocab-size=8000 \
        --output=runs/multi30k_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/multi30k.py --workdir=runs/multi30k
    tpu_scripts/run.sh convert --from=runs/multi30k --last=5 --to=runs/multi30k_mean

Multi30k (Elliott et al. 2016, task 1) has 29,000 captions of Flickr30k with translations by professionals. A caption has 15
tokens in English and 17 in German on average. The shape is the smallest model of Wu et al. 2021 (arXiv:2105.14462): 4 layers on
each side, 128 wide, 256 in the feed-forward, 4 heads, dropout 0.3. In their experiments, it beats the Transformer's base model
on Multi30k. Each row is packed with three or four pairs.

Hardware: 2 CPU cores, 2 GiB. Duration: 46 minutes on two cores of an AMD EPYC. Expected: 30 to 40 BLEU, as other text-only
systems of this size reach. With seed 0, the mean of the last five checkpoints has 39.5 on `test_2016_flickr`. On an H200,
training takes 45 seconds; two seeds have 39.1 and 38.5 there, and the same model in PyTorch has 38.0 and 37.5
(experiments/results/pretraining.md)."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config() -> ConfigDict:
    width, warmup = 128, 1_000
    return ConfigDict(
        {
            "corpus": {"directory": "runs/multi30k_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                **published("transformer_base"),
                "hidden_size": width,
                "num_layers": 4,
                "decoder_layers": 4,
                "num_heads": 4,
                "intermediate_size": 256,
                "max_position": 128,
                "hidden_dropout": 0.3,
                "attention_dropout": 0.0,
                "initializer_range": width**-0.5,
            },
            "optimizer": {
                "name": "adamw", "b1": 0.9, "b2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0, "clip_norm": 0.0,
                "schedule": "inverse_sqrt",
            },
            "phases": [
                {
                    "steps": 4_500, "length": 64, "batch_size": 64, "packed_examples": 8, "learning_rate": 5e-3,
                    "warmup_steps": warmup,
                },
            ],
            "evaluation": {"every": 500, "rows": 1_000, "batch_size": 64},
            "checkpoints": {"every": 250, "keep": 5},
            "log_every": 100,
        }
    )  # fmt: skip
