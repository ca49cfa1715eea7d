r"""Stage 2 of ULMFiT (Howard and Ruder, arXiv:1801.06146): a pretrained language model continues on the texts of a task.

    python -m bert_jax.tasks.texts --task=sick/entailment --data-dir=DIR --output=sick.jsonl
    tpu_scripts/run.sh corpus --source=jsonl:sick.jsonl --vocab=MODEL --output=runs/task_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/ulmfit_lm.py --workdir=runs/task_lm --config.init_from=MODEL
    tpu_scripts/run.sh finetune --config=experiments/finetune/ulmfit.py:sick/entailment --workdir=runs/ulmfit \
        --config.init_from=runs/task_lm --config.task.data_dir=DIR

MODEL needs its masked-language-model head; stage 1 is its own pretraining. With --config.init_new=mlm_head, a model without the
head gets one with random weights. MODEL may be a left-to-right LSTM, the paper's own encoder
(experiments/pretrain/bilm.py:forward), whose head is a "softmax"; --config.examples.max_predictions=63 then predicts every next
token of a row.

As in the paper, the learning rate of a layer is the rate of the layer above divided by 2.6, and the schedule is the slanted
triangle with a tenth of the steps rising (section 3.2). The rows hold several short texts, and there is no next sentence
prediction.

Hardware: 2 CPU cores, 2 GiB, for a model of BERT-Mini's shape. Duration: minutes; the steps are about twelve epochs of 60,000
tokens. Expected: a lower held-out perplexity on the task's texts than MODEL's. Starting from the model of `laptop.py:more`, 60
steps on SICK's texts (`--config.phases.0.steps=60 --config.phases.0.warmup_steps=6`) lowered it from 167 to 63 on 882 held-out
tokens, with seed 0, at commit 4130c7f. The effect on the task has not been measured.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": {"directory": "runs/task_corpus"},
            "examples": {"pairs": "none", "length": 64, "packed_examples": 4, "max_predictions": 13},
            "model": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
            "optimizer": {"name": "adamw", "schedule": "slanted_triangular", "layer_decay": 1 / 2.6},
            "phases": [{"steps": 200, "batch_size": 64, "learning_rate": 1e-3, "warmup_steps": 20}],
            "evaluation": {"every": 100, "rows": 1_024, "batch_size": 64},
            "checkpoints": {"every": 200},
            "log_every": 50,
        }
    )
