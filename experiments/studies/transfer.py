r"""Tests ULMFiT's recipe on BERT and on an LSTM: language-model fine-tuning on the target text, and its learning rates, schedule
and unfreezing.

    python -m bert_jax.tasks.texts --task=glue/sst2 --data-dir=data/glue --output=sst2.jsonl
    tpu_scripts/run.sh corpus --source=jsonl:sst2.jsonl --vocab=runs/wikipedia_corpus/tokenizer --output=runs/target_corpus
    tpu_scripts/run.sh study --config=experiments/studies/transfer.py --workdir=runs/transfer \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/transfer.py:pod --workdir=gs://bucket/transfer \
        --config.data=gs://bucket/data

The first two commands build a corpus of the task's own texts in runs/target_corpus, where the second stage looks for it. Both
corpora have the same vocabulary. `data` holds the folder glue. The stages of ULMFiT (Howard and Ruder, arXiv:1801.06146) are
tested separately. The arm "general" is fine-tuned as usual; "general, recipe" is fine-tuned with discriminative rates, the
slanted triangle, gradual unfreezing and concat pooling. "target" first continues pretraining on the target's text, and is then
fine-tuned as usual; "target, recipe" continues pretraining in the same way, and is then fine-tuned with the recipe. "random
weights" is the model without pretraining.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop, on one core, for each seed: the first
stage takes 4 minutes for BERT and 18 for the LSTM, the second stage takes 1 and 5 minutes, and fine-tuning takes 10 minutes. On
the pod, the first stage of BERT takes 14 hours, or 56 chip-hours, by the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

Expected, before it was run: every model is better than random weights. The target's text and the recipe help most if few examples
are labelled (the study uses the first 2,000 of SST-2). The tables of the ULMFiT paper use other data, so none of their rows is
printed."""

from ml_collections import ConfigDict

from bert_jax.studies.phases import every_token
from bert_jax.studies.tasks import TINY, paper_tasks


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    lengths = (32, 128) if laptop else (128, 512)
    target_phase = {
        "steps": 500 if laptop else 10_000,
        "length": 128,
        "batch_size": 32 if laptop else 256,
        "learning_rate": 5e-4 if laptop else 5e-5,
        "warmup_steps": 50 if laptop else 1_000,
    }
    second_stage = {
        "corpus": {"directory": "runs/target_corpus"},
        "optimizer": {"schedule": "slanted_triangular", "layer_decay": 1 / 2.6},
    }
    lstm = {
        "model": {"encoder": "bilm", "direction": "left_to_right", "num_layers": 3},
        "examples": {"pairs": "none"},
        "phases": every_token(lengths, 2e-3 if laptop else None, accumulation=1 if laptop else 4),
    }
    arms = []
    # The recipe's rate is the best of those tried. Layers below the head get only a fraction of this rate and are unfrozen later.
    models = (("bert", "BERT", {"examples": {"pairs": "none"}}, 20, 4e-3), ("lstm", "LSTM", lstm, 127, 1.2e-2))
    for kind, label, pretrain, predictions, rate in models:
        recipe = {
            "head": {"pooling": "concat"},
            "training": {
                "epochs": 8,
                "schedule": "slanted_triangular",
                "layer_decay": 1 / 2.6,
                "gradual_unfreezing": True,
                **({"learning_rate": rate} if laptop else {}),
            },
        }
        second = {**pretrain, **second_stage, "phases": [{**target_phase, "max_predictions": predictions}]}
        plain = {} if kind == "bert" else {"sequence": {"head": {"pooling": "concat"}}}
        arms += [
            {"name": kind, "label": f"{label}: general", "pretrain": pretrain, "heads": plain},
            {"name": f"{kind}_recipe", "label": f"{label}: general, recipe", "shares": kind, "finetune": recipe},
            {"name": f"{kind}_target", "label": f"{label}: target", "continues": kind, "pretrain": second, "heads": plain},
            {"name": f"{kind}_both", "label": f"{label}: target, recipe", "shares": f"{kind}_target", "finetune": recipe},
        ]
    arms.append({"name": "random", "label": "random weights", "shares": "bert", "finetune": {"init_random": True}})
    (task,) = paper_tasks("sst2")
    few = {"finetune": {"task": {"train_rows": 2_000}}} if laptop else {}
    return ConfigDict(
        {
            "title": "Transfer",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": TINY if laptop else {},
            "arms": arms,
            "tasks": [{**task, **few}],
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 3,
            "budget": {"equal": "tokens", "tokens": 8e6} if laptop else {"equal": "steps"},
            "expected": [
                {"order": "bert_both > bert > random"},
                {"order": "bert_recipe > bert"},
                {"order": "bert_target > bert"},
                {"order": "bert_both > lstm_both"},
            ],
        }
    )
