r"""The 24 published miniatures (arXiv:1908.08962) with the recipe of BERT-Base: 256 rows per step, a million steps.

    tpu_scripts/run.sh corpus --source=tfds:wikipedia/20230601.en --vocab=bert-base-uncased-vocab.txt --lowercase \
        --output=runs/wikipedia_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/bert_miniature.py:mini --workdir=runs/bert_mini

The argument is a size: tiny, mini, small, medium, or any size of the grid, L-2_H-128 to L-12_H-768. The hours are estimates of
`aot`. The expected score is the one published with the weights: the score on GLUE's test sets after fine-tuning.

    size     layers  width  parameters  hardware  hours  GLUE
    tiny          2    128       4.4 M  v5e:1x1     6.1  64.2
    mini          4    256      11.2 M  v5e:1x1     9.7  65.8
    small         4    512      28.8 M  v5e:2x2     3.9  71.2
    medium        8    512      41.4 M  v5e:2x2     5.9  73.5

The settings are from section A.2 of the paper and from the released code (google-research/bert, optimization.py and
create_pretraining_data.py). 90 % of the steps have rows of 128 tokens and the rest rows of 512, on one learning-rate schedule;
Adam has no bias correction."""

from ml_collections import ConfigDict

from bert_jax.model.config import published


def get_config(size: str) -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/wikipedia_corpus"},
            "model": {**published(size), "dtype": "bfloat16", "vocab_multiple": 128},
            "optimizer": {"name": "bert_adam"},
            "phases": [
                {
                    "steps": 900_000,
                    "length": 128,
                    "batch_size": 256,
                    "max_predictions": 20,
                    "learning_rate": 1e-4,
                    "warmup_steps": 10_000,
                },
                {"steps": 100_000, "length": 512, "batch_size": 256, "max_predictions": 77, "continue_schedule": True},
            ],
            "evaluation": {"every": 10_000, "rows": 10_000, "batch_size": 256},
            "checkpoints": {"every": 2_000, "keep": 3},
            "log_every": 100,
        }
    )
