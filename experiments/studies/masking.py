r"""Compares ways to mask: proportions of [MASK], the same word and a random word (paper Table 8), and masks of whole words and
spans.

    tpu_scripts/run.sh study --config=experiments/studies/masking.py --workdir=runs/masking \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/masking.py:pod --workdir=gs://bucket/masking \
        --config.data=gs://bucket/data

`data` holds the folders glue, wnut17 and ud_english_ewt (pod: glue and conll2003). The last task uses features, as in the
paper: the encoder is frozen, so it cannot adapt to texts without [MASK].

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: about 40 minutes for each of eight arms
and three seeds on idle cores. The pod pretrains eight BERT-Base models, each in 14 hours, or 56 chip-hours, by the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

Expected, before it was run: after fine-tuning, the arms hardly differ; with features, [MASK] alone is worse than the paper's
proportions, and random words alone are worst. The values of the paper's Table 8 are printed next to the measured ones."""

from ml_collections import ConfigDict

from bert_jax.studies.tasks import SMALL, paper_tasks, small_tasks

PAPER = {
    (80, 10, 10): (84.2, 95.4, 94.9),
    (100, 0, 0): (84.3, 94.9, 94.0),
    (80, 0, 20): (84.1, 95.2, 94.6),
    (80, 20, 0): (84.4, 95.2, 94.7),
    (0, 20, 80): (83.7, 94.8, 94.6),
    (0, 0, 100): (83.6, 94.9, 94.6),
}
COLUMNS = ("MNLI", "NER, fine-tuned", "NER, features")


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    mixes = [
        {
            "name": "mask{}_same{}_random{}".format(*mix),
            "label": "{} % [MASK], {} % same, {} % random".format(*mix),
            "pretrain": {"examples": {"mask_probability": mix[0] / 100, "random_probability": mix[2] / 100}},
            "paper": dict(zip(COLUMNS, numbers, strict=True)),
        }
        for mix, numbers in PAPER.items()
    ]
    others = [
        {"name": masking, "label": masking.replace("_", " "), "pretrain": {"examples": {"masking": masking}}}
        for masking in ("whole_words", "spans")
    ]
    frozen = {
        "optimizer": {"name": "adamw", "weight_decay": 0.0},
        "training": {"freeze_encoder": True, "learning_rate": 1e-3, "epochs": 10, "schedule": "linear"},
        "head": {"layers": "last_four_concat", "lstm": 128 if laptop else 768},
    }
    tasks = small_tasks("stsb", "wnut17", "pos") if laptop else paper_tasks("mnli", "ner")
    features = {**next(task for task in tasks if task["name"] in ("wnut17", "ner")), "name": "features", "finetune": frozen}
    return ConfigDict(
        {
            "title": "Masking",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": SMALL if laptop else {},
            "arms": [*mixes, *others],
            "tasks": [*tasks, features],
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "tokens", "tokens": 25e6} if laptop else {"equal": "steps"},
            "expected": [
                {"order": "mask80_same10_random10 > mask100_same0_random0", "tasks": ["features"]},
                {"order": "mask80_same10_random10 > mask0_same0_random100"},
            ],
            "paper": "Devlin et al., Table 8: BERT-Base, dev; NER is CoNLL-2003, features are the last four layers.",
        }
    )
