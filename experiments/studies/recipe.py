r"""Goes from BERT's block and recipe to ModernBERT's, and measures the effect of each part alone, in the same training time.

    tpu_scripts/run.sh study --config=experiments/studies/recipe.py --workdir=runs/recipe \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/recipe.py:pod --workdir=gs://bucket/recipe \
        --config.data=gs://bucket/data

`data` holds the folders glue, sick, wnut17 and ud_english_ewt (pod: glue and squad). Two of the six arms are complete: BERT's
block and recipe, and ModernBERT's. ModernBERT's block has rotary positions, norms before attention and feed-forward, GeGLU, no
biases, and local attention; its recipe has 30 % masks and no NSP, StableAdamW, and a trapezoidal schedule. The other four arms
are BERT, each with one part of ModernBERT. All arms train for the same time on packed rows of 512 tokens. In such rows, a layer
of local attention saves time: it sees only 65 tokens (on the pod 129). A gated feed-forward is narrower (8/3 of the width
instead of 4 times the width), so that it has the same number of parameters. Held-out rows have 15 % masks for all arms, so that
the losses of masked words can be compared.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: 10 minutes of pretraining for each of
six arms and two seeds, two hours in all, and minutes of fine-tuning for each task. The pod trains each arm for 14 hours, or 56
chip-hours. By the estimate of

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2

this is the time that BERT-Base takes.

Expected, before it was run: the held-out loss of masked words is lowest with ModernBERT's whole recipe. From low to high, the
other arms are: rotary positions, local attention, 30 % masks, gate and pre-norm, BERT. Rotary positions and local attention
both make neighbours easy to find, which a model with rows of 512 learns late. On tagging the whole recipe is better than rotary
positions and local attention, and these are better than BERT. On sentence tasks the whole recipe is better than BERT; no order
is expected for the other arms. Result, with two seeds on one core: the losses are in this order, except for local attention.
With both seeds, the loss of local attention is higher than the loss with 30 % masks. With one seed, it is also higher than the
loss with the gate. Only ModernBERT learns to use context in this time (experiments/results/studies.md)."""

from ml_collections import ConfigDict

from bert_jax.model.config import modern_block
from bert_jax.studies.phases import modern_masks, modern_recipe
from bert_jax.studies.tasks import TINY, paper_tasks, small_tasks


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    layers, width, radius = (4, 128, 32) if laptop else (12, 768, 64)
    gate = {"gate": "first", "intermediate_size": width * 8 // 3 // 8 * 8}
    rotary = {"positions": "rotary", "rotary_theta": 10_000.0}
    block = modern_block(layers, radius=radius)
    local = {name: block[name] for name in ("layer_types", "sliding_radius")}
    norms = {name: block[name] for name in ("norm_placement", "first_attention_norm", "final_norm")}
    if laptop:
        rows = {"length": 512, "packed_examples": 8, "batch_size": 8, "max_predictions": 80}
        phases = [{"steps": 4_000, "learning_rate": 1e-3, "warmup_steps": 200, **rows}]
    else:
        rows = {"length": 512, "packed_examples": 8, "batch_size": 64, "max_predictions": 80}
        phases = [{"steps": 1_000_000, "learning_rate": 1e-4, "warmup_steps": 10_000, **rows}]
    arms = [
        {"name": "bert", "label": "BERT"},
        {"name": "positions", "label": "rotary positions", "pretrain": {"model": rotary}},
        {"name": "gate", "label": "GeGLU, pre-norm", "pretrain": {"model": {**gate, **norms}}},
        {
            "name": "masks",
            "label": "30 % masks, no NSP",
            "pretrain": {"examples": {"pairs": "none"}, "phases": {"0": modern_masks(512, packed=8)}},
        },
        {"name": "local", "label": "local attention", "pretrain": {"model": local}},
        {
            "name": "modern",
            "label": "ModernBERT",
            "pretrain": {
                "model": {**block, **gate, "rotary_theta": 10_000.0, "initializer": "modernbert"},
                **modern_recipe(phases),
            },
        },
    ]
    sentences, tagging = (("stsb", "sick"), ("wnut17", "pos")) if laptop else (("mnli", "qnli", "mrpc", "sst2"), ("squad",))
    return ConfigDict(
        {
            "title": "Recipe",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"phases": phases} | ({"model": {"num_layers": layers, "dtype": "float32"}} if laptop else {}),
            "finetune": TINY if laptop else {},
            "arms": arms,
            "reference": "bert",
            "tasks": small_tasks() if laptop else paper_tasks(),
            "seeds": [0, 1] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "seconds", "seconds": 600 if laptop else 50_400},
            "expected": [
                {"order": "modern > bert", "tasks": sentences},
                {"order": "modern > positions, local > bert", "tasks": tagging},
            ],
        }
    )
