"""Bad inputs of `study`: everything is rejected before the first arm is trained."""

from __future__ import annotations

from typing import Any

from tests.bad_inputs.case import Case, Table
from tests.bad_inputs.damage import other_vocabulary

TEXTS = {"own": {"train": "$train", "dev": "$dev"}, "length": 16}
TASK = {"name": "own", "experiment": "$repository/experiments/finetune/own_text.py", "finetune": {"task": TEXTS}}
TAGS = {"train": "tags.jsonl", "dev": "tags.jsonl"}
GOOD: dict[str, Any] = {
    "title": "t",
    "corpus": "$corpus",
    "pretraining": "$experiment",
    "arms": [{"name": "a"}],
    "tasks": [TASK],
    "seeds": [0],
}


def study(**changes: Any) -> dict[str, str]:
    """Returns the study file named by the usual flags, with some keys changed."""
    return {"study.py": f"def get_config(): return {GOOD | changes!r}\n"}


def with_arm(**arm: Any) -> dict[str, str]:
    """Returns the same with a second arm."""
    return study(arms=[{"name": "a"}, {"name": "b", **arm}])


SCHEDULES = "def word(step, steps): return 'high'\ndef power(step, steps, decay_power): return decay_power\n"
LEFT_TO_RIGHT = {"examples": {"pairs": "none"}, "model": {"direction": "left_to_right", "attention": "fused"}}

CASES = [
    Case("no study", says="--config is missing, for example", without="--config", files=study()),
    Case("no workdir", says="--workdir is missing, for example", without="--workdir", files=study()),
    Case("a profile", "--profile=1:2", "unknown argument --profile=1:2", files=study()),
    Case("an arm twice", says="the study names the arm 'a' twice; give each arm a different name",
         files=study(arms=[{"name": "a"}, {"name": "a"}])),
    Case("a key that is none", says="there is no config.arm; valid keys: arms, budget,", files=study(arm=[])),
    Case("an experiment that is not there", says="there is no file nowhere.py", files=study(pretraining="nowhere.py")),
    Case("a corpus that does not exist",
         says="the arm 'a': there is no corpus nowhere (looked for in ... make it with ... or name it in config.corpus",
         files=study(corpus="nowhere")),
    Case("a budget in another unit", "--config.budget.tokens=20e6",
         "config.budget.tokens has no effect, because config.budget.equal is steps; set config.budget.equal=tokens, or",
         files=study()),
    Case("a grid of settings, whose mean would be the score",
         says="the arm 'a' cannot do the task 'own': config.sweep.epochs=[1, 2] has several settings, but ... set "
         "sweep.epochs=[1], or another single value, in the `finetune` of the arm, of the task or of the study",
         files=study(finetune={"sweep": {"epochs": [1, 2]}})),
    Case("an arm whose head cannot predict the tags of a task",
         says="the arm 'b' cannot do the task 'tags': config.head.crf=iob2 predicts I-X only ... set config.task.scheme=IOB2",
         files=study(arms=[{"name": "a"}, {"name": "b", "heads": {"token": {"head": {"crf": "iob2"}}}}], tasks=[TASK | {"name":
         "tags", "finetune": {"task": {"name": "own/token", "length": 16, "own": TAGS}}}]) | {"tags.jsonl":
         '{"words": ["in", "oslo"], "labels": ["O", "I-A"]}\n'}),
    Case("an arm with a model that cannot be",
         says="the arm 'b': model.hidden_size=7 is not divisible by model.num_heads=2; the nearest",
         files=with_arm(pretrain={"model": {"hidden_size": 7}})),
    Case("a direction without a kernel",
         says="the arm 'b': model.attention='fused' is not available: the fused attention kernels do not support left-to-right",
         files=with_arm(pretrain=LEFT_TO_RIGHT)),
    Case("a phase that is not there",
         says="the arm 'b': phases.2: the experiment has 2 phases, numbered from 0; name one of them",
         files=with_arm(pretrain={"phases": {"2": {"steps": 1}}})),
    Case("an arm that cannot do a task",
         says="the arm 'b' cannot do the task 'own': head.layers='last_four_mix' needs 4 layers, but the model has 2",
         files=with_arm(shares="a", finetune={"head": {"layers": "last_four_mix"}})),
    Case("a head on a token that has seen nothing",
         says="the arm 'b' cannot do the task 'own': its [CLS] sees no text, since it reads from left to right; set "
         "head.pooling=", files=with_arm(pretrain={"examples": {"pairs": "none"}, "model": {"direction": "left_to_right"}})),
    Case("a head on the [CLS] of a biLM",
         says="the arm 'b' cannot do the task 'own': the [CLS] of a bilm does not represent the text; set head.pooling=concat or",
         files=with_arm(pretrain={"examples": {"pairs": "none"}, "model": {"encoder": "bilm"}})),
    Case("a task without its files", says="the task 'own': ... nowhere.csv",
         files=study(tasks=[{**TASK, "finetune": {"task": {**TEXTS, "own": {"train": "nowhere.csv", "dev": "$dev"}}}}])),
    Case("a score that is none", says="the task 'own': metric='accuracy' is not SPLIT/METRIC with a split of dev; correct it",
         files=study(tasks=[{**TASK, "metric": "accuracy"}])),
    Case("an arm with a schedule that returns no number",
         says="the arm 'b': config.optimizer.schedule=mine.py:word must return a number for a step, but returns 'high'",
         files=with_arm(pretrain={"optimizer": {"schedule": "mine.py:word"}}) | {"mine.py": SCHEDULES}),
    Case("an arm with a schedule that reads a key of pretraining",
         says="the arm 'b' cannot do the task 'own': config.training.schedule=mine.py:power needs decay_power, which the ... use",
         files=with_arm(shares="a", finetune={"training": {"schedule": "mine.py:power"}}) | {"mine.py": SCHEDULES}),
    Case("an arm that continues itself", says="the arm 'b' continues itself; name a different arm, or leave continues out",
         files=with_arm(continues="b")),
    Case("an arm with two first models",
         says="the arm 'b': init_from=$model and continues=a both set the model to start from; give only one",
         files=with_arm(continues="a", pretrain={"init_from": "$model"})),
    Case("an arm that continues one of another vocabulary",
         says="the arm 'b': its corpus has a different vocabulary than 'a', which it continues; build it with the same ... "
         "--vocab=CORPUS/tokenizer", files=with_arm(continues="a", pretrain={"corpus": {"directory": "other"}}),
         copies="other=corpus", spoil=other_vocabulary("other")),
    Case("a workdir with something else", "--workdir=$tables", "--workdir=$tables holds files that are not from a run",
         files=study()),
]  # fmt: skip
TABLE = Table("study", "--config=study.py --workdir=run", CASES)
