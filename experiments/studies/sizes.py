r"""Measures the effect of depth, width and the number of heads: smaller and larger models read the same tokens (paper Table 6).

    tpu_scripts/run.sh study --config=experiments/studies/sizes.py --workdir=runs/sizes \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/sizes.py:pod --workdir=gs://bucket/sizes \
        --config.data=gs://bucket/data

`data` holds the folders glue, sick, wnut17 and ud_english_ewt (pod: glue). Every arm reads the same tokens, so larger models
compute more. With --config.budget.equal=seconds --config.budget.seconds=1800 they train for the same time instead.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: hours; the largest of the five sizes
takes about three times as long as laptop.py. The pod pretrains the paper's six sizes; the cost of one is

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2 --config.model.num_layers=6

Expected, before it was run: the held-out loss falls with every step in size, and the scores follow the same order if they differ
beyond chance. The values of the paper's Table 6 are printed next to the measured ones."""

from ml_collections import ConfigDict

from bert_jax.studies.tasks import SMALL, paper_tasks, small_tasks

PAPER = {
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}
COLUMNS = ("perplexity", "MNLI-m", "MRPC", "SST-2")
SMALLER = ((2, 128, 2), (2, 256, 4), (4, 256, 1), (4, 256, 4), (6, 256, 4))


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    sizes = SMALLER if laptop else tuple(PAPER)
    names = {size: "L{}_H{}_A{}".format(*size) for size in sizes}
    arms = [
        {
            "name": names[size],
            "label": "{} layers, {} wide, {} heads".format(*size).replace(" 1 heads", " 1 head"),
            "pretrain": {
                "model": {
                    "num_layers": size[0],
                    "hidden_size": size[1],
                    "num_heads": size[2],
                    "intermediate_size": 4 * size[1],
                }
            },
            "paper": dict(zip(COLUMNS, PAPER.get(size, ()), strict=False)),
        }
        for size in sizes
    ]
    return ConfigDict(
        {
            "title": "Sizes",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": SMALL if laptop else {},
            "arms": arms,
            "reference": names[(4, 256, 4) if laptop else (12, 768, 12)],
            "tasks": small_tasks() if laptop else paper_tasks("mnli", "mrpc", "sst2"),
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "tokens", "tokens": 25e6} if laptop else {"equal": "steps"},
            "expected": [{"order": " > ".join(reversed(names.values()))}],
            "paper": "Devlin et al., Table 6: dev, in percent, the mean of 5 restarts; perplexity of held-out masked words.",
        }
    )
