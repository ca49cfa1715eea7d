r"""Measures the effect of BERT's two objectives. BERT is compared with a model without next sentence prediction, a
left-to-right model, and a left-to-right model with a BiLSTM on top (paper Table 5).

    tpu_scripts/run.sh study --config=experiments/studies/objectives.py --workdir=runs/objectives \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/objectives.py:pod --workdir=gs://bucket/objectives \
        --config.data=gs://bucket/data

`data` holds the folders glue, sick, wnut17 and ud_english_ewt (pod: glue and squad). Every arm reads the same tokens. A
left-to-right model predicts every token, so its output layer computes more. Its [CLS] sees no other token, so sentence tasks use
its last token instead.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop, for each of three seeds: 15 minutes
of pretraining on one core for BERT, 15 without next sentence prediction and 45 left to right, and 4 minutes of fine-tuning for
each of four arms. These times are with `--config.pretrain.model.dtype=bfloat16` on a CPU that computes in bfloat16 (AMX,
AVX512-BF16); in float32 they are 1.5 times as long. The pod pretrains three models of BERT-Base; the cost of one is

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2 --config.model.direction=left_to_right \
        --config.examples.pairs=none --config.phases.0.max_predictions=127 --config.phases.1.max_predictions=511 \
        --config.phases.1.accumulation=4

Expected, before it was run: on sentence tasks BERT is better than the left-to-right model; on tagging the left-to-right model is
worst, and a BiLSTM on top helps it; without next sentence prediction little changes. The values of the paper's Table 5 are
printed next to the measured ones."""

from ml_collections import ConfigDict

from bert_jax.files import JsonObject
from bert_jax.studies.phases import every_token
from bert_jax.studies.tasks import TINY, paper_tasks, small_tasks

PAPER = {
    "bert": (84.4, 88.4, 86.7, 92.7, 88.5),
    "no_nsp": (83.9, 84.9, 86.5, 92.6, 87.9),
    "ltr": (82.1, 84.3, 77.5, 92.1, 77.8),
    "ltr_bilstm": (82.1, 84.1, 75.7, 91.6, 84.9),
}
COLUMNS = ("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD F1")


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    lengths = (32, 128) if laptop else (128, 512)
    arms: dict[str, JsonObject] = {
        "bert": {"label": "BERT"},
        "no_nsp": {"label": "no NSP", "pretrain": {"examples": {"pairs": "none"}}},
        "ltr": {
            "label": "left to right, no NSP",
            "pretrain": {
                "model": {"direction": "left_to_right"},
                "examples": {"pairs": "none"},
                "phases": every_token(lengths, 1e-3 if laptop else None, accumulation=1 if laptop else 4),
            },
            "heads": {"sequence": {"head": {"pooling": "last_token"}}},
        },
        "ltr_bilstm": {
            "label": "left to right + BiLSTM",
            "shares": "ltr",
            "finetune": {"head": {"lstm": 128 if laptop else 768}},
        },
    }
    sentences, tagging = (("stsb", "sick"), ("wnut17", "pos")) if laptop else (("mnli", "qnli", "mrpc"), ("squad",))
    return ConfigDict(
        {
            "title": "Objectives",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": TINY if laptop else {},
            "arms": [{"name": name, "paper": dict(zip(COLUMNS, PAPER[name], strict=True)), **arm} for name, arm in arms.items()],
            "tasks": small_tasks() if laptop else paper_tasks(),
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "tokens", "tokens": 20e6} if laptop else {"equal": "steps"},
            "expected": [
                {"order": "bert > ltr", "tasks": sentences},
                {"order": "bert, no_nsp, ltr_bilstm > ltr", "tasks": tagging},
            ],
            "paper": "Devlin et al., Table 5: BERT-Base on dev, in percent.",
        }
    )
