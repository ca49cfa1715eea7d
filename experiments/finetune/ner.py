r"""Named entity recognition by fine-tuning (paper section 5.3): CoNLL-2003, or WNUT-17.

    tpu_scripts/run.sh finetune --config=experiments/finetune/ner.py:conll2003 --workdir=runs/ner \
        --config.init_from=MODEL --config.task.data_dir=DIR

The label of a word is predicted at its first subword, without a CRF. `--config.head.crf=iob2` adds a CRF, which never predicts
an I without an entity before it (for tags in IOB1, also set `--config.task.scheme=IOB2`). As in the paper, the input is a
sentence with its context in the document. With `--config.task.context=sentence`, the default for WNUT-17, the input is the
sentence alone. The paper uses a cased model.

Hardware: v5e:1x1, one chip of any TPU or GPU. Expected on dev with cased BERT-Base: F1 96.4 (paper Table 7).
"""

from ml_collections import ConfigDict


def get_config(task: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": task, "length": 128, "context": "document" if task == "conll2003" else "sentence"},
            "training": {"batch_size": 32, "learning_rate": 5e-5, "epochs": 4},
        }
    )
