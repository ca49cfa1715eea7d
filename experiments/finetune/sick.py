r"""SICK: entailment (three labels) or relatedness (a score from 1 to 5) of two sentences.

    tpu_scripts/run.sh finetune --config=experiments/finetune/sick.py:entailment --workdir=runs/sick \
        --config.init_from=MODEL --config.task.data_dir=DIR

DIR holds SICK.txt: its TRAIN rows are the training set, its TRIAL rows the dev set, and its TEST rows the test set.

For entailment, results.json has precision, recall (both as means over the three labels) and accuracy on dev and test. Next to
them it has the published figures on the test set for BERT-Base (86.8 / 85.4 / 86.7), NeuralLog and provers
(experiments/results/published.md). LangPro and ccg2lambda count precision and recall only over the proofs that were found, so
these scores have different names.

Hardware: v5e:1x1, one chip, or a GPU; a laptop for small models. Expected: training on the 4,439 pairs takes minutes; MiniLM
reaches 0.853 / 0.853 / 0.840 on dev (experiments/results/finetuning.md). A model that always answers with the most frequent
label, NEUTRAL, has 0.189 / 0.333 / 0.568."""

from ml_collections import ConfigDict


def get_config(question: str) -> ConfigDict:
    return ConfigDict(
        {
            "task": {"name": f"sick/{question}", "length": 64},
            "training": {"batch_size": 32, "learning_rate": 3e-5, "epochs": 4},
        }
    )
