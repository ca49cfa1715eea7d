r"""Compares BERT's predecessors and its successor, trained for the same time: static vectors, CoVe, ELMo's biLM, Flair, GPT's
left-to-right Transformer, BERT, ModernBERT.

    tpu_scripts/run.sh study --config=experiments/studies/lineage.py --workdir=runs/lineage \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/lineage.py:pod --workdir=gs://bucket/lineage \
        --config.data=gs://bucket/data

`data` holds the folders glue, sick, wnut17 and ud_english_ewt (pod: glue and squad). Every arm trains for the same time on the
same machine, and is then used as its authors used it. Static vectors and the layers of the biLM are frozen; a BiLSTM reads them
(for ELMo, a weighted sum of the layers, whose weights are trained). The three Transformers are fine-tuned. So the arms differ
in more than their pretraining. On the laptop, the learning rate and the number of rows per step are the best of those that were
tried for each arm (experiments/results/studies.md). ModernBERT uses BERT's learning rate and rows, with its own optimizer and
schedule (`recipe.py` tests the parts of ModernBERT one by one).

On the laptop, CoVe and Flair have their own corpora, which are the corpora of `experiments/pretrain/cove.py` and `flair.py`: the
captions of Multi30k, and Wikipedia in characters with case. Their features are the ones that their authors used: for CoVe the
word vectors and the encoder's output, for Flair the states at the ends of words. Flair reads characters, so its sequences are
longer.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: 30 minutes of pretraining for each of
seven arms and three seeds, 11 hours in all, and minutes of fine-tuning for each task. The pod trains each arm for 14 hours, or 56
chip-hours. By the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

this is the time that BERT-Base takes.

Expected, before it was run: on sentence tasks BERT is best, then the left-to-right model, then the biLM, then static vectors;
on tagging the left-to-right model is worst, since it has no BiLSTM. Expected, before ModernBERT was added: ModernBERT is better
than BERT on all tasks. Expected, before CoVe and Flair were added: on tagging Flair is better than the biLM and static vectors,
since endings and capitals reveal the part of speech of a rare word, and whether it is a name. CoVe is worse than the biLM and
static vectors on all tasks, since it has read only 29 thousand captions. The paper compares BERT with an ELMo and a GPT of
other sizes, trained on other data, so none of its rows is printed."""

from ml_collections import ConfigDict

from bert_jax.files import JsonObject
from bert_jax.model.config import modern_block
from bert_jax.studies.phases import every_token, modern_recipe
from bert_jax.studies.tasks import TINY, paper_tasks, small_tasks


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    lengths = (32, 128) if laptop else (128, 512)
    layers, width, radius = (2, 128, 16) if laptop else (12, 768, 64)
    if laptop:
        phases = [
            {"steps": 7_000, "length": 32, "batch_size": 128, "learning_rate": 1.5e-3, "warmup_steps": 200},
            {"steps": 2_000, "length": 128, "batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 100},
        ]
    else:
        phases = [
            {"steps": 900_000, "length": 128, "batch_size": 256, "learning_rate": 1e-4, "warmup_steps": 10_000},
            {"steps": 100_000, "length": 512, "batch_size": 256, "learning_rate": 1e-4},
        ]
    features = {
        "optimizer": {"name": "adamw", "weight_decay": 0.0},
        "training": {"freeze_encoder": True, "learning_rate": 3e-3, "epochs": 8, "schedule": "linear"},
    }
    arms = [
        {
            "name": "static",
            "label": "static vectors + BiLSTM",
            "pretrain": {
                "model": {"encoder": "static", "num_layers": 0, "dtype": "float32"},
                "examples": {"pairs": "none"},
                "phases": every_token(lengths),
            },
            "finetune": {**features, "head": {"lstm": width}},
        },
        {
            "name": "bilm",
            "label": "biLM + BiLSTM",
            "pretrain": {
                "model": {"encoder": "bilm", "num_layers": 2},
                "examples": {"pairs": "none"},
                "phases": every_token(lengths, 2e-3 if laptop else None, accumulation=1 if laptop else 4),
            },
            "finetune": {**features, "head": {"layers": "scalar_mix", "lstm": width}},
        },
        *(heirs(features, width) if laptop else ()),
        {
            "name": "ltr",
            "label": "left-to-right Transformer",
            "pretrain": {
                "model": {"direction": "left_to_right"},
                "examples": {"pairs": "none"},
                "phases": every_token(lengths, 1e-3 if laptop else None, accumulation=1 if laptop else 4),
            },
            "heads": {"sequence": {"head": {"pooling": "last_token"}}},
        },
        {"name": "bert", "label": "BERT"},
        {
            "name": "modern",
            "label": "ModernBERT",
            "pretrain": {
                "model": {
                    **modern_block(layers, radius=radius),
                    "intermediate_size": width * 8 // 3 // 8 * 8,  # with the gate it has as many parameters as BERT
                    "rotary_theta": 10_000.0,
                    "initializer": "modernbert",
                },
                **modern_recipe(phases),
            },
        },
    ]
    sentences, tagging = (("stsb", "sick"), ("wnut17", "pos")) if laptop else (("mnli", "qnli", "mrpc", "sst2"), ("squad",))
    return ConfigDict(
        {
            "title": "Lineage",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": TINY if laptop else {},
            "arms": arms,
            "reference": "bert",
            "tasks": small_tasks() if laptop else paper_tasks(),
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "seconds", "seconds": 1_800 if laptop else 50_400},
            "expected": [
                {"order": "bert > ltr > bilm > static", "tasks": sentences},
                {"order": "bert, bilm, static > ltr", "tasks": tagging},
                {"order": "modern > bert"},
                *([{"order": "flair > bilm, static", "tasks": tagging}, {"order": "bilm, static > cove"}] if laptop else ()),
            ],
        }
    )


def heirs(features: JsonObject, width: int) -> list[JsonObject]:
    """Returns the arms of CoVe and Flair, which have their own corpora."""
    return [
        {
            "name": "cove",
            "label": "CoVe + BiLSTM",
            "pretrain": {
                "corpus": {"directory": "runs/multi30k_corpus"},
                "model": {
                    "encoder": "cove", "num_layers": 2, "decoder_layers": 2, "intermediate_size": width // 2,
                    "hidden_dropout": 0.2,
                },
                "examples": {"pairs": "none"},
                "objective_options": {"label_smoothing": 0.0},
                "phases": [
                    {
                        "steps": 9_000, "length": 64, "batch_size": 32, "packed_examples": 8, "learning_rate": 2e-3,
                        "warmup_steps": 200,
                    },
                ],
            },
            "finetune": {**features, "head": {"layers": "embeddings_and_last", "lstm": width}},
        },
        {
            "name": "flair",
            "label": "Flair + BiLSTM",
            "pretrain": {
                "corpus": {"directory": "runs/wikipedia_characters"},
                "model": {
                    "encoder": "flair", "num_layers": 1, "hidden_size": 4 * width, "intermediate_size": 2 * width,
                    "max_position": 2_048,
                },
                "examples": {"pairs": "none"},
                "phases": [
                    {
                        "steps": 9_000, "length": 256, "batch_size": 32, "max_predictions": 255, "learning_rate": 2e-3,
                        "warmup_steps": 200,
                    },
                ],
            },
            "finetune": {**features, "head": {"lstm": width}, "task": {"length": 512}},
        },
    ]  # fmt: skip
