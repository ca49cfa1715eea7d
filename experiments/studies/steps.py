r"""Measures scores over the steps of pretraining, for a model with masked words and a left-to-right model (paper Figure 5).

    tpu_scripts/run.sh study --config=experiments/studies/steps.py --workdir=runs/steps \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/steps.py:pod --workdir=gs://bucket/steps \
        --config.data=gs://bucket/data

`data` holds the folders glue and wnut17 (pod: glue). The states of each run after 10, 20, 40, 60 and 80 % of its steps are kept
(`config.checkpoints.keep_at` of pretraining), and fine-tuned in the same way as the last state. (`convert --step=N` extracts
one of these states by hand.) The earlier states come from the same schedule as the last one, so their learning rate has not
decayed fully. figure.png has the curves.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop, for each seed: 15 minutes of
pretraining on one core with masked words and 45 left to right, then six fine-tunings of each run on two tasks. This is with
`--config.pretrain.model.dtype=bfloat16` on a CPU that computes in bfloat16 (AMX, AVX512-BF16). On the pod, pretraining with
masked words takes 14 hours, or 56 chip-hours, by the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

Expected, before it was run: scores rise with the steps. Masked words are better than left to right almost from the beginning,
although only 15 % of the tokens are predicted. The paper gives its numbers in a figure: after 1,000,000 steps the MNLI accuracy
is 1.0 higher than after 500,000."""

from ml_collections import ConfigDict

from bert_jax.files import JsonObject
from bert_jax.studies.phases import every_token
from bert_jax.studies.tasks import TINY, paper_tasks, small_tasks

FRACTIONS = (0.1, 0.2, 0.4, 0.6, 0.8)


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    lengths = (32, 128) if laptop else (128, 512)
    left_to_right = {
        "model": {"direction": "left_to_right"},
        "phases": every_token(lengths, 1e-3 if laptop else None, accumulation=1 if laptop else 4),
    }
    runs: dict[str, JsonObject] = {
        "masked": {"label": "masked words"},
        "ltr": {
            "label": "left to right",
            "pretrain": left_to_right,
            "heads": {"sequence": {"head": {"pooling": "last_token"}}},
        },
    }
    arms: list[JsonObject] = [{"name": name, **run} for name, run in runs.items()]
    for name, run in runs.items():
        arms += [
            {
                "name": f"{name}_{round(100 * fraction)}",
                "label": f"{run['label']}, {round(100 * fraction)} %",
                "shares": name,
                "at": fraction,
                "heads": run.get("heads", {}),
            }
            for fraction in FRACTIONS
        ]
    return ConfigDict(
        {
            "title": "Steps",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}, "examples": {"pairs": "none"}}
            if laptop
            else {"examples": {"pairs": "none"}},
            "finetune": TINY if laptop else {},
            "arms": arms,
            "tasks": small_tasks("stsb", "wnut17") if laptop else paper_tasks("mnli"),
            "seeds": [0, 1, 2] if laptop else [0],
            "budget": {"equal": "tokens", "tokens": 20e6} if laptop else {"equal": "steps"},
            "evaluations": 20,
            "expected": [{"order": "masked > masked_40 > masked_10"}, {"order": "masked > ltr"}, {"order": "masked_10 > ltr_10"}],
        }
    )
