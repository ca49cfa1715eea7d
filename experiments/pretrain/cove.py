r"""CoVe: the encoder of an LSTM that translates image captions, as features (McCann et al. 2017, arXiv:1708.00107), on a CPU.

    tpu_scripts/run.sh corpus --source=parallel:multi30k/train.en.gz:multi30k/train.de.gz \
        --eval-source=parallel:multi30k/val.en.gz:multi30k/val.de.gz --train-vocab=bpe --vocab-size=8000 \
        --output=runs/multi30k_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/cove.py --workdir=runs/cove
    tpu_scripts/run.sh finetune --config=experiments/finetune/ner_features.py:embeddings_and_last --workdir=runs/cove_ner \
        --config.init_from=runs/cove --config.task.data_dir=wnut17 --config.task.name=wnut17 --config.task.context=sentence \
        --config.head.lstm=128

The corpus is that of `multi30k.py`. The encoder has two bidirectional layers, 128 wide in each direction (300 in the paper), the
decoder two layers with attention, and dropout is the paper's 0.2. As features a token has its word vector and the output of the
encoder. The paper's smallest model learned from these captions too (MT-Small), but from GloVe vectors; here words start from
random ones and know little beside what is seen in photographs. The larger ones had 210 thousand and 7 million pairs.

Hardware: 2 CPU cores, 2 GiB. Expected, before the whole run was measured: an hour or two of one core, for 242 TFLOP, and
a held-out perplexity of 10 to 20 (word frequency alone: several hundred).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/multi30k_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                "encoder": "cove",
                "vocab_size": 8_000,
                "hidden_size": 256,
                "intermediate_size": 128,
                "num_layers": 2,
                "decoder_layers": 2,
                "hidden_dropout": 0.2,
                "initializer_range": 0.0625,
            },
            "objective_options": {"label_smoothing": 0.0},
            "optimizer": {"name": "adamw", "b2": 0.98, "weight_decay": 0.0, "clip_norm": 5.0},
            "phases": [
                {
                    "steps": 4_500,
                    "length": 64,
                    "batch_size": 32,
                    "packed_examples": 8,
                    "learning_rate": 2e-3,
                    "warmup_steps": 200,
                }
            ],
            "evaluation": {"every": 500, "rows": 1_000, "batch_size": 64},
            "checkpoints": {"every": 500},
            "log_every": 100,
        }
    )
