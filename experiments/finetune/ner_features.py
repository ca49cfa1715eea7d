r"""Named entity recognition with a frozen encoder, whose layers are the input of a two-layer BiLSTM (paper section 5.3, Table 7).

    tpu_scripts/run.sh finetune --config=experiments/finetune/ner_features.py:last_four_concat --workdir=runs/ner_features \
        --config.init_from=MODEL --config.task.data_dir=DIR [--config.task.name=wnut17 --config.task.context=sentence]

The argument is a row of Table 7: embeddings, second_to_last, last, last_four_mix (the weighted sum of the last four layers),
last_four_concat, scalar_mix (the weighted sum of all layers, with trained weights as in ELMo), the unweighted sums
last_four_sum and all_sum, or embeddings_and_last (the word vectors and the last layer, concatenated, as in CoVe).

Hardware: v5e:1x1, one chip. For a small model it takes minutes on 2 CPU cores, since the encoder has no backward pass. Expected
on CoNLL-2003's dev with cased BERT-Base (paper Table 7): F1 of 91.0, 95.6, 94.9, 95.9, 96.1 and 95.5 for the first six arguments,
in that order."""

from ml_collections import ConfigDict


def get_config(layers: str = "last_four_concat") -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": "conll2003", "length": 128, "context": "document"},
            "head": {"layers": layers, "lstm": 768},
            "optimizer": {"name": "adamw", "weight_decay": 0.0},
            "training": {
                "freeze_encoder": True,
                "batch_size": 32,
                "learning_rate": 1e-3,
                "epochs": 10,
                "schedule": "linear",
            },
        }
    )
