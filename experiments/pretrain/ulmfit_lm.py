r"""Stage 2 of ULMFiT (Howard and Ruder, arXiv:1801.06146): a pretrained language model continues on the texts of a task.

    python -m bert_jax.tasks.texts --task=sick/entailment --data-dir=DIR --output=sick.jsonl
    tpu_scripts/run.sh corpus --source=jsonl:sick.jsonl --vocab=MODEL --output=runs/task_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/ulmfit_lm.py --workdir=runs/task_lm --config.init_from=MODEL
    tpu_scripts/run.sh finetune --config=experiments/finetune/ulmfit.py:sick/entailment --workdir=runs/ulmfit \
        --config.init_from=runs/task_lm --config.task.data_dir=DIR

MODEL needs a masked-language-model head; pretraining it is stage 1. With --config.init_new=mlm_head, a model without the head
gets one with random weights. MODEL may also be a left-to-right LSTM, like the encoder of the paper
(experiments/pretrain/bilm.py:forward), whose head is a "softmax". With --config.examples.max_predictions=63, the LSTM predicts
every next token of a row.

As in the paper (section 3.2), the learning rate of a layer is the rate of the layer above divided by 2.6, and the schedule is the
slanted triangle, which rises for a tenth of the steps. The rows hold several short texts, and there is no next sentence
prediction.

Hardware: 2 CPU cores, 2 GiB, for a model of BERT-Mini's shape. Duration: minutes. The steps make about twelve epochs over 60,000
tokens. Expected: a lower held-out perplexity on the task's texts than MODEL has before. With the model of `laptop.py:more`, 60
steps on SICK's texts (`--config.phases.0.steps=60 --config.phases.0.warmup_steps=6`) lowered the perplexity from 167 to 63 on 882
held-out tokens, with seed 0, at commit 4130c7f. The effect on the task's score has not been measured."""

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
