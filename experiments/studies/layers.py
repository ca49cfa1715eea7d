r"""Compares fine-tuning a pretrained model with training a BiLSTM on the features of its layers (paper section 5.3, Table 7).

    tpu_scripts/run.sh study --config=experiments/studies/layers.py --workdir=runs/layers \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/layers.py:pod --workdir=gs://bucket/layers \
        --config.data=gs://bucket/data

`data` holds the folders wnut17 and ud_english_ewt (pod: conll2003). One model is pretrained for each seed. One arm fine-tunes
this model. The other arms freeze it and train a two-layer BiLSTM on the layers that they are named after.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: 20 minutes of pretraining for each
seed, then minutes for each of seven arms and two tasks. The pod's pretraining takes as long as BERT-Base's: 14 hours, or 56
chip-hours, by the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

Expected, before it was run: the concatenated last four layers come nearest to fine-tuning, and the embeddings are worst. The
values of the paper's Table 7 are printed next to the measured ones."""

from ml_collections import ConfigDict

from bert_jax.studies.tasks import SMALL, paper_tasks, small_tasks

PAPER = {
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "last_four_mix": 95.9,
    "last_four_concat": 96.1,
    "scalar_mix": 95.5,
}


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    frozen = {
        "optimizer": {"name": "adamw", "weight_decay": 0.0},
        "training": {"freeze_encoder": True, "learning_rate": 1e-3, "epochs": 10, "schedule": "linear"},
    }
    features = [
        {
            "name": layers,
            "label": f"features: {layers}",
            "shares": "finetuned",
            "finetune": {**frozen, "head": {"layers": layers, "lstm": 128 if laptop else 768}},
            "paper": {"CoNLL-2003 dev F1": number},
        }
        for layers, number in PAPER.items()
    ]
    return ConfigDict(
        {
            "title": "Layers",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": SMALL if laptop else {},
            "arms": [{"name": "finetuned", "label": "fine-tuned", "paper": {"CoNLL-2003 dev F1": 96.4}}, *features],
            "tasks": small_tasks("wnut17", "pos") if laptop else paper_tasks("ner"),
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "tokens", "tokens": 25e6} if laptop else {"equal": "steps"},
            "expected": [{"order": "finetuned > last_four_concat > embeddings"}, {"order": "last_four_concat > last"}],
            "paper": "Devlin et al., Table 7: BERT-Base, dev, the mean of 5 restarts.",
        }
    )
