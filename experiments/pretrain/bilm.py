r"""ELMo's bidirectional LSTM language model on your own text, on a CPU. TagLM and ELMo, which came before BERT, used such a model
for features.

    tpu_scripts/run.sh corpus --source='jsonl:wikipedia/train-*.jsonl.gz' --train-vocab=wordpiece --vocab-size=8192 --lowercase \
        --alphabet=1000 --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/bilm.py --workdir=runs/bilm

The model has two layers of LSTMs in each direction, with cells of width 512 and projections to 128, so a feature vector has width
256. Both directions share one softmax, tied to the word vectors. `bilm.py:forward` is a single LSTM of width 256 that reads from
left to right: the language model of ULMFiT's recipe. The rows are whole texts without masks, and each direction predicts every
token of a row.

Hardware: 2 CPU cores, 2 GiB. Duration: 38 minutes of one core of an AMD EPYC before commit b32942b; at the speed since then,
about 26 minutes. Expected: a held-out accuracy of 13.5 % after 500 steps and of 18.8 to 19.0 % at the end, and a perplexity of
185 to 190 (three seeds). With word frequency alone: 5.0 % and 1,065."""

from ml_collections import ConfigDict


def get_config(direction: str = "both") -> ConfigDict:
    lstm = {"both": {"direction": "both"}, "forward": {"direction": "left_to_right"}}[direction]
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "examples": {"pairs": "none"},
            "model": {
                "encoder": "bilm",
                **lstm,
                "vocab_size": 8_192,
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_layers": 2,
                "hidden_dropout": 0.0,
                "initializer_range": 0.0625,
            },
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [
                {
                    "steps": 2_000,
                    "length": 64,
                    "batch_size": 64,
                    "max_predictions": 63,
                    "learning_rate": 2e-3,
                    "warmup_steps": 200,
                }
            ],
            "evaluation": {"every": 500, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 500},
            "log_every": 100,
        }
    )
