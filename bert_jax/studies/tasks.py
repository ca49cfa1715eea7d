"""The tasks of the studies in experiments/studies/. Some of these tasks distinguish small models. The other tasks are from the
paper's ablations."""

from __future__ import annotations

from bert_jax.files import JsonObject

GLUE, SICK = "experiments/finetune/glue.py", "experiments/finetune/sick.py"

SMALL: JsonObject = {
    "optimizer": {"name": "adamw"},
    "training": {"learning_rate": 2e-4, "batch_size": 32, "epochs": 4, "schedule": "linear"},
    "selection": {"select": "last"},
    "task": {"length": 64},
}
"""The fine-tuning settings for models with a few layers. The learning rate is ten times the learning rate for BERT-Base. The
last weights are used, because choosing the weights on dev would raise the dev scores of every arm. With a vocabulary of 8,192
pieces, 64 tokens are enough for 96 to 99.8 % of the rows in the small tasks, and 96 tokens are enough for 99 % of the rows in
STS-B. Tagging tasks divide longer sentences."""

TINY: JsonObject = {**SMALL, "training": {**SMALL["training"], "learning_rate": 1e-3}}
"""The fine-tuning settings for a model of BERT-Tiny's shape, `laptop.py:tiny`. At a learning rate of 2e-4, such a model is not
better than always giving the most frequent answer (experiments/results/studies.md, "The learning rates of the arms")."""


def small_tasks(*names: str) -> list[JsonObject]:
    """Returns the tasks with these names. Without names, returns all four tasks, which are STS-B, SICK, WNUT-17, and
    part-of-speech tagging of UD English EWT.

    SST-2, MRPC, RTE and CoLA are not included. After minutes of pretraining, their scores are within 0.04 of the scores with
    random weights (experiments/results/studies.md), so they cannot rank arms."""
    known: dict[str, JsonObject] = {
        "stsb": {"experiment": f"{GLUE}:stsb", "data_dir": "glue", "finetune": {"task": {"length": 96}}},
        "sick": {"experiment": f"{SICK}:entailment", "data_dir": "sick"},
        "wnut17": {"experiment": "experiments/finetune/ner.py:wnut17", "data_dir": "wnut17"},
        "pos": {
            "experiment": "experiments/finetune/pos.py",
            "data_dir": "ud_english_ewt",
            "finetune": {"task": {"train_rows": 4_000}, "training": {"epochs": 3}},
        },
    }
    return [{"name": name, **known[name]} for name in names or known]


def paper_tasks(*names: str) -> list[JsonObject]:
    """Returns the tasks of the paper's ablations (section 5.1 and Table 5) with these names. Without names, returns all tasks
    except "ner" (CoNLL-2003)."""
    known: dict[str, JsonObject] = {
        "mnli": {"experiment": f"{GLUE}:mnli", "data_dir": "glue"},
        "qnli": {"experiment": f"{GLUE}:qnli", "data_dir": "glue"},
        "mrpc": {"experiment": f"{GLUE}:mrpc", "data_dir": "glue", "metric": "dev/accuracy"},
        "sst2": {"experiment": f"{GLUE}:sst2", "data_dir": "glue"},
        "squad": {"experiment": "experiments/finetune/squad.py:v1.1", "data_dir": "squad"},
        "ner": {"experiment": "experiments/finetune/ner.py:conll2003", "data_dir": "conll2003"},
    }
    return [{"name": name, **known[name]} for name in names or ("mnli", "qnli", "mrpc", "sst2", "squad")]
