r"""CoVe (McCann et al. 2017, arXiv:1708.00107), trained on a CPU: an LSTM learns to translate image captions, and its encoder
then supplies features for other tasks.

    tpu_scripts/run.sh corpus --source=parallel:multi30k/train.en.gz:multi30k/train.de.gz \
        --eval-source=parallel:multi30k/val.en.gz:multi30k/val.de.gz --train-vocab=bpe --vocab-size=8000 \
        --output=runs/multi30k_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/cove.py --workdir=runs/cove
    tpu_scripts/run.sh finetune --config=experiments/finetune/ner_features.py:embeddings_and_last --workdir=runs/cove_ner \
        --config.init_from=runs/cove --config.task.data_dir=wnut17 --config.task.name=wnut17 --config.task.context=sentence \
        --config.head.lstm=128

The corpus is the same as in `multi30k.py`. The encoder has two bidirectional layers, 128 wide in each direction (300 in the
paper). The decoder has two layers with attention. Dropout is 0.2, as in the paper. The features of a token are its word vector
and the output of the encoder. The paper's smallest model (MT-Small) learned from these captions too, but started from GloVe
vectors. Here the word vectors start from random values, so they know little about words that do not occur in captions of
photographs. The paper's larger models learned from 210 thousand and 7 million pairs.

Hardware: 2 CPU cores, 2 GiB. The whole run has not been measured. Expected: an hour or two on one core, for 242 TFLOP; a
held-out perplexity of 10 to 20 (word frequency alone: several hundred)."""

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
