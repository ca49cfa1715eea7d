r"""Flair's language model of characters (contextual string embeddings, Akbik et al. 2018), trained on your own text on a CPU.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=characters --vocab-size=256 \
        --output=runs/wikipedia_characters
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/flair.py --workdir=runs/flair
    tpu_scripts/run.sh finetune --config=experiments/finetune/ner_features.py:last --workdir=runs/flair_ner \
        --config.init_from=runs/flair --config.task.data_dir=wnut17 --config.task.name=wnut17 --config.task.context=sentence \
        --config.task.length=512 --config.head.lstm=128

The model has one LSTM in each direction, 256 wide (2,048 in the paper). It reads characters and distinguishes upper and lower
case. A row has 256 characters, about 45 words. Each direction predicts every character of a row. The features of a word are the
forward state after its last character and the backward state before its first one. In the settings of a task, lengths count
characters.

Hardware: 2 CPU cores, 2 GiB. The whole run has not been measured. Expected: 30 to 60 minutes on one core, estimated from its
FLOPs (232 T) and the speed of `bilm.py`; a held-out loss of 1.3 to 1.7 nats per character (word frequency alone: 3.2)."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_characters"},
            "examples": {"pairs": "none"},
            "model": {
                "encoder": "flair",
                "vocab_size": 256,
                "hidden_size": 512,
                "intermediate_size": 256,
                "num_layers": 1,
                "max_position": 2_048,
                "hidden_dropout": 0.0,
                "initializer_range": 0.0625,
            },
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [
                {
                    "steps": 4_000,
                    "length": 256,
                    "batch_size": 32,
                    "max_predictions": 255,
                    "learning_rate": 2e-3,
                    "warmup_steps": 200,
                }
            ],
            "evaluation": {"every": 500, "rows": 512, "batch_size": 32},
            "checkpoints": {"every": 500},
            "log_every": 100,
        }
    )
