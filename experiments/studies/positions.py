r"""Compares learned positions with sinusoids, and with no positions as a control.

    tpu_scripts/run.sh study --config=experiments/studies/positions.py --workdir=runs/positions \
        --config.corpus=runs/wikipedia_corpus --config.data=data
    tpu_scripts/run.sh study --config=experiments/studies/positions.py:pod --workdir=gs://bucket/positions \
        --config.data=gs://bucket/data

`data` holds the folders glue, sick, wnut17 and ud_english_ewt (pod: glue and squad). Without positions, a model that reads in
both directions only sees a bag of words. Every arm reads the same tokens.

Hardware: 2 CPU cores; for the pod, v5e:2x2 (4 chips) for each host. Duration on a laptop: on one core, about 16 minutes of
pretraining and 4 of fine-tuning for each of three arms and three seeds. This is with `--config.pretrain.model.dtype=bfloat16` on
a CPU that computes in bfloat16 (AMX, AVX512-BF16). The pod pretrains three models of BERT-Base; the cost of one is

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_base.py --topology=v5e:2x2 --config.model.positions=sinusoidal

Expected, before it was run: learned and sinusoidal positions are equally good, and both are better than none. The difference is
largest on tagging and in the held-out loss. The paper does not compare them."""

from ml_collections import ConfigDict

from bert_jax.studies.tasks import TINY, paper_tasks, small_tasks


def get_config(setting: str = "laptop") -> ConfigDict:
    laptop = {"laptop": True, "pod": False}[setting]
    arms = [
        {"name": positions, "label": label, "pretrain": {"model": {"positions": positions}}}
        for positions, label in (("learned", "learned"), ("sinusoidal", "sinusoidal"), ("none", "no positions"))
    ]
    return ConfigDict(
        {
            "title": "Positions",
            "setting": setting,
            "corpus": "runs/wikipedia_corpus",
            "pretraining": "experiments/pretrain/laptop.py:tiny" if laptop else "experiments/pretrain/bert_base.py",
            "pretrain": {"model": {"dtype": "float32"}} if laptop else {},
            "finetune": TINY if laptop else {},
            "arms": arms,
            "tasks": small_tasks() if laptop else paper_tasks(),
            "seeds": [0, 1, 2] if laptop else [0],
            "restarts": 1 if laptop else 5,
            "budget": {"equal": "tokens", "tokens": 20e6} if laptop else {"equal": "steps"},
            "expected": [{"order": "learned, sinusoidal > none"}],
        }
    )
